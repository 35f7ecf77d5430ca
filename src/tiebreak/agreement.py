"""Whether an oracle agrees with itself: its gradient with its values, its samples with its gradient."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tiebreak.oracles import Array, Oracle

__all__ = ["check_oracle", "disagreements"]

_ASIDE = 1e-2  # the point lies so far from x, relatively: a kink or a stationary point is mostly at x itself
_STEPS = (1e-3, 1e-5, 1e-7)  # of the differences; where one of them agrees, so does the gradient
_NEAR = 1e-2  # relatively: a wrong sign, factor or coordinate is off by more
_BATCHES, _SIZE = 32, 64  # of samples
_FAR = 8.0  # standard errors of a mean of 32: chance takes it there once in 10⁸ times


def check_oracle(oracle: Oracle, x: Any, *, seed: int = 0) -> None:
    """Raise ValueError where an oracle does not agree with itself, near a point.

    Along its gradient and along a random direction, differences of ``value`` are compared with ``exact_gradient``, and
    the mean of 32 mini-batches of 64 samples with the same. What an oracle does not have is not looked at. Meant for a
    new oracle: a wrong sign, a forgotten factor, a coordinate too many, the sum of a mini-batch in place of its mean.

    Examples
    --------
    >>> import tiebreak
    >>> right = tiebreak.Exact(lambda x: 2 * x, lambda x: x @ x)
    >>> tiebreak.check_oracle(right, [1.0, 2.0])
    >>> wrong = tiebreak.Exact(lambda x: x, lambda x: x @ x)
    >>> tiebreak.check_oracle(wrong, [1.0, 2.0])
    Traceback (most recent call last):
    ...
    ValueError: oracle: along the gradient its value rises by 4.47 per unit, and by its exact gradient it would be 2.23
    """
    if not isinstance(oracle, Oracle):
        raise TypeError(f"oracle={oracle!r} must have sample(rng, size) and gradient(x, token)")
    found = disagreements(oracle, x, seed)
    if found:
        raise ValueError(f"oracle: {'; '.join(found)}")


def disagreements(oracle: Oracle, x: Any, seed: int = 0) -> list[str]:
    """What does not agree, in words; empty where all does, or nothing can be told."""
    point = np.asarray(x, dtype=float)
    if hasattr(oracle, "bind"):
        oracle = oracle.bind(point.shape)
    exact = getattr(oracle, "exact_gradient", None)
    if exact is None:
        return []
    rng = np.random.default_rng(seed)
    aside = point + _ASIDE * (1 + np.abs(point)) * rng.standard_normal(point.shape)
    for where in (aside, point):
        gradient = _numbers(exact(where))
        if gradient.shape == where.shape and np.isfinite(gradient).all():
            ways = list(_ways(gradient, rng))
            return _of_values(oracle, where, gradient, ways) + _of_samples(oracle, where, gradient, ways, rng)
    return []


def _ways(gradient: Array, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Directions of length 1: along the gradient the whole of it is seen, along a random one every coordinate."""
    norm = np.linalg.norm(gradient)
    if norm > 0:
        yield "along the gradient", gradient / norm
    way = rng.standard_normal(gradient.shape)
    yield "along a random direction", way / np.linalg.norm(way)


def _of_values(oracle: Any, x: Array, gradient: Array, ways: list[tuple[str, Array]]) -> list[str]:
    value = getattr(oracle, "value", None)
    if value is None or not getattr(oracle, "has_value", True):
        return []
    typical = np.linalg.norm(gradient) / np.sqrt(gradient.size)  # of the slope in a random direction
    length = 1 + np.linalg.norm(x) / np.sqrt(x.size)
    for name, way in ways:
        slope, slopes = float(np.sum(gradient * way)), []
        for step in (length * each for each in _STEPS):
            ends = [_numbers(value(x + sign * step * way)) for sign in (1, -1)]
            if any(end.size != 1 or not np.isfinite(end).all() for end in ends):
                break
            high, low = (float(end.reshape(())) for end in ends)
            slopes.append((high - low) / (2 * step))
            rounding = 8 * np.finfo(ends[0].dtype).eps * max(abs(high), abs(low)) / step
            if abs(slopes[-1] - slope) <= _NEAR * (max(abs(slope), abs(slopes[-1])) + 0.1 * typical) + rounding:
                break
        else:
            nearest = min(slopes, key=lambda found: abs(found - slope))
            return [
                f"{name} its value rises by {nearest:.3g} per unit, and by its exact gradient it would be {slope:.3g}"
            ]
    return []


def _of_samples(
    oracle: Any, x: Array, gradient: Array, ways: list[tuple[str, Array]], rng: np.random.Generator
) -> list[str]:
    drawn = [_numbers(oracle.gradient(x, oracle.sample(rng, _SIZE))) for _ in range(_BATCHES)]
    if any(each.shape != x.shape or not np.isfinite(each).all() for each in drawn):
        return []
    for name, way in ways:
        slope, seen = float(np.sum(gradient * way)), np.array([float(np.sum(each * way)) for each in drawn])
        error = seen.std(ddof=1) / np.sqrt(_BATCHES)
        if abs(seen.mean() - slope) > _FAR * error + _NEAR * abs(slope) + 1e-9 * np.linalg.norm(gradient):
            return [
                f"{name} its mini-batches have {seen.mean():.3g} ± {error:.1g} in the mean, its exact gradient has "
                f"{slope:.3g}: they must be means whose expectation is the exact gradient"
            ]
    return []


def _numbers(values: Any) -> Array:
    found = np.asarray(values)
    return found if found.dtype.kind == "f" else found.astype(float)
