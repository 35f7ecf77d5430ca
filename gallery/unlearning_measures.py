"""How well a network has forgotten: accuracies, attacks and the distance to one that was retrained without the data.

Predictions are logarithms of probabilities, a row per image.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.images import Images
from gallery.network import log_probabilities

__all__ = ["Measures", "Split", "accuracy", "advantage", "area", "divergence"]


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
    equal = torch.searchsorted(ordered, members, right=True) - torch.searchsorted(
        ordered, members
    )
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
        torch.searchsorted(losses.sort().values, thresholds, right=True).double()
        / len(losses)
        for losses in (members, others)
    ]
    return float((shares[0] - shares[1]).abs().max())


class Split(NamedTuple):
    """Indices; `retain` and `forget` of the training images, `test` of the test images."""

    retain: Tensor
    forget: Tensor
    test: Tensor


class Measures:
    """The columns of the table for one seed; those of the retrained network are what the others are compared with."""

    def __init__(self, data: Images, parts: Split, retrained: nn.Module) -> None:
        self.retain = data.train[parts.retain]
        self.retain_labels = data.train_labels[parts.retain]
        self.forget = data.train[parts.forget]
        self.forget_labels = data.train_labels[parts.forget]
        test = data.test[parts.test]
        labels = data.test_labels[parts.test]
        stays = labels != self.forget_labels[0]
        self.test = test[stays]
        self.test_labels = labels[stays]
        # The attack compares with test images of the forgotten class.
        self.alike = test[~stays]
        self.alike_labels = labels[~stays]
        self.reference = self._predictions(retrained)
        self.retrained = self._accuracies(self.reference)

    def _predictions(self, model: nn.Module) -> dict[str, Tensor]:
        training = model.training
        model.eval()
        try:
            return {
                name: log_probabilities(model, getattr(self, name))
                for name in ("retain", "forget", "test", "alike")
            }
        finally:
            model.train(training)

    def _accuracies(self, predictions: Mapping[str, Tensor]) -> dict[str, float]:
        members = F.nll_loss(
            predictions["forget"], self.forget_labels, reduction="none"
        )
        others = F.nll_loss(predictions["alike"], self.alike_labels, reduction="none")
        return {
            "retain": accuracy(predictions["retain"], self.retain_labels),
            "test": accuracy(predictions["test"], self.test_labels),
            "forget": accuracy(predictions["forget"], self.forget_labels),
            "class on test": accuracy(predictions["alike"], self.alike_labels),
            "attack": area(members, others),
            "advantage": advantage(members, others),
        }

    def __call__(self, model: nn.Module) -> dict[str, float]:
        predictions = self._predictions(model)
        accuracies = self._accuracies(predictions)
        away = {
            name: abs(accuracies[name] - self.retrained[name])
            for name in ("retain", "test", "forget", "attack")
        }
        away["attack"] *= 100  # an area of 0.5 is 50 %
        return {
            "gap": sum(away.values()) / len(away),
            **accuracies,
            "KL forget": divergence(self.reference["forget"], predictions["forget"]),
            "KL test": divergence(self.reference["test"], predictions["test"]),
        }
