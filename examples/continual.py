"""Continual learning: five new classes, the old ones kept
=======================================================

Run it: ``python examples/continual.py``.

Fashion-MNIST comes inside a package; without it this says how to get it. Half a minute on one core: 6,000 images and a
small perceptron with one head for all ten classes. ``python -m gallery continual-all`` has more of everything, and the
methods of the field.
"""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tiebreak.torch import DynamicBarrier

FOLDER = Path(os.environ.get("TIEBREAK_DATA", "tiebreak-data"), "dataset-fashion-mnist")
COMMAND = f"apt-get download dataset-fashion-mnist && mkdir -p {FOLDER} && dpkg-deb -x dataset-fashion-mnist_*.deb {FOLDER}"


def images(part: str, count: int) -> tuple[Tensor, Tensor]:
    """The first so many images as rows of 784 numbers, and their classes; "train" or "t10k"."""

    def read(kind: str, skip: int) -> Tensor:
        path = next(FOLDER.rglob(f"{part}-{kind}-ubyte.gz"), None)
        if path is None:
            sys.exit(f"Fashion-MNIST is not installed; get it with: {COMMAND}")
        with gzip.open(path) as file:
            return torch.from_numpy(
                np.frombuffer(file.read(), np.uint8, offset=skip).copy()
            )

    pixels = read("images-idx3", 16).reshape(-1, 784)[:count]
    return (pixels.float() / 255 - 0.286) / 0.353, read("labels-idx1", 8)[:count].long()


def main(
    count: int = 6000,
    batch: int = 128,
    first: int = 400,
    second: int = 1000,
    rate: float = 1e-3,
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
    inputs, labels = images("train", count)
    test = images("t10k", 10_000)
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    old, new = (labels < 5).nonzero().squeeze(1), (labels >= 5).nonzero().squeeze(1)

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(model(inputs[rows]), labels[rows])

    def draw(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch,))]

    @torch.no_grad()
    def report(name: str) -> None:
        right = (model(test[0]).argmax(1) == test[1]).float()
        halves = (right[test[1] < 5].mean(), right[test[1] >= 5].mean())
        print(
            f"{name:<8} loss on the old classes {loss(old):.4f}; test accuracy old {halves[0]:.1%}, new {halves[1]:.1%}"
        )

    base = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, first)
    for _ in range(first):
        base.zero_grad()
        loss(draw(old)).backward()
        base.step()
        schedule.step()
    report("before")

    base = torch.optim.Adam(model.parameters(), lr=rate)
    with torch.no_grad():
        allowed = (
            0.05 * loss(old).item()
        )  # where only a few old images were kept, give those
    opt = DynamicBarrier(base, tolerance=allowed, reference="start", model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, second)
    for _ in range(second):
        kept, learnt = draw(old), draw(new)
        opt.step(
            lower=lambda rows=kept: loss(rows), upper=lambda rows=learnt: loss(rows)
        )
        schedule.step()
    report("after")
    print(opt.finish(lower=lambda: loss(old), upper=lambda: loss(new)))
    report("finished")


if __name__ == "__main__":
    main()
