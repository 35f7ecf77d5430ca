"""The state of an optimizer: saved whole, and checked before anything is replaced by it."""

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiebreak.torch import packing, soundness
from tiebreak.torch.agreement import folded
from tiebreak.torch.context import store
from tiebreak.torch.packing import KEY
from tiebreak.torch.record import RESIDUES, Step, record
from tiebreak.torch.room import shown
from tiebreak.torch.rows import wide
from tiebreak.torch.said import warn

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["begin", "load", "only_to_begin", "state_of"]

_VERSION = 1


def state_of(opt: "DynamicBarrier") -> dict[str, Any]:
    """The base's state, with the optimizer's own in the state of each parameter and in each group."""
    if opt._held is not None:
        raise RuntimeError("the state between opt.combine() and opt.step() is half a step's: save it before or after")
    opt.check()
    for before in opt._optimizer_state_dict_pre_hooks.values():
        before(opt)
    if opt.target.copy is not None:
        opt.target.copy.catch_up(opt)
    state: dict[str, Any] = opt.base.state_dict()
    own = packing.entries(opt, list(opt.gradients.parameters()))
    by_number = dict(state["state"])
    for i, mine in enumerate(own):
        if mine:  # a new mapping: the base's own must not change
            by_number[i] = {**by_number.get(i, {}), **mine}
    texts = _texts(opt, own)
    groups = [{**group, KEY: mine} for group, mine in zip(state["param_groups"], texts, strict=True)]
    state = {**state, "state": by_number, "param_groups": groups}
    _announce(opt)
    for after in opt._optimizer_state_dict_post_hooks.values():
        state = after(opt, state) or state
    return state


def _texts(opt: "DynamicBarrier", own: list[dict[str, Any]]) -> list[str]:
    """For each group: the numbers of the whole optimizer, and what belongs to the group."""
    copy, given = opt.target.copy, opt.decision.tolerance
    common: dict[str, Any] = {"version": _VERSION, "count": opt.count}
    common |= {"estimator": type(opt.estimates.estimator).__name__}
    common |= {"law": packing.as_numbers("the law", opt.memory.state_dict())}
    common |= {"noise": packing.as_numbers("the noise", opt.noise.state)}
    common |= {"tolerance": None if given is None else [given.amount, given.relative]}
    common |= {"headroom": opt.headroom}
    common |= {"copy": None if copy is None else "twin" if copy.twin else "start"}
    texts, first = [], 0
    for i, group in enumerate(opt.base.param_groups):
        size = len(group["params"])
        mine: dict[str, Any] = {"parameters": size, "kept": sum(map(bool, own[first : first + size]))}
        if copy is not None:
            mine["options"] = copy.options(i, group)
            mine |= {"buffers": copy.buffers.state()} if i == 0 else {}
        texts.append(packing.text(common | mine))
        first += size
    return texts


def _announce(opt: "DynamicBarrier") -> None:
    """Name the key in the groups themselves: a flattened checkpoint is read by the names that are there."""
    for group in opt.base.param_groups:
        group.setdefault(KEY, "")


# --- to be read into --------------------------------------------------------------------------------------------------


def only_to_begin(opt: "DynamicBarrier") -> bool:
    """Whether a step without any backward pass is meant to make a state that a checkpoint can be read into.

    So do torch's ``get_state_dict`` and ``set_state_dict``: zero gradients and a learning rate of 0.
    """
    if opt.gradients.seen or opt.gradients.owner is not None or opt._held is not None:
        return False
    groups = [group for group in opt.param_groups if group["params"]]
    if any(bool(group.get("lr", 0) != 0) for group in groups):
        return False
    grads = [p.grad for group in groups for p in group["params"] if p.requires_grad]
    return bool(grads) and all(grad is not None and not _local(grad).any() for grad in grads)


def begin(opt: "DynamicBarrier") -> Step:
    """Let the base make its state, and have a place for everything of ours; nothing counts as begun."""
    opt.base.step()
    opt.asked = True
    _announce(opt)
    unknown = torch.tensor(torch.nan)
    return record([unknown] * len(RESIDUES), (None, None), torch.tensor(True))


def _local(tensor: Any) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]  # a DTensor's


# --- loading ----------------------------------------------------------------------------------------------------------


@dataclass
class _Saved:
    """A state, read: the base's, what every parameter has, and the numbers."""

    base: dict[str, Any]
    kept: list[packing.Kept]  # in the order of the parameters
    numbers: dict[str, Any]
    options: list[dict[str, Any]]  # of a twin's groups
    buffers: dict[str, Any]


def load(opt: "DynamicBarrier", state: dict[str, Any]) -> None:
    """Take up a state; one of another kind is refused before anything is changed."""
    for before in opt._optimizer_load_state_dict_pre_hooks.values():
        state = before(opt, state) or state
    try:
        saved = _checked(opt, state)
    except (KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
        raise soundness.explained(error) from None
    parameters, numbers, copy = list(opt.gradients.parameters()), saved.numbers, opt.target.copy
    try:
        opt.base.load_state_dict(saved.base)
    except Exception as error:  # it changes nothing before it has looked at all
        raise ValueError(f"{type(opt.base).__name__}, the base, cannot load its part of the state: {error}") from error
    opt.count = int(numbers["count"])
    opt.estimates.load(parameters, saved.kept)
    opt.memory.load_state_dict(numbers["law"])
    home = parameters[0].device
    for name, value in numbers["noise"].items():
        there = opt.noise.state[name]
        value = None if value is None else torch.as_tensor(value, dtype=wide(home), device=home)
        store(opt.noise.state, name, value if there is None or value is None else value.to(there))
    if numbers["tolerance"] is not None:
        given = opt.tolerance
        opt.allow(*numbers["tolerance"])
        if given != opt.tolerance:
            text = (
                f"the state has tolerance={opt.tolerance!r}, which takes the place of tolerance={given!r}: to go on "
                f"with another one set opt.tolerance = {given!r} after loading"
            )
            warn(text)
    if numbers["headroom"] != opt.headroom:
        then, now = shown(numbers["headroom"]), shown(opt.headroom)
        warn(f"the state was saved with headroom={then}; the run goes on with {now}")
    if copy is not None:
        copy.load(opt, saved.kept, saved.options, saved.buffers)
    law = {name: value for name, value in numbers["law"].items() if name != "rate"}  # stages may have their own
    opt.ranks.loaded = folded([opt.count, *law.values(), *numbers["noise"].values()])
    opt.forget()
    _announce(opt)
    for after in opt._optimizer_load_state_dict_post_hooks.values():
        after(opt)


def _checked(opt: "DynamicBarrier", state: dict[str, Any]) -> _Saved:
    """The state, if it can be taken up by this optimizer."""
    saved = _read(opt, state)
    numbers, copy = saved.numbers, opt.target.copy
    opt.estimates.check(numbers["estimator"])
    opt.memory.check(numbers["law"])
    kinds = numbers["copy"], None if copy is None else "twin" if copy.twin else "start"
    if kinds[0] != kinds[1]:
        theirs, own = (f'reference="{kind}"' if kind else "a reference without a copy" for kind in kinds)
        raise ValueError(f"the state was saved with {theirs}, and this optimizer has {own}: make it with the same")
    for i, (p, mine) in enumerate(zip(opt.gradients.parameters(), saved.kept, strict=False)):
        _check_alike(i, p, mine)
    soundness.check(opt, numbers, saved.kept, saved.options, saved.buffers)
    return saved


def _read(opt: "DynamicBarrier", state: dict[str, Any]) -> _Saved:
    groups = state["param_groups"]
    texts = [group.get(KEY) for group in groups]
    if not any(texts):
        raise ValueError(
            f"this state was saved by another optimizer: its groups have no {KEY!r} (load it into `base` instead)"
        )
    if not all(texts):
        raise ValueError(f"some groups of this state have no {KEY!r}: it is made of the states of two optimizers")
    written = [soundness.read_text(text) for text in texts]
    if written[0]["version"] != _VERSION:
        raise ValueError(f"this state has the form {written[0]['version']}; this version of tiebreak reads {_VERSION}")
    parts = {i: packing.split(mine) for i, mine in state["state"].items()}
    for i, (theirs, ours) in parts.items():
        soundness.check_twin(i, theirs, ours.get("base", {}))
    kept = [parts[i][1] if i in parts else {} for i in chain.from_iterable(group["params"] for group in groups)]
    first = 0
    for mine, group, there in zip(written, groups, opt.param_groups, strict=False):
        size = len(group["params"])
        found = sum(KEY in state["state"].get(i, {}) for i in group["params"])
        empty = sum(_local(p).numel() == 0 for p in there["params"])  # of these nothing is saved
        if size == mine["parameters"] and found + empty < mine["kept"]:
            raise ValueError(
                f"the state lacks what was saved for {mine['kept'] - found} parameters, numbers {first} and on. "
                "torch's set_state_dict leaves out those with requires_grad=False: unfreeze them while it loads; with "
                "flatten_optimizer_state_dict=True call get_optimizer_state_dict before it"
            )
        first += size
    base = {i: theirs for i, (theirs, _) in parts.items() if theirs}
    plain = [{name: value for name, value in group.items() if name != KEY} for group in groups]
    copied = written[0]["copy"] is not None
    options = [mine["options"] for mine in written] if copied else []
    buffers = written[0]["buffers"] if copied else {}
    return _Saved({**state, "state": base, "param_groups": plain}, kept, written[0], options, buffers)


def _check_alike(i: int, p: Any, kept: packing.Kept) -> None:
    """A value of a parameter must be cut like the parameter."""
    value = kept.get("copy", {}).get("value", p)
    if value.shape != p.shape or hasattr(value, "placements") != hasattr(p, "placements"):
        raise ValueError(
            f"the state's copy of parameter {i} has shape {tuple(value.shape)} as a {type(value).__name__}, the "
            f"parameter has {tuple(p.shape)} as a {type(p.data).__name__}: where ranks share parameters load by "
            "torch.distributed.checkpoint.state_dict.set_state_dict"
        )
