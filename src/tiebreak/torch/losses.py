"""The losses of a step: the numbers that a tolerance, a rule or a log needs.

A step may consist of micro-batches. A loss with a graph counts with the factor of its backward pass: ``with
opt.lower(loss): (loss / n).backward()`` adds up to the mean, and a gradient scaler's factor is taken out again. A number
without a graph counts as the mean loss of its micro-batch.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.torch.distributed.layout import full_tensor

#: A number of the host, or a tensor without dimensions where the host would have to wait for it.
Number: TypeAlias = float | Tensor


def single_loss(name: str, loss: object) -> Number:
    """Return the loss if it is one number; raise otherwise."""
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


def positive_weight(weight: object) -> float:
    """Return the weight of a micro-batch; raise unless it is finite and > 0."""
    if type(weight) is float and 0 < weight < math.inf:
        return weight
    is_number = isinstance(weight, Real) and not isinstance(weight, bool)
    if not is_number or not 0 < floating(weight) < math.inf:
        raise ValueError(f"weight={weight!r} must be a number, finite and > 0")
    return floating(weight)


class WeightedLoss:
    """A loss and the factor of its backward pass. The product is computed on demand, or by the kernel that needs it.

    Parameters
    ----------
    number, factor : float or tensor
        Numbers if the host can read them without waiting, tensors on a device otherwise.
    """

    def __init__(self, number: Number, factor: Number) -> None:
        self.factor = factor
        self._number = number
        self._version = number._version if isinstance(number, Tensor) else 0

    @property
    def number(self) -> Number:
        """The loss as it was given."""
        changed = (
            isinstance(self._number, Tensor) and self._number._version != self._version
        )
        if changed:
            raise RuntimeError(
                "a loss was changed in place between its block and the step: change a copy of it"
            )
        return self._number

    def value(self) -> Number:
        """Return factor · number; a negative factor on a device gives NaN."""
        number: Number = _in_wide_precision(self.number)
        factor = self.factor
        if isinstance(factor, Tensor):
            factor = _in_wide_precision(factor)
            factor = torch.where(factor < 0, torch.nan, factor)
            if isinstance(number, Tensor):
                number = number.to(factor.device)
        elif factor == 1:
            return number
        product: Number = factor * number
        return product


#: A loss of a step; None if the loss was not given.
Loss: TypeAlias = Number | WeightedLoss | None


class _Mean(NamedTuple):
    """Σ weight · number and Σ weight of losses without a graph."""

    total: Number = 0.0
    weights: float = 0.0


class StepLosses:
    """The losses of one step, by name: "upper", "lower" and "reference"."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard the losses of the step."""
        self._blocks = {"upper": 0, "lower": 0, "reference": 0}
        # For each block with a loss: whether the loss has a graph.
        self._has_graph: dict[str, list[bool]] = {}
        # Σ factor · loss; the factors contain a scaler's scale.
        self._weighted: dict[str, WeightedLoss] = {}
        self._means: dict[str, _Mean] = {}

    def add(
        self,
        level: str,
        loss: Number | None,
        reference: Number | None,
        weight: float,
        factors: Sequence[Number],
    ) -> None:
        """Add the loss of a block of this level, and the reference's loss.

        `factors` are those of the block's backward passes; there are none for a loss without a graph.
        """
        factor: Number | None = None
        if len(factors) == 1:
            factor = _number(factors[0])
        elif factors:
            factor = _number(sum(_in_wide_precision(full_tensor(f)) for f in factors))
        self._blocks[level] += 1
        for name, value in ((level, loss), ("reference", reference)):
            if value is not None:
                self._has_graph.setdefault(name, []).append(factor is not None)
                self._add(name, value, factor, weight)

    def _add(
        self, name: str, value: Number, factor: Number | None, weight: float
    ) -> None:
        # On a device the factor is checked by WeightedLoss.value.
        if isinstance(factor, float) and factor < 0:
            raise ValueError(
                f"the {name} loss has the factor {factor:g} in its backward pass: give the loss that falls"
            )
        number = _number(value)
        if factor is None:
            mean = self._means.get(name, _Mean())
            total = mean.total + weight * _in_wide_precision(number)
            self._means[name] = _Mean(total, mean.weights + weight)
            return
        loss = WeightedLoss(number, factor)
        before = self._weighted.get(name)
        if before is not None:
            loss = WeightedLoss(before.value() + loss.value(), 1.0)
        self._weighted[name] = loss

    def value(self, name: str, inverse_scale: Tensor | None) -> Loss:
        """Return a loss of the step, or None if nobody gave it.

        `inverse_scale` is 1 over a gradient scaler's scale.
        """
        has_graph = self._has_graph.get(name, [])
        blocks = self._blocks["upper" if name == "upper" else "lower"]
        if not has_graph:
            return None
        if len(has_graph) != blocks:
            raise RuntimeError(
                f"the {name} loss was given in {len(has_graph)} of {blocks} blocks of this step: give it in each or "
                "none"
            )
        if any(has_graph) != all(has_graph):
            raise RuntimeError(
                f"the {name} loss was given as a number in one block and as a tensor in another, or a block with a "
                "loss ran no backward pass: do the same in each"
            )
        if name not in self._weighted:
            mean = self._means[name]
            return mean.total / mean.weights
        loss = self._weighted[name]
        if inverse_scale is None:
            return loss
        number = loss.value()
        home = number.device if isinstance(number, Tensor) else "cpu"
        unscaled: Number = number * _number(inverse_scale.to(home))
        return unscaled


def loss_value(loss: Loss) -> Number | None:
    """Return a loss as one number, times its factor."""
    return loss.value() if isinstance(loss, WeightedLoss) else loss


def loss_values(losses: Mapping[str, Loss]) -> dict[str, Number | None]:
    """Return losses by name, each times its factor."""
    return {name: loss_value(loss) for name, loss in losses.items()}


def _number(value: Number) -> Number:
    """A Python number if the host can read the tensor at once, which is fast and exact; otherwise a tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    number = value.detach()
    if type(number) is not Tensor:
        number = full_tensor(number)
    if number.device.type == "cpu" and not torch.compiler.is_compiling():
        return float(number.item())
    return number.reshape(()) if number.dim() else number


def _in_wide_precision(value: Any) -> Any:
    """A tensor in float64 if that costs nothing, otherwise in float32 or wider; a number as it is."""
    if not isinstance(value, Tensor):
        return value
    is_double = value.dtype == torch.float64 or value.device.type == "cpu"
    return value.reshape(()).to(torch.float64 if is_double else torch.float32)
