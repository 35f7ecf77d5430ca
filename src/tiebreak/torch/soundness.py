"""Whether a state that was loaded can be gone on with: every type, shape and range, before anything is replaced."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiebreak.checks import floating
from tiebreak.torch.distributed.layout import is_dtensor
from tiebreak.torch.gradients import LEVELS
from tiebreak.torch.packing import Kept

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


VERSION = 1


def read_text(text: Any) -> dict[str, Any]:
    """What a group's text says."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"a group's text in this state cannot be read: {error}"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(
            f"a group's text in this state is {text!r}; it must be an object in JSON"[
                :200
            ]
        )
    for name in ("parameters", "kept"):
        _must(name, found.get(name), "a whole number ≥ 0", _count(found.get(name)))
    version = found.get("version")
    _must(
        "version",
        version,
        f"{VERSION}, the form that this tiebreak writes",
        version == VERSION,
    )
    return found


def explained(error: Exception) -> ValueError:
    """What the absence or the type of something in a state made Python raise, as a sentence."""
    return ValueError(
        f"this is no state of such an optimizer, or not all of one ({type(error).__name__}: {error})"
    )


def check(
    opt: "DynamicBarrier", kept: Sequence[Kept], groups: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ValueError with what is wrong; or TypeError and the like where not even that can be asked."""
    numbers, copy = groups[0], opt.target.copy
    opt.estimates.check(numbers["estimator"])
    opt.memory.check(numbers["law"])
    method = getattr(opt.decision.method, "name", None)
    _must(
        "the method",
        numbers["method"],
        f"{method!r}, as this optimizer's",
        numbers["method"] == method,
    )
    _same_reference(numbers["copy"], None if copy is None else copy.kind)
    _must("count", numbers["count"], "a whole number ≥ 0", _count(numbers["count"]))
    known = set(numbers["noise"]) == set(opt.noise.state)
    _must(
        "noise",
        numbers["noise"],
        f"{' and '.join(opt.noise.state)}, numbers or null",
        known,
    )
    shares = list(numbers["noise"].values())
    fits = all(value is None for value in shares) or all(map(_number, shares))
    _must("noise", numbers["noise"], "finite numbers, or null all of them", fits)
    _tolerance(opt, numbers["tolerance"])
    parameters = opt.gradients.parameters()
    _must(
        "the number of parameters",
        str(len(kept)),
        str(len(parameters)),
        len(kept) == len(parameters),
    )
    for i, (p, mine) in enumerate(zip(parameters, kept, strict=True)):
        _parameter(opt, i, p, mine)
    if copy is not None:
        copy.buffers.check(numbers["buffers"])
        _options(opt, [group["options"] for group in groups])


def _same_reference(saved: str | None, own: str | None) -> None:
    if saved != own:
        there, here = (
            f'reference="{kind}"' if kind else "a reference without a copy"
            for kind in (saved, own)
        )
        raise ValueError(
            f"the state was saved with {there}, and this optimizer has {here}: make it with the same"
        )


def check_twin(i: Any, base: Mapping[str, Any], twin: Mapping[str, Any]) -> None:
    """Raise ValueError unless the twin's optimizer state of a parameter has the types of the base's."""
    for name in base.keys() & twin.keys():
        tensors = [isinstance(state[name], Tensor) for state in (base, twin)]
        fits = tensors[0] == tensors[1] and (
            tensors[0] or type(base[name]) is type(twin[name])
        )
        _must(
            f"the twin's {name} of parameter {i}",
            twin[name],
            "of the type of the base's",
            fits,
        )


def _tolerance(opt: "DynamicBarrier", value: Any) -> None:
    fits = value is None
    if isinstance(value, list) and len(value) == 2:
        fits = _number(value[0]) and value[0] > 0 and isinstance(value[1], bool)
    _must("tolerance", value, "null, or a number > 0 and whether it is a share", fits)
    wanted = opt.decision.tolerance is not None
    _must(
        "tolerance",
        value,
        "null" if not wanted else "a number",
        value is None or wanted,
    )


def _parameter(opt: "DynamicBarrier", i: int, p: Tensor, kept: Kept) -> None:
    """What the estimator remembers of a parameter is of the parameter's shape, as it would begin."""
    for level in LEVELS:
        if level in kept:
            wanted = opt.estimates.blank(p).get(level, {})
            fits = set(kept[level]) == set(wanted) and all(
                _alike(kept[level][n], v) for n, v in wanted.items()
            )
            _must(
                f"the {level} memory of parameter {i}",
                "what is there",
                f"{len(wanted)} values of its shape",
                fits,
            )
    value: Any = kept.get("copy", {"value": p}).get("value")
    _must(
        f"the copy of parameter {i}",
        repr(value)[:100],
        "a tensor of numbers",
        _numbers(value),
    )
    if value.shape != p.shape or is_dtensor(value) != is_dtensor(p):
        raise ValueError(
            f"the state's copy of parameter {i} has shape {tuple(value.shape)} as a {type(value).__name__}, the "
            f"parameter has {tuple(p.shape)} as a {type(p.data).__name__}: where ranks share parameters load by "
            "torch.distributed.checkpoint.state_dict.set_state_dict"
        )


def _options(opt: "DynamicBarrier", options: Sequence[Any]) -> None:
    """What a twin's groups have of their own is what the base's have, too."""
    for mine, group in zip(options, opt.base.param_groups, strict=False):
        for name, value in mine.items():
            there = group.get(name)
            plain = isinstance(there, Tensor) or (
                isinstance(there, (int, float)) and not isinstance(there, bool)
            )
            _must(
                f"the twin's option {name}",
                value,
                "a number, as the base's is",
                not plain or _number(value),
            )


def _alike(value: Any, like: Any) -> bool:
    if not isinstance(like, Tensor):
        return _number(value)
    return _numbers(value) and value.shape == like.shape


def _numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and (
        value.is_floating_point() or value.is_complex()
    )


def _number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and bool(torch.isfinite(value).all())
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(floating(value))
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # not a bool


def _must(name: str, value: Any, legal: str, holds: Any) -> None:
    if not holds:
        shown = value if isinstance(value, str) else repr(value)
        raise ValueError(f"in this state {name} is {shown[:200]}; it must be {legal}")
