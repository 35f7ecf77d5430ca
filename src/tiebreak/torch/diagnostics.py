"""Warnings about a run. Each warning is given once, at the line of the user that called the optimizer."""

import math
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from tiebreak.options import allowed
from tiebreak.tolerance import DEFAULT, Reading
from tiebreak.torch.devices import capturing

FIRST_CHECK = 200  # steps of a process before noise and reference are checked
SETTLED = 20  # steps until the averages of the tolerance rule forget the first step
WEIGHT = 0.02  # of the newest step in the averages of `_Excess`
ONE_JUMP = 0.5  # tolerances; a smaller second difference is always accepted
STALLED_EXCESS = 3.0  # tolerances above the reference
STALLED_SHARE = 0.1  # a stalled excess falls by a smaller share ...
STALLED_STEPS = (
    500,
    0.25,
)  # ... in so many steps, and in so large a share of all steps
HOPELESS_EXCESS = 30.0  # tolerances; an intended reference is never farther away
HOPELESS_STEPS = (200, 0.5)
OUTSIDE_EXCESS = 1.5  # above, a model is outside even without a swing
LEAST_SWING = 0.1
OFTEN = 0.6  # share of the recent steps after which the last iterate may be outside
OFTEN_WEIGHT = 0.005  # of the newest step in the share of `OFTEN`
NOISE_INTERVAL = 50  # steps; a check takes a pass over ∇g and synchronises the device
HIGH_NOISE = 0.5  # share of ‖∇g‖²

LIBRARIES = ("tiebreak.", "torch.", "contextlib")  # modules without lines of the user


def warn_at_caller(text: str) -> None:
    """Warn at the innermost line outside tiebreak, torch and contextlib.

    Schedulers and profilers of torch wrap the step, so the number of frames in between varies.
    """
    frame = sys._getframe()
    level = 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(LIBRARIES):
        frame = frame.f_back
        level += 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class Diagnostics:
    """Finds the warnings about a training with a tolerance, from the readings of the tolerance rule.

    Parameters
    ----------
    is_number : bool
        Whether the reference is one number for the whole run.
    same_batch : bool
        Whether the reference is measured on the batch of the step.
    """

    def __init__(self, is_number: bool, same_batch: bool) -> None:
        self._is_number = is_number
        self._same_batch = same_batch
        self._excess = _Excess()
        self._warned = False  # of noise or of the reference
        self._rate: float | None = None
        self._swing_share = 0.0  # of recent steps; fixed after the warning
        self._limit_share = 0.0  # of recent steps with the multiplier at its limit
        self._rest_step = 0  # the step since when the loss has been at rest ...
        self._rest_excess = math.inf  # ... and the excess there

    def observe(
        self, step: int, reading: Reading, tolerance: float | str, rate: float | None
    ) -> str:
        """Return the warning that a step causes, or an empty string.

        Parameters
        ----------
        step : int
            The number of steps before.
        reading : Reading
            The numbers of the step on the host.
        tolerance : float or str
            As the user gave it.
        rate : float or None
            The learning rate; None with a scheduler.
        """
        excess = float(reading.excess)
        if not math.isfinite(excess):
            return ""
        self._excess.add(excess)
        if step < 2 and self._excess.steps == 1:
            return _oversized(reading, tolerance)
        if self._warned:
            return ""
        text = self._unsound(step, excess, tolerance)
        # A number far out of reach has a warning of its own.
        if not text and (not self._is_number or excess <= STALLED_EXCESS):
            text = self._limited(reading.ratio)
        self._warned = bool(text)
        return text or self._swinging(rate)

    def _unsound(self, step: int, excess: float, tolerance: float | str) -> str:
        """Whether noise exceeds the tolerance, or the reference is far away from the loss."""
        if self._excess.steps <= FIRST_CHECK:
            return ""
        noise = self._excess.noise
        if noise > 1 and abs(excess) <= 4 * noise:  # noise does not matter far away
            remedy = "larger batches or a larger tolerance"
            if not self._same_batch:
                remedy = (
                    "larger batches, a larger tolerance, or a reference on the same batch: "
                    'reference="twin" or "start"'
                )
            return (
                f"the averaged excess is known to {noise:.1f} tolerances only: tolerance={tolerance!r} is below what "
                f"these batches can measure. Use {remedy}."
            )
        if excess < -HOPELESS_EXCESS:
            return (
                f"the lower loss lies {-excess:.0f} tolerances below its reference: is that what training on it alone "
                "reaches? Everything down to there may be given up for the upper loss. A model that is trained from scratch "
                'needs reference="twin", or the number that lower-only training reaches.'
            )
        if not self._is_number or excess <= STALLED_EXCESS:
            self._rest_excess = math.inf
            return ""
        if excess < (1 - STALLED_SHARE) * self._rest_excess:
            self._rest_step = step
            self._rest_excess = excess
        rested = step - self._rest_step
        steps, share = HOPELESS_STEPS if excess > HOPELESS_EXCESS else STALLED_STEPS
        if rested < max(steps, share * step):
            return ""
        return (
            f"the lower loss has been at rest {excess:.0f} tolerances above its reference for {rested} steps: is the "
            "number out of reach (another loss, data or mode)? Train on the lower loss alone to find it, or take "
            'reference="twin".'
        )

    def _limited(self, ratio: float) -> str:
        """Whether the multiplier has been at its limit in most recent steps."""
        is_at_limit = float(ratio) >= DEFAULT.max_ratio
        self._limit_share += OFTEN_WEIGHT * (is_at_limit - self._limit_share)
        if self._excess.steps <= FIRST_CHECK or self._limit_share < OFTEN:
            return ""
        return (
            f"the multiplier has been at its limit, {DEFAULT.max_ratio:g} times ‖∇f‖/‖∇g‖, in most recent steps: they went "
            "along the lower loss alone, and the upper loss waits. Is the tolerance too small, or the reference too low?"
        )

    def _swinging(self, rate: float | None) -> str:
        """Whether the last iterate may end outside, as the model swings at a constant learning rate."""
        if rate is None or self._swing_share >= OFTEN:
            return ""
        if rate != self._rate:
            self._rate = rate
            self._swing_share = 0.0
        level = self._excess.level
        swing = self._excess.swing
        ends_outside = (
            level <= OUTSIDE_EXCESS and swing > LEAST_SWING and level + 2 * swing > 1
        )
        self._swing_share += OFTEN_WEIGHT * (ends_outside - self._swing_share)
        if self._swing_share < OFTEN:
            return ""
        return (
            f"the learning rate does not fall, and the model swings by about {swing:.1g} tolerances around an averaged "
            f"excess of {level:.2g}: its last iterate may end outside the tolerance. Let the rate fall, or call "
            "opt.finish() after the last step."
        )


class _Excess:
    """The averaged excess over recent steps: its level, the noise of the batches, and the swing of the model."""

    def __init__(self) -> None:
        self.steps = 0
        self.level = 0.0
        self._last = 0.0
        self._before_last = 0.0
        self._bend = 0.0  # mean absolute second difference
        self._spread = 0.0  # mean absolute deviation from the level
        self._near_steps = 0  # since the model was far outside

    @property
    def noise(self) -> float:
        """The standard error of the averaged excess.

        Batches are independent and the model moves slowly, so second differences of the excess measure the noise. If σ
        is the deviation of a batch, an average with weight 0.1 has the error 0.229 σ and mean second differences of
        0.119 σ.
        """
        return 1.93 * self._bend

    @property
    def swing(self) -> float:
        """The standard deviation of the averaged excess without the noise."""
        deviation = 1.25 * self._spread
        noise = self.noise
        return math.sqrt(max(deviation * deviation - noise * noise, 0.0))

    def add(self, excess: float) -> None:
        self.steps += 1
        bend = abs(excess - 2 * self._last + self._before_last)
        self._before_last = self._last
        self._last = excess
        if self.steps <= SETTLED:
            return
        # A single jump is not noise: the model may return to the twin.
        bend = min(bend, max(ONE_JUMP, 10 * self._bend))
        self._bend += max(WEIGHT, 1 / (self.steps - SETTLED)) * (bend - self._bend)
        if self.level > STALLED_EXCESS:
            self._near_steps = 0
            self._spread = 0.0
        self._near_steps += 1
        weight = max(WEIGHT, 1 / self._near_steps)
        self.level += weight * (excess - self.level)
        if self._near_steps > 1:
            self._spread += weight * (abs(excess - self.level) - self._spread)


def _oversized(reading: Reading, tolerance: float | str) -> str:
    """Whether the tolerance is larger than the loss at the first step."""
    if isinstance(tolerance, str):
        if allowed(tolerance)[0] <= 1:
            return ""
        return f'tolerance={tolerance!r} is more than all of the reference: a fiftieth of it is written "2%".'
    size = max(abs(float(reading.loss)), abs(float(reading.reference)))
    if not 1 <= tolerance > size / 2 > 0:  # 0.01 is legitimate for a loss near 0
        return ""
    return (
        f"tolerance={tolerance!r} is a number in the unit of the lower loss, and {tolerance / size:.0%} of that loss, which "
        f"is {size:.3g} at the first step: as much may be given up for the upper loss. If a share was meant, write "
        f'tolerance="{tolerance:g}%".'
    )


class GradientNoise:
    """The share of noise in ‖∇g‖², averaged over the checked steps.

    The sum S of micro-batch gradients of total weight W has E‖S‖² = W²‖μ‖² + Wν². The squared norms of the growing sum,
    one after each micro-batch, separate the signal μ from the noise ν² without storing a micro-batch: y = ‖S‖²/W is a
    line in W, and the slope of the line is the signal.

    Attributes
    ----------
    noise, total : float
        The averages of the noise Wν² and of ‖S‖²; 0 before the first check.
    warned : bool
        Whether the share was large at an earlier check.
    """

    def __init__(self) -> None:
        self.warned = False
        self.noise = 0.0
        self.total = 0.0
        self.start_step()

    def start_step(self) -> None:
        """Discard the micro-batches of the step before."""
        # Σ 1, ΣW, ΣW² and the last W are numbers; Σy, ΣWy and the last ‖S‖² are tensors.
        self._weights = [0.0] * 4
        self._squares: list[Any] = [0.0] * 3

    def is_due(self, count: int) -> bool:
        """Whether to check this step."""
        return not self.warned and count % NOISE_INTERVAL == 0

    def add(self, square: Tensor, weight: float) -> None:
        """Add the squared norm of the accumulated lower gradient after a micro-batch of this weight."""
        n, sum_w, sum_ww, total = self._weights
        sum_y, sum_wy, _ = self._squares
        total += weight
        self._weights = [n + 1, sum_w + total, sum_ww + total * total, total]
        self._squares = [sum_y + square / total, sum_wy + square, square]

    def partial_sums(self, kinds: int, like: Tensor) -> Tensor:
        """Return the sums of this rank by kind of parameters, of shape (kinds, 3)."""
        if not self._weights[0]:
            return like.new_zeros(kinds, 3)
        return torch.stack(self._squares, -1).to(like)

    def set_sums(self, total: Tensor) -> None:
        """Replace the sums of this rank by those over all ranks."""
        if self._weights[0]:
            self._squares = list(total)

    def share(self, scale: float = 1.0) -> float | None:
        """Return ν²W/‖S‖² with this step; None until a step has two micro-batches or more. Waits for the device.

        The averages do not contain the `scale` of a gradient scaler, which changes from step to step.
        """
        n, sum_w, sum_ww, weight = self._weights
        spread = n * sum_ww - sum_w * sum_w
        if n >= 2 and spread > 0:
            sum_y, sum_wy, square = (float(s) / scale**2 for s in self._squares)
            slope = (n * sum_wy - sum_w * sum_y) / spread
            noise = weight * (sum_y - slope * sum_w) / n
            if math.isfinite(noise) and math.isfinite(square):
                new = 0.1 if self.total else 1.0  # weight of the newest step
                self.noise += new * (noise - self.noise)
                self.total += new * (square - self.total)
        self.start_step()
        if not self.total:
            return None
        return min(max(self.noise / self.total, 0.0), 1.0)

    def check(
        self, count: int, batch_alone: bool, inverse_scale: Tensor | None
    ) -> None:
        """Update the share in a step that is due, and warn if it is large and the rule uses the batch alone."""
        if not self.is_due(count) or not self._weights[0]:
            return
        square = self._squares[-1]
        if capturing(square.device):
            return
        scale = 1.0 if inverse_scale is None else 1 / float(inverse_scale)
        share = self.share(scale)
        if share is None or not batch_alone or share <= HIGH_NOISE:
            return
        self.warned = True
        warn_at_caller(
            f"noise makes up {share:.0%} of the lower gradient's squared norm: the multiplier falls towards the "
            "fixed weight `barrier`. Use tolerance=…, larger batches, or an average of the gradients: "
            "method.replace(estimator='average', momentum=0.1)"
        )
