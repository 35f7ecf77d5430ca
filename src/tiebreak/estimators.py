"""What a method makes of its samples: which points to evaluate them at, what to remember, what it costs.

An estimator is any object with ``evaluations``, the points at which every sample is evaluated (a step is charged
`evaluations` · (B_f + B_g) calls), and::

    estimate(level, gradient, x, memory, parameters) -> (estimate, memory)

`level` is "upper" or "lower", `gradient` evaluates this step's mini-batch at any x, and `memory` is what the level's
previous step returned: None at first, then a tuple of arrays with the runs along the first axis. ``needs``, if there,
names the parameters that the schedule has to set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tiebreak.oracles import Array
from tiebreak.schedules import Law, Parameters

Memory: TypeAlias = tuple[Array, ...] | None
Gradient: TypeAlias = Callable[[Array], Array]

__all__ = ["Average", "Estimator", "Minibatch", "Storm"]


class Estimator(Protocol):
    """Turns mini-batch gradients into the estimates that the rule sees."""

    @property
    def evaluations(self) -> int:
        """How often every sample is evaluated."""

    def estimate(
        self, level: str, gradient: Gradient, x: Array, memory: Memory, parameters: Parameters
    ) -> tuple[Array, Memory]:
        """The estimate at x, and what to remember."""


@dataclass(frozen=True)
class Minibatch:
    """The mini-batch mean itself."""

    evaluations = 1

    def estimate(
        self, level: str, gradient: Gradient, x: Array, memory: Memory, parameters: Parameters
    ) -> tuple[Array, Memory]:
        return gradient(x), None


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

    def rate(self, parameters: Parameters) -> float:
        """α of this step."""
        law = self.momentum
        value = parameters.momentum if law is None else float(law(parameters.k) if callable(law) else law)
        if value is None or not 0 <= value <= 1:
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

    def estimate(
        self, level: str, gradient: Gradient, x: Array, memory: Memory, parameters: Parameters
    ) -> tuple[Array, Memory]:
        estimate = gradient(x)
        if memory is not None:
            previous, previous_x = memory
            keep = 1 - self.rate(parameters)
            estimate = estimate + keep * (previous - gradient(previous_x))
        return estimate, (estimate, x)


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
    """

    evaluations = 1

    def estimate(
        self, level: str, gradient: Gradient, x: Array, memory: Memory, parameters: Parameters
    ) -> tuple[Array, Memory]:
        fresh = gradient(x)
        if level == "upper":
            return fresh, None
        rate = self.rate(parameters)
        # `weight` is the total weight given so far, 1 − Π(1 − α): dividing by it makes the weights add up to 1.
        total, weight = memory if memory is not None else (0 * fresh, 0 * fresh[:, :1])
        total = (1 - rate) * total + rate * fresh
        weight = (1 - rate) * weight + rate
        nothing = weight == 0  # α has been 0 so far: then the newest gradient is all there is
        return total / (weight + nothing) + nothing * fresh, (total, weight)
