"""How well a network has forgotten: accuracies, attacks and the distance to one that was retrained without the data."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery import forgetting
from gallery.images import Images
from gallery.network import log_probabilities

__all__ = ["Kind", "Measures", "Split"]

Kind: TypeAlias = Literal["class", "subset"]


class Split(NamedTuple):
    """Indices; `retain` and `forget` of the training images, `unseen` and `test` of the test images."""

    retain: Tensor
    forget: Tensor
    unseen: Tensor
    test: Tensor


class Measures:
    """The columns of the table for one seed; those of the retrained network are what the others are compared with."""

    def __init__(self, kind: Kind, data: Images, parts: Split, retrained: nn.Module) -> None:
        self.kind = kind
        self.retain, self.retain_labels = data.train[parts.retain], data.train_labels[parts.retain]
        self.forget, self.forget_labels = data.train[parts.forget], data.train_labels[parts.forget]
        test, labels = data.test[parts.test], data.test_labels[parts.test]
        stays = labels != self.forget_labels[0] if kind == "class" else torch.ones_like(labels, dtype=torch.bool)
        self.test, self.test_labels = test[stays], labels[stays]
        # The attack compares with unseen images of the same kind: of the class, or of all classes.
        alike = ~stays if kind == "class" else stays
        self.alike, self.alike_labels = test[alike], labels[alike]
        self.reference = self._predictions(retrained)
        self.retrained = self._accuracies(self.reference)

    def _predictions(self, model: nn.Module) -> dict[str, Tensor]:
        training = model.training
        model.eval()
        try:
            found = {
                name: log_probabilities(model, getattr(self, name)) for name in ("retain", "forget", "test", "alike")
            }
        finally:
            model.train(training)
        return found

    def _accuracies(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        members = F.nll_loss(found["forget"], self.forget_labels, reduction="none")
        others = F.nll_loss(found["alike"], self.alike_labels, reduction="none")
        return {
            "retain": forgetting.accuracy(found["retain"], self.retain_labels),
            "test": forgetting.accuracy(found["test"], self.test_labels),
            "forget": forgetting.accuracy(found["forget"], self.forget_labels),
            "alike": forgetting.accuracy(found["alike"], self.alike_labels),
            "attack": forgetting.area(members, others),
            "advantage": forgetting.advantage(members, others),
        }

    def __call__(self, model: nn.Module) -> dict[str, float]:
        predictions = self._predictions(model)
        found = self._accuracies(predictions)
        away = {name: abs(found[name] - self.retrained[name]) for name in ("retain", "test", "forget", "attack")}
        away["attack"] *= 100  # an area of 0.5 is 50 %
        values = {
            "gap": sum(away.values()) / len(away),
            "retain": found["retain"],
            "test": found["test"],
            "forget": found["forget"],
            "attack": found["attack"],
            "advantage": found["advantage"],
            "KL forget": forgetting.divergence(self.reference["forget"], predictions["forget"]),
            "KL test": forgetting.divergence(self.reference["test"], predictions["test"]),
        }
        if self.kind == "class":
            values["class on test"] = found["alike"]
        else:
            values["forget"] -= self.retrained["forget"]
        return values
