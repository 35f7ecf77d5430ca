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
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.methods import Method
from tiebreak.torch.diagnostics import warn_at_caller
from tiebreak.torch.distributed.consistency import fingerprint
from tiebreak.torch.distributed.layout import is_dtensor, local_tensor
from tiebreak.torch.step_info import Step, unknown_step

VERSION = 1
KEY = "tiebreak"  # of a group's text and of a parameter's flags; begins every name
#: The kinds of entries in words, in the order of the flags.
_WORDS = {
    "copy": "copy",
    "base": "twin's optimizer state",
    "upper": "upper memory",
    "lower": "lower memory",
}
KINDS = tuple(_WORDS)

#: The saved values of a parameter, by kind and name.
Entries: TypeAlias = dict[str, dict[str, Any]]
#: The state of a parameter, or the options of a group.
Values: TypeAlias = dict[str, Any]


class ParameterPart(Protocol):
    """A part of the optimizer that keeps something for each parameter."""

    def entries(self, p: Tensor) -> Entries:
        """Return what is kept for a parameter."""

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of everything that may be kept; `state` is the base's for the parameter."""


def pack_entries(
    part: ParameterPart,
    parameters: Sequence[Tensor],
    base_state: Mapping[Any, Any],
    complete: bool,
) -> list[Values]:
    """Return what is saved for each parameter, under the names of a state.

    A checkpoint is read into the state of an optimizer before its first step. So every trained parameter has the same
    names: where there is nothing yet stand zeros, and the flags say so. Without any entry there are no names at all,
    unless the state must be `complete`.
    """
    entries = [part.entries(p) for p in parameters]
    if not complete and not any(entries):
        return [{} for _ in parameters]
    packed = []
    for p, saved in zip(parameters, entries, strict=True):
        places: Entries = {}
        if p.requires_grad:
            places = part.placeholders(p, base_state.get(p, {}))
        values: Values = {}
        if places or saved:
            values[KEY] = sum(1 << KINDS.index(kind) for kind in saved)
        for kind, by_name in (places | saved).items():
            values |= {f"{KEY}_{kind}_{name}": v for name, v in by_name.items()}
        packed.append(values)
    return packed


class _ParameterState(NamedTuple):
    """The state of one parameter: the base's, and the entries of this library."""

    base: Values
    entries: Entries


def _unpack_entries(state: Values) -> _ParameterState:
    """Divide the state of one parameter; zeros that only kept a place are left out."""
    flags = state.get(KEY, 0)
    _require(f"a parameter's {KEY!r}", flags, "a whole number", _is_number(flags))
    kinds = [kind for i, kind in enumerate(KINDS) if int(flags) >> i & 1]
    entries: Entries = {kind: {} for kind in kinds}
    base: Values = {}
    for name, value in state.items():
        if not _is_entry(name):
            base[name] = value
            continue
        _, _, entry = name.partition("_")
        kind, _, entry_name = entry.partition("_")
        if kind in entries:
            entries[kind][entry_name] = value
    return _ParameterState(base, entries)


def _is_entry(name: object) -> bool:
    return isinstance(name, str) and name.partition("_")[0] == KEY


class MergedState(ChainMap[Any, Any]):
    """The base's state and this library's entries, by parameter. What is written goes to the base's state.

    ``torch.distributed.checkpoint`` makes a dummy step if a state is false; `begun` makes an empty state true.
    """

    def __init__(
        self,
        base_state: MutableMapping[Any, Any],
        entries: MutableMapping[Any, Values],
        begun: bool,
    ) -> None:
        super().__init__(base_state, entries)
        self._begun = begun

    def __getitem__(self, p: Tensor) -> Any:
        base_state, entries = self.maps
        if p in entries:
            return ChainMap(base_state[p], entries[p])
        return base_state[p]

    def __setitem__(self, p: Tensor, state: Any) -> None:
        self.maps[0][p] = _unpack_entries(state).base

    def __bool__(self) -> bool:
        return self._begun or any(self.maps)


# --- values as text ------------------------------------------------------------


def as_json_values(owner: str, values: Values) -> Values:
    """Return values that JSON takes, a tensor of one element as its number; refuse others by name."""
    converted = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            converted[name] = value.tolist()
        else:
            converted[name] = value
        try:
            json.dumps(converted[name])
        except TypeError:
            raise TypeError(
                f"{owner} has {name}={value!r}, which cannot be saved: it must be a number, a word, or a list of them"
            ) from None
    return converted


def write_tensor(tensor: Tensor) -> list[Any]:
    """Return a small tensor as text: its dtype, its shape and its bytes."""
    values = tensor.detach().cpu().contiguous().reshape(-1)
    data = values.view(torch.uint8).numpy().tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [dtype, list(tensor.shape), base64.b64encode(data).decode("ascii")]


def read_tensor(text: Sequence[Any]) -> Tensor:
    """Return what `write_tensor` wrote.

    Examples
    --------
    >>> read_tensor(write_tensor(torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)))
    tensor([[1.5000, 2.5000]], dtype=torch.bfloat16)
    """
    dtype, shape, data = text
    values = np.frombuffer(bytearray(base64.b64decode(data)), np.uint8)
    return torch.from_numpy(values).view(getattr(torch, dtype)).reshape(shape)


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
    settings = _settings(opt.decision.method, opt.estimates.kind, copy)
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
        "settings": settings,
        "law": as_json_values("the law", opt.memory.state_dict()),
        "tolerance": tolerance and [tolerance.amount, tolerance.relative],
    }
    entries_left = iter(entries)
    groups = []
    for i, group in enumerate(opt.base.param_groups):
        parameters = group["params"]
        saved = islice(entries_left, len(parameters))
        text = common | {"kept": sum(map(bool, saved))}
        if copy is not None:
            text["options"] = copy.group_options(i, group)
            text["reached"] = copy.are_reached(parameters)
            if i == 0:
                text["buffers"] = copy.buffers.state_dict()
        line = json.dumps(text, separators=(",", ":"))
        groups.append({**state["param_groups"][i], KEY: line})
    state = {**state, "state": states, "param_groups": groups}
    _add_key(opt.base.param_groups)
    for post_hook in opt._optimizer_state_dict_post_hooks.values():
        state = post_hook(opt, state) or state
    return state


def _settings(method: Method | None, estimator: str, copy: Any) -> Values:
    """Return what an optimizer must have in common with a state that it loads."""
    return {
        "method": method and method.name,
        "estimator": estimator,
        "copy of the model": copy and copy.kind,
    }


def _add_key(groups: Sequence[Values]) -> None:
    """Add the key to the groups themselves: a flattened checkpoint is read by the names that are there."""
    for group in groups:
        group.setdefault(KEY, "")


def is_state_request(groups: Sequence[Values]) -> bool:
    """Whether a step without any backward pass only asks for a state that a checkpoint can be read into.

    torch's ``get_state_dict`` and ``set_state_dict`` make such a step with zero gradients and a learning rate of 0.
    """
    grads = []
    for group in groups:
        if group["params"] and bool(group.get("lr", 0) != 0):
            return False
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
    parameters : list of _ParameterState
        Of each parameter, in order.
    groups : list of dict
        The text of each group; the first has the numbers of the whole optimizer.
    """

    base: Values
    parameters: list[_ParameterState]
    groups: list[Values]


def load(opt: Any, state: Values) -> None:
    """Restore a state; refuse one of another kind before anything changes."""
    for pre_hook in opt._optimizer_load_state_dict_pre_hooks.values():
        state = pre_hook(opt, state) or state
    parameters = opt.gradients.parameters()
    copy = opt.model_copy
    settings = _settings(opt.decision.method, opt.estimates.kind, copy)
    try:
        checkpoint = _divide(state, opt.param_groups)
        numbers = checkpoint.groups[0]
        law = numbers["law"]
        tolerance = numbers["tolerance"]
        for name, value in settings.items():
            saved = numbers["settings"][name]
            legal = f"{value!r}, as this optimizer's"
            _require(f"the {name}", saved, legal, saved == value)
        opt.memory.check(law)
        holds = (tolerance is None) == (opt.decision.tolerance is None)
        _require("tolerance", tolerance, "null with a rule alone", holds)
        _check_entries(checkpoint.parameters, parameters, opt.parameter_part())
        base_groups = checkpoint.base["param_groups"]
        _check_group_names(base_groups, opt.base.defaults)
        _check_options("the base's", base_groups, opt.base.param_groups)
        _check_types("the base's", [saved.base for saved in checkpoint.parameters])
        if copy is not None:
            copy.buffers.check(numbers["buffers"])
            options = [group["options"] for group in checkpoint.groups]
            _check_options("the twin's", options, opt.base.param_groups)
            reached = _read_reached(checkpoint.groups, len(parameters))
    except Exception as error:
        if type(error) is ValueError:  # a check has refused the state
            raise
        raise ValueError(
            "this is no state of such an optimizer, or not all of one "
            f"({type(error).__name__}: {error})"
        ) from None
    base_before = (opt.base.state, opt.base.param_groups)
    try:
        opt.base.load_state_dict(checkpoint.base)
    except Exception as error:
        opt.base.state, opt.base.param_groups = base_before
        raise ValueError(
            f"{type(opt.base).__name__}, the base, cannot load its part of the state: {error}"
        ) from error
    opt.count = numbers["count"]
    saved_entries = [saved.entries for saved in checkpoint.parameters]
    entries = dict(zip(parameters, saved_entries, strict=True))
    opt.estimates.load(entries)
    opt.memory.load_state_dict(law)
    if tolerance is not None:
        before = opt.tolerance
        opt.set_tolerance(*tolerance)
        if before != opt.tolerance:
            warn_at_caller(
                f"the state has tolerance={opt.tolerance!r}, which takes the place of tolerance={before!r}: to go on "
                f"with another one set opt.tolerance = {before!r} after loading"
            )
    if copy is not None:
        copy.buffers.load_state_dict(numbers["buffers"])
        copy.load(opt.base, entries, options, reached)
    opt.ranks.loaded_state = fingerprint([opt.count, *law.values()])
    opt.forget()
    _add_key(opt.base.param_groups)
    for post_hook in opt._optimizer_load_state_dict_post_hooks.values():
        post_hook(opt)


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
    numbers = [json.loads(text) for text in texts]
    states = {i: _unpack_entries(values) for i, values in state["state"].items()}
    parameters: list[_ParameterState] = []
    for text, group, own_group in zip(numbers, groups, own_groups, strict=False):
        for name, (legal, is_legal) in _LEGAL.items():
            _require(name, text.get(name), legal, is_legal(text.get(name)))
        count = sum(KEY in state["state"].get(i, {}) for i in group["params"])
        # Nothing is saved for a parameter without numbers on the rank.
        empty = sum(local_tensor(p).numel() == 0 for p in own_group["params"])
        if count + empty < text["kept"]:
            raise ValueError(
                f"the state lacks what was saved for {text['kept'] - count} parameters, numbers {len(parameters)} and "
                "on. torch's set_state_dict leaves out those with requires_grad=False: unfreeze them while it loads; "
                "with flatten_optimizer_state_dict=True call get_optimizer_state_dict before it"
            )
        nothing = _ParameterState({}, {})
        parameters += [states.get(i, nothing) for i in group["params"]]
    base = {i: saved.base for i, saved in states.items() if saved.base}
    plain_groups = []
    for group in groups:
        plain_groups.append({n: value for n, value in group.items() if n != KEY})
    base_state = {**state, "state": base, "param_groups": plain_groups}
    return _Checkpoint(base_state, parameters, numbers)


# --- checks of a state ----------------------------------------------------------


def _require(name: str, value: object, legal: str, holds: bool) -> None:
    if not holds:
        if isinstance(value, str):
            text = value
        else:
            text = repr(value)
        raise ValueError(f"in this state {name} is {text[:200]}; it must be {legal}")


def _is_count(value: object) -> bool:
    # A bool is an int, too.
    return type(value) is int and 0 <= value < 2**63


def _is_tolerance(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return value is None
    amount, relative = value
    return _is_number(amount) and amount > 0 and isinstance(relative, bool)


#: Legal values in the text of each group: by name, in words and as a function.
_LEGAL: dict[str, tuple[str, Callable[[object], bool]]] = {
    "version": (
        f"{VERSION}, the form that this tiebreak writes",
        lambda value: value == VERSION,
    ),
    "count": ("a whole number ≥ 0", _is_count),
    "kept": ("a whole number ≥ 0", _is_count),
    "tolerance": ("null, or a number > 0 and whether it is a share", _is_tolerance),
}


def _check_entries(
    saved_states: Sequence[_ParameterState],
    parameters: Sequence[Tensor],
    part: ParameterPart,
) -> None:
    """Raise unless the entries of each parameter are like those that the optimizer would save."""
    count = len(parameters)
    holds = len(saved_states) == count
    _require("the number of parameters", len(saved_states), str(count), holds)
    for i, (p, saved) in enumerate(zip(parameters, saved_states, strict=True)):
        places = part.placeholders(p, saved.base)
        for kind, values in saved.entries.items():
            forms = {n: _form(v) for n, v in values.items()}
            legal = {n: _form(v) for n, v in places.get(kind, values).items()}
            name = f"the {_WORDS[kind]} of parameter {i}"
            advice = (
                "where ranks share parameters, load by torch.distributed.checkpoint"
            )
            _require(name, forms, f"{legal}; {advice}", forms == legal)


def _form(value: object) -> str:
    """Describe the type of a value and, if it is a tensor, its shape."""
    if not isinstance(value, Tensor):
        if _is_number(value):
            return "a number"
        return f"a {type(value).__name__}"
    if value.is_floating_point():
        form = "numbers"
    else:
        form = str(value.dtype)
    if value.is_complex():
        form = "complex numbers"
    form += f" of shape {tuple(value.shape)}"
    if is_dtensor(value):
        return f"a DTensor of {form}"
    return f"a tensor of {form}"


def _check_group_names(groups: Sequence[Values], defaults: Values) -> None:
    """Raise unless every group has the base's options that are numbers: torch fills in the others."""
    for group in groups:
        for name, value in defaults.items():
            if _is_number(value):
                _require(f"option {name}", "missing", "a number", name in group)


def _check_options(
    owner: str, options: Sequence[Values], groups: Sequence[Values]
) -> None:
    """Raise unless options have the types that they have in the base's groups now."""
    for saved, group in zip(options, groups, strict=False):
        for name, value in saved.items():
            current = group.get(name)
            holds = True
            if _is_number(current):
                holds = _is_number(value)
            elif current is None or isinstance(current, bool):
                holds = value is None or isinstance(value, (bool, int, float))
            elif isinstance(current, tuple):
                holds = isinstance(value, (tuple, list)) and len(value) == len(current)
            if _is_number(current):
                legal = "a number, as the base's is"
            else:
                legal = repr(current)
            _require(f"{owner} option {name}", value, legal, holds)


def _check_types(owner: str, states: Sequence[Values]) -> None:
    """Raise if a value that is a tensor for other parameters is something else for one of them.

    Shapes and missing values are the base's: it may treat parameters differently.
    """
    tensors = set()
    for state in states:
        tensors |= {name for name, value in state.items() if isinstance(value, Tensor)}
    for i, state in enumerate(states):
        for name in tensors & state.keys():
            value = state[name]
            holds = value is None or isinstance(value, (Tensor, int, float))
            text = f"{owner} {name} of parameter {i}"
            _require(text, value, "a tensor, as of other parameters", holds)


def _read_reached(groups: Sequence[Values], count: int) -> list[bool]:
    """Return whether the lower loss has reached each parameter."""
    reached: list[bool] = []
    for group in groups:
        reached += group["reached"]
    holds = len(reached) == count and all(isinstance(flag, bool) for flag in reached)
    _require("reached", reached, f"{count} truths, one for each parameter", holds)
    return reached


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and bool(torch.isfinite(value).all())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(floating(value))
