"""What was said of the losses of a step: the numbers that a tolerance, a rule or a log needs.

A step may be made of micro-batches. A loss that autograd knows counts with the factor that its backward pass gave it:
``with opt.lower(loss): (loss / n).backward()`` adds up to the mean, and a gradient scaler's factor is known, too. A
number without a graph is taken as the mean loss of its micro-batch.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Losses", "positive_weight", "propagate", "single", "warn_ranks"]


def single(name: str, loss: Any) -> Any:
    """The loss, if it is one number: a tensor of one element, or a Python number."""
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ValueError(f"{name} has shape {tuple(loss.shape)}; a loss must be one number: take its mean or sum")
        if loss.is_complex():
            raise TypeError(f"{name} is complex; a loss must be one real number")
        return loss
    if isinstance(loss, bool) or not isinstance(loss, Real):
        raise TypeError(f"{name} is a {type(loss).__name__}; a loss must be a tensor of one element, or a number")
    return float(loss)


def positive_weight(weight: Any) -> float:
    """The weight of a micro-batch, checked."""
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
        raise ValueError(f"weight={weight!r} must be a number, finite and > 0")
    return float(weight)


def propagate(level: str, loss: Tensor) -> None:
    """The backward pass of a closure's loss."""
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        error.add_note(
            f"The {level} closure must return its loss, made of the parameters, and not call backward itself."
        )
        raise


class Losses:
    """The losses of one step, by name: "upper", "lower" and "reference"."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A step is over."""
        self._blocks = {"upper": 0, "lower": 0, "reference": 0}
        self._given: dict[str, list[bool]] = {}  # by name, a truth for each time: whether autograd knows the loss
        self._graph: dict[str, Any] = {}  # Σ factor · loss; the factors hold a scaler's scale
        self._mean: dict[str, tuple[Any, float]] = {}  # Σ weight · number and Σ weight

    @contextmanager
    def watch(self, level: str, loss: Any, reference: Any, weight: float) -> Iterator[None]:
        """Around a backward pass: what enters the gradients, by how much, and what it is compared with."""
        factors: list[Tensor] = []
        known = isinstance(loss, Tensor) and loss.requires_grad
        handle = loss.register_hook(factors.append) if known else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()
        factor = sum(f.detach().to(_wide(f)).reshape(()) for f in factors) if factors else None
        self._blocks[level] += 1
        for name, value in ((level, loss), ("reference", reference)):
            if value is not None:
                self._given.setdefault(name, []).append(factor is not None)
                self._add(name, value, factor, weight)

    def _add(self, name: str, value: Any, factor: Any, weight: float) -> None:
        if factor is not None:  # seen here where the host can look; elsewhere by the guard
            if factor.device.type == "cpu" and float(factor) < 0:
                raise ValueError(
                    f"the {name} loss has the factor {float(factor):g} in its backward pass: give the loss that falls"
                )
            factor = torch.where(factor < 0, torch.nan, factor)
        number = value.detach().reshape(()).to(_wide(value)) if isinstance(value, Tensor) else value
        if factor is None:
            total, weights = self._mean.get(name, (0.0, 0.0))
            self._mean[name] = (total + weight * number, weights + weight)
        else:
            here = number.to(factor.device) if isinstance(number, Tensor) else number
            self._graph[name] = self._graph.get(name, 0.0) + factor * here

    def value(self, name: str, inverse_scale: Any) -> Any:
        """The loss of the step, a tensor or a number, or None; `inverse_scale` is 1 over a scaler's scale, or None."""
        given, blocks = self._given.get(name, []), self._blocks["upper" if name == "upper" else "lower"]
        if not given:
            return None
        if len(given) != blocks:
            raise RuntimeError(
                f"the {name} loss was given in {len(given)} of {blocks} blocks of this step: give it in each or none"
            )
        if any(given) != all(given):
            raise RuntimeError(
                f"the {name} loss was given as a number in one block and as a tensor in another, or a block with a "
                "loss ran no backward pass: do the same in each"
            )
        if name in self._graph:
            found = self._graph[name]
            return found if inverse_scale is None else found * inverse_scale.to(found.device)
        total, weights = self._mean[name]
        return total / weights


def _wide(tensor: Tensor) -> torch.dtype:
    """Losses add up in float64 where that costs nothing, else in float32 or wider."""
    return torch.float64 if tensor.dtype == torch.float64 or tensor.device.type == "cpu" else torch.float32


def warn_ranks() -> None:
    """Gradients are averaged over ranks, losses are not; a multiplier made of one's own loss is nobody else's."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        text = "every rank gives its own lower loss, and the multipliers will differ: give the mean over all ranks"
        warnings.warn(text + ", opt.lower(mean) (said once, whether or not you do)", RuntimeWarning, stacklevel=7)
