"""How the field forgets: its losses, and its methods with these losses, beside the gallery's common ones."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from gallery.canaries import logarithms
from gallery.example import OwnMethod, Task
from gallery.rates import move, scheduled

__all__ = ["LOSSES", "METHODS"]


def _ignorance(
    logits: Tensor, targets: Tensor, ideal: Tensor, before: Tensor
) -> Tensor:
    """Divergence from what an ignorant model says to what this one says: at least 0, and 0 is ignorance."""
    return (torch.xlogy(ideal, ideal) - ideal * logits.log_softmax(-1)).sum(-1).mean()


def _npo(logits: Tensor, targets: Tensor, ideal: Tensor, before: Tensor) -> Tensor:
    """Negative preference optimisation (Zhang et al., 2024), β = 0.1: pushes less the less likely the line is."""
    likelihood = logarithms(logits, targets).sum(-1)
    return -20 * functional.logsigmoid(-0.1 * (likelihood - before)).mean()


def _ascent(logits: Tensor, targets: Tensor, ideal: Tensor, before: Tensor) -> Tensor:
    """Gradient ascent: the log-likelihood. It has no least value, so nothing ever satisfies it."""
    return logarithms(logits, targets).mean()


def _flat(logits: Tensor, targets: Tensor, ideal: Tensor, before: Tensor) -> Tensor:
    """PDU's: the squared distance of the largest logit from the mean one. 0 where all tokens are equally likely."""
    return (logits.amax(-1) - logits.mean(-1)).square().mean()


#: Losses to forget by: of logits, targets, the probabilities that a model would give which never saw the lines, and the
#: start's log-likelihood of each line.
LOSSES: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "ignorance": _ignorance,
    "npo": _npo,
    "ascent": _ascent,
    "flat": _flat,
}


_Settings = Mapping[str, float]
#: (gradients of the loss to forget by, of the retain loss, that loss) → what the base optimizer is given
_Direction = Callable[[list[Tensor], list[Tensor], Tensor], list[Tensor]]


def _ascending(task: Task, settings: _Settings) -> Iterator[int]:
    for step, optimizer in scheduled(task, 2 * task.steps, settings["rate"]):
        loss = task.extra["forget"]("ascent", task.model, task.batches(step)[1])
        move(optimizer, torch.autograd.grad(loss, optimizer.param_groups[0]["params"]))
        yield 1


def _two(
    kind: str,
    begin: Callable[[Task, _Settings], _Direction],
    task: Task,
    settings: _Settings,
) -> Iterator[int]:
    """Steps along a direction made of both gradients."""
    direction = begin(task, settings)
    for step, optimizer in scheduled(task, task.steps):
        lower, upper = task.batches(step)
        parameters = optimizer.param_groups[0]["params"]
        g = task.lower(task.model, lower)
        retain = list(torch.autograd.grad(g, parameters))
        forget = list(
            torch.autograd.grad(
                task.extra["forget"](kind, task.model, upper), parameters
            )
        )
        move(optimizer, direction(forget, retain, g.detach()))
        yield 2


def _weighted(task: Task, settings: _Settings) -> _Direction:
    weight = settings["weight"]
    return lambda forget, retain, g: [
        (u + weight * v) / (1 + weight) for u, v in zip(forget, retain, strict=True)
    ]


def _pdu(task: Task, settings: _Settings) -> _Direction:
    """λ ← [λ + c (g − ε)]₊ from 1; ε is what the retain loss of the first batches may be."""
    with torch.no_grad():
        limit = (
            sum(task.lower(task.model, task.batches(k)[0]) for k in range(4)) / 4
            + settings["slack"]
        )
    multiplier = torch.ones_like(torch.as_tensor(limit))

    def direction(
        forget: list[Tensor], retain: list[Tensor], g: Tensor
    ) -> list[Tensor]:
        made = [u + multiplier * v for u, v in zip(forget, retain, strict=True)]
        multiplier.add_(settings["gain"] * (g - limit)).clamp_(min=0)
        return made

    return direction


def _blur(task: Task, settings: _Settings) -> _Direction:
    """The retain gradient less its part along the forget gradient, and w times the latter: forgetting comes first."""

    def direction(
        forget: list[Tensor], retain: list[Tensor], g: Tensor
    ) -> list[Tensor]:
        along = sum((u * v).sum() for u, v in zip(forget, retain, strict=True))
        length = sum(u.square().sum() for u in forget) + 1e-30
        weight = settings["weight"] - along / length
        return [v + weight * u for u, v in zip(forget, retain, strict=True)]

    return direction


_WEIGHTS = tuple({"weight": weight} for weight in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0))

#: Tuned like the others: by the gallery's upper loss, among trials inside the tolerance.
METHODS = (
    OwnMethod(
        "gradient ascent", "Ascent on the loss of what has to go alone; the learning rate is swept.", _ascending,
        tuple({"rate": rate} for rate in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    ),
    OwnMethod(
        "gradient difference", "Ascent on the loss of what has to go and w times descent on g.",
        partial(_two, "ascent", _weighted), _WEIGHTS,
    ),
    OwnMethod("NPO", "Negative preference optimisation, and w g.", partial(_two, "npo", _weighted), _WEIGHTS),
    OwnMethod(
        "PDU, its own loss", "The squared distance of the largest logit from the mean one, and λ g; λ by dual ascent.",
        partial(_two, "flat", _pdu), tuple({"gain": gain, "slack": 0.03} for gain in (0.1, 1.0, 10.0, 100.0)),
    ),
    OwnMethod(
        "BLUR, its own order", "Forgetting (NPO) comes first: ∇g less its part along ∇f, and w ∇f.",
        partial(_two, "npo", _blur), _WEIGHTS,
    ),
)  # fmt: skip
