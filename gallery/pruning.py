"""Which weights can go, and what people do to make them go: magnitude pruning with retraining."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gallery.example import OwnMethod, Task
from gallery.rates import scaling

__all__ = ["METHODS", "keep", "masks", "removable", "weights"]


def weights(model: nn.Module) -> list[nn.Parameter]:
    """What may be pruned: matrices and kernels, no biases."""
    return [p for p in model.parameters() if p.dim() > 1]


@torch.no_grad()
def masks(parameters: Sequence[Tensor], count: int) -> list[Tensor]:
    """False at the `count` weights of least magnitude among all tensors, and at those as small; True elsewhere."""
    return _larger(parameters, _sorted(parameters), count)


def _sorted(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.abs().flatten() for p in parameters]).sort().values


def _larger(
    parameters: Sequence[Tensor], magnitudes: Tensor, count: int
) -> list[Tensor]:
    least = magnitudes[count - 1] if count else -1.0
    return [p.abs() > least for p in parameters]


@torch.no_grad()
def keep(parameters: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Sets to 0 what the masks have as False."""
    for p, mask in zip(parameters, kept, strict=True):
        p.mul_(mask)


@torch.no_grad()
def removable(
    model: nn.Module, loss: Callable[[nn.Module], float], limit: float, then: Callable[[nn.Module], float],
    parts: int = 2000,
) -> tuple[float, float]:  # fmt: skip
    """The largest share of weights that can be set to 0, smallest first, with a loss of at most `limit`.

    By bisection, to 1/`parts` of the weights: the loss need not rise all the way, so that further on there may be
    another share that would do. 0 where the loss is above the limit before anything is removed. The second number is
    what `then` says of the pruned model; the model itself is left as it was.
    """
    parameters = weights(model)
    whole = [p.clone() for p in parameters]
    magnitudes = _sorted(whole)
    total = len(magnitudes)

    def prune(part: int) -> float:
        restore()
        keep(parameters, _larger(whole, magnitudes, part * total // parts))
        return loss(model)

    def restore() -> None:
        for p, q in zip(parameters, whole, strict=True):
            p.copy_(q)

    try:
        low, high = 0, parts + 1  # `low` will do, or is 0; `high` will not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if prune(middle) <= limit else (low, middle)
        good = prune(low) <= limit
        zeros = sum(int((p == 0).sum()) for p in parameters)
        return (zeros / total if good else 0.0), then(model)
    finally:
        restore()


def _retrained(
    task: Task, target: Callable[[float], float], rounds: int = 1
) -> Iterator[int]:
    """Training on the lower loss alone; the smallest weights go as `target`, of the share of the budget spent, says.

    The learning rate starts again with every round, which retrains better than a small one.
    """
    parameters = weights(task.model)
    optimizer = task.base(task.model.parameters())
    scale = scaling(optimizer)
    total, count = 2 * task.steps, sum(p.numel() for p in parameters)
    often = max(1, total // 100)
    gone, kept = -1, masks(parameters, 0)
    for step in range(total):
        wanted = int(target(step / total) * count)
        begins = step * rounds % total < rounds
        if wanted > gone and (begins or step % often == 0):
            gone, kept = wanted, masks(parameters, wanted)
            keep(parameters, kept)
        scale(task.rate(step * rounds % total / total))
        optimizer.zero_grad()
        task.lower(task.model, task.batches(step)[0]).backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
        keep(parameters, kept)  # momentum would bring them back
        yield 1


def _at_once(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    return _retrained(task, lambda done: settings["share"])


def _gradual(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    def target(done: float) -> float:
        return settings["share"] * (1 - (1 - min(done / settings["until"], 1)) ** 3)

    return _retrained(task, target)


def _rounds(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    rounds = int(settings["rounds"])

    def target(done: float) -> float:
        return float(1 - (1 - settings["share"]) ** ((int(done * rounds) + 1) / rounds))

    return _retrained(task, target, rounds)


_SHARES = (0.9, 0.95, 0.96, 0.97, 0.98, 0.99)

#: Each is tuned over six settings, as the common methods are.
METHODS = (
    OwnMethod(
        "one-shot pruning", "The smallest weights go at the start; the rest is retrained on g.", _at_once,
        tuple({"share": share} for share in _SHARES), straight=False,
    ),
    OwnMethod(
        "gradual pruning", "The share rises along a cubic curve over half of the steps; training on g.",
        _gradual, tuple({"share": share, "until": 0.5} for share in _SHARES), straight=False,
    ),
    OwnMethod(
        "pruning in rounds", "The same factor of the weights is kept in every round; each retrains on g with "
        "the whole schedule of the learning rate.", _rounds,
        tuple({"share": share, "rounds": rounds} for rounds in (2, 4) for share in (0.95, 0.97, 0.98)), straight=False,
    ),
)  # fmt: skip
