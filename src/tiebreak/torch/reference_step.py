"""One step of :class:`~tiebreak.torch.DynamicBarrier` on plain tensors. Read this first, then optimizer.py.

With the upper loss f and the lower loss g at the parameters x, a step computes::

    ∇f, ∇g                                   by autograd
    fg = ⟨∇f, ∇g⟩,  gg = ‖∇g‖²,  ff = ‖∇f‖²  in float64, over all parameters
    a, b                                     by tiebreak.decision, from these numbers
    d = a ∇f + b ∇g                          written to .grad; the base optimizer steps along d

A rule decides by fg and gg (:mod:`tiebreak.rules`). A tolerance decides by g and its reference r
(:mod:`tiebreak.tolerance`). The reference is a function of the step, or the lower loss at other parameters y. These are
a frozen copy of the starting model, or a twin, which an optimizer of its own trains on g alone.

This module is short and slow. The optimizer makes the same step fast, on any device and on several ranks, from blocks
or closures, with gradient scalers and estimators, and it checks its arguments. Tests compare the two; they share only
the decision.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak.decision import Decision, Measurement, WeightChoice
from tiebreak.tolerance import after_return, needs_return

#: A loss of the current batch as a function of the parameters.
Loss: TypeAlias = Callable[[Sequence[Tensor]], Tensor]
#: The gradient by parameter; None for a parameter that the loss does not reach.
Gradient: TypeAlias = Sequence[Tensor | None]


class Reference(NamedTuple):
    """What the lower loss is compared with: `loss`, or the lower loss at `parameters`.

    Attributes
    ----------
    loss : callable, optional
        r as a function of the step: a number, a recorded curve, or losses that the user gives.
    parameters : sequence of tensors
        y, copied from the model before the first step.
    base : Optimizer, optional
        Trains y, the twin, in the same way as the base optimizer trains the model. A frozen copy has none.
    """

    loss: Callable[[int], float] | None = None
    parameters: Sequence[Tensor] = ()
    base: Optimizer | None = None


class StepResult(NamedTuple):
    """The memory after a step, and the numbers of the step. A skipped step has no choice."""

    memory: Any
    upper_loss: float
    measurement: Measurement
    choice: WeightChoice | None
    rescued: bool = False


def reference_step(
    parameters: Sequence[Tensor],
    upper: Loss,
    lower: Loss,
    base: Optimizer,
    decision: Decision,
    memory: Any,
    step: int = 0,
    reference: Reference | None = None,
    max_norm: float | None = None,
) -> StepResult:
    """Make step number `step`. The memory is ``decision.begin()`` at first, then that of the last result."""
    reference = reference or Reference()

    # measure
    upper_loss, upper_gradient = loss_and_gradient(upper, parameters)
    lower_loss, lower_gradient = loss_and_gradient(lower, parameters)
    reference_loss, twin_gradient = measure_reference(reference, lower, step)
    fg = inner_product(upper_gradient, lower_gradient)
    gg = inner_product(lower_gradient, lower_gradient)
    ff = inner_product(upper_gradient, upper_gradient)
    twin_gg = inner_product(twin_gradient, twin_gradient)
    measurement = Measurement(fg, gg, ff, ff**0.5, gg**0.5, lower_loss, reference_loss)
    if not all(map(math.isfinite, (fg, gg, ff, twin_gg, lower_loss, reference_loss))):
        return StepResult(memory, upper_loss, measurement, None)

    # decide:  λ = rule(fg, gg, β, ρ, …), or the tolerance rule's λ; from it a and b
    if decision.method is None:
        laws = None
    else:
        laws = decision.method.schedule.at(step)
    choice = decision(laws, measurement, memory)
    a = choice.upper_weight
    b = choice.lower_weight
    if not (math.isfinite(a) and math.isfinite(b)):
        return StepResult(memory, upper_loss, measurement, None)

    # move the model:  d = a ∇f + b ∇g, then d ← d min(1, max_norm/‖d‖)
    pairs = zip(upper_gradient, lower_gradient, strict=True)
    direction = [weighted_sum(a, u, b, v) for u, v in pairs]
    length = inner_product(direction, direction) ** 0.5
    if max_norm is None or length <= max_norm:
        factor = 1.0
    else:
        factor = max_norm / length
    for x, d in zip(parameters, direction, strict=True):
        if d is None:
            x.grad = None
        else:
            x.grad = factor * d
    base.step()

    # move the twin; set the model to the twin if many steps on g alone did not bring the model back
    new_memory = choice.memory
    rescued = False
    if reference.base is not None:
        move_twin(reference, base, twin_gradient, max_norm)
        rescued = bool(needs_return(new_memory))
        if rescued:
            set_to_twin(parameters, base, reference, twin_gradient)
            new_memory = after_return(new_memory)
    return StepResult(new_memory, upper_loss, measurement, choice, rescued)


def loss_and_gradient(
    loss: Loss, parameters: Sequence[Tensor]
) -> tuple[float, Gradient]:
    """Return a loss and its gradient."""
    value = loss(parameters)
    gradient = torch.autograd.grad(value, list(parameters), allow_unused=True)
    return value.item(), gradient


def measure_reference(
    reference: Reference, lower: Loss, step: int
) -> tuple[float, Gradient]:
    """Return r and the gradient ∇g(y) of a twin. A rule compares with nothing, so that its r of 0 has no effect."""
    if reference.loss is not None:
        return float(reference.loss(step)), ()
    if reference.base is not None:
        return loss_and_gradient(lower, reference.parameters)
    if reference.parameters:
        return lower(reference.parameters).item(), ()
    return 0.0, ()


def inner_product(left: Gradient, right: Gradient) -> float:
    """Return Σ⟨u, v⟩ over all parameters, summed in float64; a gradient that is None counts as 0."""
    total = 0.0
    for u, v in zip(left, right, strict=True):
        if u is not None and v is not None:
            total += float((u.conj() * v).real.double().sum())
    return total


def weighted_sum(
    a: float, u: Tensor | None, b: float, v: Tensor | None
) -> Tensor | None:
    """Return a u + b v for one parameter; None, if no loss reaches it, makes the base optimizer leave it alone."""
    weighted = ((a, u), (b, v))
    terms = [weight * gradient for weight, gradient in weighted if gradient is not None]
    if terms:
        return torch.stack(terms).sum(dim=0)
    return None


def move_twin(
    reference: Reference, base: Optimizer, gradient: Gradient, max_norm: float | None
) -> None:
    """Let the twin's optimizer step along ∇g(y), with the learning rates and the `max_norm` of the model."""
    assert reference.base is not None
    groups = zip(reference.base.param_groups, base.param_groups, strict=True)
    for twin_group, group in groups:
        twin_group["lr"] = group["lr"]
    for y, g in zip(reference.parameters, gradient, strict=True):
        y.grad = g
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(reference.parameters, max_norm)
    reference.base.step()


@torch.no_grad()
def set_to_twin(
    parameters: Sequence[Tensor],
    base: Optimizer,
    reference: Reference,
    gradient: Gradient,
) -> None:
    """Rescue the model: x ← y, with the optimizer's state, for the parameters that the lower loss reaches."""
    assert reference.base is not None
    for x, y, g in zip(parameters, reference.parameters, gradient, strict=True):
        if g is not None:
            x.copy_(y)
            base.state[x] = copy.deepcopy(reference.base.state[y])
