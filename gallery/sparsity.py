"""Sparsity at unchanged loss: how many weights of a trained model can go within 1 % of its training loss."""

import copy
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from gallery import pruning
from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.fashion import PACKAGE, Images, accuracy, entropy, split, trained
from gallery.rates import adam, cosine

__all__ = ["EXAMPLE", "build", "penalty", "task"]

_SMALL = 0.01  # weights far below it count in proportion, far above it hardly more when they grow
_SHARE = 0.01  # of the dense model's loss


def penalty(model: nn.Module) -> Tensor:
    """ε/√N · Σ log(1 + |w|/ε) over the N weights: it pulls small weights to 0 and leaves large ones nearly alone.

    Each weight of 0 is pulled with 1/√N, so that the gradient's norm is at most one whatever the size of the model.
    """
    terms = [(p.abs() / _SMALL).log1p().sum() for p in pruning.weights(model)]
    count = sum(p.numel() for p in pruning.weights(model))
    return _SMALL / math.sqrt(count) * torch.stack(terms).sum()


def task(
    model: nn.Module,
    train: Images,
    test: Images,
    rate: float,
    batch: int,
    steps: int,
    seed: int,
) -> Task:
    """From a model that is trained already, on any data."""

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        return entropy(model, train).item()

    limit = (1 + _SHARE) * loss(model)

    def metrics(model: nn.Module) -> dict[str, float]:
        removed, pruned = pruning.removable(
            model, loss, limit, lambda m: accuracy(m, test)
        )
        return {
            "removed": removed, "smaller": 1 / max(1 - removed, 1e-9), "test accuracy": pruned,
            "unpruned": accuracy(model, test),
        }  # fmt: skip

    @torch.no_grad()
    def losses(model: nn.Module) -> tuple[float, float]:
        return loss(model), penalty(model).item()

    rows = Epochs(len(train.labels), batch, seed, str(train.labels.device))
    return Task(
        model=model,
        lower=lambda model, batch: entropy(model, batch),
        upper=lambda model, batch: penalty(model),
        batches=lambda step: (train.where(rows(step)), None),
        base=adam(rate),
        steps=steps,
        losses=losses,
        metrics=metrics,
        rate=cosine,
    )


#: layers, images, batch, steps of the dense training, steps after it, learning rate
_SIZES: dict[Size, Any] = {
    "quick": ((784, 100, 50, 10), 10_000, 128, 500, 600, 5e-3),
    "full": ((784, 300, 100, 10), 60_000, 256, 2_000, 2_000, 4e-3),
}


@functools.lru_cache(maxsize=8)
def _dense(size: Size, seed: int, device: str) -> nn.Module:
    layers, images, batch, steps, _, rate = _SIZES[size]
    train, _ = split(images, seed, device)
    return trained("fashion-all", layers, train, rate, batch, steps, seed)


def build(size: Size, seed: int, device: str) -> Task:
    """Fashion-MNIST and a perceptron of two hidden layers, trained."""
    _, images, batch, _, steps, rate = _SIZES[size]
    train, test = split(images, seed, device)
    return task(
        copy.deepcopy(_dense(size, seed, device)),
        train,
        test,
        rate,
        batch,
        steps,
        seed + 2,
    )


EXAMPLE = Example(
    name="sparsity",
    title="Sparsity at unchanged loss",
    question="How many weights of a trained model can go if its training loss may rise by 1 %?",
    build=build,
    metrics=(
        Metric(
            "removed",
            "higher",
            "share of weights that can be set to 0, training loss within 1 % of the start's",
        ),
        Metric("smaller", "higher", "how many times fewer weights that is"),
        Metric(
            "test accuracy",
            "higher",
            "accuracy on the test images with these weights set to 0",
        ),
        Metric(
            "unpruned",
            "higher",
            "accuracy on the test images before anything is set to 0",
        ),
    ),
    tolerance="1%",
    reference="start",
    needs=(PACKAGE,),
    limits="One small perceptron, unstructured zeros: they save memory, and time only with kernels made for them. The "
    "gradient of the penalty needs no data, yet it is counted like one that does: compare at equal time, too.",
    methods=pruning.METHODS,
)
