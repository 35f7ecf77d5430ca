"""The backward passes of a step: blocks and closures, from which the gradients and losses of both levels come.

A block, ``with opt.lower(loss): loss.backward()``, encloses a backward pass of the user. A closure returns its loss, and
:meth:`BackwardPasses.run` makes the pass. Nothing here moves a parameter.

A step may consist of micro-batches. A loss with a graph counts with the factor of its backward pass: ``with
opt.lower(loss): (loss / n).backward()`` adds up to the mean, and a gradient scaler's factor is taken out again. A number
without a graph counts as the mean loss of its micro-batch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.torch.distributed.layout import full_tensor
from tiebreak.torch.gradients import (
    REFERENCE,
    GradientChanged,
    Gradients,
    NoGradient,
)

#: A number of the host, or a tensor without dimensions where the host would have to wait for it.
Number: TypeAlias = float | Tensor
#: A function that returns the loss of a level, made of the parameters by a forward pass of its own.
Closure: TypeAlias = Callable[[], Tensor]


class BackwardPasses:
    """The gradients and losses of a step, as the backward passes of its blocks leave them.

    Parameters
    ----------
    gradients : Gradients

    Attributes
    ----------
    losses : StepLosses
    active_level : str
        The level of the open block; "" outside of blocks.
    has_scaler : bool or None
        Whether a gradient scaler looks at ``.grad``; None until a step shows it.
    """

    def __init__(self, gradients: Gradients) -> None:
        self.gradients = gradients
        self.losses = StepLosses()
        self.active_level = ""
        self.has_scaler: bool | None = None

    def clear(self) -> None:
        """Discard the gradients and losses of the step."""
        self.losses.clear()
        self.gradients.clear()
        self.active_level = ""

    @contextmanager
    def reference_in_place(self) -> Iterator[None]:
        """Note that the model has the values of its reference, without a backward pass."""
        self.active_level = REFERENCE
        try:
            yield
        finally:
            self.active_level = ""

    @contextmanager
    def block(
        self,
        level: str,
        loss: Number | None = None,
        reference: Number | None = None,
        weight: float = 1.0,
        factor: float | None = None,
    ) -> Iterator[None]:
        """Enclose the backward passes of a level; `factor` is that of a pass that the optimizer makes."""
        if self.active_level:
            raise RuntimeError(
                f"opt.{level}() was entered inside opt.{self.active_level}(); leave one level before the other"
            )
        if loss is not None:
            loss = single_loss(f"the {level} loss", loss)
        if reference is not None:
            reference = single_loss("the reference loss", reference)
        weight = positive_weight(weight)
        self.gradients.enter(level)
        self.active_level = level
        # The hook receives d(backward)/d(loss), the factor of the loss in its backward pass.
        factors: list[Tensor] = []
        has_graph = isinstance(loss, Tensor) and loss.requires_grad
        handle = None
        if isinstance(loss, Tensor) and has_graph and factor is None:
            handle = loss.register_hook(factors.append)  # type: ignore[no-untyped-call]  # torch's
        try:
            yield
            measured: Number | None = factor if has_graph else None
            if factors:
                measured = _total(factors)
            self.losses.add(level, loss, reference, weight, measured)
            self.gradients.leave(level)
        except BaseException:
            # Discard the incomplete step, so that the next one starts cleanly.
            self.clear()
            raise
        finally:
            self.active_level = ""
            if handle is not None:
                handle.remove()
        if self.has_scaler is not False:
            self.gradients.show_nonfinite()

    def run(
        self, level: str, closure: Closure, reference: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a closure, after its backward pass; `reference` is the reference's loss."""
        if level == REFERENCE:
            name = "lower"
        else:
            name = level
        loss = returned_loss(name, closure())
        if level == REFERENCE:
            noted = None
        else:
            noted = loss
        try:
            with self.block(level, noted, reference, factor=1.0):
                _propagate(name, loss)
        except GradientChanged:  # by the closure, which alone ran since
            raise RuntimeError(f"{_advice(name)}.") from None
        except NoGradient:
            raise RuntimeError(
                f"the {name} closure's loss does not depend on the parameters of this optimizer: was the model copied "
                "or re-created after the optimizer was made? are its parameters frozen (requires_grad=False)?"
            ) from None
        return loss


def check_closures(closure: object, upper: object, lower: object) -> None:
    """Raise unless both levels have a closure, or none has, and each is a function."""
    if (upper is None) != (lower is None):
        raise TypeError("step(upper=…, lower=…) needs both closures")
    for name, function in (("closure", closure), ("upper", upper), ("lower", lower)):
        if function is not None and not callable(function):
            text = f"{name}={type(function).__name__}"
            raise TypeError(
                f"step({text}): give a function that returns the loss, {name}=lambda: loss(model, batch)"
            )


def returned_loss(level: str, loss: object) -> Tensor:
    """Return what a closure returned; raise unless it is a loss."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    text = type(loss).__name__
    if isinstance(loss, Tensor):
        text = f"a tensor of shape {tuple(loss.shape)}"
    raise TypeError(
        f"the {level} closure returned {text}; it must return its loss, one number, as a tensor with its graph "
        "(no .item())"
    )


def check_repeatable(first: Tensor, second: Tensor) -> None:
    """Raise if the lower closure gave two losses at one point with the same random numbers: it draws another batch."""
    one = float(first)
    two = float(second)
    # A device may sum in another order; other batches differ by more.
    if abs(one - two) > 1e-3 * max(abs(one), abs(two)):
        raise RuntimeError(
            f"the lower closure gave {one:.6g} and {two:.6g} at the same point; the reference is evaluated on the same "
            "batch, so it must give the same loss again: draw the batch outside the closure, or name its random "
            "generators, generators=[…]"
        )


def _advice(level: str) -> str:
    return (
        f"the {level} closure must return its loss, made of the parameters by a forward pass of its own, and not call "
        "backward itself: return the loss; the optimizer calls backward"
    )


def _propagate(level: str, loss: Tensor) -> None:
    """Call backward on a closure's loss."""
    if not loss.requires_grad:
        raise RuntimeError(
            f"{_advice(level)}. What it returned has no graph: no .detach(), no torch.no_grad(), and not all "
            "parameters frozen (requires_grad=False)"
        )
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        text = (
            f"{_advice(level)}. To share one forward pass, use blocks, and backward(retain_graph=True) in the "
            "first."
        )
        if "backward through the graph a second time" in str(error):
            raise RuntimeError(text) from error
        error.add_note(text)
        raise


# --- losses ---------------------------------------------------------------------


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
        if isinstance(number, Tensor):
            self._version = number._version
        else:
            self._version = 0

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
        factor: Number | None,
    ) -> None:
        """Add the loss of a block of this level, and the reference's loss; a loss without a graph has no factor."""
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
                f"the {name} loss has the factor {factor:g} in its backward pass; a negated loss? pass the loss to minimise"
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
    if isinstance(loss, WeightedLoss):
        return loss.value()
    return loss


def loss_values(losses: Mapping[str, Loss]) -> dict[str, Number | None]:
    """Return losses by name, each times its factor."""
    return {name: loss_value(loss) for name, loss in losses.items()}


def _total(factors: Sequence[Tensor]) -> Number:
    """The sum of the factors of a block's backward passes."""
    if len(factors) == 1:
        return _number(factors[0])
    return _number(sum(_in_wide_precision(full_tensor(f)) for f in factors))


def _number(value: Number) -> Number:
    """A Python number if the host can read the tensor at once, which is fast and exact; otherwise a tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    number = value.detach()
    if type(number) is not Tensor:
        number = full_tensor(number)
    if number.device.type == "cpu" and not torch.compiler.is_compiling():
        return float(number.item())
    if number.dim():
        return number.reshape(())
    return number


def _in_wide_precision(value: Any) -> Any:
    """A tensor in float64 if that costs nothing, otherwise in float32 or wider; a number as it is."""
    if not isinstance(value, Tensor):
        return value
    is_double = value.dtype == torch.float64 or value.device.type == "cpu"
    return value.reshape(()).to(torch.float64 if is_double else torch.float32)
