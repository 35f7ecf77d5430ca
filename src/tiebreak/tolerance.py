"""The tolerance rule: the multiplier that keeps a loss within a tolerance of a reference, on scalars alone.

Each step a front end measures the lower loss g, a reference for it, and the norms of both gradients. The rule returns
w = λ/s, with s the averaged ‖∇f‖/‖∇g‖, and the step goes along ``(∇f/s + w ∇g) / max(1, w)``. The excess
e = (g − reference)/tolerance has no unit and w has none either: multiplying a loss by a constant changes nothing.

* Where f and g are at rest against each other, e is about c/w², so ½ log(e/aim) is what log w is off by. A product,
  ``w ← w (e/aim)^(1/2M)``, integrates that without a logarithm; ``exp κ(e − aim)`` beside it answers at once.
* A model that lags behind its rest point shows e too small. Where e rises, it is carried forward along its slope.
* In the place of e stands a bound for it, with a margin. One part is the standard error of the averaged e: σ, the
  noise of a batch, is measured from the change between neighbouring steps. The other is the model's own swing, in which
  the last step may end anywhere: batches are independent, so it is what neighbouring deviations have in common.
* Where a model fits every row, ∇g vanishes with g, and with it would the step on f, which for w ≥ 1 is no longer than
  one on g. So ‖∇g‖ counts in s as at least its mean over the whole run, and e is about c/w² there, too.
* From above: what was damaged early may never be repaired. So w begins at `first`, which is nearly g alone, and falls
  until e answers. Where it fell so far that trouble came, the place is remembered, and w comes near it slowly from then
  on: else a model that lags would be damaged and repaired again and again. Against a number the memory fades: training
  from scratch begins with trouble that is not f's.
* f may lead the model to where g is too steep for the learning rate; from there steps on g alone diverge, too. So where
  trouble comes with a gradient of g out of all proportion, that is cut, and steps are shorter for a while.
* What f has done may be beyond repair: a network whose weights were driven to 0 may sit at a saddle of g, where steps
  on g alone lead nowhere. A twin is a way back. So steps are counted that were on g alone and left e above 1; where
  these are too many, :func:`beyond` holds, and the front end sets the model to its twin; :func:`rejoined` then.
* While the learning rate is high its noise hides what f costs: when the rate falls, g gains less than a twin's does. So
  the aim is lower by the share `early` where the rate is what it was at most, and is reached when the rate has fallen.
* Whoever knows that the rate will fall may allow more until then: `headroom` tolerances more at the highest rate, and
  less as its square falls, so that what is left of the rate suffices to come back. How much is needed can be measured
  where the start is the reference: whatever steps on g alone leave above it, and do not bring down, is the rate's doing
  and not f's. `lifts` times that is allowed; and for the first steps, until that is known, a `headroom` that `fades`.

Only arithmetic and comparisons, so the same code runs on Python floats, NumPy arrays (a value per run), torch 0-d
tensors and JAX tracers; nothing is imported. Inputs must be finite; then so is what comes out.
"""

from typing import NamedTuple

from tiebreak.rules import Scalar
from tiebreak.tolerance_constants import AUTO as AUTO
from tiebreak.tolerance_constants import MOVING as MOVING
from tiebreak.tolerance_constants import NUMBER as NUMBER
from tiebreak.tolerance_constants import START as START
from tiebreak.tolerance_constants import Constants as Constants
from tiebreak.tolerance_constants import adaptive as adaptive

_E = 2.718281828459045
ALONE = 100.0  # from this w on a step counts as one on g alone
FALLING = 0.9  # an e below this share of its slow average is coming back
#: So many in a row that leave e above 1, and not falling, are in vain; of all steps this share.
PATIENCE, SHARE = 50.0, 0.05
#: So many in a row show what the learning rate does by itself, where it is above this share of its highest.
SHOWN, HIGH = 5.0, 0.7


class Memory(NamedTuple):
    """What the tolerance rule remembers: scalars only, saved as they are."""

    steps: Scalar  # how many were made
    ratio: Scalar  # the integral part of w; 0 before the first step
    loss: Scalar  # averages, the second of each four times slower
    slow_loss: Scalar
    reference: Scalar
    slow_reference: Scalar
    difference: Scalar  # the last loss less its reference
    change: Scalar  # the averaged |change of it| from step to step
    swing: Scalar  # averaged product of neighbouring deviations from the slow average, in squared tolerances
    upper: Scalar  # averaged ‖∇f‖ and ‖∇g‖
    lower: Scalar
    steep: Scalar  # the mean of ‖∇g‖ over all steps
    rate: Scalar  # the largest learning rate
    brake: Scalar  # the factor of all steps: 1 but after trouble
    calm: Scalar  # `ratio` when e was last below its aim
    known: Scalar  # and what that was when trouble last came: w is to come near it slowly
    trend: Scalar  # the mean of the reference over all steps, later ones weighing more
    vain: Scalar  # how many steps on g alone, up to now, have left e above 1
    returns: Scalar  # how many times the model was set to its twin
    lifted: Scalar  # how far above its reference steps on g alone have left g, at most, while the rate was high


class Reading(NamedTuple):
    """What the rule says at a step: w and s, the averaged losses, e (in tolerances) and its standard error.

    The step goes along `length` · ``(∇f/s + w ∇g) / max(1, w)``: 1 but in trouble.
    """

    ratio: Scalar
    unit: Scalar
    loss: Scalar
    reference: Scalar
    excess: Scalar
    noise: Scalar
    length: Scalar = 1.0
    swing: Scalar = 0.0  # standard deviation of the model's own swing, in tolerances


def begin() -> Memory:
    """Nothing seen yet."""
    return Memory(*[0.0] * len(Memory._fields))


def _at_least(value: Scalar, bound: Scalar) -> Scalar:
    # Selecting by a product is exact in every library; 0 · value gives the bound the type and shape of the value.
    return value * (value > bound) + (0 * value + bound) * (value <= bound)


def _at_most(value: Scalar, bound: Scalar) -> Scalar:
    return value * (value < bound) + (0 * value + bound) * (value >= bound)


def _size(value: Scalar) -> Scalar:
    return value * (value > 0) - value * (value < 0)


def _over(value: Scalar, divisor: Scalar) -> Scalar:
    """The quotient, and 0 where it would be divided by 0."""
    return value * (divisor != 0) / (divisor + (divisor == 0))


def _mean(before: Scalar, norm: Scalar, weight: Scalar) -> Scalar:
    """An average of norms that were not 0: a loss at rest says nothing of how steep it is."""
    return before + (weight + (1 - weight) * (before == 0)) * ((norm - before) * (norm > 0))


def follow(
    memory: Memory,
    loss: Scalar,
    reference: Scalar,
    tolerance: Scalar,
    upper_norm: Scalar,
    lower_norm: Scalar,
    rate: Scalar = 1.0,
    *,
    moving: bool,
    relative: bool = False,
    constants: Constants | None = None,
) -> tuple[Memory, Reading]:
    """One step of the tolerance rule.

    Parameters
    ----------
    memory : Memory
        :func:`begin` at first, then what the last call returned.
    loss, reference, tolerance : scalar
        The lower loss on this batch, what it is compared with, and how far above it may lie (> 0; it may change).
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖, either of which may be 0.
    rate : scalar
        The learning rate; what is not told does not change.
    moving, relative : bool
        Whether the reference is measured at the same step, or is one number for the whole run; and whether the
        tolerance is a share of the averaged reference: of each average, so that its shrinking is foreseen.
    constants : Constants, optional
        `MOVING` or `NUMBER` unless given.

    Examples
    --------
    >>> memory = begin()
    >>> for loss in (0.500, 0.501, 0.502):
    ...     memory, reading = follow(memory, loss, 0.5, 0.01, 2.0, 4.0, moving=True)
    >>> reading.unit, round(reading.loss, 6), round(reading.excess, 6)
    (0.5, 0.501, 0.1)
    """
    c = constants or (MOVING if moving else NUMBER)

    steps = memory.steps + 1 + 0 * loss
    most = _at_least(rate + 0 * loss, memory.rate)
    high = _over(rate + 0 * loss, most) + (most == 0)  # a warm-up may begin with a rate of 0
    trend = memory.trend + 3 / (steps + 2) * (reference - memory.trend)

    def asked(loss: Scalar, reference: Scalar) -> Scalar:
        if not relative:
            return tolerance + 0 * loss
        # What was spent while the reference was high would be too much when it has fallen.
        fallen = _at_most(_over(_size(reference), _size(trend)), 1.0)
        fall = (fallen + (fallen == 0)) ** c.foresee * (fallen != 0)  # no derivative of a power at 0
        # A reference of 0 has no share: a millionth of the loss keeps g first all the same.
        return tolerance * _at_least(fall * _size(reference), 1e-6 * _size(loss))

    def allowed(loss: Scalar, reference: Scalar) -> Scalar:
        least = asked(loss, reference)
        return least + headroom(c, steps, memory.lifted, least) * high * high

    # Plain means until there are enough values for a weight: the first steps are right.
    rest = _at_least(1 / steps, c.norms)
    later = _at_least(_over(1, steps - 1), c.slow) * (steps > 1)  # the first difference has none before it
    difference, centre = loss - reference, memory.slow_loss - memory.slow_reference
    limit = allowed(memory.loss, memory.reference)
    change = memory.change + later * (_size(difference - memory.difference) - memory.change)
    pair = (_over(x - centre, limit) for x in (difference, memory.difference + 0 * loss))
    here, there = (_at_most(_at_least(x, -10.0), 10.0) for x in pair)
    swing = memory.swing + later * (here * there - memory.swing)
    # Neighbours differ by 2σ/√π in the mean. Absolute values, not squares: those of small losses vanish in float32.
    sigma = _over(0.886 * change, limit)
    weight = _at_most(_at_least(2 * (c.exact / _at_least(sigma, 0.01 * c.exact)) ** 2, c.slow), c.fast)
    fast, slow = _at_least(1 / steps, weight), _at_least(1 / steps, weight / 4)
    # Losses are averaged, not excesses: a new tolerance counts at once.
    now = Memory(
        steps=steps,
        ratio=memory.ratio,
        loss=memory.loss + fast * (loss - memory.loss),
        slow_loss=memory.slow_loss + slow * (loss - memory.slow_loss),
        reference=memory.reference + fast * (reference - memory.reference),
        slow_reference=memory.slow_reference + slow * (reference - memory.slow_reference),
        difference=difference,
        change=change,
        swing=swing,
        upper=_mean(memory.upper, upper_norm, rest),
        lower=memory.lower,
        steep=memory.steep,
        brake=memory.brake,
        rate=most,
        calm=memory.calm,
        known=memory.known * (1 - _at_most(c.fade / steps, 1.0)),
        trend=trend,
        vain=memory.vain,
        returns=memory.returns + 0 * loss,
        lifted=memory.lifted + 0 * loss,
    )
    aim = c.aim * (1 - c.early * high)
    limit = allowed(now.loss, now.reference)
    room = _over(limit, asked(now.loss, now.reference))
    excess = _over(now.loss - now.reference, limit)
    before = _over(now.slow_loss - now.slow_reference, allowed(now.slow_loss, now.slow_reference))
    noise = sigma * (fast / (2 - fast)) ** 0.5  # the standard error of an average
    # An average of weight a lags 1/a − 1 steps behind.
    slope = _over(excess - before, 1 / slow - 1 / fast)
    # Noise alone makes a mean product of ± σ² √(slow / 2), which is not taken for a swing.
    swung = swing - (c.slow / 2) ** 0.5 * _at_most(sigma, 10.0) ** 2
    root = (swung * (swung > 0) + (swung <= 0)) ** 0.5 * (swung > 0)  # which has no infinite derivative at 0
    margin = _at_most(c.doubt * noise**c.sharp, c.widest) + c.sway * root
    bound = excess + c.ahead * slope * (slope > 0) + margin

    last = memory.ratio + (0 * loss + c.first) * (steps < 2)
    near = last < c.knee * _at_least(now.known, c.wary)
    lowest = c.floor + (0 * loss + c.gentle - c.floor) * near
    lowest = lowest + (_at_most(lowest, c.free) - lowest) * (bound < 0)
    error = _at_most(_at_least(bound / aim, lowest), c.ceiling)
    # 0 · error, since torch makes float32 of a float times a comparison.
    power = (1 + (0 * error + c.rise - 1) * (error > 1)) / (2 * _at_least(c.pace * steps, c.span))
    calm = memory.calm + (last - memory.calm) * (error <= 1)
    # One batch is enough for this: a step that is too long for where the model is now multiplies the loss at once.
    worst = _at_least(_over(difference, limit), bound)
    usual = c.cut * memory.lower + 0 * lower_norm
    long = (worst > c.trouble * aim) * (lower_norm > usual) * (usual > 0)
    last_brake = memory.brake + 0 * loss + (steps < 2)
    brake = _at_most(last_brake * (1 + c.release), 1.0) * (1 - c.brake * long)
    kept = 1 + (_over(usual, _at_least(lower_norm, usual)) - 1) * long  # 1, or the share of ∇g that is not cut off
    # Whoever begins near the reference may begin above `most`, and where w does not suffice it is to grow beyond that:
    # slowly, and not where e is far above. There κ's answer is g alone in any case, and w would be long in coming down.
    top = _at_least(last * (1 + c.lift / steps) * (error < c.ceiling), c.most)
    now = now._replace(
        lower=_mean(memory.lower, kept * lower_norm, rest),
        steep=_mean(memory.steep, kept * lower_norm, 1 / steps),
        brake=brake,
        ratio=_at_most(_at_least(last * error**power, c.least), top),
        calm=calm,
        known=now.known + (_at_most(calm, c.recall) - now.known) * (error > c.trouble),
    )
    ratio = _at_most(now.ratio * _E ** (c.boost * _at_most(_at_least(bound - aim, -c.dip), 3.0)), c.burst * top)
    in_vain = (excess > 1) * (excess > FALLING * before) * (ratio >= ALONE)
    vain = (memory.vain + 1 + 0 * loss) * in_vain
    # No more than is beyond doubt: what one batch or f's last steps have added is not the rate's.
    sure = _at_most(_at_most(excess, before) - noise, _over(difference, limit))
    shown = _at_least(sure * limit, now.lifted) - now.lifted
    now = now._replace(vain=vain, lifted=now.lifted + shown * (vain >= SHOWN) * (high > HIGH))
    # Where f is too steep for the step its gradient outgrows any average; cut, it cannot carry g along.
    upper = _at_least(now.upper, upper_norm / c.clip)
    # Where no gradient of g has been seen a step on f has the length 1, and where none of f, any unit will do.
    lower = _at_least(_at_least(now.lower, c.steep * now.steep), 1e-300 * upper)  # so that float64 holds the quotient
    unit = _over(upper, lower) * (now.lower != 0) + upper * (now.lower == 0)
    told = (now.loss, now.reference, excess * room, noise * room, brake * kept, root * room)
    return now, Reading(ratio, unit + (unit == 0), *told)


def headroom(constants: Constants, steps: Scalar, lifted: Scalar, tolerance: Scalar) -> Scalar:
    """How much more than the tolerance is allowed at the highest learning rate, after so many steps; as a loss.

    Examples
    --------
    >>> auto = START._replace(**AUTO)
    >>> headroom(auto, 50.0, 0.25, tolerance=0.5), headroom(auto, 50.0, 4.0, tolerance=0.5)
    (2.5, 6.0)
    """
    return _at_least(tolerance * constants.headroom / (1 + constants.fades * steps), constants.lifts * lifted)


def roomy(headroom: Scalar, high: Scalar) -> Scalar:
    """How many tolerances are allowed at a learning rate that is the share `high` of the highest so far.

    Examples
    --------
    >>> roomy(10.0, 1.0), roomy(10.0, 0.5), roomy(10.0, 0.0), roomy(0.0, 1.0)
    (11.0, 3.5, 1.0, 1.0)
    """
    return 1 + headroom * high * high


def beyond(memory: Memory, patience: Scalar = PATIENCE, share: Scalar = SHARE) -> Scalar:
    """Whether g was not brought back by many steps on it alone, so that what f has done is taken for beyond repair.

    Examples
    --------
    >>> beyond(begin()._replace(steps=400.0, vain=50.0)), beyond(begin()._replace(steps=4000.0, vain=50.0))
    (True, False)
    """
    return (memory.vain >= patience) & (memory.vain >= share * memory.steps)


def rejoined(memory: Memory, constants: Constants | None = None) -> Memory:
    """The memory when the model has been set to its twin: no excess, and w where it begins; trouble stays remembered.

    Examples
    --------
    >>> after = rejoined(begin()._replace(steps=900.0, ratio=1000.0, loss=2.0, reference=1.0, known=3.0))
    >>> after.loss, after.ratio, after.known, after.steps
    (1.0, 300.0, 3.0, 900.0)
    """
    c = constants or MOVING
    nothing = 0 * memory.steps
    return memory._replace(
        ratio=nothing + c.first,
        loss=memory.reference,
        slow_loss=memory.slow_reference,
        difference=nothing,
        swing=nothing,
        brake=nothing + 1,
        vain=nothing,
        returns=memory.returns + 1,
    )
