"""A frozen copy of the model, ``reference="start"``, and other values in the place of the model's for one pass.

A copy has values for the model's parameters and buffers. :mod:`~tiebreak.torch.twin` has the copy that is trained.

FSDP gathers the pieces of the parameters for a pass and may keep them for the next one. So its modules release them
before and after a swap. FSDP knows its pieces by their memory: the numbers of a flat parameter and of a DTensor are
exchanged in place, and other tensors exchange their storage.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak.options import START
from tiebreak.torch.backward import Loss
from tiebreak.torch.checkpoint import (
    Entries,
    read_tensor,
    write_tensor,
)
from tiebreak.torch.distributed.layout import (
    Wrappers,
    local_tensor,
    parts_of,
)
from tiebreak.torch.reference import Reference, missing_reference

#: Options of a parameter group, without its parameters.
Options: TypeAlias = dict[str, Any]


class ModelCopy(Reference):
    """Other values for the parameters and buffers of the model: as training started with ``reference="start"``.

    Parameters
    ----------
    modules : sequence of Module
        The model, whose buffers the copy has, too.
    """

    kind = START
    needs_model = True
    keeps_buffers = False  # whether buffer changes of a pass stay in the copy

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.values: dict[Tensor, Tensor] = {}
        self.buffers = Buffers(modules)

    def __repr__(self) -> str:
        return repr(self.kind)

    @property
    def begun(self) -> bool:
        """Whether the copy exists: its first use makes it, of the model at that time."""
        return bool(self.values)

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the loss that the copy had on the batch."""
        if loss is None:
            raise missing_reference(
                "closures, step(upper=…, lower=…), or `with opt.reference(): r = …` and "
            )
        return loss

    def follow(self, base: Optimizer) -> None:
        """Add values for parameters that joined the base, and follow a model that was moved.

        A frozen parameter has no value here: the copy uses the model's.
        """
        new = []
        for group in base.param_groups:
            for p in group["params"]:
                if p.requires_grad and p not in self.values:
                    new.append(p)
        if new:
            check_separate_memory([*self.values, *new])
            self.values |= {p: p.detach().clone() for p in new}
        for p, value in self.values.items():
            if value.dtype != p.dtype or value.device != p.device:
                value.data = value.data.to(device=p.device, dtype=p.dtype)

    @contextmanager
    def in_place_of_model(
        self, generators: Sequence[torch.Generator], wrappers: Wrappers
    ) -> Iterator[None]:
        """Give the model the copy's values inside; random numbers are afterwards as they were before."""
        state = RandomState(generators)
        swap_parameters(self.values, wrappers)
        try:
            with self.buffers.swapped(keep=self.keeps_buffers):
                yield
        finally:
            swap_parameters(self.values, wrappers)
            state.restore()

    def reached_values(self) -> dict[Tensor, Tensor]:
        """Return the values of parameters that the lower loss has reached; a frozen copy has all."""
        return self.values

    def are_reached(self, parameters: Sequence[Tensor]) -> list[bool]:
        """Whether the lower loss has reached each of these parameters, to be saved."""
        return [p in self.values for p in parameters]

    # --- saving ---------------------------------------------------------------

    def entries(self, p: Tensor) -> Entries:
        """Return what the copy keeps for a parameter."""
        if p in self.values:
            return {"copy": {"value": self.values[p]}}
        return {}

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of :meth:`entries`; `state` is what the base keeps for the parameter."""
        return {"copy": {"value": torch.zeros_like(p)}}

    def group_options(self, i: int, group: Options) -> Options:
        """Return the options that differ from those of the base's group `i`."""
        return {}

    def load(
        self,
        base: Optimizer,
        entries: Mapping[Tensor, Entries],
        options: Sequence[Options],
        reached: Sequence[bool],
    ) -> None:
        """Restore the values; `reached` is what :meth:`are_reached` returned for all parameters."""
        self.values = {}
        for p, saved in entries.items():
            if "copy" in saved:
                value = saved["copy"]["value"].detach().clone()
                self.values[p] = value.to(device=p.device, dtype=p.dtype)
        if self.values:
            self.follow(base)


def check_separate_memory(parameters: Iterable[Tensor]) -> None:
    """Raise ValueError if two parameters share memory: values of their own would part them."""
    shapes: dict[int, tuple[int, ...]] = {}
    for p in parameters:
        if local_tensor(p).numel():
            place = local_tensor(p).data_ptr()
        else:
            place = 0
        if place in shapes:
            raise ValueError(
                f"two parameters of shapes {shapes[place]} and {tuple(p.shape)} share their memory, which a copy of the "
                "model would separate: tie them as one parameter, second.weight = first.weight"
            )
        if place:
            shapes[place] = tuple(p.shape)


# --- other values in the place of the model's ---------------------------------------


@torch.no_grad()
def swap_parameters(values: Mapping[Tensor, Tensor], wrappers: Wrappers) -> None:
    """Exchange the values of parameters with others: all of them, or none if an exception interrupts it."""
    release_gathered(wrappers)
    exchanged = []
    try:
        for p, value in values.items():
            _exchange(p, value)
            exchanged.append((p, value))
    except BaseException:
        for p, value in exchanged:
            _exchange(p, value)
        raise
    # The cache may hold the former values in another precision.
    torch.clear_autocast_cache()


def _exchange(p: Tensor, value: Tensor) -> None:
    is_flat = getattr(p, "_fsdp_flattened", False)
    if is_flat or type(p) not in (Tensor, nn.Parameter):
        piece = local_tensor(p)
        before = piece.clone()
        piece.copy_(local_tensor(value))
        local_tensor(value).copy_(before)
    else:
        p.data, value.data = value.data, p.data


def release_gathered(wrappers: Wrappers) -> None:
    """Make FSDP release the parameters that it has gathered, because their values are about to change."""
    for module in wrappers.ddp:
        if getattr(module, "mixed_precision", None) is not None:
            raise RuntimeError(
                "DistributedDataParallel(mixed_precision=…) exchanges the parameters itself, and cannot be taken to a "
                'second point (a twin, a frozen copy): use torch.autocast, or reference="given"'
            )
    for module in wrappers.sharded:
        module.reshard()
    for module in wrappers.flat:
        handle = module._handle
        # FSDP sets `_local_shard` in the first pass.
        begun = handle is not None and hasattr(handle.flat_param, "_local_shard")
        if begun and handle.uses_sharded_strategy:
            handle.reshard(True)


class RandomState:
    """The state of every random generator that a closure may use, so that a second call draws the same numbers.

    Parameters
    ----------
    generators : sequence of torch.Generator
        Private generators, beside the global ones of Python, NumPy and torch.
    """

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._private = [(g, g.get_state()) for g in generators]
        self._torch = torch.get_rng_state()
        self._cuda = []
        if torch.cuda.is_available():
            self._cuda = torch.cuda.get_rng_state_all()
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002  # users draw from it

    def restore(self) -> None:
        """Set all generators to their saved states."""
        for generator, state in self._private:
            generator.set_state(state)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002  # likewise


class Buffers:
    """The reference's values of a model's buffers (running means, counters).

    Parameters
    ----------
    modules : sequence of Module
        The model. The reference has a value for each buffer that these modules have now.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # A buffer that modules share counts once, at its first place.
        places: dict[int, tuple[nn.Module, str]] = {}
        for part in parts_of(modules):
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    places.setdefault(id(buffer), (part, name))
        self._places = list(places.values())
        # None stands for the model's value; the first pass copies it.
        self._values: list[Tensor | None] = [None] * len(self._places)

    def copy_to_model(self) -> None:
        """Set the model's buffers to the reference's values."""
        for buffer, value in self.pairs():
            buffer.data = value.to(buffer).clone()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return each buffer of the model with the reference's value of it, if there is one."""
        pairs = []
        for buffer, value in zip(self._current(), self._values, strict=True):
            if value is not None and buffer is not None:
                pairs.append((buffer, value))
        return pairs

    def _current(self) -> list[Tensor | None]:
        return [module._buffers.get(name) for module, name in self._places]

    @contextmanager
    def swapped(self, keep: bool) -> Iterator[None]:
        """Set the buffers to the reference's values inside; with `keep` the reference keeps what the pass changes."""
        entered: list[tuple[int, Tensor, Tensor]] = []
        try:
            for i, buffer in enumerate(self._current()):
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
                after = module._buffers.get(name)  # a pass may replace the tensor
                if keep and after is not None:
                    self._values[i] = after.detach()
                module._buffers[name] = buffer
                buffer.data = data

    def state_dict(self) -> dict[str, Any]:
        """Return the reference's values as text; a value that equals the model's buffer is None."""
        values: list[Any] = []
        for value, buffer in zip(self._values, self._current(), strict=True):
            if value is None or _equals_buffer(value, buffer):
                values.append(None)
            else:
                values.append(write_tensor(value))
        return {"names": self._names(), "values": values}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ValueError if `state` belongs to other buffers; TypeError and the like if it is no such state."""
        for saved, name in zip_longest(state["names"], self._names(), fillvalue="none"):
            # The part behind the bracket is the shape, which a pass may change.
            if saved.partition("[")[0] != name.partition("[")[0]:
                raise ValueError(
                    f"the state's reference has the buffer {saved}, and model= has {name} in its place: give the same "
                    "model= when saving and when loading"
                )
        self._read(state["values"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._values = self._read(state["values"])

    def _names(self) -> list[str]:
        return [_name(module, name) for module, name in self._places]

    def _read(self, values: Sequence[Any]) -> list[Tensor | None]:
        count = len(self._places)
        if len(values) != count:
            raise ValueError(
                f"in this state the reference has {len(values)} values of buffers; it must be {count}"
            )
        return [None if value is None else read_tensor(value) for value in values]


def _name(module: nn.Module, name: str) -> str:
    buffer = module._buffers.get(name)
    # fully_shard gives a module a class whose name begins with FSDP.
    kind = next(
        c.__name__ for c in type(module).__mro__ if not c.__name__.startswith("FSDP")
    )
    if buffer is None:
        shape = []
    else:
        shape = list(buffer.shape)
    return f"{kind}.{name}{shape}"


def _equals_buffer(value: Tensor, buffer: Tensor | None) -> bool:
    if buffer is None or value.shape != buffer.shape:
        return False
    return torch.equal(value.to(buffer), buffer)
