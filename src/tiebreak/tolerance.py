"""The tolerance rule: the multiplier that keeps the lower loss within a tolerance of its reference.

At every step a front end measures the lower loss g on the batch, its reference r, and the norms ‖∇f‖ and ‖∇g‖. The
rule returns w = λ/s, and the step goes along ``(∇f/s + w ∇g) / max(1, w)``. Averages are exponential, with weight 0.1
(`fast`) or 0.02 (`slow`), but at least 1/k at step k, so that the first steps are plain means. With the tolerance t::

    averages       fast(g), fast(r), slow(g), slow(r), slow(‖∇f‖), slow(‖∇g‖)
    unit           s     = max(slow(‖∇f‖), ‖∇f‖/2) / slow(‖∇g‖)
    excess         e     = (fast(g) − fast(r)) / t
                   rise  = max(e − e_slow, 0)                      with e_slow = (slow(g) − slow(r)) / t
                   bound = e + 1.25 rise + 4 slow(rise)            the last term only if r is of the same batch
                   error = clip(bound / 0.8, 1/4, 4)
    integral       w₀    ← clip(w₀ error^(1/24), 1, 1000)          but w₀ does not grow while the excess falls
    proportional   w     = min(w₀ exp(error − 1), 1000)
    rescue         set the model to its twin if w was at least 100 and e was above 1 without falling for 50 steps in a
                   row, and for 5 % of all steps

At rest e is about c/w², so that ½ log(error) is the error of log(w₀), which the integral part corrects. The first w₀
is 30, or 2 if the model starts outside its tolerance: then the lower loss has to fall far in any case.

The rule has no unit: if a loss (g together with r and t, or f) is multiplied by a constant, w does not change. This
module contains arithmetic and comparisons alone, so that the same code runs on Python floats, NumPy arrays, torch
tensors, JAX tracers and the tracer that writes the Triton kernel. All inputs must be finite.
"""

from typing import NamedTuple

from tiebreak.rules import Scalar
from tiebreak.scalars import at_least, at_most, clip, indicator, magnitude, quotient

_E = 2.718281828459045


class Constants(NamedTuple):
    """The constants of the rule, the same for every kind of reference; the documentation has their ablation."""

    target_excess: Scalar = 0.8  # where the excess is led to; the promise is 1
    fast_weight: Scalar = 0.1
    slow_weight: Scalar = 0.02
    rise_weight: Scalar = 1.25  # look ahead if the excess rises
    mean_rise_weight: Scalar = 4.0  # a margin for a model that keeps swinging
    error_range: Scalar = (
        4.0  # a larger error counts as this one, and a smaller as its inverse
    )
    integral_steps: Scalar = 12.0  # steps in which the integral part corrects w₀
    proportional_gain: Scalar = 1.0
    initial_ratio: Scalar = 30.0  # the first w₀ of a model inside its tolerance,
    initial_ratio_outside: Scalar = 2.0  # and of a model outside
    max_ratio: Scalar = 1000.0
    held_share: Scalar = (
        0.98  # w₀ does not grow if the excess is below this share of its slow average,
    )
    stalled_share: Scalar = 0.9  # and the model is not lost if it is below this one
    max_upper_gradient_ratio: Scalar = (
        2.0  # ∇f is cut to this multiple of its averaged norm
    )
    rescue_steps: Scalar = 50.0
    rescue_share: Scalar = 0.05


DEFAULT = Constants()


class Memory(NamedTuple):
    """The state of the rule: scalars, saved as they are. No other module reads these fields."""

    steps: Scalar
    ratio: Scalar  # w₀; 0 before the first step
    loss: Scalar  # fast average of the lower loss
    slow_loss: Scalar
    reference: Scalar  # fast average of its reference
    slow_reference: Scalar
    mean_rise: Scalar
    upper_norm: Scalar  # slow averages of ‖∇f‖ and ‖∇g‖
    lower_norm: Scalar
    stalled_steps: (
        Scalar  # steps in a row with nearly all weight on g that left it outside
    )
    returns: Scalar  # how many times the model was set to its twin


class Reading(NamedTuple):
    """What the rule says at a step: w and s, the averaged losses, and their excess in tolerances."""

    ratio: Scalar
    unit: Scalar
    loss: Scalar
    reference: Scalar
    excess: Scalar


def initial_memory() -> Memory:
    """Return the memory before the first step."""
    return Memory(*[0.0] * len(Memory._fields))


def is_initial(memory: Memory) -> Scalar:
    """Whether the memory is that before the first step."""
    return memory.steps == 0


def follow(
    memory: Memory,
    loss: Scalar,
    reference: Scalar,
    tolerance: Scalar,
    upper_norm: Scalar,
    lower_norm: Scalar,
    *,
    relative: bool = False,
    same_batch: bool = True,
    constants: Constants = DEFAULT,
) -> tuple[Memory, Reading]:
    """Return the memory after a step, and what the rule says at that step.

    Parameters
    ----------
    memory : Memory
        :func:`initial_memory` at first, then what the last call returned.
    loss, reference : scalar
        The lower loss on this batch, and its reference.
    tolerance : scalar
        How far the loss may lie above its reference (> 0): a loss, or a share of the averaged reference if `relative`.
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖ (≥ 0).
    same_batch : bool
        Whether the reference is of the same batch. Otherwise e swings with the noise of the batches.

    Examples
    --------
    >>> memory = initial_memory()
    >>> for loss in (0.500, 0.501, 0.502):
    ...     memory, reading = follow(memory, loss, 0.5, 0.01, 2.0, 4.0)
    >>> reading.unit, round(reading.loss, 6), round(reading.excess, 6)
    (0.5, 0.501, 0.1)
    """
    c = constants
    new = _averages(memory, loss, reference, upper_norm, lower_norm, c)
    excess = _excess(new.loss, new.reference, tolerance, relative)
    slow_excess = _excess(new.slow_loss, new.slow_reference, tolerance, relative)
    rise = at_least(excess - slow_excess, 0.0)
    new = new._replace(
        mean_rise=_average(
            memory.mean_rise, rise * same_batch, new.steps, c.slow_weight
        )
    )
    # bound = e + 1.25 rise + 4 slow(rise)
    bound = excess + c.rise_weight * rise + c.mean_rise_weight * new.mean_rise
    error = clip(bound / c.target_excess, 1 / c.error_range, c.error_range)
    held = (error > 1) * (excess < c.held_share * slow_excess)
    integral = _integral(new, error, excess, held, c)
    # w = min(w₀ exp(error − 1), 1000)
    ratio = at_most(integral * _E ** (c.proportional_gain * (error - 1)), c.max_ratio)
    in_vain = (
        (10 * ratio >= c.max_ratio)
        * (excess > 1)
        * (excess >= c.stalled_share * slow_excess)
    )
    new = new._replace(
        ratio=integral, stalled_steps=(memory.stalled_steps + 1 + 0 * loss) * in_vain
    )
    return new, Reading(
        ratio, _unit(new, upper_norm, c), new.loss, new.reference, excess
    )


def needs_return(memory: Memory, constants: Constants = DEFAULT) -> Scalar:
    """Whether many steps on g alone have not brought the model back, so that it must be set to its twin."""
    return memory.stalled_steps >= at_least(
        constants.rescue_share * memory.steps, constants.rescue_steps
    )


def after_return(memory: Memory, constants: Constants = DEFAULT) -> Memory:
    """Return the memory of a model that was set to its twin: no excess, and w₀ at least where it starts."""
    return memory._replace(
        ratio=at_least(memory.ratio, constants.initial_ratio),
        loss=memory.reference,
        slow_loss=memory.slow_reference,
        stalled_steps=0 * memory.stalled_steps,
        returns=memory.returns + 1,
    )


def return_count(memory: Memory) -> Scalar:
    """Return how many times the model was set to its twin."""
    return memory.returns


def check(memory: Memory) -> None:
    """Raise ValueError if a value is not a legal one of the memory."""
    for name in (
        "steps",
        "ratio",
        "mean_rise",
        "upper_norm",
        "lower_norm",
        "stalled_steps",
        "returns",
    ):
        if not getattr(memory, name) >= 0:
            raise ValueError(f"{name}={getattr(memory, name)!r} must be at least 0")


def _averages(
    memory: Memory,
    loss: Scalar,
    reference: Scalar,
    upper_norm: Scalar,
    lower_norm: Scalar,
    c: Constants,
) -> Memory:
    """The memory with this step in its averages. Losses are averaged, so that a new tolerance counts at once."""
    steps = memory.steps + 1 + 0 * loss
    return memory._replace(
        steps=steps,
        loss=_average(memory.loss, loss, steps, c.fast_weight),
        slow_loss=_average(memory.slow_loss, loss, steps, c.slow_weight),
        reference=_average(memory.reference, reference, steps, c.fast_weight),
        slow_reference=_average(memory.slow_reference, reference, steps, c.slow_weight),
        upper_norm=_average_norm(memory.upper_norm, upper_norm, steps, c.slow_weight),
        lower_norm=_average_norm(memory.lower_norm, lower_norm, steps, c.slow_weight),
        returns=memory.returns + 0 * loss,
    )


def _average(before: Scalar, value: Scalar, steps: Scalar, weight: Scalar) -> Scalar:
    # avg ← avg + max(1/k, weight) (value − avg)
    return before + at_least(1 / steps, weight) * (value - before)


def _average_norm(
    before: Scalar, norm: Scalar, steps: Scalar, weight: Scalar
) -> Scalar:
    """An average of the norms that are not 0: a loss at rest does not say how steep it is."""
    first = indicator(steps, before == 0)
    share = at_least(1 / steps, weight) * (1 - first) + first
    return before + share * (norm - before) * (norm > 0)


def _excess(
    loss: Scalar, reference: Scalar, tolerance: Scalar, relative: bool
) -> Scalar:
    # e = (g − r) / t; if the tolerance is a share, t = share · max(|r|, |g|/10⁶).
    scale = (
        at_least(magnitude(reference), 1e-6 * magnitude(loss))
        if relative
        else 1 + 0 * loss
    )
    return quotient(loss - reference, tolerance * scale)


def _integral(
    memory: Memory, error: Scalar, excess: Scalar, held: Scalar, c: Constants
) -> Scalar:
    """w₀ after the step."""
    initial = c.initial_ratio + (c.initial_ratio_outside - c.initial_ratio) * indicator(
        excess, excess > 1
    )
    before = memory.ratio + initial * (memory.steps < 2)
    # w₀ ← clip(w₀ error^(1/24), 1, 1000), but w₀ does not grow while the excess falls.
    power = (1 - indicator(error, held)) / (2 * c.integral_steps)
    return clip(before * error**power, 1.0, c.max_ratio)


def _unit(memory: Memory, upper_norm: Scalar, c: Constants) -> Scalar:
    # s = max(slow(‖∇f‖), ‖∇f‖/2) / slow(‖∇g‖); ‖∇f‖ if no gradient of g was seen, and 1 if none of f.
    upper = at_least(memory.upper_norm, upper_norm / c.max_upper_gradient_ratio)
    unseen = indicator(upper, memory.lower_norm == 0)
    lower = at_least(
        memory.lower_norm, 1e-300 * upper
    )  # so that float64 holds the quotient
    unit = quotient(upper, lower) * (1 - unseen) + upper * unseen
    return unit + (unit == 0)
