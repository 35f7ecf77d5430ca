"""The paper's experiment: against a naive program, in the number of runs, and per sample against bare draws."""

import time

import numpy as np

import tiebreak
from benchmarks import naive

METHODS = tuple(naive.METHODS)


def seconds(function, repeat=3):
    """The least of a few timings: the one least disturbed by whatever else the machine does."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def experiment(runs, budget, per_sample=False):
    """All four methods."""
    problem = tiebreak.problems.paper(per_sample=per_sample)
    return [
        tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=name, budget=budget, runs=runs, seed=0)
        for name in METHODS
    ]


def draw(count):
    """`count` standard normals and nothing else, into a buffer that stays in the cache: the fastest way NumPy has."""
    rng, buffer = np.random.default_rng(0), np.empty(2**14)
    for _ in range(count // len(buffer)):
        rng.standard_normal(out=buffer)
    rng.standard_normal(count % len(buffer))


def measure(budget=10**8):
    """Rows of (what, value, unit or meaning)."""
    experiment(1, 10**5)  # warm
    exact = {
        runs: seconds(lambda runs=runs: experiment(runs, budget), repeat=3 if runs < 100 else 1)
        for runs in (1, 10, 1000)
    }
    drawn = dict(zip(METHODS, experiment(None, budget), strict=True))
    rows = [(f"exact law, {runs} runs", value, "s") for runs, value in exact.items()]
    rows.append(("1000 runs / 1 run", exact[1000] / exact[1], "× (goal: < 10)"))
    normals = {
        name: 2 * result.calls // tiebreak.methods.get(name).estimator.evaluations for name, result in drawn.items()
    }
    bare = seconds(lambda: draw(sum(normals.values())), repeat=1)
    sampled = seconds(lambda: experiment(1, budget, per_sample=True), repeat=1)
    again = seconds(lambda: draw(sum(normals.values())), repeat=1)
    bare = (bare + again) / 2  # before and after, so that a drift of the machine's speed cancels
    rows.append((f"bare draws of {sum(normals.values()):.2e} normals", bare, "s"))
    rows.append(("per sample, 1 run", sampled, "s"))
    rows.append(("speed per sample / speed of bare draws", bare / sampled, "(goal: ≥ 0.8)"))

    def program():
        for name in METHODS:
            _, steps = naive.METHODS[name](budget, np.random.default_rng(0))
            assert steps == drawn[name].steps, (name, steps)

    written = seconds(program, repeat=1)
    rows.append(("naive program, 1 run", written, "s"))
    rows.append(("naive / per sample, 1 run", written / sampled, "×"))
    rows.append(("naive / exact law, 1 run", written / exact[1], "×"))
    rows.append(("naive / exact law, 10 runs (naive: 10 × 1 run)", 10 * written / exact[10], "×"))
    return rows
