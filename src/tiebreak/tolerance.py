"""The multiplier that keeps a loss within a tolerance of a reference: one law, on scalars alone.

Each step a front end measures the lower loss g, a reference for it, and the norms of both gradients. The law returns
w = λ/s, with s the averaged ‖∇f‖/‖∇g‖, and the step goes along ``(∇f/s + w ∇g) / (1 + w)``. The excess
e = (g − reference)/tolerance has no unit and w has none either: multiplying a loss by a constant changes nothing.

How w follows e:

* Where f and g are at rest against each other, e is about c/w², so ½ log(e/aim) is what log w is off by. A product,
  ``w ← w (e/aim)^(1/2M)``, integrates that without a logarithm; ``exp κ(e − aim)`` beside it answers at once.
* A model that lags behind its rest point shows e too small. Where e rises, it is carried forward along its slope.
* Noise decides. σ, the noise of one batch's e, is measured from the change between neighbouring steps; e is averaged
  over as many steps as it takes, and the aim lies below 1 by shares of σ (the last iterate swings with it) and of the
  standard error of the average.
* Upward faster than downward, and from the upper bound, `most`: what was damaged early is not repaired in time.

The functions use only arithmetic and comparisons, so the same code runs on Python floats, NumPy arrays (a value per
run), torch 0-d tensors and JAX tracers; nothing is imported. Inputs must be finite; then so is what comes out.
"""

from typing import NamedTuple

from tiebreak.rules import Scalar

__all__ = ["MOVING", "NUMBER", "Constants", "Memory", "Reading", "begin", "follow"]

_E = 2.718281828459045


class Constants(NamedTuple):
    """The constants of the law, none of which has a unit; found by ``benchmarks.tolerance`` on its tuning set."""

    aim: Scalar = 0.95  # the excess aimed at where nothing is uncertain; the promise is 1
    doubt: Scalar = 0.5  # how many standard errors of the averaged excess the aim lies lower
    sway: Scalar = 0.2  # how many σ lower, for the swing of the last iterate
    lowest: Scalar = 0.6  # where the aim stops: below, noise would give up most of what f can gain
    span: Scalar = 25.0  # M: steps over which log w makes up for its error
    rise: Scalar = 3.0  # upward so many times as fast
    boost: Scalar = 3.0  # κ
    ahead: Scalar = 100.0  # steps by which a rising excess is carried forward
    exact: Scalar = 0.04  # the standard error asked of the averaged excess
    fast: Scalar = 0.1  # largest weight of the newest value in the averages of losses
    slow: Scalar = 0.02  # smallest weight there; and the weight in the averages of norms and of σ
    floor: Scalar = 0.05  # an e/aim below this counts as this: how fast w falls where f costs nothing
    least: Scalar = 0.1  # w's bounds: beyond them little changes but the way back
    most: Scalar = 100.0
    clip: Scalar = 4.0  # ∇f is cut to so many times its averaged norm


#: For a reference measured at the same step: a twin, a frozen copy, a recorded curve.
MOVING = Constants()
#: For one number. Until the learning rate has fallen, g is far above it whatever f does: w is kept from going far up.
#: Batches do not cancel, so that σ is their noise and says nothing of the swing.
NUMBER = Constants(aim=0.9, sway=0.0, boost=4.0, most=20.0)


class Memory(NamedTuple):
    """What the law remembers: scalars only, saved as they are."""

    steps: Scalar  # how many were made
    ratio: Scalar  # the integral part of w; 0 before the first step
    loss: Scalar  # averages, the second of each four times slower
    slow_loss: Scalar
    reference: Scalar
    slow_reference: Scalar
    difference: Scalar  # the last loss less its reference
    change: Scalar  # the averaged |change of it| from step to step
    upper: Scalar  # averaged ‖∇f‖ and ‖∇g‖
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
    """Nothing seen yet.

    Examples
    --------
    >>> begin().steps
    0.0
    """
    return Memory(*[0.0] * len(Memory._fields))


def _at_least(value: Scalar, bound: Scalar) -> Scalar:
    # Selecting by a product is exact in every library; 0 · value gives the bound the type and shape of the value.
    return value * (value > bound) + (0 * value + bound) * (value <= bound)


def _at_most(value: Scalar, bound: Scalar) -> Scalar:
    return value * (value < bound) + (0 * value + bound) * (value >= bound)


def _over(value: Scalar, divisor: Scalar) -> Scalar:
    """The quotient, and 0 where it would be divided by 0."""
    return value * (divisor != 0) / (divisor + (divisor == 0))


def follow(
    memory: Memory,
    loss: Scalar,
    reference: Scalar,
    tolerance: Scalar,
    upper_norm: Scalar,
    lower_norm: Scalar,
    *,
    moving: bool,
    constants: Constants | None = None,
) -> tuple[Memory, Reading]:
    """One step of the law.

    Parameters
    ----------
    memory : Memory
        :func:`begin` at first, then what the last call returned.
    loss, reference : scalar
        The lower loss on this batch and what it is compared with.
    tolerance : scalar
        How far the loss may lie above its reference, > 0; it may change from step to step.
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖, either of which may be 0.
    moving : bool
        Whether the reference is measured at the same step, or is one number for the whole run.
    constants : Constants, optional
        `MOVING` or `NUMBER` unless given.

    Examples
    --------
    >>> memory = begin()
    >>> for loss in (0.500, 0.501, 0.502):
    ...     memory, reading = follow(memory, loss, 0.5, 0.01, 2.0, 4.0, moving=True)
    >>> reading.unit, round(reading.loss, 6), round(reading.excess, 6)
    (0.5, 0.501, 0.1)
    """
    c = constants or (MOVING if moving else NUMBER)
    steps = memory.steps + 1 + 0 * loss
    # Plain means until there are enough values for a weight: the first steps are right.
    rest = _at_least(1 / steps, c.slow)
    difference = loss - reference
    change = difference - memory.difference
    change = change * (change > 0) - change * (change < 0)
    # The first difference has none before it.
    change = (memory.change + _at_least(_over(1, steps - 1), c.slow) * (change - memory.change)) * (steps > 1)
    # Neighbours differ by 2σ/√π in the mean. Absolute values, not squares: those of small losses vanish in float32.
    sigma = 0.886 * change / tolerance
    # The standard error of an average of weight a is σ √(a / (2 − a)).
    weight = _at_most(_at_least(2 * (c.exact / _at_least(sigma, 0.01 * c.exact)) ** 2, c.slow), c.fast)
    fast, slow = _at_least(1 / steps, weight), _at_least(1 / steps, weight / 4)
    # Losses are averaged, not excesses: a new tolerance counts at once.
    now = Memory(
        steps=steps,
        ratio=memory.ratio,
        loss=memory.loss + fast * (loss - memory.loss),
        slow_loss=memory.slow_loss + slow * (loss - memory.slow_loss),
        reference=memory.reference + fast * (reference - memory.reference),
        slow_reference=memory.slow_reference + slow * (reference - memory.slow_reference),
        difference=difference,
        change=change,
        upper=memory.upper + rest * (upper_norm - memory.upper),
        lower=memory.lower + rest * (lower_norm - memory.lower),
    )
    excess = (now.loss - now.reference) / tolerance
    noise = sigma * (fast / (2 - fast)) ** 0.5
    # An average of weight a lags 1/a − 1 steps behind.
    slope = _over(excess - (now.slow_loss - now.slow_reference) / tolerance, 1 / slow - 1 / fast)
    ahead = excess + c.ahead * slope * (slope > 0)
    aim = _at_least(c.aim - c.doubt * noise - c.sway * sigma, c.lowest)

    error = _at_most(_at_least(ahead / aim, c.floor), 10.0)
    power = (1 + (c.rise - 1) * (error > 1)) / (2 * c.span)
    before = memory.ratio + (0 * loss + c.most) * (steps < 2)
    now = now._replace(ratio=_at_most(_at_least(before * error**power, c.least), c.most))
    ratio = _at_most(now.ratio * _E ** (c.boost * _at_most(_at_least(ahead - aim, -1.0), 3.0)), 10 * c.most)
    # Where f is too steep for the step its gradient outgrows any average; cut, it cannot carry g along.
    upper = _at_least(now.upper, upper_norm / c.clip)
    unit = _over(upper, _at_least(now.lower, 1e-30 * upper))
    # No gradient of f, or none of g, has been seen: any unit will do, and g must still descend.
    return now, Reading(ratio, unit + (unit == 0), now.loss, now.reference, excess, noise)
