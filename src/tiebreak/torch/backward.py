"""The backward passes of a step: blocks and closures, from which the gradients and losses of both levels come.

A block, ``with opt.lower(loss): loss.backward()``, encloses a backward pass of the user. A closure returns its loss, and
:meth:`BackwardPasses.run` makes the pass. Nothing here moves a parameter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from tiebreak.torch.gradients import (
    REFERENCE,
    GradientChanged,
    Gradients,
    NoGradient,
)
from tiebreak.torch.losses import Number, StepLosses, positive_weight, single_loss

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
        Whether a gradient scaler looks at ``.grad``; None before the first step.
    """

    def __init__(self, gradients: Gradients) -> None:
        self.gradients = gradients
        self.losses = StepLosses()
        self.active_level = ""
        self.has_scaler: bool | None = None

    def clear(self) -> None:
        """Discard the gradients and losses of the step."""
        self.gradients.clear()
        self.losses.clear()

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
        factors: list[Tensor] = []
        has_graph = isinstance(loss, Tensor) and loss.requires_grad
        handle = None
        if isinstance(loss, Tensor) and has_graph and factor is None:
            handle = loss.register_hook(factors.append)  # type: ignore[no-untyped-call]  # torch's
        try:
            yield
            if factor is not None and has_graph:
                self.losses.add(level, loss, reference, weight, [factor])
            else:
                self.losses.add(level, loss, reference, weight, factors)
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
        name = "lower" if level == REFERENCE else level
        loss = returned_loss(name, closure())
        noted = None if level == REFERENCE else loss
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
            f"{_advice(level)}. One forward pass for both: blocks, the first with "
            "backward(retain_graph=True)."
        )
        if "backward through the graph a second time" in str(error):
            raise RuntimeError(text) from error
        error.add_note(text)
        raise
