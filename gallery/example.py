"""What an example is: data, a model, two losses, and what to measure. How it is trained belongs to other modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tiebreak.checks import one_of, whole
from tiebreak.options import allowed

__all__ = ["COLUMNS", "Example", "Metric", "OwnMethod", "Size", "Task"]

#: "quick" is minutes on two cores with one seed and fewer data; "full" is what the documentation reports.
Size = Literal["quick", "full"]
#: Columns of a study's results.csv, so that no metric can be called so.
COLUMNS = (
    "budget", "method", "seed", "knobs", "status", "inside", "excess", "promise", "lower", "upper", "steps",
    "evaluations", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A column of an example's table.

    Parameters
    ----------
    name : str
        Its key in what :attr:`Task.metrics` returns, and the column's title.
    better : "higher", "lower" or "equal"
        What an engineer wants of it; "equal": as near to the value of `target` as possible.
    about : str
        One plain sentence: what it is, on which data.
    """

    name: str
    better: Literal["higher", "lower", "equal"]
    about: str
    target: float | None = None

    def __post_init__(self) -> None:
        one_of(
            f"better of the metric {self.name!r}",
            self.better,
            ("higher", "lower", "equal"),
        )
        if self.better == "equal" and self.target is None:
            raise ValueError(
                f"target=None of the metric {self.name!r}: say what it is to be equal to"
            )


@dataclass
class Task:
    """An example with everything drawn for one seed. The training loop asks for nothing else.

    Every method starts from the same model and sees the same batches. `lower` is the loss that must stay optimal (g),
    `upper` the one to improve among what is left (f); both return the mean over their batch.

    `batches` is asked for more than `steps` steps: what is cheaper a step makes more of them, lower-only training about
    2 · steps. :class:`~gallery.batches.Epochs` never ends. A task is built anew for every training: cache what
    takes long to read.
    """

    model: nn.Module
    lower: Callable[[nn.Module, Any], Tensor]
    upper: Callable[[nn.Module, Any], Tensor]
    batches: Callable[
        [int], tuple[Any, Any]
    ]  # any step ≥ 0 → its batch for the lower and for the upper loss
    base: Callable[
        [Iterable[nn.Parameter]], torch.optim.Optimizer
    ]  # its learning rate tuned for g alone
    steps: int  # the budget, in steps that evaluate both gradients once: 2 · steps gradient evaluations
    losses: Callable[
        [nn.Module], tuple[float, float]
    ]  # g and f over all training data, as training computes them
    metrics: Callable[
        [nn.Module], Mapping[str, float]
    ]  # what the table shows, by the metrics' names
    rate: Callable[[float], float] = lambda share: (
        1.0
    )  # share of the budget spent → factor of the learning rate
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the example's own methods need besides

    def __post_init__(self) -> None:
        self.steps = whole("steps", self.steps)
        if not isinstance(self.model, nn.Module):
            raise ValueError(
                f"model must be a torch.nn.Module, not {type(self.model).__name__}"
            )
        if not any(p.requires_grad for p in self.model.parameters()):
            raise ValueError(
                "model has no parameter that requires a gradient: there is nothing to train"
            )


@dataclass(frozen=True)
class OwnMethod:
    """A method of an example's own: what its field uses, in the same table as the common ones.

    Parameters
    ----------
    name, about : str
        Its row in the table, and one plain sentence on what it does.
    train : callable
        ``train(task, settings)`` trains ``task.model`` in place. It is a generator: after every step it yields how many
        gradients that step evaluated. Who runs it measures time and losses in between, and ends it when
        ``2 * task.steps`` gradients are spent, as for every other method.
    grid : tuple of mappings
        The settings it is tuned over, by name; as many as the others are given.
    limit : bool
        It may see what the others may not (all old data, say): shown as a limit, never named the winner.
    straight : bool
        Whether its model may be moved along a straight line at the end, as the others' are: not one whose weights were
        set to 0.
    """

    name: str
    about: str
    train: Callable[[Task, Mapping[str, float]], Iterator[int]]
    grid: tuple[Mapping[str, float], ...] = ({},)
    limit: bool = False
    straight: bool = True

    @property
    def finishes(self) -> bool:
        """Whether it is finished: a limit is shown as it is."""
        return self.straight and not self.limit


@dataclass(frozen=True)
class Example:
    """A problem of the gallery.

    Parameters
    ----------
    name, title : str
        As the command line and the documentation call it.
    question : str
        What an engineer would ask, in a sentence.
    build : callable
        ``build(size, seed, device)`` → :class:`Task`. Raises :class:`gallery.needs.Missing` where data are
        not installed.
    metrics : tuple of Metric
        The first is the one by which the table names a winner among the methods that stayed inside the tolerance.
    tolerance : float or str
        How far the lower loss may lie above its reference: a number, or a share such as "2%".
    reference : "twin" or "start"
        What "optimal" is for the lower loss: what training on it alone reaches, or the loss of the starting model.
    needs : tuple of str
        The names in :data:`gallery.needs.PACKAGES` of what has to be installed.
    limits : str
        What the example does not show.
    methods : tuple of OwnMethod
        What its field uses beside the common methods.
    """

    name: str
    title: str
    question: str
    build: Callable[[Size, int, str], Task]
    metrics: tuple[Metric, ...]
    tolerance: float | str
    reference: Literal["twin", "start"]
    needs: tuple[str, ...] = ()
    limits: str = ""
    methods: tuple[OwnMethod, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, tuple) or not self.metrics:
            raise ValueError(
                f"metrics={self.metrics!r} must be a tuple of Metric, at least one: (Metric(…),)"
            )
        names = [metric.name for metric in self.metrics]
        for name in names:
            if name in COLUMNS or name.startswith("finished ") or names.count(name) > 1:
                raise ValueError(
                    f"metrics: {name!r} must be another name, of one metric alone; taken are {', '.join(COLUMNS)}, and "
                    "whatever begins with 'finished '"
                )
        one_of("reference", self.reference, ("twin", "start"))
        allowed(self.tolerance)
