"""Whether an oracle agrees with itself: its gradient with its values, its samples with its gradient."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tiebreak.oracles.sampling import Array, Exact, Oracle

_ASIDE = 1e-2  # the point lies so far from x, relatively: a kink or a stationary point is mostly at x itself
_STEPS = (
    1e-2,
    1e-3,
    1e-5,
    1e-7,
    1e-9,
)  # of the differences; a single agreement is enough
_NEAR = 1e-2  # relatively: a wrong sign, factor or coordinate is off by more
_ROUGH = 0.1  # the largest share of rounding in a difference that counts
# of samples
_BATCHES = 32
_SIZE = 256
_FAR = 8.0  # standard errors of a mean of 32, exceeded by chance once in 10⁸ times


def check_oracle(oracle: Any, x: Any, *, seed: int = 0) -> None:
    """Raise ValueError where an oracle does not agree with itself, near a point.

    Along its gradient and along a random direction, differences of ``value`` are compared with ``exact_gradient``, and
    the mean of 32 mini-batches of 256 samples with the same; without ``exact_gradient`` the values with that mean.
    Meant for a new oracle: a wrong sign, a forgotten factor, a coordinate too many, the sum of a mini-batch in place of
    its mean. It may be mistaken where samples that matter are rarer than one in thousands, or values are rounded.

    Parameters
    ----------
    oracle : Oracle or callable
        A function is an exact gradient.
    x : array
        A place where it must be defined, such as the start.
    seed : int
        Of the directions and the samples. In many dimensions several seeds see more than one.

    Examples
    --------
    >>> import tiebreak
    >>> right = tiebreak.Exact(lambda x: 2 * x, lambda x: x @ x)
    >>> tiebreak.check_oracle(right, [1.0, 2.0])
    >>> wrong = tiebreak.Exact(lambda x: -2 * x, lambda x: x @ x)
    >>> tiebreak.check_oracle(wrong, [1.0, 2.0])
    Traceback (most recent call last):
    ...
    ValueError: oracle: along the gradient its value rises by -4.47 per unit, its gradient says 4.47 (the sign?)
    """
    if not isinstance(oracle, Oracle):
        if not callable(oracle):
            raise TypeError(
                f"oracle={oracle!r} must have sample(rng, size) and gradient(x, token), or be a function"
            )
        oracle = Exact(oracle)
    faults = disagreements(oracle, x, seed)
    if faults:
        raise ValueError(f"oracle: {'; '.join(faults)}")


class _Way(NamedTuple):
    """A direction of length 1, the slope there by the gradient, and what mini-batches have there: mean and error."""

    name: str
    way: Array
    slope: float
    mean: float
    error: float


def disagreements(oracle: Any, x: Any, seed: int = 0) -> list[str]:
    """What does not agree, in words; empty where all does, or nothing can be told."""
    point = np.asarray(x, dtype=float)
    if hasattr(oracle, "bind"):
        oracle = oracle.bind(point.shape)
    rng = np.random.default_rng(seed)
    aside = point + _ASIDE * (1 + np.abs(point)) * rng.standard_normal(point.shape)
    random = rng.standard_normal(point.shape)
    with np.errstate(all="ignore"):
        faults = _safely(_at, oracle, aside, random, seed)
        if faults is None:  # x may lie at the edge of the oracle's domain
            faults = _at(oracle, point, random, seed)
    if faults is None:
        return ["its gradient at x is not finite"]
    return list(faults)


def _at(oracle: Any, x: Array, random: Array, seed: int) -> list[str] | None:
    """What does not agree at x; None where the gradient is not finite."""
    gradient = _gradient(oracle, x, seed)
    for shape in (gradient.shape, next(_batches(oracle, x, seed)).shape):
        if shape != x.shape:
            return [f"its gradient has the shape {shape}, x has {x.shape}"]
    if not np.isfinite(gradient).all():
        return None
    ways = _ways(gradient, random, _batches(oracle, x, seed))
    return _of_values(oracle, x, gradient, ways) + _of_samples(gradient, ways)


def _safely(make: Callable[..., Any], *given: Any) -> Any:
    """What is made; None where that raises what is raised outside of a domain."""
    try:
        return make(*given)
    except (ArithmeticError, ValueError):
        return None


def _batches(oracle: Any, x: Array, seed: int) -> Iterator[Array]:
    """The gradients of the same mini-batches every time: one by one, because x may be large."""
    rng = np.random.default_rng([seed, 1])
    for _ in range(_BATCHES):
        yield _numbers(oracle.gradient(x, oracle.sample(rng, _SIZE)))


def _gradient(oracle: Any, x: Array, seed: int) -> Array:
    """The exact gradient, or the mean of the mini-batches in its place."""
    if hasattr(oracle, "exact_gradient"):
        return _numbers(oracle.exact_gradient(x))
    total: Any = sum(_batches(oracle, x, seed))
    mean: Array = total / _BATCHES
    return mean


def _ways(gradient: Array, random: Array, batches: Iterator[Array]) -> list[_Way]:
    """The direction of the gradient, and a random direction, which involves every coordinate."""
    directions = {"along a random direction": random / _norm(random)}
    norm = _norm(gradient)
    if norm > 0:
        directions = {"along the gradient": gradient / norm} | directions
    slopes = [
        [float(np.sum(batch * way)) for way in directions.values()] for batch in batches
    ]
    means = np.mean(slopes, axis=0)
    errors = np.std(slopes, axis=0, ddof=1) / np.sqrt(_BATCHES)
    ways = []
    for i, (name, way) in enumerate(directions.items()):
        ways.append(
            _Way(
                name,
                way,
                float(np.sum(gradient * way)),
                float(means[i]),
                float(errors[i]),
            )
        )
    return ways


def _of_values(oracle: Any, x: Array, gradient: Array, ways: list[_Way]) -> list[str]:
    """Compare differences of the values with the gradient."""
    value = getattr(oracle, "value", None)
    if value is None or not getattr(oracle, "has_value", True):
        return []
    typical = _norm(gradient) / np.sqrt(gradient.size)  # slope in a random direction
    length = 1 + np.linalg.norm(x) / np.sqrt(x.size)
    for name, way, slope, _, spread in ways:
        error = 0.0 if hasattr(oracle, "exact_gradient") else spread
        rises = []
        agrees = False
        for step in (length * each for each in _STEPS):
            # NaN outside of the domain.
            ends = [_numbers(_safely(value, x + sign * step * way)) for sign in (1, -1)]
            if any(end.size != 1 or not np.isfinite(end).all() for end in ends):
                continue
            high, low = (float(end.reshape(())) for end in ends)
            rise = (high - low) / (2 * step)
            rounding = 8 * np.finfo(ends[0].dtype).eps * max(abs(high), abs(low)) / step
            scale = max(abs(slope), abs(rise))
            if rounding > _ROUGH * max(scale, typical):
                continue
            rises.append(rise)
            if (
                abs(rise - slope)
                <= _NEAR * (scale + 0.1 * typical) + _FAR * error + rounding
            ):
                agrees = True
                break
        if rises and not agrees:
            rise = sorted(rises)[len(rises) // 2]
            return [
                f"{name} its value rises by {rise:.3g} per unit, its gradient says {slope:.3g}{_guess(slope, rise)}"
            ]
    return []


def _of_samples(gradient: Array, ways: list[_Way]) -> list[str]:
    """Compare mini-batches with the exact gradient."""
    for name, _, slope, mean, error in ways:
        if not np.isfinite(mean):
            return ["its mini-batches are not finite, where its gradient is"]
        if mean == error == 0:  # only zeros: rare samples may not have been drawn
            continue
        if abs(mean - slope) > _FAR * error + _NEAR * abs(slope) + 1e-9 * _norm(
            gradient
        ):
            return [
                f"{name} its mini-batches of {_SIZE} have {mean:.3g} ± {error:.1g} in the mean, its exact gradient has "
                f"{slope:.3g}{_guess(mean, slope)}: they must be means whose expectation is the exact gradient"
            ]
    return []


def _guess(value: float, right: float) -> str:
    """A likely cause of the disagreement, by the quotient."""
    guesses = {
        -1.0: " (the sign?)",
        2.0: " (a factor of 2?)",
        0.5: " (a factor of 2?)",
        _SIZE: " (a sum, not a mean?)",
    }
    for ratio, text in guesses.items():
        if right and abs(value - ratio * right) <= 0.05 * abs(ratio * right):
            return text
    return ""


def _norm(gradient: Array) -> float:
    size = float(np.max(np.abs(gradient), initial=0.0))
    if size == 0:
        return 0.0
    # Scaled first, because squares of large numbers overflow.
    return size * float(np.linalg.norm(gradient / size))


def _numbers(values: Any) -> Array:
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return array
    return array.astype(float)
