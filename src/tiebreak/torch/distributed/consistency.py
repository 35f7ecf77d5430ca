"""What all ranks of a run must have alike: their settings, before anything is sent, and who holds which piece."""

import hashlib
import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist

from tiebreak.torch.distributed.layout import Layout, local
from tiebreak.torch.distributed.message import NAMES, Measured, Shares
from tiebreak.torch.kernels.foreach import accumulation_dtype, squared_norm

_STEPS = (0, 1, 10, 1000)  # at which functions of the step are compared


def compare_settings(opt: Any, group: Any) -> None:
    """Raise on every rank of the group if the optimizers were not made alike."""
    mine = _settings(opt)
    for name, values in _gathered(mine, group).items():
        _refuse_others(name, values, group, "")


def _settings(opt: Any) -> dict[str, str]:
    """Whatever λ, the direction or a decision to skip is made of, in words."""
    decision, method, estimator = (
        opt.decision,
        opt.decision.method,
        opt.estimates.estimator,
    )
    sizes = getattr(opt, "_step_sizes", None)  # of SDBGD
    laws = ("barrier", "regularizer", "penalty", "momentum")
    found: dict[str, Any] = {
        "tolerance=": opt.tolerance,
        "reference=": _reference(opt.target),
        "rule": None
        if method is None
        else (method.name, getattr(method.rule, "__qualname__", type(method.rule))),
        "others=": {name: _values(law) for name, law in opt.schedule.others.items()},
        "estimator=": (
            type(estimator).__name__,
            {n: _values(v) for n, v in getattr(estimator, "__dict__", {}).items()},
        ),
        "normalize=": decision.normalize,
        "max_norm=": opt.max_norm,
        "nonfinite=": opt.guard.policy,
        "step_size=": None if sizes is None else _values(sizes.step_size),
    }
    found |= {f"{name}=": _values(getattr(opt.schedule, name)) for name in laws}
    return {name: repr(value) for name, value in found.items()}


def _reference(target: Any) -> Any:
    if target.at is None:
        return str(target)
    if hasattr(target.at, "steps"):  # a recorded curve, which may be long
        return str(target.at), hashlib.sha256(
            repr((target.at.steps, target.at.losses)).encode()
        ).hexdigest()[:12]
    return _values(target.at)


def _values(law: Any) -> Any:
    """A number, or a function of the step by a few of its values; by its error where it has none.

    Of anything else the kind: an estimator of one's own may keep what has an address for its name.

    Examples
    --------
    >>> _values(0.5), _values(lambda k: 2.0), _values(lambda k: 1 / k), _values([object()])
    (0.5, 2.0, {0: 'ZeroDivisionError', 1: 1.0, 10: 0.1, 1000: 0.001}, 'list')
    """
    if not callable(law):
        return (
            law if law is None or isinstance(law, (Real, str)) else type(law).__name__
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [_value(law, step) for step in _STEPS]
    return (
        found[0]
        if len(set(map(repr, found))) == 1
        else dict(zip(_STEPS, found, strict=True))
    )


def _value(law: Callable[[int], Any], step: int) -> Any:
    try:
        return float(law(step))
    except Exception as error:  # it may be known for some steps only; what is wrong with it shows at its step
        return type(error).__name__


def share_out(opt: Any, here: Layout, measured: Measured) -> Shares:
    """Before the first sum: who holds what; every rank comes to the same end."""
    kinds = here.kinds
    members = [
        [p for p, kind in here.of.items() if kind == k] for k in range(len(kinds))
    ]
    sizes = [float(squared_norm([local(p.detach()) for p in mine])) for mine in members]
    mine = {
        "kinds of parameters": [
            (k.name, len(m)) for k, m in zip(kinds, members, strict=True) if not k.own
        ],
        "pieces": {
            (k.name, k.piece): size for k, size in zip(kinds, sizes, strict=True)
        },
        "losses": {name: measured.losses[name] is not None for name in NAMES},
    }
    told = _gathered(mine, here.group)
    ranks = dist.get_process_group_ranks(here.group)
    name = "kinds of parameters"
    _refuse_others(
        name,
        told[name],
        here.group,
        ". Parameters that each rank has for itself belong in sharded=…",
    )
    me, weights, pieces = dist.get_rank(here.group), [], told["pieces"]
    for piece in sorted({piece for theirs in pieces for piece in theirs}, key=repr):
        values = [
            (theirs[piece], rank)
            for theirs, rank in zip(pieces, ranks, strict=True)
            if piece in theirs
        ]
        (least, one), (most, other) = min(values), max(values)
        if most - least > 1e-6 * most:
            raise ValueError(
                f"ranks {one} and {other} should have the same parameters, and have different ones (squared norms "
                f"{least:.6g} and {most:.6g}): begin with the same on each, or name in sharded=… what each rank has "
                "for itself"
            )
    for k in kinds:
        holders = [i for i, theirs in enumerate(pieces) if (k.name, k.piece) in theirs]
        weights.append((1 / len(holders), _sign(holders.index(me), len(holders))))
    given = {name: any(theirs[name] for theirs in told["losses"]) for name in NAMES}
    alike = not any(k.own for k in kinds)
    home = measured.own.device
    table = (
        torch.tensor(weights, dtype=torch.float64)
        .T.contiguous()
        .to(home, accumulation_dtype(home))
    )
    return Shares(table, _sign(me, len(ranks)), given, alike)


def _gathered(mine: Mapping[str, Any], group: Any) -> dict[str, list[Any]]:
    """What each rank says under each name."""
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, mine, group=group)
    return {name: [theirs.get(name) for theirs in told] for name in mine}


def _refuse_others(name: str, values: list[Any], group: Any, advice: str) -> None:
    ranks = dist.get_process_group_ranks(group)
    for rank, theirs in zip(ranks, values, strict=True):
        if theirs != values[0]:
            raise ValueError(
                f"the ranks differ in {name}: {values[0]} on rank {ranks[0]}, {theirs} on rank {rank}{advice}"
            )


def _sign(i: int, count: int) -> float:
    """Numbers that add up to 0 over `count` of them, and over no part: equal values cancel, others do not.

    The largest is 1, however many there are: a difference shows as what it is.
    """
    draw = random.Random(count)
    numbers = [draw.random() for _ in range(count)]
    centred = [number - sum(numbers) / count for number in numbers]
    return centred[i] / (max(map(abs, centred)) or 1.0)


def folded(numbers: Iterable[Any]) -> float:
    """A few numbers as one, by which others are told from them, and rounding is not.

    Examples
    --------
    >>> folded([0.1, 20.0]) == folded([0.1, 20.0]), abs(folded([0.1, 20.0]) - folded([0.1, 20.1])) > 1e-5
    (True, True)
    """
    draw, total = random.Random(0), 0.0
    for number in numbers:
        value = 2.0 if number is None else float(number)
        total += (0.5 + draw.random()) * (value / (1 + abs(value)))
    return total
