"""Projections of one gradient off the other, as their authors' papers have them; ours to write, hence "-style"."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery.methods.method import (
    BACKWARD,
    WEIGHTS,
    Closure,
    Knobs,
    Method,
    Seen,
    Setting,
    Step,
)

__all__ = ["BLOOP", "BLUR", "PCGRAD"]

_EMA = 0.01  # the newest gradient's weight in Bloop's average
_TINY = 1e-30  # where a gradient is 0, nothing is projected

Gradients = list[Tensor]
#: (∇f/unit, ∇g) → the direction, and its weight on ∇g
Direction = Callable[[Gradients, Gradients], tuple[Gradients, Any]]


def _dot(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    return torch.stack([(u * v).sum() for u, v in zip(one, two, strict=True)]).sum()


def _plus(one: Sequence[Tensor], two: Sequence[Tensor], factor: Any) -> Gradients:
    return [u + factor * v for u, v in zip(one, two, strict=True)]


def _apart(setting: Setting, direction: Direction) -> Step:
    """A step along `direction` of both gradients, divided by 1 + its weight on ∇g."""

    def step(upper: Closure, lower: Closure) -> Seen:
        ps = setting.parameters
        g = lower()
        b = list(torch.autograd.grad(g, ps, materialize_grads=True))
        f = upper()
        a = [
            u / setting.unit for u in torch.autograd.grad(f, ps, materialize_grads=True)
        ]
        d, weight = direction(a, b)
        for p, u in zip(ps, d, strict=True):
            p.grad = u / (1 + weight)
        setting.optimizer.step()
        return Seen(g.detach(), f.detach(), weight)

    return step


def _pcgrad(setting: Setting, knobs: Knobs) -> Step:
    weight = knobs["weight"]

    def direction(a: Gradients, b: Gradients) -> tuple[Gradients, float]:
        conflict = _dot(a, b).clamp(max=0)
        upper = _plus(a, b, -conflict / (_dot(b, b) + _TINY))
        lower = _plus(b, a, -conflict / (_dot(a, a) + _TINY))
        return _plus(upper, lower, weight), weight

    return _apart(setting, direction)


def _bloop(setting: Setting, knobs: Knobs) -> Step:
    weight = knobs["weight"]
    average: Gradients = []

    def direction(a: Gradients, b: Gradients) -> tuple[Gradients, float]:
        average[:] = (
            [m + _EMA * (v - m) for m, v in zip(average, b, strict=True)]
            if average
            else [*b]
        )
        along = _dot(a, average) / (_dot(average, average) + _TINY)
        return _plus(_plus(a, average, -along), b, weight), weight

    return _apart(setting, direction)


def _blur(setting: Setting, knobs: Knobs) -> Step:
    def direction(a: Gradients, b: Gradients) -> tuple[Gradients, Tensor]:
        weight = knobs["weight"] - _dot(a, b) / (_dot(b, b) + _TINY)  # no positive part
        longer = weight.clamp(min=0)
        return _plus(a, b, weight), longer

    return _apart(setting, direction)


_GRID = tuple({"weight": weight} for weight in WEIGHTS)

PCGRAD = Method(
    "PCGrad-style", "Where the gradients conflict each loses its part along the other; then ∇f + w ∇g.", _pcgrad,
    2 * BACKWARD, _GRID,
)  # fmt: skip
BLOOP = Method(
    "Bloop-style",
    "w ∇g + ∇f less its part along an average of ∇g (weight 0.01).",
    _bloop,
    2 * BACKWARD,
    _GRID,
)
BLUR = Method(
    "BLUR-style",
    "∇f + λ ∇g, λ = w − ⟨∇f,∇g⟩/‖∇g‖², of either sign.",
    _blur,
    2 * BACKWARD,
    _GRID,
)
