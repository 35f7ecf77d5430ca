"""Any torch optimizer, told two losses: d = ∇f + λ∇g goes into ``.grad``, and the base optimizer steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak import rules
from tiebreak.checks import one_of
from tiebreak.methods import Method
from tiebreak.schedules import Schedule
from tiebreak.torch import bases
from tiebreak.torch.context import cannot_repeat, cannot_wait, capturing, copied, load, scaling, unscale
from tiebreak.torch.estimates import Estimates
from tiebreak.torch.foreach import square_norm
from tiebreak.torch.gradients import Gradients, usable
from tiebreak.torch.noise import Noise
from tiebreak.torch.passes import Passes, Plan
from tiebreak.torch.record import Step, record
from tiebreak.torch.target import Target

__all__ = ["DynamicBarrier", "Step"]

_LOSS_MOMENTUM = 0.1  # weight of the newest loss in the average that the value barrier looks at


class DynamicBarrier(Optimizer):
    """Improve the upper loss f among what keeps the lower loss g optimal, with any base optimizer.

    Parameters
    ----------
    base : torch.optim.Optimizer
        Steps along d; its parameter groups, state and learning rates are this optimizer's.
    barrier, regularizer : float or function of the step
        β and ρ of the rule.
    rule : str or callable
        A name of :data:`tiebreak.rules.RULES`, or a function ``rule(fg, gg, …)``.
    estimator : {"minibatch", "average", "storm"}
        What the rule sees of ∇g: the mini-batch, an exponential average (for λ alone: the direction keeps the fresh
        gradient, because the base smooths it again), or STORM estimates of both gradients (closures only; holds the
        previous parameters and both estimates).
    momentum : float or function of the step
        Weight of the newest gradient in the average and in STORM.
    penalty : float or function of the step
        μ of the rule "penalized".
    tolerance : float or str, optional
        Aim at keeping the averaged lower loss within this much (0.01, or "2%") of `reference`, by a value barrier
        without units (:func:`tiebreak.rules.within`); no weight to choose. The lower loss has to be told:
        ``with opt.lower(loss): …``, or by closures.
    reference : float, optional
        The lower loss to stay near: what training on it alone reaches. Without it, the best average so far, which is
        only as good as the model was before.
    rate : float, optional
        κ or α of the value barriers; 30 for `tolerance`.
    normalize : bool
        Step along d/(1+λ), so that a large λ does not lengthen the step. With `tolerance` the step is always along
        d/(‖∇f‖/‖∇g‖ + λ), the ratio averaged.
    correct_noise : bool
        Take the noise out of gg, where a step has several micro-batches to tell it by.
    scope : {"global", "group", "tensor"}
        One multiplier for all parameters (the paper), one per group, or one per tensor.
    nonfinite : {"raise", "skip", "ignore"}
        What to do where a gradient is not finite. "raise" waits for the device once a step, and so does "skip" unless
        the base can be told on the device: plain SGD, :class:`SDBGD`, and bases made with ``fused=True``. "ignore"
        never waits. A GradScaler decides by itself.
    fused : bool, optional
        Whether to make the passes over the parameters by Triton kernels: None where they can run, False never, True
        or an error. On a CPU there are none to choose.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = DynamicBarrier(torch.optim.SGD(model.parameters(), lr=0.1), barrier=1.0)
    >>> with opt.lower():
    ...     (model(torch.ones(4, 2)) - 1).square().mean().backward()
    >>> with opt.upper():
    ...     model.weight.abs().sum().backward()
    >>> opt.step().multiplier.shape
    torch.Size([])
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        base: Optimizer,
        *,
        barrier: Any = 1.0,
        regularizer: Any = 1e-8,
        rule: str | rules.Rule | None = None,
        estimator: str = "minibatch",
        momentum: Any = 0.1,
        penalty: Any = 1.0,
        tolerance: float | str | None = None,
        reference: float | None = None,
        rate: Any = None,
        normalize: bool = True,
        correct_noise: bool = False,
        scope: str = "global",
        nonfinite: str = "raise",
        fused: bool | None = None,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base is a {type(base).__name__}; it must be a torch.optim.Optimizer, such as AdamW(…)")
        one_of("scope", scope, ("global", "group", "tensor"))
        one_of("nonfinite", nonfinite, ("raise", "skip", "ignore"))
        one_of("estimator", estimator, ("minibatch", "average", "storm"))
        if fused not in (None, True, False):
            raise ValueError(f"fused={fused!r} must be None, True or False")
        if tolerance is not None and rule is not None:
            raise ValueError(f"rule={rule!r} and tolerance={tolerance!r}: a tolerance brings its own rule; give one")
        if isinstance(rule, str):
            one_of("rule", rule, tuple(rules.RULES))
        chosen: Any = rules.within if tolerance is not None else rules.RULES.get(str(rule or "sdbgd"), rule)
        self.base = base
        Optimizer.__setstate__(self, {"defaults": base.defaults})
        self._warned_capturable_if_run_uncaptured = True
        # What only a step can know stands in the schedule as a number, and is replaced at the step.
        known = {"target": 0.0, "tolerance": 1.0, "ff": 0.0} | ({} if rate is None else {"rate": rate})
        schedule = Schedule(1.0, barrier, regularizer, penalty=penalty, momentum=momentum, others=known)
        self.method = Method(getattr(chosen, "__name__", type(chosen).__name__), chosen, schedule)
        valued = tolerance is not None or {"lower_value", "target"} & set(self.method.needs)
        self.target = Target(tolerance or 0.0, reference, _LOSS_MOMENTUM) if valued else None
        if tolerance is not None and self.target is not None and self.target.amount == 0:
            raise ValueError(f"tolerance={tolerance!r} must be > 0")
        self.tolerant = tolerance is not None
        self.estimates = Estimates(estimator)
        self.scope, self.normalize, self.nonfinite = scope, normalize, nonfinite
        self.gradients, self.passes = Gradients(base), Passes(fused)
        self.noise = Noise(bool(correct_noise))
        self.count = 0
        self.last: Step | None = None
        self._losses: dict[str, Tensor] = {}
        self._active: str | None = None
        self._scaled: bool | None = None  # whether a GradScaler is at work; unknown until the first step
        if fused:
            for p in self.gradients.parameters():
                self.passes.load(p.device)

    # --- being an optimizer: groups, state and learning rates are the base's ---------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch has an attribute there
        """The base's parameter groups."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # likewise
        """The base's state."""
        return self.base.state

    def __getstate__(self) -> dict[str, Any]:
        passing = {"step", "last"}  # a scheduler's wrapper belongs to this object, a record to this moment
        kept = {k: v for k, v in self.__dict__.items() if k not in passing and not k.startswith("_optimizer_")}
        return kept | {"last": None}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients and losses of both levels."""
        self.base.zero_grad(set_to_none)
        self.forget()

    def state_dict(self) -> dict[str, Any]:
        """The base's state, and this optimizer's own under "barrier"."""
        own: dict[str, Any] = {"count": self.count, "estimates": self.estimates.state_dict(self.gradients)}
        own["noise"] = copied(self.noise.state)
        if self.target is not None:
            own["target"] = copied(self.target.state)
        return {**self.base.state_dict(), "barrier": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state; bit for bit on the CPU."""
        if "barrier" not in state_dict:
            raise ValueError(
                "this state was saved by another optimizer: it has no 'barrier' (load it into `base` instead)"
            )
        self.base.load_state_dict({k: v for k, v in state_dict.items() if k != "barrier"})
        own = state_dict["barrier"]
        self.count = own["count"]
        self.estimates.load_state_dict(own["estimates"], self.gradients)
        load(self.noise.state, own["noise"])
        if self.target is not None:
            load(self.target.state, own["target"])
        self.forget()

    # --- the two levels ----------------------------------------------------------------------------------------------

    def upper(self, loss: Tensor | None = None) -> Any:
        """``with opt.upper(): loss_f.backward()``, any number of times before a step; gradients and losses add up."""
        return self._level("upper", loss, 1.0)

    def lower(self, loss: Tensor | None = None, *, weight: float = 1.0) -> Any:
        """``with opt.lower(loss_g): loss_g.backward()``; the loss is needed with ``tolerance=`` only.

        `weight` is a micro-batch's size or share, where they differ: the look at the noise needs it.
        """
        return self._level("lower", loss, weight)

    @contextmanager
    def _level(self, level: str, loss: Tensor | None, weight: float) -> Iterator[None]:
        if self._active is not None:
            raise RuntimeError(
                f"opt.{level}() was entered inside opt.{self._active}(); leave one level before the other"
            )
        self._active = level
        self.gradients.activate(level)
        try:
            yield
        finally:
            self._active = None
        if loss is not None:
            wide = torch.float64 if loss.dtype == torch.float64 or loss.device.type == "cpu" else torch.float32
            told = loss.detach().sum(dtype=wide)
            self._losses[level] = self._losses[level] + told if level in self._losses else told
        if level == "lower" and self.noise.wanted(self.count):
            grads = (p.grad for p in self.gradients.parameters())
            self.noise.add(square_norm([g for g in grads if g is not None and usable(g)]), float(weight))
        if self._scaled is not False:
            self.gradients.poison()

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(  # type: ignore[override]  # two closures instead of one
        self,
        closure: Any = None,
        *,
        upper: Callable[[], Tensor] | None = None,
        lower: Callable[[], Tensor] | None = None,
    ) -> Step:
        """Combine the gradients of both levels and let the base optimizer step.

        With closures, each returns its loss; the optimizer calls backward, lower level first.
        """
        if closure is not None:
            raise TypeError(
                "step(closure) knows one loss: give two, step(upper=…, lower=…), or opt.upper() and opt.lower()"
            )
        if (upper is None) != (lower is None):
            raise TypeError("step(upper=…, lower=…) needs both closures")
        if upper is not None and lower is not None:
            self.estimates.evaluate(self, upper, lower, self._momentum())
        elif self.estimates.kind == "storm":
            raise RuntimeError("estimator='storm' evaluates a batch twice: use closures, step(upper=…, lower=…)")
        for level in ("upper", "lower"):
            if level not in self.gradients.seen:
                raise RuntimeError(f"no {level} gradients in this step: put the backward pass in `with opt.{level}():`")
        return self._apply()

    def _momentum(self) -> float:
        return self.method.schedule.at(self.count).momentum or 0.0

    def forget(self) -> None:
        """What was accumulated for this step does not count: it is over, or belongs to another point."""
        self.gradients.clear()
        self.noise.begin()
        self._losses = {}

    @torch.no_grad()
    def _apply(self) -> Step:
        scale, found_inf = scaling(self)
        rows, areas = self.gradients.rows(self.scope)
        plan = self.passes.plan(rows, areas)
        products = plan.products()
        self._scaled = found_inf is not None
        if self._looks() and not self._skips_on_device(plan):
            cannot_wait(products.device, f"nonfinite={self.nonfinite!r} with this base optimizer")
            # The host has to wait; then it makes the numbers, too, sooner than it could launch kernels for them.
            products = products.cpu()
        bad = _unusable(products, found_inf) if self._looks() else None
        if bad is not None and bad.device.type == "cpu":
            if self._is_true(bad):
                return self._stop(products)
            bad = None
        if capturing(plan.home) and not self._repeatable():
            cannot_repeat()
        seen = products
        self.estimates.accept(self.gradients)
        unit: Any = 1.0
        if scale is not None:  # a scale that moves must not weigh in anything but the direction
            unit = scale.to(products)
            products = seen = products * unit**2
        if self.estimates.kind == "average":  # its memory has no scale
            averaged = self.estimates.averaged(rows, self._momentum(), float(unit))
            seen = self.passes.plan(averaged, areas).products().to(products)
            seen = torch.stack([seen[:, 0] * unit, seen[:, 1], products[:, 2]], -1)
        fg, gg, ff = (column[0] if self.scope == "global" else column for column in seen.unbind(-1))
        multiplier, length = self._multiplier(fg, gg, ff, products)
        # d/(s+λ): as long as a step on g alone, whatever λ is, and whatever the units of f are.
        factor = unit / (length + multiplier + 1e-30) if length is not None else unit + 0 * multiplier
        weights = torch.stack([factor, factor * multiplier], -1).reshape(areas, 2)
        self.last = record(multiplier, fg, gg, ff, self._losses, bad)
        self._advance(plan, weights, bad)
        if bad is not None and self._raises():
            self._is_true(bad)
        self.count += 1
        self.forget()
        return self.last

    def _multiplier(self, fg: Tensor, gg: Tensor, ff: Tensor, products: Tensor) -> tuple[Tensor, Any]:
        """λ of every area, and the length s of d/(s+λ), if the step is to be divided so."""
        arguments: dict[str, Any] = self.method.arguments(self.method.schedule.at(self.count))
        length: Any = 1.0 if self.normalize else None
        if self.target is not None:
            if "lower" not in self._losses:
                raise RuntimeError("the value barrier needs the lower loss: `with opt.lower(loss): …`, or closures")
            names = ("lower_value", "target", "tolerance")
            told = dict(zip(names, self.target.update(self._losses["lower"].to(fg.device)), strict=True))
            arguments |= {name: value for name, value in told.items() if name in self.method.needs}
            _, total_gg, total_ff = products.sum(0)
            unit = self.target.unit(total_ff, total_gg)
            length = unit.to(fg) if self.tolerant else length
        if "ff" in self.method.needs:
            arguments["ff"] = ff
        counts = self.noise.correct or not capturing(fg.device)
        noise = self.noise.removed(self.count, self.estimates.own, self.target is None) if counts else None
        signal = gg if noise is None else gg * (1 - noise.to(gg))
        multiplier = self.method.rule(fg, signal, **_on(arguments, fg))
        return multiplier if getattr(multiplier, "shape", None) == fg.shape else multiplier + 0 * fg, length

    def _advance(self, plan: Plan, weights: Tensor, skip: Tensor | None) -> None:
        """Put the direction into ``.grad`` and let the base step; not where `skip` is true: only the device knows."""
        plan.combine(self._by_slot(weights), skip)
        self.gradients.settle()
        self.gradients.clear()  # the direction is what the base sees, and if it raises the step is over
        bases.step(self.base, skip)

    def _repeatable(self) -> bool:
        """Whether a step is the same whenever it is made, as a captured one must be."""
        told = {"target", "tolerance", "ff"}  # in the schedule for form's sake
        laws = set(self.method.arguments(self.method.schedule.at(0))) - told
        return self.estimates.own and "k" not in laws and (not laws or self.method.schedule.constant(*laws))

    def _looks(self) -> bool:
        return bool(self._scaled) or self.nonfinite != "ignore"

    def _by_slot(self, weights: Tensor) -> Tensor:
        """One row for all groups, or a row for each area."""
        return weights.expand(len(self.param_groups), 2) if self.scope == "global" else weights

    def _skips_on_device(self, plan: Plan) -> bool:
        """Whether a step can be skipped without the host knowing."""
        if plan.home.type == "cpu" or not self.estimates.own:
            return False
        if self._raises():  # then one must know before anything is overwritten
            return self._in_one_pass() and plan.keeps and self.target is None
        return bases.can_skip(self.base)

    def _raises(self) -> bool:
        return self.nonfinite == "raise" and not self._scaled

    def _is_true(self, bad: Tensor) -> bool:
        """Wait for the device, and raise if that was asked for."""
        cannot_wait(bad.device, f"nonfinite={self.nonfinite!r}")
        if bool(bad) and self._raises():
            self.forget()
            raise FloatingPointError(
                "a gradient is not finite; the step was not made, and the next one begins anew "
                "(nonfinite='skip' skips such steps without a word, 'ignore' takes them)"
            )
        return bool(bad)

    def _in_one_pass(self) -> bool:
        """Whether a step leaves the gradients as they are."""
        return False

    def _stop(self, products: Tensor) -> Step:
        """A step that is not made, as the host knows; nothing was changed yet."""
        unknown = products[0, 0] if self.scope == "global" else products[:, 0]
        self.last = record(unknown, unknown, unknown, unknown, self._losses, torch.ones_like(products[0, 0]).bool())
        self.forget()
        return self.last

    def unscale_(self, scaler: Any) -> None:
        """Like ``scaler.unscale_(opt)``, for the gradients of both levels: before clipping."""
        unscale(self, scaler)

    def log(self) -> dict[str, Any]:
        """The last step as numbers; waits for the device."""
        if self.last is None:
            return {}
        return {name: value.tolist() for name, value in self.last._asdict().items() if value is not None}


def _on(arguments: dict[str, Any], like: Tensor) -> dict[str, Any]:
    return {n: v.to(device=like.device, dtype=like.dtype) if isinstance(v, Tensor) else v for n, v in arguments.items()}


def _unusable(products: Tensor, found_inf: Tensor | None) -> Tensor:
    bad = ~torch.isfinite(products[:, 1:]).all()  # a gradient that is not finite makes its own square so
    return bad if found_inf is None else bad | (found_inf.to(bad.device) != 0)
