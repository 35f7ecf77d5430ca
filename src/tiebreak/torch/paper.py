"""The methods of the core for torch: a plain step along d, with their rules, schedules and estimators."""

from typing import Any

import torch
from torch import Tensor

from tiebreak.methods import Method
from tiebreak.options import training_method
from tiebreak.schedules import Schedule
from tiebreak.torch.kernels import Passes
from tiebreak.torch.nonfinite import is_plain_sgd
from tiebreak.torch.optimizer import DynamicBarrier

#: Options of ``torch.optim.SGD`` that would change the method.
_SGD_OPTIONS = frozenset(
    ["momentum", "weight_decay", "nesterov", "dampening", "maximize", "foreach"]
)


class SDBGD(DynamicBarrier):
    """x ← x − η_k (∇f + λ∇g), λ by the SDBGD rule, or another method of the core.

    The update is one pass over the memory. ``.grad`` keeps the gradient of the level that came last: d is not stored.

    Parameters
    ----------
    params : iterable
        Parameters or groups, as for any torch optimizer.
    lr : float, optional
        A constant step size; without it, the `step_size` of the method's schedule. Learning-rate schedulers multiply
        either.
    method : Method or str
        Another row of :mod:`tiebreak.methods`, or your own. Batch sizes are yours to follow
        (:class:`~tiebreak.torch.GrowingBatches`).
    **options
        Those of :class:`DynamicBarrier`.

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
        method: Method | str = "sdbgd",
        **options: Any,
    ) -> None:
        if isinstance(params, torch.optim.Optimizer):
            raise TypeError(
                "params is an optimizer; SDBGD has its own, and DynamicBarrier(optimizer) goes around another"
            )
        for name in sorted(_SGD_OPTIONS & options.keys()):
            raise TypeError(
                f"{name} is none of SDBGD's: use DynamicBarrier(torch.optim.SGD(…, {name}=…))"
            )
        row = training_method(method)
        if options.get("tolerance") is None:
            options = {"normalize": False, "method": row} | options
        elif method != "sdbgd":  # only the step sizes of SDBGD have an effect
            raise ValueError(
                f"method={method!r} has no effect with tolerance=: give one of them"
            )
        schedule = row.schedule
        if lr is None and schedule.step_size is None:
            raise ValueError(
                f"lr=None and the schedule of {row.name!r} sets no step_size: give one of them"
            )
        self._step_sizes: Schedule | None = None
        if lr is None:
            self._step_sizes = schedule
            lr = float(schedule.at(0).step_size)
        base = torch.optim.SGD(params, lr=lr)
        super().__init__(base, **options)

    def _step_size_law(self) -> Any:
        if self._step_sizes is None:
            return None
        return self._step_sizes.step_size

    def _learning_rates(self) -> list[Any]:
        # The law's value for the step, times the factor of a learning-rate scheduler.
        factor = 1.0
        if self._step_sizes is not None:
            first = float(self._step_sizes.at(0).step_size)
            factor = self._step_sizes.at(self.count).step_size / first
        return [group["lr"] * factor for group in self.param_groups]

    def _move_along(self, passes: Passes, weights: Tensor, skip: Tensor | None) -> None:
        if not self._can_step_in_one_pass():
            super()._move_along(passes, weights, skip)
            return
        rates = self._learning_rates()
        weights = weights.expand(len(rates), 2)
        passes.descend(_times_rates(weights, rates), skip)

    def _step_base(self, skip: Tensor | None) -> None:
        groups = self.base.param_groups
        pairs = zip(groups, self._learning_rates(), strict=True)
        self.base.param_groups = [{**group, "lr": rate} for group, rate in pairs]
        try:
            super()._step_base(skip)
        finally:
            self.base.param_groups = groups

    def _capture_obstacle(self) -> str | None:
        obstacle = super()._capture_obstacle()
        steps = self._step_sizes
        if obstacle is None and steps is not None and not steps.constant("step_size"):
            return "the schedule's step_size must be a constant"
        return obstacle

    def _can_step_in_one_pass(self) -> bool:
        """Whether the update can be made without writing d: nothing but x − η d, and no hook or scheduler sees d."""
        base = self.base
        has_hooks = base._optimizer_step_pre_hooks or base._optimizer_step_post_hooks
        # A scheduler wraps the base's step in an attribute.
        return is_plain_sgd(base) and not has_hooks and "step" not in vars(base)


def _times_rates(weights: Tensor, rates: list[Any]) -> Tensor:
    """Each group's weights times its step size. No number is sent to the device by itself, because that would wait."""
    if all(isinstance(rate, float) and rate == rates[0] for rate in rates):
        return weights * float(rates[0])
    rows = []
    for row, rate in zip(weights.unbind(), rates, strict=True):
        if isinstance(rate, Tensor):
            rate = rate.to(weights.device)
        rows.append(row * rate)
    return torch.stack(rows)
