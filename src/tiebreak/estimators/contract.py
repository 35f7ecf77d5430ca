"""The base class of estimators, and the function that evaluates their batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from tiebreak.schedules import Law, Parameters

#: Anything with arithmetic: an array, a tensor, a tracer, or a number.
Value: TypeAlias = Any
#: The memory of an estimator for a level.
Memory: TypeAlias = tuple[Any, ...]
#: An estimate, and the new memory.
Update: TypeAlias = tuple[Value, Memory]

LEVELS = ("upper", "lower")
#: Further arguments of a rule if the estimator watches.
WATCHED = (
    "upper_change",
    "lower_change",
    "upper_along",
    "lower_along",
    "upper_spread",
    "lower_spread",
    "moved",
    "away",
    "resolution",
)


class Estimator(ABC):
    """Turns mini-batch gradients into the estimates that the rule sees. Subclasses define `begin` and `update`.

    ``scheduled`` is true for estimators without their own :meth:`asks`.
    """

    scheduled = True

    def __init_subclass__(cls) -> None:
        cls.scheduled = cls.asks is Estimator.asks
        if "update" in vars(cls) and "later" not in vars(cls):
            cls.later = cls.update  # type: ignore[method-assign]  # of the same signature

    @property
    def evaluations(self) -> int:
        """At how many points a sample is evaluated at most: 1, or 2 if also at x_{k−1}."""
        return 1

    @property
    def first_points(self) -> int:
        """At how many points the samples of the first step are charged: there is no x_{k−1} yet."""
        return 1

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the parameters that the schedule has to set."""
        return ()

    @property
    def momentum(self) -> Law | float | None:
        """The estimator's own law of α_k, if it has one."""
        return None

    @property
    def direction(self) -> bool:
        """Whether the estimates make up the direction, too, and not only the multiplier."""
        return True

    @property
    def watches(self) -> bool:
        """Whether the last mini-batch gradient comes last in the memory: then a rule may use :data:`WATCHED`."""
        return False

    @abstractmethod
    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """Return the memory before the first step, from an array of zeros like the gradient and a scalar zero."""

    @abstractmethod
    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """Return the estimate of this step and the new memory."""

    def later(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """Do the same as `update`, from the second step on, if less is to be done then; `minimize` alone calls this."""
        return self.update(level, fresh, before, memory, parameters)

    def asks(self, level: str, parameters: Any) -> tuple[Any, Any]:
        """Return how many samples a step draws, and at how many points each is evaluated: calls are the product.

        `parameters` are those of one step, or arrays of many by the same names. By default the schedule's batches are
        evaluated at `evaluations` points.
        """
        batch = getattr(parameters, f"{level}_batch")
        if self.evaluations == 1:
            return batch, 1
        first = self.first_points
        return batch, first + (2 - first) * (parameters.k > 0)

    def cycle(self, parameters: Any) -> int | None:
        """Return after how many steps the costs repeat under constant laws; None if that is not known."""
        if self.scheduled:
            return 1
        return None


def of_level(parameters: Any, name: str, level: str) -> Any:
    """A level's own parameter, `upper_…` or `lower_…`, or else the one of both levels."""
    value = getattr(parameters, f"{level}_{name}")
    if value is None:
        return getattr(parameters, name, None)
    return value


def points(estimator: Estimator, level: str, parameters: Any) -> Any:
    """At how many points this step's samples of a level are evaluated."""
    count = getattr(parameters, f"{level}_points")
    if count is None:
        return estimator.asks(level, parameters)[1]
    return count


def estimate(
    estimator: Estimator,
    level: str,
    gradient: Callable[..., Value],
    x: Value,
    memory: Memory | None,
    parameters: Parameters,
    zero: Callable[[Value], Value],
) -> tuple[Value, Value, Memory]:
    """The estimate, the fresh gradient and the memory, where a batch can be evaluated at any point.

    Parameters
    ----------
    estimator : Estimator
    level : str
        "upper" or "lower".
    gradient : callable
        x ↦ the gradient of this step's mini-batch; ``gradient(x, wanted)`` gives zeros where it is not wanted.
    x : array
        x_k.
    memory : tuple or None
        What the level's last step returned, None at first. With two evaluations x_{k−1} comes first in it.
    parameters : Parameters
    zero : callable
        Makes the scalar zero of a memory, for a gradient: a number for each run.
    """
    twice = estimator.evaluations == 2
    update = estimator.update
    if memory is None:  # the first step has no previous point
        fresh = before = gradient(x)
        inner = estimator.begin(level, 0 * fresh, zero(fresh))
        last = x
    else:
        last = x
        inner = memory[1:] if twice else memory
        if estimator.scheduled:
            fresh = before = gradient(x)
            if twice:
                before = gradient(memory[0])
            update = estimator.later
        else:
            count = points(estimator, level, parameters)
            fresh = before = gradient(x, count > 0)
            if twice:
                before = gradient(memory[0], count > 1)
                if count == 0:
                    last = memory[0]
    result: Any = update(level, fresh, before, inner, parameters)
    name = f"estimator={type(estimator).__name__}"
    if not (isinstance(result, tuple) and len(result) == 2):
        kind = (
            f"a tuple of {len(result)}"
            if isinstance(result, tuple)
            else type(result).__name__
        )
        raise TypeError(f"{name}: update must return (estimate, memory), not {kind}")
    value, updated = result
    shape = getattr(value, "shape", ())
    right = getattr(fresh, "shape", ())
    if shape != right:
        raise ValueError(
            f"{name}: update returned an estimate of shape {shape}; it must have the gradient's, {right}"
        )
    if len(updated) != len(inner):
        raise ValueError(
            f"{name}: update returned a memory of {len(updated)}; begin made one of {len(inner)}, and it must stay so long"
        )
    return value, fresh, (last, *updated) if twice else updated
