"""The end of a training: the model moves along the line from its reference to the best point inside the tolerance.

:mod:`tiebreak.line_search` searches the line. This module has the line's ends, sets the model to places on it, and
measures the losses there. Nothing here changes the optimizer, except that ``steps=`` lets the base step.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak.decision import Tolerance
from tiebreak.line_search import Finish, Totals, standard_error
from tiebreak.line_search import finish as search_line
from tiebreak.torch.backward import single_loss
from tiebreak.torch.diagnostics import warn_at_caller
from tiebreak.torch.distributed import Ranks
from tiebreak.torch.distributed.layout import (
    Wrappers,
    full_tensor,
    is_dtensor,
    local_tensor,
    parts_of,
)
from tiebreak.torch.model_copy import RandomState, release_gathered
from tiebreak.torch.twin import set_mode

#: A model, or its state_dict: where the line begins.
Anchor: TypeAlias = nn.Module | Mapping[str, Any]
#: What a loss over all data may be: one number, or the losses of batches.
DataLoss: TypeAlias = Callable[[], Any]
_UNIT_NORM = 1e-3  # a vector whose norm is this near to 1 is a direction


class LineTensor(NamedTuple):
    """A parameter or a buffer of the model, with its value in the anchor; a frozen parameter does not move."""

    tensor: Tensor
    anchor: Tensor
    is_buffer: bool
    moves: bool = True


def check_finish_arguments(
    lower: object, upper: object, steps: object, confidence: object
) -> None:
    """Raise unless the losses are functions, `steps` makes losses one after another, and the confidence is legal."""
    if not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be at least 0.5 and below 1")
    for name, loss in (("lower", lower), ("upper", upper)):
        if not callable(loss) and not (loss is None and name == "upper"):
            raise TypeError(
                f"finish({name}={type(loss).__name__}): give a function that returns the loss over all data"
            )
    # The losses in a list were all made at the same parameters.
    is_lazy = isinstance(steps, Iterable) and not isinstance(steps, Sequence | Tensor)
    if steps is not None and not is_lazy:
        if isinstance(steps, int | float):
            text = repr(steps)
        else:
            text = type(steps).__name__
        raise TypeError(
            f"finish(steps={text}): give an iterable that makes the lower loss of one batch at a time, such as "
            "steps=(loss(model, batch) for batch in batches)"
        )


class Line:
    """The line from an anchor, 0, to the model as it is now, 1, and on.

    Parameters
    ----------
    modules : sequence of Module
        The model. Whatever is evaluated leaves the modes and buffers of these modules as they are now.
    tensors : list of LineTensor
    wrappers : Wrappers
        The wrappers of a model that is distributed over ranks.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        tensors: Sequence[LineTensor],
        wrappers: Wrappers,
    ) -> None:
        self._wrappers = wrappers
        self._parts = parts_of(modules)
        self._modes = [(part, part.training) for part in self._parts]
        self._tensors = tensors
        self._ends: list[Tensor] = []
        self._buffers: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = []
        self._set_end()

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return self._tensors[0].tensor.device

    def move_end(self) -> Callable[[], None]:
        """Make the model as it is now the end of the line; return a function that restores the former end."""
        before = (self._ends, self._buffers)
        self._set_end()

        def restore() -> None:
            self._ends, self._buffers = before

        return restore

    def _set_end(self) -> None:
        release_gathered(self._wrappers)
        self._ends = [_clone(item.tensor) for item in self._tensors]
        self._buffers = []
        for part in self._parts:
            for name, buffer in part._buffers.items():
                if buffer is None:
                    value = None
                else:
                    value = _clone(buffer)
                self._buffers.append((part, name, buffer, value))

    @torch.no_grad()
    def move_to(self, place: float, with_frozen: bool = False) -> None:
        """Set the model to a place; at 0 and 1 to the ends themselves, bit for bit. Frozen parameters stay."""
        release_gathered(self._wrappers)
        self.reset_modes()
        for part, name, buffer, value in self._buffers:
            part._buffers[name] = buffer  # a pass may have replaced it
            if buffer is not None and value is not None:
                _assign(buffer, value)
        for item, end in zip(self._tensors, self._ends, strict=True):
            value = end
            if item.moves or with_frozen:
                value = _between(item.anchor, end, place, item.is_buffer)
            _assign(item.tensor, value)
        torch.clear_autocast_cache()

    @property
    def has_frozen(self) -> bool:
        """Whether a parameter of the line does not move."""
        return not all(item.moves for item in self._tensors)

    @property
    def in_training_mode(self) -> bool:
        """Whether a module was in training mode at first."""
        return any(mode for _, mode in self._modes)

    def reset_modes(self, training: bool = False) -> None:
        """Set every module to the mode (``train()``, ``eval()``) that it had at first, or to training mode."""
        for part, mode in self._modes:
            part.training = mode or training


def _clone(tensor: Tensor) -> Tensor:
    clone: Tensor = local_tensor(tensor.detach()).clone()
    return clone


def _assign(tensor: Tensor, value: Tensor) -> None:
    current = local_tensor(tensor.detach())
    if current.shape == value.shape:
        current.copy_(value)
    else:  # a pass made a queue longer
        tensor.data = value.to(current).clone()


def _between(anchor: Tensor, end: Tensor, place: float, is_buffer: bool) -> Tensor:
    """A place on the line; a tensor that cannot lie between two values is the model's.

    Parameters may have any sign and length. Of the buffers, a variance stays positive, a mask stays a mask, and a
    direction keeps its norm.

    Examples
    --------
    >>> _between(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0]), 1.5, is_buffer=False).tolist()
    [-0.5, 2.5]
    >>> _between(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0]), 1.5, is_buffer=True).tolist()
    [0.5, 2.5]
    """
    begin = local_tensor(anchor.detach())
    if place in (0.0, 1.0):
        if place:
            return end
        return begin
    begin = begin.to(end.device)
    is_number = end.is_floating_point() or end.is_complex()
    if begin.shape != end.shape or not is_number:
        return end  # queues, counters, truths
    wide = torch.promote_types(end.dtype, torch.float32)
    begin = begin.to(wide)
    end = end.to(wide)
    # Equal entries stay as they are: begin + place·(end − begin) would make NaN of infinite ones.
    value = torch.where(begin == end, end, begin + place * (end - begin))
    if not is_buffer or end.is_complex() or end.numel() == 0:
        return value
    if _is_mask(begin) and _is_mask(end):
        return end
    if place > 1 and bool(torch.minimum(begin, end).min() >= 0):
        # Geometric, so that the value stays ≥ 0.
        geometric = end * (end / begin).pow(place - 1)
        return torch.where(end < begin, geometric, value)
    if end.dim() == 1 and _is_direction(begin) and _is_direction(end):
        return nn.functional.normalize(value, dim=0)
    return value


def _is_mask(value: Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _is_direction(value: Tensor) -> bool:
    return abs(float(value.norm()) - 1) < _UNIT_NORM


def finish_on_line(
    line: Line,
    lower: DataLoss,
    upper: DataLoss | None,
    tolerance: Tolerance,
    number: float | None,
    generators: Sequence[torch.Generator],
    ranks: Ranks,
    descend: Callable[[], None] | None,
    confidence: float,
) -> Finish:
    """Move the model to the best point of a line; it is at one place of the line afterwards, whatever happens.

    Parameters
    ----------
    number : float, optional
        The reference, if it is a number; otherwise the reference is the anchor's loss on these data.
    descend : callable, optional
        Takes the steps of ``steps=``.
    """
    random = RandomState(generators)
    totals = Totals(_number)
    # The first losses of `totals` are those at place 0, with which the later ones are compared.
    checks = Totals(_number)
    home = line.device

    def evaluate(name: str, loss: DataLoss) -> float:
        random.restore()
        line.reset_modes()
        return totals(name, loss())

    def measure_reference(with_frozen: bool = False, training: bool = False) -> float:
        line.move_to(0.0, with_frozen)
        random.restore()
        line.reset_modes(training)
        return ranks.mean([checks("lower", lower())], home)[0]

    def check_repeatable(name: str, loss: DataLoss) -> None:
        """Raise, on all ranks, if a loss or one of its batches changes from call to call."""
        losses = []
        for _ in range(2):
            line.move_to(1.0)
            random.restore()
            line.reset_modes()
            mean = checks(name, loss())
            losses.append([mean, *checks.batches(name)])
        changes = float(not _are_close(*losses))
        if ranks.mean([changes], home)[0] > 0:
            raise RuntimeError(
                f"finish({name}=…) gave {losses[0][0]:.6g} and {losses[1][0]:.6g} for the same model, or other batches: all "
                "places of the line must be compared on the same data. Make the data outside of the function, seed a "
                "private generator inside of it, and name the generator of a loader that shuffles, generators=[…]"
            )

    def measure(place: float) -> tuple[float, ...]:
        line.move_to(place)
        lower_loss = evaluate("lower", lower)
        differences = totals.differences("lower")
        if upper is None:
            upper_loss = math.nan
        else:
            upper_loss = evaluate("upper", upper)
        count = len(differences)
        means = ranks.mean([lower_loss, upper_loss, count, count**2], home)
        error = 0.0
        if means[2] ** 2 == means[3]:  # all ranks have as many batches
            error = standard_error(ranks.mean(differences, home))
        return means[0], means[1], error

    def repair() -> Callable[[], None]:
        assert descend is not None
        line.move_to(1.0)
        random.restore()
        with torch.enable_grad():
            descend()
        return line.move_end()

    place = 1.0
    try:
        with torch.no_grad():
            check_repeatable("lower", lower)
            if upper is not None:
                check_repeatable("upper", upper)
            if number is None and line.has_frozen:
                number = measure_reference(with_frozen=True)
            elif number is not None and ranks.alone and not line.in_training_mode:
                # The loss may fail in training mode, which the user has not asked for. On several ranks, a failure on
                # one of them would leave the others waiting.
                training_loss = math.nan
                with suppress(Exception):
                    training_loss = measure_reference(training=True)
                _compare_modes(number, tolerance, measure_reference(), training_loss)
            result = search_line(
                measure,
                (tolerance.amount, tolerance.relative),
                number,
                upper is not None,
                stacklevel=4,
                repair=None if descend is None else repair,
                confidence=confidence,
            )
            place = result.place
    except RuntimeError as error:
        if "require grad" in str(error):
            error.add_note(
                "opt.finish() evaluates the losses under torch.no_grad(): in one that takes gradients itself say `with "
                "torch.enable_grad():`"
            )
        raise
    finally:
        line.move_to(place)
        random.restore()
    return result


def _are_close(first: Sequence[float], second: Sequence[float]) -> bool:
    # A device may sum in another order; other data differ by more.
    size = max(map(abs, first))
    changes = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return not any(change > 1e-3 * size for change in changes)


def _compare_modes(
    number: float, tolerance: Tolerance, loss: float, training_loss: float
) -> None:
    """Warn if the anchor has reached the number in training mode, and has another loss in evaluation mode."""
    allowed = tolerance.amount * (abs(number) if tolerance.relative else 1.0)
    is_nearer = abs(training_loss - number) < abs(loss - number)
    if is_nearer and abs(training_loss - loss) > allowed / 2:
        warn_at_caller(
            f"reference={number:.6g} seems to be a loss of training mode: the anchor's lower loss is {training_loss:.6g} in "
            f"training mode and {loss:.6g} in evaluation mode (dropout, batch norm), and finish compares losses of "
            "evaluation mode. Call model.train() before, or give the optimizer the number of evaluation mode"
        )


def descend(
    base: Optimizer, losses: Iterable[Any], max_norm: float | None, ranks: Ranks
) -> None:
    """Let the base step on the lower loss alone, once for each loss; `losses` makes them one after another."""
    if all(group.get("lr") == 0 for group in base.param_groups):
        raise ValueError(
            "finish(steps=…): the learning rate is 0, so no step would move the model. Set it before: a tenth of the "
            "highest, `for group in opt.param_groups: group['lr'] = …`"
        )
    parameters = [p for group in base.param_groups for p in group["params"]]
    if max_norm is not None and ranks.is_split and not all(map(is_dtensor, parameters)):
        raise RuntimeError(
            "finish(steps=…) cannot clip pieces of parameters that are no DTensors, whose norm no rank knows alone: set "
            "opt.max_norm = None before"
        )
    count = 0
    set_mode(base, "train")
    try:
        for k, loss in enumerate(losses):
            count += 1
            number = single_loss(f"the loss of step {k} in finish(steps=…)", loss)
            if not isinstance(number, Tensor) or not number.requires_grad:
                raise TypeError(
                    f"finish(steps=…): loss {k} has no gradient: make it from the model, as in training"
                )
            for p in parameters:
                p.grad = None
            number.backward()  # type: ignore[no-untyped-call]  # torch's
            pairs = [(p, p.grad) for p in parameters if p.grad is not None]
            square = ranks.squared_norms(pairs).sum()
            values = [float(full_tensor(number.detach())), float(square)]
            # On several ranks the mean is NaN on all of them if one has NaN.
            values = ranks.mean(values, number.device)
            if not all(map(math.isfinite, values)):
                raise FloatingPointError(
                    f"finish(steps=…): the lower loss of step {k} is {values[0]:.6g} and its squared gradient norm "
                    f"{values[1]:.6g}, so the model stays as training left it. Is the learning rate too large?"
                )
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            base.step()
    finally:
        set_mode(base, "eval")
        for p in parameters:
            p.grad = None
    if count == 0:
        raise ValueError(
            "finish(steps=…) made no loss: is its generator used up, or its loader empty?"
        )


def _number(name: str, loss: object) -> float:
    is_numpy = not isinstance(loss, Tensor) and getattr(loss, "ndim", None) == 0
    if is_numpy and hasattr(loss, "item"):
        loss = loss.item()
    loss = single_loss(name, loss)
    if isinstance(loss, Tensor):
        loss = full_tensor(loss.detach())
    return float(loss)


# --- an anchor that the user gives ---------------------------------------------


def anchor_tensors(
    reference: str,
    anchor: Anchor | Sequence[Anchor] | None,
    modules: Sequence[nn.Module],
    trained: Iterable[Tensor],
) -> list[LineTensor]:
    """Return parameters and buffers of the model, each with its value in the anchor.

    Parameters
    ----------
    reference : str
        How the error names the reference.
    modules : sequence of Module
        The trained model.
    trained : iterable of tensors
        The parameters of the optimizer.
    """
    if anchor is None:
        raise TypeError(
            f"reference={reference} has no copy of the model to begin the line at: opt.finish(…, anchor=a model "
            "that is inside, such as the one that reached the number, or its state_dict(), model=the trained model)"
        )
    if not modules:
        raise TypeError(
            "anchor=… needs the trained model: opt.finish(…, anchor=…, model=the trained model)"
        )
    if isinstance(anchor, list | tuple):
        anchors = anchor
    else:
        anchors = [anchor]
    if len(anchors) != len(modules):
        raise ValueError(
            f"the length of anchor= is {len(anchors)}; it must be that of model=, {len(modules)}"
        )
    trained_ids = {id(p) for p in trained}
    ids = {id(p) for module in modules for p in module.parameters()}
    if not trained_ids <= ids:
        raise ValueError(
            "model has not all parameters that this optimizer trains: give the model that it was made for"
        )
    tensors = []
    for one_anchor, module in zip(anchors, modules, strict=True):
        values = _values(one_anchor)
        for long_name, p in module.named_parameters():
            name = _plain_name(long_name)
            if id(p) in trained_ids:
                tensors.append(LineTensor(p, _value(name, p, values), False))
        for long_name, buffer in module.named_buffers():
            name = _plain_name(long_name)
            if name in values:  # a buffer that the anchor lacks stays
                tensors.append(LineTensor(buffer, _value(name, buffer, values), True))
    return tensors


def _values(anchor: object) -> dict[str, Tensor]:
    """The tensors of a module or its state_dict by name."""
    values = anchor.state_dict() if isinstance(anchor, nn.Module) else anchor
    if not isinstance(values, Mapping):
        raise TypeError(
            f"anchor is a {type(anchor).__name__}; it must be a module or its state_dict()"
        )
    return {_plain_name(n): v for n, v in values.items() if isinstance(v, Tensor)}


def _value(name: str, tensor: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """The anchor's value for a tensor of the model; raise unless it has that shape and its own memory."""
    if name not in values:
        raise ValueError(
            f"anchor has no value for {name!r}: its names must be those of model.state_dict()"
        )
    value = local_tensor(values[name])
    current = local_tensor(tensor)
    if value.shape != current.shape:
        raise ValueError(
            f"anchor[{name!r}] has shape {tuple(value.shape)} here; the model's has {tuple(current.shape)}"
        )
    if tensor.numel() and value.data_ptr() == current.data_ptr():
        raise ValueError(
            f"anchor[{name!r}] is the model's own: state_dict() makes no copy, so keep copy.deepcopy(model) or "
            "copy.deepcopy(model.state_dict()) of the model that reached the reference"
        )
    return values[name]


def _plain_name(name: str) -> str:
    """The name without the prefixes of DistributedDataParallel and torch.compile."""
    return name.removeprefix("module.").replace("_orig_mod.", "")
