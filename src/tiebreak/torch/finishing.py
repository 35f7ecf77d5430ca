"""The end of a training: the model moved along the line from its reference to where the tolerance is kept and used.

:mod:`tiebreak.finishing` searches; here are the ends of the line, and the measuring on it.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiebreak.finishing import Finish, Totals
from tiebreak.finishing import finish as search_line
from tiebreak.torch.context import RandomState
from tiebreak.torch.layout import local, whole
from tiebreak.torch.line import Line
from tiebreak.torch.losses import single

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["finish"]


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
    totals = Totals(_number)
    line = Line(optimizer, *_pairs(optimizer, lambda: totals("lower", lower()), anchor, model))

    def evaluate(name: str, loss: Any) -> float:
        random.restore()
        line.begin(name)
        return totals(name, loss())

    def measure(place: float) -> tuple[float, float]:
        line.go(place)
        below = evaluate("lower", lower)
        above = math.nan if upper is None else evaluate("upper", upper)
        below, above = optimizer.ranks.mean([below, above], home)
        return below, above

    # A reference that moves is known where its model is: at the anchor, on these data.
    at, ended = optimizer.target.at, 1.0
    reference = None if tolerance.moving or at is None else float(at(optimizer.count))
    try:
        with torch.no_grad(), line.watched():
            allowed = tolerance.amount, tolerance.relative
            found = search_line(measure, allowed, reference, wanted=upper is not None, stacklevel=4)
            ended = found.place
    except RuntimeError as error:
        if "require grad" in str(error):
            error.add_note(
                "opt.finish() evaluates the losses under torch.no_grad(): in one that takes gradients itself say `with "
                "torch.enable_grad():`"
            )
        raise
    finally:
        line.go(ended)
        random.restore()
    return found


def _number(name: str, loss: Any) -> float:
    if not isinstance(loss, Tensor) and getattr(loss, "ndim", None) == 0 and hasattr(loss, "item"):
        loss = loss.item()  # of NumPy
    loss = single(name, loss)
    return float(whole(loss.detach())) if isinstance(loss, Tensor) else float(loss)


_Pairs = list[tuple[Tensor, Tensor]]


def _pairs(optimizer: "DynamicBarrier", look: Any, anchor: Any, model: Any) -> tuple[_Pairs, _Pairs]:
    """Parameters and buffers of the model, each with its value in the anchor; `look` calls the modules, if need be."""
    copy = optimizer.target.copy
    if copy is None:
        return _given(optimizer, anchor, model)
    if anchor is not None or model is not None:
        raise ValueError(f"anchor= and model= have no effect with reference={optimizer.target}: that is the anchor")
    if not copy.begun:
        raise RuntimeError("opt.finish() comes after the last step: no step was made yet")
    with torch.no_grad():
        copy.buffers.find(lambda: copy.exchanged(optimizer), look)
    return list(copy.reached().items()), copy.buffers.pairs()


def _given(optimizer: "DynamicBarrier", anchor: Any, model: Any) -> tuple[_Pairs, _Pairs]:
    if anchor is None or not isinstance(model, nn.Module):
        raise TypeError(
            f"reference={optimizer.target} has no copy of the model to begin the line at: opt.finish(…, anchor=a model "
            "that is inside, such as the one that reached the number, or its state_dict(), model=the trained model)"
        )
    values = anchor.state_dict() if isinstance(anchor, nn.Module) else anchor
    if not isinstance(values, Mapping):
        raise TypeError(f"anchor is a {type(anchor).__name__}; it must be a module or its state_dict()")
    values = {_bare(name): value for name, value in values.items() if isinstance(value, Tensor)}
    ours = {id(p) for p in optimizer.gradients.parameters()}  # those that are frozen by now, too
    mine = {_bare(name): p for name, p in model.named_parameters() if id(p) in ours}
    if len(mine) < len(ours):
        raise ValueError("model has not all parameters that this optimizer trains: give the model that it was made for")
    for name, p in mine.items():
        if name not in values:
            raise ValueError(f"anchor has no value for {name!r}: its names must be those of model.state_dict()")
        if p.numel() and local(values[name]).data_ptr() == local(p).data_ptr():
            raise ValueError(
                f"anchor[{name!r}] is the model's own: state_dict() makes no copy, so keep copy.deepcopy(model) or "
                "copy.deepcopy(model.state_dict()) of the model that reached the reference"
            )
    # A buffer that the anchor does not have stays as it is.
    buffers = {_bare(name): buffer for name, buffer in model.named_buffers()}
    buffers = {name: buffer for name, buffer in buffers.items() if name in values}
    for name, tensor in (mine | buffers).items():
        shapes = tuple(local(values[name]).shape), tuple(local(tensor).shape)
        if shapes[0] != shapes[1]:
            raise ValueError(f"anchor[{name!r}] has shape {shapes[0]} here; the model's has {shapes[1]}")
    return [(p, values[name]) for name, p in mine.items()], [(b, values[name]) for name, b in buffers.items()]


def _bare(name: str) -> str:
    """The name without what DistributedDataParallel and torch.compile put before it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")
