"""The buffers of a model (running means of batch norm, counters): a copy has its own, and an extra pass leaves none."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["Buffers"]


class Buffers:
    """A second set of values for a model's buffers, exchanged with the first around a pass.

    Parameters
    ----------
    model : Module, optional
        Whose buffers. Without it, those of every module that is called in the first pass: an optimizer knows
        parameters, and no module.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._places = [] if model is None else list(_places(model))
        self._known = model is not None
        self._values: list[Tensor] = []  # in the order of the places; as many as have been in force, or were loaded

    @contextmanager
    def exchanged(self, keep: bool) -> Iterator[None]:
        """Inside, the second set is in force; `keep` says whether what the pass makes of it stays its value."""
        first: list[tuple[Any, Tensor]] = []

        def enter(module: nn.Module, name: str) -> None:
            buffer: Any = module._buffers[name]
            if len(first) == len(self._values):  # nothing stands there yet: the copy is equal to the model still
                self._values.append(buffer.detach().clone())
            buffer_data, buffer.data = buffer.data, self._values[len(first)].clone()
            first.append((buffer, buffer_data))

        def note(module: nn.Module, inputs: Any) -> None:
            for place in _places(module):
                if place not in self._places:
                    self._places.append(place)
                    enter(*place)

        for place in self._places:
            enter(*place)
        handle = None if self._known else register_module_forward_pre_hook(note)
        try:
            with warnings.catch_warnings():
                if handle is not None:  # a compiled model says that it calls the hook twice, which does no harm
                    warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
                yield
            self._known = True
        finally:
            if handle is not None:
                handle.remove()
            for i, ((module, name), (buffer, data)) in enumerate(zip(self._places, first, strict=True)):
                now: Any = module._buffers[name]  # a module may have put a new tensor there
                if keep:
                    self._values[i] = now.detach()
                module._buffers[name], buffer.data = buffer, data

    def state(self) -> list[Tensor]:
        """The second set, to be saved."""
        return [value.clone() for value in self._values]

    def load(self, values: list[Tensor]) -> None:
        """Take up a saved set."""
        self._values = [value.clone() for value in values]

    def __getstate__(self) -> dict[str, Any]:
        # A copy of an optimizer belongs to other modules, which its first pass finds.
        return {"_places": [], "_known": False, "_values": self._values}


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for module in model.modules():
        yield from ((module, name) for name, buffer in module._buffers.items() if buffer is not None)
