"""Any torch optimizer, told two losses: d = ∇f + λ∇g goes into ``.grad``, and the base optimizer steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak import rules, stationarity
from tiebreak.checks import one_of
from tiebreak.methods import Method
from tiebreak.schedules import Schedule
from tiebreak.torch.estimates import Estimates
from tiebreak.torch.gradients import Gradients, combine, dots, regions, silence, square_norm, usable
from tiebreak.torch.noise import Noise
from tiebreak.torch.target import Target

__all__ = ["DynamicBarrier", "Step"]

_LOSS_MOMENTUM = 0.1  # weight of the newest loss in the average that the value barrier looks at


class Step(NamedTuple):
    """What a step did, as tensors on the device: 0-d, or one value per region with ``scope="group"`` or ``"tensor"``.

    Reading one waits for the device; :meth:`DynamicBarrier.log` reads all. The residuals are made of inner products,
    and are no finer than those are rounded.
    """

    multiplier: Tensor
    fg: Tensor
    gg: Tensor
    ff: Tensor
    direction: Tensor
    stationarity: Tensor
    upper_loss: Tensor | None
    lower_loss: Tensor | None
    skipped: Tensor


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
        What to do where a gradient is not finite. "raise" waits for the device once a step, and so does "skip" unless a
        zero gradient is no step for the base (plain SGD, :class:`SDBGD`); "ignore" never waits. A GradScaler decides
        by itself.

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
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base={base!r} must be a torch.optim.Optimizer, such as torch.optim.AdamW(…)")
        one_of("scope", scope, ("global", "group", "tensor"))
        one_of("nonfinite", nonfinite, ("raise", "skip", "ignore"))
        one_of("estimator", estimator, ("minibatch", "average", "storm"))
        if tolerance is not None and rule is not None:
            raise ValueError(
                f"rule={rule!r} and tolerance={tolerance!r}: a tolerance brings its own rule; give one of them"
            )
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
        self.gradients = Gradients(base)
        self.noise = Noise(bool(correct_noise))
        self.count = 0
        self.last: Step | None = None
        self._losses: dict[str, Tensor] = {}
        self._active: str | None = None

    # --- being an optimizer: groups, state and learning rates are the base's ---------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base's parameter groups."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
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
        self.gradients.clear()
        self.noise.begin()
        self._losses = {}

    def state_dict(self) -> dict[str, Any]:
        """The base's state, and this optimizer's own under "barrier"."""
        own: dict[str, Any] = {"count": self.count, "estimates": self.estimates.state_dict(self.gradients)}
        own["noise"] = dict(self.noise.state)
        if self.target is not None:
            own["target"] = dict(self.target.state)
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
        self.noise.state = dict(own["noise"])
        if self.target is not None:
            self.target.state = dict(own["target"])
        self.gradients.clear()

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
        self.gradients.poison()

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(  # type: ignore[override]
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

    def forget_losses(self) -> None:
        """Losses told so far do not count: they belong to another point."""
        self._losses = {}

    @torch.no_grad()
    def _apply(self) -> Step:
        scale, found_inf = _scaling(self)
        areas = regions(self.param_groups, self.scope)
        pairs = [(self.gradients.of("upper", area), self.gradients.of("lower", area)) for area in areas]
        for area, (a, b) in zip(areas, pairs, strict=True):
            for p, g in zip((*area, *area), (*a, *b), strict=True):
                if g is not None and g.layout != torch.strided:
                    raise TypeError(f"a parameter of shape {tuple(p.shape)} has a sparse gradient; use sparse=False")
        products = [dots(area, a, b) for area, (a, b) in zip(areas, pairs, strict=True)]
        bad = torch.zeros((), dtype=torch.bool, device="cpu")
        if found_inf is None and self.nonfinite == "skip" and self._rests_on_zero():
            products, bad = silence(pairs, products)
        elif self._stops(products, found_inf):
            return self._finish(self._unknown(len(areas), areas[0][0].device), torch.ones_like(bad))
        arguments: dict[str, Any] = self.method.arguments(self.method.schedule.at(self.count))
        if self.target is not None:
            if "lower" not in self._losses:
                raise RuntimeError("the value barrier needs the lower loss: `with opt.lower(loss): …`, or closures")
            names = ("lower_value", "target", "tolerance")
            told = dict(zip(names, self.target.update(self._losses["lower"]), strict=True))
            arguments |= {name: value for name, value in told.items() if name in self.method.needs}
            totals = [torch.stack([product[i].to(products[0][i]) for product in products]).sum() for i in (2, 1)]
            squared = (
                1.0 if scale is None else scale.to(totals[0]) ** 2
            )  # a scale that moves must not weigh in the averages
            unit_length = self.target.unit(totals[0] * squared, totals[1] * squared)
        momentum, noise, rows = self._momentum(), self._noise_share(), []
        for area, (a, fresh), product in zip(areas, pairs, products, strict=True):
            seen = self.estimates.lower(area, fresh, momentum)
            fg, gg, ff = dots(area, a, seen) if seen is not fresh else product
            unit = 1.0 if scale is None else scale.to(fg)
            fg, gg, ff = fg * unit**2, gg * unit**2, ff * unit**2
            signal = gg if noise is None else gg * (1 - noise.to(gg))
            if "ff" in self.method.needs:
                arguments["ff"] = ff
            multiplier = self.method.rule(fg, signal, **_on(arguments, fg)) + 0 * fg
            rows.append((multiplier, fg, gg, ff))
            # d/(s+λ): as long as a step on g alone, whatever λ is, and whatever the units of f are.
            length = unit_length.to(fg) if self.tolerant else 1.0
            shrink = 1 / (length + multiplier + 1e-30) if self.tolerant or self.normalize else None
            factor = unit if shrink is None else shrink * unit
            factor = factor if isinstance(factor, Tensor) else None
            combine(area, a, fresh, multiplier, factor)
        record = self._record(rows)
        self.base.step()
        self.count += 1
        return self._finish(record, bad)

    def _noise_share(self) -> Tensor | None:
        """What to take out of gg; warns where nothing takes it out."""
        if not self.noise.wanted(self.count):
            return None
        share = self.noise.share()
        self.noise.warn(share, self.estimates.own and not self.noise.correct and self.target is None)
        # Never all of it: where the estimate says that all is noise, a tenth of gg keeps the multiplier finite.
        return share.clamp_max(0.9) if share is not None and self.noise.correct and self.estimates.own else None

    def _stops(self, products: list[tuple[Tensor, Tensor, Tensor]], found_inf: Tensor | None) -> bool:
        """Whether this step is not to be made; looks before anything is changed."""
        if found_inf is not None:  # a scaler looked already, at both levels
            return bool(found_inf)
        if self.nonfinite == "ignore":
            return False
        # A gradient that is not finite makes its own square so; one look at all of them is one wait for the device.
        if bool(torch.isfinite(torch.stack([square for product in products for square in product[1:]])).all()):
            return False
        if self.nonfinite == "raise":
            raise FloatingPointError("a gradient is not finite; nonfinite='skip' skips such steps, 'ignore' takes them")
        return True

    def _unknown(self, areas: int, device: torch.device) -> Step:
        nan = torch.full(() if self.scope == "global" else (areas,), float("nan"), device=device)
        losses = (self._losses.get("upper"), self._losses.get("lower"))
        return Step(nan, nan, nan, nan, nan, nan, *losses, torch.zeros(()))

    def _rests_on_zero(self) -> bool:
        """Whether a zero gradient is no step at all, so that a step can be skipped without the host knowing."""
        plain = type(self.base) is torch.optim.SGD and self.estimates.own
        return plain and not any(group["momentum"] or group["weight_decay"] for group in self.param_groups)

    def _finish(self, record: Step, skipped: Tensor) -> Step:
        self.gradients.clear()
        self.forget_losses()
        self.noise.begin()
        if skipped.device.type != "cpu" or bool(skipped):  # on the device, or known: what a skipped step has is unknown
            for name in Step._fields[:6]:
                value = getattr(record, name)
                unknown = torch.where(skipped.to(value.device), torch.full_like(value, float("nan")), value)
                record = record._replace(**{name: unknown})
        self.last = record._replace(skipped=skipped)
        return self.last

    def unscale_(self, scaler: Any) -> None:
        """Like ``scaler.unscale_(opt)``, for the gradients of both levels: before clipping."""
        away = self.gradients.put_away()
        scaler.unscale_(self)
        inverse = 1 / scaler._get_scale_async() if scaler.is_enabled() else None
        if inverse is not None:
            for g in away:
                g.mul_(inverse.to(g.device))
        self._unscaled = True

    def _record(self, found: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Step:
        columns = [torch.stack([row[i].detach() for row in found]) for i in range(4)]
        factor, fg, gg, ff = (c[0] if self.scope == "global" else c for c in columns)
        best = stationarity.best_multiplier(fg, gg)

        def along(multiplier: Tensor) -> Tensor:
            return (ff + 2 * multiplier * fg + multiplier**2 * gg).clamp_min(0)

        losses = (self._losses.get("upper"), self._losses.get("lower"))
        return Step(factor, fg, gg, ff, along(factor), along(best), *losses, torch.zeros(()))

    def log(self) -> dict[str, Any]:
        """The last step as numbers; waits for the device."""
        if self.last is None:
            return {}
        return {name: value.tolist() for name, value in self.last._asdict().items() if value is not None}


def _scaling(optimizer: DynamicBarrier) -> tuple[Tensor | None, Tensor | None]:
    """What a GradScaler left here: 1/scale, and whether it saw a gradient that is not finite."""
    scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    unscaled = optimizer.__dict__.pop("_unscaled", False)
    if found is not None and scale is None and not unscaled:
        raise RuntimeError("scaler.unscale_(opt) reaches one of the two gradients only: use opt.unscale_(scaler)")
    return (None if scale is None else 1 / scale), found


def _on(arguments: dict[str, Any], like: Tensor) -> dict[str, Any]:
    return {n: v.to(device=like.device, dtype=like.dtype) if isinstance(v, Tensor) else v for n, v in arguments.items()}
