"""What the lower loss is compared with: a number, a recorded curve, or a copy of the model on the same batch.

A copy is frozen where the model started, or is a twin: trained on the lower loss alone, with the same base optimizer,
learning rates and batches. Its values take the place of the model's around a pass, and go back whatever happens.
"""

import bisect
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiebreak.options import recorded
from tiebreak.torch.buffers import Buffers
from tiebreak.torch.context import RandomState
from tiebreak.torch.distributed.layout import local
from tiebreak.torch.likeness import carry, like, rewritten
from tiebreak.torch.losses import propagate, returned, single
from tiebreak.torch.packing import KEY, Kept, as_numbers
from tiebreak.torch.said import warn
from tiebreak.torch.swap import clip, let_go, swap

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


class Reference:
    """A reference that needs no copy of the model.

    Parameters
    ----------
    at : callable, optional
        The reference loss as a function of the step; None where it is given with each loss.
    """

    def __init__(
        self, at: Callable[[int], float] | None, copy: "Copy | None" = None
    ) -> None:
        self.at, self.copy = at, copy

    @property
    def number(self) -> float | None:
        """The reference, if it is one number for the whole run."""
        return self.at.loss if isinstance(self.at, _Number) else None

    @property
    def is_known(self) -> bool:
        """Whether the optimizer finds the reference itself; else the user gives it with each loss."""
        return self.copy is not None or self.at is not None

    def __repr__(self) -> str:
        if self.copy is not None:
            return repr(self.copy.kind)
        return "'given'" if self.at is None else str(self.at)

    def value(self, step: int, given: Any) -> Any:
        """The reference of this step's loss: what was given with it, or what is known without."""
        if given is not None:
            return given
        if self.at is None:
            how = (
                "closures, step(upper=…, lower=…), or `with opt.reference(): r = …` and "
                if self.copy is not None
                else ""
            )
            raise RuntimeError(
                f"the tolerance needs a reference for this step's lower loss: {how}`with opt.lower(loss, reference=r):`"
            )
        return single(f"the reference at step {step}", self.at(step))


def named_reference(reference: Any, modules: Sequence[nn.Module]) -> Reference:
    """The reference by its word, number, file or function; None without a tolerance."""
    if reference in ("start", "twin"):
        return Reference(None, Copy(reference == "twin", modules))
    if reference in (None, "given"):
        return Reference(None)
    if isinstance(reference, Real):
        return Reference(_Number(float(reference)))
    return Reference(reference if callable(reference) else curve(reference))


@dataclass(frozen=True)
class _Number:
    """The same at every step; a class, so that it can be sent elsewhere."""

    loss: float

    def __call__(self, step: int) -> float:
        return self.loss

    def __str__(self) -> str:
        return repr(self.loss)


@dataclass(frozen=True)
class _Curve:
    """Of recorded steps the last one before."""

    steps: list[int]
    losses: list[float]

    def __call__(self, step: int) -> float:
        if step == self.steps[-1] + 1:
            text = f"the recorded reference ends at step {step - 1}: from here on its last loss stands for all"
            warn(text)
        return self.losses[max(0, bisect.bisect_right(self.steps, step) - 1)]

    def __str__(self) -> str:
        return f"a curve of {len(self.steps)} steps"


def curve(path: str | os.PathLike[str]) -> Callable[[int], float]:
    """The column ``lower_loss`` of a CSV log by step; between two recorded steps the earlier, after the last the last.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.csv"
    >>> _ = path.write_text("step,lower_loss\\n0,2.0\\n10,1.0\\n")
    >>> losses = curve(path)
    >>> losses(0), losses(9), losses(500)
    (2.0, 2.0, 1.0)
    """
    return _Curve(*recorded(path))


class Copy:
    """Other values for the same parameters and buffers: frozen, or a twin with an optimizer of its own.

    Parameters
    ----------
    twin : bool
        Whether it is trained.
    modules : sequence of Module
        Whose buffers belong to it.
    """

    def __init__(self, twin: bool, modules: Sequence[nn.Module]) -> None:
        self.twin = twin
        self.values: dict[Tensor, Tensor] = {}
        self.base: Any = None
        self.buffers = Buffers(modules)
        self._left: list[
            dict[str, Any]
        ] = []  # the base's groups as its last step left them
        self._trained: set[Tensor] = set()  # parameters that the lower loss has reached
        self._written: set[str] = (
            set()
        )  # options of groups that the base's own step writes: it may count there
        self._rewritten: set[str] = set()  # and attributes of the base

    @property
    def kind(self) -> str:
        """The word for it, ``reference=kind``."""
        return "twin" if self.twin else "start"

    @property
    def begun(self) -> bool:
        """Whether there is a copy yet: it is made at the first use, of the model as it is then."""
        return bool(self.values)

    @contextmanager
    def exchanged(self, optimizer: Any) -> Iterator[None]:
        """Inside, the model is the copy; afterwards parameters, buffers and random numbers are as they were before."""
        self._follow_groups(optimizer)
        state = RandomState(optimizer.generators)
        swap(optimizer, self.values)
        try:
            with self.buffers.exchanged(keep=self.twin):
                yield
        finally:
            swap(optimizer, self.values)
            state.restore()

    def measure(
        self, optimizer: "DynamicBarrier", lower: Callable[[], Tensor]
    ) -> Tensor:
        """The copy's loss by the lower closure; a twin's gradients stay in the optimizer until its step."""
        with torch.enable_grad(), optimizer.reference():
            loss = returned("lower", lower())
            if self.twin:
                propagate("lower", loss)
            return loss.detach().reshape(())

    def _follow_groups(self, optimizer: Any) -> None:
        """A value for every parameter that is trained; parameters and groups that joined late join here, too.

        A frozen parameter is the model's: it stays where it is, and costs nothing.
        """
        base = optimizer.base
        new = (
            p
            for p in optimizer.gradients.parameters()
            if p.requires_grad and p not in self.values
        )
        self.values |= {p: p.detach().clone() for p in new}
        for p, value in self.values.items():
            if (
                value.dtype != p.dtype or value.device != p.device
            ):  # the model was moved since
                value.data = value.data.to(device=p.device, dtype=p.dtype)
        if not self.twin:
            return
        if self.base is None:
            self.base = like(
                base,
                {p: self.values.get(p, p) for p in optimizer.gradients.parameters()},
            )
            self._left = [_noted(group) for group in base.param_groups]
        for i, group in enumerate(base.param_groups):
            mine = [self.values.get(p, p) for p in group["params"]]
            if i == len(self.base.param_groups):
                self.base.param_groups.append({**group, "params": mine})
                self._left.append(_noted(group))
            else:
                self.base.param_groups[i]["params"] = mine

    def ready(self, optimizer: "DynamicBarrier") -> None:
        """Before anything moves: the copy is there, and a twin has its gradients."""
        self._follow_groups(optimizer)
        if self.twin and "reference" not in optimizer.gradients.seen:
            raise RuntimeError(
                "the twin had no backward pass in this step: `with opt.reference(): r = …; r.backward()`, or closures"
            )

    @torch.no_grad()
    def step(
        self,
        optimizer: "DynamicBarrier",
        grads: list[Any],
        inverse_scale: Tensor | None,
        set_outside: list[Any],
        square: Any = None,
    ) -> None:
        """The twin's own step on its gradients, with the learning rates and everything else of the model's base.

        `square` is their squared norm over all ranks, before a scaler's scale is taken out.
        """
        for p, grad in zip(optimizer.gradients.parameters(), grads, strict=True):
            if grad is not None and inverse_scale is not None:
                grad.mul_(inverse_scale.to(grad.device))
            if p in self.values:
                self.values[p].grad = grad
            if grad is not None:
                self._trained.add(p)
        for mine, changed in zip(self.base.param_groups, set_outside, strict=True):
            mine.update(changed)
        # Its hooks, too: they get the optimizer whose step it is.
        self.base._optimizer_step_pre_hooks = optimizer.base._optimizer_step_pre_hooks
        self.base._optimizer_step_post_hooks = optimizer.base._optimizer_step_post_hooks
        longest = optimizer.max_norm
        if longest is not None:
            clip(optimizer, list(self.values.values()), longest, square, inverse_scale)
        before, attributes = (
            [_options(group) for group in self.base.param_groups],
            dict(vars(self.base)),
        )
        self.base.step()
        self._rewritten |= rewritten(attributes, self.base)
        for old, group in zip(before, self.base.param_groups, strict=True):
            self._written |= {
                k for k, v in _options(group).items() if k not in old or old[k] is not v
            }
        for value in self.values.values():
            value.grad = None
        self._left = [_noted(group) for group in optimizer.base.param_groups]

    def rescue(self, optimizer: "DynamicBarrier") -> None:
        """Set the model to its twin where steps on the lower loss alone have not brought it back: nothing else will."""
        tolerance, last, memory = (
            optimizer.decision.tolerance,
            optimizer.last,
            optimizer.memory,
        )
        if tolerance is None or last is None:
            return
        if not memory.needs_return():
            return
        self.take_over(optimizer)
        memory.after_return()
        above = float(torch.as_tensor(last.excess).max())
        warn(
            f"step {optimizer.count}: the lower loss is about {above:.1f} tolerances above its twin's, and many steps "
            "on it alone did not bring it back. So the model was set to its twin, optimizer state and buffers with it, "
            "and goes on from there."
        )

    @torch.no_grad()
    def take_over(self, optimizer: "DynamicBarrier") -> None:
        """Set the model to the twin: parameters, buffers, and what the base optimizer keeps of them.

        Parameters that the lower loss never reached stay: the twin has them as they were at first.
        """
        let_go(optimizer)
        base = optimizer.base
        for p, value in self.reached().items():
            local(p).copy_(local(value))
            kept = self.base.state.get(value, {})
            for name in [name for name in base.state.get(p, {}) if name not in kept]:
                del base.state[p][name]
            for name, number in kept.items():
                mine = base.state[p].get(name)
                if (
                    isinstance(number, Tensor)
                    and isinstance(mine, Tensor)
                    and mine.shape == number.shape
                ):
                    local(mine).copy_(
                        local(number)
                    )  # in place: a fused or captured step knows the tensor
                else:
                    base.state[p][name] = copy.deepcopy(number)
        for group, other in zip(base.param_groups, self.base.param_groups, strict=True):
            group.update(
                {
                    name: copy.deepcopy(other[name])
                    for name in self._written
                    if name in other
                }
            )
        carry(base, self.base, self.values, self._rewritten)
        self.buffers.take_over()
        torch.clear_autocast_cache()
        self._left = [_noted(group) for group in base.param_groups]

    def reached(self) -> dict[Tensor, Tensor]:
        """The copy's values of parameters that the lower loss has reached; a frozen copy has all of them."""
        if not self.twin:
            return self.values
        # Who was trained is not saved, and what the optimizer keeps of it is; SGD keeps nothing.
        found = {
            p: value
            for p, value in self.values.items()
            if p in self._trained or self.base.state.get(value)
        }
        return found or self.values

    def set_outside(
        self, optimizer: "DynamicBarrier", rates: list[Any] | None
    ) -> list[dict[str, Any]]:
        """What was set in each group since the base's last step, by a scheduler or by hand; or the `rates` in force.

        Not what its own step wrote there: a base may count its steps in a group, and the twin's counts its own.
        """
        if not self.twin:
            return []
        pairs = zip(self._left, optimizer.base.param_groups, strict=False)
        changed = [
            {
                k: v
                for k, v in _options(now).items()
                if k not in left or not _unchanged(left[k], v)
            }
            for left, now in pairs
        ]
        return (
            changed
            if rates is None
            else [c | {"lr": rate} for c, rate in zip(changed, rates, strict=True)]
        )

    def catch_up(self, optimizer: "DynamicBarrier") -> None:
        """Give the twin's groups now what was set in the base's since its last step: a saved state has it then."""
        if self.base is not None:
            for mine, changed in zip(
                self.base.param_groups, self.set_outside(optimizer, None), strict=False
            ):
                mine.update(changed)
            self._left = [
                _noted(group)
                for group in optimizer.base.param_groups[: len(self._left)]
            ]

    def square(self, optimizer: "DynamicBarrier") -> Tensor | None:
        """‖∇g‖² of the twin, to see that it is finite; None for a frozen copy."""
        if not self.twin:
            return None
        pairs = zip(
            optimizer.gradients.parameters(), self.gradients(optimizer), strict=True
        )
        return optimizer.ranks.squares([(p, g) for p, g in pairs if g is not None])

    def gradients(self, optimizer: "DynamicBarrier") -> list[Any]:
        """The twin's gradients in this step, in the order of the parameters; those of a frozen copy are None."""
        return optimizer.gradients.resolved("reference")

    def kept(self, p: Tensor) -> Kept:
        """A parameter's value in the copy and its state in a twin's optimizer, to be saved."""
        if p not in self.values:
            return {}
        state = {} if self.base is None else self.base.state.get(self.values[p], {})
        return {"copy": {"value": self.values[p]}} | (
            {"base": dict(state)} if state else {}
        )

    def blank(self, p: Tensor, state: dict[str, Any]) -> Kept:
        """The same of a parameter that has none yet; `state` is what the base optimizer keeps for it."""
        zeros = {
            name: torch.zeros_like(v) if isinstance(v, Tensor) else v
            for name, v in state.items()
        }
        return {"copy": {"value": torch.zeros_like(p)}} | (
            {"base": zeros} if self.twin and zeros else {}
        )

    def options(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """What a twin's group `i` has otherwise than the base's: a base may count its steps there."""
        if self.base is None or i >= len(self.base.param_groups):
            return {}
        other = {
            name: value
            for name, value in _options(self.base.param_groups[i]).items()
            if name != KEY
        }
        return as_numbers(
            "the twin's optimizer",
            {n: v for n, v in other.items() if not _equal(v, group.get(n))},
        )

    def load(
        self,
        optimizer: "DynamicBarrier",
        kept: Sequence[Kept],
        options: Sequence[dict[str, Any]],
        buffers: Any,
    ) -> None:
        """Take up what `kept` gave for each parameter, the options of a twin's groups, and the buffers."""
        self.values, self.base = {}, None
        self.buffers.load(buffers)
        parameters = list(optimizer.gradients.parameters())
        for p, mine in zip(parameters, kept, strict=True):
            if "copy" in mine:
                self.values[p] = (
                    mine["copy"]["value"]
                    .detach()
                    .clone()
                    .to(device=p.device, dtype=p.dtype)
                )
        if not self.values:
            return
        self._follow_groups(optimizer)
        if self.base is not None:
            state = self.base.state_dict()
            groups = [
                {**now, **_typed(was, now)}
                for now, was in zip(state["param_groups"], options, strict=True)
            ]
            own = {
                i: copy.deepcopy(mine["base"])
                for i, mine in enumerate(kept)
                if "base" in mine
            }
            self.base.load_state_dict({"state": own, "param_groups": groups})


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _noted(group: dict[str, Any]) -> dict[str, Any]:
    """Options as they are now: torch's schedulers fill a learning rate that is a tensor in place."""
    return {
        name: v.clone() if isinstance(v, Tensor) else v
        for name, v in _options(group).items()
    }


def _unchanged(noted: Any, now: Any) -> bool:
    both = isinstance(noted, Tensor) and isinstance(now, Tensor)
    return noted is now or (
        both and noted.shape == now.shape and bool((noted == now).all())
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool((one == other.to(one)).all())
    return one is other or bool(one == other)


def _typed(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Options that were saved as numbers and lists, as what stands there now."""
    found = {}
    for name, value in saved.items():
        if isinstance(now.get(name), Tensor) and not isinstance(value, Tensor):
            value = torch.full_like(now[name], value)
        found[name] = (
            tuple(value)
            if isinstance(value, list) and isinstance(now.get(name), tuple)
            else value
        )
    return found
