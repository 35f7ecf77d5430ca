"""The twin: a copy of the model that is trained on the lower loss alone, ``reference="twin"``.

Its optimizer is a clone of the model's base optimizer: the same state at first, the same learning rates, the same
batches. An option is an entry of a parameter group other than its parameters.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak.options import TWIN
from tiebreak.torch.backward import Loss, loss_value
from tiebreak.torch.checkpoint import KEY, Entries, as_json_values
from tiebreak.torch.distributed.layout import Wrappers, is_dtensor, local_tensor
from tiebreak.torch.gradients import GradientPairs
from tiebreak.torch.model_copy import ModelCopy, Options, release_gathered

# The option in which schedule-free optimizers keep at which of two points the parameters are.
_MODE = "train_mode"
_SAME_LOSS = 1e-3  # losses that differ by less, relatively, are treated as equal
_DIFFERENT_NORM = 0.1  # gradient norms that differ by more are treated as different


class TwinStep(NamedTuple):
    """What a twin needs for its step, besides the options of its groups.

    Attributes
    ----------
    gradients : list of pairs
        The parameters of the base that the lower loss reaches, each with the twin's gradient.
    squared_norm : tensor
        ‖∇g‖² of the twin over all ranks, without a scaler's scale.
    inverse_scale : tensor or None
        1 over a gradient scaler's scale, which the gradients have.
    """

    gradients: GradientPairs
    squared_norm: Tensor
    inverse_scale: Tensor | None


class Twin(ModelCopy):
    """A copy that is trained on the lower loss alone: ``reference="twin"``."""

    kind = TWIN
    keeps_buffers = True

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        self.optimizer: Optimizer | None = None
        self.has_moved = False
        # The options of the base's groups after its last step.
        self._last_options: list[Options] = []
        # Parameters that the lower loss has reached.
        self._trained: set[Tensor] = set()

    @property
    def _own(self) -> Optimizer:
        assert self.optimizer is not None
        return self.optimizer

    def follow(self, base: Optimizer) -> None:
        """Add values for parameters that joined the base, and groups that joined it to the twin's optimizer."""
        super().follow(base)
        if self.optimizer is None:
            parameters = [p for group in base.param_groups for p in group["params"]]
            values = {p: self.values.get(p, p) for p in parameters}
            self.optimizer = clone_optimizer(base, values)
            self._note_options(base)
        groups = self.optimizer.param_groups
        for i, group in enumerate(base.param_groups):
            values_of_group = [self.values.get(p, p) for p in group["params"]]
            if i == len(groups):
                groups.append({**group, "params": values_of_group})
                self._last_options.append(copied_options(group))
            else:
                groups[i]["params"] = values_of_group

    def _note_options(self, base: Optimizer) -> None:
        self._last_options = [copied_options(group) for group in base.param_groups]

    def adopt_options(self, base: Optimizer, rates: Sequence[Any] | None) -> None:
        """Take what a scheduler or the user set in each group of the base since its last step.

        `rates` are the learning rates in force, if they are not those in the groups. Changes by ``base.step()`` itself are
        ignored: a base may count its steps in a group, and the twin's optimizer counts its own.
        """
        if self.optimizer is None:
            return
        groups = zip(self.optimizer.param_groups, base.param_groups, strict=False)
        for i, (group, base_group) in enumerate(groups):
            before = self._last_options[i]
            for name, value in read_options(base_group).items():
                is_new = name not in before or not are_equal(before[name], value)
                if is_new and name != _MODE:
                    group[name] = value
            self._last_options[i] = copied_options(base_group)
            if rates is not None:
                group["lr"] = rates[i]

    @torch.no_grad()
    def step(
        self, base: Optimizer, inputs: TwinStep, max_norm: float | None, has_ranks: bool
    ) -> None:
        """Let the twin's optimizer step on the twin's gradients, after the model's step."""
        for p, grad in inputs.gradients:
            if inputs.inverse_scale is not None:
                grad.mul_(inputs.inverse_scale.to(grad.device))
            self._trained.add(p)
            self.values[p].grad = grad
        own = self._own
        # Hooks of the base get the optimizer whose step it is.
        own._optimizer_step_pre_hooks = base._optimizer_step_pre_hooks
        own._optimizer_step_post_hooks = base._optimizer_step_post_hooks
        if max_norm is not None:
            self._clip(inputs.squared_norm, max_norm, has_ranks)
        own.step()
        self.has_moved = True
        for value in self.values.values():
            value.grad = None
        self._note_options(base)

    def _clip(self, squared_norm: Tensor, max_norm: float, has_ranks: bool) -> None:
        """Make the twin's gradient no longer than `max_norm`."""
        values = list(self.values.values())
        grads = [value.grad for value in values if value.grad is not None]
        if not has_ranks and not any(map(is_dtensor, grads)):
            torch.nn.utils.clip_grad_norm_(values, max_norm)
            return
        # As torch's clip_grad_norm_ has it.
        factor = (max_norm / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)
        for grad in map(local_tensor, grads):
            grad.mul_(factor.to(device=grad.device, dtype=grad.dtype))

    @torch.no_grad()
    def copy_to_model(self, base: Optimizer, wrappers: Wrappers) -> None:
        """Set the model to the twin: parameters, buffers, and what the base optimizer keeps of them.

        Parameters that the lower loss never reached stay: the twin has them as they were at the start.
        """
        release_gathered(wrappers)
        reached = self.reached_values()
        for p, value in reached.items():
            local_tensor(p).copy_(local_tensor(value))
        copy_state(base, self._own, reached)
        self.buffers.copy_to_model()
        torch.clear_autocast_cache()
        self._note_options(base)

    def reached_values(self) -> dict[Tensor, Tensor]:
        """Return the values of parameters that the lower loss has reached."""
        reached = {p: v for p, v in self.values.items() if p in self._trained}
        # Before the twin's first step, nothing was reached yet.
        return reached or self.values

    def are_reached(self, parameters: Sequence[Tensor]) -> list[bool]:
        """Whether the lower loss has reached each of these parameters, to be saved."""
        return [p in self._trained for p in parameters]

    # --- saving ---------------------------------------------------------------

    def entries(self, p: Tensor) -> Entries:
        """Return what the twin and its optimizer keep for a parameter."""
        entries = super().entries(p)
        if entries and self.optimizer is not None:
            state = self.optimizer.state.get(self.values[p], {})
            if state:
                entries["base"] = dict(state)
        return entries

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of :meth:`entries`; `state` is what the base keeps for the parameter."""
        zeros = {
            name: torch.zeros_like(v) if isinstance(v, Tensor) else v
            for name, v in state.items()
        }
        entries = super().placeholders(p, state)
        return entries | {"base": zeros} if zeros else entries

    def group_options(self, i: int, group: Options) -> Options:
        """Return the options that differ from those of the base's group `i`: a base may count its steps there."""
        if self.optimizer is None or i >= len(self.optimizer.param_groups):
            return {}
        options = {
            name: value
            for name, value in read_options(self.optimizer.param_groups[i]).items()
            if name != KEY and not are_equal(value, group.get(name))
        }
        return as_json_values("the twin's optimizer", options)

    def load(
        self,
        base: Optimizer,
        entries: Mapping[Tensor, Entries],
        options: Sequence[Options],
        reached: Sequence[bool],
    ) -> None:
        """Restore the values, and the state of the twin's optimizer."""
        self.optimizer = None
        super().load(base, entries, options, reached)
        pairs = zip(entries, reached, strict=True)
        self._trained = {p for p, is_reached in pairs if is_reached}
        if not self.values:
            return
        self.has_moved = True
        own = self._own
        state = own.state_dict()
        groups = []
        for group, saved in zip(state["param_groups"], options, strict=True):
            groups.append({**group, **typed_like(group, saved)})
        states = {}
        for i, saved_entries in enumerate(entries.values()):
            if "base" in saved_entries:
                states[i] = copy.deepcopy(saved_entries["base"])
        own.load_state_dict({"state": states, "param_groups": groups})


def check_equal_weights(losses: Mapping[str, Loss], gg: float, twin_gg: float) -> None:
    """Raise if a twin that has not moved yet has another gradient than the model, on the same loss.

    A loss that is divided in one of the two backward passes alone would train the twin otherwise than the model, and
    nothing else would show it.

    Parameters
    ----------
    gg, twin_gg : float
        ‖∇g‖² of the model and of the twin.
    """
    loss = loss_value(losses["lower"])
    reference = loss_value(losses["reference"])
    if torch.compiler.is_compiling():
        return
    assert loss is not None
    assert reference is not None
    model_norm = gg**0.5
    twin_norm = twin_gg**0.5
    if not math.isfinite(twin_norm):
        return
    is_same_loss = abs(float(loss) - float(reference)) <= _SAME_LOSS * abs(float(loss))
    if is_same_loss and abs(twin_norm - model_norm) > _DIFFERENT_NORM * model_norm > 0:
        raise RuntimeError(
            f"the twin's gradient is {twin_norm / model_norm:.3g} times as long as the model's, where both are still the "
            "same and have the same loss: give both backward passes the same weight, `(r / n).backward()` in `with "
            "opt.reference():` and `(g / n).backward()` in `with opt.lower(g, reference=r):`"
        )


# --- the optimizer of a twin ---------------------------------------------------------


def set_mode(base: Optimizer, mode: str) -> None:
    """Call ``base.train()`` or ``base.eval()``; schedule-free optimizers have these, and others do not."""
    switch = getattr(base, mode, None)
    if callable(switch):
        switch()


def clone_optimizer(base: Optimizer, values: Mapping[Tensor, Tensor]) -> Optimizer:
    """Return the same optimizer in the same state for other tensors, without hooks and wrappers of schedulers."""
    memo: dict[int, Any] = {id(p): value for p, value in values.items()}
    attributes = {
        name: value
        for name, value in vars(base).items()
        if name != "step" and not name.startswith("_optimizer_")
    }
    clone: Optimizer = object.__new__(type(base))
    try:
        vars(clone).update(copy.deepcopy(attributes, memo))
    except Exception as error:
        raise TypeError(
            f"{type(base).__name__} cannot be copied ({error}), so it can train no twin: give the reference yourself, "
            'reference="given"'
        ) from error
    state = {"state": clone.state, "param_groups": clone.param_groups}
    Optimizer.__setstate__(clone, state)
    return clone


def copy_state(
    base: Optimizer, clone: Optimizer, values: Mapping[Tensor, Tensor]
) -> None:
    """Give `base` the state of its clone, and the options of its groups except for the learning rates.

    `values` has the clone's tensor for each parameter whose state is copied. An optimizer inside an optimizer is treated
    in the same way. What an optimizer keeps neither in its state nor in its groups stays.
    """
    parameters = {id(value): p for p, value in values.items()}
    for p in values:
        base.state.pop(p, None)
    for key, state in clone.state.items():
        target: Any = parameters.get(id(key)) if isinstance(key, Tensor) else key
        if target is not None:
            base.state[target] = copy.deepcopy(state)
    for group, clone_group in zip(base.param_groups, clone.param_groups, strict=True):
        copied = {n: v for n, v in read_options(clone_group).items() if n != "lr"}
        group.update(copy.deepcopy(copied))
    for name, inner in vars(base).items():
        if isinstance(inner, Optimizer):
            copy_state(inner, vars(clone)[name], values)


def read_options(group: Options) -> Options:
    """Return the options of a group."""
    return {name: value for name, value in group.items() if name != "params"}


def copied_options(group: Options) -> Options:
    """Return the options of a group with tensors of their own: schedulers change learning rates in place."""
    return {
        n: v.clone() if isinstance(v, Tensor) else v
        for n, v in read_options(group).items()
    }


def are_equal(first: object, second: object) -> bool:
    """Whether two options are equal."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        is_same_shape = first.shape == second.shape
        return is_same_shape and bool((first == second.to(first)).all())
    return first is second or bool(first == second)


def typed_like(group: Options, saved: Options) -> Options:
    """Return options that were saved as numbers and lists, with the types that the group has."""
    typed = {}
    for name, value in saved.items():
        current = group.get(name)
        if isinstance(current, Tensor) and not isinstance(value, Tensor):
            value = torch.full_like(current, value)
        elif isinstance(current, tuple) and isinstance(value, list):
            value = tuple(value)
        typed[name] = value
    return typed
