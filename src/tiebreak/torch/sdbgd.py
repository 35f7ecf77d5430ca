"""The paper's method itself: a plain step along d, with the core's schedules."""

from typing import Any

import torch
from torch import Tensor

from tiebreak import methods
from tiebreak.schedules import Schedule
from tiebreak.torch import bases
from tiebreak.torch.optimizer import DynamicBarrier
from tiebreak.torch.passes import Plan

__all__ = ["SDBGD"]


class SDBGD(DynamicBarrier):
    """x ← x − η_k (∇f + λ∇g), λ by the SDBGD rule.

    The update is one pass over the memory. ``.grad`` keeps the gradient of the level that came last: d is not stored.

    Parameters
    ----------
    params : iterable
        Parameters or groups, as for any torch optimizer.
    lr : float, optional
        A constant step size; without it, the schedule's `step_size`. Learning-rate schedulers multiply either.
    schedule : Schedule
        β_k, ρ_k and, without `lr`, η_k; the paper's row if none is given. Batch sizes are yours to follow
        (:class:`~tiebreak.torch.GrowingBatches`).
    **options
        Those of :class:`DynamicBarrier`: `rule`, `estimator`, `normalize`, `scope`, `nonfinite`, ….

    Examples
    --------
    >>> x = torch.nn.Parameter(torch.tensor([1.5, 1.5]))
    >>> opt = SDBGD([x])
    >>> info = opt.step(upper=lambda: (x - 3).square().sum(), lower=lambda: x[0].square())
    >>> opt.param_groups[0]["lr"]
    0.05
    """

    def __init__(
        self, params: Any, lr: float | None = None, *, schedule: Schedule | None = None, **options: Any
    ) -> None:
        if isinstance(params, torch.optim.Optimizer):
            raise TypeError(
                "params is an optimizer; SDBGD has its own, and DynamicBarrier(optimizer) goes around another"
            )
        foreign = sorted({"weight_decay", "nesterov", "dampening", "maximize", "foreach"} & set(options))
        if foreign:
            raise TypeError(f"{foreign[0]} is none of SDBGD's: use DynamicBarrier(torch.optim.SGD(…, {foreign[0]}=…))")
        chosen = methods.sdbgd.schedule if schedule is None else schedule
        if not isinstance(chosen, Schedule):
            raise TypeError(f"schedule={schedule!r} must be a tiebreak.Schedule")
        base = torch.optim.SGD(params, lr=chosen.at(0).step_size if lr is None else lr)
        laws = {n: getattr(chosen, n) for n in ("barrier", "regularizer", "momentum", "penalty")}
        given = {n: law for n, law in laws.items() if law is not None}
        super().__init__(base, **{"normalize": False} | given | options)
        self.plan = chosen if lr is None else None

    def _advance(self, plan: Plan, weights: Tensor, skip: Tensor | None) -> None:
        # The law's value for this step, times what a learning-rate scheduler has made of the first one.
        law = 1.0 if self.plan is None else self.plan.at(self.count).step_size / self.plan.at(0).step_size
        rates = [group["lr"] * law for group in self.param_groups]
        if self._in_one_pass():
            plan.descend(_rated(self._by_slot(weights), [rates[i] for i in self.gradients.slots(self.scope)]), skip)
            return
        before = [group["lr"] for group in self.param_groups]
        try:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
            super()._advance(plan, weights, skip)
        finally:
            for group, rate in zip(self.param_groups, before, strict=True):
                group["lr"] = rate

    def _repeatable(self) -> bool:
        return super()._repeatable() and (self.plan is None or self.plan.constant("step_size"))

    def _in_one_pass(self) -> bool:
        """Whether the update can be made without writing d: it is the base's whole step, and nobody looks at d."""
        hooks = self.base._optimizer_step_pre_hooks or self.base._optimizer_step_post_hooks
        return bases.plain(self.base) and not hooks and "step" not in vars(self.base)  # nor has a scheduler wrapped it


def _rated(weights: Tensor, rates: list[Any]) -> Tensor:
    """Each slot's weights times its step size; a number is never sent to the device by itself, for that would wait."""
    if all(isinstance(rate, float) and rate == rates[0] for rate in rates):
        return weights * float(rates[0])
    on = [rate.to(weights.device) if isinstance(rate, Tensor) else rate for rate in rates]
    rated: Tensor = torch.stack([row * rate for row, rate in zip(weights.unbind(), on, strict=True)])
    return rated
