"""From what a step measured to its two weights: by the host, by one kernel, or by torch's operations.

The arithmetic is :mod:`tiebreak.decision`'s in all three. The host computes with Python numbers if it knows them: on a
CPU, and if it waited for a device anyway. Otherwise one kernel computes everything on the device. torch's operations do
what no kernel can: a rule of the user's own, a gradient scaler.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tiebreak import rules, tolerance
from tiebreak.decision import Decision, WeightChoice, limited
from tiebreak.decision import Measurement as ScalarMeasurement
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory, Reading
from tiebreak.torch.devices import copied, store
from tiebreak.torch.distributed import Measurement
from tiebreak.torch.grad_scaler import Scaling
from tiebreak.torch.gradients import LEVELS
from tiebreak.torch.kernels import Passes
from tiebreak.torch.losses import Loss, loss_values
from tiebreak.torch.nonfinite import find_nonfinite
from tiebreak.torch.step_info import PRODUCTS, READINGS, Step, make_step

#: A number of the host, a tensor without dimensions, or a scalar of the kernel writer.
Scalar: TypeAlias = Any


class StepDecision(NamedTuple):
    """A step in numbers.

    Attributes
    ----------
    weights : tensor
        a and b of the direction d = a ∇f + b ∇g.
    info : Step
        What the step returns to the user.
    memory : Memory, () or None
        The memory of the rule after the step; None if a kernel has stored it.
    reading : Reading or None
        With a tolerance, if the host knows its numbers.
    skip : tensor or None
        True if the step must not be made, and only the device knows.
    report_names, report : sequence of str, tensor
        The numbers of the step in one tensor, for the host to read later.
    """

    weights: Tensor
    info: Step
    memory: Any
    reading: Reading | None
    skip: Tensor | None
    report_names: Sequence[str]
    report: Tensor


def choose_weights(
    decision: Decision,
    parameters: Parameters,
    products: Sequence[Scalar],
    rule_products: Sequence[Scalar],
    losses: dict[str, Scalar],
    memory: Memory | tuple[()],
    max_norm: Scalar,
) -> WeightChoice:
    """Return the decision on any scalars, with a direction no longer than `max_norm`.

    Parameters
    ----------
    products, rule_products : sequence
        fg, gg and ff of the gradients in the direction, and as the rule sees them.
    losses : dict
        The losses that the decision uses.
    """
    fg, gg, ff = products
    if decision.tolerance is not None:
        measured = ScalarMeasurement(fg, gg, ff, ff**0.5, gg**0.5, **losses)
    else:
        measured = ScalarMeasurement(*rule_products, **losses)
    choice = decision(parameters, measured, memory)
    if max_norm is None:
        return choice
    a = choice.upper_weight
    b = choice.lower_weight
    # ‖a ∇f + b ∇g‖² = a² ff + 2 a b fg + b² gg
    return limited(choice, a * a * ff + 2 * a * b * fg + b * b * gg, max_norm)


def is_builtin_rule(decision: Decision) -> bool:
    """Whether the decision is arithmetic alone; a rule of the user's own may be a function of tensors."""
    return (
        decision.tolerance is not None or decision.method.rule in rules.RULES.values()
    )


class RuleMemory:
    """The memory of the tolerance rule: Python numbers if the host computes it, tensors on a device.

    Parameters
    ----------
    initial : Memory or ()
        Before the first step; () without a tolerance.
    """

    def __init__(self, initial: Memory | tuple[()]) -> None:
        self.values: dict[str, Any] = {}
        if isinstance(initial, Memory):
            self.values = initial._asdict()
        # If a kernel stores the memory, the values are views of this tensor.
        self._tensor: Tensor | None = None

    @property
    def on_device(self) -> bool:
        """Whether the values are tensors."""
        return isinstance(next(iter(self.values.values()), None), Tensor)

    def current(self, host: bool = False) -> Any:
        """Return the memory as the decision takes it; with `host` as Python numbers."""
        if not self.values:
            return ()
        if host and self.on_device:  # waits once, after steps on a device
            self.values = {name: float(value) for name, value in self.values.items()}
        return Memory(**self.values)

    def tensor_on(self, device: torch.device) -> Tensor:
        """Return the memory as one tensor on a device, which a kernel reads and writes."""
        first = next(iter(self.values.values()))
        is_view = isinstance(first, Tensor) and first._base is self._tensor
        if self._tensor is None or not is_view:
            like = torch.empty((), dtype=torch.float64, device=device)
            values = [_like(value, like) for value in self.values.values()]
            self._tensor = torch.stack(values)
            self.values = dict(zip(self.values, self._tensor.unbind(), strict=True))
        return self._tensor

    def __getstate__(self) -> dict[str, Any]:
        return {"values": copied(self.values), "_tensor": None}

    def keep(self, memory: Memory | tuple[()], skip: Tensor | None) -> None:
        """Take the memory after a step, unless `skip` is true.

        A number that is not finite must not stay, whatever the policy about such steps is.
        """
        values = memory._asdict() if isinstance(memory, Memory) else {}
        if not any(isinstance(value, Tensor) for value in values.values()):
            if all(map(math.isfinite, values.values())):
                self.values.update(values)
            return
        is_fine = torch.isfinite(torch.stack(list(values.values()))).all()
        if skip is not None:
            is_fine = is_fine & ~skip
        for name, value in values.items():
            before = _like(self.values[name], value)
            store(self.values, name, torch.where(is_fine, value, before))

    @property
    def return_count(self) -> int:
        """How many times the model was set to its twin; waits for a device."""
        return int(tolerance.return_count(self.current())) if self.values else 0

    def needs_return(self) -> bool:
        """Whether the model must be set to its twin; waits for a device."""
        return bool(tolerance.needs_return(self.current()))

    def note_return(self) -> None:
        """Continue from the twin, to which the model was set."""
        self.load_state_dict(tolerance.after_return(self.current())._asdict())

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the values."""
        return copied(self.values)

    def check(self, state: dict[str, Any]) -> None:
        """Raise ValueError if this state cannot be loaded."""
        if bool(state) != bool(self.values):
            saved = "with" if state else "without"
            current = "with" if self.values else "without"
            raise ValueError(
                f"the state was saved {saved} tolerance=, and this optimizer was made {current} it"
            )
        if set(state) != set(self.values):
            unlike = sorted(set(state) ^ set(self.values))
            raise ValueError(
                f"what the tolerance rule of the state remembers differs from this version's in {', '.join(unlike)}"
            )
        for name, value in state.items():
            is_number = type(value) in (int, float)
            if isinstance(value, Tensor):
                is_number = value.numel() == 1
            if not is_number or not math.isfinite(value):
                raise ValueError(
                    f"in this state law.{name} is {value!r}; it must be a finite number"[
                        :300
                    ]
                )
        if state:
            tolerance.check(Memory(**state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; tensors in place, because a captured step reads their memory."""
        for name, value in state.items():
            before = self.values[name]
            if isinstance(before, Tensor):
                value = _like(value, before)
            store(self.values, name, value)


def _like(value: Tensor | float, like: Tensor) -> Tensor:
    """The value with the device and dtype of `like`. A number is filled in on the device: sending it would wait."""
    if isinstance(value, Tensor):
        return value.to(like)
    return torch.full_like(like, value)


class Decider:
    """Computes the numbers of a step. It keeps compiled kernels between steps."""

    def __init__(self) -> None:
        self._kernels: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_kernels": None}  # kernels belong to this process and device

    def decide(
        self,
        decision: Decision,
        passes: Passes,
        parameters: Parameters,
        measured: Measurement,
        losses: dict[str, Loss],
        memory: RuleMemory,
        max_norm: float | None,
        scaling: Scaling,
        checks_finite: bool,
    ) -> StepDecision | None:
        """Return the numbers of a step, or None if the host knows that they are not finite.

        Parameters
        ----------
        losses : dict
            The losses that the decision uses.
        checks_finite : bool
            Whether a number that is not finite prevents the step.
        """
        products = measured.products
        rule_products = measured.rule_products
        builtin = is_builtin_rule(decision)
        compiling = torch.compiler.is_compiling()
        fits_kernel = (
            scaling.inverse_scale is None
            and scaling.found_inf is None
            and measured.twin_squared_norm is None
            and products is rule_products
        )
        by_kernel = passes.on_device and passes.uses_triton
        by_kernel = by_kernel and products.device == passes.device
        if builtin and fits_kernel and by_kernel and not compiling:
            return self._by_kernel(
                decision,
                parameters,
                measured,
                losses,
                memory,
                max_norm,
                checks_finite,
            )
        measured = measured._replace(losses=loss_values(measured.losses))
        on_host = builtin and products.device.type == "cpu"
        if compiling and decision.tolerance is None:
            on_host = False
        numbers: dict[str, Any] = {}
        for name, value in loss_values(losses).items():
            numbers[name] = value
            if isinstance(value, Tensor):
                numbers[name] = float(value.item()) if on_host else value.to(products)
        skip: Tensor | None = None
        if checks_finite:
            values = [products, *numbers.values(), measured.twin_squared_norm]
            if rule_products is not products:
                values.append(rule_products)
            flag = find_nonfinite(values, scaling.found_inf)
            if isinstance(flag, bool):
                return None
            skip = flag
        inputs = (decision, parameters, measured, numbers, memory, max_norm)
        compute: Callable[..., StepDecision] = _decide_by_host
        if not on_host:  # the device alone may know that the step must be skipped
            compute = partial(_decide_by_tensors, skip=skip)
        step = compute(*inputs)
        if checks_finite:
            flag = find_nonfinite([step.weights], None)
            if isinstance(flag, bool):
                return None
            if flag is not None:
                skip = flag if skip is None else skip | flag.to(skip.device)
                step = step._replace(skip=skip)
        return step

    def _by_kernel(
        self,
        decision: Decision,
        parameters: Parameters,
        measured: Measurement,
        losses: dict[str, Loss],
        memory: RuleMemory,
        max_norm: float | None,
        checks_finite: bool,
    ) -> StepDecision:
        # Triton is installed, or the passes would not use it.
        from tiebreak.torch.kernels.triton_decision import DecisionKernels

        home = measured.products.device
        if self._kernels is None or self._kernels.device != home:
            self._kernels = DecisionKernels(home)
        state = memory.tensor_on(home) if decision.tolerance is not None else None
        output = self._kernels.decide(
            decision,
            parameters,
            measured.products,
            measured.losses,
            losses,
            state,
            max_norm,
            checks_finite,
        )
        fields: dict[str, Any] = dict.fromkeys(Step._fields)
        # The first two numbers are the weights.
        numbers = output.report[2:].unbind()
        fields |= dict(zip(output.names[2:], numbers, strict=True))
        fields["skipped"] = output.skipped
        info = Step(**fields)
        return StepDecision(
            weights=output.weights,
            info=info,
            memory=None,
            reading=None,
            skip=output.found_inf if checks_finite else None,
            report_names=output.names,
            report=output.report,
        )


def _decide_by_host(
    decision: Decision,
    parameters: Parameters,
    measured: Measurement,
    losses: dict[str, float],
    memory: RuleMemory,
    max_norm: float | None,
) -> StepDecision:
    """With Python numbers: one tensor at the end instead of dozens on the way."""
    products = measured.products.tolist()
    rule_products = products
    if measured.rule_products is not measured.products:
        rule_products = measured.rule_products.tolist()
    choice = choose_weights(
        decision,
        parameters,
        products,
        rule_products,
        losses,
        memory.current(host=True),
        max_norm,
    )
    numbers = dict(zip(PRODUCTS, (choice.multiplier, *rule_products), strict=True))
    if choice.reading is not None:
        numbers |= {name: getattr(choice.reading, name) for name in READINGS}
    fields: dict[str, Any] = dict.fromkeys(READINGS)
    for level in LEVELS:
        loss = measured.losses[level]
        fields[f"{level}_loss"] = loss
        if isinstance(loss, float):
            numbers[f"{level}_loss"] = loss
    row = [choice.upper_weight, choice.lower_weight, *numbers.values()]
    values = torch.tensor(row, dtype=measured.products.dtype)
    fields |= dict(zip(numbers, values[2:].unbind(), strict=True))
    info = Step(**fields, skipped=torch.zeros((), dtype=torch.bool))
    return StepDecision(
        weights=values[:2],
        info=info,
        memory=choice.memory,
        reading=choice.reading,
        skip=None,
        report_names=("skipped",),
        report=info.skipped,
    )


def _decide_by_tensors(
    decision: Decision,
    parameters: Parameters,
    measured: Measurement,
    losses: dict[str, Any],
    memory: RuleMemory,
    max_norm: float | None,
    skip: Tensor | None,
) -> StepDecision:
    """With torch's operations; numbers that are not finite are found afterwards."""
    products = measured.products.unbind()
    rule_products = measured.rule_products.unbind()
    choice = choose_weights(
        decision,
        parameters,
        products,
        rule_products,
        losses,
        memory.current(),
        max_norm,
    )
    numbers = []
    for number in (choice.upper_weight, choice.lower_weight, choice.multiplier):
        if not isinstance(number, Tensor):
            number = products[0].new_tensor(number)
        numbers.append(number)
    info = make_step(
        (numbers[2], *rule_products),
        [measured.losses[level] for level in LEVELS],
        skip,
        choice.reading,
    )
    return StepDecision(
        weights=torch.stack(numbers[:2]),
        info=info,
        memory=choice.memory,
        reading=None,
        skip=skip,
        report_names=("skipped",),
        report=info.skipped,
    )
