"""The numbers of a step by one kernel: what the decision needs is on the device, and what it makes stays there."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory
from tiebreak.torch.context import capturing
from tiebreak.torch.decide import Made, outcome
from tiebreak.torch.gradients import LEVELS
from tiebreak.torch.kernels.triton_tracer import Traced, Writer, finite, kernel
from tiebreak.torch.losses import Term
from tiebreak.torch.step_info import PRODUCTS, READINGS, Step

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


_LOSSES = ("upper_loss", "lower_loss")


class Compiled:
    """One kernel for each kind of step; a kind has the same formula and the same numbers given.

    Parameters
    ----------
    device : torch.device
        Where the numbers are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kernels: dict[Any, Any] = {}
        self._numbers: dict[str, tuple[float, Tensor]] = {}

    def make(
        self,
        opt: "DynamicBarrier",
        parameters: Parameters,
        own: Tensor,
        losses: dict[str, Any],
        used: dict[str, Any],
    ) -> Made:
        """The numbers of a step from its inner products and losses."""
        decision, looks = opt.decision, opt.guard.looks
        recorded = {f"{level}_value": losses[level] for level in LEVELS}
        numbers = {"products": own, **_given(recorded | used)}
        laws: dict[str, Any] = (
            {} if decision.method is None else decision.method.arguments(parameters)
        )
        numbers |= (
            laws
            if decision.tolerance is None
            else {"tolerance": decision.tolerance.amount}
        )
        numbers |= {} if opt.max_norm is None else {"longest": opt.max_norm}
        formula: Any = (decision.method and decision.method.rule, decision.normalize)
        if decision.tolerance is not None:
            formula = (decision.tolerance.relative, decision.tolerance.same_batch)
        key = (formula, looks, tuple(numbers))
        if key not in self._kernels:
            self._kernels[key] = _kernel(opt, list(numbers), list(laws), list(used))
        program, names = self._kernels[key]
        report = torch.empty(len(names), dtype=torch.float64, device=self.device)
        skipped = torch.empty((), dtype=torch.bool, device=self.device)
        found = torch.empty(
            (), dtype=torch.float32, device=self.device
        )  # as torch's fused optimizers want it
        memory = (
            opt.memory.on(self.device) if decision.tolerance is not None else report
        )
        placed = [self._on_device(name, value) for name, value in numbers.items()]
        program[(1,)](
            report, skipped, found, memory, *placed, num_warps=1, enable_fp_fusion=False
        )
        if looks:
            opt.guard.bad = found
        fields: dict[str, Any] = dict(zip(names[2:], report.unbind()[2:], strict=True))
        fields = dict.fromkeys((*_LOSSES, *READINGS)) | fields | {"skipped": skipped}
        step = Step(**fields)
        return Made(report[:2], step, None, None, (names, report))

    def _on_device(self, name: str, value: Any) -> Tensor:
        """A number where the kernel finds it; one of the host's is sent there when it changes, without waiting."""
        if isinstance(value, Tensor):
            return (
                value
                if value.device == self.device
                else value.to(self.device, non_blocking=True)
            )
        known = self._numbers.get(name)
        if known is not None and known[0] == value:
            return known[1]
        made = torch.full((), float(value), dtype=torch.float64, device=self.device)
        if not capturing(
            self.device
        ):  # what is made while capturing is there at a replay only
            self._numbers[name] = (float(value), made)
        return made


def _given(losses: dict[str, Any]) -> dict[str, Any]:
    """Each loss that was given, and the factor of its backward pass where that is not 1."""
    found: dict[str, Any] = {}
    for name, loss in losses.items():
        if isinstance(loss, Term):
            found[name] = loss.number
            if not (isinstance(loss.factor, float) and loss.factor == 1):
                found[f"{name}_factor"] = loss.factor
        elif loss is not None:
            found[name] = loss
    return found


def _kernel(
    opt: "DynamicBarrier", numbers: list[str], laws: list[str], needed: list[str]
) -> tuple[Any, list[str]]:
    """The kernel for these numbers, and the names of what it reports."""
    decision = opt.decision
    names: list[str] = []

    def body(writer: Writer) -> dict[str, Any]:
        own = [writer.read(f"products + {i}") for i in range(3)]
        there = {name: writer.read(name) for name in numbers if name != "products"}

        def loss(name: str) -> Traced | None:
            factor = there.get(f"{name}_factor")
            if factor is None:
                return there.get(name)
            return there[name] * writer.select(factor < 0, float("nan"), factor)

        losses = {
            name: loss(name)
            for name in dict.fromkeys(("upper_value", "lower_value", *needed))
        }
        used = {name: losses[name] for name in needed}
        mine, memory = decision, ()  # type: Any, Any
        if decision.tolerance is not None:
            mine = replace(
                decision,
                tolerance=replace(decision.tolerance, amount=there["tolerance"]),  # type: ignore[arg-type]  # traced
            )
            memory = Memory(
                *(writer.read(f"memory + {i}") for i in range(len(Memory._fields)))
            )
        known = {name: there[name] for name in laws if name in Parameters._fields}
        others = {name: there[name] for name in laws if name not in known}
        parameters = Parameters(**{"k": None} | known, others=others)
        choice = outcome(mine, parameters, own, own, used, memory, there.get("longest"))
        weights = (choice.upper_weight, choice.lower_weight)
        fine = (
            finite([*own, *used.values(), *weights])
            if opt.guard.looks
            else writer.true()
        )
        row = dict(zip(PRODUCTS, (choice.multiplier, *own), strict=True))
        if choice.reading is not None:
            row |= {name: getattr(choice.reading, name) for name in READINGS}
        row = {
            name: writer.select(fine, value, float("nan"))
            for name, value in row.items()
        }
        for name, key in zip(_LOSSES, ("upper_value", "lower_value"), strict=True):
            if losses[key] is not None:
                row[name] = losses[key]
        row = {
            "upper_weight": weights[0],
            "lower_weight": weights[1],
            **row,
            "skipped": fine == 0,
        }
        names.extend(row)
        stored = {f"report + {i}": value for i, value in enumerate(row.values())}
        stored |= {"skipped": fine == 0, "found": fine == 0}
        if (
            choice.reading is not None
        ):  # a loss that is not finite must not stay, whatever is done about such steps
            keep = fine * finite(choice.memory) != 0
            for i, (old, new) in enumerate(zip(memory, choice.memory, strict=True)):
                stored[f"memory + {i}"] = writer.select(keep, new, old)
        return stored

    pointers = ["report", "skipped", "found", "memory", *numbers]
    return kernel("decide", pointers, body), names
