"""The methods of the core for torch: a plain step along d, with their rules, schedules and estimators."""

from typing import Any

import torch
from torch import Tensor

from tiebreak import methods, rules
from tiebreak.checks import one_of
from tiebreak.estimators import named
from tiebreak.methods import Method
from tiebreak.options import refuse_unasked
from tiebreak.schedules import LEGAL, Schedule
from tiebreak.torch import bases
from tiebreak.torch.optimizer import DynamicBarrier
from tiebreak.torch.passes import Passes

__all__ = ["SDBGD", "from_method"]


class SDBGD(DynamicBarrier):
    """x ← x − η_k (∇f + λ∇g), λ by the SDBGD rule, or another method of the core.

    The update is one pass over the memory. ``.grad`` keeps the gradient of the level that came last: d is not stored.

    Parameters
    ----------
    params : iterable
        Parameters or groups, as for any torch optimizer.
    lr : float, optional
        A constant step size; without it, the schedule's `step_size`. Learning-rate schedulers multiply either.
    schedule : Schedule, optional
        In place of the method's: η_k (without `lr`), β_k, ρ_k and whatever else the rule asks for. Batch sizes are
        yours to follow (:class:`~tiebreak.torch.GrowingBatches`).
    method : Method or str
        Another row of :mod:`tiebreak.methods`, or your own.
    **options
        Those of :class:`DynamicBarrier`; `rule`, `barrier`, `estimator` and so on replace what the method says.

    Examples
    --------
    >>> x = torch.nn.Parameter(torch.tensor([1.5, 1.5]))
    >>> opt = SDBGD([x])
    >>> info = opt.step(upper=lambda: (x - 3).square().sum(), lower=lambda: x[0].square())
    >>> opt.param_groups[0]["lr"]
    0.05
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        *,
        schedule: Schedule | None = None,
        method: Method | str = "sdbgd",
        **options: Any,
    ) -> None:
        if isinstance(params, torch.optim.Optimizer):
            raise TypeError(
                "params is an optimizer; SDBGD has its own, and DynamicBarrier(optimizer) goes around another"
            )
        foreign = sorted({"weight_decay", "nesterov", "dampening", "maximize", "foreach"} & set(options))
        if foreign:
            raise TypeError(f"{foreign[0]} is none of SDBGD's: use DynamicBarrier(torch.optim.SGD(…, {foreign[0]}=…))")
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(f"schedule={schedule!r} must be a tiebreak.Schedule")
        if options.get("tolerance") is None:
            row = _changed(methods.get(method), schedule, options)
            options = {"normalize": False, "method": row} | options
            steps, name = row.schedule, row.name
        else:  # then the step sizes are all that a method brings
            steps, name = _only_step_sizes(method, schedule), "SDBGD"
        if lr is None and steps.step_size is None:
            raise ValueError(f"lr=None and the schedule of {name!r} sets no step_size: give one of them")
        base = torch.optim.SGD(params, lr=steps.at(0).step_size if lr is None else lr)
        self._step_sizes = steps if lr is None else None
        super().__init__(base, **options)

    def _own_rates(self) -> list[Any]:
        # The law's value for this step, times what a learning-rate scheduler has made of the first one.
        law = 1.0 if self._step_sizes is None else self._step_sizes.at(self.count).step_size / self._first
        return [group["lr"] * law for group in self.param_groups]

    @property
    def _first(self) -> float:
        return 1.0 if self._step_sizes is None else float(self._step_sizes.at(0).step_size)

    def _advance(self, passes: Passes, weights: Tensor, skip: Tensor | None) -> None:
        if not self._in_one_pass():
            super()._advance(passes, weights, skip)
            return
        rates = self._own_rates()
        passes.descend(_rated(weights.expand(len(rates), 2), rates), skip)

    def _move(self, skip: Tensor | None) -> None:
        rates, before = self._own_rates(), [group["lr"] for group in self.param_groups]
        try:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
            super()._move(skip)
        finally:
            for group, rate in zip(self.param_groups, before, strict=True):
                group["lr"] = rate

    def _changes(self) -> str | None:
        changes = super()._changes()
        if changes is None and self._step_sizes is not None and not self._step_sizes.constant("step_size"):
            return "the schedule's step_size must be a constant"
        return changes

    def _in_one_pass(self) -> bool:
        """Whether the update can be made without writing d: it is the base's whole step, and no hook sees d."""
        hooks = self.base._optimizer_step_pre_hooks or self.base._optimizer_step_post_hooks
        # Nor has a scheduler wrapped the base's step.
        return bases.is_plain_sgd(self.base) and not hooks and "step" not in vars(self.base)


def from_method(method: Method | str, params: Any, lr: float | None = None, **options: Any) -> SDBGD:
    """A row of :mod:`tiebreak.methods`, or your own, as an optimizer: rule, schedule and estimator.

    Examples
    --------
    >>> x = torch.nn.Parameter(torch.tensor([1.5, 1.5]))
    >>> opt = from_method("pr_sdbpg", [x])
    >>> info = opt.step(upper=lambda: (x - 3).square().sum(), lower=lambda: x[0].square())
    """
    return SDBGD(params, lr, method=method, **options)


def _only_step_sizes(method: Any, schedule: Schedule | None) -> Schedule:
    if method != "sdbgd":
        raise ValueError(f"method={method!r} has no effect with tolerance=: give one of them")
    chosen = Schedule(methods.sdbgd.schedule.step_size) if schedule is None else schedule
    for name in ("barrier", "regularizer", "penalty", "momentum"):
        if getattr(chosen, name) is not None:
            raise ValueError(f"{name} of the schedule has no effect with tolerance=: a Schedule(step_size=…) has")
    return chosen


def _changed(row: Method, schedule: Schedule | None, options: dict[str, Any]) -> Method:
    """The method with another schedule and what the options replace in it; they are taken out of `options`."""
    laws = {name: options.pop(name) for name in LEGAL if options.get(name) is not None}
    parts = {name: options.pop(name) for name in ("rule", "estimator", "others") if options.get(name) is not None}
    if isinstance(parts.get("rule"), str):
        one_of("rule", parts["rule"], tuple(rules.RULES))
        parts["rule"] = rules.RULES[parts["rule"]]
    rule, kind = parts.get("rule", row.rule), named(parts.get("estimator", row.estimator))
    needed = {*methods.asked(rule), *getattr(kind, "needs", ())}
    refuse_unasked(laws | dict(parts.get("others", {})), getattr(rule, "__name__", "rule"), needed, kind)
    parts |= {} if schedule is None else {"schedule": schedule}
    if "momentum" in needed and (schedule or row.schedule).momentum is None:
        laws.setdefault("momentum", 0.1)
    return row.replace(**laws, **parts) if laws or parts else row


def _rated(weights: Tensor, rates: list[Any]) -> Tensor:
    """Each group's weights times its step size; a number is never sent to the device by itself, for that would wait."""
    if all(isinstance(rate, float) and rate == rates[0] for rate in rates):
        return weights * float(rates[0])
    on = [rate.to(weights.device) if isinstance(rate, Tensor) else rate for rate in rates]
    rated: Tensor = torch.stack([row * rate for row, rate in zip(weights.unbind(), on, strict=True)])
    return rated
