"""Any torch optimizer with two losses: d = a ∇f + b ∇g goes into ``.grad``, and the base optimizer steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak.estimators import Minibatch
from tiebreak.methods import Method
from tiebreak.options import allowed, training_schedule
from tiebreak.schedules import Parameters, Schedule
from tiebreak.tolerance import Reading
from tiebreak.torch import bases, checkpoint, closures, combining
from tiebreak.torch.arguments import (
    check_arguments,
    reference_for,
    rule_decision,
    tolerance_decision,
    trained_modules,
)
from tiebreak.torch.context import cannot_repeat, capturing
from tiebreak.torch.decide import Made, Maker
from tiebreak.torch.diagnostics import Diagnostics
from tiebreak.torch.distributed import Ranks
from tiebreak.torch.distributed.message import NAMES, Measured
from tiebreak.torch.estimates import Estimates
from tiebreak.torch.kernels import PassEngines, Passes
from tiebreak.torch.kernels.foreach import Row
from tiebreak.torch.levels import TwoLevels
from tiebreak.torch.losses import Term
from tiebreak.torch.memory import LawMemory
from tiebreak.torch.nonfinite import Guard
from tiebreak.torch.said import warn
from tiebreak.torch.step_info import PRODUCTS, READINGS, Step, record
from tiebreak.torch.swap import same_weight
from tiebreak.torch.wrapped import on_itself


class DynamicBarrier(TwoLevels):
    """Improve the upper loss f among what keeps the lower loss g optimal, with any base optimizer.

    Say how g is to be kept: by a tolerance and a reference, or by a rule of the paper's family.

    Parameters
    ----------
    base : torch.optim.Optimizer
        Steps along d; its parameter groups, state and learning rates are this optimizer's.
    tolerance : float or str, optional
        How far the lower loss may lie above its reference: 0.01, or "2%" of the reference; no weight to choose. It may
        be changed during a run, ``opt.tolerance = 0.02``, and is part of the state.
    reference : float, str, path or function of the step
        What the lower loss is compared with: a number, the final training loss of lower-only training; ``"start"``, a
        frozen copy of the starting model on the same batch, for fine-tuning; ``"twin"``, a copy trained on the lower
        loss alone beside the model, on the same batches (one more copy of the parameters with its optimizer state, one
        more backward pass); ``"given"``, you give it with each loss; or the path of a CSV log of a lower-only run.
    model : Module or list of Modules, optional
        The model that is trained, with the wrapper that cuts or averages it over ranks, if there is one. Needed for
        ``reference="start"`` and ``"twin"``, whose copy has the buffers of these modules, and under
        DistributedDataParallel and FSDP; :meth:`finish` moves it. Bare parameters: ``torch.nn.ParameterList``.
    generators : sequence of torch.Generator
        Private random generators that closures draw from, where a closure is called more than once a step.
    method : Method or str, optional
        In place of a tolerance, a rule with its numbers and its estimator: a row of :mod:`tiebreak.methods`, such as
        ``methods.sdbgd.replace(barrier=0.5, regularizer=1e-8)``, the name of a row, or ``Method("mine", rule,
        Schedule(barrier=0.5))`` with a function ``rule(fg, gg, barrier)`` of your own. The step size is the base's, and
        the batches are yours to follow. The rule sees the gradients of the mini-batch, or an exponential average of
        ∇g: ``method.replace(estimator="average", momentum=0.1)`` averages for λ alone, because most optimizers smooth
        the direction themselves; with ``estimator=Average(0.1)`` the direction is averaged, too.
    normalize : bool
        Step along d/(1+λ), so that a large λ does not lengthen the step. With `tolerance` the step is always along
        d/max(s, λ), s the averaged ‖∇f‖/‖∇g‖.
    max_norm : float, optional
        The direction is no longer than this: clipping, at no cost.
    nonfinite : {"raise", "skip", "ignore"}
        What to do where a gradient, a loss or the multiplier is not finite. With "raise" and "skip" the step is not
        made. Where the base can be told so on the device (plain SGD, :class:`SDBGD`, bases made with ``fused=True``,
        and SGD, Adam and AdamW where torch may choose), nobody waits, and "raise" raises at the next step, or at
        :meth:`check`; else the host waits once a step. A GradScaler decides by itself.
    fused : bool, optional
        Whether to make the passes over the parameters by Triton kernels: None where they can run, False never, True
        or an error. On a CPU there are none to choose.
    process_group : ProcessGroup or False, optional
        The ranks that hold a part of the model or of the batch, where the wrappers in `model` do not say it all; False
        where this process trains a model of its own. λ is then that of all of them together.
    sharded : True, iterable of parameters, or mapping of ProcessGroup to these
        Parameters of which every rank of the group holds others: experts, stages of a pipeline. Plain parameters are
        replicas otherwise, and DTensor and FSDP say themselves what lies where.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> opt = DynamicBarrier(base, tolerance=0.01, reference="twin", model=model)
    >>> info = opt.step(
    ...     lower=lambda: (model(torch.ones(4, 2)) - 1).square().mean(), upper=lambda: model.weight.abs().sum()
    ... )
    >>> info.excess.item()  # the twin is where the model is, at first
    0.0
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        tolerance: float | str | None = None,
        reference: Any = None,
        model: nn.Module | Sequence[nn.Module] | None = None,
        generators: Sequence[torch.Generator] = (),
        method: Method | str | None = None,
        normalize: bool | None = None,
        max_norm: float | None = None,
        nonfinite: str = "raise",
        fused: bool | None = None,
        process_group: Any = None,
        sharded: Any = None,
    ) -> None:
        check_arguments(base, normalize, max_norm, fused, generators)
        self.modules = trained_modules(model, base)
        if (
            isinstance(reference, Tensor) and reference.numel() == 1
        ):  # a loss as it comes
            reference = float(reference.detach())
        if tolerance is None:
            self.decision = rule_decision(method, normalize, reference)
        else:
            self.decision = tolerance_decision(
                base, tolerance, reference, method, normalize
            )
        target = reference_for(reference, self.modules, generators)
        row = self.decision.method
        self.schedule = Schedule() if row is None else training_schedule(row)
        ranks = Ranks(process_group, sharded, self.modules)
        super().__init__(base, target, tolerance is not None, Guard(nonfinite), ranks)
        self.generators, self.max_norm = tuple(generators), max_norm
        self.estimates = Estimates(Minibatch() if row is None else row.estimator)
        self.engines = PassEngines(fused)
        self.memory, self.maker = LawMemory(self.decision.begin()), Maker()
        self.last: Step | None = None
        same_batch = (
            target.at is None
        )  # a copy of the model, or a loss that the user gives
        self.diagnostics = Diagnostics(target.number is not None, same_batch)
        if fused:
            for p in self.gradients.parameters():
                self.engines.load_triton(p.device)

    @property
    def tolerance(self) -> float | str | None:
        """How far the lower loss may lie above its reference, as it was given; may be set at any time."""
        given = self.decision.tolerance
        return (
            None
            if given is None
            else f"{100 * given.amount:g}%"
            if given.relative
            else given.amount
        )

    @tolerance.setter
    def tolerance(self, tolerance: float | str) -> None:
        if self.decision.tolerance is None:
            raise ValueError(
                f"tolerance={tolerance!r}: this optimizer follows a rule; make one with tolerance="
            )
        amount, relative = allowed(tolerance)
        if relative and self.target.number == 0:
            raise ValueError(
                f"tolerance={tolerance!r} of a reference of 0 is 0: give the tolerance as a number > 0"
            )
        self.allow(amount, relative)

    @property
    def twin_returns(self) -> int:
        """How many times the model was set to its twin; waits for the device."""
        return self.memory.returns

    @property
    def skipped_steps(self) -> int | None:
        """How many steps were not made; None if the device alone decides that."""
        return self.guard.skips

    @on_itself
    def allow(self, amount: float, relative: bool) -> None:
        """Set the tolerance by its parts."""
        assert self.decision.tolerance is not None
        now = replace(self.decision.tolerance, amount=amount, relative=relative)
        self.decision = replace(self.decision, tolerance=now)

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(  # type: ignore[override]  # two closures instead of one
        self,
        closure: Any = None,
        *unnamed: Any,
        upper: Callable[[], Tensor] | None = None,
        lower: Callable[[], Tensor] | None = None,
    ) -> Step:
        """Combine the gradients of both levels and let the base optimizer step.

        With `upper` and `lower`, each returns its loss; the optimizer calls backward, lower level first. A `closure` is
        called once, where the gradients are: a framework's, or one with both blocks in it.
        """
        if unnamed:
            raise TypeError(
                "step(…, …): which loss is which? Give them by name: opt.step(lower=…, upper=…)"
            )
        if upper is None and closure is None and checkpoint.only_to_begin(self):
            return checkpoint.begin(self)
        closures.call(self, closure, upper, lower)
        return self._apply() if self._held is None else combining.release(self)

    @on_itself
    def combine(self, scaler: Any = None) -> Step:
        """Put the direction into ``.grad`` before the step: clip it, measure it, then ``opt.step()``.

        For what a trainer does between backward and step, which would otherwise reach one level only. After both
        blocks; with the gradient `scaler`, if there is one. ``max_norm=`` clips without, and clips a twin, too.
        """
        return combining.combine(self, scaler)

    @torch.no_grad()
    def _apply(self, hold: bool = False) -> Step:
        self._settle()
        # measure
        copy = self.target.copy
        inverse_scale, inverse_of_losses = self.guard.begin(self)
        if copy is not None:
            copy.ready(self)
        if not self.guard.looked:
            self.gradients.untouched()
        parameters = self.schedule.at(self.count)
        passes, direction_products, rule_products = self._products(
            parameters, inverse_scale
        )
        losses = {name: self.losses.value(name, inverse_of_losses) for name in NAMES}
        twin = None if copy is None else copy.square(self)
        # guard: is it the host or the device that has to know?
        waits = self.guard.looks and not self._skips_on_device(passes)
        measured = Measured(direction_products, rule_products, losses, twin)
        measured = self.ranks.together(self, measured, inverse_scale, waits)
        direction_products, _, losses, twin = measured
        used = self._used(losses)
        if twin is not None and self.estimates.batch_alone:
            same_weight(self, direction_products[1], twin, used, inverse_scale)
        if (
            capturing(passes.device)
            and (obstacle := self._capture_obstacle()) is not None
        ):
            cannot_repeat(obstacle)
        if self.decision.tolerance is None:
            self.noise.look(self.count, self.estimates.batch_alone, inverse_scale)
        # decide
        made = self.maker.make(self, passes, parameters, measured, used, inverse_scale)
        if made is None:
            return self._stop(direction_products, losses, hold)
        # move
        self._remember(made)
        self.last, weights = made.step, made.weights
        twin_step = None
        if copy is not None and copy.twin:
            twin_step = (
                copy.gradients(self),
                inverse_scale,
                copy.set_outside(self, self._own_rates()),
                twin,
            )
        if (
            hold
        ):  # the direction keeps the scale of its gradients: a scaler takes it out
            self._write(passes, weights, self.guard.bad)
            self._held = combining.Held(
                True, bool(self.guard.scaled), self.guard.bad, twin_step
            )
            return self.last
        weights = (
            weights if inverse_scale is None else weights * inverse_scale.to(weights)
        )
        self._advance(passes, weights, self.guard.bad)
        self._end(twin_step)
        return self.last

    def _products(
        self, parameters: Parameters, inverse_scale: Tensor | None
    ) -> tuple[Passes, Tensor, Tensor]:
        """The passes of the step, the inner products of the gradients in the direction, and those that the rule sees.

        Without a scaler's scale: one that moves must not weigh in anything but the direction.
        """
        rows = self.gradients.rows()
        rule_products = None
        if not self.estimates.batch_alone:
            estimated = self.estimates.rows_for_rule(
                self.gradients, rows, parameters, inverse_scale
            )
            rule_products = self._bind(estimated).products()
            if self.estimates.in_direction:
                return self._bind(self.gradients.rows()), rule_products, rule_products
        passes = self._bind(rows)
        products = passes.products()
        if inverse_scale is not None:
            products = products * inverse_scale.to(products) ** 2
        return (
            passes,
            products,
            products if rule_products is None else rule_products.to(products),
        )

    def _bind(self, rows: Sequence[Row]) -> Passes:
        return self.engines.bind(*self.ranks.divided(rows))

    def _used(self, losses: dict[str, Any]) -> dict[str, Any]:
        """The losses that the decision needs, by its names for them."""
        tolerant = self.decision.tolerance is not None
        if not tolerant and "lower_value" not in self.decision.method.needs:
            return {}
        if losses["lower"] is None:
            raise RuntimeError(
                "the lower loss is needed: `with opt.lower(loss): …`, or closures"
            )
        found = {"lower_value": losses["lower"]}
        if tolerant:
            found["reference"] = self.target.value(self.count, losses["reference"])
        return found

    def _remember(self, made: Made) -> None:
        """The step is made, or only the device knows that it is not: then what was stays."""
        self.estimates.accept()
        if (
            made.memory is not None
            and self.memory.keep(made.memory, self.guard.bad)
            and made.reading is not None
        ):
            self._diagnose(made.reading)
        self.guard.note(*(made.report or (("skipped",), made.step.skipped)))

    def _settle(self) -> None:
        """Hear what the device has to say of the last step."""
        self.ranks.settle(self)
        try:
            said = self.guard.settle()
        except FloatingPointError:
            self.forget()
            raise
        if said is not None and "excess" in said:
            loss = said.get("lower_loss", said["reference"])
            self._diagnose(
                Reading(
                    said["ratio"], math.nan, loss, said["reference"], said["excess"]
                )
            )

    def _diagnose(self, reading: Reading) -> None:
        """Warn about what the rule reads in a step, each thing once."""
        group = self.param_groups[0]
        rate = (
            None
            if "initial_lr" in group or not isinstance(group.get("lr"), float)
            else group["lr"]
        )  # a scheduler
        for text in self.diagnostics.observe(self.count, reading, self.tolerance, rate):
            warn(text)

    def _advance(self, passes: Passes, weights: Tensor, skip: Tensor | None) -> None:
        """Put the direction into ``.grad`` and let the base step; not where `skip` is true: only the device knows."""
        self._write(passes, weights, skip)
        self._move(skip)

    def _write(self, passes: Passes, weights: Tensor, skip: Tensor | None) -> None:
        passes.combine(weights.expand(len(self.param_groups), 2), skip)
        self.gradients.settle()
        self.gradients.clear()  # the direction is what the base sees, and if it raises the step is over

    def _move(self, skip: Tensor | None) -> None:
        bases.step(self.base, skip)

    def _end(self, twin_step: Any) -> None:
        """The parameters have moved: so does the twin, and the step is over."""
        if twin_step is not None and self.target.copy is not None:
            self.target.copy.step(self, *twin_step)
            self.target.copy.rescue(self)
        self.guard.hand_over(self.count)
        self.forget()
        self.count += 1

    def _own_rates(self) -> list[Any] | None:
        """The learning rate of each group in this step, where it is not the one in the group."""
        return None

    def _capture_obstacle(self) -> str | None:
        """What differs from step to step, which a captured step could not repeat; None if nothing does."""
        tolerance = self.decision.tolerance
        if (
            tolerance is not None
            and self.target.number is None
            and self.target.is_known
        ):
            return "the reference is another one at every step"
        if not self.estimates.batch_alone:
            return "the estimator of the method remembers: Minibatch() does not"
        if self.decision.method is not None:
            asked = self.decision.method.needs
            if "k" in asked or not self.schedule.constant(*asked):
                return "barrier, regularizer, … must be constants"
        return None

    def _skips_on_device(self, passes: Passes) -> bool:
        """Whether a step can be skipped without the host knowing."""
        if (
            not passes.on_device
            or not self.estimates.batch_alone
            or self.target.copy is not None
        ):
            return False
        bases.let_skip(self.base)
        return bases.can_skip(self.base)

    def _stop(self, products: Tensor, losses: dict[str, Any], hold: bool) -> Step:
        """A step that is not made, as the host knows; nothing was changed yet."""
        unknown = products[0] * math.nan
        both = [
            loss.value() if isinstance(loss, Term) else loss
            for loss in (losses["upper"], losses["lower"])
        ]
        # The averages are what they were: a step that is not made leaves no trace in them.
        kept = (
            {}
            if self.last is None
            else {name: getattr(self.last, name) for name in READINGS}
        )
        self.last = record(
            [unknown] * len(PRODUCTS), both, torch.ones_like(products[0]).bool()
        )._replace(**kept)
        raises = self.guard.must_raise
        self.forget()
        if raises:
            raise self.guard.error(self.count)
        self.count += 1
        self.guard.skip()
        self._held = combining.Held(False, bool(self.guard.scaled)) if hold else None
        return self.last

    def __repr__(self) -> str:
        if self.decision.tolerance is not None:
            how = f"tolerance={self.tolerance!r}, reference={self.target}"
        else:
            how = f"method={self.decision.method!r}"
        return f"{type(self).__name__}({how}, base={self.base!r})"

    @on_itself
    def check(self) -> None:
        """Raise if the last step was not finite, where the device alone knows that; waits for it.

        Every step does so for the one before it, and so do :meth:`log` and :meth:`state_dict`. Call it after the last
        step of a run, or right after a step to know at once.
        """
        self._settle()

    def log(self) -> dict[str, Any]:
        """Return the last step as numbers, by the names of the CSV log; waits for the device.

        `step` is its number. Values that the step does not have are left out. A step that was not finite raises, as in
        :meth:`check`.
        """
        self.check()
        if self.last is None:
            return {}
        values = {
            name: value.tolist()
            for name, value in self.last._asdict().items()
            if value is not None
        }
        return {"step": self.count - 1} | values
