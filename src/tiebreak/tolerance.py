"""The multiplier that keeps a loss within a tolerance of a reference: one law, on scalars alone.

Each step a front end measures the lower loss g, a reference for it, and the norms of both gradients. The law returns
w = λ/s, with s the averaged ‖∇f‖/‖∇g‖, so that the step goes along ``(∇f/s + w ∇g) / (1 + w)``. The excess
e = (g − reference)/tolerance has no unit and w has none either: multiplying a loss by a constant changes nothing.

Near its rest point e is about c/w², so ½ log(e/aim) is how far log w is off, and log w integrates it; written as a
product, ``w ← w (e/aim)^(1/2M)``, that needs no logarithm.

The functions use only arithmetic and comparisons, so the same code runs on Python floats, NumPy arrays (a value per
run), torch 0-d tensors and JAX tracers; nothing is imported.
"""

from typing import NamedTuple

from tiebreak.rules import Scalar

__all__ = ["Memory", "Reading", "begin", "follow"]

_AIM = 0.9  # the excess aimed at: the promise is 1
_SPAN = 50.0  # M: steps over which log w makes up its error
_RISE = 3.0  # upward so many times as fast: damage is repaired slowly, a wasted step is not lost
_BOOST = 1.0  # κ, the part of log w that answers at once
_FAST, _SLOW = 0.1, 0.02  # weights of the newest value in the averages of losses, and of norms
_AHEAD = 100.0  # steps for which a rising excess is carried forward
_SAFE = 148.0  # w at the start: nearly lower-only, since early damage is not made up later
_E = 2.718281828459045


class Memory(NamedTuple):
    """What the law remembers: scalars only, saved as they are."""

    steps: Scalar
    ratio: Scalar
    loss: Scalar
    slow_loss: Scalar
    reference: Scalar
    slow_reference: Scalar
    difference: Scalar
    change: Scalar
    upper: Scalar
    lower: Scalar


class Reading(NamedTuple):
    """What the law says at a step.

    `ratio` is w and `unit` is s: λ = w·s. `loss` and `reference` are averages; `excess` is their difference in
    tolerances and `noise` its standard error.
    """

    ratio: Scalar
    unit: Scalar
    loss: Scalar
    reference: Scalar
    excess: Scalar
    noise: Scalar


def begin() -> Memory:
    """Nothing seen yet."""
    return Memory(0.0, _SAFE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _at_least(value: Scalar, bound: float) -> Scalar:
    # Selecting by a product is exact in every library; 0 · value gives the bound the type of the value.
    return value * (value > bound) + (0 * value + bound) * (value <= bound)


def _at_most(value: Scalar, bound: float) -> Scalar:
    return value * (value < bound) + (0 * value + bound) * (value >= bound)


def follow(
    memory: Memory,
    loss: Scalar,
    reference: Scalar,
    tolerance: Scalar,
    upper_norm: Scalar,
    lower_norm: Scalar,
    *,
    moving: bool,
) -> tuple[Memory, Reading]:
    """One step of the law.

    Parameters
    ----------
    memory : Memory
        :func:`begin` at first, then what the last call returned.
    loss, reference : scalar
        The lower loss on this batch and what it is compared with.
    tolerance : scalar
        How far the loss may lie above its reference; it may change from step to step.
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖.
    moving : bool
        Whether the reference is measured on the same batch or at the same step (a twin, a frozen copy, a recorded
        curve), or is one number for the whole run.

    Examples
    --------
    >>> memory = begin()
    >>> memory, reading = follow(memory, 0.5, 0.5, 0.01, 2.0, 4.0, moving=True)
    >>> round(reading.unit, 6), reading.excess
    (0.5, 0.0)
    """
    steps = memory.steps + 1 + 0 * loss
    # Plain means until there are enough values for the weight: the first steps are right.
    fast, slow = _at_least(1 / steps, _FAST), _at_least(1 / steps, _SLOW)
    difference = loss - reference
    change = difference - memory.difference
    change = change * (change > 0) - change * (change < 0)
    new = Memory(
        steps=steps,
        ratio=memory.ratio,
        loss=memory.loss + fast * (loss - memory.loss),
        slow_loss=memory.slow_loss + slow * (loss - memory.slow_loss),
        reference=memory.reference + fast * (reference - memory.reference),
        slow_reference=memory.slow_reference + slow * (reference - memory.slow_reference),
        difference=difference,
        # The first difference has none before it.
        change=(memory.change + slow * (change - memory.change)) * (steps > 1),
        upper=memory.upper + slow * (upper_norm - memory.upper),
        lower=memory.lower + slow * (lower_norm - memory.lower),
    )
    excess = (new.loss - new.reference) / tolerance
    slope = excess - (new.slow_loss - new.slow_reference) / tolerance
    # The averages lag 9 and 49 steps behind.
    ahead = excess + _AHEAD / 40 * slope * (slope > 0)
    error = _at_most(_at_least(ahead / _AIM, 0.1), 10.0)
    exponent = 1 / (2 * _SPAN) * (1 + (_RISE - 1) * (error > 1))
    ratio = _at_most(_at_least(memory.ratio * error**exponent, 1e-4), 1e4)
    new = new._replace(ratio=ratio)
    boost = _BOOST * _at_most(_at_least(ahead - _AIM, -1.0), 3.0)
    # σ of a Gaussian is 0.886 times the mean change from one draw to the next; 0.23 = √(weight / (2 − weight)).
    noise = 0.886 * 0.23 * new.change / tolerance
    blank = new.lower == 0
    unit = new.upper / (new.lower + blank) * (1 - 1 * blank) + blank
    return new, Reading(ratio * _E**boost, unit + (unit == 0), new.loss, new.reference, excess, noise)
