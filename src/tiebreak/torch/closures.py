"""Closures: checks of what a step is given to call, and the backward pass of a closure's loss."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

#: A function that returns the loss of a level, made of the parameters by a forward pass of its own.
Closure: TypeAlias = Callable[[], Tensor]


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


def advice(level: str) -> str:
    """Return the sentence about a closure that calls backward itself."""
    return (
        f"the {level} closure must return its loss, made of the parameters by a forward pass of its own, and not call "
        "backward itself: return the loss; the optimizer calls backward"
    )


def propagate(level: str, loss: Tensor) -> None:
    """Call backward on a closure's loss."""
    if not loss.requires_grad:
        raise RuntimeError(
            f"{advice(level)}. What it returned has no graph: no .detach(), no torch.no_grad(), and not all "
            "parameters frozen (requires_grad=False)"
        )
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        text = (
            f"{advice(level)}. One forward pass for both: blocks, the first with "
            "backward(retain_graph=True)."
        )
        if "backward through the graph a second time" in str(error):
            raise RuntimeError(text) from error
        error.add_note(text)
        raise


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
