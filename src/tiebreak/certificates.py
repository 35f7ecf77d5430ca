"""Is this point stationary? Confidence intervals for both residuals from stochastic gradients alone.

A squared norm of a mean is estimated without bias by inner products of *different* samples, ‖μ‖² = E⟨v_i, v_j⟩, i ≠ j.
The variance of this U-statistic has a part that falls as 1/n (away from zero) and one that falls as 1/n² (near zero).
Both are estimated, so that the intervals hold in either case.

The intervals need group means that are near normal. They are not if few samples carry the gradient, and samples that all
miss these few look perfectly regular. A finite sum is therefore evaluated exactly as soon as that costs no more than the
samples. Otherwise the samples are checked, and a level that fails gets the interval [0, ∞).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from tiebreak.checks import positive_pair, whole
from tiebreak.oracles import FiniteSum, Gaussian
from tiebreak.solver.objective import Level
from tiebreak.stationarity import Values, best_multiplier

UNDECIDABLE = "cannot be decided"
#: Multiples of the estimated best λ to choose from.
_CHOICES = (0, 0.25, 0.5, 0.75, 1, 1.5)
_FARTHEST = 30  # powers of e by which more samples are considered
_TINY = (
    0.01  # of ε_g: below, a ∇g that is not told from 0 has no direction within reach
)
_CARRIERS = (
    20  # samples that must carry the spread before group means count as near normal
)
_AGREEMENT = (
    3.0  # the least spread of single terms of a sampled sum, in units of the mean
)


@dataclass(frozen=True)
class Interval:
    """An unbiased estimate and an interval that holds it with the stated confidence."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3g} in [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Certificate:
    """What samples say of a point.

    Attributes
    ----------
    lower_gradient_squared : Interval
        For ‖∇g(x)‖².
    stationarity_squared : Interval
        For min over λ ≥ 0 of ‖∇f(x) + λ∇g(x)‖². Its estimate is of ‖∇f + λ̂∇g‖² at the multiplier below.
    multiplier : float
        λ̂, chosen on one half of the samples and judged on the other.
    confidence : float
        With which both intervals hold at once.
    verdict : str
        "stationary", "not stationary", "not decided" or "cannot be decided"; "" where no ε was given. The last is said
        where ∇g is not told from 0 although ‖∇g‖² is below a hundredth of its ε already: the least over λ *jumps* where
        ∇g = 0, to ‖∇f‖², and beside it depends on ∇g's direction alone. No number of samples settles that.
    more_samples : int
        About how many more per level would decide; 0 where decided. *At least* so many where ∇g is not told from 0 yet
        and no λ has been found that would do: what its direction takes depends on how small it is.
    upper_calls, lower_calls : int
        What was spent.
    assumptions : tuple of str
        For ∇f and for ∇g: what the intervals rest on, or why the samples support none.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> found = certify(problem.upper, problem.lower, [1.5, 1.5], samples=10**4, epsilon=0.01, seed=0)
    >>> found.verdict, found.more_samples, found.upper_calls
    ('not stationary', 0, 9984)
    >>> found.assumptions[1]
    '∇g: Gaussian noise'
    """

    lower_gradient_squared: Interval
    stationarity_squared: Interval
    multiplier: float
    confidence: float
    epsilon: tuple[float, float] | None
    verdict: str
    more_samples: int
    upper_calls: int
    lower_calls: int
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"‖∇g‖²              {self.lower_gradient_squared}",
            f"min ‖∇f + λ∇g‖²    {self.stationarity_squared}   at λ = {self.multiplier:.3g}",
        ]
        if self.epsilon is not None:
            hidden = (
                self.lower_gradient_squared.low == 0
                and self.stationarity_squared.high > self.epsilon[0]
            )
            word = "at least" if hidden else "about"
            more = f", {word} {self.more_samples:,} more samples per level" * bool(
                self.more_samples
            )
            where = f"at (ε_f, ε_g) = ({self.epsilon[0]:g}, {self.epsilon[1]:g})"
            lines.append(f"{self.verdict} {where}{more}")
            if self.verdict == UNDECIDABLE:
                lines.append(
                    "∇g is not told from 0, where the least over λ jumps to ‖∇f‖²: no number of samples settles it. "
                    "Judge a point at which ‖∇g‖² is nearer to ε_g"
                )
        lines.append(f"both at once with confidence {self.confidence:g}; assumed:")
        return "\n".join([*lines, *self.assumptions])


def certify(
    upper: Any,
    lower: Any,
    x: Any,
    samples: int,
    confidence: float = 0.95,
    *,
    epsilon: float | tuple[float, float] | None = None,
    groups: int = 64,
    seed: Any = None,
) -> Certificate:
    """Confidence intervals for both residuals at x, and a verdict.

    Parameters
    ----------
    upper, lower : Oracle
    x : array_like
        One point, in the shape that the oracles take. Of a result with several runs give ``result.x[i]``: all of
        ``result.x`` would be one point with so many more numbers, which a vectorised function may accept.
    samples : int
        Per level, at least 16; rounded down to a multiple of the groups.
    confidence : float
        In (0, 1): the probability that both intervals hold.
    epsilon : float or pair, optional
        (ε_f, ε_g), or one number for both: what x is to be judged by.
    groups : int
        The samples are averaged in so many groups; the intervals rest on the groups' means being near normal. With very
        skew noise that takes samples: for log-normal factors with σ = 1.2 a nominal 95 % covered 83 % with 64 samples,
        90 % with 256 and 96 % with 4096.
    seed : optional

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> certify(problem.upper, problem.lower, [0.049, 0.007], samples=10**6, epsilon=0.01, seed=0).verdict
    'stationary'
    >>> found = certify(problem.upper, problem.lower, [1.5, 1.5], samples=10**4, epsilon=0.01, seed=0)
    >>> found.verdict, found.lower_gradient_squared.low < 1.23 < found.lower_gradient_squared.high
    ('not stationary', True)
    >>> certify(problem.upper, problem.lower, [0.0, 0.0], samples=10**6, epsilon=0.01, seed=0).verdict  # ∇g = 0 there
    'cannot be decided'
    """
    if hasattr(x, "last"):
        raise TypeError(
            "x is a Result; it must be one point: result.x, or result.x[0] where runs were asked for"
        )
    point = np.array(x, dtype=np.float64)
    if point.size == 0 or not np.isfinite(point).all():
        raise ValueError("x must be finite and not empty")
    total = whole("samples", samples)
    most = whole("groups", groups)
    if total < 16 or most < 16:
        raise ValueError(
            f"samples={samples!r} and groups={groups!r} must be at least 16: an interval needs them"
        )
    if isinstance(confidence, (bool, str)) or not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be in (0, 1)")
    target = None if epsilon is None else positive_pair("epsilon", epsilon)
    count = min(total, most) // 2 * 2
    upper_rng, lower_rng = default_rng(seed).spawn(2)
    try:
        above = _sampled("upper", upper, upper_rng, point, total, count)
        below = _sampled("lower", lower, lower_rng, point, total, count)
    except (ValueError, IndexError) as error:
        hint = ". Of a result with runs give result.x[0]" if point.ndim > 1 else ""
        raise ValueError(
            f"x of shape {point.shape} cannot be evaluated: {error}{hint}"
        ) from error
    risk = 1 - confidence
    lower_gradient_squared = _square(below.rows).interval(risk / 4)
    stationarity, multiplier = _stationarity(above.rows, below.rows, risk)
    needed = max(above.needed, below.needed)
    if below.needed:
        lower_gradient_squared = Interval(
            lower_gradient_squared.estimate, 0.0, math.inf
        )
    if needed:
        stationarity = Interval(stationarity.estimate, 0.0, math.inf)
    verdict = ""
    more = 0
    if target is not None:
        verdict = _verdict(stationarity, lower_gradient_squared, target)
        if verdict == "not decided" and needed:
            more = needed - total
        elif verdict == "not decided":
            a = above.rows
            b = below.rows
            # So many times the samples tell ∇g from 0, or show that ∇g is tiny.
            times = lower_gradient_squared.high / (_TINY * target[1])
            # λ = 0 will not do, and ∇g, along which λ would have to help, may be 0.
            hidden = (
                lower_gradient_squared.low == 0
                and _square(a).limit(-risk / 4) > target[0]
            )
            if hidden and times <= 1:
                verdict = UNDECIDABLE
            else:
                factor = _factor(a, b, target, risk) or times
                more = _round(max(0.1, factor - 1) * total)
    return Certificate(
        lower_gradient_squared,
        stationarity,
        multiplier,
        confidence,
        target,
        verdict,
        more,
        above.calls,
        below.calls,
        (above.assumption, below.assumption),
    )


def _stationarity(a: Values, b: Values, risk: float) -> tuple[Interval, float]:
    """An interval for min over λ ≥ 0 of ‖∇f + λ∇g‖², and λ̂: chosen on the first half of the groups, judged on the second."""
    half = len(a) // 2
    first = _square(b[:half])
    guess = float(
        best_multiplier(_UStatistic(a[:half], b[:half]).value, max(first.value, 0.0))
    )

    def upper_limit(multiplier: float) -> float:
        return _square(a[:half] + multiplier * b[:half]).limit(risk / 4)

    # λ̂ minimises an upper limit, not an estimate, because λ multiplies the noise of ∇g.
    multiplier = min((guess * factor for factor in _CHOICES), key=upper_limit)
    second = b[half:]
    c = a[half:] + multiplier * second
    square = _square(c)
    cross = _UStatistic(c, second)
    curvature = _square(second).limit(-risk / 12)
    # min over λ ≥ 0 of ‖c + (λ−λ̂)b‖² from below: ⟨c, b⟩ is near 0 at the minimiser, so little is lost.
    rising = _loss(-cross.limit(-risk / 24), math.inf, curvature)
    falling = _loss(cross.limit(risk / 24), multiplier, curvature)
    high = max(square.limit(risk / 4), 0.0)
    low = max(0.0, square.limit(-risk / 12) - max(rising, falling))
    return Interval(square.value, min(low, high), high), multiplier


def _loss(slope: float, room: float, curvature: float) -> float:
    """max over 0 ≤ w ≤ room of 2 w slope − w² curvature."""
    if slope <= 0 or room <= 0:
        return 0.0
    way = room
    if curvature > 0:
        way = min(slope / curvature, room)
    if math.isinf(way):
        return math.inf
    return 2 * way * slope - way**2 * curvature


def _verdict(
    stationarity: Interval, lower: Interval, target: tuple[float, float]
) -> str:
    if stationarity.high <= target[0] and lower.high <= target[1]:
        return "stationary"
    if stationarity.low > target[0] or lower.low > target[1]:
        return "not stationary"
    return "not decided"


class _UStatistic:
    """⟨E u, E v⟩ from pairs of different groups; rows are groups, independent of one another."""

    def __init__(self, u: Values, v: Values) -> None:
        n = len(u)
        kernel = u @ v.T
        kernel = (kernel + kernel.T) / 2
        centered = (
            kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
        )
        self.largest = float(np.linalg.eigvalsh(centered)[-1]) / (
            n - 1
        )  # where u is v, the covariance's top eigenvalue
        np.fill_diagonal(kernel, 0.0)
        self.n = n
        self.value = float(kernel.sum() / (n * (n - 1)))
        rows = kernel.sum(axis=1) / (n - 1)
        residual = kernel - rows[:, None] - rows[None, :] + self.value
        np.fill_diagonal(residual, 0.0)
        # Hoeffding's decomposition: Var = linear/n + degenerate/(n(n−1)). A row's mean leaves out the row itself, which
        # shrinks its deviation by (n−2)/(n−1).
        self.linear = (
            4
            * float(np.sum((rows - self.value) ** 2))
            / (n - 1)
            * ((n - 1) / (n - 2)) ** 2
        )
        self.degenerate = 2 * float(np.sum(residual**2)) / (n * (n - 1))

    def width(self, tail: float, factor: float = 1.0) -> float:
        """How far the truth may lie above the value, or for a negative `tail` below, but for this probability.

        `factor` times as many samples make the groups' variances so many times smaller.
        """
        n = self.n
        z = _student(abs(tail), self.n - 1)
        linear = self.linear / factor
        degenerate = self.degenerate / factor**2
        largest = self.largest / factor
        if tail > 0:
            # The linear part, 4μᵀΣμ, is small wherever the estimate of μ happens to be; but μ may be off by e with
            # eᵀΣe ~ tr Σ²/n, and an upper limit must include e. (Below, a small estimate only widens.)
            error = (degenerate / 2 + max(z**2 - 1, 0) * largest**2) / n
            linear = (math.sqrt(linear) + 2 * math.sqrt(error)) ** 2
        return z * math.sqrt(linear / n + degenerate / (n * (n - 1)))

    def limit(self, tail: float) -> float:
        """The limit above, or for a negative `tail` below, which the truth passes with this probability at most."""
        return self.value + math.copysign(self.width(tail), tail)

    def interval(self, tail: float) -> Interval:
        """For a squared norm: both limits, neither negative."""
        return Interval(
            self.value, max(0.0, self.limit(-tail)), max(0.0, self.limit(tail))
        )

    def likely(self, limit: float = 0.0) -> float:
        """The value of a squared norm, shrunk as far as noise explains it.

        It is kept off a `limit`, by a fifth of it as far as half a standard error allows: a truth nearer to it than its
        error is not likely, and would take any number of samples.
        """
        variance = self.linear / self.n + self.degenerate / (self.n * (self.n - 1))
        shrunk = 0.0
        if self.value > 0:
            shrunk = max(0.0, self.value - variance / self.value)
        off = min(math.sqrt(variance) / 2, 0.2 * limit)
        if abs(shrunk - limit) >= off:
            return shrunk
        return limit + math.copysign(off, shrunk - limit)


def _factor(
    a: Values, b: Values, target: tuple[float, float], risk: float
) -> float | None:
    """How many times the samples would decide, were both gradients and their noise what they are likely to be.

    None where no number would: then ∇g is likely to be 0, for all that is known.

    The limits of :func:`certify` are taken at so many times the samples: "stationary" where some λ has both residuals
    below, "not stationary" where one of them is above whatever λ is. A sample says less of the first residual: one half
    is for choosing λ.
    """
    gg = _square(b)
    best = float(best_multiplier(_UStatistic(a, b).value, gg.likely()))
    tried = [_square(a + best * choice * b) for choice in _CHOICES]
    values = [each.likely(target[0]) for each in tried]
    lower = gg.likely(target[1])
    least, value = min(zip(tried, values, strict=True), key=lambda each: each[1])
    cross = _UStatistic(a + best * b, b)

    def decides(factor: float) -> bool:
        half = factor / 2
        high = min(
            each + one.width(risk / 4, half)
            for one, each in zip(tried, values, strict=True)
        )
        if high <= target[0] and lower + gg.width(risk / 4, factor) <= target[1]:
            return True
        if lower - gg.width(-risk / 4, factor) > target[1]:
            return True
        curvature = lower - gg.width(-risk / 12, half)
        if curvature <= 0:
            return False
        lost = cross.width(-risk / 24, half) ** 2 / curvature
        return value - least.width(-risk / 12, half) - lost > target[0]

    low = 0.0
    high = 1.0
    while not decides(math.exp(high)):
        low = high
        high = high + 1
        if high > _FARTHEST:
            return None
    while high - low > 0.01:
        middle = (low + high) / 2
        if decides(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)


def _square(rows: Values) -> _UStatistic:
    return _UStatistic(rows, rows)


class _Sampled(NamedTuple):
    """The gradients of a level: a row for each group of samples."""

    rows: Values
    calls: int
    assumption: str
    needed: int  # the number of samples that would support an interval; 0 if no more are needed


def _sampled(
    name: str,
    oracle: Any,
    rng: np.random.Generator,
    point: Values,
    total: int,
    count: int,
) -> _Sampled:
    """Evaluate a level at the point: exactly if that is not dearer than `total` samples, else in `count` groups."""
    level = Level(name, oracle, point.shape, point.dtype)
    oracle = level.oracle
    symbol = {"upper": "∇f", "lower": "∇g"}[name]
    place = point.reshape(1, -1)
    terms = oracle.n if isinstance(oracle, FiniteSum) else 0
    exact = 0 < terms <= total
    size = total // count
    rows: Any
    if exact:
        rows = np.repeat(level.exact(place), count, axis=0)
        calls = terms
    else:
        groups = [
            level.gradient(place, level.draw([rng], [size])[0]) for _ in range(count)
        ]
        rows = np.concatenate(groups)
        calls = size * count
    if not np.isfinite(rows).all():
        raise ValueError(
            f"the {name} gradient is not finite at x; nothing can be certified there"
        )
    doubt = ""
    if exact:
        assumption = f"{symbol}: exact, all {terms:,} terms were evaluated"
    elif level.deterministic:
        assumption = f"{symbol}: exact"
    elif type(oracle) is Gaussian:
        assumption = f"{symbol}: Gaussian noise"
    else:
        assumption = (
            f"{symbol}: the means of {count} groups of {size:,} samples are near normal"
        )
        if terms:
            unseen = max(0, terms - count * size)
            assumption += f", and at least {unseen:,} of {terms:,} terms, which were not drawn, are like the others"
        doubt = _doubt(rows, size, bool(terms))
    if not doubt:
        return _Sampled(rows, calls, assumption, 0)
    remedy = "more samples, or an exact oracle, would tell"
    if terms:
        remedy = f"samples={terms} evaluates all terms"
    return _Sampled(
        rows,
        calls,
        f"{symbol}: no interval, because {doubt}; {remedy}",
        terms or 2 * total,
    )


def _doubt(rows: Values, size: int, sum_of_terms: bool) -> str:
    """Why group means of `size` samples support no interval; "" if nothing speaks against them.

    With deviations s_i² of the groups from their mean, about (Σs²)²/Σs⁴ groups carry the spread: a third of them for
    normal noise in one dimension, and n/(3 + n/h) if h samples in n groups carry all of it.
    """
    count = len(rows)
    mean = rows.mean(axis=0)
    squares = np.sum((rows - mean) ** 2, axis=1)
    total = float(squares.sum())
    length = float(np.linalg.norm(mean))
    if total <= 1e-24 * count * length**2:
        return (
            "the samples do not differ, and terms that they missed may be of any size"
        )
    carriers = total**2 / float(np.sum(squares**2))
    if carriers < count / (3 + count / _CARRIERS):
        return f"about {carriers:.0f} of {count} groups carry the spread of all samples"
    spread = math.sqrt(size) * float(np.std(rows @ mean / max(length, 1e-300), ddof=1))
    if sum_of_terms and spread < _AGREEMENT * length:
        return "the sampled terms nearly agree, and few terms that were missed could balance them"
    return ""


def _student(tail: float, degrees: int) -> float:
    """The upper `tail` quantile of Student's t, by its expansion around the normal one; good from 15 degrees on."""
    z = NormalDist().inv_cdf(1 - tail)
    v = degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def _round(count: float) -> int:
    """To two digits: it is an estimate."""
    return int(float(f"{min(count, 1e18):.1e}"))
