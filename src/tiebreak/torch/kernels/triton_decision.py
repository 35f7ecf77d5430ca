"""A decision as one Triton kernel: the inner products are on a device, and so are the weights that come out.

Rules and the tolerance rule are arithmetic and comparisons on scalars. Called with :class:`TracedScalar` numbers they
leave a list of operations, which becomes the source of a kernel. As torch operations these are hundreds of launches a
step; as a kernel they are one. NumPy, JAX and the host evaluate the same formula.

To read a kernel, print the source that :func:`kernel_source` writes::

    from tiebreak import methods
    from tiebreak.decision import Decision
    from tiebreak.torch.kernels.triton_decision import kernel_source

    source, names = kernel_source(Decision(methods.sdbgd), ["products", "barrier", "regularizer"])
    print(source)
"""

import linecache
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import reduce
from operator import mul
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiebreak.decision import Decision
from tiebreak.rules import Scalar
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory
from tiebreak.torch.backward import WeightedLoss
from tiebreak.torch.decide import choose_weights
from tiebreak.torch.devices import capturing
from tiebreak.torch.gradients import LEVELS
from tiebreak.torch.kernels.torch_passes import device_context
from tiebreak.torch.step_info import PRODUCTS, READINGS

_Operand: TypeAlias = "TracedScalar | float"
_Number: TypeAlias = Tensor | float
_Loss: TypeAlias = WeightedLoss | _Number | None


class KernelDecision(NamedTuple):
    """A decision on a device.

    Attributes
    ----------
    weights : tensor
        a and b.
    names, report : list of str, tensor
        The numbers of the step: the weights, its record, and `skipped`; all in one tensor.
    skipped : tensor
        Whether a number is not finite, if that is checked.
    found_inf : tensor
        The same in float32, as torch's fused optimizers take it.
    """

    weights: Tensor
    names: list[str]
    report: Tensor
    skipped: Tensor
    found_inf: Tensor


class DecisionKernels:
    """Decides on a device, by one kernel for each formula and set of inputs.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kernels: dict[Hashable, tuple[Any, list[str]]] = {}
        self._scalars: dict[str, tuple[float, Tensor]] = {}

    def decide(
        self,
        decision: Decision,
        parameters: Parameters,
        products: Tensor,
        losses: dict[str, _Loss],
        used_losses: dict[str, _Loss],
        memory: Tensor | None,
        max_norm: float | None,
        checks_finite: bool,
    ) -> KernelDecision:
        """Decide from the inner products and losses of a step.

        Parameters
        ----------
        losses : dict
            Of both levels, for the report.
        used_losses : dict
            The losses that the decision uses, by its names for them.
        memory : tensor, optional
            Of the tolerance rule, updated in place.
        checks_finite : bool
            Whether a number that is not finite marks the step as skipped.
        """
        inputs: dict[str, _Number] = {"products": products}
        reported = {f"{level}_value": losses[level] for level in LEVELS}
        for name, loss in (reported | used_losses).items():
            if isinstance(loss, WeightedLoss):
                inputs[name] = loss.number
                inputs[f"{name}_factor"] = loss.factor
            elif loss is not None:
                inputs[name] = loss
        if max_norm is not None:
            inputs["max_norm"] = max_norm
        if decision.tolerance is None:
            inputs |= decision.method.arguments(parameters)
            formula = (decision.method.rule, decision.normalize)
        else:
            inputs["tolerance"] = decision.tolerance.amount
            formula = (decision.tolerance.relative, decision.tolerance.same_batch)
        key = (formula, checks_finite, *inputs)
        if key not in self._kernels:
            source, names = kernel_source(decision, list(inputs), checks_finite)
            self._kernels[key] = (_compile(source), names)
        kernel, names = self._kernels[key]
        with device_context(self.device):
            report = torch.empty(len(names), dtype=torch.float64, device=self.device)
            skipped = torch.empty((), dtype=torch.bool, device=self.device)
            found_inf = torch.empty((), dtype=torch.float32, device=self.device)
            kernel[(1,)](
                report,
                skipped,
                found_inf,
                report if memory is None else memory,
                *(self._on_device(name, value) for name, value in inputs.items()),
                num_warps=1,
                enable_fp_fusion=False,
            )
        return KernelDecision(report[:2], names, report, skipped, found_inf)

    def _on_device(self, name: str, value: _Number) -> Tensor:
        """An input on the device; a number of the host is sent if it has changed, without waiting."""
        if isinstance(value, Tensor):
            return value.to(self.device, non_blocking=True)
        latest = self._scalars.get(name)
        if latest is not None and latest[0] == value:
            return latest[1]
        scalar = torch.full((), value, dtype=torch.float64, device=self.device)
        # A tensor filled during a capture has a value at replays only.
        if not capturing(self.device):
            self._scalars[name] = (value, scalar)
        return scalar


def kernel_source(
    decision: Decision, inputs: Sequence[str], checks_finite: bool = True
) -> tuple[str, list[str]]:
    """Write the kernel of a decision.

    Parameters
    ----------
    inputs : sequence of str
        The kernel's pointers to inputs: "products"; the losses "upper_value", "lower_value" and "reference", each
        perhaps with a factor ("lower_value_factor"); the arguments of the rule, or "tolerance"; "max_norm".
    checks_finite : bool
        Whether a number that is not finite marks the step as skipped.

    Returns
    -------
    str
        The source.
    list of str
        The names of the numbers in the report.
    """
    lines: list[str] = []
    products = [_load(lines, f"products + {i}") for i in range(3)]
    scalars = {name: _load(lines, name) for name in inputs if name != "products"}
    for name in ("upper_value", "lower_value", "reference"):
        factor = scalars.get(f"{name}_factor")
        if factor is not None:
            # The host refuses a negative factor; a kernel turns the loss into NaN.
            factor = _select(lines, factor < 0, math.nan, factor)
            scalars[name] = scalars[name] * factor
    if decision.tolerance is None:
        used = {"lower_value"}.intersection(decision.method.needs)
        memory: Any = ()
    else:
        used = {"lower_value", "reference"}
        places = [f"memory + {i}" for i in range(len(Memory._fields))]
        memory = Memory(*(_load(lines, place) for place in places))
        amount: Scalar = scalars["tolerance"]
        decision = replace(
            decision, tolerance=replace(decision.tolerance, amount=amount)
        )
    used_losses = {name: scalars[name] for name in used}
    choice = choose_weights(
        decision,
        Parameters(k=None, others=scalars),
        products,
        products,
        used_losses,
        memory,
        scalars.get("max_norm"),
    )
    report = {"upper_weight": choice.upper_weight, "lower_weight": choice.lower_weight}
    finite: Scalar = 1.0
    if checks_finite:
        finite = _all_finite([*products, *used_losses.values(), *report.values()])
    record = dict(zip(PRODUCTS, (choice.multiplier, *products), strict=True))
    if choice.reading is not None:
        record |= {name: getattr(choice.reading, name) for name in READINGS}
    for name, value in record.items():
        report[name] = _select(lines, finite, value, math.nan)
    for level in LEVELS:
        if f"{level}_value" in scalars:
            report[f"{level}_loss"] = scalars[f"{level}_value"]
    skipped = finite == 0
    report["skipped"] = skipped
    stores = {f"report + {i}": value for i, value in enumerate(report.values())}
    stores |= {"skipped": skipped, "found_inf": skipped}
    if choice.reading is not None:
        # Non-finite numbers must not stay in the memory, even if the step is made.
        update = finite * _all_finite(choice.memory)
        for place, old, new in zip(places, memory, choice.memory, strict=True):
            stores[place] = _select(lines, update, new, old)
    lines += [f"tl.store({place}, {_text(v)})" for place, v in stores.items()]
    pointers = ("report", "skipped", "found_inf", "memory", *inputs)
    body = "".join(f"    {line}\n" for line in lines)
    return f"def decide({', '.join(pointers)}):\n{body}", list(report)


def _compile(source: str) -> Any:
    file = f"<tiebreak decide {hash(source)}>"
    # Triton reads the source of a function from the cache of files.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(source, file, "exec"), scope)
    function = scope["decide"]
    pointers = range(function.__code__.co_argcount)
    return triton.jit(function, do_not_specialize=pointers)


def _all_finite(values: Sequence[Scalar]) -> Scalar:
    finite = 1.0
    for value in values:
        finite = finite * (value - value == 0)
    return finite


def _operator(
    template: str,
) -> Callable[["TracedScalar", _Operand], "TracedScalar"]:
    def apply(scalar: "TracedScalar", other: _Operand) -> "TracedScalar":
        expression = template.format(scalar.name, _text(other))
        # A comparison is 0 or 1.
        return TracedScalar(scalar.lines, f"({expression}).to(tl.float64)")

    return apply


class TracedScalar:
    """A number whose value only the device knows: a new variable of a kernel. Operations on it are written down.

    It has no truth value: a rule with an ``if`` cannot be compiled.

    Parameters
    ----------
    lines : list of str
        The body of the kernel.
    expression : str
    """

    def __init__(self, lines: list[str], expression: str) -> None:
        self.lines = lines
        self.name = f"v{len(lines)}"
        lines.append(f"{self.name} = {expression}")

    def __bool__(self) -> bool:
        raise TypeError(
            "a number on the device is neither true nor false yet: a rule has no `if`"
        )

    __hash__ = None  # type: ignore[assignment]  # equality makes a number, not a truth
    __add__ = _operator("{} + {}")
    __radd__ = __add__
    __sub__ = _operator("{} - {}")
    __rsub__ = _operator("{1} - {0}")
    __mul__ = _operator("{} * {}")
    __rmul__ = __mul__
    __truediv__ = _operator("{} / {}")
    __rtruediv__ = _operator("{1} / {0}")
    __gt__ = _operator("{} > {}")
    __lt__ = _operator("{} < {}")
    __ge__ = _operator("{} >= {}")
    __le__ = _operator("{} <= {}")
    __eq__ = _operator("{} == {}")  # type: ignore[assignment]  # likewise
    __ne__ = _operator("{} != {}")  # type: ignore[assignment]  # likewise
    # base ** power; NaN unless the base is positive.
    _power = _operator("tl.exp(tl.log({}) * {})")
    __rpow__ = _operator("tl.exp(tl.log({1}) * {0})")

    def __neg__(self) -> "TracedScalar":
        return TracedScalar(self.lines, f"-{self.name}")

    def __pow__(self, power: _Operand) -> "TracedScalar":
        if isinstance(power, TracedScalar) or power not in (0.5, 1, 2, 3, 4):
            return self._power(power)
        if power == 0.5:
            return TracedScalar(self.lines, f"tl.sqrt({self.name})")
        return reduce(mul, [self] * int(power))


def _load(lines: list[str], pointer: str) -> TracedScalar:
    """A number from memory, in float64."""
    return TracedScalar(lines, f"tl.load({pointer}).to(tl.float64)")


def _select(
    lines: list[str], condition: _Operand, value: _Operand, other: _Operand
) -> TracedScalar:
    """`value` if the condition is not 0, else `other`; a product with the condition would keep a NaN."""
    operands = f"{_text(condition)} != 0, {_text(value)}, {_text(other)}"
    return TracedScalar(lines, f"tl.where({operands})")


def _text(value: _Operand) -> str:
    """An operand in an expression. Triton would round a bare number to float32."""
    if isinstance(value, TracedScalar):
        return value.name
    return f"tl.full((), float({str(float(value))!r}), tl.float64)"
