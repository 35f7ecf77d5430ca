"""A problem and methods of one's own, as a user would write them in a file for `tiebreak compare`."""

import numpy as np

import tiebreak
from tiebreak import Method, rules, schedules


def problem():
    """The points with x₁ = x₂ minimise g; f prefers (3, 1). Plain functions, no constants."""
    lower = tiebreak.Exact(
        lambda x: (x[0] - x[1]) * np.array([1.0, -1.0]),
        lambda x: (x[0] - x[1]) ** 2 / 2,
    )
    upper = tiebreak.Exact(lambda x: x - np.array([3.0, 1.0]))
    return tiebreak.problems.Problem(
        "diagonal", upper, lower, np.array([0.0, 0.5]), np.array([2.0, 2.0])
    )


def by_norm(fg, gg, barrier, regularizer):
    return rules.multiplier(fg, gg, barrier * np.sqrt(gg), regularizer)


method = Method("by norm", by_norm, schedules.PAPER["sdbgd"])


def constant(constants, budget):
    """A weight for the budget."""
    smoothness = 1.0 if constants is None else constants.L_f + constants.L_g
    schedule = tiebreak.Schedule(
        step_size=0.3 / smoothness,
        barrier=1.0,
        upper_batch=4,
        lower_batch=budget // 100,
    )
    return Method("constant", rules.constant, schedule)


def explode(fg, gg):
    return 1e300 * (1 + 0 * gg)


failing = Method("explode", explode, schedules.PAPER["sdbgd"])


def breaks(fg, gg):
    return undefined_name * gg  # noqa: F821  # that is the point


broken = Method("broken", breaks, schedules.PAPER["sdbgd"])
number = 7


class Blind:
    """An oracle that cannot tell its expectation."""

    def sample(self, rng, size):
        return rng.standard_normal(2) / np.sqrt(size)

    def gradient(self, x, token):
        return x + token


def blunt():
    """Neither constants nor a solution nor values."""
    known = problem()
    return tiebreak.problems.Problem(
        "blunt",
        known.upper,
        tiebreak.Exact(lambda x: x * np.array([1.0, 0.0])),
        known.x0,
    )


blind = tiebreak.problems.Problem("blind", Blind(), Blind(), np.ones(2))


def needs_an_argument(shift):
    return problem()
