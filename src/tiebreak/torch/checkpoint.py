"""The state of an optimizer: saved, checked, and restored.

``torch.distributed.checkpoint`` saves the state of each parameter, resharded with it, and the options of each group, and
nothing else. So what belongs to a parameter (a twin's value, an average) stands in that parameter's state, under names
that begin with "tiebreak". The numbers of the whole optimizer stand in every group, as one text in JSON: such a
checkpoint loads by key, and a text is one key.

Each part of the optimizer has its own state; this module packs them. It checks everything before it changes anything.
"""

import base64
import json
import math
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.torch.devices import store
from tiebreak.torch.diagnostics import warn_at_caller
from tiebreak.torch.distributed.consistency import fingerprint
from tiebreak.torch.distributed.layout import is_dtensor, local_tensor
from tiebreak.torch.kernels.foreach import accumulation_dtype
from tiebreak.torch.step_info import Step, unknown_step

VERSION = 1
KEY = "tiebreak"  # of a group's text and of a parameter's flags; begins every name
KINDS = ("copy", "base", "upper", "lower")  # of entries, in the order of the flags

#: What is saved for one parameter: by kind, values by name.
Entries: TypeAlias = dict[str, dict[str, Any]]
#: The state of one parameter, or the options of one group.
Values: TypeAlias = dict[str, Any]


class ParameterPart(Protocol):
    """A part of the optimizer that keeps something for each parameter."""

    def entries(self, p: Tensor) -> Entries:
        """Return what is kept for a parameter."""

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of everything that may be kept; `state` is the base's for the parameter."""


def pack_entries(
    parts: Sequence[ParameterPart],
    parameters: Sequence[Tensor],
    base_state: Mapping[Any, Any],
    complete: bool,
) -> list[Values]:
    """Return what is saved for each parameter, under the names of a state.

    A checkpoint is read into the state of an optimizer before its first step. So every trained parameter has the same
    names: where there is nothing yet stand zeros, and the flags say so. Without any entry there are no names at all,
    unless the state must be `complete`.
    """
    entries: list[Entries] = []
    for p in parameters:
        entries.append({})
        for part in parts:
            entries[-1] |= part.entries(p)
    if not complete and not any(entries):
        return [{} for _ in parameters]
    packed = []
    for p, saved in zip(parameters, entries, strict=True):
        every: Entries = {}
        if p.requires_grad:
            for part in parts:
                every |= part.placeholders(p, base_state.get(p, {}))
        every |= saved
        values: Values = {}
        if every:
            values[KEY] = sum(1 << KINDS.index(kind) for kind in saved)
        for kind, by_name in every.items():
            values |= {f"{KEY}_{kind}_{name}": v for name, v in by_name.items()}
        packed.append(values)
    return packed


class _ParameterState(NamedTuple):
    """The state of one parameter: the base's, and the entries of this library."""

    base: Values
    entries: Entries


def _unpack_entries(state: Values) -> _ParameterState:
    """Divide the state of one parameter; zeros that only kept a place are left out."""
    base = {name: value for name, value in state.items() if not _is_entry(name)}
    try:
        flags = int(state.get(KEY, 0))
    except (ValueError, OverflowError):
        raise ValueError(
            f"the flags {KEY!r} of a parameter are {state[KEY]!r}; they must be a whole number"
        ) from None
    entries: Entries = {}
    for number, kind in enumerate(KINDS):
        prefix = f"{KEY}_{kind}_"
        if flags >> number & 1:
            entries[kind] = {
                name.removeprefix(prefix): value
                for name, value in state.items()
                if str(name).startswith(prefix)
            }
    return _ParameterState(base, entries)


def _is_entry(name: object) -> bool:
    return isinstance(name, str) and (name == KEY or name.startswith(f"{KEY}_"))


class MergedState(MutableMapping[Tensor, Any]):
    """The base's state and this library's entries, by parameter. What is written goes to the base's state.

    `begun` makes an empty state true: ``torch.distributed.checkpoint`` asks a false one for a first step each time.
    """

    def __init__(
        self,
        base_state: MutableMapping[Any, Any],
        entries: Mapping[Tensor, Values],
        begun: bool,
    ) -> None:
        self._base = base_state
        self._entries = entries
        self._begun = begun

    def __getitem__(self, p: Tensor) -> Any:
        if p not in self._entries:
            return self._base[p]
        return ChainMap(self._base[p], self._entries[p])

    def __setitem__(self, p: Tensor, state: Any) -> None:
        self._base[p] = {n: v for n, v in state.items() if not _is_entry(n)}

    def __delitem__(self, p: Tensor) -> None:
        del self._base[p]

    def __iter__(self) -> Iterator[Any]:
        yield from self._base
        yield from (p for p in self._entries if p not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return self._begun or len(self) > 0


# --- values as text ------------------------------------------------------------


def as_json_values(owner: str, values: Values) -> Values:
    """Return values that JSON takes, a tensor of one element as its number; refuse others by name."""
    converted = {}
    for name, value in values.items():
        converted[name] = value.tolist() if isinstance(value, Tensor) else value
        try:
            json.dumps(converted[name])
        except TypeError:
            raise TypeError(
                f"{owner} has {name}={value!r}, which cannot be saved: it must be a number, a word, or a list of them"
            ) from None
    return converted


def write_tensor(tensor: Tensor) -> list[Any]:
    """Return a small tensor as text: its dtype, its shape and its bytes."""
    values = tensor.detach().cpu().contiguous()
    data = b""
    if values.numel():
        data = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(values.dtype).removeprefix("torch.")
    return [dtype, list(values.shape), base64.b64encode(data).decode("ascii")]


def read_tensor(text: Sequence[Any]) -> Tensor:
    """Return what `write_tensor` wrote.

    Examples
    --------
    >>> read_tensor(write_tensor(torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)))
    tensor([[1.5000, 2.5000]], dtype=torch.bfloat16)
    """
    dtype = getattr(torch, text[0])
    data = base64.b64decode(text[2])
    if not data:
        return torch.zeros(text[1], dtype=dtype)
    bytes_ = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return bytes_.view(dtype).reshape(text[1])


# --- saving --------------------------------------------------------------------


def save(opt: Any) -> Values:
    """Return the base's state with the optimizer's own in the state of each parameter and in each group."""
    if opt.is_combined:
        raise RuntimeError(
            "the state between opt.combine() and opt.step() is half a step's: save it before or after"
        )
    opt.check()
    for pre_hook in opt._optimizer_state_dict_pre_hooks.values():
        pre_hook(opt)
    copy = opt.model_copy
    if opt.twin is not None:
        opt.twin.adopt_options(opt.base, None)
    state: Values = opt.base.state_dict()
    entries = opt.parameter_entries()
    states = dict(state["state"])
    for i, values in enumerate(entries):
        if values:  # in a new mapping, because the base's own must not change
            states[i] = {**states.get(i, {}), **values}
    tolerance = opt.decision.tolerance
    common: Values = {
        "version": VERSION,
        "count": opt.count,
        "method": getattr(opt.decision.method, "name", None),
        "estimator": opt.estimates.kind,
        "law": as_json_values("the law", opt.memory.state_dict()),
        "noise": as_json_values("the noise", opt.noise.state),
        "tolerance": tolerance and [tolerance.amount, tolerance.relative],
        "copy": copy and copy.kind,
    }
    groups = []
    first = 0
    for i, group in enumerate(opt.base.param_groups):
        size = len(group["params"])
        count = sum(map(bool, entries[first : first + size]))
        text: Values = {"parameters": size, "kept": count}
        if copy is not None:
            text["options"] = copy.group_options(i, group)
            text["reached"] = copy.are_reached(group["params"])
            if i == 0:
                text["buffers"] = copy.buffers.state_dict()
        line = json.dumps(common | text, separators=(",", ":"))
        groups.append({**state["param_groups"][i], KEY: line})
        first += size
    state = {**state, "state": states, "param_groups": groups}
    _add_key(opt.base.param_groups)
    for post_hook in opt._optimizer_state_dict_post_hooks.values():
        state = post_hook(opt, state) or state
    return state


def _add_key(groups: Sequence[Values]) -> None:
    """Add the key to the groups themselves: a flattened checkpoint is read by the names that are there."""
    for group in groups:
        group.setdefault(KEY, "")


def is_state_request(groups: Sequence[Values]) -> bool:
    """Whether a step without any backward pass only asks for a state that a checkpoint can be read into.

    torch's ``get_state_dict`` and ``set_state_dict`` make such a step with zero gradients and a learning rate of 0.
    """
    groups = [group for group in groups if group["params"]]
    if any(bool(group.get("lr", 0) != 0) for group in groups):
        return False
    grads = []
    for group in groups:
        grads += [p.grad for p in group["params"] if p.requires_grad]
    return bool(grads) and all(
        grad is not None and not local_tensor(grad).any() for grad in grads
    )


def create_state(opt: Any) -> Step:
    """Make the base create its state, and reserve a place for every entry; the step does not count."""
    opt.base.step()
    opt.state_requested = True
    _add_key(opt.base.param_groups)
    return unknown_step(torch.tensor(torch.nan))


# --- loading -------------------------------------------------------------------


class _Checkpoint(NamedTuple):
    """A state, divided.

    Attributes
    ----------
    base : dict
        The state of the base optimizer.
    entries : list of Entries
        For each parameter, in order.
    groups : list of dict
        The text of each group; the first has the numbers of the whole optimizer.
    """

    base: Values
    entries: list[Entries]
    groups: list[Values]


def load(opt: Any, state: Values) -> None:
    """Restore a state; refuse one of another kind before anything changes."""
    for pre_hook in opt._optimizer_load_state_dict_pre_hooks.values():
        state = pre_hook(opt, state) or state
    parameters = opt.gradients.parameters()
    copy = opt.model_copy
    try:
        checkpoint = _divide(state, opt.param_groups)
        numbers = checkpoint.groups[0]
        opt.estimates.check(numbers["estimator"])
        opt.memory.check(numbers["law"])
        method = getattr(opt.decision.method, "name", None)
        _check_numbers(numbers, method, opt.decision.tolerance is not None)
        _check_copy_kind(numbers["copy"], copy and copy.kind)
        _check_noise(numbers["noise"], opt.noise.state)
        _check_entries(checkpoint.entries, parameters, opt.estimates)
        if copy is not None:
            copy.buffers.check(numbers["buffers"])
            options = [group["options"] for group in checkpoint.groups]
            _check_options(options, opt.base.param_groups)
            reached = _read_reached(checkpoint.groups, len(parameters))
    except (KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
        raise ValueError(
            "this is no state of such an optimizer, or not all of one "
            f"({type(error).__name__}: {error})"
        ) from None
    try:
        opt.base.load_state_dict(checkpoint.base)
    except Exception as error:  # torch looks at all of it before it changes anything
        raise ValueError(
            f"{type(opt.base).__name__}, the base, cannot load its part of the state: {error}"
        ) from error
    opt.count = int(numbers["count"])
    entries = dict(zip(parameters, checkpoint.entries, strict=True))
    opt.estimates.load(entries)
    opt.memory.load_state_dict(numbers["law"])
    _load_noise(opt.noise.state, numbers["noise"], parameters[0].device)
    if numbers["tolerance"] is not None:
        before = opt.tolerance
        opt.set_tolerance(*numbers["tolerance"])
        if before != opt.tolerance:
            warn_at_caller(
                f"the state has tolerance={opt.tolerance!r}, which takes the place of tolerance={before!r}: to go on "
                f"with another one set opt.tolerance = {before!r} after loading"
            )
    if copy is not None:
        copy.buffers.load_state_dict(numbers["buffers"])
        copy.load(opt.base, entries, options, reached)
    saved_numbers = [*numbers["law"].values(), *numbers["noise"].values()]
    opt.ranks.loaded_state = fingerprint([opt.count, *saved_numbers])
    opt.forget()
    _add_key(opt.base.param_groups)
    for post_hook in opt._optimizer_load_state_dict_post_hooks.values():
        post_hook(opt)


def _load_noise(state: Values, saved: Values, device: torch.device) -> None:
    for name, number in saved.items():
        value = None
        if number is not None:
            dtype = accumulation_dtype(device)
            value = torch.as_tensor(number, dtype=dtype, device=device)
            if state[name] is not None:
                value = value.to(state[name])
        store(state, name, value)


def _divide(state: Values, own_groups: Sequence[Values]) -> _Checkpoint:
    """Divide a state into the base's and the optimizer's own."""
    groups = state["param_groups"]
    texts = [group.get(KEY) for group in groups]
    if not any(texts):
        raise ValueError(
            f"this state was saved by another optimizer: its groups have no {KEY!r} (load it into `base` instead)"
        )
    if not all(texts):
        raise ValueError(
            f"some groups of this state have no {KEY!r}: it is made of the states of two optimizers"
        )
    numbers = [_read_text(text) for text in texts]
    states = {i: _unpack_entries(values) for i, values in state["state"].items()}
    entries: list[Entries] = []
    for text, group, own_group in zip(numbers, groups, own_groups, strict=False):
        size = len(group["params"])
        count = sum(KEY in state["state"].get(i, {}) for i in group["params"])
        # Nothing is saved for a parameter without numbers on this rank.
        empty = sum(local_tensor(p).numel() == 0 for p in own_group["params"])
        if size == text["parameters"] and count + empty < text["kept"]:
            raise ValueError(
                f"the state lacks what was saved for {text['kept'] - count} parameters, numbers {len(entries)} and on. "
                "torch's set_state_dict leaves out those with requires_grad=False: unfreeze them while it loads; with "
                "flatten_optimizer_state_dict=True call get_optimizer_state_dict before it"
            )
        for i in group["params"]:
            entries.append(states[i].entries if i in states else {})
    base: Values = {}
    for i, values in states.items():
        _check_twin_state(i, values.base, values.entries.get("base", {}))
        if values.base:
            base[i] = values.base
    plain_groups = []
    for group in groups:
        plain_groups.append({n: value for n, value in group.items() if n != KEY})
    whole_state = {**state, "state": base, "param_groups": plain_groups}
    return _Checkpoint(whole_state, entries, numbers)


def _read_text(text: str) -> Values:
    """Return what a group's text says."""
    try:
        numbers = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"a group's text in this state cannot be read: {error}"
        ) from None
    if not isinstance(numbers, dict):
        raise ValueError(
            f"a group's text in this state is {text!r}; it must be an object in JSON"[
                :200
            ]
        )
    for name in ("parameters", "kept"):
        _check_count(name, numbers.get(name))
    version = numbers.get("version")
    legal = f"{VERSION}, the form that this tiebreak writes"
    _require("version", version, legal, version == VERSION)
    return numbers


# --- checks of a state ----------------------------------------------------------


def _require(name: str, value: object, legal: str, holds: bool) -> None:
    if not holds:
        text = value if isinstance(value, str) else repr(value)
        raise ValueError(f"in this state {name} is {text[:200]}; it must be {legal}")


def _check_count(name: str, value: object) -> None:
    # A bool is an int, too.
    holds = type(value) is int and 0 <= value < 2**63
    _require(name, value, "a whole number ≥ 0", holds)


def _check_numbers(numbers: Values, method: str | None, has_tolerance: bool) -> None:
    saved = numbers["method"]
    _require("the method", saved, f"{method!r}, as this optimizer's", saved == method)
    _check_count("count", numbers["count"])
    tolerance = numbers["tolerance"]
    holds = tolerance is None
    if isinstance(tolerance, list) and len(tolerance) == 2:
        amount, relative = tolerance
        holds = _is_number(amount) and amount > 0 and isinstance(relative, bool)
    legal = "null, or a number > 0 and whether it is a share"
    _require("tolerance", tolerance, legal, holds)
    legal = "a number" if has_tolerance else "null"
    _require("tolerance", tolerance, legal, tolerance is None or has_tolerance)


def _check_noise(saved: Values, state: Values) -> None:
    legal = f"{' and '.join(state)}, numbers or null"
    _require("noise", saved, legal, set(saved) == set(state))
    values = list(saved.values())
    holds = all(v is None for v in values) or all(map(_is_number, values))
    _require("noise", saved, "finite numbers, or null all of them", holds)


def _check_copy_kind(saved: str | None, kind: str | None) -> None:
    if saved != kind:
        texts = [
            f'reference="{word}"' if word else "a reference without a copy"
            for word in (saved, kind)
        ]
        raise ValueError(
            f"the state was saved with {texts[0]}, and this optimizer has {texts[1]}: make it with the same"
        )


def _check_entries(
    entries: Sequence[Entries], parameters: Sequence[Tensor], estimates: ParameterPart
) -> None:
    """Raise unless the entries of each parameter have its shape."""
    count = len(parameters)
    legal = len(entries) == count
    _require("the number of parameters", str(len(entries)), str(count), legal)
    for i, (p, saved) in enumerate(zip(parameters, entries, strict=True)):
        places = estimates.placeholders(p, {})
        for level in ("upper", "lower"):
            if level in saved:
                _check_memory(i, level, saved[level], places.get(level, {}))
        value: Any = saved.get("copy", {"value": p}).get("value")
        name = f"the copy of parameter {i}"
        _require(name, repr(value)[:100], "a tensor of numbers", _is_numeric(value))
        if value.shape != p.shape or is_dtensor(value) != is_dtensor(p):
            raise ValueError(
                f"the state's copy of parameter {i} has shape {tuple(value.shape)} as a {type(value).__name__}, the "
                f"parameter has {tuple(p.shape)} as a {type(p.data).__name__}: where ranks share parameters load by "
                "torch.distributed.checkpoint.state_dict.set_state_dict"
            )


def _check_memory(i: int, level: str, saved: Values, places: Values) -> None:
    holds = set(saved) == set(places)
    for name in set(saved) & set(places):
        place = places[name]
        value = saved[name]
        if isinstance(place, Tensor):
            holds = holds and _is_numeric(value) and value.shape == place.shape
        else:
            holds = holds and _is_number(value)
    legal = f"{len(places)} values of its shape"
    _require(f"the {level} memory of parameter {i}", "what is there", legal, holds)


def _check_twin_state(i: object, base: Values, twin: Values) -> None:
    """Raise unless the twin's optimizer state of a parameter has the types of the base's."""
    for name in base.keys() & twin.keys():
        is_tensor = isinstance(base[name], Tensor)
        holds = is_tensor == isinstance(twin[name], Tensor)
        if not is_tensor:
            holds = holds and type(base[name]) is type(twin[name])
        legal = "of the type of the base's"
        _require(f"the twin's {name} of parameter {i}", twin[name], legal, holds)


def _check_options(options: Sequence[Values], groups: Sequence[Values]) -> None:
    """Raise unless options that are numbers in the base's groups are numbers in the twin's, too."""
    for saved, group in zip(options, groups, strict=False):
        for name, value in saved.items():
            current = group.get(name)
            is_number = isinstance(current, Tensor) or type(current) in (int, float)
            holds = not is_number or _is_number(value)
            legal = "a number, as the base's is"
            _require(f"the twin's option {name}", value, legal, holds)


def _read_reached(groups: Sequence[Values], count: int) -> list[bool]:
    """Return whether the lower loss has reached each parameter."""
    reached: list[bool] = []
    for group in groups:
        reached += group["reached"]
    holds = len(reached) == count and all(isinstance(flag, bool) for flag in reached)
    _require("reached", reached, f"{count} truths, one for each parameter", holds)
    return reached


def _is_numeric(value: object) -> bool:
    return isinstance(value, Tensor) and (
        value.is_floating_point() or value.is_complex()
    )


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and bool(torch.isfinite(value).all())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(floating(value))
