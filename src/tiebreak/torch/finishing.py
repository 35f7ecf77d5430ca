"""The end of a training: the model moved along the line from its reference to where the tolerance is kept and used.

:mod:`tiebreak.finishing` searches; here are the line, through parameters and buffers, and the measuring on it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiebreak.finishing import Finish, total
from tiebreak.finishing import finish as search_line
from tiebreak.torch.context import RandomState
from tiebreak.torch.exchange import let_go
from tiebreak.torch.layout import local
from tiebreak.torch.losses import single

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["finish"]


class _Line:
    """The line from an anchor to the model as it is now.

    Parameters
    ----------
    pairs : iterable of pairs of tensors
        A parameter or buffer of the model, and the anchor's value of it.
    """

    def __init__(self, optimizer: "DynamicBarrier", pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._optimizer = optimizer
        let_go(optimizer)
        both = [(local(here.detach()), local(there.detach())) for here, there in pairs]
        # Counters of batches and the like have no place between two values: they stay the model's, whatever a pass
        # makes of them.
        self._ends = [
            (here, kept, there if here.is_floating_point() else kept)
            for here, there in both
            for kept in (here.clone(),)
        ]

    @torch.no_grad()
    def go(self, place: float) -> None:
        """Set the model to a place; at 0 and 1 to the ends themselves, bit for bit."""
        let_go(self._optimizer)
        for here, end, anchor in self._ends:
            if place in (0.0, 1.0) or anchor is end:
                here.copy_(end if place else anchor)
            else:
                wide = torch.promote_types(here.dtype, torch.float32)
                begin = anchor.to(here.device, wide)
                here.copy_(begin + place * (end.to(wide) - begin))
        torch.clear_autocast_cache()


def finish(optimizer: "DynamicBarrier", lower: Any, upper: Any, anchor: Any, model: Any) -> Finish:
    """What :meth:`DynamicBarrier.finish` does; whatever happens, the model is at one place of the line afterwards."""
    tolerance = optimizer.decision.tolerance
    if tolerance is None:
        raise RuntimeError("opt.finish() is for an optimizer with tolerance=: without one there is nothing to keep to")
    for name, loss in (("lower", lower), ("upper", upper)):
        if not callable(loss) and not (loss is None and name == "upper"):
            raise TypeError(
                f"finish({name}={type(loss).__name__}): give a function that returns the loss over all data"
            )
    if optimizer._active or optimizer._held is not None or optimizer.gradients.seen:
        raise RuntimeError(
            "opt.finish() comes after a step, not within one: opt.step(), or opt.zero_grad(), comes first"
        )
    optimizer.check()
    home = next(iter(optimizer.gradients.parameters())).device
    optimizer.ranks.look(list(optimizer.gradients.parameters()))
    random = RandomState(optimizer.generators)
    line = _Line(optimizer, _pairs(optimizer, anchor, model))

    def measure(place: float, both: bool) -> tuple[float, float]:
        line.go(place)
        found = []
        for name, loss in (("lower", lower), ("upper", upper if both else None)):
            random.restore()
            with torch.no_grad():
                found.append(math.nan if loss is None else total(name, loss(), _number))
        below, above = optimizer.ranks.mean(found, home)
        return below, above

    # A reference that moves is known where its model is: at the anchor, on these data.
    at, ended = optimizer.target.at, 1.0
    reference = None if tolerance.moving or at is None else float(at(optimizer.count))
    try:
        found = search_line(measure, (tolerance.amount, tolerance.relative), reference, stacklevel=5)
        ended = found.place
    finally:
        line.go(ended)
        random.restore()
    return found


def _number(name: str, loss: Any) -> float:
    return float(single(name, loss))


def _pairs(optimizer: "DynamicBarrier", anchor: Any, model: Any) -> list[tuple[Tensor, Tensor]]:
    """Parameters and buffers of the model, each with its value in the anchor."""
    copy = optimizer.target.copy
    if copy is None:
        return _given(optimizer, anchor, model)
    if anchor is not None or model is not None:
        raise ValueError(f"anchor= and model= have no effect with reference={optimizer.target}: that is the anchor")
    if not copy.begun:
        raise RuntimeError("opt.finish() comes after the last step: no step was made yet")
    return [*copy.reached().items(), *copy.buffers.pairs()]


def _given(optimizer: "DynamicBarrier", anchor: Any, model: Any) -> list[tuple[Tensor, Tensor]]:
    if anchor is None or not isinstance(model, nn.Module):
        raise TypeError(
            f"reference={optimizer.target} has no copy of the model to begin the line at: opt.finish(…, anchor=a model "
            "that is inside, such as the one that reached the number, or its state_dict(), model=the trained model)"
        )
    values = anchor.state_dict() if isinstance(anchor, nn.Module) else anchor
    if not isinstance(values, Mapping):
        raise TypeError(f"anchor is a {type(anchor).__name__}; it must be a module or its state_dict()")
    trained = {id(p) for p in optimizer.gradients.parameters() if p.requires_grad}
    mine: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if id(p) in trained}
    if len(mine) < len(trained):
        raise ValueError("model has not all parameters that this optimizer trains: give the model that it was made for")
    mine |= dict(model.named_buffers())
    for name, tensor in mine.items():
        there = values.get(name)
        if isinstance(tensor, nn.Parameter) and there is None:
            raise ValueError(f"anchor has no value for {name!r}: its names must be those of model.state_dict()")
        if there is not None and local(there).shape != local(tensor).shape:
            shapes = tuple(local(there).shape), tuple(local(tensor).shape)
            raise ValueError(f"anchor[{name!r}] has shape {shapes[0]} here; the model's has {shapes[1]}")
    # A buffer that the anchor does not have stays as it is.
    return [(tensor, tensor.clone() if values.get(name) is None else values[name]) for name, tensor in mine.items()]
