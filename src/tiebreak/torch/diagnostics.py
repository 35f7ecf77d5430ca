"""Warnings about a training with a tolerance: each of them is given once.

The checks read what the tolerance rule says at each step, as numbers of the host. They must not change the step.
"""

import math
from typing import Any

from tiebreak.options import allowed
from tiebreak.tolerance import Reading

FIRST_CHECK = 200  # steps of this process before noise and reference are judged
SETTLED = 20  # and before the averages of the rule are those of recent steps
WEIGHT = 0.02  # of the newest step in the averages here
ONE_JUMP = 0.5  # tolerances by which a step may bend the excess before it is compared with those before it
STALLED_EXCESS = 3.0  # tolerances above a number that count as far
STALLED_SHARE = 0.1  # a stalled excess falls by less than this share of itself,
STALLED_STEPS = (500, 0.25)  # in so many steps, and in that share of all steps
HOPELESS_EXCESS = 30.0  # tolerances; no reference is given on purpose that is farther away in either direction
HOPELESS_STEPS = (200, 0.5)
KEPT_EXCESS = (
    1.5  # a model above it is outside: that it swings is not what must be said
)
LEAST_SWING = 0.1
OFTEN = 0.6  # share of the recent steps after which the last iterate may be outside
OFTEN_WEIGHT = 0.005  # of the newest step in that share


class Diagnostics:
    """Collects warnings about one training.

    Parameters
    ----------
    is_number : bool
        Whether the reference is one number for the whole run.
    same_batch : bool
        Whether the reference is measured on the batch of the step.
    """

    def __init__(self, is_number: bool, same_batch: bool) -> None:
        self._same_batch = same_batch
        self._sized = self._judged = False
        self._course = _Course()
        self._swing = _Swing()
        self._stall = _Stall() if is_number else None

    def observe(
        self, step: int, reading: Reading, tolerance: Any, rate: float | None
    ) -> list[str]:
        """Return the warnings that this step gives rise to.

        Parameters
        ----------
        step : int
            Steps made before.
        reading : Reading
        tolerance : float or str
            As the user gave it.
        rate : float or None
            The learning rate, if the user leaves it as it is; None with a scheduler.
        """
        excess = float(reading.excess)
        if not math.isfinite(excess):
            return []
        texts = []
        if step < 2 and not self._sized:
            self._sized = True
            texts.append(_oversized(reading, tolerance))
        self._course.add(excess)
        if not self._judged and self._course.steps > FIRST_CHECK:
            stalled = "" if self._stall is None else self._stall.observe(step, excess)
            text = self._noisy(excess, tolerance) or _far_below(excess) or stalled
            self._judged = bool(text)
            texts.append(text)
        if not self._judged:
            texts.append(self._swing.observe(self._course, rate))
        return [text for text in texts if text]

    def _noisy(self, excess: float, tolerance: Any) -> str:
        noise = self._course.noise
        if not noise > 1 or abs(excess) > 4 * noise:  # far away it does not matter
            return ""
        remedy = "larger batches or a larger tolerance"
        if not self._same_batch:
            remedy = 'larger batches, a larger tolerance, or a reference on the same batch: reference="twin" or "start"'
        return (
            f"the averaged excess is known to {noise:.1f} tolerances only: tolerance={tolerance!r} is below what these "
            f"batches can measure. Use {remedy}."
        )


class _Course:
    """The averaged excess over recent steps: its level, the noise of the batches in it, and the swing of the model."""

    def __init__(self) -> None:
        self.steps = 0
        self.level = 0.0
        self._last = self._before = self._bend = self._spread = 0.0
        self._kept = 0  # steps since the model was far outside

    @property
    def noise(self) -> float:
        """The standard error of the averaged excess.

        Batches are independent and the model moves slowly, so noise is what bends the excess from step to step. If σ is
        that of a batch, an average with weight 0.1 has the error 0.229 σ and second differences of 0.119 σ in the mean.
        """
        return 1.93 * self._bend

    @property
    def swing(self) -> float:
        """The standard deviation of the averaged excess without that noise."""
        deviation, noise = (
            1.25 * self._spread,
            self.noise,
        )  # 1.25 times the mean deviation
        return math.sqrt(max(deviation * deviation - noise * noise, 0.0))

    def add(self, excess: float) -> None:
        self.steps += 1
        bend = abs(excess - 2 * self._last + self._before)
        self._before, self._last = self._last, excess
        if self.steps <= SETTLED:
            return
        # A single jump, such as a return to the twin, is no noise.
        bend = min(bend, max(ONE_JUMP, 10 * self._bend))
        self._bend += max(WEIGHT, 1 / (self.steps - SETTLED)) * (bend - self._bend)
        self._kept = 1 if self.level > STALLED_EXCESS else self._kept + 1
        weight = max(WEIGHT, 1 / self._kept)
        self.level += weight * (excess - self.level)
        self._spread = (
            0.0
            if self._kept == 1
            else self._spread + weight * (abs(excess - self.level) - self._spread)
        )


class _Swing:
    """Whether the last iterate may end outside because the model swings at a learning rate that does not fall."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._share = 0.0  # of the recent steps after which that is so
        self._warned = False

    def observe(self, course: _Course, rate: float | None) -> str:
        if self._warned or rate is None:
            return ""
        if rate != self._rate:
            self._rate, self._share = rate, 0.0
        swing = course.swing
        ends_outside = (
            course.level <= KEPT_EXCESS
            and swing > LEAST_SWING
            and course.level + 2 * swing > 1
        )
        self._share += OFTEN_WEIGHT * (ends_outside - self._share)
        if self._share < OFTEN:
            return ""
        self._warned = True
        return (
            f"the learning rate does not fall, and the model swings by about {swing:.1g} tolerances around an averaged "
            f"excess of {course.level:.2g}: its last iterate may end outside the tolerance. Let the rate fall, or call "
            "opt.finish() after the last step."
        )


class _Stall:
    """Whether a lower loss has come to rest far above a reference that is one number."""

    def __init__(self) -> None:
        self._mark: tuple[int, float] | None = (
            None  # since when the loss is far above, and how far it was then
        )

    def observe(self, step: int, excess: float) -> str:
        if not excess > STALLED_EXCESS:
            self._mark = None
            return ""
        if self._mark is None or excess < (1 - STALLED_SHARE) * self._mark[1]:
            self._mark = (step, excess)
            return ""
        rested = step - self._mark[0]
        steps, share = HOPELESS_STEPS if excess > HOPELESS_EXCESS else STALLED_STEPS
        if rested < max(steps, share * step):
            return ""
        return (
            f"the lower loss has been at rest {excess:.0f} tolerances above its reference for {rested} steps: is the "
            "number out of reach (another loss, data or mode)? Train on the lower loss alone to find it, or take "
            'reference="twin".'
        )


def _oversized(reading: Reading, tolerance: Any) -> str:
    """The warning about a tolerance that is more than the whole loss, at the first step."""
    if isinstance(tolerance, str) and allowed(tolerance)[0] > 1:
        return f'tolerance={tolerance!r} is more than all of the reference: a fiftieth of it is written "2%".'
    size = max(abs(float(reading.loss)), abs(float(reading.reference)))
    if (
        not isinstance(tolerance, str) and tolerance >= 1 and tolerance > size > 0
    ):  # 0.01 of a loss near 0 is sound
        return (
            f"tolerance={tolerance!r} is a number in the unit of the lower loss, and more than all of that loss, "
            f'{size:.3g} at the first step: everything may be given up for the upper loss. A share is written "2%".'
        )
    return ""


def _far_below(excess: float) -> str:
    if excess >= -HOPELESS_EXCESS:
        return ""
    return (
        f"the lower loss lies {-excess:.0f} tolerances below its reference: is that what training on it alone reaches? "
        "Everything down to there may be given up for the upper loss."
    )
