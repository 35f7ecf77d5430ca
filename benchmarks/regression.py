"""Has something become slow? ``python -m benchmarks.regression`` compares ratios with committed limits, in a minute.

Ratios, because times of different machines do not compare; with generous margins, because machines are noisy. A ratio
that breaks its limit is measured again, twice at most, and the best counts. To add one, add a line to `CHECKS`.
"""

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import naive, solver
from benchmarks.table import side_by_side


def paper():
    """The paper's experiment at a fraction of its budget."""
    budget = 4 * 10**6
    results = solver.experiment(None, budget)
    times = side_by_side(
        {
            "exact": partial(solver.experiment, 1, budget),
            "sampled": partial(solver.experiment, 1, budget, per_sample=True),
            "draws": partial(solver.draw, solver.normals(results)),
            "naive": partial(naive.experiment, budget),
            "loop": partial(naive.experiment, budget, naive.exact_law),
        },
        rounds=3,
    )
    return {
        "per sample / bare draws": times["sampled"] / times["draws"],
        "naive / exact law": times["naive"] / times["exact"],
        "exact law / naive loop with the exact law": times["exact"] / times["loop"],
    }


def steps():
    """A step of one run against a bare loop: the mean of the four methods' ratios."""
    ratios = [
        ratio
        for _, _, ratio in solver.against_loop(2000, seconds=0.5, rounds=9).values()
    ]
    return {"a step of one run / a bare loop's": sum(ratios) / len(ratios)}


def runs():
    times = side_by_side(
        {n: partial(solver.experiment, n, 10**6) for n in (1, 1000)}, rounds=3
    )
    return {"1000 runs / 1 run": times[1000] / times[1]}


def dimensions():
    """A step of one run, exact gradients, against what it cannot do without."""
    found = {}
    for dimension, steps in ((10**5, 100), (10**6, 20)):
        problem, x0 = solver.quadratics(dimension), np.zeros(dimension)

        def solve(n, problem=problem, x0=x0):
            solver.minimize(*problem, x0, method="sdbgd", steps=n, record=None)

        times = solver.per_step(
            {"step": solve}, {"floor": solver.floor(dimension)}, steps, seconds=0.5
        )
        found[f"solver step / floor, dimension {dimension:.0e}".replace("+0", "")] = (
            times["step"] / times["floor"]
        )
    return found


def batches():
    """Whatever the batch, the exact law costs the same, and a sum is evaluated a few times over at most."""
    upper, law, (few, draw) = (
        solver.quadratics(2)[0],
        solver.quadratics(2, sigma=0.5)[1],
        solver.finite_sum(10**3),
    )

    def solve(n, lower, size):
        method = solver.tiebreak.methods.sdbgd.replace(upper_batch=1, lower_batch=size)
        solver.minimize(upper, lower, [0.0, 0.0], method=method, steps=n, record=None)

    large = 10**8
    solves = {size: partial(solve, lower=law, size=size) for size in (1, large)}
    solves["sum"] = partial(solve, lower=few, size=large)
    solves["weighted"] = partial(
        solve, lower=solver.finite_sum(10**3, weighted=True)[0], size=large
    )
    times = solver.per_step(solves, {"loop": [partial(draw, large)]}, 200, seconds=0.5)
    return {
        "exact law, batch 1e8 / batch 1": times[large] / times[1],
        "sum of 1e3 terms, batch 1e8 / plain loop": times["sum"] / times["loop"],
        "sum of 1e3 terms by weights, batch 1e8 / plain loop": times["weighted"]
        / times["loop"],
    }


@contextmanager
def one_thread():
    """On a busy machine PyTorch's threads wait for each other, and what is compared is how often they do."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step():
    """The barrier step against its memory floor."""
    from benchmarks import step

    with one_thread():
        return step.ratios(quick=True)


def training():
    """Two backward passes and SGD against SDBGD, a perceptron of 10 M parameters."""
    import torch
    from torch.nn import functional as F

    from tiebreak.torch import SDBGD

    torch.manual_seed(0)
    batches = [(torch.randn(64, 784), torch.randint(64, (64,))) for _ in range(2)]

    def begin(optimizer):
        widths = (784, 2048, 2048, 2048, 64)
        layers = [
            part
            for i in range(4)
            for part in (torch.nn.Linear(*widths[i : i + 2]), torch.nn.ReLU())
        ]
        model = torch.nn.Sequential(*layers[:-1])
        losses = [lambda x=x, y=y: F.cross_entropy(model(x), y) for x, y in batches]
        return optimizer(model.parameters(), lr=0.01), losses

    (sgd, (first, second)), (ours, (upper, lower)) = (
        begin(torch.optim.SGD),
        begin(SDBGD),
    )

    def two_backwards():
        sgd.zero_grad()
        first().backward()
        second().backward()
        sgd.step()

    with one_thread():
        times = side_by_side(
            {"sgd": two_backwards, "ours": lambda: ours.step(upper=upper, lower=lower)},
            rounds=20,
        )
    return {
        "training step, SDBGD / two backward passes and SGD, 10 M": times["ours"]
        / times["sgd"]
    }


class Check(NamedTuple):
    """A ratio's usual value, and the factor by which it may be worse."""

    name: str
    source: Callable  # gives this ratio, and perhaps others, by name
    value: float
    factor: float
    least: bool = False  # whether the ratio is to be large

    @property
    def limit(self):
        return self.value / self.factor if self.least else self.value * self.factor

    def used(self, ratio):
        """The share of the limit that is used: above 1 it is broken."""
        return self.limit / ratio if self.least else ratio / self.limit

    def best(self, ratios):
        return max(ratios) if self.least else min(ratios)


CHECKS = (
    Check("1000 runs / 1 run", runs, 15.0, 1.5),
    Check("per sample / bare draws", paper, 1.9, 2.0),
    Check("naive / exact law", paper, 5.0, 2.5, least=True),
    Check(
        "exact law / naive loop with the exact law", paper, 2.4, 1.8
    ),  # short runs: the start weighs
    Check("a step of one run / a bare loop's", steps, 1.45, 1.3),
    Check("solver step / floor, dimension 1e5", dimensions, 2.1, 3.5),
    Check("solver step / floor, dimension 1e6", dimensions, 1.5, 3.5),
    Check("exact law, batch 1e8 / batch 1", batches, 1.0, 2.5),
    Check("sum of 1e3 terms, batch 1e8 / plain loop", batches, 12.0, 3.0),
    Check("sum of 1e3 terms by weights, batch 1e8 / plain loop", batches, 2.5, 3.0),
    Check("cpu barrier step / floor, 1e7", step, 1.3, 2.5),
    Check(
        "training step, SDBGD / two backward passes and SGD, 10 M", training, 1.1, 1.6
    ),
)
ATTEMPTS = 3


def measured(checks=CHECKS, tell=print):
    """Name → all measurements of a ratio; and source → why there are none, where something is not installed."""
    found, absent = {}, {}
    for attempt in range(ATTEMPTS):
        broken = [
            c
            for c in checks
            if c.source not in absent
            and not (c.name in found and holds(c, found[c.name]))
        ]
        for source in dict.fromkeys(check.source for check in broken):
            tell(
                f"{'again: ' if attempt else ''}{source.__name__} …", end="", flush=True
            )
            start = time.perf_counter()
            try:
                ratios = source()
            except ModuleNotFoundError as error:
                absent[source] = str(error)
                tell(f" not measured: {error}")
                continue
            tell(f" {time.perf_counter() - start:.0f} s")
            for name, ratio in ratios.items():
                found.setdefault(name, []).append(ratio)
    return found, absent


def holds(check, ratios):
    return check.used(check.best(ratios)) <= 1


def main():
    found, absent = measured()
    width = max(len(name) for name in (*(check.name for check in CHECKS), *found))
    print(f"\n{'ratio':<{width}}  {'value':>8}  {'limit':>10}  {'used':>5}  tries")
    broken = []
    for check in CHECKS:
        ratios = found.get(check.name)
        if ratios is None:
            print(
                f"{check.name:<{width}}  not measured: {absent.get(check.source, 'its source does not give it')}"
            )
            if check.source not in absent:
                broken.append(
                    f"{check.name} is not among what {check.source.__name__}() gives"
                )
            continue
        best, sign = check.best(ratios), "≥" if check.least else "≤"
        line = f"{best:8.3g}  {sign + f' {check.limit:.3g}':>10}  {check.used(best):5.0%}  {len(ratios)}"
        print(f"{check.name:<{width}}  {line}")
        if not holds(check, ratios):
            broken.append(
                f"{check.name} is {best:.3g}, and must be {sign} {check.limit:.3g}"
            )
    for name in found.keys() - {check.name for check in CHECKS}:
        print(f"{name:<{width}}  {min(found[name]):8.3g}  no limit")
    if broken:
        print("\nSlower than it was:", *broken, sep="\n  ")
        print(
            "If that is meant, change the value in CHECKS of benchmarks/regression.py, and say why in the commit."
        )
        sys.exit(1)
    print("\nAll limits hold.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
