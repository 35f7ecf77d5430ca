"""What all ranks must have alike: settings, states, the pieces of parameters, and the gradients of replicas."""

import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.methods import Method
from tiebreak.schedules import Schedule
from tiebreak.torch.distributed.layout import Group, Layout, LayoutKind, local_tensor
from tiebreak.torch.kernels.torch_passes import accumulation_dtype, squared_norm

_STEPS = (0, 1, 10, 1000)  # steps at which functions of the step are compared
_CHECK_INTERVAL = 64  # steps between two comparisons of single replicas

# Largest differences between ranks by rounding: of sums relative to the sum, of the logarithm of a
# replica's squared norm, and of other numbers.
_SUM_ROUNDING = 1e-5
_REPLICA_ROUNDING = 0.01
_ROUNDING = 1e-3

ONE_LEVEL = (
    "those of the other level were not. To clip the direction give max_norm=…, or call opt.combine() first; to change "
    "one level do it inside its block; before scaler.unscale_(opt) call opt.combine(scaler)"
)
_NO_GRADIENTS = (
    "no {level} gradients on any rank: put loss.backward() inside `with opt.{level}():`, of a loss that depends on the "
    "parameters, and set no gradients to None before the step"
)
# By doubt; the first true doubt is reported.
_ERRORS = {
    "incomplete": "a rank had no upper gradients or no lower gradients in this step: put the backward passes in `with "
    "opt.upper():` and `with opt.lower():`, on every rank",
    "upper missing": _NO_GRADIENTS.format(level="upper"),
    "lower missing": _NO_GRADIENTS.format(level="lower"),
    "step": "the ranks are at different steps: load the same state on each, or on none",
    "fingerprint": "the ranks have different states: one changed its tolerance or its learning rate and others did "
    "not, or they loaded different states. Do the same on each",
    "scale": "the gradient scaler has another scale on every rank: sharded parameters need the scaler of their "
    "wrapper, torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler for FullyShardedDataParallel",
    "touched": f"the gradients of a level were changed after its block, {ONE_LEVEL}",
    "different": "the ranks have different gradients of the same parameters, or of a twin's; {outcome}. "
    "DistributedDataParallel averages forward and backward of one level, then forward and backward of the other: not "
    "two forwards before the first backward, nor two backwards of one forward. The last micro-batch of each level "
    "belongs outside no_sync(). What no wrapper averages, average yourself; name parameters that each rank has for "
    "itself in sharded=…",
}


class Shares(NamedTuple):
    """By what this rank multiplies its numbers before they are added up.

    Attributes
    ----------
    weights : tensor
        Of shape (2, kinds). With the first row the sum over the ranks counts each piece once. With the second row it
        is 0 if the ranks that hold a piece have equal numbers.
    cancelling : float
        Like the second row, for numbers that all ranks must have alike.
    losses : dict
        Whether any rank gave the loss of this name in the first step.
    """

    weights: Tensor
    cancelling: float
    losses: dict[str, bool]


# --- settings ---------------------------------------------------------------------------------------------------------


def describe_settings(
    method: Method | None,
    schedule: Schedule,
    estimator: object,
    **settings: object,
) -> dict[str, str]:
    """Return every setting that λ, the direction or a decision to skip depends on, as text by argument."""
    if method is not None:
        rule = getattr(method.rule, "__qualname__", type(method.rule).__name__)
        settings["method"] = f"{method.name} by {rule}"
    class_name = {"class": type(estimator).__name__}
    settings["estimator"] = getattr(estimator, "__dict__", {}) | class_name
    settings |= {name: v for name, v in vars(schedule).items() if name not in settings}
    return {f"{name}=": repr(_describe(value)) for name, value in settings.items()}


def _describe(setting: object) -> object:
    """Return a number or a text itself, the values of a function of the step, and the type of anything else.

    Other objects may contain an address, which differs between ranks.

    Examples
    --------
    >>> _describe(0.5), _describe(lambda k: 2.0), _describe({"a": lambda k: 1 / k, "b": [object()]})
    (0.5, 2.0, {'a': ['ZeroDivisionError', 1.0, 0.1, 0.001], 'b': 'list'})
    """
    if isinstance(setting, Mapping):
        return {name: _describe(value) for name, value in setting.items()}
    if callable(setting):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = [_value(setting, step) for step in _STEPS]
        if len(set(values)) > 1:
            return values
        return values[0]
    if setting is None or isinstance(setting, (Real, str)):
        return setting
    return type(setting).__name__


def _value(law: Callable[[int], Any], step: int) -> float | str:
    try:
        return float(law(step))
    except Exception as error:  # a function may be undefined at some steps
        return type(error).__name__


def gather(value: object, group: Group) -> dict[int, Any]:
    """Return the value of each rank of the group."""
    ranks = dist.get_process_group_ranks(group)
    values: list[Any] = [None] * len(ranks)
    dist.all_gather_object(values, value, group=group)
    return dict(zip(ranks, values, strict=True))


def compare(
    values_by_rank: Mapping[int, Mapping[str, object]], advice: str = ""
) -> None:
    """Raise, on every rank, unless all ranks have the same values by name."""
    first = min(values_by_rank)
    for rank, values in values_by_rank.items():
        for name, expected in values_by_rank[first].items():
            if values[name] != expected:
                raise ValueError(
                    f"the ranks differ in {name}: {expected} on rank {first}, {values[name]} on rank {rank}{advice}"
                )


# --- pieces of parameters ---------------------------------------------------------------------------------------------


def assign_shares(
    layout: Layout, losses: dict[str, bool], device: torch.device
) -> Shares:
    """Compare which pieces the ranks hold, and return by what this rank multiplies its numbers.

    `losses` says which losses this rank gave in the first step. The weights are on the `device`.
    """
    by_kind: dict[LayoutKind, list[Tensor]] = {kind: [] for kind in layout.kinds}
    for p, number in layout.kind_of.items():
        by_kind[layout.kinds[number]].append(local_tensor(p.detach()))
    counts = [(kind.name, len(by_kind[kind])) for kind in by_kind if not kind.private]
    squared_norms = {kind: float(squared_norm(by_kind[kind])) for kind in by_kind}
    by_rank = gather((counts, squared_norms, losses), layout.group)
    compare(
        {rank: {"kinds of parameters": row[0]} for rank, row in by_rank.items()},
        ". Parameters that each rank has for itself belong in sharded=…",
    )
    holders: dict[LayoutKind, dict[int, float]] = {}
    for rank, (_, norms, _) in by_rank.items():
        for kind, norm in norms.items():
            holders.setdefault(kind, {})[rank] = norm
    for norm_by_rank in holders.values():
        _check_equal(norm_by_rank)
    holding_ranks = [list(holders[kind]) for kind in layout.kinds]
    weights = [(1 / len(ranks), _cancelling_factor(ranks)) for ranks in holding_ranks]
    rows = torch.tensor(weights, dtype=accumulation_dtype(device)).T.contiguous()
    return Shares(
        weights=rows.to(device),
        cancelling=_cancelling_factor(list(by_rank)),
        losses={n: any(row[2][n] for row in by_rank.values()) for n in losses},
    )


def _check_equal(norm_by_rank: dict[int, float]) -> None:
    """Raise unless the ranks that hold a piece have the same numbers in it, by its squared norm."""
    ranks = sorted(norm_by_rank, key=norm_by_rank.__getitem__)
    least = norm_by_rank[ranks[0]]
    most = norm_by_rank[ranks[-1]]
    if most - least > 1e-6 * most:
        raise ValueError(
            f"ranks {ranks[0]} and {ranks[-1]} should have the same parameters, and have different ones (squared "
            f"norms {least:.6g} and {most:.6g}): begin with the same on each, or name in sharded=… what each rank "
            "has for itself"
        )


def _cancelling_factor(ranks: list[int]) -> float:
    """Return this rank's factor; the factors of all `ranks` add up to 0, those of a part of them do not.

    Equal numbers times these factors cancel. The largest factor is 1, so that a difference keeps its size.
    """
    generator = random.Random(len(ranks))
    numbers = [generator.random() for _ in ranks]
    mean = sum(numbers) / len(ranks)
    largest = max(abs(number - mean) for number in numbers)
    return (numbers[ranks.index(dist.get_rank())] - mean) / (largest or 1.0)


# --- every step -------------------------------------------------------------------------------------------------------


def fingerprint(numbers: Iterable[float | None]) -> float:
    """Return one number that differs if one of the numbers does by more than rounding.

    Examples
    --------
    >>> fingerprint([0.1, 20.0]) == fingerprint([0.1, 20.0])
    True
    >>> abs(fingerprint([0.1, 20.0]) - fingerprint([0.1, 20.1])) > 1e-5
    True
    """
    generator = random.Random(0)
    total = 0.0
    for number in numbers:
        if number is None:
            value = 2.0
        else:
            value = float(number)
        total += (0.5 + generator.random()) * (value / (1 + abs(value)))
    return total


def is_due(step: int) -> bool:
    """Return whether to compare single replicas at this step, counted from the first step of a run.

    Inner products reveal only differences of gradients that are a large part of them.
    """
    return 0 < step <= 4 or (step > 0 and step % _CHECK_INTERVAL == 0)


def replica_number(
    levels: Iterable[Sequence[Tensor | None]],
    squared_norms: Tensor,
) -> Tensor:
    """Return one number of the gradients of each level, to which every tensor contributes alike, however small.

    Σ ± w log(1 + ‖g‖²/G²) over the tensors g, with random weights w: the gradient of one tensor changes the number by
    as much as it changes relative to itself. The norm ‖g‖ is in units of rounding.

    Parameters
    ----------
    levels : iterable of sequences of tensors
        The gradients of the replicas by level.
    squared_norms : tensor
        For each level about the squared norm of all gradients, G², equal on all ranks.

    Examples
    --------
    >>> large, small = torch.ones(1000), torch.full((1,), 0.01)
    >>> numbers = [replica_number([[large, t]], torch.tensor([1000.0])) for t in (small, 2 * small)]
    >>> bool((numbers[0] - numbers[1]).abs() > 0.1)
    True
    """
    total = squared_norms.new_zeros(())
    for seed, (grads, size) in enumerate(zip(levels, squared_norms, strict=True)):
        generator = random.Random(seed)
        weights = [
            generator.uniform(0.5, 1.0) * generator.choice((-1, 1)) for _ in grads
        ]
        squares = torch.stack([_square_in_rounding(grad).to(size) for grad in grads])
        logs = (1 + squares / size).log()
        total += (torch.tensor(weights).to(logs) * logs).sum() / len(grads) ** 0.5
    return total


def _square_in_rounding(grad: Tensor | None) -> Tensor:
    """Return ‖grad‖² in units of the rounding that a gradient of norm 1 may have."""
    if grad is None:
        return torch.zeros(())
    return squared_norm([grad]) / (10 * torch.finfo(grad.dtype).eps) ** 2


def find_doubts(fields: Mapping[str, Tensor]) -> Tensor:
    """Return for each of the possible errors whether it has happened, the same on all ranks.

    `fields` are the sums over the ranks by name; those of pieces with both rows of the weights.
    """
    different = fields["replica"].abs() > _REPLICA_ROUNDING
    for name in fields.keys() & {"products", "rule_products", "twin"}:
        size, difference = fields[name]
        if name != "twin":
            _, gg, ff = size
            size = torch.stack([(gg * ff).sqrt(), gg, ff])
        different = different | (difference.abs() > _SUM_ROUNDING * size).any()
    doubts = {
        name: fields[name].abs() > _ROUNDING for name in _ERRORS if name in fields
    }
    fingerprints = fields["fingerprint"]
    rounding = torch.finfo(fingerprints.dtype).eps ** 0.5
    doubts["fingerprint"] = fingerprints.abs() > rounding
    doubts["upper missing"] = fields["upper present"] < 0.5
    doubts["lower missing"] = fields["lower present"] < 0.5
    doubts["different"] = different
    return torch.stack([doubts[name] for name in _ERRORS])


def noise_over_ranks(sums: Tensor) -> Tensor:
    """Return the noise sums, nan if the ranks have different micro-batch weights or gradients."""
    total, difference = sums
    uneven = (difference.abs() > _SUM_ROUNDING * total.abs()).any()
    return torch.where(uneven, torch.nan, total)


def raise_for(doubts: Sequence[float], late: bool = False) -> None:
    """Raise if the ranks do not fit together; `late` if a step was made meanwhile."""
    if late:
        outcome = "a step was made with them"
    else:
        outcome = "the step was not made"
    for doubt, error in zip(doubts, _ERRORS.values(), strict=True):
        if doubt:
            raise RuntimeError(error.replace("{outcome}", outcome))
