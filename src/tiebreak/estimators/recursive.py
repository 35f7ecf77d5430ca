"""Variance reduction by differences: v_k = G_k(x_k) + c_k (v_{k−1} − G_k(x_{k−1})), the same mini-batch at both points.

STORM keeps the fraction c = 1 − α_k at every step. SPIDER and PAGE keep all of it, c = 1, and now and then nothing,
c = 0: a refresh, with a large batch that is evaluated once.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from tiebreak.checks import whole
from tiebreak.estimators.contract import Estimator, Memory, Update, Value, points
from tiebreak.estimators.plain import WithMomentum
from tiebreak.schedules import Parameters
from tiebreak.tolerance import larger


@dataclass(frozen=True)
class Storm(WithMomentum):
    """Recursive momentum: v_k = G_k(x_k) + (1 − α_k)(v_{k−1} − G_k(x_{k−1})), the same mini-batch at both points.

    A sample costs two calls, in the first step `first_points`: there is no previous point yet.

    Parameters
    ----------
    momentum : law or float, optional
        α_k in [0, 1]; without it, the schedule's: `upper_momentum` and `lower_momentum`, or `momentum` for both.
    first_points : int
        1, or 2 to charge the first step like all others, as the accounting of VR-PR-SDBPG does.

    Examples
    --------
    >>> import tiebreak
    >>> method = tiebreak.methods.sdbgd.replace(estimator=Storm(momentum=0.1))
    >>> [method.at(k).lower_points for k in range(3)]
    [1, 2, 2]
    """

    first_points: int = 1
    evaluations = 2

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """No estimate yet, and 0: what stands there now does not count."""
        return zeros, zero

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """v_k."""
        previous, begun = memory
        estimate = fresh + (1 - self.rate(level, parameters)) * begun * (
            previous - before
        )
        return estimate, (estimate, begun**0.0)

    def later(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """The same where it is known to count: every bit of it, in half the time."""
        estimate = memory[0] - before
        estimate *= 1 - self.rate(level, parameters)
        estimate += fresh
        return estimate, (estimate, memory[1])


@dataclass(frozen=True)
class Watched(Storm):
    """STORM that looks at its own error, and forgets sooner where there is too much of it.

    Noise that changes with x does not cancel in STORM's differences; it adds up for 1/α steps. It shows: before a step
    the fresh G_k(x_{k−1}) differs from v_{k−1} by noise and by minus that error, and the error is the same for many
    steps. An average of these gaps over the last 1/(4α) of them has the error in it, and of the noise, as two batches
    at one point tell, a known part. By as much as its square exceeds twice that part, α is larger.

    A rule may ask for what the solver finds by comparing, for each level: ``upper_change`` and ``lower_change``,
    ‖G_k(x_k) − G_k(x_{k−1})‖², ``upper_along`` and ``lower_along``, the inner product of that difference with
    x_k − x_{k−1}, and ``upper_spread`` and ``lower_spread``, ‖G_k(x_{k−1}) − G_{k−1}(x_{k−1})‖², all 0 in the first
    step; and for ``moved``, ‖x_k − x_{k−1}‖², ``away``, ‖x_k − x_0‖², and ``resolution``, the shortest step
    that shows a curvature.
    """

    watches = True

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """As STORM; no gap, no noise, no gradient yet."""
        return (*super().begin(level, zeros, zero), zeros, zero, zeros)

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """v_k; and the gradient G_k(x_k) comes last in the memory."""
        previous, begun, gap, noise, last = memory
        rate = self.rate(level, parameters)
        quick = min(1.0, 4 * rate)
        gap = gap + quick * (begun * (before - previous) - gap)
        noise = noise + quick * (begun * _square(before - last) / 2 - noise)
        square = _square(gap)
        expected = (quick + rate) * noise
        # rate · max(1, seen/expected), at most 1, without an infinite quotient; without noise there is nothing to keep.
        nothing = (square <= 0) & (expected <= 0)
        alpha = (
            rate
            * (larger(square, expected) + nothing)
            / (larger(expected, rate * square) + nothing)
        )
        estimate = fresh + (1 - alpha) * begun * (previous - before)
        return estimate, (estimate, begun**0.0, gap, noise, fresh)


def _square(rows: Value) -> Value:
    return (rows * rows).sum(-1, keepdims=True)


class _Refreshed(Estimator):
    """What SPIDER and PAGE share: all but when they refresh."""

    evaluations = 2

    @abstractmethod
    def refreshes(self, parameters: Any) -> Any:
        """Return 1 for a step that refreshes, else 0; for arrays of steps, arrays."""

    def asks(self, level: str, parameters: Any) -> tuple[Any, Any]:
        """The large batch at one point, or the small one at two."""
        refreshed = self.refreshes(parameters)
        small = getattr(parameters, f"{level}_batch")
        return small + refreshed * (
            getattr(parameters, f"{level}_refresh") - small
        ), 2 - refreshed

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """An estimate that the first step, a refresh, does not look at."""
        return (zeros,)

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """v_k."""
        again = 1 * (points(self, level, parameters) == 2)
        estimate = fresh + again * (memory[0] - before)
        return estimate, (estimate,)


@dataclass(frozen=True)
class Spider(_Refreshed):
    """A fresh estimate at every step that `period` divides, and between them v_k = v_{k−1} + G_k(x_k) − G_k(x_{k−1}).

    The schedule sets `period` q, the large batches of a refresh, `upper_refresh` and `lower_refresh`, and the small
    ones of all other steps, `upper_batch` and `lower_batch`. A sample costs one call at a refresh, and two elsewhere.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> schedule = tiebreak.Schedule(
    ...     0.1, barrier=1, regularizer=0.1, upper_batch=4, lower_batch=4, period=5, upper_refresh=20, lower_refresh=20
    ... )
    >>> method = tiebreak.methods.sdbgd.replace(schedule=schedule, estimator=Spider())
    >>> [method.at(k).lower_points for k in range(7)]
    [1, 2, 2, 2, 2, 1, 2]
    >>> tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=method, steps=5, seed=0).calls
    104
    """

    needs = ("period", "upper_refresh", "lower_refresh")

    def refreshes(self, parameters: Any) -> Any:
        """At k = 0, q, 2q, …."""
        return 1 * (parameters.k % parameters.period == 0)

    def cycle(self, parameters: Any) -> int:
        """After how many steps the costs repeat, where the laws are constant."""
        return int(parameters.period)


@dataclass(frozen=True)
class Page(_Refreshed):
    """SPIDER without a period: every step refreshes with `probability` p, the first one always.

    The coin belongs to the method and not to the run: it is a fixed random function of `seed` and k. So the cost of a
    step is known before it is made, plans count it exactly, and a resumed run needs nothing to go on with. Runs side by
    side refresh at the same steps, with samples of their own; for other coins take another seed.

    Parameters
    ----------
    seed : int
        Of the coin, ≥ 0.

    Examples
    --------
    >>> import tiebreak
    >>> schedule = tiebreak.Schedule(
    ...     0.1, barrier=1, regularizer=0.1, upper_batch=4, lower_batch=4, probability=0.3,
    ...     upper_refresh=20, lower_refresh=20,
    ... )
    >>> method = tiebreak.methods.sdbgd.replace(schedule=schedule, estimator=Page(seed=2))
    >>> [method.at(k).lower_points for k in range(10)]
    [1, 2, 2, 2, 1, 1, 1, 2, 2, 2]
    """

    seed: int = 0
    needs = ("probability", "upper_refresh", "lower_refresh")

    def __post_init__(self) -> None:
        whole("seed", self.seed, least=0)

    def refreshes(self, parameters: Any) -> Any:
        """Where the coin says so."""
        k = parameters.k
        return 1 * ((coin(k, self.seed) < parameters.probability) | (k == 0))


_BITS = 0xFFFFFFFF


def coin(k: Any, seed: int) -> Any:
    """A number in [0, 1) for step k, uniform and as good as independent from step to step; of an array, an array.

    Examples
    --------
    >>> [round(coin(k, seed=1), 3) for k in range(4)]
    [0.03, 0.773, 0.821, 0.419]
    """
    # Two rounds of a 32-bit finalizer. Only the low 32 bits of each product are kept, so that Python integers and
    # 64-bit arrays, which wrap around, agree.
    mixed = _mixed((k >> 32) * 0x9E3779B1 + _mixed(seed & _BITS) + (seed >> 32))
    return _mixed(((k & _BITS) * 0x85EBCA77 + mixed) & _BITS ^ 0x27D4EB2F) / 2.0**32


def _mixed(bits: Any) -> Any:
    bits = bits & _BITS
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ (bits >> shift)) * factor) & _BITS
    return bits ^ (bits >> 16)
