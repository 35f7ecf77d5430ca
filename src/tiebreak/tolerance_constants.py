"""The constants of the tolerance rule, for each kind of reference."""

from typing import NamedTuple

from tiebreak.rules import Scalar


class Constants(NamedTuple):
    """The constants of the tolerance rule, without units; by the searches of ``benchmarks.tolerance`` and by hand."""

    aim: Scalar = 0.9  # what the bound of the excess is led to; the promise is 1
    early: Scalar = 0.2  # by which share less while the learning rate is what it was at most
    doubt: Scalar = 0.5  # the margin: so many standard errors of the averaged excess,
    sharp: Scalar = 1.0  # to this power,
    widest: Scalar = 0.5  # and no more of it: beyond, noise would give up most of what f can gain
    sway: Scalar = 2.0  # and so many standard deviations of the model's own swing
    span: Scalar = 15.0  # M: steps over which log w makes up for its error
    rise: Scalar = 1.0  # upward so many times as fast
    boost: Scalar = 4.0  # κ
    dip: Scalar = 0.3  # as far below the aim as κ acts: the first w is near `first`
    ahead: Scalar = 100.0  # steps by which a rising excess is carried forward
    exact: Scalar = 0.08  # the standard error asked of the averaged excess
    fast: Scalar = 0.1  # largest weight of the newest value in the averages of losses
    slow: Scalar = 0.02  # smallest weight there; and the weight in the averages of σ and of the swing
    norms: Scalar = 0.02  # the weight in the averages of norms
    floor: Scalar = 0.3  # an e/aim below this counts as this: how fast w falls where f costs nothing
    ceiling: Scalar = 4.0  # and one above this as this
    first: Scalar = 300.0  # where w begins
    least: Scalar = 1.0  # and its bounds
    most: Scalar = 1000.0
    lift: Scalar = 0.0  # where that does not suffice w may grow as the number of steps to this power
    burst: Scalar = 10.0  # with κ's answer w may be so many times that
    clip: Scalar = 2.0  # ∇f is cut to so many times its averaged norm
    trouble: Scalar = 1.5  # a bound of so many aims is trouble
    knee: Scalar = 2.0  # below so many times the w at which trouble began last, w falls slowly:
    gentle: Scalar = 0.85  # an e/aim below this counts as this there
    wary: Scalar = 1.5  # as if trouble had once come at this w
    free: Scalar = 1.0  # and one below 0, where g has room beyond doubt, as no more than this, everywhere
    pace: Scalar = 0.0  # M is at least this share of the steps made
    steep: Scalar = 1.0  # ‖∇g‖ counts as at least this share of its mean over all steps
    fade: Scalar = 0.0  # the w of trouble at step t₀ counts as (t₀/t)^fade times itself at step t
    cut: Scalar = 5.0  # in trouble a ∇g longer than so many times its averaged norm is cut to that,
    brake: Scalar = 0.1  # and all steps are shortened by this share,
    release: Scalar = 0.01  # which each step takes back by this share of itself
    recall: Scalar = 10.0  # no w above this is remembered for its trouble: so little of f is not to blame
    foresee: Scalar = 4.0  # a share is one of what the reference comes to: its fall so far to the power of this goes on
    headroom: Scalar = 0.0  # so many tolerances more while the learning rate is what it was at most,
    fades: Scalar = 0.0  # divided by 1 + this times the steps made,
    lifts: Scalar = 0.0  # but at least so many times what steps on g alone have left at such a rate


#: For a reference measured at the same step: a twin, a recorded curve, one that is given with each loss.
MOVING = Constants()
#: For the starting model. It is good already, so that little has to be feared early on, and such runs are short: w
#: begins lower and falls fast where g has room. A fall of g below its start is no swing.
START = Constants(
    aim=0.85,
    early=0.15,
    doubt=1.0,
    sway=0.0,
    ahead=30.0,
    fast=0.2,
    first=10.0,
    free=0.01,
    steep=0.0,
    recall=1e9,
    foresee=0.0,
)
#: For one number. Until the learning rate has fallen, g is far above it whatever f does: w is kept from winding up, and
#: κ's answer, which is gone at once, holds f back instead. Noise leaves a margin in proportion to its square.
NUMBER = Constants(
    early=0.0,
    sharp=2.0,
    widest=5.0,
    sway=0.0,
    span=30.0,
    rise=4.0,
    dip=0.6,
    exact=0.04,
    floor=0.5,
    ceiling=2.5,
    first=30.0,
    most=6.0,
    lift=2.0,
    burst=100.0,
    clip=4.0,
    knee=1.0,
    gentle=0.9,
    wary=0.0,
    pace=0.1,
    steep=0.0,
    fade=1.0,
)

#: With which `START` finds its headroom out.
AUTO = {"headroom": 10.0, "fades": 0.02, "lifts": 1.5}


def adaptive(constants: Constants) -> Constants:
    """The constants for a base that divides by the size of its gradients, as Adam does.

    A long gradient brakes such a base of itself, for as long as it remembers it; cut, it would not.

    Examples
    --------
    >>> MOVING.cut, adaptive(MOVING).cut
    (5.0, 1000000000.0)
    """
    return constants._replace(cut=1e9)
