"""The tolerance rule: the multiplier that keeps the lower loss within a tolerance of its reference.

At every step a front end measures the lower loss g on the batch, its reference r, and the norms ‖∇f‖ and ‖∇g‖. The
rule returns w = λ/s, and the step goes along ``(∇f/s + w ∇g) / max(1, w)``. Averages are exponential, with weight 0.1
(`fast`) or 0.02 (`slow`), but at least 1/k at step k, so that the first steps are plain means. With the tolerance t::

    averages       fast(g), fast(r), slow(g), slow(r), slow(‖∇f‖), slow(‖∇g‖)     (of norms > 0)
    unit           s     = max(slow(‖∇f‖), ‖∇f‖/2) / slow(‖∇g‖)
    excess         e     = (fast(g) − fast(r)) / t
                   rise  = max(e − e_slow, 0)                       with e_slow = (slow(g) − slow(r)) / t
                   swing = min(slow(rise), 0.8)                     0 if r is not of the same batch
                   ahead = e + 1.25 rise + 4 swing
                   error = clip(ahead / 0.8, 1/4, 4)
    integral       w₀    ← clip(w₀ error^(1/24), 1, 1000)           but w₀ does not grow while e < 0.98 e_slow
    proportional   w     = min(w₀ exp(error − 1), 1000)
    rescue         set the model to its twin if, for 50 steps in a row and 5 % of all steps so far, w was at least 100,
                   e above 1, and e at least 0.9 e_slow

At rest e falls like 1/w². So w₀ would have to grow by error^½, and each step makes a twelfth of that. The first w₀ is
30, or 2 if the model starts outside its tolerance: then the lower loss has to fall far in any case.

The rule has no unit: if a loss (g together with r and t, or f) is multiplied by a constant, w does not change. All
inputs must be finite. Arithmetic and comparisons alone run on Python floats, NumPy, torch, JAX and the Triton writer.
"""

from typing import NamedTuple

from tiebreak.rules import Scalar

_E = 2.718281828459045


class Constants(NamedTuple):
    """The constants of the rule, for every kind of reference; the documentation has their ablation."""

    target_excess: Scalar = 0.8  # where the excess is led to; the promise is 1
    fast_weight: Scalar = 0.1
    slow_weight: Scalar = 0.02
    rise_weight: Scalar = 1.25  # look ahead if the excess rises
    mean_rise_weight: Scalar = 4.0  # a margin for a model that keeps swinging
    error_range: Scalar = (
        4.0  # a larger error counts as this one, a smaller as its inverse
    )
    integral_steps: Scalar = 12.0  # steps in which the integral part corrects w₀
    proportional_gain: Scalar = 1.0
    initial_ratio: Scalar = 30.0  # the first w₀ of a model inside its tolerance
    initial_ratio_outside: Scalar = 2.0  # the first w₀ of a model outside
    max_ratio: Scalar = 1000.0  # the limit of w; a tenth of it counts as g alone
    held_share: Scalar = 0.98  # w₀ does not grow if e is below this share of e_slow
    stalled_share: Scalar = (
        0.9  # the model comes back if e is below this share of e_slow
    )
    max_upper_gradient_ratio: Scalar = (
        2.0  # ∇f is cut to this multiple of its mean norm
    )
    rescue_steps: Scalar = 50.0  # in a row, before the model is set to its twin
    rescue_share: Scalar = 0.05  # of all steps so far, likewise


DEFAULT = Constants()


class Memory(NamedTuple):
    """The state of the rule: scalars, saved as they are. Only this module gives the fields a meaning."""

    steps: Scalar
    integral_ratio: Scalar  # w₀; 0 before the first step
    fast_loss: Scalar
    slow_loss: Scalar
    fast_reference: Scalar
    slow_reference: Scalar
    mean_rise: Scalar  # slow(rise · t), so that a new tolerance counts at once
    upper_norm: Scalar  # slow averages of ‖∇f‖ and ‖∇g‖
    lower_norm: Scalar
    stalled_steps: Scalar  # in a row: nearly all weight on g, and outside all the same
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

    `loss`, `reference` and `tolerance` are g, r and t > 0; t is a share of the averaged reference if `relative`.
    `upper_norm` and `lower_norm` are ‖∇f‖ and ‖∇g‖. Say ``same_batch=False`` if r is not of the batch of g: then e
    swings with the noise of the batches.
    """
    c = constants
    steps = memory.steps + 1 + 0 * loss
    fast = at_least(1 / steps, c.fast_weight)
    slow = at_least(1 / steps, c.slow_weight)
    new = memory._replace(
        steps=steps,
        fast_loss=_average(memory.fast_loss, loss, fast),
        slow_loss=_average(memory.slow_loss, loss, slow),
        fast_reference=_average(memory.fast_reference, reference, fast),
        slow_reference=_average(memory.slow_reference, reference, slow),
        upper_norm=_average_norm(memory.upper_norm, upper_norm, slow),
        lower_norm=_average_norm(memory.lower_norm, lower_norm, slow),
        returns=memory.returns + 0 * loss,
    )
    # e = (fast(g) − fast(r)) / t, and e_slow
    t = tolerance * (1 + 0 * loss)
    excess = _excess(new.fast_loss, new.fast_reference, t, relative)
    slow_excess = _excess(new.slow_loss, new.slow_reference, t, relative)
    # rise = max(e − e_slow, 0), swing = min(slow(rise), 0.8): with 0.8 the error is at its limit
    rise = at_least(excess - slow_excess, 0.0)
    max_swing = c.error_range * c.target_excess / at_least(c.mean_rise_weight, 1.0)
    mean_rise = _average(memory.mean_rise, rise * t * same_batch, slow)
    mean_rise = at_most(mean_rise, max_swing * t)
    # error = clip((e + 1.25 rise + 4 swing) / 0.8, 1/4, 4)
    swing = mean_rise / t
    ahead = excess + c.rise_weight * rise + c.mean_rise_weight * swing
    error = clip(ahead / c.target_excess, 1 / c.error_range, c.error_range)
    # w₀ ← clip(w₀ error^(1/24), 1, 1000), but w₀ does not grow while e < 0.98 e_slow
    is_held = indicator(error, (error > 1) * (excess < c.held_share * slow_excess))
    outside = c.initial_ratio_outside - c.initial_ratio
    initial = c.initial_ratio + outside * indicator(excess, excess > 1)
    integral_ratio = memory.integral_ratio + initial * (steps < 2)
    growth = error ** ((1 - is_held) / (2 * c.integral_steps))
    integral_ratio = clip(integral_ratio * growth, 1.0, c.max_ratio)
    # w = min(w₀ exp(error − 1), 1000)
    ratio = integral_ratio * _E ** (c.proportional_gain * (error - 1))
    ratio = at_most(ratio, c.max_ratio)
    is_stalled = (10 * ratio >= c.max_ratio) * (excess > 1)
    is_stalled = is_stalled * (excess >= c.stalled_share * slow_excess)
    new = new._replace(
        integral_ratio=integral_ratio,
        mean_rise=mean_rise,
        stalled_steps=(memory.stalled_steps + 1 + 0 * loss) * is_stalled,
    )
    unit = _unit(new, upper_norm, c)
    return new, Reading(ratio, unit, new.fast_loss, new.fast_reference, excess)


def _average(before: Scalar, value: Scalar, share: Scalar) -> Scalar:
    return before + share * (value - before)


def _average_norm(before: Scalar, norm: Scalar, share: Scalar) -> Scalar:
    """An average of the norms that are not 0: a loss at rest does not say how steep it is."""
    is_first = indicator(share, before == 0)
    share = share * (1 - is_first) + is_first
    return before + share * (norm - before) * (norm > 0)


def _excess(loss: Scalar, reference: Scalar, t: Scalar, relative: bool) -> Scalar:
    # e = (g − r) / t; a share is of max(|r|, |g|/10⁶)
    if relative:
        t = t * at_least(magnitude(reference), 1e-6 * magnitude(loss))
    return quotient(loss - reference, t)


def _unit(memory: Memory, upper_norm: Scalar, c: Constants) -> Scalar:
    # s = max(slow(‖∇f‖), ‖∇f‖/2) / slow(‖∇g‖); ‖∇f‖ before any ∇g ≠ 0, and 1 before any ∇f ≠ 0
    upper = at_least(memory.upper_norm, upper_norm / c.max_upper_gradient_ratio)
    is_flat = indicator(upper, memory.lower_norm == 0)
    # float64 holds the quotient if ‖∇g‖ is at least 10⁻³⁰⁰ ‖∇f‖
    lower = at_least(memory.lower_norm, 1e-300 * upper)
    unit = quotient(upper, lower) * (1 - is_flat) + upper * is_flat
    return unit + (unit == 0)


def needs_return(memory: Memory, constants: Constants = DEFAULT) -> Scalar:
    """Whether many steps on g alone have not brought the model back, so that it must be set to its twin."""
    steps = at_least(constants.rescue_share * memory.steps, constants.rescue_steps)
    return memory.stalled_steps >= steps


def after_return(memory: Memory, constants: Constants = DEFAULT) -> Memory:
    """Return the memory of a model that was set to its twin: no excess, and w₀ at least where it starts."""
    return memory._replace(
        integral_ratio=at_least(memory.integral_ratio, constants.initial_ratio),
        fast_loss=memory.fast_reference,
        slow_loss=memory.slow_reference,
        stalled_steps=0 * memory.stalled_steps,
        returns=memory.returns + 1,
    )


def return_count(memory: Memory) -> Scalar:
    """Return how many times the model was set to its twin."""
    return memory.returns


def check(memory: Memory) -> None:
    """Raise ValueError if a value is not a legal one of the memory."""
    signed = ("fast_loss", "slow_loss", "fast_reference", "slow_reference")
    for name, value in memory._asdict().items():
        if name not in signed and not value >= 0:
            raise ValueError(f"{name}={value!r} must be at least 0")


# --- selections ---------------------------------------------------------------------
#
# Multiplying by a comparison selects exactly in Python, NumPy, torch, JAX and the tracer of the Triton kernels. Numbers
# of the result's type are made as `0 * value + number`: torch would make float32 of a number times a comparison.


def at_least(value: Scalar, bound: Scalar) -> Scalar:
    """The value, or the bound if the value is smaller.

    Examples
    --------
    >>> at_least(2.0, 3.0), at_least(4.0, 3.0)
    (3.0, 4.0)
    """
    return value * (value > bound) + (0 * value + bound) * (value <= bound)


def at_most(value: Scalar, bound: Scalar) -> Scalar:
    """The value, or the bound if the value is larger."""
    return value * (value < bound) + (0 * value + bound) * (value >= bound)


def larger(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two values of one type."""
    return a * (a >= b) + b * (a < b)


def smaller(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two values of one type."""
    return a * (a <= b) + b * (a > b)


def positive(value: Scalar) -> Scalar:
    """The value, or 0 if it is negative."""
    return value * (value > 0)


def clip(value: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """The value, or the nearer bound if it lies outside."""
    return at_most(at_least(value, low), high)


def magnitude(value: Scalar) -> Scalar:
    """The absolute value."""
    return value * (value > 0) - value * (value < 0)


def quotient(value: Scalar, divisor: Scalar) -> Scalar:
    """The quotient, or 0 if the divisor is 0.

    Examples
    --------
    >>> quotient(1.0, 2.0), quotient(1.0, 0.0)
    (0.5, 0.0)
    """
    return value * (divisor != 0) / (divisor + (divisor == 0))


def indicator(like: Scalar, condition: Scalar) -> Scalar:
    """1 where the condition holds and 0 elsewhere, in the type of `like`."""
    return (0 * like + 1) * condition
