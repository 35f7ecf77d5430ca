"""A rule with a memory for problems of which nothing is known: it estimates what it needs, and balances both residuals.

A penalty's direction is ∇f + β∇g. At rest ‖∇g‖ is about ‖∇f‖/β, and what is left of the direction is mostly noise,
V_f + β²V_g: a larger β makes the first residual smaller and the second larger. :class:`Balance` raises β as long as the
first is the larger one, and lowers it where it is not. For that it needs the levels' smoothness and noise. Both come
from samples that STORM evaluates anyway (:class:`tiebreak.estimators.recursive.Watched` says which)::

    L ≈ ‖G_k(x_k) − G_k(x_{k−1})‖ / ‖x_k − x_{k−1}‖         the same batch at two points: without the noise
    σ² ≈ ‖G_k(x_{k−1}) − G_{k−1}(x_{k−1})‖² / (1/B_k + 1/B_{k−1})      two batches at the same point

Residuals are compared in the problem's own units, in which both smoothness constants are 1: then a change of units of
f, of g or of x changes no iterate. Like all rules this is arithmetic and comparisons, a value for each run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tiebreak.rules import Scalar, dbgd
from tiebreak.stateful_rules import StatefulRule
from tiebreak.tolerance import larger, positive, quotient, smaller


class Known(NamedTuple):
    """What the rule remembers of a run.

    Attributes
    ----------
    step_size, weight : scalar
        η and β of the last step.
    ratio : scalar
        β in the problem's own units.
    upper_smoothness, lower_smoothness : scalar
        L_f and L_g along the path, of late.
    upper_curvature, lower_curvature : scalar
        The same averaged, of late.
    upper_largest, lower_largest : scalar
        The largest such averages so far.
    upper_along, lower_along : scalar
        The part of the curvature that is along the step, with its sign, averaged, of late.
    upper_along_largest, lower_along_largest : scalar
        The largest such averages so far.
    upper_variance, lower_variance : scalar
        σ_f² and σ_g², of late.
    upper_share, lower_share : scalar
        Variance of the estimate in units of σ²: one over the samples that it is as good as.
    reach : scalar
        How far from its start the run has been, of late.
    steepest : scalar
        The largest estimate of ‖∇f‖ so far.
    upper_batch, lower_batch : scalar
        Those of the last step.
    floor : scalar
        The least β in the problem's own units, as far as it was raised to leave a saddle of g.
    """

    step_size: Scalar
    weight: Scalar
    ratio: Scalar
    upper_smoothness: Scalar
    upper_curvature: Scalar
    upper_largest: Scalar
    upper_along: Scalar
    upper_along_largest: Scalar
    upper_variance: Scalar
    upper_share: Scalar
    lower_smoothness: Scalar
    lower_curvature: Scalar
    lower_largest: Scalar
    lower_along: Scalar
    lower_along_largest: Scalar
    lower_variance: Scalar
    lower_share: Scalar
    reach: Scalar
    steepest: Scalar
    upper_batch: Scalar
    lower_batch: Scalar
    floor: Scalar


class _Level(NamedTuple):
    """What is known of one level."""

    smoothness: Scalar
    curvature: Scalar
    largest: Scalar
    along: Scalar
    along_largest: Scalar
    variance: Scalar
    share: Scalar

    @property
    def error(self) -> Scalar:
        """Variance of the estimate."""
        return self.variance * self.share


@dataclass(frozen=True)
class Balance(StatefulRule):
    """λ = β, with β and the step size chosen from what the run has seen; see the module.

    All constants are pure numbers. They were chosen on the test bed and on seven problems of our own, and judged on
    others (see the documentation's page on `auto`); none of them is sharp.

    Parameters
    ----------
    length : float
        The step size is at most this over L_f + βL_g.
    growth : float
        How fast β changes where the residuals differ: by the power growth · (q − 1/q) of the step number, q the fourth
        root of their quotient.
    noise : float
        What of the estimates' variance counts as residual: some of it is along ∇g, and some is averaged out.
    least : float
        Where β begins, and its least value, in the problem's units: below 1, so that f chooses the basin first.
    fastest : float
        No more than this part of β in one step: x must follow.
    forget : float
        The smoothness of late forgets as the power −forget of the step number.
    longer : float
        By how much a step size may exceed the last one.
    recent : float
        How many times its curvature of late a level's unit may be: one steep start must not fix it for good, since one
        of the levels would then be forgotten.
    unsure : float
        Where both gradients together are not this much larger than their noise, steps are shortened, down to 1/16.
    clear : float
        How many times its standard error ∇g must be to lead where it has shown no curvature.
    firm, vanished, convex : float
        Where ‖∇f‖ has fallen below `vanished` of its largest value, and g's curvature along the path is below `convex`
        of the whole, the least β is raised, to `firm` at most: that may be a saddle of g, and must not hold the run.
        `firm=0` leaves it as it is.
    """

    length: float = 1.0
    growth: float = 2.0
    noise: float = 0.5
    least: float = 0.25
    fastest: float = 0.05
    forget: float = 2.0
    longer: float = 4.0
    recent: float = 8.0
    unsure: float = 4.0
    clear: float = 3.0
    firm: float = 32.0
    vanished: float = 0.1
    convex: float = 0.1
    sets_step_size = True

    def begin(self, zero: Scalar) -> tuple[Scalar, ...]:
        """Nothing known."""
        return Known(*(zero,) * len(Known._fields))

    def step_size(self, memory: tuple[Any, ...]) -> Scalar:
        """The step size of each run, a factor of the schedule's."""
        return Known(*memory).step_size

    def chosen(self, memory: tuple[Any, ...]) -> dict[str, Scalar]:
        """What was chosen and what it rests on, for people."""
        m = Known(*memory)
        return {
            "step_size": m.step_size,
            "weight": m.weight,
            "upper_batch": m.upper_batch,
            "lower_batch": m.lower_batch,
            "upper_smoothness": m.upper_smoothness,
            "lower_smoothness": m.lower_smoothness,
            "upper_noise": m.upper_variance**0.5,
            "lower_noise": m.lower_variance**0.5,
        }

    def __call__(
        self,
        fg: Scalar,
        gg: Scalar,
        memory: tuple[Any, ...],
        k: int = 0,
        ff: Scalar = None,
        momentum: Scalar = 1.0,
        upper_batch: Scalar = 1,
        lower_batch: Scalar = 1,
        upper_change: Scalar = None,
        lower_change: Scalar = None,
        upper_along: Scalar = None,
        lower_along: Scalar = None,
        upper_spread: Scalar = None,
        lower_spread: Scalar = None,
        moved: Scalar = None,
        away: Scalar = None,
        resolution: Scalar = None,
    ) -> tuple[Scalar, tuple[Any, ...]]:
        """β, and what is known now. Where nothing moved, but something is only measured, the β of the last step."""
        m = Known(*memory)
        if moved is None:
            return m.weight + 0 * fg + 0 * gg, memory
        resolved = (
            moved > (0.1 * resolution) ** 2
        ) * 1.0  # 0 if the change is only rounding
        rate = self.forget / (k + 6)
        count = len(_Level._fields)
        upper = _updated(
            _Level(*memory[3 : 3 + count]),
            (upper_change, upper_along, upper_spread, upper_batch, m.upper_batch),
            (moved, resolved, momentum, rate),
        )
        lower = _updated(
            _Level(*memory[3 + count : 3 + 2 * count]),
            (lower_change, lower_along, lower_spread, lower_batch, m.lower_batch),
            (moved, resolved, momentum, rate),
        )
        reach = larger(away**0.5, (1 - rate) * m.reach)
        steepest = larger(ff**0.5, m.steepest)
        if (
            k == 0
        ):  # as short a step as shows a curvature; both gradients weigh the same
            ratio = floor = self.least + 0 * gg
            weight = _or_one(quotient(ff**0.5, gg**0.5))
            # Opposed gradients with equal weights leave rounding, and no direction: then g gets half the weight.
            together = ff + weight * weight * gg
            weight = weight * (1 - 0.5 * (together + 2 * weight * fg < 1e-6 * together))
            longest = quotient(
                resolution,
                positive(ff + 2 * weight * fg + weight * weight * gg) ** 0.5,
            )
            step = longest + resolution * (longest == 0)
        else:
            floor = self._floor(ff, m.floor, lower, steepest)
            ratio, weight = self._weighed(
                fg, gg, ff, m.ratio, upper, lower, reach, steepest, floor, k
            )
            # Nothing limits the step if both gradients vanish, and the step must not grow until it overflows.
            longest = m.step_size * (1 + (self.longer - 1) * ((ff > 0) | (gg > 0)))
            step = self._step(gg, ff, weight, upper, lower, longest)
        batches = (upper_batch + 0 * gg, lower_batch + 0 * gg)
        choice = (step, weight, ratio)
        return weight, Known(*choice, *upper, *lower, reach, steepest, *batches, floor)

    def _weighed(
        self,
        fg: Scalar,
        gg: Scalar,
        ff: Scalar,
        ratio: Scalar,
        upper: _Level,
        lower: _Level,
        reach: Scalar,
        steepest: Scalar,
        floor: Scalar,
        k: int,
    ) -> tuple[Scalar, Scalar]:
        """β in the problem's units, and in the user's."""
        pull = ff**0.5
        push = gg**0.5
        bent, curved = (self._unit(level) for level in (upper, lower))
        # A constant slope has no curvature to take a unit from: then the steepest slope over the distance is the unit.
        # The present slope could be averaged noise, and β would fall for ever.
        straight = (bent * reach < 0.05 * pull) * 1.0
        # The same for g, if the slope of g stands out of the noise.
        flat = (curved * reach < 0.05 * push) * 1.0
        hidden = flat * (gg <= self.clear**2 * lower.error)
        curved = (flat - hidden) * quotient(push, reach) + (1 - flat + hidden) * curved
        unit = quotient(
            straight * quotient(steepest, reach) + (1 - straight) * bent, curved
        )
        best = dbgd(fg, gg, 0.0)  # λ with the least ‖∇f + λ∇g‖
        least = positive(ff + best * (2 * fg + best * gg))
        now = ratio * unit
        direction = least + self.noise * (upper.error + now * now * lower.error)
        slope = gg * unit * unit
        ratio = ratio * (1 + self._change(slope**0.5, direction**0.5, k))
        ratio = larger(ratio, floor)
        # Without a curvature f would go on for ever: g's minimisers must not be farther away than a seventh of the way.
        leash = straight * quotient(8 * steepest, curved * reach + push)
        weight = hidden * quotient(self.least * pull, push) + (1 - hidden) * larger(
            ratio * unit, leash
        )
        return ratio, _or_one(weight)

    def _floor(
        self, ff: Scalar, floor: Scalar, lower: _Level, steepest: Scalar
    ) -> Scalar:
        """The least ratio: raised where both gradients vanish and g is hardly convex along the path, up to `firm`.

        Where ∇f and ∇g vanish together every residual is small, whatever β is. If that is a saddle of g, it is one of
        f + βg as well once β is large enough, and the path leaves it.
        """
        vanished = ff < (self.vanished * steepest) ** 2
        saddle = (
            vanished
            & (lower.along < self.convex * lower.curvature)
            & (floor < self.firm)
        )
        return floor * (1 + self.fastest * saddle)

    def _unit(self, level: _Level) -> Scalar:
        """The level's curvature: the largest average, as far as it has fallen since.

        A path that has settled no longer sees what curves; but a curvature may also have been one of single samples, or
        of a steep start. What single samples add is across the step and as often along it as against it: so no more
        counts as fallen than has fallen along the step.
        """
        along = abs(level.along)
        times = quotient(
            smaller(level.along_largest, self.recent * along), along
        ) + self.recent * (along == 0)
        return smaller(level.largest, times * level.curvature)

    def _change(self, slope: Scalar, direction: Scalar, k: int) -> Scalar:
        """By what part β changes, from the roots of both residuals.

        At rest one residual goes like 1/β² and the other like β², so q = √(slope/direction) is the square of the factor
        that β is off by, and the exponent in k is growth (√q − 1/√q): the farther off, the faster.
        """
        change = self.growth / (k + 6) * (slope - direction)
        mean = (slope * direction) ** 0.5
        most = self.fastest * mean
        between = (change < most) & (change > -most)
        # Without noise a residual may be 0, and the quotient infinite; if both residuals are 0, β stays.
        beyond = self.fastest * ((change >= most) * 1.0 - (change <= -most) * 1.0)
        return between * quotient(change, mean) + beyond

    def _step(
        self,
        gg: Scalar,
        ff: Scalar,
        weight: Scalar,
        upper: _Level,
        lower: _Level,
        longest: Scalar,
    ) -> Scalar:
        """The step size: as the smoothness allows, shorter where there is little but noise."""
        noise = upper.error + weight * weight * lower.error
        signal = positive(ff + weight * weight * gg - noise)
        sure = (signal >= self.unsure * noise) * 1.0
        part = sure + (1 - sure) * larger(
            quotient(signal, self.unsure * noise), 1 / 16 + 0 * gg
        )
        curvature = upper.smoothness + weight * lower.smoothness
        allowed = quotient(self.length * part, curvature)
        bent = (curvature > 0) & (allowed < longest)
        return bent * allowed + (1 - bent) * longest


def _updated(
    level: _Level, measured: tuple[Any, ...], common: tuple[Any, ...]
) -> _Level:
    """A level after a step: σ² is averaged over the steps that the estimate is averaged over."""
    change, along, spread, batch, last_batch = measured
    moved, resolved, momentum, rate = common
    curvature = resolved * quotient(change, moved) ** 0.5
    average = level.curvature + rate * resolved * (curvature - level.curvature)
    part = level.along + rate * resolved * (quotient(along, moved) - level.along)
    variance = spread * quotient(batch * last_batch, batch + last_batch)
    return _Level(
        larger(curvature, (1 - rate) * level.smoothness),
        average,
        larger(average, level.largest),
        part,
        larger(abs(part), level.along_largest),
        (1 - momentum) * level.variance + momentum * variance,
        (1 - momentum) ** 2 * level.share + momentum**2 / batch,
    )


def _or_one(value: Scalar) -> Scalar:
    """The value, or 1 if it is 0: the weight of a vanished gradient does not matter, but must not be 0."""
    return value + 1.0 * (value == 0)
