"""What a model still knows of data it should have forgotten: attacks, distances, and what it ought to predict instead.

Predictions are logarithms of probabilities, a row per image.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from gallery.example import OwnMethod, Task

__all__ = [
    "AS_IT_WAS",
    "BEFORE",
    "RETRAINED",
    "accuracy",
    "advantage",
    "apart",
    "area",
    "confidence",
    "divergence",
    "struck_out",
    "unseen_like",
]


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """In percent."""
    return 100 * float((predictions.argmax(1) == labels).double().mean())


def divergence(of: Tensor, from_: Tensor) -> float:
    """Mean Kullback–Leibler divergence KL(of ‖ from_) over the rows, in nats."""
    return float((of.exp() * (of - from_)).sum(1).double().mean())


def area(members: Tensor, others: Tensor) -> float:
    """Membership inference by the loss: the probability that a member's loss is below another image's (ties: half).

    The area under the attack's curve over all thresholds. 0.5 tells nothing; below 0.5 the losses of members are
    conspicuously *high*, which tells as much.

    Examples
    --------
    >>> area(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
    0.875
    """
    ordered = others.sort().values
    above = len(others) - torch.searchsorted(ordered, members, right=True)
    equal = torch.searchsorted(ordered, members, right=True) - torch.searchsorted(ordered, members)
    return float((above + equal / 2).double().mean()) / len(others)


def advantage(members: Tensor, others: Tensor) -> float:
    """The same attack with the best threshold, in either direction: |hit rate − false-alarm rate|, 0 to 1.

    The threshold is chosen on the images it is judged on, so that an honest model has a little above 0 as well:
    compare with the retrained model's.

    Examples
    --------
    >>> advantage(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
    0.5
    """
    thresholds = torch.cat([members, others])
    shares = [
        torch.searchsorted(losses.sort().values, thresholds, right=True).double() / len(losses)
        for losses in (members, others)
    ]
    return float((shares[0] - shares[1]).abs().max())


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """The probability of each image's right label; logarithms of probabilities are logits, too."""
    return logits.softmax(1).gather(1, labels[:, None]).squeeze(1)


def apart(mine: Tensor, theirs: Tensor) -> Tensor:
    """How far apart two samples of numbers are, as distributions: the mean distance of the least of one to the least of
    the other, and so on in order. With as many in both it is the 1-Wasserstein distance; else `theirs` is read at the
    places of `mine`, the nearest of them.

    An attack that tells the two by a threshold has nothing to see where it is 0.

    Examples
    --------
    >>> float(apart(torch.tensor([0.75, 0.25]), torch.tensor([0.25, 0.5])))
    0.125
    """
    if not len(mine) or not len(theirs):
        raise ValueError(f"mine and theirs must have at least 1 number each, got {len(mine)} and {len(theirs)}")
    places = (2 * torch.arange(len(mine), device=mine.device) + 1) * len(theirs) // (2 * len(mine))
    return (mine.sort().values - theirs.sort().values[places]).abs().mean()


def struck_out(predictions: Tensor, label: int) -> Tensor:
    """The predictions with one class struck out: what a model would say that has the other classes only."""
    kept = predictions.clone()
    kept[:, label] = -1e4  # probability 0, and 0 times it is 0
    return kept.log_softmax(1)


def unseen_like(forget: Tensor, labels: Tensor, unseen: Tensor, unseen_labels: Tensor) -> Tensor:
    """For each image to forget, the prediction on an unseen image of its class, matched by difficulty.

    Within a class, the image on which the model is least sure gets the prediction on the unseen image on which it is
    least sure, and so on in order. So the predictions on the forgotten images are spread as those on unseen ones are,
    right and wrong, and no threshold tells one from the other.
    """
    targets = torch.empty_like(forget)
    for label in torch.unique(labels):
        mine = (labels == label).nonzero().squeeze(1)
        theirs = (unseen_labels == label).nonzero().squeeze(1)
        if not len(theirs):
            raise ValueError(f"there is no unseen image of class {int(label)}: hold out more of them")
        mine = mine[forget[mine, label].argsort()]
        theirs = theirs[unseen[theirs, label].argsort()]
        places = torch.arange(len(mine), device=forget.device) * len(theirs) // len(mine)
        targets[mine] = unseen[theirs[places]]
    return targets


def _nothing(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    yield 0


def _another(name: str, task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    """Instead of a training: the weights that ``task.extra[name]()`` returns."""
    task.model.load_state_dict(task.extra[name]())
    yield task.extra["retraining"] if name == "retrained" else 0


AS_IT_WAS = OwnMethod("as it was", "The trained network, unchanged.", _nothing, limit=True)
RETRAINED = OwnMethod(
    "retrained",
    "Trained from the start without what has to go: what unlearning tries to be, at the price of a training.",
    partial(_another, "retrained"),
    limit=True,
)
BEFORE = OwnMethod(
    "before",
    "The network before it learnt what has to go, and what has to stay.",
    partial(_another, "before"),
    limit=True,
)
