"""The end of a training: the model moved along the line from its reference to where the tolerance is kept and used.

:mod:`tiebreak.finishing` searches; here are the ends of the line, and the measuring on it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiebreak.finishing import Finish, Totals
from tiebreak.finishing import finish as search_line
from tiebreak.torch.buffers import modules_of
from tiebreak.torch.context import RandomState
from tiebreak.torch.distributed.layout import local, whole
from tiebreak.torch.line import Line
from tiebreak.torch.losses import single

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


def finish(
    optimizer: "DynamicBarrier",
    lower: Any,
    upper: Any,
    anchor: Any,
    model: Any,
    steps: Any = None,
) -> Finish:
    """What :meth:`DynamicBarrier.finish` does; whatever happens, the model is at one place of the line afterwards."""
    tolerance = optimizer.decision.tolerance
    if tolerance is None:
        raise RuntimeError(
            "opt.finish() is for an optimizer with tolerance=: without one there is nothing to keep to"
        )
    for name, loss in (("lower", lower), ("upper", upper)):
        if not callable(loss) and not (loss is None and name == "upper"):
            raise TypeError(
                f"finish({name}={type(loss).__name__}): give a function that returns the loss over all data"
            )
    if steps is not None and not isinstance(steps, Iterable):
        raise TypeError(
            f"finish(steps={steps!r}): give an iterable that makes the lower loss of one batch at a time, such as "
            "steps=(loss(model, batch) for batch in batches)"
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
    modules = modules_of(model) or optimizer.modules
    line = Line(optimizer, modules, *_pairs(optimizer, anchor, model))

    def evaluate(name: str, loss: Any) -> float:
        random.restore()
        line.reset_modes()
        return totals(name, loss())

    def measure(place: float) -> tuple[float, float]:
        line.go(place)
        below = evaluate("lower", lower)
        above = math.nan if upper is None else evaluate("upper", upper)
        below, above = optimizer.ranks.mean([below, above], home)
        return below, above

    def repair() -> None:
        assert steps is not None
        line.go(1.0)
        random.restore()
        with torch.enable_grad():
            _descend(optimizer, steps)
        line.move_end()

    # A reference that is measured is known at its model, the anchor, on these data.
    ended = 1.0
    reference = optimizer.target.number
    try:
        with torch.no_grad():
            allowed = tolerance.amount, tolerance.relative
            found = search_line(
                measure,
                allowed,
                reference,
                upper is not None,
                stacklevel=4,
                repair=None if steps is None else repair,
            )
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


def _descend(optimizer: "DynamicBarrier", losses: Iterable[Any]) -> None:
    """Let the base step on the lower loss alone, once for each loss; they are made one after another, lazily."""
    parameters = list(optimizer.gradients.parameters())
    for k, loss in enumerate(losses):
        number = single(f"the loss of step {k} in finish(steps=…)", loss)
        if not isinstance(number, Tensor) or not number.requires_grad:
            raise TypeError(
                f"finish(steps=…): loss {k} has no gradient: make it from the model, as in training"
            )
        if not bool(torch.isfinite(number.detach())):
            raise FloatingPointError(
                f"finish(steps=…): the lower loss of step {k} is {float(number.detach()):.6g}, so the model stays as "
                "training left it. Is the learning rate too large?"
            )
        for p in parameters:
            p.grad = None
        number.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.base.step()
    for p in parameters:
        p.grad = None


def _number(name: str, loss: Any) -> float:
    if (
        not isinstance(loss, Tensor)
        and getattr(loss, "ndim", None) == 0
        and hasattr(loss, "item")
    ):
        loss = loss.item()  # of NumPy
    loss = single(name, loss)
    return float(whole(loss.detach())) if isinstance(loss, Tensor) else float(loss)


_Pairs = list[tuple[Tensor, Tensor]]


def _pairs(
    optimizer: "DynamicBarrier", anchor: Any, model: Any
) -> tuple[_Pairs, _Pairs]:
    """Return parameters and buffers of the model, each with its value in the anchor."""
    copy = optimizer.target.copy
    if copy is None:
        return _pairs_with(optimizer, anchor, modules_of(model) or optimizer.modules)
    if anchor is not None or model is not None:
        raise ValueError(
            f"anchor= and model= have no effect with reference={optimizer.target}: that is the anchor"
        )
    if not copy.begun:
        raise RuntimeError(
            "opt.finish() comes after the last step: no step was made yet"
        )
    return list(copy.reached().items()), copy.buffers.pairs()


def _pairs_with(
    optimizer: "DynamicBarrier", anchor: Any, modules: Sequence[nn.Module]
) -> tuple[_Pairs, _Pairs]:
    if anchor is None:
        raise TypeError(
            f"reference={optimizer.target} has no copy of the model to begin the line at: opt.finish(…, anchor=a model "
            "that is inside, such as the one that reached the number, or its state_dict(), model=the trained model)"
        )
    if not modules:
        raise TypeError(
            "anchor=… needs the trained model: opt.finish(…, anchor=…, model=the trained model)"
        )
    anchors = anchor if isinstance(anchor, (list, tuple)) else [anchor]
    if len(anchors) != len(modules):
        raise ValueError(
            f"the length of anchor= is {len(anchors)}; it must be that of model=, {len(modules)}"
        )
    trained = {
        id(p) for p in optimizer.gradients.parameters()
    }  # those that are frozen by now, too
    if not trained <= {id(p) for module in modules for p in module.parameters()}:
        raise ValueError(
            "model has not all parameters that this optimizer trains: give the model that it was made for"
        )
    parameters: _Pairs = []
    buffers: _Pairs = []
    for one, module in zip(anchors, modules, strict=True):
        values = _values(one)
        mine = {
            _bare(name): p for name, p in module.named_parameters() if id(p) in trained
        }
        parameters += [(p, _value(name, p, values)) for name, p in mine.items()]
        own = {_bare(name): buffer for name, buffer in module.named_buffers()}
        buffers += [
            (b, _value(name, b, values)) for name, b in own.items() if name in values
        ]  # others stay
    return parameters, buffers


def _values(anchor: Any) -> dict[str, Tensor]:
    """Return the tensors of a module or its state_dict by name."""
    values = anchor.state_dict() if isinstance(anchor, nn.Module) else anchor
    if not isinstance(values, Mapping):
        raise TypeError(
            f"anchor is a {type(anchor).__name__}; it must be a module or its state_dict()"
        )
    return {
        _bare(name): value
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _value(name: str, tensor: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """Return the anchor's value for a tensor of the model; raise unless it has that shape and its own memory."""
    if name not in values:
        raise ValueError(
            f"anchor has no value for {name!r}: its names must be those of model.state_dict()"
        )
    shapes = tuple(local(values[name]).shape), tuple(local(tensor).shape)
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"anchor[{name!r}] has shape {shapes[0]} here; the model's has {shapes[1]}"
        )
    if tensor.numel() and local(values[name]).data_ptr() == local(tensor).data_ptr():
        raise ValueError(
            f"anchor[{name!r}] is the model's own: state_dict() makes no copy, so keep copy.deepcopy(model) or "
            "copy.deepcopy(model.state_dict()) of the model that reached the reference"
        )
    return values[name]


def _bare(name: str) -> str:
    """The name without what DistributedDataParallel and torch.compile put before it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")
