"""The ranks of a parallel run, which exchange one all-reduce of a few floats a step.

Every rank computes the inner products of the pieces that it holds. The all-reduce adds them up, with the losses, the
gradient scaler's finding and numbers that are 0 if the ranks have alike what they must have alike. So every rank
computes the multiplier, and decides to skip a step, as one process with the whole batch would.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tiebreak.torch.devices import HostCopy, cannot_repeat, capturing, on_host
from tiebreak.torch.distributed.consistency import (
    Shares,
    assign_shares,
    compare,
    find_doubts,
    fingerprint,
    gather,
    is_due,
    noise_over_ranks,
    raise_for,
    replica_number,
)
from tiebreak.torch.distributed.layout import (
    REPLICA,
    Group,
    Layout,
    Sharded,
    Wrappers,
    check_covered,
    check_wrappers,
    find_layout,
    find_wrappers,
    flat_groups,
    has_unsynchronized_gradients,
    is_dtensor,
    local_tensor,
    redistribute_like,
)
from tiebreak.torch.kernels.torch_passes import Row, accumulation_dtype, squared_norm


class Measurement(NamedTuple):
    """Inner products and losses of a step, of one rank or of all.

    Attributes
    ----------
    products : tensor
        fg, gg and ff of the gradients in the direction: of all ranks, of shape (3,); of one rank by kind of
        parameters, of shape (kinds, 3).
    rule_products : tensor
        The same of the gradients that the rule sees; the same object if they are equal.
    losses : dict
        "upper", "lower" and "reference"; None if a loss is not given.
    twin_squared_norm : tensor or None
        ‖∇g‖² of the twin; of one rank by kind.
    noise : tensor or None
        The sums of the noise measurement, of shape (3,); of one rank by kind.
    """

    products: Tensor
    rule_products: Tensor
    losses: dict[str, Any]
    twin_squared_norm: Tensor | None
    noise: Tensor | None = None


@dataclass(frozen=True)
class StepReport:
    """What a rank knows of a step.

    Attributes
    ----------
    measured : Measurement
        Of this rank; every loss is a number or a tensor.
    present : tuple of bool
        Whether this rank has gradients of the upper and of the lower level.
    incomplete : bool
        Whether this rank had no block of one level.
    spoiled : bool
        Whether the step must not be made; no product is finite then.
    touched : tensor or None
        Whether gradients were changed after their block.
    step : int
    changing : sequence of numbers
        What may change between two steps and enters the multiplier.
    learning_rate : float or tensor
        Of the first parameter group.
    replica_gradients : list or None
        By level, the gradients of ``ranks.replicas_to_compare(step)``.
    found_inf, inverse_scale : tensor or None
        A gradient scaler's finding, and 1 over its scale.
    """

    measured: Measurement
    present: tuple[bool, ...]
    incomplete: bool
    spoiled: bool
    touched: Tensor | None
    step: int
    changing: Sequence[Any]
    learning_rate: Any
    replica_gradients: list[list[Tensor | None]] | None
    found_inf: Tensor | None
    inverse_scale: Tensor | None


class Ranks:
    """The ranks of a run, and how the parameters lie over them.

    Parameters
    ----------
    group : ProcessGroup, None or False
        The ranks that take part in a step; None to find them, False if this process trains alone.
    sharded : iterable of parameters, bool or mapping, optional
        Parameters of which every rank has others.
    modules : sequence of Module
        The model, with its wrappers.

    Attributes
    ----------
    layout : Layout
    wrappers : Wrappers
    alone : bool
        Whether no other rank takes part.
    needs_settings : bool
        Whether there are several ranks whose settings were not compared yet.
    versions_are_silent : bool
        Whether the versions of gradient tensors do not reveal that a gradient was changed.
    is_split : bool
        Whether this rank holds pieces of parameters, or parameters of several kinds.
    reset_parameters : frozenset of tensors
        Parameters whose wrapper needs ``.grad`` to be None before each block.
    loaded_state : float
        The fingerprint of the last state that was loaded.
    """

    def __init__(
        self,
        group: Group | Literal[False],
        sharded: Any,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        if group is not False and not isinstance(group, dist.ProcessGroup | None):
            raise TypeError(
                f"process_group={group!r} must be a torch.distributed group, None or False"
            )
        if group is False and sharded:
            raise ValueError("sharded=… has no effect with process_group=False")
        self._arguments = (group, _sharded_by_group(sharded, group or None), modules)
        self.layout = Layout(None, [], {})
        self.wrappers = Wrappers([], [], [])
        self.alone = True
        self.is_split = False
        self.versions_are_silent = False
        self.reset_parameters = frozenset[Tensor]()
        self.loaded_state = 0.0
        self._ids: list[int] = []
        self.needs_settings = False
        self._shares: Shares | None = None
        self._first_step = 0
        self._squared_norms = torch.ones(2)  # ‖∇f‖² and ‖∇g‖² of the last step
        self._unread_doubts: HostCopy | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Ranks, self._arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        # A process group cannot be copied.
        group, sharded, modules = self._arguments
        copies = {key: copy.deepcopy(chosen, memo) for key, chosen in sharded.items()}
        return Ranks(group, copies, copy.deepcopy(modules, memo))

    # --- how the parameters lie --------------------------------------------------------------------------------------

    def find_layout(self, parameters: Sequence[Tensor]) -> None:
        """Find how the parameters lie over the ranks, unless that is known."""
        ids = list(map(id, parameters))
        if ids == self._ids:
            return
        group, sharded, modules = self._arguments
        if group is not False:
            self.wrappers = find_wrappers(modules)
            check_wrappers(self.wrappers)
            check_covered(parameters, modules, self.wrappers)
        self.layout = find_layout(parameters, group, sharded, self.wrappers)
        self.is_split = len(self.layout.kinds) > 1 or any(map(is_dtensor, parameters))
        self.reset_parameters = frozenset(flat_groups(self.wrappers)) & set(parameters)
        self.alone = self.layout.group is None
        is_opaque = self.is_split or bool(self.reset_parameters)
        self.versions_are_silent = is_opaque and not self.alone
        self._ids = ids
        self.needs_settings = not self.alone
        self._shares = None

    def check_synchronized(self) -> None:
        """Raise if FSDP still holds gradients of one level, at the start of the other level or of the step."""
        if has_unsynchronized_gradients(self.wrappers):
            raise RuntimeError(
                "FSDP keeps the gradients of a pass without synchronisation to itself, and those of the next level "
                "would be added to them: do all micro-batches of one level, the last of them with "
                "set_requires_gradient_sync(True) or outside no_sync(), then those of the other"
            )

    def split_rows(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """Return the rows with this rank's pieces, for each kind of parameters that are split."""
        by_kind: list[list[Row]] = [[] for _ in self.layout.kinds]
        for p, upper, lower, group in rows:
            piece = Row(
                local_tensor(p), local_tensor(upper), local_tensor(lower), group
            )
            by_kind[self.layout.kind_of[p]].append(piece)
        return list(by_kind)

    def squared_norms(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return Σ‖gradient‖² of pairs of a parameter and its gradient; of this rank by kind, unless it is alone."""
        if self.alone:
            grads = [grad for _, grad in pairs]
            if self.is_split:  # DTensors of a mesh with a single rank
                grads = [local_tensor(grad) for grad in grads]
            return squared_norm(grads)
        kind_of = self.layout.kind_of
        by_kind: list[list[Tensor]] = [[] for _ in self.layout.kinds]
        for p, grad in pairs:
            by_kind[kind_of[p]].append(local_tensor(redistribute_like(grad, p)))
        device = next(iter(kind_of)).device
        dtype = accumulation_dtype(device)
        return torch.stack([squared_norm(part).to(device, dtype) for part in by_kind])

    # --- all-reduce --------------------------------------------------------------------------------------------------

    def compare_settings(self, settings: Mapping[str, str]) -> None:
        """Raise on every rank unless all have the same settings."""
        compare(gather(settings, self.layout.group))
        self.needs_settings = False

    def replicas_to_compare(self, step: int) -> list[Tensor]:
        """Return the replicas whose gradients to compare one by one at this step; none if no comparison is due."""
        if self._shares is None or not is_due(step - self._first_step):
            return []
        kinds = self.layout.kinds
        return [p for p, kind in self.layout.kind_of.items() if kinds[kind] == REPLICA]

    def all_reduce(
        self, report: StepReport, to_host: bool
    ) -> tuple[Measurement, Tensor | None]:
        """Return what all ranks measured, and whether a gradient scaler found infinite numbers on any of them.

        With `to_host` the numbers are on the host. Raise if the ranks do not fit together.
        """
        self.check_synchronized()
        if any(module._join_config.enable for module in self.wrappers.ddp):
            raise RuntimeError(
                "DistributedDataParallel.join() does not know of the optimizer's sums over the ranks: give every rank "
                "as many batches, as DistributedSampler does"
            )
        measured = report.measured
        losses = measured.losses
        device = measured.products.device
        if capturing(device):
            cannot_repeat(
                "with several ranks some of them come from the host: capture the passes, not the step"
            )
        if self._shares is None:
            losses_given = {name: loss is not None for name, loss in losses.items()}
            self._shares = assign_shares(self.layout, losses_given, device)
            self._first_step = report.step
        shares = self._shares
        fields = _sums(report, shares.weights.to(device)) | self._facts(
            report, shares.cancelling, device
        )
        message = torch.cat([field.flatten() for field in fields.values()])
        total = self._sum(message, device).to("cpu" if to_host else device)
        parts = torch.split(total, [field.numel() for field in fields.values()])
        for name, part in zip(fields, parts, strict=True):
            fields[name] = part.view_as(fields[name])

        doubts = find_doubts(fields)
        if on_host(doubts):
            raise_for(doubts.tolist())
        else:
            self._unread_doubts = HostCopy(doubts)
        # The first row of a sum over pieces is the total.
        totals = {name: field[0] for name, field in fields.items() if field.dim()}
        products = totals["products"]
        self._squared_norms = products[[2, 1]]
        means = dict.fromkeys(losses)
        for name, loss in losses.items():
            if shares.losses[name] or loss is not None:
                means[name] = fields[name] / fields[f"{name} given"]
        noise = fields.get("noise")
        measured = Measurement(
            products,
            totals.get("rule_products", products),
            means,
            totals.get("twin"),
            None if noise is None else noise_over_ranks(noise),
        )
        if report.found_inf is None:
            found_inf = None
        else:
            found_inf = fields["found_inf"] > 0
        return measured, found_inf

    def _facts(
        self, report: StepReport, cancelling: float, device: torch.device
    ) -> dict[str, Tensor]:
        """Return the numbers that are not sums over pieces."""
        losses = report.measured.losses
        changing = [self.loaded_state, *report.changing]
        private = any(kind.private for kind in self.layout.kinds)
        # A private stage may have a different learning rate.
        if isinstance(report.learning_rate, Real) and not private:
            changing.append(report.learning_rate)
        scale = report.inverse_scale
        replica = None
        if report.replica_gradients is not None:
            norms = self._squared_norms.to(device)
            if scale is not None:
                norms = norms / scale.to(norms) ** 2
            replica = replica_number(report.replica_gradients, norms)
            replica *= cancelling
        facts = losses | {
            "upper present": report.present[0],
            "lower present": report.present[1],
            "found_inf": report.found_inf,
            "touched": report.touched,
            "incomplete": report.incomplete,
            "step": report.step * cancelling,
            "fingerprint": fingerprint(changing) * cancelling,
            "scale": None if scale is None else scale.log2() * cancelling,
            "replica": replica,
        }
        for name, loss in losses.items():
            facts[f"{name} given"] = loss is not None
        return _as_tensors(facts, device)

    def raise_doubts(self) -> None:
        """Raise what the device found about the last step; all ranks do so at the same step."""
        doubts = self._unread_doubts
        self._unread_doubts = None
        if doubts is not None:
            raise_for(doubts.read(), late=True)

    def mean(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """Return the means over the ranks, equal on all of them."""
        if self.alone:
            return list(numbers)
        total = self._sum(
            torch.tensor(numbers, dtype=accumulation_dtype(device)), device
        )
        means: list[float] = (total / dist.get_world_size(self.layout.group)).tolist()
        return means

    def _sum(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Return the sums over the ranks, on `device` or, if the group cannot reach it, on a device of the group."""
        group = self.layout.group
        # The configuration is a text like "cpu:gloo,cuda:nccl".
        devices = re.findall(r"(\w+):", dist.get_backend_config(group))
        total = numbers.to(device if device.type in devices else devices[0])
        dist.all_reduce(total, group=group)
        return total


def _sums(report: StepReport, weights: Tensor) -> dict[str, Tensor]:
    """Return this rank's part of each sum over pieces with both rows of the weights."""
    measured = report.measured
    columns = {
        "products": measured.products,
        "rule_products": measured.rule_products,
        "twin": measured.twin_squared_norm,
        "noise": measured.noise,
    }
    if measured.rule_products is measured.products:
        del columns["rule_products"]
    if report.spoiled:
        weights = weights * torch.nan
    return {k: weights @ v.to(weights) for k, v in columns.items() if v is not None}


def _as_tensors(facts: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Return numbers as tensors on the device; the host sends its numbers at once, and does not wait."""
    numbers = torch.tensor(
        [0.0 if v is None or isinstance(v, Tensor) else v for v in facts.values()],
        dtype=accumulation_dtype(device),
        pin_memory=device.type == "cuda",
    ).to(device, non_blocking=True)
    tensors = dict(zip(facts, numbers, strict=True))
    for name, value in facts.items():
        if isinstance(value, Tensor):
            tensors[name].copy_(value.reshape(()))
    return tensors


def _sharded_by_group(sharded: Any, group: Group) -> Sharded:
    """Return the parameters of `sharded=` by process group."""
    if sharded is None or sharded is False:
        return {}
    if isinstance(sharded, Mapping):
        by_group = dict(sharded)
    else:
        by_group = {group: sharded}
    for key, chosen in by_group.items():
        if chosen is True:
            parameters = []
        else:
            parameters = [None]
        if isinstance(chosen, Iterable) and not isinstance(chosen, Tensor):
            parameters = by_group[key] = list(chosen)
        are_tensors = all(isinstance(p, Tensor) for p in parameters)
        if not are_tensors or not isinstance(key, dist.ProcessGroup | None):
            raise TypeError(
                f"sharded={sharded!r} must be True, parameters, or a mapping of process groups to these"
            )
    return by_group
