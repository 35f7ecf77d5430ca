"""All methods on all problems: one residual for each at each budget, with step sizes tried equally often for all.

``compare(Comparison(problems="all", methods="all"))`` is what ``tiebreak compare`` runs, saves and draws.
"""

import os
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.experiments.blocks import Block, Store
from tiebreak.experiments.compared import Compared, Comparison
from tiebreak.experiments.contenders import Units, scales
from tiebreak.experiments.engines import Engine
from tiebreak.experiments.entrants import Contender, Entrant, rehearse
from tiebreak.experiments.outcome import origin
from tiebreak.experiments.running import BLOCK, solving
from tiebreak.experiments.sweeps import sweep
from tiebreak.experiments.tables import Table, joined
from tiebreak.experiments.tasks import Task

__all__ = ["compare"]

_TRIAL_RUNS = 3
_GONE = 1e3  # units of f
_NUMBERS = 2**22  # in the iterates of a block, at most: a step makes some ten arrays like them
_KEYS = ("problem", "method", "budget")
_KEPT = ("status", "steps", "calls", "direction_squared", "stationarity_squared", "lower_gradient_squared")


class _Case(NamedTuple):
    budget: int
    entrant: Entrant
    contender: Contender


def compare(
    comparison: Comparison | None = None,
    hear: Callable[[str, float], Any] | None = None,
    *,
    engine: Engine = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> Compared:
    """Run all methods on all problems at all budgets. Ctrl-C is passed on.

    Parameters
    ----------
    comparison : Comparison, optional
    hear : callable, optional
        Told what is being done, and which share of everything is.
    engine, store :
        Where it is done and where finished blocks are kept, as :func:`tiebreak.experiments.sweep` takes them.

    Examples
    --------
    >>> asked = Comparison(problems="paper", methods="sdbgd,penalty", budgets=[10**6], runs=2, trials=1)
    >>> found = compare(asked)
    >>> found.results["method"][found.results["best"]].tolist()
    ['Penalty']
    """
    c, began = comparison or Comparison(), time.perf_counter()
    source = origin(())
    rehearse(c.entrants, c.contenders, c.budgets)
    cases = [_Case(*each) for each in product(c.budgets, c.entrants, c.contenders)]
    tried = c.trials * _TRIAL_RUNS if c.trials > 1 else 0
    share = tried / (tried + c.runs)  # of the work, about

    def done(tasks: Sequence[Sequence[Task]], low: float, high: float) -> list[list[Block]]:
        def told(name: str, part: float) -> None:
            if hear is not None:
                hear(name, low + (high - low) * part)

        swept = sweep([task for each in tasks for task in each], engine=engine, store=store, hear=told)
        if swept.interrupted:
            raise KeyboardInterrupt
        return [[swept.blocks[task.name] for task in each] for each in tasks]

    best = [1.0] * len(cases)
    if tried:
        sizes = scales(c.trials)
        every = [_tasks(case, size, _TRIAL_RUNS, [c.seed, 1], "trial: ") for case in cases for size in sizes]
        found = [_labelled(case, 1.0, blocks) for case, blocks in _by_case(cases, done(every, 0.0, share), len(sizes))]
        means = np.array([np.mean(table["residual"]) for table in found]).reshape(len(cases), len(sizes))
        # The least; of equal ones the first, so a method that always fails keeps its own step size.
        best = [sizes[i] for i in means.argmin(axis=1)]
    judged = done([_tasks(case, size, c.runs, [c.seed, 0]) for case, size in zip(cases, best, strict=True)], share, 1.0)
    tables = [_labelled(*each) for each in zip(cases, best, judged, strict=True)]
    faults = [
        f"{case.entrant.label}, {case.budget:,} calls: {fault}"
        for case, blocks in zip(cases, judged, strict=True)
        for block in blocks
        for fault in block.facts["faults"]
    ]
    runs = joined(tables)
    gone = np.isinf(runs["residual"]) & (runs["status"] != "non_finite")
    for problem, method, budget in sorted(
        {(*each,) for each in zip(*(runs[n][gone].tolist() for n in _KEYS), strict=True)}
    ):
        faults.append(f"{problem}, {budget:,} calls: {method} left for infinity")
    return Compared(c, runs, tuple(faults), round(time.perf_counter() - began, 1), source)


def _by_case(cases: Sequence[_Case], blocks: Sequence[list[Block]], times: int) -> list[tuple[_Case, list[Block]]]:
    """Every list of blocks with its case, of which each has several in turn."""
    return [(cases[i // times], each) for i, each in enumerate(blocks)]


def _tasks(case: _Case, scale: float, runs: int, seed: list[int], kind: str = "") -> list[Task]:
    entrant, contender = case.entrant, case.contender
    there = {"problem": entrant.where, "problem_arguments": dict(entrant.arguments)}
    return solving(
        f"{kind}{entrant.label}, {contender.label}, {case.budget:,} calls, step × {scale:g}",
        entrant.where,
        "tiebreak.experiments.contenders:fitted",
        budget=case.budget,
        runs=runs,
        seed=seed,
        record=None,
        problem_arguments=entrant.arguments,
        method_arguments={"method": contender.method, "budget": case.budget, "scale": scale, **there},
        iterates=False,
        block=max(1, min(BLOCK, _NUMBERS // entrant.problem.x0.size)),
    )


def _labelled(case: _Case, scale: float, blocks: Sequence[Block]) -> Table:
    """The last iterates of all runs, with what they are of, and what is known of the problem."""
    points, p = joined(b.tables["last"] for b in blocks), case.entrant.problem
    count = len(points["run"])
    words = {"problem": case.entrant.label, "dimension": p.x0.size, "method": case.contender.label}
    words |= {"budget": case.budget, "scale": scale}
    table: Table = {name: np.full(count, value) for name, value in words.items()}
    table |= {name: points[name] for name in ("run", *_KEPT)}
    levels: dict[str, Any] = {"upper": p.upper, "lower": p.lower}
    with np.errstate(all="ignore"):
        for name, level in levels.items():
            values = points.get(f"{name}_value", np.full(count, np.nan))
            known = p.solution is not None and f"{name}_value" in points
            table |= {f"{name}_value": values}
            table |= {f"{name}_excess": values - (float(level.value(p.solution)) if known else np.nan)}
        risen = table["upper_value"] - (float(levels["upper"].value(p.x0)) if "upper_value" in points else np.nan)
        table["residual"] = _residuals(points, risen, Units.of(p))
    return table


def _residuals(points: Table, risen: NDArray[np.float64], units: Units) -> NDArray[np.float64]:
    """The larger of both residuals, in the problem's units; ∞ where a run failed.

    Where gradients are bounded a run that leaves for infinity stays finite, and may have small residuals there. So it
    has failed as well if f has `risen` beyond all that the problem is about.
    """
    upper = points["stationarity_squared"] / units.direction_squared
    larger = np.maximum(upper, points["lower_gradient_squared"] / units.lower_gradient_squared)
    gone = risen > _GONE * units.upper_value  # False where f is not known
    return np.where(np.isfinite(larger) & (points["status"] != "non_finite") & ~gone, larger, np.inf)
