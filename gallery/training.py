"""The one training loop: the same start, batches, learning rates and budget for every method, and what comes of it."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gallery.example import OwnMethod, Task
from gallery.finishing import Finished, finish
from gallery.methods import AnyMethod
from gallery.methods.method import Knobs, Seen, Setting
from gallery.rates import scaling
from tiebreak.options import allowed
from tiebreak.progress import Share, count

__all__ = [
    "Goal",
    "Trained",
    "begun",
    "gradient_unit",
    "seconds_per_evaluation",
    "train",
]

_POINTS = 50  # of a curve
_BATCHES = 4  # at the start, for the unit of weights
_TIMED, _WARM = 1.0, 3  # seconds of a timing, and steps before it
_NOTHING = Seen(None, None)
_COLUMNS = ("step", "evaluations", "seconds", "lower", "upper", "weight")


@dataclass(frozen=True)
class Goal:
    """Inside is g at most `tolerance` above `reference`, both numbers; `given` is the tolerance of the example."""

    reference: float
    tolerance: float
    given: float | str

    @classmethod
    def of(cls, reference: float, given: float | str) -> "Goal":
        """A share is one of the reference's size.

        >>> Goal.of(0.5, "2%").tolerance
        0.01
        """
        amount, relative = allowed(given)
        if relative and reference == 0:
            raise ValueError(
                f"tolerance={given!r} is a share of the reference, and that is 0: it must be a number > 0"
            )
        return cls(reference, amount * abs(reference) if relative else amount, given)

    def excess(self, lower: float) -> float:
        """How far a loss lies above the reference, in tolerances; at most 1 is inside."""
        return (lower - self.reference) / self.tolerance


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    Attributes
    ----------
    status : str
        "finished"; "diverged", where a loss was not finite; or what a package complained of.
    lower, upper : float
        g and f over all training data.
    metrics : dict
        The example's own; NaN where the training did not finish.
    curve : dict of str to list
        About 50 points: losses are means over the batches since the last one.
    warned : tuple of str
        What was warned of on the way.
    finished : Finished, optional
        What the model becomes if it is finished; None where it was not asked for, or makes no sense.
    """

    status: str
    lower: float
    upper: float
    metrics: Mapping[str, float]
    steps: int
    evaluations: float
    seconds: float
    curve: Mapping[str, list[float]]
    promise: float = (
        math.nan
    )  # the excess as a method with a reference of its own measures it; NaN for others
    warned: tuple[str, ...] = ()
    finished: Finished | None = None


def gradient_unit(task: Task) -> float:
    """‖∇f‖/‖∇g‖ at the start, over a few batches, on a copy of the model; 1 where that is no number > 0."""
    model = copy.deepcopy(task.model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms = [0.0, 0.0]
    for step in range(_BATCHES):
        lower, upper = task.batches(step)
        for i, (loss, batch) in enumerate(((task.lower, lower), (task.upper, upper))):
            gradients = torch.autograd.grad(
                loss(model, batch), parameters, materialize_grads=True
            )
            squares = torch.stack(
                [v.double().square().sum() for v in gradients]
            )  # a GPU is waited for once
            norms[i] += math.sqrt(sum(squares.tolist()))
    unit = norms[1] / norms[0] if norms[0] > 0 else math.nan
    return unit if 0 < unit < math.inf else 1.0


def begun(
    task: Task,
    method: AnyMethod,
    knobs: Knobs,
    goal: Goal,
    unit: float,
    evaluations: float,
) -> Iterator[tuple[Fraction | int, Seen]]:
    """The training, a step at a time: what it cost in gradient evaluations, and what it saw. Ends with the budget."""
    if isinstance(method, OwnMethod):
        for cost in method.train(replace(task, steps=round(evaluations / 2)), knobs):
            yield cost, _NOTHING
        return
    steps = max(1, int(evaluations / method.cost))
    optimizer = task.base([p for p in task.model.parameters() if p.requires_grad])
    scale = scaling(optimizer)
    step = method.begin(
        Setting(
            task.model, optimizer, unit, goal.reference, goal.tolerance, goal.given
        ),
        knobs,
    )
    for k in range(steps):
        scale(task.rate(k / steps))
        lower, upper = task.batches(k)
        yield (
            method.cost,
            step(
                partial(task.upper, task.model, upper),
                partial(task.lower, task.model, lower),
            ),
        )


def train(
    task: Task,
    method: AnyMethod,
    knobs: Knobs,
    goal: Goal,
    *,
    evaluations: float | None = None,
    seed: int = 0,
    anchor: Callable[[], Mapping[str, Tensor]] | None = None,
    hear: Callable[[float], Any] = lambda share: None,
) -> Trained:
    """Train ``task.model`` by a method.

    Parameters
    ----------
    task : Task
        Fresh: its model is trained in place.
    evaluations : float, optional
        The budget, in gradient evaluations; 2 · ``task.steps`` unless it is given.
    seed : int
        Of torch's own random numbers, for dropout and the like; the task has drawn what is the task's.
    anchor : callable, optional
        Gives the state of the model that `goal`'s reference is from: the trained one is measured, then finished from
        there and measured again.
    """
    budget = 2.0 * task.steps if evaluations is None else evaluations
    torch.manual_seed(seed)
    unit = gradient_unit(task)
    torch.manual_seed(seed)
    curve, spent, status = _Curve(budget, _device(task.model)), Fraction(0), "finished"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for cost, seen in begun(task, method, knobs, goal, unit, budget):
                spent += cost
                if not curve.add(float(spent), seen):
                    status = "diverged"
                    break
                if curve.columns["step"][-1:] == [curve.steps]:
                    hear(Share(min(1.0, float(spent) / budget), curve.newest()))
                if spent >= budget:
                    break
            curve.point(float(spent))
        except FloatingPointError:
            status = "diverged"
        except (ValueError, RuntimeError) as error:
            # A package's solver has its own words for a gradient that is not finite; anything else of ours is a bug.
            if isinstance(error, torch.OutOfMemoryError) or not getattr(
                method, "needs", ()
            ):
                raise
            status = f"failed: {error}"
    seconds = curve.seconds()
    lower, upper = (
        task.losses(task.model) if status == "finished" else (math.nan, math.nan)
    )
    if status == "finished" and (not math.isfinite(lower) or math.isnan(upper)):
        status = "diverged"
    metrics = (
        {name: float(v) for name, v in task.metrics(task.model).items()}
        if status == "finished"
        else {}
    )
    warned = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    promise = (
        math.nan
        if curve.promise is None or status != "finished"
        else float(curve.promise)
    )
    ended = None
    if (
        anchor is not None
        and status == "finished"
        and math.isfinite(upper)
        and math.isfinite(goal.reference)
    ):
        state = anchor()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what they say is in the table: outside still, or no better than the start
            if all(
                bool(part.isfinite().all()) for part in state.values()
            ):  # lower-only training may have diverged
                ended = finish(task, goal.reference, goal.tolerance, state)
    facts = (
        status,
        lower,
        upper,
        metrics,
        curve.steps,
        float(spent),
        seconds,
        curve.columns,
        promise,
        warned,
    )
    return Trained(*facts, finished=ended)


class Training(NamedTuple):
    """The newest point of a training, for the progress line: the weight of g, and both losses over batches.

    >>> Training(20, 40.0, 1.5, 0.25, 0.125).shown()["words"]
    '40 evaluations'
    """

    steps: int
    evaluations: float
    multiplier: float
    upper_loss: float
    lower_loss: float

    def shown(self) -> dict[str, Any]:
        """The arguments of :meth:`tiebreak.progress.Line.tell`."""
        return {
            "steps": self.steps,
            "words": f"{count(round(self.evaluations))} evaluations",
            "numbers": {"λ": self.multiplier},
            "curves": {"f": self.upper_loss, "g": self.lower_loss},
        }


class _Curve:
    """Means between points, kept on the device until a point is made: nothing waits for it at other steps."""

    def __init__(self, budget: float, device: torch.device) -> None:
        self.budget, self.device = budget, device
        self.columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self.steps, self.since, self.sums = (
            0,
            [0, 0],
            [torch.zeros((), device=device, dtype=torch.float64)] * 2,
        )
        self.weight: Any = math.nan
        self.promise: Any = None
        self.began = self._now()

    def add(self, spent: float, seen: Seen) -> bool:
        """Count a step; False where its losses, as seen at a point, are not finite."""
        self.steps += 1
        for i, loss in enumerate((seen.lower, seen.upper)):
            if loss is not None:
                self.sums[i], self.since[i] = self.sums[i] + loss, self.since[i] + 1
        self.weight, self.promise = seen.weight, seen.promise
        if spent * _POINTS >= self.budget * (len(self.columns["step"]) + 1):
            return self.point(spent)
        return True

    def point(self, spent: float) -> bool:
        """Make a point, unless there is one of this step; whether all losses are finite."""
        if self.columns["step"][-1:] == [self.steps]:
            return True
        means = [
            float(s) / n if n else math.nan
            for s, n in zip(self.sums, self.since, strict=True)
        ]
        weight = math.nan if self.weight is None else float(self.weight)
        values = (self.steps, spent, self.seconds(), *means, weight)
        for name, value in zip(_COLUMNS, values, strict=True):
            self.columns[name].append(float(value))
        finite = all(
            math.isfinite(mean) for mean, n in zip(means, self.since, strict=True) if n
        )
        self.since, self.sums = [0, 0], [torch.zeros_like(s) for s in self.sums]
        return finite

    def newest(self) -> Training:
        """The newest point, for who watches."""
        last = {name: column[-1] for name, column in self.columns.items()}
        return Training(
            self.steps,
            last["evaluations"],
            last["weight"],
            last["upper"],
            last["lower"],
        )

    def seconds(self) -> float:
        return self._now() - self.began

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def seconds_per_evaluation(
    task: Task, method: AnyMethod, knobs: Knobs, goal: Goal
) -> float:
    """What a gradient evaluation of a method takes, over a second's steps: a low quantile, because whatever else the
    machine does only adds. Changes the task's model.
    """
    device, times, began = _device(task.model), [], 0.0
    budget = 2.0 * max(task.steps, 1000)  # whatever is timed must not end before
    with warnings.catch_warnings(), suppress(FloatingPointError):
        warnings.simplefilter("ignore")  # they are told of by the trainings
        now = time.perf_counter()
        for k, (cost, _) in enumerate(
            begun(task, method, knobs, goal, gradient_unit(task), budget)
        ):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            before, now = now, time.perf_counter()
            if k == _WARM - 1:
                began = now
            if k >= _WARM:
                times.append((now - before) / float(cost))
                if now - began > _TIMED and len(times) >= _WARM:
                    break
    return sorted(times)[len(times) // 10] if times else math.nan
