"""What a method makes of its samples: how often it evaluates them, what it remembers, what the rule then sees.

An estimator is any object with ``evaluations`` (1: every sample is evaluated at x_k; 2: at x_k and at x_{k−1}; a step
is charged `evaluations` · (B_f + B_g) calls) and two functions, in arithmetic alone, so that the same lines serve NumPy
arrays with a row per run, torch tensors and JAX tracers::

    begin(level, zeros, zero) -> memory
    update(level, fresh, before, memory, parameters) -> (estimate, memory)

`level` is "upper" or "lower". `fresh` is this step's mini-batch gradient at x_k, `before` the same batch's at x_{k−1}
(`fresh` itself with one evaluation). `memory` is a tuple; it begins with what `begin` makes of an array of zeros like
the gradient and of a scalar zero. ``needs``, if there, names the parameters that the schedule has to set.
``direction``, if there and false, keeps the estimate out of the direction: then it enters the multiplier alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tiebreak.schedules import Law, Parameters

#: Anything with arithmetic: an array, a tensor, a tracer, or a number.
Value: TypeAlias = Any
Memory: TypeAlias = tuple[Any, ...] | None

__all__ = ["ESTIMATORS", "Average", "Estimator", "Minibatch", "Storm", "enters_direction", "estimate", "named"]


class Estimator(Protocol):
    """Turns mini-batch gradients into the estimates that the rule sees."""

    @property
    def evaluations(self) -> int:
        """At how many points every sample is evaluated: 1 or 2."""

    def begin(self, level: str, zeros: Value, zero: Value) -> tuple[Any, ...]:
        """What is remembered before the first step."""

    def update(
        self, level: str, fresh: Value, before: Value, memory: tuple[Any, ...], parameters: Parameters
    ) -> tuple[Value, tuple[Any, ...]]:
        """The estimate of this step, and what to remember."""


@dataclass(frozen=True)
class Minibatch:
    """The mini-batch mean itself."""

    evaluations = 1

    def begin(self, level: str, zeros: Value, zero: Value) -> tuple[Any, ...]:
        """Nothing."""
        return ()

    def update(
        self, level: str, fresh: Value, before: Value, memory: tuple[Any, ...], parameters: Parameters
    ) -> tuple[Value, tuple[Any, ...]]:
        """The gradient as it is."""
        return fresh, memory


@dataclass(frozen=True)
class _WithMomentum:
    """What `Storm` and `Average` share: α_k of their own, or the schedule's."""

    momentum: Law | float | None = None

    def __post_init__(self) -> None:
        law = self.momentum
        if law is not None and not callable(law) and (isinstance(law, (bool, str)) or not 0 <= law <= 1):
            raise ValueError(f"momentum={law!r} of {type(self).__name__} must be in [0, 1], or a function of the step")

    @property
    def needs(self) -> tuple[str, ...]:
        """What the schedule has to set."""
        return ("momentum",) if self.momentum is None else ()

    def rate(self, parameters: Parameters) -> Value:
        """α of this step: a method puts an estimator's own law into its schedule."""
        value, law = parameters.momentum, self.momentum
        if value is None and law is not None:
            value = float(law(parameters.k) if callable(law) else law)
        if value is None or (isinstance(value, (int, float)) and not 0 <= value <= 1):
            name = type(self).__name__
            raise ValueError(f"momentum of {name} at step {parameters.k} is {value!r}; it must be in [0, 1]")
        return value


@dataclass(frozen=True)
class Storm(_WithMomentum):
    """Recursive momentum: v_k = G_k(x_k) + (1 − α_k)(v_{k−1} − G_k(x_{k−1})), the same mini-batch at both points.

    Every step is charged for two evaluations, the first too, as in the paper.

    Parameters
    ----------
    momentum : law or float, optional
        α_k in [0, 1]; without it, the schedule's `momentum`.
    """

    evaluations = 2

    def begin(self, level: str, zeros: Value, zero: Value) -> tuple[Any, ...]:
        """No estimate yet, and 0: what stands there now does not count."""
        return zeros, zero

    def update(
        self, level: str, fresh: Value, before: Value, memory: tuple[Any, ...], parameters: Parameters
    ) -> tuple[Value, tuple[Any, ...]]:
        """v_k."""
        previous, begun = memory
        estimate = fresh + (1 - self.rate(parameters)) * begun * (previous - before)
        return estimate, (estimate, begun**0)  # from now on it counts


@dataclass(frozen=True)
class Average(_WithMomentum):
    """An exponential average of the lower gradient, for batches that cannot grow; the upper one stays a mini-batch.

    m_k = (1 − α_k) m_{k−1} + α_k G_k(x_k), started so that early averages are unbiased: the weights always add up to 1.
    With small batches ‖G‖² is mostly noise, and the multiplier falls towards a fixed weight β; averaging brings the
    signal back, at the price of a lag of about 1/α steps.

    Parameters
    ----------
    momentum : law or float, optional
        α_k in [0, 1]; without it, the schedule's `momentum`.
    direction : bool
        Whether the average enters the direction, too. False where an optimizer that follows smooths it again.
    """

    direction: bool = True
    evaluations = 1

    def begin(self, level: str, zeros: Value, zero: Value) -> tuple[Any, ...]:
        """No average, and the weight given so far."""
        return () if level == "upper" else (zeros, zero)

    def update(
        self, level: str, fresh: Value, before: Value, memory: tuple[Any, ...], parameters: Parameters
    ) -> tuple[Value, tuple[Any, ...]]:
        """m_k."""
        if level == "upper":
            return fresh, memory
        mean, weight = memory
        rate = self.rate(parameters)
        weight = (1 - rate) * weight + rate  # the total weight given so far, 1 − Π(1 − α)
        nothing = weight == 0  # α has been 0 so far: then the newest gradient is all there is
        # Of the newest gradient, so that all weights add up to 1; 0 · weight keeps float32 what it is.
        share = (0 * weight + rate + nothing) / (weight + nothing)
        mean = (1 - share) * mean + share * fresh
        return mean, (mean, weight)


#: What front ends that take names know them by. A base optimizer smooths the direction again: hence λ alone.
ESTIMATORS: dict[str, Estimator] = {"minibatch": Minibatch(), "average": Average(direction=False), "storm": Storm()}


def named(estimator: Any) -> Estimator:
    """The estimator of this name, or the one given; anything else is refused.

    Examples
    --------
    >>> named("average")
    Average(momentum=None, direction=False)
    """
    if isinstance(estimator, str) and estimator in ESTIMATORS:
        return ESTIMATORS[estimator]
    if isinstance(estimator, str) or not all(hasattr(estimator, n) for n in ("evaluations", "begin", "update")):
        names = ", ".join(map(repr, ESTIMATORS))
        raise ValueError(
            f"estimator={estimator!r} must be one of {names}, or an object with `evaluations`, `begin` and `update`"
        )
    if estimator.evaluations not in (1, 2):
        raise ValueError(f"evaluations={estimator.evaluations!r} of {estimator!r} must be 1 or 2")
    return estimator  # type: ignore[no-any-return]  # it has what an estimator has


def enters_direction(estimator: Estimator) -> bool:
    """Whether the estimates make up the direction, too, and not only the multiplier."""
    return bool(getattr(estimator, "direction", True))


def estimate(
    estimator: Estimator,
    level: str,
    gradient: Callable[[Value], Value],
    x: Value,
    memory: Memory,
    parameters: Parameters,
    zero: Callable[[Value], Value],
) -> tuple[Value, Value, tuple[Any, ...]]:
    """The estimate, the fresh gradient and the memory, where a batch can be evaluated at any point.

    Parameters
    ----------
    estimator : Estimator
    level : str
        "upper" or "lower".
    gradient : callable
        x ↦ the gradient of this step's mini-batch.
    x : array
        x_k.
    memory : tuple or None
        What the level's last step returned, None at first. With two evaluations x_{k−1} comes first in it.
    parameters : Parameters
    zero : callable
        Makes the scalar zero of a memory, for a gradient: a number for each run.
    """
    fresh = gradient(x)
    twice = estimator.evaluations == 2
    if memory is None:
        inner, before = estimator.begin(level, 0 * fresh, zero(fresh)), fresh
    else:
        inner = memory[1:] if twice else memory
        before = gradient(memory[0]) if twice else fresh
    found, inner = estimator.update(level, fresh, before, inner, parameters)
    return found, fresh, (x, *inner) if twice else inner
