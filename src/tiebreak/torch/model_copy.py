"""References that are a copy of the model: frozen where training started, or a twin that is trained on the lower loss.

A copy has values for the model's parameters and buffers. They take the place of the model's values for one pass. A twin
has an optimizer of its own: a clone of the model's base optimizer, with the same learning rates, on the same batches.
"""

import copy
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak.options import START, TWIN
from tiebreak.torch.checkpoint import KEY, Entries, as_json_values
from tiebreak.torch.devices import copy_value
from tiebreak.torch.distributed.layout import Wrappers, is_dtensor, local_tensor
from tiebreak.torch.losses import Loss, loss_value
from tiebreak.torch.reference import Reference, missing_reference
from tiebreak.torch.swap import Buffers, RandomState, release_gathered, swap_parameters

#: Options of a parameter group, without its parameters.
Options: TypeAlias = dict[str, Any]

# What torch gives every optimizer, and what schedulers and scalers attach to it.
_TORCH_ATTRIBUTES = frozenset(
    [
        "state",
        "param_groups",
        "defaults",
        "step",
        "grad_scale",
        "found_inf",
        "_opt_called",
        "_step_supports_amp_scaling",
        "_need_device_dtype_check_for_fused",
        "_zero_grad_profile_name",
        "_warned_capturable_if_run_uncaptured",
    ]
)
# Values that may change without becoming another object.
_MUTABLE = (Tensor, dict, list, set, deque)
# The option in which schedule-free optimizers keep at which of two points the parameters are.
_MODE = "train_mode"
_SAME_LOSS = 1e-3  # losses that differ by less, relatively, are treated as equal
_DIFFERENT_NORM = 0.1  # gradient norms that differ by more are treated as different


class ModelCopy(Reference):
    """Other values for the parameters and buffers of the model: as training started with ``reference="start"``.

    Parameters
    ----------
    modules : sequence of Module
        The model, whose buffers the copy has, too.
    """

    kind = START
    needs_model = True
    keeps_buffers = False  # what a pass changes in the buffers

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.values: dict[Tensor, Tensor] = {}
        self.buffers = Buffers(modules)

    def __repr__(self) -> str:
        return repr(self.kind)

    @property
    def begun(self) -> bool:
        """Whether the copy exists: its first use makes it, of the model at that time."""
        return bool(self.values)

    def value(self, step: int, loss: Loss) -> Loss:
        """Return the loss that the copy had on the batch."""
        if loss is None:
            raise missing_reference(
                "closures, step(upper=…, lower=…), or `with opt.reference(): r = …` and "
            )
        return loss

    def follow(self, base: Optimizer) -> None:
        """Add values for parameters that joined the base, and follow a model that was moved.

        A frozen parameter has no value here: the copy uses the model's.
        """
        for group in base.param_groups:
            for p in group["params"]:
                if p.requires_grad and p not in self.values:
                    self.values[p] = p.detach().clone()
        for p, value in self.values.items():
            if value.dtype != p.dtype or value.device != p.device:
                value.data = value.data.to(device=p.device, dtype=p.dtype)

    @contextmanager
    def in_place_of_model(
        self, generators: Sequence[torch.Generator], wrappers: Wrappers
    ) -> Iterator[None]:
        """Give the model the copy's values inside; random numbers are afterwards as they were before."""
        state = RandomState(generators)
        swap_parameters(self.values, wrappers)
        try:
            with self.buffers.swapped(keep=self.keeps_buffers):
                yield
        finally:
            swap_parameters(self.values, wrappers)
            state.restore()

    def reached_values(self) -> dict[Tensor, Tensor]:
        """Return the values of parameters that the lower loss has reached; a frozen copy has all."""
        return self.values

    def are_reached(self, parameters: Sequence[Tensor]) -> list[bool]:
        """Whether the lower loss has reached each of these parameters, to be saved."""
        return [p in self.values for p in parameters]

    # --- saving ---------------------------------------------------------------

    def entries(self, p: Tensor) -> Entries:
        """Return what the copy keeps for a parameter."""
        return {"copy": {"value": self.values[p]}} if p in self.values else {}

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of :meth:`entries`; `state` is what the base keeps for the parameter."""
        return {"copy": {"value": torch.zeros_like(p)}}

    def group_options(self, i: int, group: Options) -> Options:
        """Return the options that differ from those of the base's group `i`."""
        return {}

    def load(
        self,
        base: Optimizer,
        entries: Mapping[Tensor, Entries],
        options: Sequence[Options],
        reached: Sequence[bool],
    ) -> None:
        """Restore the values; `reached` is what :meth:`are_reached` returned for all parameters."""
        self.values = {}
        for p, saved in entries.items():
            if "copy" in saved:
                value = saved["copy"]["value"].detach().clone()
                self.values[p] = value.to(device=p.device, dtype=p.dtype)
        if self.values:
            self.follow(base)


class TwinStep(NamedTuple):
    """What a twin needs for its step, noted before the model moves.

    Attributes
    ----------
    gradients : list
        Of all parameters of the base, in order; None if the lower loss does not reach one.
    squared_norm : tensor
        Of the gradients over all ranks, with a scaler's scale.
    inverse_scale : tensor or None
        1 over a gradient scaler's scale.
    options : list of dict
        What was set in each group since the base's last step.
    """

    gradients: list[Tensor | None]
    squared_norm: Tensor
    inverse_scale: Tensor | None
    options: list[Options]


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
        # Group options and attributes that the optimizer's own step writes: it may count there.
        self._written_options: set[str] = set()
        self._written_attributes: set[str] = set()

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
                self._last_options.append(_copied_options(group))
            else:
                groups[i]["params"] = values_of_group

    def _note_options(self, base: Optimizer) -> None:
        self._last_options = [_copied_options(group) for group in base.param_groups]

    def changed_options(
        self, base: Optimizer, rates: Sequence[Any] | None
    ) -> list[Options]:
        """Return what a scheduler or the user set in each group since the base's last step.

        `rates` are the learning rates in force, if they are not those in the groups. What the base's own step wrote does
        not count: a base may count its steps in a group, and the twin's optimizer counts its own.
        """
        changed = []
        for before, group in zip(self._last_options, base.param_groups, strict=False):
            options = {
                name: value
                for name, value in _options(group).items()
                if name != _MODE
                and (name not in before or not _is_unchanged(before[name], value))
            }
            changed.append(options)
        if rates is not None:
            for options, rate in zip(changed, rates, strict=True):
                options["lr"] = rate
        return changed

    def adopt_options(self, base: Optimizer) -> None:
        """Set now what was set in the base's groups since its last step, so that a saved state has it."""
        if self.optimizer is None:
            return
        groups = self.optimizer.param_groups
        changed = self.changed_options(base, None)
        for group, options in zip(groups, changed, strict=False):
            group.update(options)
        noted = base.param_groups[: len(self._last_options)]
        self._last_options = [_copied_options(group) for group in noted]

    @torch.no_grad()
    def step(
        self, base: Optimizer, inputs: TwinStep, max_norm: float | None, has_ranks: bool
    ) -> None:
        """Let the twin's optimizer step on the twin's gradients, after the model's step."""
        parameters = [p for group in base.param_groups for p in group["params"]]
        for p, grad in zip(parameters, inputs.gradients, strict=True):
            if grad is not None:
                if inputs.inverse_scale is not None:
                    grad.mul_(inputs.inverse_scale.to(grad.device))
                self._trained.add(p)
            if p in self.values:
                self.values[p].grad = grad
        own = self._own
        for group, options in zip(own.param_groups, inputs.options, strict=True):
            group.update(options)
        # Hooks of the base get the optimizer whose step it is.
        own._optimizer_step_pre_hooks = base._optimizer_step_pre_hooks
        own._optimizer_step_post_hooks = base._optimizer_step_post_hooks
        if max_norm is not None:
            self._clip(inputs.squared_norm, max_norm, has_ranks)
        options_before = [_options(group) for group in own.param_groups]
        attributes_before = dict(vars(own))
        own.step()
        self.has_moved = True
        self._written_attributes |= _changed_names(attributes_before, vars(own))
        for before, group in zip(options_before, own.param_groups, strict=True):
            self._written_options |= _changed_names(before, _options(group))
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
        own = self._own
        for p, value in self.reached_values().items():
            local_tensor(p).copy_(local_tensor(value))
            state = own.state.get(value, {})
            if state or base.state.get(p):
                _copy_state(base.state.setdefault(p, {}), state)
        for group, twin_group in zip(base.param_groups, own.param_groups, strict=True):
            for name in self._written_options & twin_group.keys():
                group[name] = copy.deepcopy(twin_group[name])
        copy_extra_state(base, own, self.values, self._written_attributes)
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
            for name, value in _options(self.optimizer.param_groups[i]).items()
            if name != KEY and not _is_equal(value, group.get(name))
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
            groups.append({**group, **_typed_like(group, saved)})
        states = {}
        for i, saved_entries in enumerate(entries.values()):
            if "base" in saved_entries:
                states[i] = copy.deepcopy(saved_entries["base"])
        own.load_state_dict({"state": states, "param_groups": groups})


def _copy_state(state: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Set the state of a parameter to another one; tensors in place, because a captured step reads their memory."""
    for name in state.keys() - source.keys():
        del state[name]
    for name, value in source.items():
        before: Any = state.get(name)
        are_tensors = isinstance(before, Tensor) and isinstance(value, Tensor)
        if are_tensors and before.shape == value.shape:
            local_tensor(before).copy_(local_tensor(value))
        else:
            state[name] = copy.deepcopy(value)


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


# --- options of groups ---------------------------------------------------------


def _options(group: Options) -> Options:
    return {name: value for name, value in group.items() if name != "params"}


def _copied_options(group: Options) -> Options:
    # torch's schedulers change a learning rate that is a tensor in place.
    return {name: copy_value(value) for name, value in _options(group).items()}


def _changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """The names whose value is another object than before."""
    return {n for n, v in after.items() if n not in before or before[n] is not v}


def _is_unchanged(before: object, value: object) -> bool:
    if not isinstance(before, Tensor) or not isinstance(value, Tensor):
        return before is value
    return before is value or (
        before.shape == value.shape and bool((before == value).all())
    )


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool((one == other.to(one)).all())
    return one is other or bool(one == other)


def _typed_like(group: Options, saved: Options) -> Options:
    """Options that were saved as numbers and lists, with the types that the group has."""
    options = {}
    for name, value in saved.items():
        current = group.get(name)
        if isinstance(current, Tensor) and not isinstance(value, Tensor):
            value = torch.full_like(current, value)
        elif isinstance(current, tuple) and isinstance(value, list):
            value = tuple(value)
        options[name] = value
    return options


# --- cloning a base optimizer ---------------------------------------------------


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


def copy_extra_state(
    base: Optimizer,
    clone: Optimizer,
    values: Mapping[Tensor, Tensor],
    written: Iterable[str],
) -> None:
    """Give `base` what its clone keeps elsewhere than for a parameter: in attributes, or in its state by other keys.

    Only attributes with plain data (numbers, tensors, containers) count: those that the clone's step replaces, which are
    `written`, and mutable ones. An optimizer inside an optimizer is treated in the same way.
    """
    parameters = [p for group in base.param_groups for p in group["params"]]
    memo: dict[int, Any] = {id(p): p for p in parameters}
    memo |= {id(value): p for p, value in values.items()}
    states: Any = base.state
    clone_states: Any = clone.state
    for key in [key for key in states if not isinstance(key, Tensor)]:
        if key not in clone_states:
            del states[key]
    for key, state in clone_states.items():
        if not isinstance(key, Tensor):
            states[key] = copy.deepcopy(state, memo)
    for name, value in vars(clone).items():
        if name in _TORCH_ATTRIBUTES or name.startswith("_optimizer_"):
            continue
        inner = vars(base).get(name)
        if isinstance(value, Optimizer) and isinstance(inner, Optimizer):
            for p, state in value.state.items():
                if id(p) in memo:
                    inner.state[memo[id(p)]] = copy.deepcopy(state, memo)
            changed = _changed_names(vars(inner), vars(value))
            copy_extra_state(inner, value, values, changed)
        elif (name in written or isinstance(value, _MUTABLE)) and _is_plain(value):
            setattr(base, name, copy.deepcopy(value, memo))


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_is_plain, value))
    return value is None or isinstance(
        value, (Tensor, bool, int, float, complex, str, bytes)
    )
