"""A trained network made sparse at unchanged loss
===============================================

Run it: ``python examples/sparsity.py``.

Fashion-MNIST comes inside a package; without it this says how to get it. Half a minute on one core: 6,000 images and a
small perceptron. ``python -m gallery sparsity`` has more of everything, and magnitude pruning with retraining, which is
what to compare with before you choose.
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


def weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() > 1]


def penalty(model: nn.Module, small: float = 0.01) -> Tensor:
    """Σ log(1 + |w|/ε): pulls small weights to 0 and leaves large ones nearly alone. Its unit does not matter."""
    return torch.stack([(p.abs() / small).log1p().sum() for p in weights(model)]).sum()


@torch.no_grad()
def prune(model: nn.Module, share: float) -> nn.Module:
    """A copy in which this share of the weights, the smallest, is 0."""
    copied = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    copied.load_state_dict(model.state_dict())
    magnitudes = torch.cat([p.abs().flatten() for p in weights(model)])
    least = magnitudes.sort().values[max(0, int(share * len(magnitudes)) - 1)]
    for p in weights(copied):
        p.mul_(p.abs() > least)
    return copied


@torch.no_grad()
def removable(model: nn.Module, inputs: Tensor, labels: Tensor, limit: float) -> float:
    """The largest share of weights that can be 0 with a loss of at most `limit`, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        fits = cross_entropy(prune(model, middle)(inputs), labels) <= limit
        low, high = (middle, high) if fits else (low, middle)
    return low


def main(
    count: int = 6000,
    batch: int = 128,
    dense: int = 400,
    sparse: int = 1200,
    rate: float = 1e-3,
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
    inputs, labels = images("train", count)
    test = images("t10k", 10_000)
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))

    def fit(rows: Tensor) -> Tensor:
        return cross_entropy(model(inputs[rows]), labels[rows])

    @torch.no_grad()
    def report(name: str, limit: float) -> None:
        share = removable(model, inputs, labels, limit)
        right = (prune(model, share)(test[0]).argmax(1) == test[1]).float().mean()
        loss = cross_entropy(model(inputs), labels)
        print(
            f"{name:<7} loss {loss:.4f}, {share:6.1%} of the weights can go, test accuracy then {right:.1%}"
        )

    base = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, dense)
    for _ in range(dense):
        base.zero_grad()
        fit(torch.randint(count, (batch,))).backward()
        base.step()
        schedule.step()
    with torch.no_grad():
        limit = 1.01 * cross_entropy(model(inputs), labels).item()
    report("dense", limit)

    base = torch.optim.Adam(model.parameters(), lr=rate)
    opt = DynamicBarrier(base, tolerance="1%", reference="start", model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, sparse)
    for _ in range(sparse):
        rows = torch.randint(count, (batch,))
        opt.step(lower=lambda rows=rows: fit(rows), upper=lambda: penalty(model))
        schedule.step()
    report("sparse", limit)
    print(
        f"the loss lies {opt.log()['excess']:.1f} tolerances above the dense network's (at most 1 is the promise)"
    )


if __name__ == "__main__":
    main()
