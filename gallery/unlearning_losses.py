"""The losses of unlearning on images, and the methods of the field that have losses of their own."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from gallery import forgetting
from gallery.example import OwnMethod, Task

__all__ = ["METHODS", "PREDICTIONS", "Batch", "Loss", "confidence_loss", "prediction_loss", "retain_loss"]

Loss: TypeAlias = Callable[[Callable[[Tensor], Tensor], "Batch"], Tensor]


class Batch(NamedTuple):
    """Pictures with their labels. On images to forget also the predictions to make, and wrong labels; where a subset is
    forgotten, as many pictures that were never trained on, with their labels.
    """

    pictures: Tensor
    labels: Tensor
    targets: Tensor | None = None
    random: Tensor | None = None
    unseen: Tensor | None = None
    unseen_labels: Tensor | None = None


def retain_loss(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """g: the mean cross-entropy on retained images."""
    return F.cross_entropy(model(batch.pictures), batch.labels)


def prediction_loss(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """f for a class: the mean divergence from the predictions wanted on forgotten images, at least 0."""
    assert batch.targets is not None
    return F.kl_div(F.log_softmax(model(batch.pictures), 1), batch.targets, reduction="batchmean", log_target=True)


def confidence_loss(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """f for a subset: how far the probabilities of the right labels on forgotten images are, as a distribution, from
    those on unseen images; between 0 and 1.

    The network's own probabilities on the unseen images are what to reach, and follow it as it changes; no gradient
    goes through them, so nothing is learnt from those images. A network that never saw the forgotten images has 0, but
    for the draw of the images: in the quick size 0.02 to 0.04 over all of them, and about 0.07 on batches of 64. What
    a batch adds has no direction: where both distributions are the same, either side is as often above the other.
    """
    assert batch.unseen is not None
    assert batch.unseen_labels is not None
    with torch.no_grad():
        wanted = forgetting.confidence(model(batch.unseen), batch.unseen_labels)
    return forgetting.apart(forgetting.confidence(model(batch.pictures), batch.labels), wanted)


def _beside(loss: Loss) -> Callable[[Task, Mapping[str, float]], Iterator[int]]:
    """A method of the field: the retain loss and a weight times a loss of its own on the images to forget."""

    def train(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
        weight, optimizer = settings["weight"], task.base(task.model.parameters())
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: task.rate(step / task.steps))
        for step in range(task.steps):
            retain, forget = task.batches(step)
            optimizer.zero_grad()
            both = task.lower(task.model, retain) + weight * loss(task.model, forget)
            (both / (1 + weight)).backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            rates.step()
            yield 2

    return train


def _wrong_labels(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    assert batch.random is not None
    return F.cross_entropy(model(batch.pictures), batch.random)


def _ascent(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    return -F.cross_entropy(model(batch.pictures), batch.labels)


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
    forgetting.AS_IT_WAS,
    forgetting.RETRAINED,
)
#: For a subset: whole predictions, image by image, which does not lead to the retrained network.
PREDICTIONS = OwnMethod(
    "others' predictions",
    "Divergence from the prediction on an unseen image of the class, matched by difficulty, and a weight.",
    _beside(prediction_loss),
    _grid(0.01, 0.03, 0.1, 0.3, 1, 3),
)
