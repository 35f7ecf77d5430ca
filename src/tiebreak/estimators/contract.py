"""What an estimator is, what a step asks of it, and the one place where its batches are evaluated."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from tiebreak.schedules import Parameters

#: Anything with arithmetic: an array, a tensor, a tracer, or a number.
Value: TypeAlias = Any
#: What an estimator remembers of a level.
Memory: TypeAlias = tuple[Any, ...]
#: An estimate, and the memory after it.
Update: TypeAlias = tuple[Value, Memory]

LEVELS = ("upper", "lower")
#: What a rule may ask for where the estimator watches.
WATCHED = (
    *(
        "upper_change",
        "lower_change",
        "upper_along",
        "lower_along",
        "upper_spread",
        "lower_spread",
    ),
    *("moved", "away", "resolution"),
)


class Estimator(Protocol):
    """Turns mini-batch gradients into the estimates that the rule sees."""

    @property
    def evaluations(self) -> int:
        """At how many points a sample is evaluated at most: 1 or 2."""

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """What is remembered before the first step."""

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """The estimate of this step, and what to remember."""


def of_level(parameters: Any, name: str, level: str) -> Any:
    """A level's own parameter, `upper_…` or `lower_…`, or else the one of both levels."""
    own = getattr(parameters, f"{level}_{name}")
    return getattr(parameters, name, None) if own is None else own


def asked(estimator: Estimator, level: str, parameters: Any) -> tuple[Any, Any]:
    """How many samples a step draws for a level, and at how many points each is evaluated: its calls are the product.

    `parameters` are those of one step, or arrays of many by the same names. An estimator says it in
    ``asks(level, parameters)``; without that it takes the schedule's batches and evaluates them at `evaluations`
    points, but at one only where there is no previous point yet.
    """
    own = getattr(estimator, "asks", None)
    if own is not None:
        return own(level, parameters)  # type: ignore[no-any-return]  # taken at its word, and checked where it is used
    return getattr(
        parameters, f"{level}_batch"
    ), 1 if estimator.evaluations == 1 else 1 + (parameters.k > 0)


def points(estimator: Estimator, level: str, parameters: Any) -> Any:
    """At how many points this step's samples of a level are evaluated."""
    known = getattr(parameters, f"{level}_points")
    return asked(estimator, level, parameters)[1] if known is None else known


def enters_direction(estimator: Estimator) -> bool:
    """Whether the estimates make up the direction, too, and not only the multiplier."""
    return bool(getattr(estimator, "direction", True))


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
    if memory is None:  # the first step: there is a batch, and no previous point
        fresh = before = gradient(x)
        inner = estimator.begin(level, 0 * fresh, zero(fresh))
        last = x
    elif hasattr(estimator, "asks"):
        count = points(estimator, level, parameters)
        fresh = gradient(x, count > 0)
        before = gradient(memory[0], count > 1) if twice else fresh
        inner = memory[1:] if twice else memory
        last = memory[0] if twice and count == 0 else x
    else:
        fresh = gradient(x)
        inner = memory[1:] if twice else memory
        last = x
        before = gradient(memory[0]) if twice else fresh
        update = getattr(estimator, "later", update)
    made: Any = update(
        level, fresh, before, inner, parameters
    )  # whatever an estimator of one's own returns
    if not (isinstance(made, tuple) and len(made) == 2):
        given = (
            f"a tuple of {len(made)}"
            if isinstance(made, tuple)
            else type(made).__name__
        )
        raise TypeError(
            f"estimator={type(estimator).__name__}: update must return (estimate, memory), not {given}"
        )
    found, kept = made
    shape = getattr(found, "shape", ())
    right = getattr(fresh, "shape", ())
    if shape != right:
        raise ValueError(
            f"estimator={type(estimator).__name__}: update returned an estimate of shape {shape}; it must have the "
            f"gradient's, {right}"
        )
    if len(kept) != len(inner):
        raise ValueError(
            f"estimator={type(estimator).__name__}: update returned a memory of {len(kept)}; begin made one of "
            f"{len(inner)}, and it must stay so long"
        )
    return found, fresh, (last, *kept) if twice else kept
