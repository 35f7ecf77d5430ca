"""The line from one model to another: a model's parameters and buffers set to a place on it.

Whatever is evaluated there leaves nothing behind: buffers of every module that a pass has called are put back, also
those that no end of the line has a value for, and a loss finds every module in the mode in which it found it at first.
"""

import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tiebreak.torch.exchange import let_go
from tiebreak.torch.layout import local

__all__ = ["Line"]

_UNIT = 1e-3  # a vector whose length is as near to 1 as this is a direction


class Line:
    """The line from an anchor, 0, to the model as it is now, 1, and on.

    Parameters
    ----------
    optimizer : DynamicBarrier
    parameters, buffers : iterable of pairs of tensors
        One of the model's, and the anchor's value of it.
    """

    def __init__(
        self, optimizer: Any, parameters: Iterable[tuple[Tensor, Tensor]], buffers: Iterable[tuple[Tensor, Tensor]]
    ) -> None:
        self._optimizer = optimizer
        let_go(optimizer)
        self._ends = [
            (tensor, local(tensor.detach()).clone(), local(there.detach()), buffer)
            for pairs, buffer in ((parameters, False), (buffers, True))
            for tensor, there in pairs
        ]
        # Modules that were called, by their id: some have a hash that changes. Of their buffers: what was there before,
        # and its numbers; and by loss their modes.
        self._first: dict[tuple[int, str], tuple[nn.Module, Tensor | None, Tensor | None]] = {}
        self._modes: dict[str, dict[int, tuple[nn.Module, bool]]] = {}
        self._now: dict[int, tuple[nn.Module, bool]] = {}

    @torch.no_grad()
    def go(self, place: float) -> None:
        """Set the model to a place; at 0 and 1 to the ends themselves, bit for bit."""
        let_go(self._optimizer)
        for (_, name), (module, buffer, value) in self._first.items():
            module._buffers[name] = buffer  # a module may have put a new one there
            if buffer is not None and value is not None:
                _set(buffer, value)
        for tensor, end, anchor, is_buffer in self._ends:
            if place in (0.0, 1.0):
                _set(tensor, end if place else anchor)
            else:
                _set(tensor, _between(anchor.to(end.device), end, place, is_buffer))
        torch.clear_autocast_cache()

    def begin(self, loss: str) -> None:
        """An evaluation begins: every module that this loss has called is in the mode in which it was at first."""
        self._now = self._modes.setdefault(loss, {})
        for module, mode in self._now.values():
            module.training = mode

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around all evaluations: every module that is called is noted, with its mode and its buffers."""
        here = threading.get_ident()

        def note(module: nn.Module, inputs: Any) -> None:
            # Compiled code was called through a module that is noted; the hook is every thread's, the pass is ours.
            if torch.compiler.is_compiling() or threading.get_ident() != here or id(module) in self._now:
                return
            for part in module.modules():
                self._now.setdefault(id(part), (part, part.training))
                for name, buffer in part._buffers.items():
                    if (id(part), name) not in self._first:
                        kept = None if buffer is None else local(buffer.detach()).clone()
                        self._first[id(part), name] = part, buffer, kept

        handle = register_module_forward_pre_hook(note)  # one: compiled code is made anew for every other one
        try:
            with warnings.catch_warnings():
                # A compiled model says that it calls the hook twice, which does no harm.
                warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
                yield
        finally:
            handle.remove()


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
        return torch.where(end < begin, end * (end / begin).pow(place - 1), there)  # of the same slope at the end
    if end.dim() == 1 and all(abs(float(value.norm()) - 1) < _UNIT for value in (begin, end)):
        return nn.functional.normalize(there, dim=0)  # of spectral norm, say
    return there
