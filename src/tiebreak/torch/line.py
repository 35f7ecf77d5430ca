"""The line from one model to another: a model's parameters and buffers set to a place on it."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tiebreak.torch.buffers import parts_of
from tiebreak.torch.distributed.layout import local
from tiebreak.torch.swap import let_go

_UNIT = 1e-3  # a vector whose length is as near to 1 as this is a direction


class Line:
    """The line from an anchor, 0, to the model as it is now, 1, and on.

    Parameters
    ----------
    optimizer : DynamicBarrier
    modules : sequence of Module
        The model. Whatever is evaluated leaves the modes and buffers of these modules as they are now.
    parameters, buffers : iterable of pairs of tensors
        A tensor of the model with the anchor's value of it.
    """

    def __init__(
        self,
        optimizer: Any,
        modules: Sequence[nn.Module],
        parameters: Iterable[tuple[Tensor, Tensor]],
        buffers: Iterable[tuple[Tensor, Tensor]],
    ) -> None:
        self._optimizer = optimizer
        let_go(optimizer)
        self._ends = [
            (tensor, local(tensor.detach()).clone(), local(there.detach()), buffer)
            for pairs, buffer in ((parameters, False), (buffers, True))
            for tensor, there in pairs
        ]
        parts = parts_of(modules)
        self._modes = [(part, part.training) for part in parts]
        self._buffers: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = []
        for part in parts:
            for name, buffer in part._buffers.items():
                value = None if buffer is None else local(buffer.detach()).clone()
                self._buffers.append((part, name, buffer, value))

    def move_end(self) -> None:
        """Make the model as it is now the end of the line, 1; the modes of its modules stay those of the first end."""
        self._ends = [
            (tensor, local(tensor.detach()).clone(), anchor, is_buffer)
            for tensor, _, anchor, is_buffer in self._ends
        ]
        self._buffers = [
            (
                part,
                name,
                part._buffers[name],
                None if value is None else local(value.detach()).clone(),
            )
            for part, name, _, _ in self._buffers
            for value in (part._buffers[name],)
        ]

    @torch.no_grad()
    def go(self, place: float) -> None:
        """Set the model to a place; at 0 and 1 to the ends themselves, bit for bit."""
        let_go(self._optimizer)
        self.reset_modes()
        for part, name, buffer, value in self._buffers:
            part._buffers[name] = buffer  # the module may have put another one there
            if buffer is not None and value is not None:
                _set(buffer, value)
        for tensor, end, anchor, is_buffer in self._ends:
            if place in (0.0, 1.0):
                _set(tensor, end if place else anchor)
            else:
                _set(tensor, _between(anchor.to(end.device), end, place, is_buffer))
        torch.clear_autocast_cache()

    def reset_modes(self) -> None:
        """Set every module to the mode (``train()``, ``eval()``) that it had at first."""
        for part, mode in self._modes:
            part.training = mode


def _set(tensor: Tensor, value: Tensor) -> None:
    here = local(tensor.detach())
    if here.shape == value.shape:
        here.copy_(value)
    else:  # a queue, say, that a pass makes longer
        tensor.data = value.to(here).clone()


def _between(begin: Tensor, end: Tensor, place: float, buffer: bool) -> Tensor:
    """A place that is no end of the line; what cannot lie between two values is the model's.

    Numbers of a model's own make sense of any sign and length, those of a buffer may not: a variance stays one, and a
    direction, too.

    Examples
    --------
    >>> _between(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0]), 1.5, buffer=False).tolist()
    [-0.5, 2.5]
    >>> _between(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0]), 1.5, buffer=True).tolist()
    [0.5, 2.5]
    """
    if begin.shape != end.shape or not (end.is_floating_point() or end.is_complex()):
        return end  # queues, counters, truths
    wide = torch.promote_types(end.dtype, torch.float32)
    begin, end = begin.to(wide), end.to(wide)
    there = begin + place * (end - begin)
    if not buffer or end.is_complex() or end.numel() == 0:
        return there
    if all(bool(((value == 0) | (value == 1)).all()) for value in (begin, end)):
        return end  # a mask
    if place > 1 and bool(torch.minimum(begin, end).min() >= 0):
        return torch.where(
            end < begin, end * (end / begin).pow(place - 1), there
        )  # geometric, so that it stays ≥ 0
    if end.dim() == 1 and all(
        abs(float(value.norm()) - 1) < _UNIT for value in (begin, end)
    ):
        return nn.functional.normalize(there, dim=0)  # of spectral norm, say
    return there
