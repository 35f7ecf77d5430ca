"""The returned iterate: P(N_K = k) = w_k / (w_0 + … + w_{K−1}), from one pass, at whatever K the run stops.

Chi-square tests with fixed seeds reject at ALPHA = 1e-4 each.
"""

import numpy as np
import pytest
from scipy import stats

import tiebreak
from tiebreak import Exact, Power, Schedule, methods
from tiebreak.solver.selection import replacements

ALPHA = 1e-4

WEIGHTS = {
    "uniform": np.ones(20),
    "decaying": 0.025 / np.sqrt(np.arange(1.0, 21)),  # η_k β_k of SDBGD
    "growing": np.arange(1.0, 21) ** 2,
    "uneven": np.array([1.0, 1e-3, 5.0, 0.0, 2.0] * 4),
    "zeros first": np.array([0.0, 0.0, 1.0, 0.0, 3.0, 1.0]),
}


def chosen(replaced):
    """N_K of every run: the last step at which the kept iterate was replaced."""
    steps, _ = replaced.shape
    return steps - 1 - np.argmax(replaced[::-1], axis=0)


def follows(selected, weights):
    """Chi-square against w_k / Σw; what has probability 0 must not occur at all."""
    observed = np.bincount(selected, minlength=len(weights))
    possible = weights > 0
    assert (observed[~possible] == 0).all()
    observed, expected = (
        observed[possible],
        len(selected) * weights[possible] / weights.sum(),
    )
    rare = expected < 5
    if rare.any():  # pooled, as chi-square asks
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    if len(expected) == 1:
        assert observed.tolist() == [len(selected)]
        return
    assert stats.chisquare(observed, expected).pvalue > ALPHA


# ------------------------------------------------------------------------------------------------------- the function


@pytest.mark.parametrize(
    ("name", "K"),
    [(n, K) for n, w in WEIGHTS.items() for K in (1, 2, 6, 20) if w[:K].any()],
)
def test_selection_follows_its_law_at_every_horizon(name, K):
    """The first K rows of one long draw: stopping at K is valid whatever comes later."""
    weights = WEIGHTS[name]
    rng = np.random.default_rng(17)
    replaced = replacements([rng] * 20_000, weights, total=0.0)
    assert replaced.shape == (len(weights), 20_000)
    follows(chosen(replaced[:K]), weights[:K])


class Scripted:
    """A generator whose uniform numbers are known."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self, size):
        taken, self.numbers = self.numbers[:size], self.numbers[size:]
        return np.array(taken)


def test_step_k_replaces_with_probability_its_share_of_the_weight_so_far():
    """At total weight W before it, a step of weight w replaces if and only if u < w/(W + w)."""
    below, above = np.nextafter(0.25, 0), 0.25
    found = replacements(
        [Scripted(0.999, below), Scripted(0.0, above)], [3.0, 1.0], total=0.0
    )
    assert found.tolist() == [[True, True], [True, False]]
    assert replacements(
        [Scripted(below), Scripted(above)], [1.0], total=3.0
    ).tolist() == [[True, False]]


@pytest.mark.parametrize("weight", [1e-300, 0.1, 1 / 3, 1.0, 1e300])
def test_first_weight_always_replaces(weight):
    largest = np.nextafter(1.0, 0)  # the largest number that random() returns
    assert replacements([Scripted(largest)], [weight], total=0.0).all()


def test_weight_zero_never_replaces():
    found = replacements([Scripted(*[0.0] * 4)], [0.0, 1.0, 0.0, 0.0], total=0.0)
    assert found[:, 0].tolist() == [False, True, False, False]
    assert not replacements([Scripted(0.0)], [0.0], total=5.0).any()


@pytest.mark.parametrize("split", [[20], [1] * 20, [7, 13], [3, 1, 9, 7]])
@pytest.mark.parametrize("name", ["uniform", "decaying", "uneven"])
def test_blocks_do_not_matter(name, split):
    """Drawn in any blocks, the totals carried along: the same choices, and the generators end in the same state."""
    weights = WEIGHTS[name] * 0.1  # sums that round
    whole = [np.random.default_rng(s) for s in range(200)]
    parts = [np.random.default_rng(s) for s in range(200)]
    wanted = replacements(whole, weights, total=0.0)
    found, total, start = [], 0.0, 0
    for length in split:
        block = weights[start : start + length]
        found.append(replacements(parts, block, total))
        for weight in block:
            total += weight
        start += length
    assert np.array_equal(np.concatenate(found), wanted)
    assert [r.bit_generator.state for r in whole] == [
        r.bit_generator.state for r in parts
    ]


# ----------------------------------------------------------------------------------------------------- through minimize


LEVEL = Exact(lambda x: x, vectorized=True)


def upper_alone(schedule):
    return methods.Method("upper alone", lambda fg, gg: 0 * fg, schedule)


def solve(schedule, steps, runs, **options):
    """A deterministic problem: what is random is the selection alone."""
    options |= {
        "method": upper_alone(schedule),
        "steps": steps,
        "runs": runs,
        "seed": 5,
    }
    return tiebreak.minimize(LEVEL, LEVEL, [1.0], **options)


SCHEDULES = {
    "uniform": (Schedule(step_size=0.01, barrier=0.5), lambda t: np.ones(len(t))),
    "decaying": (
        Schedule(step_size=Power(0.05, -1 / 4), barrier=Power(0.5, -1 / 4)),
        lambda t: t**-0.5,
    ),
    "growing": (
        Schedule(step_size=Power(0.05, -1 / 2), barrier=Power(0.5, 1)),
        lambda t: t**0.5,
    ),
    "no barrier": (Schedule(step_size=Power(0.05, -1)), lambda t: 1 / t),
}


@pytest.mark.parametrize("K", [1, 2, 12, 300])
@pytest.mark.parametrize("name", SCHEDULES)
def test_minimize_returns_x_of_a_random_step_with_probability_eta_beta(name, K):
    """P(N_K = k) ∝ η_k β_k (η_k where there is no barrier), K beyond a block of draws included."""
    schedule, law = SCHEDULES[name]
    result = solve(
        schedule, K, runs=3000, record=1 if K < 20 else None, keep_iterates=True
    )
    follows(result.selected.step, law(np.arange(1.0, K + 1)))
    if K < 20:  # and it is that iterate: all runs share one trajectory, x_0 … x_K
        path = result.history.x[:, 0, 0]
        assert np.array_equal(result.selected.x[:, 0], path[result.selected.step])


def test_a_step_of_weight_zero_is_never_returned():
    schedule = Schedule(step_size=0.1, barrier=lambda k: float(k % 3 == 1))
    steps = solve(schedule, 9, runs=3000).selected.step
    follows(steps, np.array([0.0, 1.0, 0.0] * 3))


def test_without_any_weight_the_start_is_returned():
    result = solve(Schedule(step_size=0.1, barrier=0.0), 5, runs=10)
    assert result.selected.step.tolist() == [0] * 10
    assert (result.selected.x == 1.0).all()


def test_stopping_early_does_not_spoil_the_law(tmp_path):
    """A run stopped by its callback at K = 8, and then resumed to K = 30, is as well distributed at both."""
    schedule, law = SCHEDULES["decaying"]
    stopped = solve(schedule, 30, runs=3000, callback=lambda record: record.step == 8)
    assert stopped.steps.tolist() == [8] * 3000
    follows(stopped.selected.step, law(np.arange(1.0, 9)))
    stopped.save(tmp_path / "stopped")
    resumed = tiebreak.minimize(
        LEVEL, LEVEL, method=upper_alone(schedule), resume=tmp_path / "stopped"
    )
    assert np.array_equal(
        resumed.selected.step, solve(schedule, 30, runs=3000).selected.step
    )
    follows(resumed.selected.step, law(np.arange(1.0, 31)))


def test_selection_does_not_depend_on_the_noise():
    """Its stream is its own: other samples, other problem, the same choices."""
    problem = tiebreak.problems.paper()
    options = {"steps": 100, "runs": 50, "seed": 2}
    one = tiebreak.minimize(problem.upper, problem.lower, problem.x0, **options)
    two = tiebreak.minimize(lambda x: x, lambda x: x - 1, np.ones(3), **options)
    assert np.array_equal(one.selected.step, two.selected.step)
    assert len(set(one.selected.step.tolist())) > 10
