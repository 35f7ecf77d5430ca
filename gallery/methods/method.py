"""What a method is: a step of two losses, what it costs, and its knobs. All help that every method gets is here."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

__all__ = [
    "BACKWARD",
    "FORWARD",
    "WEIGHTS",
    "Closure",
    "Knobs",
    "Method",
    "Seen",
    "Setting",
    "Step",
    "mixed",
    "pick",
]

#: The unit of every budget: a loss and its gradient. A forward pass alone is counted as a third of it.
BACKWARD, FORWARD = Fraction(1), Fraction(1, 3)
#: The weights that a sweep tries, in units of the two gradients' ratio at the start: four and a half decades.
WEIGHTS: tuple[float, ...] = tuple(round(10 ** (-1.5 + 0.9 * i), 3) for i in range(6))

Closure: TypeAlias = Callable[[], Tensor]
Knobs: TypeAlias = Mapping[str, float]


class Seen(NamedTuple):
    """What a step saw, detached: both losses where it evaluates them, its weight on g in units, and, where it measures
    a reference of its own, how far it thinks that g lies above it, in tolerances.
    """

    lower: Tensor | None
    upper: Tensor | None
    weight: Any = None
    promise: Any = None


Step: TypeAlias = Callable[[Closure, Closure], Seen]


class Setting(NamedTuple):
    """What a method is given to begin with.

    Attributes
    ----------
    model, optimizer :
        As the task has them; the optimizer's learning rate was tuned for g alone.
    unit : float
        ‖∇f‖/‖∇g‖ at the start. Methods with a weight count it in this unit, so that a grid means the same everywhere,
        and divide their direction by 1 + weight, so that a large weight does not lengthen the step. That is more help
        than they get from their authors.
    reference, tolerance : float
        Numbers. Only methods with `needs_reference` may look at the reference.
    allowed : float or str
        The tolerance as the example has it, be it a share.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    unit: float
    reference: float
    tolerance: float
    allowed: float | str

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [
            p
            for group in self.optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        ]


@dataclass(frozen=True)
class Method:
    """A row of the gallery's tables.

    Parameters
    ----------
    title, about : str
        Its name in tables, and one sentence with the formula.
    begin : callable
        ``begin(setting, knobs)`` → ``step(upper, lower)``; both closures give the loss on this step's batch.
    cost : Fraction
        Gradient evaluations of a step.
    knobs : tuple of dict
        The trials that it may be tuned by; none if there is nothing to tune.
    needs : tuple of str
        Modules that have to be installed.
    needs_reference : bool
        Whether it needs, as a number, what lower-only training reaches: a training more.
    only : "twin", "start" or None
        The references of examples that it fits.
    """

    title: str
    about: str
    begin: Callable[[Setting, Knobs], Step]
    cost: Fraction
    knobs: tuple[Knobs, ...] = ()
    needs: tuple[str, ...] = ()
    needs_reference: bool = False
    ours: bool = False
    only: Literal["twin", "start"] | None = None

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [
            module for module in self.needs if importlib.util.find_spec(module) is None
        ]

    def steps(self, steps: int) -> int:
        """How many steps 2 · `steps` gradient evaluations pay for.

        >>> from gallery.methods import METHODS
        >>> [METHODS[name].steps(300) for name in ("lower-only", "weighted-sum", "tolerance-twin", "tolerance-start")]
        [600, 300, 200, 257]
        """
        return int(2 * steps / self.cost)


def pick(trials: Sequence[Knobs], count: int) -> list[Knobs]:
    """So many of the trials, spread over all of them.

    >>> pick([{"weight": w} for w in range(6)], 3)
    [{'weight': 0}, {'weight': 2}, {'weight': 4}]
    """
    if count >= len(trials):
        return list(trials)
    return [trials[round((i + 0.5) * len(trials) / count - 0.5)] for i in range(count)]


def mixed(upper: Tensor, lower: Tensor, weight: float | Tensor, unit: float) -> Tensor:
    """(f/unit + w g)/(1 + w)."""
    return (upper / unit + weight * lower) / (1 + weight)
