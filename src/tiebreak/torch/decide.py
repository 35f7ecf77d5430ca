"""From what a step measured to its weights and its record: by the host, by one kernel, or by torch's operations.

The arithmetic is :mod:`tiebreak.decision`'s in all three. The host makes it of Python's numbers where it knows them: on
a CPU, and where it had to wait for a device anyway. Where it does not, one kernel makes everything at once; what no
kernel can make (a rule of one's own, a gradient scaler) is left to torch's operations.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tiebreak import rules
from tiebreak.decision import Choice, Decision, Seen, limited
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Reading
from tiebreak.torch.distributed.message import Measured
from tiebreak.torch.gradients import LEVELS
from tiebreak.torch.kernels import Passes
from tiebreak.torch.losses import loss_values
from tiebreak.torch.step_info import PRODUCTS, READINGS, Step, record

if TYPE_CHECKING:
    from tiebreak.torch.kernels.triton_decision import DecisionKernels
    from tiebreak.torch.optimizer import DynamicBarrier


class Made(NamedTuple):
    """A step in numbers.

    Attributes
    ----------
    weights : tensor
        a and b.
    step : Step
        The record.
    memory : Memory, () or None
        What to remember if the step is made; None where that is done.
    reading : Reading or None
        With a tolerance, where the host knows it.
    report : tuple or None
        The names and the numbers of the record in one piece, where a kernel made them.
    """

    weights: Tensor
    step: Step
    memory: Any
    reading: Reading | None
    report: tuple[list[str], Tensor] | None = None


def outcome(
    decision: Decision,
    parameters: Any,
    own: Sequence[Any],
    seen: Sequence[Any],
    used: dict[str, Any],
    memory: Any,
    longest: Any,
) -> Choice:
    """The decision on any scalars, the direction no longer than `longest`.

    Parameters
    ----------
    own, seen : tuple
        fg, gg and ff of the gradients in the direction, and as the rule sees them.
    used : dict
        The losses that the decision needs.
    """
    if decision.tolerance is not None:
        fg, gg, ff = own
        measured = Seen(fg, gg, ff, ff**0.5, gg**0.5, **used)
    else:
        fg, gg, ff = seen
        measured = Seen(fg, gg, ff, **used)
    choice = decision(parameters, measured, memory)
    if longest is not None:
        (fg, gg, ff), a, b = own, choice.upper_weight, choice.lower_weight
        choice = limited(choice, a * a * ff + 2 * a * b * fg + b * b * gg, longest)
    return choice


def plain(decision: Decision) -> bool:
    """Whether the decision is known to be arithmetic: any rule of one's own may be a function of tensors only."""
    return (
        decision.tolerance is not None or decision.method.rule in rules.RULES.values()
    )


class Maker:
    """Makes the numbers of a step; keeps the kernel, where there is one."""

    def __init__(self) -> None:
        self._kernels: DecisionKernels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_kernels": None}  # what is on a device stays there

    def make(
        self,
        opt: "DynamicBarrier",
        passes: Passes,
        parameters: Parameters,
        measured: Measured,
        used: dict[str, Any],
        inverse_scale: Tensor | None,
    ) -> Made | None:
        """The numbers, or None where the host knows that they are not finite."""
        own, seen, losses, twin = measured
        compiling = torch.compiler.is_compiling()
        simple = plain(opt.decision)
        unscaled = (
            inverse_scale is None and opt.guard.found_inf is None and twin is None
        )
        there = (
            passes.on_device
            and passes.uses_triton
            and own is seen
            and own.device == passes.device
        )
        if simple and there and unscaled and not compiling:
            return self._by_kernel(opt, parameters, own, losses, used)
        measured = measured._replace(losses=loss_values(losses))
        used = loss_values(used)
        host = (
            simple
            and own.device.type == "cpu"
            and (not compiling or opt.decision.tolerance is not None)
        )
        for name, value in used.items():
            if isinstance(value, Tensor):
                used[name] = float(value.item()) if host else value.to(own)
        if opt.guard.refuses(own, None if seen is own else seen, *used.values(), twin):
            return None
        made = (_by_host if host else _by_tensors)(opt, parameters, measured, used)
        return None if opt.guard.refuses(made.weights) else made

    def _by_kernel(
        self,
        opt: "DynamicBarrier",
        parameters: Parameters,
        own: Tensor,
        losses: dict[str, Any],
        used: dict[str, Any],
    ) -> Made:
        """Of one kernel: everything stays on the device."""
        from tiebreak.torch.kernels.triton_decision import DecisionKernels  # Triton

        if self._kernels is None or self._kernels.device != own.device:
            self._kernels = DecisionKernels(own.device)
        memory = None if opt.decision.tolerance is None else opt.memory.on(own.device)
        weights, names, report, skipped, found_inf = self._kernels.decide(
            opt.decision,
            parameters,
            own,
            losses,
            used,
            memory,
            opt.max_norm,
            opt.guard.looks,
        )
        if opt.guard.looks:
            opt.guard.bad = found_inf
        fields: dict[str, Any] = dict.fromkeys(Step._fields)
        fields |= dict(zip(names[2:], report[2:].unbind(), strict=True))
        fields["skipped"] = skipped
        return Made(weights, Step(**fields), None, None, (names, report))


def _by_host(
    opt: "DynamicBarrier",
    parameters: Parameters,
    measured: Measured,
    used: dict[str, Any],
) -> Made:
    """Of Python's numbers: one tensor at the end instead of dozens on the way."""
    own = measured.own.tolist()
    seen = own if measured.seen is measured.own else measured.seen.tolist()
    choice = outcome(
        opt.decision,
        parameters,
        own,
        seen,
        used,
        opt.memory.now(host=True),
        opt.max_norm,
    )
    row = dict(zip(PRODUCTS, (choice.multiplier, *seen), strict=True))
    if choice.reading is not None:
        row |= {name: getattr(choice.reading, name) for name in READINGS}
    given = {f"{level}_loss": measured.losses[level] for level in LEVELS}
    row |= {name: loss for name, loss in given.items() if isinstance(loss, float)}
    made = torch.tensor(
        [choice.upper_weight, choice.lower_weight, *row.values()],
        dtype=measured.own.dtype,
    )
    fields: dict[str, Any] = (
        dict.fromkeys(READINGS) | given | dict(zip(row, made[2:].unbind(), strict=True))
    )
    step = Step(**fields, skipped=torch.zeros((), dtype=torch.bool))
    return Made(made[:2], step, choice.memory, choice.reading)


def _by_tensors(
    opt: "DynamicBarrier",
    parameters: Parameters,
    measured: Measured,
    used: dict[str, Any],
) -> Made:
    """Of torch's operations; what is not finite is left to the guard."""
    own = measured.own.unbind()
    seen = measured.seen.unbind()
    choice = outcome(
        opt.decision, parameters, own, seen, used, opt.memory.now(), opt.max_norm
    )
    numbers = (choice.upper_weight, choice.lower_weight, choice.multiplier)
    *weights, multiplier = (
        n if isinstance(n, Tensor) else own[0].new_tensor(n) for n in numbers
    )
    losses = [measured.losses[level] for level in LEVELS]
    step = record((multiplier, *seen), losses, opt.guard.bad, choice.reading)
    return Made(torch.stack(weights), step, choice.memory, None)
