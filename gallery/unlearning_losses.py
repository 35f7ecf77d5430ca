"""The losses of unlearning on images, and the methods of the field that have losses of their own."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from gallery.example import OwnMethod, Task
from gallery.rates import scheduled

__all__ = ["METHODS", "Batch", "Loss", "prediction_loss", "retain_loss", "struck_out"]

Loss: TypeAlias = Callable[[Callable[[Tensor], Tensor], "Batch"], Tensor]


class Batch(NamedTuple):
    """Pictures with their labels. On images to forget also the predictions to make, and wrong labels."""

    pictures: Tensor
    labels: Tensor
    targets: Tensor | None = None
    random: Tensor | None = None


def retain_loss(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """g: the mean cross-entropy on retained images."""
    return F.cross_entropy(model(batch.pictures), batch.labels)


def prediction_loss(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """f: the mean divergence from the target predictions on forgotten images, at least 0."""
    assert batch.targets is not None
    return F.kl_div(
        F.log_softmax(model(batch.pictures), 1),
        batch.targets,
        reduction="batchmean",
        log_target=True,
    )


def struck_out(predictions: Tensor, label: int) -> Tensor:
    """The predictions with one class struck out: what a model would say that has the other classes only.

    Predictions are logarithms of probabilities, a row per image.
    """
    others = predictions.clone()
    others[:, label] = -1e4  # probability 0, and 0 times it is 0
    return others.log_softmax(1)


def _beside(loss: Loss) -> Callable[[Task, Mapping[str, float]], Iterator[int]]:
    """A method of the field: the retain loss and a weight times a loss of its own on the images to forget."""

    def train(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
        weight = settings["weight"]
        for step, optimizer in scheduled(task, task.steps):
            retain, forget = task.batches(step)
            optimizer.zero_grad()
            both = task.lower(task.model, retain) + weight * loss(task.model, forget)
            (both / (1 + weight)).backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            yield 2

    return train


def _wrong_labels(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    assert batch.random is not None
    return F.cross_entropy(model(batch.pictures), batch.random)


def _ascent(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    return -F.cross_entropy(model(batch.pictures), batch.labels)


def _as_it_was(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    yield 0


def _retrained(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    task.model.load_state_dict(task.extra["retrained"]())
    yield task.extra["retraining"]


def _grid(*weights: float) -> tuple[Mapping[str, float], ...]:
    return tuple({"weight": weight} for weight in weights)


METHODS = (
    OwnMethod(
        "random labels",
        "Cross-entropy with wrong labels, drawn once, on the images to forget, and a weight.",
        _beside(_wrong_labels),
        _grid(0.01, 0.03, 0.1, 0.3, 1, 3),
    ),
    OwnMethod(
        "NegGrad+",
        "Ascent on the cross-entropy of the images to forget, and a weight; nothing bounds it.",
        _beside(_ascent),
        _grid(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    ),
    OwnMethod("as it was", "The trained network, unchanged.", _as_it_was, limit=True),
    OwnMethod(
        "retrained",
        "Trained from the start without what has to go: what unlearning tries to be, at the price of a training.",
        _retrained,
        limit=True,
    ),
)
