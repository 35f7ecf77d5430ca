"""How far a point is from being stationary, in the sense of the paper's Definition 1.

x is (ε_f, ε_g)-stationary if some λ ≥ 0 has ‖∇f(x) + λ∇g(x)‖² ≤ ε_f, and ‖∇g(x)‖² ≤ ε_g. A method's own λ_k gives one
residual; the least over all λ ≥ 0 gives another, the only one that compares methods.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak import rules
from tiebreak.oracles import Array

Values = NDArray[np.float64]

_WIDE = np.dtype(np.float64)
_ROW = 2**13  # the longest inner product that BLAS computes on a single thread


def dot(a: Array, b: Array) -> Values:
    """⟨a, b⟩ along the last axis, accumulated in float64, one row like another whatever the number of rows."""
    if a.dtype is _WIDE is b.dtype and a.shape[-1] <= _ROW:  # at every step, twice
        return np.vecdot(a, b)  # type: ignore[no-any-return]  # a ufunc's result is Any
    dimension = a.shape[-1]
    wide = (a.astype(_WIDE, copy=False), b.astype(_WIDE, copy=False))
    if dimension <= _ROW:
        return np.vecdot(*wide)  # type: ignore[no-any-return]  # a ufunc's result is Any
    # Blocks that BLAS does not share among threads. Threads gain little, wait for each other on a busy machine, and
    # would make the last bits depend on the number of cores.
    blocks = dimension - dimension % _ROW
    pieces = [v[..., :blocks].reshape(*v.shape[:-1], -1, _ROW) for v in wide]
    remainder = [v[..., blocks:] for v in wide]
    return np.vecdot(*pieces).sum(axis=-1) + np.vecdot(*remainder)  # type: ignore[no-any-return]  # likewise


def products(a: Array, b: Array) -> tuple[Any, Any]:
    """⟨a, b⟩ and ⟨b, b⟩ of every row; floats where there is one row, the same to the last bit in half the time.

    Examples
    --------
    >>> products(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
    (11.0, 25.0)
    """
    if len(a) == 1 and a.dtype is _WIDE is b.dtype and a.size <= _ROW:
        column = b.T  # a row times a column is NumPy's inner product of vectors, which vecdot calls for every row
        return a.dot(column).item(), b.dot(column).item()
    return dot(a, b), dot(b, b)


def best_multiplier(fg: Any, gg: Any) -> Any:
    """argmin over λ ≥ 0 of ‖∇f + λ∇g‖², which is [−fg]₊ / gg: the DBGD rule without a barrier.

    Examples
    --------
    >>> best_multiplier(fg=-1.0, gg=2.0)
    0.5
    """
    return rules.dbgd(fg, gg, 0.0)


class Residuals(NamedTuple):
    """Squared norms at one point or many.

    Attributes
    ----------
    direction_squared : array
        ‖∇f + λ∇g‖² with the method's own λ.
    lower_gradient_squared : array
        ‖∇g‖².
    stationarity_squared : array
        The least ‖∇f + λ∇g‖² over λ ≥ 0, the same for every method.
    multiplier : array
        The method's own λ.
    """

    direction_squared: Values
    lower_gradient_squared: Values
    stationarity_squared: Values
    multiplier: Values


def residuals(upper: Array, lower: Array, multiplier: Any) -> Residuals:
    """The residuals from both exact gradients, along their last axis, and a multiplier or a rule (fg, gg) ↦ λ.

    Examples
    --------
    >>> r = residuals(np.array([1.0, -1.0]), np.array([0.0, 2.0]), 1.0)
    >>> float(r.direction_squared), float(r.lower_gradient_squared), float(r.stationarity_squared)
    (2.0, 4.0, 1.0)
    """
    upper = np.asarray(upper)
    lower = np.asarray(lower)
    fg = dot(upper, lower)
    gg = dot(lower, lower)
    chosen = np.asarray(
        multiplier(fg, gg) if callable(multiplier) else multiplier, dtype=np.float64
    )

    def along(factor: Any) -> Values:
        # Computed from the vectors: ff − fg²/gg loses every digit, and the sign, near a stationary point.
        direction = upper + np.asarray(factor)[..., None] * lower
        return dot(direction, direction)

    return Residuals(along(chosen), gg, along(best_multiplier(fg, gg)), chosen + 0 * gg)
