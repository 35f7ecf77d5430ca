"""The end of any training, the same for all methods: :meth:`~tiebreak.torch.DynamicBarrier.finish`."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gallery.example import Task
from tiebreak.torch import DynamicBarrier

__all__ = ["Finished", "finish"]


class Finished(NamedTuple):
    """What a trained model becomes on the line from a model that is inside.

    Attributes
    ----------
    lower, upper : float
        g and f over all training data.
    excess : float
        g's, above the reference in tolerances.
    metrics : mapping
        The example's own, measured anew.
    place : float
        0 is the model that the line begins at, 1 the trained one.
    looks : int
        How often both losses were evaluated over all training data.
    seconds : float
        That this took, metrics not counted.
    """

    lower: float
    upper: float
    excess: float
    metrics: Mapping[str, float]
    place: float
    looks: int
    seconds: float


def finish(
    task: Task, reference: float, tolerance: float, anchor: Mapping[str, Tensor]
) -> Finished:
    """Move ``task.model`` to the best place inside the tolerance.

    Parameters
    ----------
    task : Task
        Trained, by any method; both losses are finite.
    reference, tolerance : float
        Inside is g ≤ reference + tolerance.
    anchor : mapping
        The state of a model that is inside, as a rule: the start, or what lower-only training made of it. Where no
        place between them is inside, the model stays as it is.
    """
    began = time.perf_counter()
    seen: list[tuple[float, float]] = []  # g and f at each place

    def lower() -> float:
        seen.append(task.losses(task.model))
        return seen[-1][0]

    moved: Any = [p for p in task.model.parameters() if p.requires_grad]
    # The base makes no step: it holds the parameters that are moved.
    opt = DynamicBarrier(
        torch.optim.SGD(moved, lr=0.0),
        tolerance=tolerance,
        reference=reference,
        model=task.model,
    )
    found = opt.finish(lower=lower, upper=lambda: seen[-1][1], anchor=anchor)
    seconds = time.perf_counter() - began
    metrics = {name: float(v) for name, v in task.metrics(task.model).items()}
    below = min(
        (g for g, _ in seen),
        key=lambda g: abs((g - reference) / tolerance - found.excess),
    )
    return Finished(
        below,
        found.upper_loss,
        found.excess,
        metrics,
        found.place,
        found.evaluations,
        seconds,
    )
