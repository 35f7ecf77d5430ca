"""Whether a step is made: numbers that are not finite, a gradient scaler, a step that is being captured.

Where the device alone knows, it does not make the step, and the host reads one step later that it did not.
"""

import math
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.checks import one_of
from tiebreak.torch.context import capturing
from tiebreak.torch.distributed.layout import local
from tiebreak.torch.host_copy import Later
from tiebreak.torch.said import warn

_MANY = 50  # steps in a row that were not made: nothing is being trained


class Guard:
    """Looks at the numbers of a step, and knows who has to know: the host, or the device alone.

    Parameters
    ----------
    policy : {"raise", "skip", "ignore"}
        What to do where a number is not finite. A gradient scaler decides by itself.

    Attributes
    ----------
    scaled : bool or None
        Whether a gradient scaler is at work; None until the first step.
    bad : tensor or None
        Whether the step must not be made, where only the device knows.
    skips : int or None
        How many steps were not made, as the host knows; None once a device decided by itself.
    """

    def __init__(self, policy: str) -> None:
        one_of("nonfinite", policy, ("raise", "skip", "ignore"))
        self.policy = policy
        self.scaled: bool | None = None
        self.bad: Tensor | None = None
        self.found_inf: Tensor | None = None
        self._unscaled: Tensor | None = None
        self.scaler_found = self.looked = False
        self._noted: tuple[Sequence[str], Tensor] | None = None
        self.skips: int | None = 0
        self._in_a_row = 0
        self._await()

    def _await(self) -> None:
        self._unread: list[
            tuple[int, Sequence[str], Later]
        ] = []  # what the device has yet to say of a step
        weakref.finalize(
            self, _last_words, self._unread
        )  # also at the end of the program

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name != "_unread"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._await()

    # --- a gradient scaler ------------------------------------------------------------------------------------------

    def begin(self, optimizer: Any) -> tuple[Tensor | None, Tensor | None]:
        """A step begins: 1/scale of its gradients, and of its losses, as a scaler left it; None without one."""
        scale, self.found_inf = (
            getattr(optimizer, "grad_scale", None),
            getattr(optimizer, "found_inf", None),
        )
        unscaled, self._unscaled = self._unscaled, None
        self.looked = (
            self.found_inf is not None and unscaled is None
        )  # a scaler has just touched .grad to look at it
        if isinstance(
            self.found_inf, (int, float)
        ):  # a scaler that found no gradient at all
            raise RuntimeError(
                "scaler.step(opt, upper=…, lower=…): a scaler looks at .grad before closures run; use blocks"
            )
        if self.found_inf is not None and scale is None and unscaled is None:
            raise RuntimeError(
                "scaler.unscale_(opt) reaches one of the two gradients only: use opt.unscale_(scaler), "
                "or opt.combine(scaler) before"
            )
        self.scaled, self.bad = self.found_inf is not None, None
        inverse = None if scale is None else 1 / scale
        return inverse, inverse if unscaled is None else unscaled

    @property
    def unscaled(self) -> bool:
        """Whether the gradients of this step were unscaled by :meth:`unscale`."""
        return self._unscaled is not None

    def unscale(self, optimizer: Any, scaler: Any) -> None:
        """``scaler.unscale_``, for the gradients of every level."""
        away = optimizer.gradients.put_away()
        scaler.unscale_(optimizer)
        if not scaler.is_enabled():
            return
        self._unscaled = 1 / scaler._get_scale_async()
        for grad in away:
            local(grad).mul_(self._unscaled.to(grad.device))

    # --- numbers that are not finite --------------------------------------------------------------------------------

    @property
    def looks(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self.scaled) or self.policy != "ignore"

    @property
    def must_raise(self) -> bool:
        """Whether the step that was just refused is an error: a scaler lowers its scale for what it found, alone."""
        return self.policy == "raise" and not self.scaler_found

    def wait(self, products: Tensor) -> Tensor:
        """The products where the host can read them: it has to know before anything is changed."""
        self.may_wait(products.device)
        return products.cpu()

    def may_wait(self, device: torch.device) -> None:
        """Say what would wait for the device, before CUDA says that something did."""
        if capturing(device):
            text = f"nonfinite={self.policy!r} waits for the device, which a captured step cannot"
            raise RuntimeError(f"{text}: nonfinite='ignore' never does")

    def refuses(self, *values: Any) -> bool:
        """Whether the host knows that a value is not finite, or that a scaler found one; else the device is to know."""
        if not self.looks:
            return False
        found, self.found_inf = self.found_inf, None
        bad = None if found is None else found.reshape(()) != 0
        self.scaler_found = bad is not None and bad.device.type == "cpu" and bool(bad)
        for value in values:
            if isinstance(value, Tensor) and value.device.type != "cpu":
                mine = ~torch.isfinite(value).all()
                bad = mine if bad is None else bad.to(mine.device) | mine
            elif value is not None and not _finite(value):
                return True
        if bad is None:
            return False
        home = (
            values[0].device if values and isinstance(values[0], Tensor) else bad.device
        )
        if home.type == "cpu":
            self.scaler_found = self.scaler_found or (found is not None and bool(found))
            return bool(bad)
        self.bad = bad if self.bad is None else self.bad | bad.to(self.bad.device)
        return False

    def skip(self) -> None:
        """A step is not made, as the host knows: count it, and say so where it is one of many in a row."""
        self.skips = None if self.skips is None else self.skips + 1
        self._in_a_row += 1
        if self._in_a_row == _MANY:
            text = (
                f"{_MANY} steps in a row were skipped: a gradient, a loss or the multiplier was not finite in each. "
                "Nothing is trained that way. Look at the losses; nonfinite='raise' stops at the first such step"
            )
            warn(text)

    def note(self, names: Sequence[str], numbers: Tensor) -> None:
        """What the device knows of the step that is being made; "skipped" is among the names."""
        self._in_a_row = 0
        if self.bad is not None:
            self.skips = None
        self._noted = None
        if self.policy == "raise" and not self.scaled and self.bad is not None:
            self._noted = (names, numbers)
            self.may_wait(numbers.device)

    def hand_over(self, step: int) -> None:
        """The step is over; where a bad number is an error, the device says later whether there was one."""
        if self._noted is not None:
            names, numbers = self._noted
            self._unread.append((step, names, Later(numbers)))
            self._noted = None

    def settle(self) -> dict[str, float] | None:
        """What the device said of the last step, by name; waits for it, and raises if that step was not finite.

        The device has a whole step to do by then, so that it does not stand still meanwhile.
        """
        if not self._unread:
            return None
        self.may_wait(self._unread[-1][2].device)
        step, names, later = self._unread.pop()
        said = dict(zip(names, later.read(), strict=True))
        if said["skipped"]:
            raise self.error(step, late=True)
        return said

    def error(self, step: int, late: bool = False) -> FloatingPointError:
        """What "raise" raises."""
        begun = (
            "the one after it, which was begun, neither"
            if late
            else "the next one begins anew"
        )
        return FloatingPointError(
            f"step {step} (counted from 0): a gradient, a loss or the multiplier is not finite; the step was not made, "
            f"and {begun} (nonfinite='skip' skips such steps without a word, 'ignore' takes them)"
        )


def _finite(value: Any) -> bool:
    """Of a number or a few on the host: Python looks sooner than torch does."""
    numbers = value.reshape(-1).tolist() if isinstance(value, Tensor) else (value,)
    return all(map(math.isfinite, numbers))


def _last_words(unread: list[tuple[int, Sequence[str], Later]]) -> None:
    """The last step of an optimizer that is gone: nobody asked how it went, and it must not fail in silence."""
    for step, names, later in unread:
        try:
            skipped = dict(zip(names, later.read(), strict=True))["skipped"]
        except Exception:  # at the end of a program the device may be gone
            continue
        if skipped:
            text = f"step {step}, the last one, was not finite and was not made; opt.check() raises where that is so"
            warnings.warn(text, RuntimeWarning, stacklevel=1)
