"""Fashion-MNIST for the examples: 28 × 28 grey images of ten kinds of clothes, 60,000 to train on, 10,000 to test."""

import functools
import gzip
import itertools
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gallery import needs
from gallery.batches import Epochs
from gallery.kept import kept
from gallery.rates import adam, cosine, scaling

__all__ = [
    "PACKAGE", "Images", "accuracy", "entropy", "fit", "load", "perceptron", "split", "trained",
]  # fmt: skip

PACKAGE = "dataset-fashion-mnist"


class Images(NamedTuple):
    """Images as rows of 784 numbers, and their classes."""

    inputs: Tensor
    labels: Tensor

    def where(self, chosen: Tensor) -> "Images":
        """The rows that a mask or indices choose."""
        return Images(self.inputs[chosen], self.labels[chosen])

    def to(self, device: str) -> "Images":
        """The same on a device."""
        return Images(self.inputs.to(device), self.labels.to(device))


@functools.lru_cache(maxsize=2)
def load(part: str) -> Images:
    """All images of ``"train"`` or ``"t10k"``, on the CPU, with about mean 0 and variance 1."""

    def read(kind: str, skip: int) -> Tensor:
        with (
            needs.reading(PACKAGE, f"{part}-{kind}-ubyte.gz") as path,
            gzip.open(path) as file,
        ):
            return torch.from_numpy(
                np.frombuffer(file.read(), np.uint8, offset=skip).copy()
            )

    pixels = read("images-idx3", 16).reshape(-1, 784)
    return Images((pixels.float() / 255 - 0.286) / 0.353, read("labels-idx1", 8).long())


@functools.lru_cache(maxsize=8)
def split(train: int, seed: int, device: str) -> tuple[Images, Images]:
    """So many training images, drawn by the seed (all where there are no more), and all test images, on the device."""
    everything = load("train")
    order = torch.randperm(
        len(everything.labels), generator=torch.Generator().manual_seed(seed)
    )[:train]
    return everything.where(order).to(device), load("t10k").to(device)


def perceptron(sizes: Sequence[int], seed: int, device: str) -> nn.Sequential:
    """Linear layers with ReLU in between, drawn by the seed whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inner, outer in itertools.pairwise(sizes):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(device)


def entropy(model: nn.Module, images: Images) -> Tensor:
    """The mean cross-entropy."""
    return cross_entropy(model(images.inputs), images.labels)


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """The share of images whose class the model names."""
    return float((model(images.inputs).argmax(1) == images.labels).double().mean())


def fit(
    model: nn.Module, images: Images, rate: float, batch: int, steps: int, seed: int
) -> nn.Module:
    """Plain training: Adam, a learning rate that falls along a cosine."""
    optimizer = adam(rate)(model.parameters())
    scale = scaling(optimizer)
    batches = Epochs(len(images.labels), batch, seed, str(images.labels.device))
    for step in range(steps):
        scale(cosine(step / steps))
        optimizer.zero_grad()
        entropy(model, images.where(batches(step))).backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
    return model


def trained(
    name: str,
    sizes: Sequence[int],
    images: Images,
    rate: float,
    batch: int,
    steps: int,
    seed: int,
) -> nn.Sequential:
    """A perceptron drawn by the seed and fitted to these images, or read where it was: every training starts from it,
    in every process.
    """
    digest = sha256()
    for part in images:
        digest.update(part.cpu().numpy().tobytes())
    device = images.labels.device
    made_by = {
        "sizes": list(sizes), "rate": rate, "batch": batch, "steps": steps, "seed": seed, "data": digest.hexdigest(),
        "code": sha256(Path(__file__).read_bytes()).hexdigest(), "device": device.type,
    }  # fmt: skip
    model = perceptron(sizes, seed, str(device))

    def make() -> dict[str, Tensor]:
        return fit(
            perceptron(sizes, seed, str(device)), images, rate, batch, steps, seed + 1
        ).state_dict()

    model.load_state_dict(kept(f"{name}-seed{seed}", made_by, make))
    return model
