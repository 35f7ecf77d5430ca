"""From what a step measured to its two weights: by the host, by one kernel, or by torch's operations.

The arithmetic is :mod:`tiebreak.decision`'s in all three. The host computes with Python numbers if it knows them: on a
CPU, and if it waited for a device anyway. Otherwise one kernel computes everything on the device. torch's operations do
what no kernel can: a rule of the user's own, a gradient scaler.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tiebreak import rules, tolerance
from tiebreak.decision import Decision, WeightChoice, limited
from tiebreak.decision import Measurement as ScalarMeasurement
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory, Reading
from tiebreak.torch.backward import Loss, loss_values
from tiebreak.torch.devices import copied, store
from tiebreak.torch.distributed import Measurement
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
        if isinstance(memory, Memory):
            values = memory._asdict()
        else:
            values = {}
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
        if self.values:
            return int(tolerance.return_count(self.current()))
        return 0

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
            words = {True: "with", False: "without"}
            raise ValueError(
                f"the state was saved {words[bool(state)]} tolerance=, and this optimizer was made "
                f"{words[bool(self.values)]} it"
            )
        if set(state) != set(self.values):
            unlike = sorted(set(state) ^ set(self.values))
            raise ValueError(
                f"what the tolerance rule of the state remembers differs from this version's in {', '.join(unlike)}"
            )
        for name, value in state.items():
            is_number = type(value) in (int, float)
            if not is_number or not math.isfinite(value):
                text = repr(value)[:200]
                raise ValueError(
                    f"in this state law.{name} is {text}; it must be a finite number"
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
    """Return the value with the device and dtype of `like`, filled in there: a copy from the host would synchronise."""
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
        parameters: Parameters,
        measured: Measurement,
        memory: RuleMemory,
        max_norm: float | None,
        found_inf: Tensor | None,
        checks_finite: bool,
        may_use_kernel: bool,
    ) -> StepDecision | None:
        """Return the numbers of a step, or None if the host knows that they are not finite.

        Parameters
        ----------
        found_inf : tensor, optional
            What a gradient scaler found.
        checks_finite : bool
            Whether a number that is not finite prevents the step.
        may_use_kernel : bool
            Whether Triton makes all passes, and nothing but gradients and losses enters the decision.
        """
        products = measured.products
        losses = _decision_losses(decision, measured.losses)
        compiling = torch.compiler.is_compiling()
        is_builtin = is_builtin_rule(decision)
        if may_use_kernel and is_builtin and not compiling:
            return self._decide_by_kernel(
                decision, parameters, measured, losses, memory, max_norm, checks_finite
            )
        on_host = is_builtin and products.device.type == "cpu"
        if compiling and decision.tolerance is None:
            on_host = False
        values = loss_values(measured.losses)
        numbers: dict[str, Any] = _decision_losses(decision, values)
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                if on_host:
                    numbers[name] = float(value)
                else:
                    numbers[name] = value.to(products)
        skip: Tensor | None = None
        if checks_finite:
            inputs = [products, *numbers.values(), measured.twin_squared_norm]
            if measured.rule_products is not products:
                inputs.append(measured.rule_products)
            is_nonfinite, skip = find_nonfinite(inputs, found_inf)
            if is_nonfinite:
                return None
        read: Callable[[Tensor], Sequence[Any]] = Tensor.unbind
        if on_host:
            read = Tensor.tolist
        rule_row = row = read(products)
        if measured.rule_products is not products:
            rule_row = read(measured.rule_products)
        choice = choose_weights(
            decision,
            parameters,
            row,
            rule_row,
            numbers,
            memory.current(on_host),
            max_norm,
        )
        weight_pair = [choice.upper_weight, choice.lower_weight]
        if on_host:
            weights = torch.tensor(weight_pair, dtype=products.dtype)
        else:
            weights = torch.stack(weight_pair)
        if checks_finite:
            is_nonfinite, skip = find_nonfinite([weights], skip)
            if is_nonfinite:
                return None
        report = dict(zip(PRODUCTS, (choice.multiplier, *rule_row), strict=True))
        report |= {"upper_loss": values["upper"], "lower_loss": values["lower"]}
        if choice.reading is not None:
            report |= {name: getattr(choice.reading, name) for name in READINGS}
        info = make_step(report, products.dtype, skip)
        return StepDecision(
            weights=weights,
            info=info,
            memory=choice.memory,
            reading=choice.reading if on_host else None,
            skip=skip,
            report_names=("skipped",),
            report=info.skipped,
        )

    def _decide_by_kernel(
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
        if decision.tolerance is not None:
            state = memory.tensor_on(home)
        else:
            state = None
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
        # The first two numbers are the weights.
        numbers = zip(output.names[2:], output.report[2:].unbind(), strict=True)
        fields: dict[str, Any] = dict.fromkeys(Step._fields) | dict(numbers)
        return StepDecision(
            weights=output.weights,
            info=Step(**fields | {"skipped": output.skipped}),
            memory=None,
            reading=None,
            skip=output.found_inf if checks_finite else None,
            report_names=output.names,
            report=output.report,
        )


def _decision_losses(decision: Decision, losses: dict[str, Any]) -> dict[str, Any]:
    """Return the losses that the decision uses, by its names for them."""
    if decision.tolerance is not None:
        return {"lower_value": losses["lower"], "reference": losses["reference"]}
    if "lower_value" in decision.method.needs:
        return {"lower_value": losses["lower"]}
    return {}


def find_nonfinite(
    values: Iterable[Any], flag: Tensor | None
) -> tuple[bool, Tensor | None]:
    """Return whether the host knows that the step must not be made, and a flag on the device if only the device knows.

    Parameters
    ----------
    values : iterable of numbers and tensors
        None stands for a value that the step does not have. The first one says where the step is decided.
    flag : tensor, optional
        Not 0 if the step must not be made for another reason, such as a finding of a gradient scaler.
    """
    if flag is not None:
        flag = flag.reshape(()) != 0
    home: torch.device | None = None
    for value in values:
        if isinstance(value, Tensor) and home is None:
            home = value.device
        if isinstance(value, Tensor) and value.device.type != "cpu":
            nonfinite = ~torch.isfinite(value).all()
            if flag is not None:
                nonfinite = flag.to(nonfinite.device) | nonfinite
            flag = nonfinite
        elif value is not None and not _is_finite(value):
            return True, None
    if flag is not None and (home or flag.device).type == "cpu":
        return bool(flag), None
    return False, flag


def _is_finite(value: Tensor | float) -> bool:
    # Python checks a few numbers faster than torch does.
    if isinstance(value, Tensor):
        return all(map(math.isfinite, value.reshape(-1).tolist()))
    return math.isfinite(value)
