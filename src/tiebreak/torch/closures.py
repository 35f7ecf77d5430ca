"""What is called within a step: a closure for each level, or the one of a framework."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.torch.context import RandomState
from tiebreak.torch.estimates import backward, check_repeats
from tiebreak.torch.gradients import LEVELS, NoGradient

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["call"]


def call(optimizer: "DynamicBarrier", closure: Any, upper: Any, lower: Any) -> None:
    """Call what a step was given; afterwards the gradients of both levels are there, or an error says what is missing.

    A `closure` is called once, after those of the levels, where the gradients are: Lightning passes one that calls its
    hooks. It may also make both blocks itself; what it returns does not matter then.
    """
    given: tuple[tuple[str, Any], ...] = (("upper", upper), ("lower", lower))
    if (upper is None) != (lower is None):
        raise TypeError("step(upper=…, lower=…) needs both closures")
    for name, function in (("closure", closure), *given):
        if function is not None and not callable(function):
            what = f"{name}={type(function).__name__}"
            raise TypeError(f"step({what}): give a function that returns the loss, {name}=lambda: loss(model, batch)")
    if optimizer._held is not None:
        if upper is not None:
            raise RuntimeError("step(upper=…, lower=…) after opt.combine(): opt.step() goes along what is in .grad")
        if closure is not None:
            closure()
        return
    if upper is not None:
        if getattr(optimizer, "found_inf", None) is not None:
            scaled: Any = optimizer
            del scaled.found_inf, scaled.grad_scale  # a scaler leaves them where a step raises
            raise RuntimeError(
                "scaler.step(opt, lower=…, upper=…): a gradient scaler looks at .grad before closures run: use blocks, "
                "`with opt.lower(g): scaler.scale(g).backward()`, the same for upper, and scaler.step(opt)"
            )
        if closure is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError(
                "step(upper=…, lower=…) calls backward past the framework, which then sums no gradients over its "
                "processes: call it yourself, `with opt.lower(loss): self.manual_backward(loss)`, and so above"
            )
        try:
            _evaluate(optimizer, upper, lower)
        except NoGradient as error:
            level = "upper" if "opt.upper" in str(error) else "lower"
            raise RuntimeError(
                f"the {level} closure's loss does not depend on the parameters of this optimizer: was the model copied "
                "or re-created after the optimizer was made? are its parameters frozen (requires_grad=False)?"
            ) from None
    elif optimizer.estimates.twice:
        kind = type(optimizer.estimates.estimator).__name__
        raise RuntimeError(f"{kind} evaluates a batch twice: use closures, step(upper=…, lower=…)")
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
        if loss is not None and not set(LEVELS) <= optimizer.gradients.seen:
            raise TypeError(
                "step(closure) knows one loss: give two, step(upper=…, lower=…), or make the two backward passes in "
                "`with opt.lower(loss):` and `with opt.upper(loss):`. A trainer that makes them by itself must not: in "
                "Lightning set self.automatic_optimization = False"
            )
    optimizer.gradients.complete()


def _evaluate(optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor]) -> None:
    """Gradients and losses from closures, with the same random numbers wherever one is called again."""
    copy, estimates = optimizer.target.copy, optimizer.estimates
    optimizer.ranks.compare(optimizer)
    first: dict[str, tuple[Tensor, str]] = {}
    state = RandomState(optimizer.generators) if estimates.twice or copy is not None else None
    if estimates.twice:
        begun = bool(estimates.points)
        past = estimates.look_back(optimizer, upper, lower)
        first |= {} if begun else {level: (past[level], "STORM evaluates a batch twice") for level in LEVELS}
    if state is not None:
        state.restore()
    reference = None
    if copy is not None:
        begun = copy.begun
        reference = copy.measure(optimizer, lower)
        first |= {} if begun else {"lower": (reference, "the reference is evaluated on the same batch")}
    losses = backward(optimizer, upper, lower, reference)
    for level, (loss, why) in first.items():  # the same point twice: a chance to see that the batch is the same
        check_repeats(level, loss, losses[level], why)
