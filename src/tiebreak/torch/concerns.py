"""What a user must be told while a training with a tolerance goes on: each thing once."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tiebreak.options import allowed
from tiebreak.tolerance import ALONE, MOVING, Reading
from tiebreak.torch.room import Room, rate, shown
from tiebreak.torch.said import warn

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


_LOOK = 200  # steps before noise, reference and swing are judged
_FAR, _FALL = 3.0, 0.1  # at rest: so many tolerances above, without falling by that share of itself
_PATIENCE, _PART = 500, 0.25  # in so many steps, and in that part of all steps so far: long trainings fall slowly
_SOONER, _HALF = 200, 0.5  # the same where it is as far above as nobody means it: short trainings end before
_ODD = 30.0  # tolerances below its reference: nobody gives such a one on purpose
_OFTEN, _RECENT = 0.7, 0.02  # the share of recent steps that may end outside; the weight of the newest
_SOON, _WAITED = 100, 0.5  # steps before f is looked at; the share of them that it may wait
_SHORT, _FALLEN = 20, 0.8  # or so many, where the rate is below that share of its highest: a short training
_ROOMY = 1.5  # tolerances: so much is left to a rate that ends at a fifth of its height


class Concerns:
    """Looks at what each step reads, and warns."""

    def __init__(self) -> None:
        self._sized = self._warned = False
        self._stall, self._sway, self._waiting, self._lasting = _Stall(), _Sway(), _Waiting(), _Lasting()
        self._room = Room()

    def heard(self, optimizer: "DynamicBarrier", reading: Reading) -> None:
        """What the rule read in a step that the host knows of."""
        count, tolerance = optimizer.count, optimizer.decision.tolerance
        if count < 2 and not self._sized:
            self._sized = True
            if text := _oversized(reading, optimizer.tolerance):
                warn(text)
        if tolerance is None:
            return
        room = self._room.now(optimizer)
        for text in (self._waiting.seen(optimizer, reading), self._lasting.seen(optimizer, room)):
            if text:
                warn(text)
        # From here on in what is allowed now: with headroom a shorter average is exact enough, and more is no worry.
        if room > 1:
            values = {name: getattr(reading, name) / room for name in ("excess", "noise", "swing")}
            reading = reading._replace(**values)
        swings = tolerance.moving and (tolerance.constants or MOVING).sway > 0  # a fall below the start is no swing
        if text := self._sway.seen(optimizer, reading) if swings else "":
            warn(text)
        if self._warned or count < _LOOK:
            return
        same_batch = optimizer.target.at is None  # a copy, or given by the user with each loss
        stalled = "" if tolerance.moving else self._stall.seen(count, reading)
        if text := _worry(reading, optimizer.tolerance, same_batch) or stalled:
            self._warned = True
            warn(text)


class _Sway:
    """Whether the model swings so far, at a learning rate that does not fall, that its last iterate may be outside."""

    def __init__(self) -> None:
        self._rate: Any = None
        self._share, self._said = 0.0, False  # of recent steps after which that was so

    def seen(self, optimizer: "DynamicBarrier", reading: Reading) -> str:
        """What a user must be told after this step, or nothing."""
        group = optimizer.param_groups[0]
        rate, swing = group.get("lr"), float(reading.swing)
        if self._said or "initial_lr" in group or not isinstance(rate, float):  # a scheduler lets it fall, later on
            return ""
        if rate != self._rate:
            self._rate, self._share = rate, 0.0
        excess = float(reading.excess)
        self._share += _RECENT * ((swing > 0 and excess + 2 * swing > 1) - self._share)
        if optimizer.count < _LOOK or self._share < _OFTEN:
            return ""
        self._said = True
        return (
            f"the learning rate does not fall, and the model swings by about {swing:.1g} tolerances around an averaged "
            f"excess of {excess:.2g}: its last iterate may end outside the tolerance. Let the rate fall, or call "
            "opt.finish() after the last step."
        )


class _Waiting:
    """Whether f waits where a trained model is changed, and headroom might help."""

    def __init__(self) -> None:
        self._steps, self._waited, self._said = 0, 0, False  # steps that were heard of, and those on g alone
        self._highest = 0.0  # rate

    def seen(self, optimizer: "DynamicBarrier", reading: Reading) -> str:
        """What a user must be told after this step, or nothing."""
        copy = optimizer.target.copy
        if self._said or optimizer.headroom or copy is None or copy.twin:
            return ""
        self._steps, self._waited = self._steps + 1, self._waited + int(reading.ratio >= ALONE)
        now = rate(optimizer)
        if isinstance(now, Tensor):  # a device is not waited for: no rate is known, and none has fallen
            now = self._highest
        self._highest = max(self._highest, now)
        if (
            self._steps < (_SHORT if now < _FALLEN * self._highest else _SOON)
            or self._waited < _WAITED * self._steps
            or not reading.excess > 0
        ):
            return ""
        self._said = True
        return (
            f"in {self._waited} of {self._steps} steps next to all weight was on the lower loss, which lies "
            f"{reading.excess:.2g} tolerances above its start: the upper loss waits. A learning rate that begins anew "
            "at full height lifts a trained model's loss by itself. If yours falls to 0 by the end, "
            'headroom="auto" lets the upper loss go on meanwhile.'
        )


class _Lasting:
    """Whether headroom stays, because the learning rate does not fall."""

    def __init__(self) -> None:
        self._rate: Any = None
        self._same, self._said = 0, False  # steps with this rate

    def seen(self, optimizer: "DynamicBarrier", room: float) -> str:
        """What a user must be told after this step, or nothing."""
        if self._said or not optimizer.headroom or "initial_lr" in optimizer.param_groups[0]:  # a scheduler
            return ""
        now = rate(optimizer)
        if isinstance(now, Tensor):
            if now.device.type != "cpu":
                return ""
            now = float(now)
        self._same = self._same + 1 if now == self._rate else 1
        self._rate = now
        if self._same < _LOOK or room < _ROOMY or not now:
            return ""
        self._said = True
        return (
            f"headroom={shown(optimizer.headroom)} goes as the learning rate falls, and that has been the same for "
            f"{self._same} steps: the lower loss may lie {room:.3g} tolerances above its reference until it falls. Let "
            "it fall to 0, or leave headroom out."
        )


class _Stall:
    """Whether a lower loss has come to rest far above a reference that is one number."""

    def __init__(self) -> None:
        self._mark: tuple[int, float] | None = None  # since when it is far above, and how far it was then

    def seen(self, count: int, reading: Reading) -> str:
        """What a user must be told after this step, or nothing."""
        excess = float(reading.excess)
        if not excess > _FAR:
            self._mark = None
        elif self._mark is None or excess < (1 - _FALL) * self._mark[1]:
            self._mark = (count, excess)
            return ""
        rested = 0 if self._mark is None else count - self._mark[0]
        sooner = excess > _ODD and rested >= max(_SOONER, _HALF * count)
        if sooner or rested >= max(_PATIENCE, _PART * count):
            return (
                f"the lower loss has been at rest {excess:.0f} tolerances above its reference for "
                f"{rested} steps, "
                "although nearly all of each step is on it: is the number out of reach (another loss, data or mode)? "
                'Train on the lower loss alone to find it, or take reference="twin".'
            )
        return ""


def _oversized(reading: Reading, tolerance: Any) -> str:
    """What a user must be told at the first step, where the tolerance is more than all there is; or nothing."""
    if isinstance(tolerance, str) and allowed(tolerance)[0] > 1:
        return f'tolerance={tolerance!r} is more than all of the reference: a fiftieth of it is written "2%".'
    size = max(abs(float(reading.loss)), abs(float(reading.reference)))
    if not isinstance(tolerance, str) and tolerance >= 1 and tolerance > size > 0:  # 0.01 of a loss near 0 is sound
        return (
            f"tolerance={tolerance!r} is a number in the unit of the lower loss, and more than all of that loss, "
            f'{size:.3g} at the first step: everything may be given up for the upper loss. A share is written "2%".'
        )
    return ""


def _worry(reading: Reading, tolerance: Any, same_batch: bool) -> str:
    """What a user of this tolerance must be told, or nothing; whether the reference is on the same batch already."""
    if reading.noise > 1.0:
        use = "larger batches or a larger tolerance"
        if not same_batch:
            use = 'larger batches, a larger tolerance, or a reference on the same batch: reference="twin" or "start"'
        return (
            f"the averaged excess is known to {reading.noise:.1f} tolerances only: tolerance={tolerance!r} is below "
            f"what these batches can measure. Use {use}."
        )
    if reading.excess < -_ODD:
        return (
            f"the lower loss lies {-reading.excess:.0f} tolerances below its reference: is that what training on it "
            "alone reaches? Everything down to there may be given up for the upper loss."
        )
    return ""
