"""The modules that `model=` names, and the reference's values of their buffers (running means, counters)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from tiebreak.torch.packing import read_tensor, written_tensor


def modules_of(model: nn.Module | Sequence[nn.Module] | None) -> tuple[nn.Module, ...]:
    """Return the modules of a `model=` argument: one module, or several in a list or tuple."""
    if model is None:
        return ()
    modules = tuple(model) if isinstance(model, (list, tuple)) else (model,)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"model has a {type(module).__name__}; it must be a torch.nn.Module, or several in a list"
            )
    return modules


def parts_of(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return all modules inside `modules`, each once; by identity, because a module may define a hash."""
    return list(
        {id(part): part for module in modules for part in module.modules()}.values()
    )


class Buffers:
    """The reference's values of a model's buffers, which take the place of the model's values during a pass.

    Parameters
    ----------
    modules : sequence of Module
        The model. The reference has a value for each buffer that these modules have now.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        places: dict[
            int, tuple[nn.Module, str]
        ] = {}  # a buffer that modules share has the first place
        for part in parts_of(modules):
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    places.setdefault(id(buffer), (part, name))
        self._places = list(places.values())
        # The reference's values. None stands for the model's value; the first pass copies it.
        self._values: list[Tensor | None] = [None] * len(self._places)

    def take_over(self) -> None:
        """Set the model's buffers to the reference's values."""
        for buffer, value in self.pairs():
            buffer.data = value.to(buffer).clone()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return each buffer of the model with the reference's value of it, if there is one."""
        pairs = []
        for (module, name), value in zip(self._places, self._values, strict=True):
            buffer = module._buffers.get(name)
            if value is not None and buffer is not None:
                pairs.append((buffer, value))
        return pairs

    @contextmanager
    def exchanged(self, keep: bool) -> Iterator[None]:
        """Set the buffers to the reference's values inside; with `keep` the reference keeps what the pass changes."""
        entered: list[tuple[int, Tensor, Tensor]] = []
        try:
            for i, (module, name) in enumerate(self._places):
                buffer = module._buffers.get(name)
                if buffer is None:
                    continue
                entered.append((i, buffer, buffer.data))
                value = self._values[i]
                if value is None:
                    value = self._values[i] = buffer.detach().clone()
                buffer.data = value.to(buffer).clone()
            yield
        finally:
            for i, buffer, data in reversed(entered):
                module, name = self._places[i]
                after = module._buffers.get(
                    name
                )  # the module may have put a new tensor there
                if keep and after is not None:
                    self._values[i] = after.detach()
                module._buffers[name] = buffer
                buffer.data = data

    def state(self) -> dict[str, Any]:
        """Return the reference's values as text; a value that equals the model's buffer is None."""
        own = [module._buffers.get(name) for module, name in self._places]
        values = [
            _written(value, mine) for value, mine in zip(self._values, own, strict=True)
        ]
        return {"names": [_name(*place) for place in self._places], "values": values}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ValueError if `state` belongs to other buffers; TypeError and the like if it is no such state."""
        own = [_name(*place) for place in self._places]
        for saved, mine in zip_longest(state["names"], own, fillvalue="none"):
            if (
                saved.partition("[")[0] != mine.partition("[")[0]
            ):  # a pass may change the shape
                raise ValueError(
                    f"the state's reference has the buffer {saved}, and model= has {mine} in its place: give the same "
                    "model= when saving and when loading"
                )
        _read(state["values"], len(own))

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""
        self._values = _read(state["values"], len(self._places))


def _name(module: nn.Module, name: str) -> str:
    buffer = module._buffers.get(name)
    kind = next(
        c.__name__ for c in type(module).__mro__ if not c.__name__.startswith("FSDP")
    )  # fully_shard adds that
    return f"{kind}.{name}{[] if buffer is None else list(buffer.shape)}"


def _written(value: Tensor | None, own: Tensor | None) -> list[Any] | None:
    if value is None or (
        own is not None and value.shape == own.shape and torch.equal(value.to(own), own)
    ):
        return None
    return written_tensor(value)


def _read(values: Sequence[Any], count: int) -> list[Tensor | None]:
    if len(values) != count:
        raise ValueError(
            f"in this state the reference has {len(values)} values of buffers; it must be {count}"
        )
    return [None if value is None else read_tensor(value) for value in values]
