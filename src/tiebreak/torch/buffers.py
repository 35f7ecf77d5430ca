"""The buffers of a model (running means of batch norm, counters): a copy has its own, and an extra pass leaves none."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tiebreak.torch.packing import read_tensor, written_tensor

__all__ = ["Buffers"]


class Buffers:
    """A second set of values for a model's buffers, exchanged with the first around a pass.

    Parameters
    ----------
    model : Module, optional
        Whose buffers. Without it, those of every module that is called in a pass: an optimizer knows parameters, and
        no module.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
        self._given = model is not None
        self._places = [] if model is None else list(_places(model))
        # In the order of the places; as many as have been in force, or were loaded. None is the model's own value.
        self._values: list[Tensor | None] = []
        self._names: list[str] | None = None  # of what was loaded, until its places are known

    def refresh(self) -> None:
        """The second set is as the first is now."""
        self._values = []

    def take_over(self) -> None:
        """The first set is as the second is now."""
        for buffer, value in self.pairs():
            buffer.data = value.to(buffer).clone()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The model's buffers, each with its value in the second set, where there is one."""
        found: dict[int, tuple[Tensor, Tensor]] = {}  # of a buffer that modules share the first place has the value
        for (module, name), value in zip(self._places, self._values, strict=False):
            buffer = module._buffers.get(name)
            if value is not None and buffer is not None:
                found.setdefault(id(buffer), (buffer, value))
        return list(found.values())

    def find(self, exchanged: Callable[[], AbstractContextManager[None]], look: Callable[[], Any]) -> None:
        """See what modules the values belong to that were loaded, where that is not known yet; all values stay."""
        if len(self._places) < len(self._values):
            kept = list(self._values)
            with exchanged():
                look()
            self._values[: len(kept)] = kept

    @contextmanager
    def exchanged(self, keep: bool) -> Iterator[None]:
        """Inside, the second set is in force; `keep` says whether what the pass makes of it stays its value."""
        first: list[tuple[Any, Any]] = []  # per place: the tensor that was there, and its values
        entered: set[int] = set()
        here = threading.get_ident()

        def enter(module: nn.Module, name: str) -> None:
            i, buffer = len(first), module._buffers.get(name)
            if i == len(self._values):  # nothing stands there yet: the copy is equal to the model still
                self._values.append(nn.Parameter().data if buffer is None else buffer.detach().clone())
            self._check(i, module, name)
            if buffer is None or id(buffer) in entered:  # gone, or shared with a module before
                first.append((None, None))
                return
            entered.add(id(buffer))
            first.append((buffer, buffer.data))
            mine = self._values[i]
            if mine is None:
                mine = self._values[i] = buffer.detach().clone()
            buffer.data = mine.to(buffer).clone()

        def note(module: nn.Module, inputs: Any) -> None:
            # Compiled code was called through a module that is noted; the hook is every thread's, the pass is ours.
            if torch.compiler.is_compiling() or threading.get_ident() != here:
                return
            for place in _places(module):
                if place not in self._places:
                    self._places.append(place)
                    enter(*place)

        handle = None
        try:
            for place in self._places:
                enter(*place)
            if not self._given:
                handle = register_module_forward_pre_hook(note)
            with warnings.catch_warnings():
                if handle is not None:  # a compiled model says that it calls the hook twice, which does no harm
                    warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
                yield
            self._names = None
        finally:
            if handle is not None:
                handle.remove()
            for i, (buffer, data) in enumerate(first):
                module, name = self._places[i]
                now = module._buffers.get(name)  # a module may have put a new tensor there
                if buffer is not None:
                    if keep and now is not None:
                        self._values[i] = now.detach()
                    module._buffers[name], buffer.data = buffer, data

    def _check(self, i: int, module: nn.Module, name: str) -> None:
        """What was loaded for this place must have been saved for it."""
        if self._names is not None and (i >= len(self._names) or self._names[i] != _name(module, name)):
            saved = self._names[i] if i < len(self._names) else "none"
            raise RuntimeError(
                f"the state's buffer {i} of the reference was saved for {saved}, and {_name(module, name)} comes here: "
                "give model=… when saving and when loading"
            )

    def values(self) -> list[Tensor]:
        """The second set, as it is now."""
        pairs = zip(self._places, self._values, strict=False)
        return [module._buffers[name] if value is None else value for (module, name), value in pairs]  # type: ignore[misc]  # a value was there

    def state(self) -> dict[str, Any]:
        """The second set, to be saved as text: only what differs from the model's own, which its state has."""
        own = [module._buffers.get(name) for module, name in self._places[: len(self._values)]]
        own += [None] * (len(self._values) - len(own))  # loaded, and their places are not known yet
        names = self._names or [_name(*place) for place in self._places[: len(self._values)]]
        values = [_written(value, mine) for value, mine in zip(self._values, own, strict=True)]
        return {"names": names, "values": values}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a saved set."""
        self._values = [value and read_tensor(value) for value in state["values"]]
        self._names = list(state["names"]) or None
        for i, place in enumerate(self._places if self._names is not None else ()):
            self._check(i, *place)
        if self._given:
            self._names = None

    def __getstate__(self) -> dict[str, Any]:
        # Sent elsewhere, an optimizer belongs to other modules, which its first pass finds.
        names = [_name(*place) for place in self._places[: len(self._values)]] or None
        return {"_given": False, "_places": [], "_values": self._values, "_names": names}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Buffers":
        # Copied with its parameters, and so with their modules.
        twin = Buffers()
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for module in model.modules():
        yield from ((module, name) for name, buffer in module._buffers.items() if buffer is not None)


def _name(module: nn.Module, name: str) -> str:
    buffer = module._buffers.get(name)
    kind = next(c.__name__ for c in type(module).__mro__ if not c.__name__.startswith("FSDP"))  # fully_shard adds that
    return f"{kind}.{name}{[] if buffer is None else list(buffer.shape)}"


def _written(value: Tensor | None, own: Tensor | None) -> list[Any] | None:
    """A value as text; None where it is the model's own."""
    if value is None or (own is not None and value.shape == own.shape and torch.equal(value.to(own), own)):
        return None
    return written_tensor(value)
