"""The state of an optimizer: saved whole, and checked before anything is replaced by it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tiebreak.torch import packing, soundness
from tiebreak.torch.context import store
from tiebreak.torch.distributed.consistency import folded
from tiebreak.torch.distributed.layout import local
from tiebreak.torch.kernels.foreach import accumulation_dtype
from tiebreak.torch.packing import KEY
from tiebreak.torch.said import warn
from tiebreak.torch.step_info import PRODUCTS, Step, record

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


def state_of(opt: "DynamicBarrier") -> dict[str, Any]:
    """The base's state, with the optimizer's own in the state of each parameter and in each group."""
    if opt._held is not None:
        raise RuntimeError(
            "the state between opt.combine() and opt.step() is half a step's: save it before or after"
        )
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
    groups = [
        {**group, KEY: mine}
        for group, mine in zip(state["param_groups"], texts, strict=True)
    ]
    state = {**state, "state": by_number, "param_groups": groups}
    _announce(opt)
    for after in opt._optimizer_state_dict_post_hooks.values():
        state = after(opt, state) or state
    return state


def _texts(opt: "DynamicBarrier", own: list[dict[str, Any]]) -> list[str]:
    """For each group: the numbers of the whole optimizer, and what belongs to the group."""
    copy = opt.target.copy
    given = opt.decision.tolerance
    common: dict[str, Any] = {"version": soundness.VERSION, "count": opt.count}
    common |= {"method": getattr(opt.decision.method, "name", None)}
    common |= {"estimator": type(opt.estimates.estimator).__name__}
    common |= {"law": packing.as_numbers("the law", opt.memory.state_dict())}
    common |= {"noise": packing.as_numbers("the noise", opt.noise.state)}
    common |= {"tolerance": None if given is None else [given.amount, given.relative]}
    common |= {"copy": None if copy is None else copy.kind}
    texts, first = [], 0
    for i, group in enumerate(opt.base.param_groups):
        size = len(group["params"])
        mine: dict[str, Any] = {
            "parameters": size,
            "kept": sum(map(bool, own[first : first + size])),
        }
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
    return bool(grads) and all(
        grad is not None and not local(grad).any() for grad in grads
    )


def begin(opt: "DynamicBarrier") -> Step:
    """Let the base make its state, and have a place for everything of ours; nothing counts as begun."""
    opt.base.step()
    opt.asked = True
    _announce(opt)
    unknown = torch.tensor(torch.nan)
    return record([unknown] * len(PRODUCTS), (None, None), torch.tensor(True))


# --- loading ----------------------------------------------------------------------------------------------------------


class _Checkpoint(NamedTuple):
    """A state that this optimizer can take up.

    Attributes
    ----------
    base : dict
        The state of the base optimizer.
    kept : list of dict
        What belongs to each parameter, in the order of the parameters.
    groups : list of dict
        The text of each group; the first has the numbers of the whole optimizer.
    """

    base: dict[str, Any]
    kept: list[packing.Kept]
    groups: list[dict[str, Any]]


def load(opt: "DynamicBarrier", state: dict[str, Any]) -> None:
    """Take up a state; one of another kind is refused before anything is changed."""
    for before in opt._optimizer_load_state_dict_pre_hooks.values():
        state = before(opt, state) or state
    try:
        checkpoint = _read(opt, state)
        soundness.check(opt, checkpoint.kept, checkpoint.groups)
    except (KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
        raise soundness.explained(error) from None
    try:
        opt.base.load_state_dict(checkpoint.base)
    except Exception as error:  # it changes nothing before it has looked at all
        raise ValueError(
            f"{type(opt.base).__name__}, the base, cannot load its part of the state: {error}"
        ) from error
    parameters = list(opt.gradients.parameters())
    numbers = checkpoint.groups[0]
    opt.count = int(numbers["count"])
    opt.estimates.load(parameters, checkpoint.kept)
    opt.memory.load_state_dict(numbers["law"])
    _load_noise(opt.noise.state, numbers["noise"], parameters[0].device)
    _load_tolerance(opt, numbers)
    if opt.target.copy is not None:
        options = [group["options"] for group in checkpoint.groups]
        opt.target.copy.load(opt, checkpoint.kept, options, numbers["buffers"])
    opt.ranks.loaded = folded(
        [opt.count, *numbers["law"].values(), *numbers["noise"].values()]
    )
    opt.forget()
    _announce(opt)
    for after in opt._optimizer_load_state_dict_post_hooks.values():
        after(opt)


def _load_noise(
    state: dict[str, Any], saved: dict[str, Any], device: torch.device
) -> None:
    for name, number in saved.items():
        value = (
            None
            if number is None
            else torch.as_tensor(
                number, dtype=accumulation_dtype(device), device=device
            )
        )
        if value is not None and state[name] is not None:
            value = value.to(state[name])
        store(state, name, value)


def _load_tolerance(opt: "DynamicBarrier", numbers: dict[str, Any]) -> None:
    """Set the tolerance of the state; warn if it is another one than the optimizer was made with."""
    if numbers["tolerance"] is not None:
        given = opt.tolerance
        opt.allow(*numbers["tolerance"])
        if given != opt.tolerance:
            text = (
                f"the state has tolerance={opt.tolerance!r}, which takes the place of tolerance={given!r}: to go on "
                f"with another one set opt.tolerance = {given!r} after loading"
            )
            warn(text)


def _read(opt: "DynamicBarrier", state: dict[str, Any]) -> _Checkpoint:
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
    own = [soundness.read_text(text) for text in texts]
    parts = {i: packing.split(entries) for i, entries in state["state"].items()}
    kept: list[packing.Kept] = []
    for text, group, there in zip(own, groups, opt.param_groups, strict=False):
        size = len(group["params"])
        found = sum(KEY in state["state"].get(i, {}) for i in group["params"])
        empty = sum(
            local(p).numel() == 0 for p in there["params"]
        )  # of these nothing is saved
        if size == text["parameters"] and found + empty < text["kept"]:
            raise ValueError(
                f"the state lacks what was saved for {text['kept'] - found} parameters, numbers {len(kept)} and on. "
                "torch's set_state_dict leaves out those with requires_grad=False: unfreeze them while it loads; with "
                "flatten_optimizer_state_dict=True call get_optimizer_state_dict before it"
            )
        kept += [parts[i].own if i in parts else {} for i in group["params"]]
    for i, part in parts.items():
        soundness.check_twin(i, part.base, part.own.get("base", {}))
    base = {i: part.base for i, part in parts.items() if part.base}
    plain = [
        {name: value for name, value in group.items() if name != KEY}
        for group in groups
    ]
    return _Checkpoint({**state, "state": base, "param_groups": plain}, kept, own)
