"""What was said of the losses of a step: the numbers that a tolerance, a rule or a log needs.

A step may be made of micro-batches. A loss that autograd knows counts with the factor that its backward pass gave it:
``with opt.lower(loss): (loss / n).backward()`` adds up to the mean, and a gradient scaler's factor is known, too. A
number without a graph is taken as the mean loss of its micro-batch.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.torch.distributed.layout import whole


def single(name: str, loss: Any) -> Any:
    """The loss, if it is one number: a tensor of one element, or a Python number."""
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ValueError(
                f"{name} has shape {tuple(loss.shape)}; a loss must be one number: take its mean or sum"
            )
        if loss.is_complex():
            raise TypeError(f"{name} is complex; a loss must be one real number")
        return loss
    if isinstance(loss, bool) or not isinstance(loss, Real):
        raise TypeError(
            f"{name} is a {type(loss).__name__}; a loss must be a tensor of one element, or a number"
        )
    return floating(loss)


def positive_weight(weight: Any) -> float:
    """The weight of a micro-batch, checked."""
    if (
        isinstance(weight, bool)
        or not isinstance(weight, Real)
        or not 0 < floating(weight) < math.inf
    ):
        raise ValueError(f"weight={weight!r} must be a number, finite and > 0")
    return float(weight)


def returned(level: str, loss: object) -> Tensor:
    """What a closure returned, if it is a loss."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    what = (
        f"a tensor of shape {tuple(loss.shape)}"
        if isinstance(loss, Tensor)
        else type(loss).__name__
    )
    raise TypeError(
        f"the {level} closure returned {what}; it must return its loss, one number, as a tensor with its graph "
        "(no .item())"
    )


def itself(level: str) -> str:
    """What to say of a closure that calls backward itself."""
    return (
        f"the {level} closure must return its loss, made of the parameters by a forward pass of its own, and not call "
        "backward itself: return the loss; the optimizer calls backward"
    )


def propagate(level: str, loss: Tensor) -> None:
    """The backward pass of a closure's loss."""
    legal = itself(level)
    if not loss.requires_grad:
        raise RuntimeError(
            f"{legal}. What it returned has no graph: no .detach(), no torch.no_grad(), and not all "
            "parameters frozen (requires_grad=False)"
        )
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        shared = "One forward pass for both: blocks, the first with backward(retain_graph=True)."
        if "backward through the graph a second time" in str(error):
            raise RuntimeError(f"{legal}. {shared}") from error
        error.add_note(f"{legal}. {shared}")
        raise


class Losses:
    """The losses of one step, by name: "upper", "lower" and "reference"."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A step is over."""
        self._blocks = {"upper": 0, "lower": 0, "reference": 0}
        self._given: dict[
            str, list[bool]
        ] = {}  # by name, a truth for each time: whether autograd knows the loss
        self._graph: dict[
            str, Any
        ] = {}  # Σ factor · loss; the factors hold a scaler's scale
        self._mean: dict[str, tuple[Any, float]] = {}  # Σ weight · number and Σ weight

    @contextmanager
    def watch(
        self,
        level: str,
        loss: Any,
        reference: Any,
        weight: float,
        factor: float | None = None,
    ) -> Iterator[None]:
        """Around a backward pass: what enters the gradients, by how much, and what it is compared with.

        The factor is known where the backward pass is ours.
        """
        factors: list[Tensor] = []
        known = isinstance(loss, Tensor) and loss.requires_grad
        handle = (
            loss.register_hook(factors.append) if known and factor is None else None
        )
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()
        found = factor if known else None
        if factors:
            found = _number(
                factors[0].detach()
                if len(factors) == 1
                else sum(_widened(whole(f)) for f in factors)
            )
        self._blocks[level] += 1
        for name, value in ((level, loss), ("reference", reference)):
            if value is not None:
                self._given.setdefault(name, []).append(found is not None)
                self._add(name, value, found, weight)

    def _add(self, name: str, value: Any, factor: Any, weight: float) -> None:
        if (
            isinstance(factor, float) and factor < 0
        ):  # seen here where the host can look; elsewhere by the guard
            raise ValueError(
                f"the {name} loss has the factor {factor:g} in its backward pass: give the loss that falls"
            )
        number = _number(value.detach()) if isinstance(value, Tensor) else value
        if factor is None:
            total, weights = self._mean.get(name, (0.0, 0.0))
            self._mean[name] = (total + weight * _widened(number), weights + weight)
        else:
            term = Term(number, factor)
            before = self._graph.get(name)
            self._graph[name] = (
                term if before is None else Term(before.value() + term.value(), 1.0)
            )

    def value(self, name: str, inverse_scale: Any) -> Any:
        """The loss of the step, a number, a tensor or a product yet to be made, or None.

        `inverse_scale` is 1 over a scaler's scale, or None.
        """
        given, blocks = (
            self._given.get(name, []),
            self._blocks["upper" if name == "upper" else "lower"],
        )
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
        if name not in self._graph:
            total, weights = self._mean[name]
            return total / weights
        term = self._graph[name]
        if inverse_scale is None:
            return term
        loss = term.value()
        home = loss.device if isinstance(loss, Tensor) else "cpu"
        return loss * _number(inverse_scale.to(home))


class Term:
    """A loss and the factor of its backward pass; multiplied when somebody asks, or by the kernel that needs it.

    Parameters
    ----------
    number, factor : float or tensor
        Numbers where the host can look without waiting, tensors on a device.
    """

    def __init__(self, number: Any, factor: Any) -> None:
        self.factor, self._number = factor, number
        self._version = number._version if isinstance(number, Tensor) else 0

    @property
    def number(self) -> Any:
        """The loss as it was given."""
        if isinstance(self._number, Tensor) and self._number._version != self._version:
            raise RuntimeError(
                "a loss was changed in place between its block and the step: change a copy of it"
            )
        return self._number

    def value(self) -> Any:
        """Their product; a negative factor makes it no number."""
        number, factor = _widened(self.number), self.factor
        if isinstance(factor, Tensor):
            factor = _widened(factor)
            factor = torch.where(factor < 0, torch.nan, factor)
            number = number.to(factor.device) if isinstance(number, Tensor) else number
        return number if isinstance(factor, float) and factor == 1 else factor * number


def loss_values(losses: dict[str, Any]) -> dict[str, Any]:
    """The losses by name, each times its factor."""
    return {
        name: loss.value() if isinstance(loss, Term) else loss
        for name, loss in losses.items()
    }


def _number(tensor: Tensor) -> Any:
    """One number: of Python where it is on the host, which is sooner and exact, else of the device."""
    tensor = whole(tensor)
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling():
        return tensor.item()
    return tensor.reshape(()) if tensor.dim() else tensor


def _widened(value: Any) -> Any:
    """In float64 where that costs nothing, else in float32 or wider."""
    if not isinstance(value, Tensor):
        return value
    wide = (
        torch.float64
        if value.dtype == torch.float64 or value.device.type == "cpu"
        else torch.float32
    )
    return value.reshape(()).to(wide)
