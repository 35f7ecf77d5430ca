"""The optimizer around a torch optimizer, with two losses: measure, decide, move.

Read :mod:`~tiebreak.torch.reference_step` first: it does the same in slow, obvious lines. ``DynamicBarrier._apply`` is
the step. Its helpers take and return plain values. Only ``checkpoint.py``, the hooks of the loggers and torch's own
gradient scaler get the optimizer.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Literal, NamedTuple, Never, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from tiebreak.estimators import Minibatch
from tiebreak.line_search import Finish
from tiebreak.methods import Method
from tiebreak.options import allowed, training_schedule
from tiebreak.schedules import Parameters, Schedule
from tiebreak.tolerance import Reading
from tiebreak.torch import checkpoint, grad_scaler
from tiebreak.torch.arguments import (
    ReferenceArgument,
    check_arguments,
    make_reference,
    modules_of,
    refuse_unknown,
    rule_decision,
    scalar_reference,
    tolerance_decision,
    trained_modules,
)
from tiebreak.torch.backward import (
    BackwardPasses,
    Closure,
    Number,
    check_closures,
    check_repeatable,
    loss_value,
    loss_values,
    returned_loss,
)
from tiebreak.torch.decide import Decider, RuleMemory, StepDecision
from tiebreak.torch.devices import cannot_repeat, capturing
from tiebreak.torch.diagnostics import Diagnostics, GradientNoise, warn_at_caller
from tiebreak.torch.distributed import Measurement, Ranks, StepReport
from tiebreak.torch.distributed.consistency import describe_settings
from tiebreak.torch.distributed.layout import several_ranks
from tiebreak.torch.estimates import Estimates
from tiebreak.torch.finish import (
    Anchor,
    Line,
    LineTensor,
    anchor_tensors,
    check_finish_arguments,
    descend,
    finish_on_line,
)
from tiebreak.torch.grad_scaler import Scaling
from tiebreak.torch.gradients import (
    LEVELS,
    REFERENCE,
    GradientPairs,
    Gradients,
)
from tiebreak.torch.kernels import PassEngines, Passes
from tiebreak.torch.kernels.torch_passes import Row
from tiebreak.torch.model_copy import (
    ModelCopy,
    check_separate_memory,
    release_gathered,
)
from tiebreak.torch.nonfinite import (
    NonfiniteGuard,
    can_skip_on_device,
    choose_fused,
    step_unless,
)
from tiebreak.torch.step_info import READINGS, Step, unknown_step
from tiebreak.torch.twin import Twin, TwinStep, check_equal_weights, set_mode

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _on_optimizer(method: _Function) -> _Function:
    """Let a method act on the optimizer itself if it is called on a wrapper; for methods that assign attributes.

    Lightning and Fabric wrap an optimizer in an object of a class that inherits from the optimizer's. The wrapper reads
    the optimizer's attributes, but what a method writes to it would stay there.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(vars(self).get("_optimizer", self), *args, **kwargs)

    return cast(_Function, call)


class _Move(NamedTuple):
    """What a step still has to do when its direction is in ``.grad``."""

    decision: StepDecision | None  # None if numbers were not finite
    has_scaler: bool
    twin_step: TwinStep | None = None


class DynamicBarrier(Optimizer):
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
        Private random generators that closures draw from, if a closure is called more than once: in a step with
        ``reference="start"`` or ``"twin"``, and in :meth:`finish`.
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
        What to do if a gradient, a loss or the multiplier is not finite. With "raise" and "skip" the step is not made.
        If the base can skip a step on the device, the host does not wait, and "raise" raises at the next step, or at
        :meth:`check`. Otherwise the host waits once a step. Such bases are plain SGD, :class:`SDBGD`, bases made with
        ``fused=True``, and SGD, Adam and AdamW if torch may choose. A GradScaler decides by itself.
    fused : bool, optional
        Whether Triton kernels make the passes over the parameters. None: if they run. False: never. True: raise if they
        do not run.
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

    _step_supports_amp_scaling = True

    def __init__(
        self,
        base: Optimizer,
        *,
        tolerance: float | str | None = None,
        reference: ReferenceArgument | Tensor = None,
        model: nn.Module | Sequence[nn.Module] | None = None,
        generators: Sequence[torch.Generator] = (),
        method: Method | str | None = None,
        normalize: bool | None = None,
        max_norm: float | None = None,
        nonfinite: str = "raise",
        fused: bool | None = None,
        process_group: ProcessGroup | Literal[False] | None = None,
        sharded: Any = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown)
        check_arguments(base, normalize, max_norm, fused, generators)
        modules = trained_modules(model, base)
        source: ReferenceArgument = scalar_reference(reference)
        if tolerance is None:
            decision = rule_decision(method, normalize, source)
        else:
            decision = tolerance_decision(base, tolerance, source, method, normalize)
        lower_reference = make_reference(source, modules, base)
        if decision.tolerance is not None:
            same_batch = lower_reference.same_batch
            allowance = replace(decision.tolerance, same_batch=same_batch)
            decision = replace(decision, tolerance=allowance)
        row = decision.method
        if row is None:
            self.schedule = Schedule()
        else:
            self.schedule = training_schedule(row)
        self.ranks = Ranks(process_group, sharded, modules)
        self.nonfinite = NonfiniteGuard(nonfinite)
        self.base = base
        # Groups and state are the base's, so Optimizer.__init__ must not make its own.
        Optimizer.__setstate__(self, {"defaults": base.defaults})
        self._warned_capturable_if_run_uncaptured = True
        self.modules = modules
        self.generators = tuple(generators)
        self.max_norm = max_norm
        self.decision = decision
        self.lower_reference = lower_reference
        # The frozen copy or the twin, if the reference is one.
        self.model_copy: ModelCopy | None = None
        if isinstance(lower_reference, ModelCopy):
            self.model_copy = lower_reference
        self.twin: Twin | None = None
        if isinstance(lower_reference, Twin):
            self.twin = lower_reference
        self.gradients = Gradients(base, self.ranks)
        self.backward = BackwardPasses(self.gradients)
        self.noise = GradientNoise()
        self.estimates = Estimates(Minibatch() if row is None else row.estimator)
        self.memory = RuleMemory(decision.begin())
        self.diagnostics = Diagnostics(
            lower_reference.number is not None, lower_reference.same_batch
        )
        self.engines = PassEngines(fused)
        self._decider = Decider()
        self.count = 0  # steps tried, skipped ones too
        self.last: Step | None = None
        # True after `checkpoint.is_state_request` found such a request before the first step.
        self.state_requested = False
        # True if the model has stepped and the twin has not.
        self._twin_is_behind = False
        self._combined: _Move | None = None
        if fused:
            for p in self.gradients.parameters():
                self.engines.load_triton(p.device)

    @property
    def tolerance(self) -> float | str | None:
        """How far the lower loss may lie above its reference, a share as a text with "%"; may be set at any time."""
        tolerance = self.decision.tolerance
        if tolerance is None:
            return None
        if tolerance.relative:
            return f"{100 * tolerance.amount:.12g}%"
        return tolerance.amount

    @tolerance.setter
    def tolerance(self, tolerance: float | str) -> None:
        if self.decision.tolerance is None:
            raise ValueError(
                f"tolerance={tolerance!r}: this optimizer follows a rule; make one with tolerance="
            )
        amount, relative = allowed(tolerance)
        if relative and self.lower_reference.number == 0:
            raise ValueError(
                f"tolerance={tolerance!r} of a reference of 0 is 0: give the tolerance as a number > 0"
            )
        self.set_tolerance(amount, relative)

    @_on_optimizer
    def set_tolerance(self, amount: float, relative: bool) -> None:
        """Set the tolerance by its parts."""
        assert self.decision.tolerance is not None
        tolerance = replace(self.decision.tolerance, amount=amount, relative=relative)
        self.decision = replace(self.decision, tolerance=tolerance)

    @property
    def twin_returns(self) -> int:
        """How many times the model was set to its twin; waits for the device."""
        return self.memory.return_count

    @property
    def skipped_steps(self) -> int | None:
        """How many steps were not made; None if the device alone decides that."""
        return self.nonfinite.skipped_steps

    # --- gradients and losses of both levels -------------------------------------------

    def upper(self, loss: Number | None = None) -> AbstractContextManager[None]:
        """``with opt.upper(): loss_f.backward()``, any number of times before a step; gradients and losses add up."""
        return self._block("upper", loss)

    def lower(
        self,
        loss: Number | None = None,
        *,
        reference: Number | None = None,
        weight: float = 1.0,
    ) -> AbstractContextManager[None]:
        """``with opt.lower(loss_g): loss_g.backward()``; the loss is needed with ``tolerance=`` only.

        Parameters
        ----------
        loss : tensor or float, optional
            The lower loss. A tensor counts as its backward pass weighs it, so ``(loss / n).backward()`` is one
            micro-batch of n; a number is the mean loss of its micro-batch.
        reference : tensor or float, optional
            The reference's loss on the same batch.
        weight : float
            The relative size of the micro-batch. It weighs losses that are given as numbers, and the noise estimate.
        """
        if reference is not None and self.decision.tolerance is None:
            raise ValueError(
                f"reference={reference!r} has no effect without tolerance="
            )
        if reference is not None and not self.lower_reference.same_batch:
            raise ValueError(
                f"reference={reference!r} is given here and in the constructor: give one of them"
            )
        if reference is not None and loss is None:
            raise ValueError(
                f"reference={reference!r} needs the loss that it is compared with: opt.lower(loss, …)"
            )
        return self._lower_block(loss, reference, weight)

    @_on_optimizer
    @contextmanager
    def _lower_block(
        self, loss: Number | None, reference: Number | None, weight: float
    ) -> Iterator[None]:
        with self._block("lower", loss, reference, weight):
            yield
        if self.decision.tolerance is None and self.noise.is_due(self.count):
            pairs = self.gradients.pairs("lower")
            self.noise.add(self.ranks.squared_norms(pairs), weight)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the model is its reference, the twin or the frozen copy: evaluate the batch's lower loss.

        For a twin call backward on it, too; then ``opt.lower(loss, reference=that_loss)``. Parameters, buffers and
        random numbers are as they were afterwards. Closures do all this by themselves. Under ``torch.no_grad()`` the
        reference is only evaluated, on any data.
        """
        if self.model_copy is None:
            raise RuntimeError(
                'opt.reference() is for reference="twin" and reference="start"'
            )
        if self.backward.active_level:
            raise RuntimeError(
                f"opt.reference() was entered inside opt.{self.backward.active_level}(); leave one before the other"
            )
        with self._copy_in_place(self.model_copy):
            if self.twin is not None and torch.is_grad_enabled():
                with self._block(REFERENCE):
                    yield
            else:
                with self.backward.reference_in_place():
                    yield

    def _copy_in_place(self, copy: ModelCopy) -> AbstractContextManager[None]:
        self._begin_step()
        if self.ranks.needs_settings:
            self._compare_settings()
        return copy.in_place_of_model(self.generators, self.ranks.wrappers)

    @_on_optimizer
    def _block(self, level: str, *arguments: Any) -> AbstractContextManager[None]:
        if self._combined is not None:
            raise RuntimeError(
                f"opt.{level}() after opt.combine(): opt.step() comes next, or opt.zero_grad()"
            )
        if self.gradients.owner is None:
            self._begin_step()
        return self.backward.block(level, *arguments)

    def _run_closures(
        self,
        closure: Callable[[], Any] | None,
        upper: Closure | None,
        lower: Closure | None,
    ) -> None:
        """Call what a step was given; afterwards the gradients of both levels are there, or an error says what is missing.

        A `closure` is called once, when both gradients exist: Lightning passes one that calls
        its hooks. It may also make both blocks itself; its return value does not matter then.
        """
        if self._combined is not None:
            if upper is not None:
                raise RuntimeError(
                    "step(upper=…, lower=…) after opt.combine(): opt.step() goes along what is in .grad"
                )
            if closure is not None:
                closure()
            return
        if upper is not None and lower is not None:
            self._check_closures_allowed(closure)
            self._evaluate(upper, lower)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            if loss is not None and not self.gradients.finished.issuperset(LEVELS):
                raise TypeError(
                    "step(closure) knows one loss: give two, step(upper=…, lower=…), or make the two backward passes in "
                    "`with opt.lower(loss):` and `with opt.upper(loss):`. A trainer that makes them by itself must not: in "
                    "Lightning set self.automatic_optimization = False"
                )
        self.gradients.check_complete()

    def _check_closures_allowed(self, closure: object) -> None:
        if getattr(self, "found_inf", None) is not None:
            # A scaler leaves these attributes if a step raises.
            del self.found_inf, self.grad_scale
            raise RuntimeError(
                "scaler.step(opt, lower=…, upper=…): a gradient scaler looks at .grad before closures run: use blocks, "
                "`with opt.lower(g): scaler.scale(g).backward()`, the same for upper, and scaler.step(opt)"
            )
        if closure is not None and several_ranks():
            raise RuntimeError(
                "step(upper=…, lower=…) calls backward past the framework, which then sums no gradients over its "
                "processes: call it in both blocks, `with opt.lower(loss): self.manual_backward(loss)`, the same for upper"
            )

    def _evaluate(self, upper: Closure, lower: Closure) -> None:
        """Make gradients and losses from closures: of the reference first, on the same batch.

        Forward and backward of one level, then of the other: the only order that DistributedDataParallel averages right.
        """
        copy = self.model_copy
        with torch.enable_grad():
            if copy is None:
                self._begin_step()
                if self.ranks.needs_settings:
                    self._compare_settings()
                self.backward.run("lower", lower)
                self.backward.run("upper", upper)
                return
            is_first = not copy.begun
            with self._copy_in_place(copy):
                if self.twin is None:
                    reference = returned_loss("lower", lower())
                else:
                    reference = self.backward.run(REFERENCE, lower)
                reference = reference.detach().reshape(())
            loss = self.backward.run("lower", lower, reference)
            self.backward.run("upper", upper)
        if is_first:
            # The copy is still equal to the model, so both losses must agree.
            check_repeatable(reference, loss.detach())

    @_on_optimizer
    def forget(self) -> None:
        """Discard the gradients and losses that were accumulated for this step."""
        self.backward.clear()
        if self.decision.tolerance is None:
            self.noise.start_step()
        self._combined = None

    # --- the step -----------------------------------------------------------------

    def step(  # type: ignore[override]  # two closures instead of one
        self,
        closure: Callable[[], Any] | None = None,
        *unnamed: Any,
        upper: Closure | None = None,
        lower: Closure | None = None,
    ) -> Step:
        """Combine the gradients of both levels and let the base optimizer step.

        With `upper` and `lower`, each returns its loss; the optimizer calls backward, lower level first. A `closure` is
        called once, where the gradients are: a framework's, or one with both blocks in it.
        """
        if unnamed:
            raise TypeError(
                "step(…, …): which loss is which? Give them by name: opt.step(lower=…, upper=…)"
            )
        check_closures(closure, upper, lower)
        self._check_no_block("step")
        if upper is None and closure is None and self._is_state_request():
            return checkpoint.create_state(self)
        try:
            self._run_closures(closure, upper, lower)
            if self._combined is not None:
                return self._release(self._combined)
            return self._apply()
        except BaseException:
            # Discard the incomplete step, so that the next call starts cleanly; `scaler.step` leaves its attributes.
            self.forget()
            for name in ("found_inf", "grad_scale"):
                vars(self).pop(name, None)
            raise

    @torch.no_grad()
    def _apply(self, hold: bool = False) -> Step:
        """Measure, decide and move. With `hold` the direction goes into ``.grad``, and the base does not step yet."""
        self.check()
        scaling = self._read_scaling()
        if self.twin is not None and REFERENCE not in self.gradients.finished:
            raise RuntimeError(
                "the twin had no backward pass in this step: `with opt.reference(): r = …; r.backward()`, or closures"
            )
        has_scaler = scaling.found_inf is not None
        self.backward.has_scaler = has_scaler
        if not has_scaler:  # a scaler writes to .grad
            self.gradients.check_unchanged()
        parameters = Parameters(k=self.count)
        if self.decision.method is not None:
            parameters = self.schedule.at(self.count)

        # Measure: inner products of the gradients, and losses, over all ranks.
        rows = self.gradients.rows()
        twin_gradients = self.gradients.pairs(REFERENCE)
        passes, measured = self._measure(rows, parameters, scaling, twin_gradients)
        checks_finite = has_scaler or self.nonfinite.policy != "ignore"
        to_host = checks_finite and not self._can_skip_on_device(passes)
        measured, scaling = self._over_ranks(measured, scaling, checks_finite, to_host)
        measured = self._with_reference(measured)
        self._check_measured(passes, measured, scaling)

        # Decide: d = a ∇f + b ∇g.
        is_plain = measured.rule_products is measured.products
        is_plain = is_plain and self.twin is None and not has_scaler
        decision = self._decider.decide(
            self.decision,
            parameters,
            measured,
            self.memory,
            self.max_norm,
            scaling.found_inf,
            checks_finite,
            may_use_kernel=is_plain and self._is_on_device(passes, measured),
        )
        if decision is None:
            return self._skip(measured, scaling, hold)

        # Move: the model along d, then the twin along its own gradient.
        twin_step = None
        if self.twin is not None:
            self.twin.adopt_options(self.base, self._learning_rates())
            assert measured.twin_squared_norm is not None
            twin_step = TwinStep(
                twin_gradients, measured.twin_squared_norm, scaling.inverse_scale
            )
        move = _Move(decision, has_scaler, twin_step)
        if hold:
            # The direction keeps the scale of its gradients: the scaler takes it out.
            self._write_direction(passes, decision.weights, decision.skip)
            self._combined = move
            self.last = decision.info
            return decision.info
        weights = decision.weights
        if scaling.inverse_scale is not None:
            weights = weights * scaling.inverse_scale.to(weights)
        self._twin_is_behind = self.twin is not None
        self._move_along(passes, weights, decision.skip)
        return self._end_step(move)

    def _is_state_request(self) -> bool:
        is_idle = self.gradients.owner is None and self._combined is None
        return is_idle and checkpoint.is_state_request(self.param_groups)

    def _read_scaling(self) -> Scaling:
        # `scaler.step` sets these attributes.
        scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        scaling = grad_scaler.NO_SCALER
        if found_inf is not None:
            scaling = grad_scaler.read_scaling(scale, found_inf)
        return scaling

    # --- measure ------------------------------------------------------------------

    def _measure(
        self,
        rows: Sequence[Row],
        parameters: Parameters,
        scaling: Scaling,
        twin_gradients: GradientPairs,
    ) -> tuple[Passes, Measurement]:
        """Return the passes of the step, and what this rank measured, without a scaler's scale."""
        inverse_scale = scaling.inverse_scale
        if self.estimates.is_minibatch:
            passes = self._bind(rows)
            products = rule_products = _unscaled(passes.products(), inverse_scale)
        else:
            estimated = self.estimates.rows_for_rule(
                self.gradients, rows, parameters, inverse_scale
            )
            rule_products = self._bind(estimated).products()
            if self.estimates.in_direction:
                passes = self._bind(self.gradients.rows())
                products = rule_products
            else:
                passes = self._bind(rows)
                products = _unscaled(passes.products(), inverse_scale)
                rule_products = rule_products.to(products)
        losses = {
            name: self.backward.losses.value(name, scaling.inverse_scale)
            for name in (*LEVELS, REFERENCE)
        }
        twin_squared_norm = None
        if self.twin is not None:
            squared_norm = self.ranks.squared_norms(twin_gradients)
            twin_squared_norm = _unscaled(squared_norm, inverse_scale)
        return passes, Measurement(products, rule_products, losses, twin_squared_norm)

    def _bind(self, rows: Sequence[Row]) -> Passes:
        rows_by_kind: list[Sequence[Row]] = [rows]
        if self.ranks.is_split:
            rows_by_kind = self.ranks.split_rows(rows)
        return self.engines.bind(rows_by_kind)

    def _is_on_device(self, passes: Passes, measured: Measurement) -> bool:
        """Whether Triton makes all passes, and the host does not know the inner products."""
        is_remote = passes.on_device and measured.products.device == passes.device
        return is_remote and passes.uses_triton

    def _can_skip_on_device(self, passes: Passes) -> bool:
        """Whether the device can skip this step without the host knowing."""
        if self.twin is not None or not passes.on_device:
            return False
        if not self.estimates.is_minibatch:
            return False
        choose_fused(self.base)
        return can_skip_on_device(self.base)

    def _over_ranks(
        self,
        measured: Measurement,
        scaling: Scaling,
        checks_finite: bool,
        to_host: bool,
    ) -> tuple[Measurement, Scaling]:
        """Return what all ranks measured together, and the scaling with what a scaler found on any of them."""
        ranks = self.ranks
        if ranks.alone:
            return self._on_one_rank(measured, to_host), scaling
        ranks.check_synchronized()
        if ranks.needs_settings:
            self._compare_settings()
        measured = measured._replace(losses=loss_values(measured.losses))
        if self.decision.tolerance is None:
            kinds = len(measured.products)
            noise = self.noise.partial_sums(kinds, measured.products)
            measured = measured._replace(noise=noise)
        incomplete = not self.gradients.finished.issuperset(LEVELS)
        tolerance = self.decision.tolerance
        if tolerance is None:
            changing = []
        else:
            changing = [tolerance.amount, tolerance.relative]
        replicas = ranks.replicas_to_compare(self.count)
        replica_gradients = None
        if replicas:
            replica_gradients = [self.gradients.of(level, replicas) for level in LEVELS]
        report = StepReport(
            measured=measured,
            present=self.gradients.are_present(),
            incomplete=incomplete,
            spoiled=checks_finite and (incomplete or self.gradients.changed_here),
            touched=self.gradients.changed,
            step=self.count,
            changing=changing,
            learning_rate=self.param_groups[0].get("lr", 0.0),
            replica_gradients=replica_gradients,
            found_inf=scaling.found_inf,
            inverse_scale=scaling.inverse_scale,
        )
        measured, found_inf = ranks.all_reduce(report, to_host)
        if measured.noise is not None:
            self.noise.set_sums(measured.noise)
        return measured, scaling._replace(found_inf=found_inf)

    def _on_one_rank(self, measured: Measurement, to_host: bool) -> Measurement:
        products = measured.products[0]
        is_same = measured.rule_products is measured.products
        if is_same:
            rule_products = products
        else:
            rule_products = measured.rule_products[0]
        if products.device.type == "cpu":
            to_host = False
        if to_host and is_same:
            products = rule_products = self.nonfinite.to_host(products)
        elif to_host:
            numbers = self.nonfinite.to_host(torch.cat([products, rule_products]))
            products, rule_products = numbers.reshape(2, -1).unbind()
        return measured._replace(products=products, rule_products=rule_products)

    def _begin_step(self) -> None:
        """Make a copy of the model, if it is the first step, and find how the parameters lie over the ranks."""
        if self.model_copy is not None:
            self.model_copy.follow(self.base)
        self.ranks.find_layout(self.gradients.parameters())

    def _compare_settings(self) -> None:
        """Raise unless all ranks have the same settings."""
        self.ranks.compare_settings(
            describe_settings(
                self.decision.method,
                self.schedule,
                self.estimates.estimator,
                tolerance=self.tolerance,
                reference=self.lower_reference.describe(),
                normalize=self.decision.normalize,
                max_norm=self.max_norm,
                nonfinite=self.nonfinite.policy,
                step_size=self._step_size_law(),
            )
        )

    def _with_reference(self, measured: Measurement) -> Measurement:
        """Return the measurement with the reference of this step; raise if the decision lacks a loss."""
        tolerance = self.decision.tolerance
        if tolerance is None and "lower_value" not in self.decision.method.needs:
            return measured
        losses = measured.losses
        if losses["lower"] is None:
            raise RuntimeError(
                "the lower loss is needed: `with opt.lower(loss): …`, or closures"
            )
        if tolerance is None:
            return measured
        reference = self.lower_reference.value(self.count, losses[REFERENCE])
        return measured._replace(losses=losses | {REFERENCE: reference})

    def _check_measured(
        self,
        passes: Passes,
        measured: Measurement,
        scaling: Scaling,
    ) -> None:
        """Raise if a twin's loss has another weight, or if a captured step cannot be repeated; warn of noise."""
        twin_squared_norm = measured.twin_squared_norm
        if (
            self.twin is not None
            and twin_squared_norm is not None
            and not self.twin.has_moved
        ):
            check_equal_weights(
                measured.losses, float(measured.products[1]), float(twin_squared_norm)
            )
        if passes.device.type == "cuda" and capturing(passes.device):
            obstacle = self._capture_obstacle()
            if obstacle is not None:
                cannot_repeat(obstacle)
        if self.decision.tolerance is None:
            self.noise.check(
                self.count, self.estimates.is_minibatch, scaling.inverse_scale
            )

    def _capture_obstacle(self) -> str | None:
        """Return what differs from step to step, which a captured step could not repeat; None if nothing does."""
        reference = self.lower_reference
        changes = reference.is_known and reference.number is None
        if changes and self.decision.tolerance is not None:
            return "the reference is another one at every step"
        if not self.estimates.is_minibatch:
            return "the estimator of the method remembers: Minibatch() does not"
        if self.decision.method is not None:
            needs = self.decision.method.needs
            if "k" in needs or not self.schedule.constant(*needs):
                return "barrier, regularizer, … must be constants"
        return None

    # --- move ---------------------------------------------------------------------

    def _learning_rates(self) -> list[Any] | None:
        """Return the learning rate of each group in this step, if it is not the one in the group."""
        return None

    def _step_size_law(self) -> Any:
        """Return the law of the step sizes, if the optimizer has one."""
        return None

    def _move_along(self, passes: Passes, weights: Tensor, skip: Tensor | None) -> None:
        """Put the direction into ``.grad`` and let the base step; it stays where `skip` is true."""
        self._write_direction(passes, weights, skip)
        self._step_base(skip)

    def _write_direction(
        self, passes: Passes, weights: Tensor, skip: Tensor | None
    ) -> None:
        passes.combine(weights.expand(len(self.param_groups), 2), skip)
        self.gradients.settle_direction()
        self.gradients.clear()

    def _step_base(self, skip: Tensor | None) -> None:
        if skip is None:
            self.base.step()
        else:
            step_unless(self.base, skip)

    def _end_step(self, move: "_Move") -> Step:
        """The model has moved: let the twin step, remember the step, and return its numbers."""
        decision = move.decision
        assert decision is not None
        if self.twin is not None and move.twin_step is not None:
            has_ranks = not self.ranks.alone
            self.twin.step(self.base, move.twin_step, self.max_norm, has_ranks)
            self._twin_is_behind = False
        if not self.estimates.is_minibatch:
            self.estimates.accept()
        if decision.memory is not None:
            self.memory.keep(decision.memory, decision.skip)
        needs_return = self.twin is not None and self.memory.needs_return()
        if self.nonfinite.count_step(decision.skip, move.has_scaler):
            self.nonfinite.queue_report(
                self.count, decision.report_names, decision.report
            )
        self.last = decision.info
        self.forget()
        self.count += 1
        if needs_return:
            self._return_to_twin(decision.info)
        if decision.reading is not None:
            self._diagnose(decision.reading)
        return decision.info

    def _return_to_twin(self, info: Step) -> None:
        """Set the model to its twin: many steps on the lower loss alone have not brought it back."""
        assert self.twin is not None
        self.ranks.find_layout(self.gradients.parameters())
        self.twin.copy_to_model(self.base, self.ranks.wrappers)
        self.memory.note_return()
        assert info.excess is not None
        excess = float(info.excess)
        warn_at_caller(
            f"step {self.count - 1}: the lower loss is about {excess:.1f} tolerances above its twin's, and many steps "
            "on it alone did not bring it back. So the model was set to its twin, optimizer state and buffers with it, "
            "and goes on from there."
        )

    def _skip(self, measured: Measurement, scaling: Scaling, hold: bool) -> Step:
        """End a step that is not made, as the host knows; nothing was changed yet."""
        losses = {f"{n}_loss": loss_value(measured.losses[n]) for n in LEVELS}
        info = unknown_step(measured.products[0], losses)
        if self.last is not None:
            # The averages stay: a step that is not made leaves no trace in them.
            info = info._replace(**{n: getattr(self.last, n) for n in READINGS})
        self.last = info
        self.forget()
        # A scaler lowers its scale by itself for what it found.
        by_scaler = scaling.found_inf is not None and bool(scaling.found_inf)
        if self.nonfinite.policy == "raise" and not by_scaler:
            raise self.nonfinite.error(self.count)
        self.count += 1
        self.nonfinite.count_skip()
        if hold:
            self._combined = _Move(None, bool(self.backward.has_scaler))
        return info

    # --- the direction before the step ----------------------------------------------

    @_on_optimizer
    def combine(self, scaler: GradScaler | None = None) -> Step:
        """Put the direction into ``.grad`` before the step: clip it, measure it, then ``opt.step()``.

        A trainer that clips or reads ``.grad`` before the step needs it, because ``.grad`` has one level alone until
        then. Call it after both blocks, with the gradient `scaler` if there is one. ``max_norm=`` needs no call, and
        also clips a twin.
        """
        if self._combined is not None:
            raise RuntimeError(
                "opt.combine() was called before in this step: opt.step() comes next"
            )
        self.gradients.check_complete()
        try:
            if scaler is not None and scaler.is_enabled():
                return self._combine_scaled(scaler)
            return self._apply(hold=True)
        except BaseException:
            self.forget()
            raise

    def _combine_scaled(self, scaler: GradScaler) -> Step:
        self.grad_scale, self.found_inf = grad_scaler.inspect_gradients(scaler, self)
        try:
            return self._apply(hold=True)
        finally:
            del self.found_inf, self.grad_scale

    @torch.no_grad()
    def _release(self, combined: _Move) -> Step:
        """Let the base step along what is in ``.grad`` now."""
        scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and not combined.has_scaler:
            raise RuntimeError(
                "opt.combine() did not know of the gradient scaler: opt.combine(scaler)"
            )
        assert self.last is not None
        decision = combined.decision
        if decision is None:
            self.forget()
            return self.last
        if found_inf is not None and bool(found_inf):
            self.last = self.last._replace(skipped=torch.ones_like(self.last.skipped))
            self.count += 1
            self.nonfinite.count_skip()
            self.forget()
            return self.last
        if scale is not None:  # the direction is not unscaled yet
            parameters = self.gradients.parameters()
            grads = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(grads, 1 / scale)
        self.gradients.check_direction()
        if self.twin is not None:
            # A rate that was set since combine() reaches the twin, too.
            self.twin.adopt_options(self.base, self._learning_rates())
        self._twin_is_behind = self.twin is not None
        self._step_base(decision.skip)
        return self._end_step(combined)

    @property
    def is_combined(self) -> bool:
        """Whether :meth:`combine` was called and the step was not."""
        return self._combined is not None

    # --- after a step ---------------------------------------------------------------

    @_on_optimizer
    def check(self) -> None:
        """Raise if the last step was not finite, where the device alone knows that; waits for it.

        Every step does so for the one before it, and so do :meth:`log` and :meth:`state_dict`. Call it after the last
        step of a run, or right after a step to know at once.
        """
        if self._twin_is_behind:
            self._twin_is_behind = False
            warn_at_caller(
                "the last step was interrupted before the twin had made its step: model and twin may be one step apart. "
                "The twin stays a valid reference; to make both exact, load the last checkpoint"
            )
        try:
            if not self.ranks.alone:
                self.ranks.raise_doubts()
            numbers = None
            if self.nonfinite.pending:
                numbers = self.nonfinite.raise_pending()
        except (RuntimeError, FloatingPointError):
            self.forget()
            raise
        if numbers is not None and "excess" in numbers:
            reference = numbers["reference"]
            loss = numbers.get("lower_loss", reference)
            excess = numbers["excess"]
            reading = Reading(numbers["ratio"], math.nan, loss, reference, excess)
            self._diagnose(reading)

    def _diagnose(self, reading: Reading) -> None:
        """Warn about what the rule reads in a step, each thing once."""
        group = self.param_groups[0]
        rate = group.get("lr")
        # A scheduler writes "initial_lr".
        if "initial_lr" in group or not isinstance(rate, float):
            rate = None
        assert self.tolerance is not None
        text = self.diagnostics.observe(self.count - 1, reading, self.tolerance, rate)
        if text:
            warn_at_caller(text)

    def log(self) -> dict[str, Any]:
        """Return the last step as numbers, by the names of the CSV log; waits for the device.

        `step` is its number. The names are the same in every mode; values that the step does not have are NaN. A step that
        was not finite raises, as in :meth:`check`. Before the first step there are no names.
        """
        self.check()
        if self.last is None:
            return {}
        values = {
            name: math.nan if value is None else value.tolist()
            for name, value in self.last._asdict().items()
        }
        return {"step": self.count - 1} | values

    @_on_optimizer
    def finish(
        self,
        *,
        lower: Callable[[], Any],
        upper: Callable[[], Any] | None = None,
        anchor: Anchor | Sequence[Anchor] | None = None,
        model: nn.Module | Sequence[nn.Module] | None = None,
        steps: Iterable[Any] | None = None,
        confidence: float = 0.9,
    ) -> Finish:
        """After the last step: move the model to where the tolerance is kept, and used, on the line from its reference.

        A model that is outside its tolerance goes back towards the reference until it is inside. One that is inside
        goes on, away from it, as long as the upper loss falls, or back, if it falls there instead. It takes about ten
        evaluations of both losses, and a few more to check that they do not change from call to call: no gradients, and
        one more copy of the parameters meanwhile.

        Parameters
        ----------
        lower, upper : callable
            Each returns its loss over as much data as the promise is made for: one number, or the losses of batches
            (a list, or a generator: ``lambda: (fit(model, batch) for batch in loader)``), of which the mean is taken.
            Without `upper` a model that is inside stays where it is. The model's mode (``train()``, ``eval()``) is
            yours, and the one in which the reference was measured; random numbers are the same at every place.
        anchor : Module or state_dict, or a list of them, optional
            For a reference that has no copy of its own, a number say: a model that is inside, such as the one that
            reached the number. As many as there are modules in `model`.
        model : Module or list of Modules, optional
            With `anchor`, the model that was trained, unless the optimizer was made with ``model=``.
        steps : iterable of losses, optional
            If training left the model outside its tolerance, the base first steps on the lower loss alone, once for
            each of these losses of a batch. They must be made one after another: ``(fit(model, batch) for batch in
            batches)``. Set the learning rate before: a tenth of the highest, falling to 0, over a twentieth of the
            training, did well where the reference is a number.
        confidence : float
            The one-sided confidence that a place to which the model is moved is inside on new data: at least 0.5,
            below 1. It is estimated from the spread over the batches, if the lower loss is given by batches, of the
            difference to the reference's model; a number as reference is taken as exact for that model. The excess of
            such a place is at most 0.95 in any case.

        Returns
        -------
        Finish
            Where on the line, both losses there, and before. ``print`` tells it in a sentence.

        Examples
        --------
        >>> import torch
        >>> from tiebreak.torch import DynamicBarrier
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
        >>> inputs = torch.tensor([[1.0, -1.0]])
        >>> g, f = (lambda: model(inputs).square().sum()), (lambda: model.weight.square().sum())
        >>> for _ in range(100):
        ...     _ = opt.step(lower=g, upper=f)
        >>> opt.finish(lower=g, upper=f).excess <= 1
        True
        """
        tolerance = self.decision.tolerance
        if tolerance is None:
            raise RuntimeError(
                "opt.finish() is for an optimizer with tolerance=: without one there is nothing to keep to"
            )
        check_finish_arguments(lower, upper, steps, confidence)
        self._check_between_steps("finish")
        self.check()
        self.eval()
        self.ranks.find_layout(self.gradients.parameters())
        modules = modules_of(model) or self.modules
        tensors = self._line_tensors(anchor, model, modules)
        line = Line(modules, tensors, self.ranks.wrappers)
        take_steps = None
        if steps is not None:
            take_steps = partial(descend, self.base, steps, self.max_norm, self.ranks)
        return finish_on_line(
            line,
            lower,
            upper,
            tolerance,
            self.lower_reference.number,
            self.generators,
            self.ranks,
            take_steps,
            confidence,
        )

    def _line_tensors(
        self,
        anchor: Anchor | Sequence[Anchor] | None,
        model: nn.Module | Sequence[nn.Module] | None,
        modules: Sequence[nn.Module],
    ) -> list[LineTensor]:
        """Return parameters and buffers of the model, each with its value at the beginning of the line."""
        copy = self.model_copy
        name = str(self.lower_reference)
        if copy is None:
            trained = [p for p in self.gradients.parameters() if p.requires_grad]
            check_separate_memory(trained)
            return anchor_tensors(name, anchor, modules, trained)
        if anchor is not None or model is not None:
            raise ValueError(
                f"anchor= and model= have no effect with reference={name}: that is the anchor"
            )
        if not copy.begun:
            raise RuntimeError(
                "opt.finish() comes after the last step: no step was made yet"
            )
        values = copy.reached_values().items()
        tensors = [LineTensor(p, v, False, p.requires_grad) for p, v in values]
        if not any(item.moves for item in tensors):
            raise RuntimeError(
                "opt.finish(): all parameters are frozen (requires_grad=False), so no place of the line differs"
            )
        buffers = copy.buffers.pairs()
        return tensors + [LineTensor(b, value, True) for b, value in buffers]

    # --- being an optimizer: groups, state and learning rates are the base's -------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch has an attribute there
        """The base's parameter groups."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # likewise
        """The base's state, and what is kept for each parameter beside it."""
        pairs = zip(self.gradients.parameters(), self.parameter_entries(), strict=True)
        entries = {p: values for p, values in pairs if values}
        begun = bool(self.state_requested or self.count)
        return checkpoint.MergedState(self.base.state, entries, begun)

    def parameter_entries(self) -> list[dict[str, Any]]:
        """Return what is saved for each parameter beside the base's state."""
        parameters = self.gradients.parameters()
        return checkpoint.pack_entries(
            self.parameter_part(), parameters, self.base.state, self.state_requested
        )

    def parameter_part(self) -> checkpoint.ParameterPart:
        """Return the part that keeps something for each parameter; with a copy, the estimator keeps nothing."""
        return self.model_copy or self.estimates

    @_on_optimizer
    def state_dict(self) -> dict[str, Any]:
        """The base's state with this optimizer's own, by parameter and in each group under "tiebreak"."""
        self._check_no_block("state_dict")
        return checkpoint.save(self)

    @_on_optimizer
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state; bit for bit on the CPU. A state of another kind is refused before anything is changed."""
        self._check_no_block("load_state_dict")
        checkpoint.load(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler's wrapper of `step` belongs to this object, and a step's info to this moment.
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name != "step" and not name.startswith("_optimizer_")
        }
        return state | {"last": None, "_combined": None}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        self.base.add_param_group(param_group)

    def train(self) -> None:
        """Set the model and a twin to the point of training, if the base is schedule-free; otherwise do nothing.

        Schedule-free optimizers step at one point and evaluate at another, an average. Call this before the first step
        and after :meth:`eval`, and not the base's own method, which would leave the twin where it is.
        """
        self._set_mode("train")

    def eval(self) -> None:
        """Set the model and a twin to the point of evaluation, if the base is schedule-free; otherwise do nothing."""
        self._set_mode("eval")

    def _check_no_block(self, name: str) -> None:
        level = self.backward.active_level
        if level:
            raise RuntimeError(
                f"opt.{name}() was called inside opt.{level}(): leave the block first"
            )

    def _check_between_steps(self, name: str) -> None:
        if self.backward.active_level or self.is_combined or self.gradients.finished:
            raise RuntimeError(
                f"opt.{name}() comes after a step, not within one: opt.step(), or opt.zero_grad(), comes first"
            )

    @_on_optimizer
    def _set_mode(self, mode: str) -> None:
        self._check_between_steps(mode)
        release_gathered(self.ranks.wrappers)
        set_mode(self.base, mode)
        if self.twin is not None and self.twin.optimizer is not None:
            set_mode(self.twin.optimizer, mode)
        torch.clear_autocast_cache()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients and losses of both levels."""
        self.base.zero_grad(set_to_none)
        self.forget()

    def __repr__(self) -> str:
        if self.decision.tolerance is not None:
            how = f"tolerance={self.tolerance!r}, reference={self.lower_reference}"
        else:
            how = f"method={self.decision.method!r}"
        return f"{type(self).__name__}({how}, base={self.base!r})"


def _unscaled(products: Tensor, inverse_scale: Tensor | None) -> Tensor:
    """Inner products without a scaler's scale, which moves and must not weigh in the decision."""
    if inverse_scale is None:
        return products
    return products * inverse_scale.to(products) ** 2
