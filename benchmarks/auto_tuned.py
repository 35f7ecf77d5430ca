"""The best hand-tuned row on a problem: every row of the library on one honest grid of constants, in hindsight.

    python -m benchmarks.auto_tuned 1e6 paper,valley-2 out.jsonl 3 10 2

Every candidate is tried with a few runs (here three; fewer where it is slow); the best four are judged on other random
numbers with more (here ten), and the best of these is the reference. So the reference has been tuned on the problem,
the budget and the measure that it is judged by. The last number is that of processes. Every trial is kept in
out.jsonl.trials as soon as it is made: what was stopped goes on where it was.
"""

import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tiebreak
from benchmarks.auto_fresh import FRESH
from benchmarks.auto_own import OWN
from tiebreak import penalties, problems
from tiebreak.budget import steps_within
from tiebreak.experiments.contenders import PLANNED, Units
from tiebreak.methods import METHODS, Method
from tiebreak.problems import TESTBED, Problem
from tiebreak.provenance import stamp

TOP = 4  # candidates that are judged
MOST = 60_000  # steps of a candidate: those with more take minutes


class Trial(NamedTuple):
    """A candidate on a problem."""

    problem: str
    budget: int
    candidate: str
    runs: int
    seed: int


def candidates(problem: Problem, budget: int) -> Iterator[tuple[str, Method]]:
    """Every row with its grid, in the problem's own units (L_f = L_g = G_f = 1)."""
    units = Units.of(problem)
    large = budget > 10**7  # then without what takes hundreds of thousands of steps

    def made(name: str, method: Method, scale: float = 1.0) -> tuple[str, Method]:
        return name, units.translated(method, scale)

    for name in ("sdbgd",) if large else ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg"):
        for scale in (4.0, 16.0, 64.0):
            yield made(f"{name} η×{scale:g}", METHODS[name], scale)
    for scale in (4.0, 16.0, 64.0):
        for barrier in (0.5, 2.0):
            batched = PLANNED["dbgd_batched"](None, budget).replace(barrier=tiebreak.Power(barrier, -1 / 4))
            yield made(f"dbgd_batched η×{scale:g} β={barrier:g}", batched, scale)
    if problem.constants is not None:
        for name in ("sdbgd_practice", "penalty_bound"):
            for scale in (0.25, 1.0, 4.0, 16.0):
                yield f"{name} η×{scale:g}", Units().translated(PLANNED[name](problem.constants, budget), scale)
    for barrier in (0.5, 2.0, 8.0):
        for step in (0.1, 0.3, 1.0):  # of the largest stable one, 1/(1+β₀)
            for name in ("penalty", "storm_penalty", "spider_penalty"):
                eta = step / (1 + barrier)
                if large and name != "penalty" and (barrier < 2 or step == 0.1):
                    continue
                factors = {"storm_penalty": (1.0, 10.0)}
                if large:
                    factors = {"storm_penalty": (100.0,), "spider_penalty": (100.0,)}
                for factor in factors.get(name, (1.0,)):
                    laws = penalties.schedule(name, step_size=eta, barrier=barrier, **_batches(name, factor))
                    yield made(f"{name} η={eta:.3g} β={barrier:g} B×{factor:g}", METHODS[name].replace(schedule=laws))
    for barrier in (0.5, 2.0):
        for step in (0.2, 0.8):
            laws = penalties.schedule("storm_sdbgd", step_size=step, barrier=barrier)
            yield made(f"storm_sdbgd η={step:g} β={barrier:g}", METHODS["storm_sdbgd"].replace(schedule=laws))
    for steps in (10 * budget ** (1 / 3), *(() if large else (40 * budget ** (1 / 3),))):
        K = round(steps)
        # With a horizon: everything constant.
        for weight in (32.0, 64.0, 128.0, 256.0) if large else (8.0, 16.0, 32.0, 64.0, 128.0):
            for step in (0.1, 0.3, 1.0) if large else (0.03, 0.1, 0.3, 1.0):
                eta = step / (1 + weight)
                each = budget / K
                share = 1 / (1 + weight)
                plain = tiebreak.Schedule(
                    step_size=eta, barrier=weight, upper_batch=each * share, lower_batch=each * (1 - share)
                )
                yield made(f"penalty K={K} η={eta:.2g} β={weight:g}", METHODS["penalty"].replace(schedule=plain))
            for momentum in (1.0, 4.0, 16.0):
                eta = 0.5 / (1 + weight)
                laws = tiebreak.Schedule(
                    step_size=eta,
                    barrier=weight,
                    upper_batch=each * share / 2,
                    lower_batch=each * (1 - share) / 2,
                    momentum=min(1.0, momentum / K),
                )
                yield made(
                    f"storm_penalty K={K} η={eta:.2g} β={weight:g} α={momentum:g}/K",
                    METHODS["storm_penalty"].replace(schedule=laws),
                )


def _batches(name: str, factor: float) -> dict[str, float]:
    if factor == 1:
        return {}
    return {parameter: factor for parameter in penalties.POWERS[name] if parameter.endswith(("batch", "refresh"))}


def residuals(problem: Problem, point: Any) -> np.ndarray:
    """The larger residual of every run in the problem's units; ∞ where f has risen by a thousand of them."""
    units = Units.of(problem)
    with np.errstate(all="ignore"):
        larger = np.maximum(
            point.stationarity_squared / units.direction_squared,
            point.lower_gradient_squared / units.lower_gradient_squared,
        )
    return np.where(np.isfinite(larger), larger, np.inf)


def problem_of(name: str) -> Problem:
    """One of the test bed, or of those that are not in it."""
    made = {**OWN, **FRESH}.get(name)
    return problems.named(name) if made is None else made()


@cache
def grid(name: str, budget: int) -> tuple[Problem, dict[str, Method]]:
    """A problem, and its candidates by name."""
    problem = problem_of(name)
    known = dict(candidates(problem, budget))
    return problem, {name: one for name, one in known.items() if steps_within(one, budget, MOST + 1)[0] <= MOST}


def measured(trial: Trial) -> float:
    """The mean of the larger residual over runs."""
    problem, known = grid(trial.problem, trial.budget)
    levels, method = (problem.upper, problem.lower), known[trial.candidate]
    same: dict[str, Any] = {"budget": trial.budget, "runs": trial.runs, "seed": trial.seed, "record": None}
    found = tiebreak.minimize(*levels, problem.x0, method=method, **same)
    return float(residuals(problem, found.last).mean()) if found.success else math.inf


def tried(trials: list[Trial], path: Path, pool: ProcessPoolExecutor) -> dict[Trial, float]:
    """The residual of each, from the file where it is there already."""
    known: dict[Trial, float] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            *trial, residual = json.loads(line)
            known[Trial(*trial)] = residual
    missing = [trial for trial in trials if trial not in known]
    with path.open("a", encoding="utf-8") as file:
        for trial, residual in zip(missing, pool.map(measured, missing), strict=True):
            known[trial] = residual
            file.write(json.dumps([*trial, residual], ensure_ascii=False) + "\n")
            file.flush()
    return {trial: known[trial] for trial in trials}


def best(names: list[str], budget: int, trials: int, runs: int, path: Path, pool: ProcessPoolExecutor) -> None:
    """A row for each problem into the file: the best candidate, and those that it was judged with."""
    kept = path.with_name(path.name + ".trials")
    grids = {name: grid(name, budget)[1] for name in names}
    wanted = [Trial(name, budget, one, trials, 12345) for name, known in grids.items() for one in known]
    first = tried(wanted, kept, pool)
    tops = []
    for name in names:
        own = sorted((trial for trial in wanted if trial.problem == name), key=lambda trial: first[trial])
        tops += [trial._replace(runs=runs, seed=0) for trial in own[:TOP]]
    second = tried(tops, kept, pool)
    for name in names:
        judged = {trial.candidate: residual for trial, residual in second.items() if trial.problem == name}
        row: dict[str, Any] = {"problem": name, "budget": budget, "best": min(judged, key=lambda one: judged[one])}
        row |= {"residual": min(judged.values()), "judged": judged, "candidates": len(grids[name])}
        row |= {"runs_tried": trials, "runs_judged": runs, "made": stamp()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(name, row["best"], f"{row['residual']:.2e}", flush=True)


def main() -> None:
    budget, names, path = int(float(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
    trials, runs, workers = (int(word) for word in sys.argv[4:7])
    with ProcessPoolExecutor(workers) as pool:
        best(list(TESTBED) if names == "all" else names.split(","), budget, trials, runs, path, pool)


if __name__ == "__main__":
    main()
