"""What is called within a step: a closure for each level, or the one of a framework."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tiebreak.torch.distributed.layout import several_ranks
from tiebreak.torch.gradients import LEVELS, NoGradient, Touched
from tiebreak.torch.losses import itself, propagate, returned

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


def call(optimizer: "DynamicBarrier", closure: Any, upper: Any, lower: Any) -> None:
    """Call what a step was given; afterwards the gradients of both levels are there, or an error says what is missing.

    A `closure` is called once, after those of the levels, where the gradients are: Lightning passes one that calls its
    hooks. It may also make both blocks itself; what it returns does not matter then.
    """
    if (upper is None) != (lower is None):
        raise TypeError("step(upper=…, lower=…) needs both closures")
    for name, function in (("closure", closure), ("upper", upper), ("lower", lower)):
        if function is not None and not callable(function):
            what = f"{name}={type(function).__name__}"
            raise TypeError(
                f"step({what}): give a function that returns the loss, {name}=lambda: loss(model, batch)"
            )
    if optimizer._held is not None:
        if upper is not None:
            raise RuntimeError(
                "step(upper=…, lower=…) after opt.combine(): opt.step() goes along what is in .grad"
            )
        if closure is not None:
            closure()
        return
    if upper is not None:
        if getattr(optimizer, "found_inf", None) is not None:
            scaled: Any = optimizer
            del (
                scaled.found_inf,
                scaled.grad_scale,
            )  # a scaler leaves them where a step raises
            raise RuntimeError(
                "scaler.step(opt, lower=…, upper=…): a gradient scaler looks at .grad before closures run: use blocks, "
                "`with opt.lower(g): scaler.scale(g).backward()`, the same for upper, and scaler.step(opt)"
            )
        if closure is not None and several_ranks():
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


def _evaluate(
    optimizer: "DynamicBarrier",
    upper: Callable[[], Tensor],
    lower: Callable[[], Tensor],
) -> None:
    """Gradients and losses from closures; the reference's loss first, on the same batch.

    Forward and backward of one level, then of the other: the only order that DistributedDataParallel averages right.
    """
    copy = optimizer.target.copy
    optimizer.ranks.compare(optimizer)
    begun = copy is not None and copy.begun
    reference = None if copy is None else copy.measure(optimizer, lower)
    losses: dict[str, Tensor] = {}
    try:
        for level, closure in (("lower", lower), ("upper", upper)):
            with torch.enable_grad():
                loss = returned(level, closure())
                compared = reference if level == "lower" else None
                try:
                    with optimizer._level(
                        level, loss, compared, 1.0, factor=1.0
                    ):  # the backward pass is ours
                        propagate(level, loss)
                except Touched:  # by the closure, which is all that ran since
                    raise RuntimeError(f"{itself(level)}.") from None
            losses[level] = loss.detach()
    except BaseException:  # half a step is none: the next one begins anew
        optimizer.forget()
        raise
    if (
        reference is not None and not begun
    ):  # the same point twice: a chance to see that the batch is the same
        _check_repeats(reference, losses["lower"])


def _check_repeats(first: Tensor, again: Tensor) -> None:
    """Raise if the lower closure gave two losses at one point, with the same random numbers: it takes another batch."""
    one, two = float(first), float(again)
    if abs(one - two) > 1e-3 * max(
        abs(one), abs(two)
    ):  # a device may sum in another order; batches differ by more
        raise RuntimeError(
            f"the lower closure gave {one:.6g} and {two:.6g} at the same point; the reference is evaluated on the same "
            "batch, so it must give the same loss again: draw the batch outside the closure, or name its random "
            "generators, generators=[…]"
        )
