"""A twin's optimizer: a copy of the base for other tensors, and the way back of what it keeps besides their state."""

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

# What every optimizer has from torch, and what schedulers and scalers hang on it.
_TORCHS = {
    "state",
    "param_groups",
    "defaults",
    "step",
    "grad_scale",
    "found_inf",
    "_opt_called",
}
_TORCHS |= {"_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"}
_TORCHS |= {"_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"}
_GROWING = (
    Tensor,
    dict,
    list,
    set,
    deque,
)  # what may change without being another object


def like(base: Optimizer, values: dict[Tensor, Tensor]) -> Optimizer:
    """The same optimizer in the same state for other tensors: no hooks, and no scheduler's wrapper around its step."""
    memo: dict[int, Any] = {id(p): value for p, value in values.items()}
    kept = {
        k: v
        for k, v in vars(base).items()
        if k != "step" and not k.startswith("_optimizer_")
    }
    twin: Any = object.__new__(type(base))
    try:
        vars(twin).update(copy.deepcopy(kept, memo))
    except Exception as error:
        raise TypeError(
            f"{type(base).__name__} cannot be copied ({error}), so it can train no twin: give the reference yourself, "
            'reference="given"'
        ) from error
    Optimizer.__setstate__(
        twin, {"state": twin.state, "param_groups": twin.param_groups}
    )
    return twin  # type: ignore[no-any-return]  # what was copied is an optimizer


def rewritten(before: Mapping[str, Any], optimizer: Optimizer) -> set[str]:
    """Which attributes are others than `before`, a shallow copy of all: an optimizer's step may count in one."""
    return {
        name
        for name, value in vars(optimizer).items()
        if name not in before or before[name] is not value
    }


def carry(
    base: Optimizer,
    twin: Optimizer,
    values: Mapping[Tensor, Tensor],
    written: Iterable[str] = (),
) -> None:
    """Give `base` what `twin` keeps elsewhere than for a parameter: in its attributes, or in its state by other keys.

    Of attributes plain data alone, numbers, tensors and containers of these: those of which the twin's step makes
    others, which are `written`, and those that may change as they are. An optimizer inside is treated likewise.
    """
    memo: dict[int, Any] = {
        id(p): p for group in base.param_groups for p in group["params"]
    }
    memo |= {id(value): p for p, value in values.items()}
    states: Any = base.state
    others: Any = twin.state
    for key in [
        key for key in states if not isinstance(key, Tensor) and key not in others
    ]:
        del states[key]
    for key, kept in others.items():
        if not isinstance(key, Tensor):
            states[key] = copy.deepcopy(kept, memo)
    for name, kept in vars(twin).items():
        mine = vars(base).get(name)
        if name in _TORCHS or name.startswith("_optimizer_"):
            continue
        if isinstance(kept, Optimizer) and isinstance(mine, Optimizer):
            mine.state.update(
                {
                    memo[id(p)]: copy.deepcopy(s, memo)
                    for p, s in kept.state.items()
                    if id(p) in memo
                }
            )
            carry(
                mine,
                kept,
                values,
                (n for n in vars(kept) if vars(mine).get(n) is not vars(kept)[n]),
            )
        elif (name in written or isinstance(kept, _GROWING)) and _plain(kept):
            setattr(base, name, copy.deepcopy(kept, memo))


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_plain(key) and _plain(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_plain, value))
    return value is None or isinstance(
        value, (Tensor, bool, int, float, complex, str, bytes)
    )
