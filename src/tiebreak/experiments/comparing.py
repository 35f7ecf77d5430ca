"""All methods on all problems: one residual for each at each budget, with step sizes tried equally often for all.

``compare(Comparison(problems="all", methods="all"))`` is what ``tiebreak compare`` runs, saves and draws.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.experiments.blocks import Block, Store
from tiebreak.experiments.compared import Compared, Comparison
from tiebreak.experiments.contenders import Units, scales
from tiebreak.experiments.engines import HERE, Engine
from tiebreak.experiments.entrants import Contender, Entrant, rehearse
from tiebreak.experiments.running import BLOCK, solving
from tiebreak.experiments.sweeps import sweep
from tiebreak.experiments.tables import Table, joined
from tiebreak.experiments.tables import chosen as selected
from tiebreak.experiments.tasks import Task, stays
from tiebreak.methods import Method
from tiebreak.progress import Share
from tiebreak.provenance import stamp
from tiebreak.solver.result_warnings import Remark

_TRIAL_RUNS = 3
_GONE = 1e3  # units of f, or lengths
_NUMBERS = (
    2**22
)  # in the iterates of a block, at most: a step makes some ten arrays like them
_KEYS = ("problem", "method", "budget")
_MEASURED = ("direction_squared", "stationarity_squared", "lower_gradient_squared")
_KEPT = ("status", "steps", "calls", "upper_calls", "lower_calls", *_MEASURED)


class _Case(NamedTuple):
    """Runs of a method on a problem that are read at some budgets, and so made once: for all of them it is the same."""

    entrant: Entrant
    contender: Contender
    scale: float
    budgets: tuple[int, ...]


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
    c = comparison or Comparison()
    began = time.perf_counter()
    source = stamp()
    where = _placed(c, engine)
    rehearse(c.entrants, c.contenders, c.budgets)
    for doubt in (doubt for entrant in c.entrants for doubt in entrant.doubts):
        warnings.warn(doubt, Remark, stacklevel=2)
    pairs = [*product(c.entrants, c.contenders)]
    tried = c.trials * _TRIAL_RUNS if c.trials > 1 else 0
    share = tried / (tried + c.runs)  # of the work, about

    def done(
        cases: Sequence[_Case], kind: str, runs: int, low: float, high: float
    ) -> dict[_Case, list[Block]]:
        def told(name: str, part: float) -> None:
            if hear is not None:
                hear(name, Share.of(low + (high - low) * part, part))

        tasks = {case: _tasks(case, c, runs, kind) for case in cases}
        swept = sweep(
            [task for each in tasks.values() for task in each],
            engine=where,
            store=store,
            hear=told,
        )
        if swept.interrupted:
            raise KeyboardInterrupt
        return {
            case: [swept.blocks[task.name] for task in each]
            for case, each in tasks.items()
        }

    best = {(*pair, budget): 1.0 for pair in pairs for budget in c.budgets}
    sizes = scales(c.trials)
    means = dict[Any, dict[float, float]]()
    if tried:
        every = [
            case
            for pair in pairs
            for size in sizes
            for case in _cases(*pair, size, c.budgets)
        ]
        means = {key: {} for key in best}
        for case, blocks in done(every, "trial", _TRIAL_RUNS, 0.0, share).items():
            for budget in case.budgets:
                residual = _labelled(case, budget, blocks)["residual"]
                means[case.entrant, case.contender, budget][case.scale] = float(
                    np.mean(residual)
                )
        # The least; of equal ones the first, so a method that always fails keeps its own step size.
        best = {
            key: min(sizes, key=lambda size: found[size])
            for key, found in means.items()
        }
    judged: dict[_Case, list[Block]] = {}
    fallen: list[str] = []
    while True:
        chosen = [
            case
            for pair in pairs
            for size in dict.fromkeys(best[*pair, budget] for budget in c.budgets)
            for case in _cases(
                *pair,
                size,
                [budget for budget in c.budgets if best[*pair, budget] == size],
            )
        ]
        judged |= done(
            [case for case in chosen if case not in judged], "", c.runs, share, 1.0
        )
        of = {
            (case.entrant, case.contender, budget): case
            for case in chosen
            for budget in case.budgets
        }
        # The largest step size that did well in three trials may fail in one of ten runs: then the best smaller one.
        lost = [
            key
            for key in best
            if np.isinf(_labelled(of[key], key[2], judged[of[key]])["residual"]).any()
        ]
        smaller = {
            key: [
                size
                for size in sizes
                if size < best[key] and np.isfinite(means[key][size])
            ]
            for key in lost
            if means
        }
        if not any(smaller.values()):
            break
        for key, left in smaller.items():
            if left:
                fallen.append(
                    f"{key[1].label} on {key[0].label} at {key[2]:,} calls (× {best[key]:g})"
                )
                best[key] = min(left, key=means[key].__getitem__)
    order = [
        (entrant, contender, budget)
        for budget, (entrant, contender) in product(c.budgets, pairs)
    ]
    faults = [
        f"{key[0].label}, {key[2]:,} calls: {fault}"
        for key in order
        for block in judged[of[key]]
        for fault in block.facts["faults"][str(key[2])]
    ]
    runs = joined(_labelled(of[key], key[2], judged[of[key]]) for key in order)
    gone = np.isinf(runs["residual"]) & (runs["status"] != "non_finite")
    for problem, method, budget in sorted(
        {
            (*each,)
            for each in zip(*(runs[n][gone].tolist() for n in _KEYS), strict=True)
        }
    ):
        faults.append(f"{problem}, {budget:,} calls: {method} left for infinity")
    curves = (
        joined(_curves(case, judged[case]) for case in chosen)
        if c.record is not None
        else {}
    )
    return Compared(
        c,
        runs,
        tuple(faults),
        round(time.perf_counter() - began, 1),
        source,
        curves,
        tuple(fallen),
    )


def _placed(c: Comparison, engine: Engine) -> Engine:
    """Where to work: objects stay in this process."""
    here = [e.label for e in c.entrants if stays(e.where)] + [
        m.label for m in c.contenders if stays(m.method)
    ]
    if here and engine not in (None, HERE):
        raise ValueError(
            f"{', '.join(map(repr, here))} cannot be sent to workers; give engine=None, or name what is in a module or "
            "a file: 'file.py:name'"
        )
    return HERE if here else engine


def _cases(
    entrant: Entrant, contender: Contender, scale: float, budgets: Sequence[int]
) -> list[_Case]:
    """The runs that are needed: budgets for which the method is the same are read off one run, the others are not."""
    groups: list[tuple[Method, list[int]]] = []
    for budget in budgets:
        method = contender.fitted(entrant.problem, budget, scale)
        same = next((group for made, group in groups if made == method), None)
        if same is None:
            groups.append((method, [budget]))
        else:
            same.append(budget)
    return [_Case(entrant, contender, scale, tuple(group)) for _, group in groups]


def _tasks(case: _Case, c: Comparison, runs: int, kind: str) -> list[Task]:
    entrant = case.entrant
    contender = case.contender
    there = {"problem": entrant.where, "problem_arguments": dict(entrant.arguments)}
    calls = " and ".join(f"{budget:,}" for budget in case.budgets)
    return solving(
        f"{kind and f'{kind}: '}{entrant.label}, {contender.label}, {calls} calls, step × {case.scale:g}",
        entrant.where,
        "tiebreak.experiments.contenders:fitted",
        budget=case.budgets,
        steps=c.steps,
        runs=runs,
        seed=[c.seed, 1 if kind else 0],
        record=None if kind else c.record,
        problem_arguments=entrant.arguments,
        method_arguments={
            "method": contender.method,
            "changes": dict(contender.changes),
            "scale": case.scale,
        }
        | {"budget": case.budgets[-1], **there}
        | ({"as_is": True} if contender.as_is else {}),
        iterates=False,
        block=max(1, min(BLOCK, _NUMBERS // entrant.problem.x0.size)),
    )


def _curves(case: _Case, blocks: Sequence[Block]) -> Table:
    """What was recorded on the way, with what it is of: a run that is read at several budgets has one curve."""
    table = joined(b.tables["curves"] for b in blocks)
    words = {
        "problem": case.entrant.label,
        "method": case.contender.label,
        "budget": case.budgets[-1],
    }
    return {
        name: np.full(len(table["run"]), value)
        for name, value in (words | {"scale": case.scale}).items()
    } | table


def _labelled(case: _Case, budget: int, blocks: Sequence[Block]) -> Table:
    """The iterates of all runs when this budget is spent, with what they are of, and what is known of the problem."""
    points = selected(joined(b.tables["last"] for b in blocks), budget=budget)
    p = case.entrant.problem
    count = len(points["run"])
    words = {
        "problem": case.entrant.label,
        "dimension": p.x0.size,
        "method": case.contender.label,
    }
    words |= {"budget": budget, "read_from": case.budgets[-1], "scale": case.scale}
    table: Table = {name: np.full(count, value) for name, value in words.items()}
    table |= {name: points[name] for name in ("run", *_KEPT)}
    levels: dict[str, Any] = {"upper": p.upper, "lower": p.lower}
    with np.errstate(all="ignore"):
        for name, level in levels.items():
            values = points.get(f"{name}_value", np.full(count, np.nan))
            known = p.solution is not None and f"{name}_value" in points
            table |= {f"{name}_value": values}
            table |= {
                f"{name}_excess": values
                - (float(level.value(p.solution)) if known else np.nan)
            }
        risen = table["upper_value"] - (
            float(levels["upper"].value(p.x0)) if "upper_value" in points else np.nan
        )
        size = float(np.sqrt(np.square(p.x0).mean()))
        table["residual"] = _residuals(points, risen, size, Units.of(p))
    return table


def _residuals(
    points: Table, risen: NDArray[np.float64], size: float, units: Units
) -> NDArray[np.float64]:
    """The larger of both residuals, in the problem's units; ∞ where a run failed.

    Where gradients are bounded a run that leaves for infinity stays finite, and may have small residuals there. So it
    has failed as well if f has `risen` beyond all that the problem is about; where f is not known, if a coordinate has
    moved as far, counted in lengths or in the `size` of those that it began with.
    """
    upper = points["stationarity_squared"] / units.direction_squared
    larger = np.maximum(
        upper, points["lower_gradient_squared"] / units.lower_gradient_squared
    )
    gone = risen > _GONE * units.upper_value
    if "upper_value" not in points:
        gone = points["moved"] > _GONE * max(units.length, size)
    return np.where(
        np.isfinite(larger) & (points["status"] != "non_finite") & ~gone, larger, np.inf
    )
