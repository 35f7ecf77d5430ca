"""A small residual network for CIFAR-10, and its training from scratch."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.images import CLASSES

__all__ = ["Network", "Recipe", "drawn", "log_probabilities", "trained"]


class Norm(nn.BatchNorm2d):
    """Batch norm whose statistics can be frozen: they then stay as they are in training mode, too."""

    frozen = False

    def train(self, mode: bool = True) -> "Norm":
        super().train(mode and not self.frozen)
        return self


class Residual(nn.Module):
    """x + two convolutions of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, channels), *_convolution(channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        Norm(outputs),
        nn.ReLU(),
    )


class Network(nn.Module):
    """The nine-layer residual network that is trained on CIFAR-10 in seconds: bytes in, logits out.

    On a GPU its convolutions run in bfloat16. Weights are stored as usual, activations with their channels last, which
    is the faster layout on both kinds of machines.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width
        self.body = nn.Sequential(
            *_convolution(3, w),
            *_convolution(w, 2 * w), nn.MaxPool2d(2), Residual(2 * w),
            *_convolution(2 * w, 4 * w), nn.MaxPool2d(2),
            *_convolution(4 * w, 8 * w), nn.MaxPool2d(2), Residual(8 * w),
            nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(8 * w, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        x = (
            pictures.float() / 255 - 0.47
        ) / 0.25  # about the mean and the deviation over all pixels
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            features = self.body(x.contiguous(memory_format=torch.channels_last))
        logits: Tensor = self.head(features.float())
        return logits

    def freeze(self) -> "Network":
        """Keep the statistics of batch norm from now on, whatever batches come: see :mod:`.unlearning_images`."""
        for module in self.modules():
            if isinstance(module, Norm):
                module.frozen = True
        return self.train(self.training)


class Recipe(NamedTuple):
    """How a network is trained from scratch; what is not here is in :func:`trained`."""

    width: int
    epochs: int
    batch: int
    rate: float
    shift: int  # pictures are moved by up to so many pixels and mirrored; 0: shown as they are


def trained(recipe: Recipe, pictures: Tensor, labels: Tensor, seed: int) -> Network:
    """A network trained on these pictures: SGD with Nesterov's momentum, a rate that rises and falls straight."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Network(recipe.width).to(pictures.device)
    count = len(pictures)
    per_epoch = math.ceil(count / recipe.batch)
    steps = recipe.epochs * per_epoch
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-4,
        fused=pictures.is_cuda,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / (0.2 * steps), (1 - step / steps) / 0.8),
    )
    for _ in range(recipe.epochs):
        for batch in (
            torch.randperm(count, generator=generator)
            .to(pictures.device)
            .chunk(per_epoch)
        ):
            shown = drawn(pictures[batch], recipe.shift, generator)
            optimizer.zero_grad()
            F.cross_entropy(model(shown), labels[batch]).backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()
    return model.eval()


def drawn(pictures: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """The pictures as training sees them: every second one mirrored, each moved by up to `shift` pixels."""
    if not shift:
        return pictures
    count, _, side, _ = pictures.shape
    mirrored = torch.rand(count, generator=generator).to(pictures.device) < 0.5
    pictures = torch.where(mirrored[:, None, None, None], pictures.flip(3), pictures)
    wide = F.pad(pictures, (shift,) * 4)
    down, right = torch.randint(
        0, 2 * shift + 1, (2, count, 1), generator=generator
    ).to(pictures.device)
    pixels = torch.arange(side, device=pictures.device)
    rows, columns = (down + pixels)[:, :, None], (right + pixels)[:, None, :]
    each = torch.arange(count, device=pictures.device)[:, None, None]
    return wide.permute(0, 2, 3, 1)[each, rows, columns].permute(0, 3, 1, 2)


@torch.no_grad()
def log_probabilities(
    model: Callable[[Tensor], Tensor], pictures: Tensor, chunk: int = 2000
) -> Tensor:
    """Logarithms of the predicted probabilities (n, 10), in the mode in which the model is."""
    return torch.cat(
        [F.log_softmax(model(part), dim=1) for part in torch.split(pictures, chunk)]
    )
