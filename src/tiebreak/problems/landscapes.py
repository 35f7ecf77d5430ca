"""Objectives to build problems of: smooth, with bounded gradients, and with smoothness that is proved beside each.

All are made of φ(t) = √(1+t²) − 1, for which |φ'| = |t|/√(1+t²) < 1 and 0 < φ''= (1+t²)^{−3/2} ≤ 1. They take points
with any axes in front of their own, and give the same last bits however many points there are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.oracles import Array
from tiebreak.stationarity import dot

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """An objective: value, gradient, its smoothness L, a bound G on the gradient's norm, and its infimum."""

    value: Callable[[Array], Any]
    gradient: Callable[[Array], Any]
    smoothness: float
    slope: float
    least: float = 0.0


def _phi(t: Any) -> Any:
    return t * t / (1 + np.sqrt(1 + t * t))  # √(1+t²) − 1 without cancellation


def _phi_slope(t: Any) -> Any:
    return t / np.sqrt(1 + t * t)


def pull(center: Values, scales: Values, size: float) -> Landscape:
    """D² √(1 + Σ a_i (x_i−c_i)²/D²): a quadratic near c, a cone far from it.

    With y = A^{1/2}(x−c)/D the Hessian is A^{1/2} (I/q − yyᵀ/q³) A^{1/2}, q = √(1+‖y‖²), between 0 and A: L = max a.
    The gradient is D A^{1/2} y/q: G = D √max a. Least at c, D².
    """

    def root(x: Array) -> Any:
        offset = x - center
        return offset, np.sqrt(1 + dot(offset * scales, offset) / size**2)

    def gradient(x: Array) -> Any:
        offset, q = root(x)
        return scales * offset / q[..., None]

    top = float(scales.max())
    return Landscape(
        lambda x: size**2 * root(x)[1], gradient, top, size * math.sqrt(top), size**2
    )


def _first(
    count: int, value: Callable[[Any], Any], slope: Callable[[Any], Any]
) -> Landscape:
    """Σ h(x_i) over the first coordinates, the others free; L = 1 and G = √count if |h''| ≤ 1 and |h'| ≤ 1."""

    def gradient(x: Array) -> Any:
        slopes = np.zeros_like(x)
        slopes[..., :count] = slope(_contiguous(x, count))
        return slopes

    return Landscape(
        lambda x: value(_contiguous(x, count)).sum(axis=-1),
        gradient,
        1.0,
        math.sqrt(count),
    )


def _contiguous(x: Array, count: int) -> Array:
    # For strided memory NumPy may take another sin, and runs would differ in the last bit.
    return np.ascontiguousarray(x[..., :count])


def waves(count: int) -> Landscape:
    """Σ 1 − cos x_i over the first coordinates: a lattice of subspaces, apart from each other. L = 1, at 0."""
    return _first(count, lambda t: 1 - np.cos(t), np.sin)


def wells(count: int) -> Landscape:
    """Σ φ(√(1+x_i²) − 2): minimisers ±√3 in each of the first coordinates, a ridge at 0 between them.

    It is `rings` in one dimension: L = 1, G = √count.
    """

    def slope(t: Any) -> Any:
        q = np.sqrt(1 + t * t)
        return _phi_slope(q - 2) * t / q

    return _first(count, lambda t: _phi(np.sqrt(1 + t * t) - 2), slope)


def fourth(count: int) -> Landscape:
    """Σ φ(φ(x_i)), about x_i⁴/8 near 0: the gradient vanishes to third order, so minimisers hardly attract.

    With q = √(1+t²) and p = √(1+(q−1)²) the second derivative is (1−1/q²)/p³ + (q−1)/(p q³), which is ≥ 0 and at most
    1 − 1/q³, because p ≥ 1: L = 1 will do.
    """
    return _first(
        count, lambda t: _phi(_phi(t)), lambda t: _phi_slope(_phi(t)) * _phi_slope(t)
    )


def weighted(weights: Values) -> Landscape:
    """Σ h_i φ(x_i) over the first coordinates, with weights h: as badly conditioned as these. L = max h, G = ‖h‖."""
    count = len(weights)
    plain = _first(
        count, lambda t: weights * _phi(t), lambda t: weights * _phi_slope(t)
    )
    return replace(
        plain, smoothness=float(weights.max()), slope=float(np.linalg.norm(weights))
    )


def gorge(count: int, slope: float, width: float) -> Landscape:
    """Σ φ(x_i) over the first coordinates, and slope · width · φ(z/width) of z, the next: steep walls, a gentle floor.

    Second derivatives are at most 1 and slope/width, which must not be more: L = 1. The gradient: G = √(count+slope²).
    """

    walls = _first(count, _phi, _phi_slope)

    def value(x: Array) -> Any:
        return walls.value(x) + slope * width * _phi(x[..., count] / width)

    def gradient(x: Array) -> Any:
        slopes = walls.gradient(x)
        slopes[..., count] = slope * _phi_slope(x[..., count] / width)
        return slopes

    return Landscape(value, gradient, 1.0, math.sqrt(count + slope**2))


def sine(count: int) -> Landscape:
    """Σ φ(y_i − sin x_i) over pairs (x_i, y_i), all x first: a winding valley, of as many dimensions as pairs.

    For a pair, with u = y − sin x and v = (−cos x, 1), the Hessian is φ''(u) vvᵀ + φ'(u) diag(sin x, 0): its norm is at
    most ‖v‖² + |sin x| ≤ 1 + cos² x + |sin x| ≤ 9/4, the largest value of 2 − s² + s. The gradient is φ'(u) v, of norm
    below √2: G = √(2 count).
    """

    def gap(x: Array) -> Any:
        first = _contiguous(x, count)
        second = x[..., count : 2 * count]
        return first, second - np.sin(first)

    def gradient(x: Array) -> Any:
        first, u = gap(x)
        slopes = np.zeros_like(x)
        slope = _phi_slope(u)
        slopes[..., :count] = -np.cos(first) * slope
        slopes[..., count : 2 * count] = slope
        return slopes

    return Landscape(
        lambda x: _phi(gap(x)[1]).sum(axis=-1), gradient, 2.25, math.sqrt(2 * count)
    )


def rings(size: float) -> Landscape:
    """D² φ(q − 2), q = √(1+‖x‖²/D²): minimisers are the sphere ‖x‖ = √3 D, with a peak inside.

    With y = x/D and u = q − 2 the gradient is D φ'(u) y/q: G = D. The Hessian's eigenvalues are φ'(u)/q across, of
    modulus below 1, and φ''(u)(1 − 1/q²) + φ'(u)/q³ along y, in modulus at most 1 − 1/q² + 1/q³ ≤ 1: L = 1.
    """

    def root(x: Array) -> Any:
        return np.sqrt(1 + dot(x, x) / size**2)

    def gradient(x: Array) -> Any:
        q = root(x)
        return (_phi_slope(q - 2) / q)[..., None] * x

    return Landscape(lambda x: size**2 * _phi(root(x) - 2), gradient, 1.0, size)


def ball(size: float) -> Landscape:
    """D² φ([r − 1]₊), r = ‖x‖/D: every point of a ball is a minimiser.

    The gradient is D φ'(u) x/‖x‖, u = [r−1]₊: G = D. Outside, the Hessian's eigenvalues are φ''(u) along x and φ'(u)/r
    across, below 1; inside it is 0, and the gradient is continuous: L = 1.
    """

    def excess(x: Array) -> Any:
        r = np.sqrt(dot(x, x)) / size
        return r, np.maximum(r - 1, 0)

    def gradient(x: Array) -> Any:
        r, u = excess(x)
        return (_phi_slope(u) / np.maximum(r, 1))[..., None] * x  # where r < 1, φ' = 0

    return Landscape(lambda x: size**2 * _phi(excess(x)[1]), gradient, 1.0, size)
