"""Continual learning: a model that knows five classes learns five more, and must not get worse at the first five.

Class-incremental, with one head of ten outputs: the harder and more common case. Nothing tells the model at test time
which of the two tasks an image belongs to, so that new classes may take images away from old ones: of the two halves of
Fashion-MNIST only the second has shirts, and the first has T-shirts, pullovers and coats.
"""

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gallery.batches import Epochs
from gallery.example import Example, Metric, OwnMethod, Size, Task
from gallery.fashion import PACKAGE, Images, accuracy, entropy, split, trained
from gallery.rates import adam, cosine, move, scheduled

__all__ = ["EXAMPLE", "agem", "build", "ewc", "halves", "joint", "rehearsal", "task"]

_OLD = 5  # classes 0 to 4 come first


def halves(images: Images) -> tuple[Images, Images]:
    """The old classes, and the new ones."""
    old = images.labels < _OLD
    return images.where(old), images.where(~old)


def task(
    model: nn.Module,
    train: Images,
    test: Images,
    rate: float,
    batch: int,
    steps: int,
    seed: int,
) -> Task:
    """From a model that was trained on the old classes of `train`."""
    old, new = halves(train)
    old_test, new_test = halves(test)
    before = accuracy(model, old_test)

    def metrics(model: nn.Module) -> dict[str, float]:
        kept, learnt = accuracy(model, old_test), accuracy(model, new_test)
        return {
            "average": (kept + learnt) / 2,
            "old": kept,
            "new": learnt,
            "forgotten": before - kept,
        }

    @torch.no_grad()
    def losses(model: nn.Module) -> tuple[float, float]:
        return entropy(model, old).item(), entropy(model, new).item()

    device = str(train.labels.device)
    lower = Epochs(len(old.labels), batch, seed + 1, device)
    upper = Epochs(len(new.labels), batch, seed + 2, device)
    return Task(
        model=model,
        lower=entropy,
        upper=entropy,
        batches=lambda step: (old.where(lower(step)), new.where(upper(step))),
        base=adam(rate),
        steps=steps,
        losses=losses,
        metrics=metrics,
        rate=cosine,
        extra={"old": old, "new": new, "batch": batch, "seed": seed},
    )


def _parameters(task: Task) -> list[nn.Parameter]:
    return [p for p in task.model.parameters() if p.requires_grad]


def _gradient(task: Task, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, _parameters(task), materialize_grads=True))


def rehearsal(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    """Plain rehearsal: a batch of old and one of new images, added up as they are."""
    for step, optimizer in scheduled(task, task.steps):
        old, new = task.batches(step)
        move(
            optimizer,
            _gradient(task, task.lower(task.model, old) + task.upper(task.model, new)),
        )
        yield 2


def agem(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    """A-GEM: the new task's gradient, less its part against the old one's where the two conflict."""
    for step, optimizer in scheduled(task, task.steps):
        old, new = task.batches(step)
        b = _gradient(task, task.lower(task.model, old))
        a = _gradient(task, task.upper(task.model, new))
        along = torch.stack([(u * v).sum() for u, v in zip(a, b, strict=True)]).sum()
        size = torch.stack([(v * v).sum() for v in b]).sum()
        factor = along.clamp(max=0) / size.clamp(min=1e-30)
        move(optimizer, [u - factor * v for u, v in zip(a, b, strict=True)])
        yield 2


def ewc(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    """EWC: f + c/2 Σ F (x − x₀)², F the mean squared gradient of the old images' log-likelihood at the start."""
    weight = settings["weight"]
    start = [p.detach().clone() for p in _parameters(task)]
    fisher = [torch.zeros_like(p) for p in start]
    old: Images = task.extra["old"]
    images = min(
        200, task.steps
    )  # one by one, each a gradient that is paid for, though it takes less time
    for row in torch.randperm(
        len(old.labels), generator=torch.Generator().manual_seed(task.extra["seed"])
    )[:images]:
        one = old.where(row.to(old.labels.device)[None])
        drawn = torch.multinomial(task.model(one.inputs).detach().softmax(1), 1)[:, 0]
        for total, g in zip(
            fisher,
            _gradient(task, entropy(task.model, Images(one.inputs, drawn))),
            strict=True,
        ):
            total += g.square() / images
    yield images  # at once: who times steps is to see those that follow

    for step, optimizer in scheduled(task, 2 * task.steps - images):
        a = _gradient(task, task.upper(task.model, task.batches(step)[1]))
        now = (p.detach() for p in _parameters(task))
        move(
            optimizer,
            [
                u + weight * f * (p - q)
                for u, f, p, q in zip(a, fisher, now, start, strict=True)
            ],
        )
        yield 1


def joint(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    """All old and all new images together, as if the first ones had never gone."""
    everything = Images(
        *(
            torch.cat(parts)
            for parts in zip(task.extra["old"], task.extra["new"], strict=True)
        )
    )
    rows = Epochs(
        len(everything.labels),
        task.extra["batch"],
        task.extra["seed"] + 3,
        str(everything.labels.device),
    )
    for step, optimizer in scheduled(task, 2 * task.steps):
        move(
            optimizer,
            _gradient(task, entropy(task.model, everything.where(rows(step)))),
        )
        yield 1


#: layers, images, batch, steps on the old task, steps after it, learning rate
_SIZES: dict[Size, Any] = {
    "quick": ((784, 100, 50, 10), 10_000, 128, 400, 500, 5e-3),
    "full": ((784, 300, 100, 10), 60_000, 256, 2_000, 2_000, 4e-3),
}


@functools.lru_cache(maxsize=8)
def _first(size: Size, seed: int, device: str) -> nn.Module:
    layers, images, batch, steps, _, rate = _SIZES[size]
    old, _ = halves(split(images, seed, device)[0])
    return trained("fashion-old", layers, old, rate, batch, steps, seed)


def build(size: Size, seed: int, device: str) -> Task:
    """Fashion-MNIST, classes 0 to 4 and then 5 to 9."""
    _, images, batch, _, steps, rate = _SIZES[size]
    train, test = split(images, seed, device)
    model = copy.deepcopy(_first(size, seed, device))
    return task(model, train, test, rate, batch, steps, seed + 2)


_METHODS = (
    OwnMethod("rehearsal", "Old and new losses added up as they are, without a weight.", rehearsal),
    OwnMethod(
        "A-GEM-style", "The new gradient less its part against the old one, where they conflict.",
        agem,
    ),
    OwnMethod(
        "EWC", "New loss + c/2 Σ F (x − x₀)²: no old image is used but for F, the Fisher information at the start.",
        ewc, tuple({"weight": weight} for weight in (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)),
    ),
    OwnMethod("joint training", "All old and new images together, in the same batches.", joint,
              limit=True),
)  # fmt: skip
_METRICS = (
    Metric("average", "higher", "mean of the two accuracies on test images"),
    Metric(
        "old",
        "higher",
        "accuracy on test images of the old classes, among all ten answers",
    ),
    Metric(
        "new",
        "higher",
        "accuracy on test images of the new classes, among all ten answers",
    ),
    Metric(
        "forgotten",
        "lower",
        "what the accuracy on the old classes has lost since the start",
    ),
)

EXAMPLE = Example(
    name="continual-all",
    title="Continual learning with all old images",
    question="How well can five new classes be learnt if the loss on the old ones must not rise?",
    build=build,
    metrics=_METRICS,
    tolerance="5%",
    reference="start",
    needs=(PACKAGE,),
    limits="Two tasks, a small perceptron. What is promised concerns the training loss on the old classes, not the "
    "test data.",
    methods=_METHODS,
)
