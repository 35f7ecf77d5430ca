"""Numbers that are not finite: whether a step is made, and when the host learns that it was not.

If only the device knows, it does not make the step, and the host reads one step later that it did not. This module also
tells base optimizers on the device not to step.
"""

import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer

import torch
from tiebreak.checks import one_of
from tiebreak.torch.devices import HostCopy, capturing
from tiebreak.torch.diagnostics import warn_at_caller
from torch import Tensor

_MANY_SKIPS = 50  # steps in a row that were not made: nothing is being trained
# torch has each of these in one kernel that takes a flag to skip the step.
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_FUSED_DEVICES = ("cuda",)


class _Report(NamedTuple):
    """The numbers of a step on their way to the host; "skipped" is among the names."""

    step: int
    names: Sequence[str]
    numbers: HostCopy

    def read(self) -> dict[str, float]:
        return dict(zip(self.names, self.numbers.read(), strict=True))


class NonfiniteGuard:
    """Counts the steps that were not made, and raises if such a step is an error.

    Parameters
    ----------
    policy : {"raise", "skip", "ignore"}
        What to do if a number is not finite. A gradient scaler decides by itself.

    Attributes
    ----------
    skipped_steps : int or None
        How many steps were not made; None once a device decided by itself.
    pending : list
        The report of the last step, if its numbers are on their way to the host.
    """

    def __init__(self, policy: str) -> None:
        one_of("nonfinite", policy, ("raise", "skip", "ignore"))
        self.policy = policy
        self.skipped_steps: int | None = 0
        self._skips_in_a_row = 0
        self._clear_pending()

    def _clear_pending(self) -> None:
        self.pending: list[_Report] = []
        # An optimizer may be deleted, and a program may end, before anybody reads the last report.
        weakref.finalize(self, _warn_of_last_step, self.pending)

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name != "pending"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear_pending()

    def check_may_wait(self, device: torch.device) -> None:
        """Raise if the host must wait for a device whose work is being captured."""
        if capturing(device):
            raise RuntimeError(
                f"nonfinite={self.policy!r} waits for the device, which a captured step cannot: nonfinite='ignore' "
                "never does"
            )

    def to_host(self, products: Tensor) -> Tensor:
        """Return the products on the host, which must know them before anything changes."""
        self.check_may_wait(products.device)
        return products.cpu()

    def count_skip(self) -> None:
        """Count a step that is not made, as the host knows; warn if it is one of many in a row."""
        if self.skipped_steps is not None:
            self.skipped_steps += 1
        self._skips_in_a_row += 1
        if self._skips_in_a_row == _MANY_SKIPS:
            warn_at_caller(
                f"{_MANY_SKIPS} steps in a row were skipped: a gradient, a loss or the multiplier was not finite in each. "
                "Nothing is trained that way. Look at the losses; nonfinite='raise' stops at the first such step"
            )

    def count_step(self, skip: Tensor | None, has_scaler: bool) -> bool:
        """Count a step that is made unless `skip` is true; return whether its report must be queued."""
        self._skips_in_a_row = 0
        if skip is None:
            return False
        self.skipped_steps = None
        if self.policy != "raise" or has_scaler:
            return False
        self.check_may_wait(skip.device)
        return True

    def queue_report(self, step: int, names: Sequence[str], numbers: Tensor) -> None:
        """Keep the numbers of a step for :meth:`raise_pending`."""
        self.pending.append(_Report(step, names, HostCopy(numbers)))

    def raise_pending(self) -> dict[str, float]:
        """Return the numbers of the last step by name, which are :attr:`pending`; raise if that step was not finite.

        The device has had a whole step of work since then, so it does not idle while the host waits.
        """
        self.check_may_wait(self.pending[-1].numbers.device)
        report = self.pending.pop()
        numbers = report.read()
        if numbers["skipped"]:
            raise self.error(report.step, late=True)
        return numbers

    def error(self, step: int, late: bool = False) -> FloatingPointError:
        """Return the exception of the policy "raise"."""
        following = "the next one begins anew"
        if late:
            following = "the one after it, which was begun, neither"
        return FloatingPointError(
            f"step {step} (counted from 0): a gradient, a loss or the multiplier is not finite; the step was not made, "
            f"and {following} (nonfinite='skip' skips such steps without a word, 'ignore' takes them)"
        )


def _warn_of_last_step(pending: list[_Report]) -> None:
    """Warn if the last step of a deleted optimizer was not finite: nobody can ask any more."""
    for report in pending:
        try:
            skipped = report.read()["skipped"]
        except Exception:  # the device may be gone at the end of a program
            continue
        if skipped:
            text = f"step {report.step}, the last one, was not finite and was not made; opt.check() raises where that is so"
            warnings.warn(text, RuntimeWarning, stacklevel=1)


# --- steps that the device can skip ------------------------------------------


def is_plain_sgd(base: Optimizer) -> bool:
    """Whether a step is x − η d and nothing else, so that a zero gradient means no step."""
    extras = ("momentum", "weight_decay", "maximize")
    return type(base) is torch.optim.SGD and not any(
        group[name] for group in base.param_groups for name in extras
    )


def can_skip_on_device(base: Optimizer) -> bool:
    """Whether the device can skip a step of the base without the host knowing."""
    return is_plain_sgd(base) or (_takes_found_inf(base) and _has_momentum(base))


def step_unless(base: Optimizer, skip: Tensor | None) -> None:
    """Let the base step; where `skip` is true it does not, if it takes such a flag (plain SGD has a zero gradient)."""
    if skip is None or not _takes_found_inf(base):
        base.step()
        return
    # These are the attributes that a gradient scaler sets.
    flags: Any = base
    flags.grad_scale = None
    flags.found_inf = skip.float()
    try:
        base.step()
    finally:
        del flags.grad_scale, flags.found_inf


def choose_fused(base: Optimizer) -> None:
    """Select torch's fused kernels if torch may choose, because these can skip a step on the device.

    Only for SGD, Adam and AdamW made with neither ``foreach=`` nor ``fused=``, on ordinary parameters on a GPU.
    """
    if type(base) not in _FUSED or is_plain_sgd(base):
        return
    groups = base.param_groups
    is_fused = _takes_found_inf(base)
    uses_momentum = any(group.get("momentum") for group in groups)
    if is_fused and not uses_momentum:
        return
    for group in groups:
        if group["fused"] is False or group["foreach"] is not None:
            return
        if group["differentiable"]:
            return
    parameters = [p for group in groups for p in group["params"]]
    if not is_fused and not all(map(_is_ordinary, parameters)):
        return
    # torch's fused SGD needs the momentum of all parameters or of none.
    states: Any = base.state
    trained = (p for p in parameters if p.requires_grad)
    ready = not uses_momentum or all(
        "momentum_buffer" in states.get(p, ()) for p in trained
    )
    if ready == is_fused:
        return
    for group in groups:
        group["fused"] = True if ready else None
    # torch's own constructor sets this attribute.
    base._step_supports_amp_scaling = ready  # type: ignore[attr-defined]  # torch does not declare it
    for p in parameters:
        if "step" in states.get(p, ()):
            count = states[p]["step"]
            states[p]["step"] = count.to(p.device, torch.float32, non_blocking=True)


def _is_ordinary(p: Tensor) -> bool:
    return (
        type(p) in (Tensor, torch.nn.Parameter)
        and p.device.type in _FUSED_DEVICES
        and p.is_floating_point()
    )


def _takes_found_inf(base: Optimizer) -> bool:
    # A loaded state may bring groups with another way of stepping.
    supports = bool(getattr(base, "_step_supports_amp_scaling", False))
    return supports and all(group.get("fused", True) for group in base.param_groups)


def _has_momentum(base: Optimizer) -> bool:
    # torch's fused SGD leaves its momentum uninitialised if its first step is skipped.
    states = base.state.values()
    begun = any(state.get("momentum_buffer") is not None for state in states)
    return begun or not any(group.get("momentum") for group in base.param_groups)
