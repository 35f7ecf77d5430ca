"""Tune every method alike, run each on fresh seeds, and keep what came out."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import tiebreak
from benchmarks.classic.methods import Candidate, Units, candidates, defaults
from gallery import constrained
from gallery.problems.dictionary import dictionary, dictionary_data, recovery
from gallery.problems.regression import regression, regression_data
from tiebreak import Exact

__all__ = ["STUDIES", "Study", "measure"]

MARGIN = 0.5  # of the tolerance, when tuned: one seed's gap is not another's
POINTS = 40  # of a curve, evenly spread over the logarithm of the budget


class Study(NamedTuple):
    """A problem and how it is judged.

    `prepare(seed)` gives (a function that runs a candidate, a function that measures a point). A setting is feasible if
    the lower gap ends at half the tolerance at most; the best one is feasible with the least upper value or, where none
    is, has the least lower gap.
    """

    name: str
    prepare: Callable[[int], Any]
    units: Units
    budget: int
    tolerance: float
    tuning: tuple[int, ...]  # seeds
    extra: Sequence[Candidate] = ()


class Instance(NamedTuple):
    """A problem drawn for one seed."""

    problem: Any
    exact: tuple[Any, Any]
    measure: Callable[[Any], dict[str, float]]  # of a point as the solver knows it
    data: Any
    measure_pair: Callable[[Any, Any], dict[str, float]] | None = None


def regression_instance(seed: int) -> Instance:
    data = regression_data(seed)
    problem = regression(data)
    assert problem.solution is not None
    best, norm = (
        data.validation.loss(problem.solution),
        np.linalg.norm(problem.solution),
    )

    def measured(x: Any) -> dict[str, float]:
        return {
            "lower gap": data.train.loss(x),  # the least training loss is 0
            "upper gap": data.validation.loss(x) - best,
            "distance": float(np.linalg.norm(x - problem.solution) / norm),
            "test": data.test.loss(x),
        }

    exact = (
        Exact(data.validation.gradient, data.validation.loss),
        Exact(data.train.gradient, data.train.loss),
    )
    return Instance(problem, exact, measured, data)


def dictionary_instance(seed: int) -> Instance:
    data = dictionary_data(seed)
    problem = dictionary(data)
    best = data.lower_optimum

    def pair(atoms: Any, coefficients: Any) -> dict[str, float]:
        return {
            "lower gap": data.lower(atoms) / best - 1,  # as a share of the least value
            "upper": data.upper(atoms, coefficients),
            "recovery": recovery(atoms, data.truth),
            "old atoms": recovery(atoms, data.truth[:, :29]),
            "new atoms": recovery(atoms, data.truth[:, 40:]),
        }

    def fresh(atoms: Any) -> float:
        return constrained.left_over(atoms, data.fresh, data.radius)

    exact = (Exact(data.upper_gradient), Exact(data.lower_gradient))
    return Instance(
        problem, exact, lambda x: pair(*data.decode(x)), (data, fresh), pair
    )


def run(study: Study, instance: Instance, candidate: Candidate, setting: tuple[float, float], seed: int, *,
        watch: bool = True) -> Any:  # fmt: skip
    """One run: what is measured at its end, and on the way. A run that breaks down has an infinite lower gap."""
    due = iter(
        np.unique(
            np.geomspace(sum(study.units.batches), study.budget, POINTS).astype(int)
        )
    )
    state = {"next": next(due)}
    curve: list[dict[str, float]] = []

    def look(calls: int, measured: Callable[[], dict[str, float]]) -> None:
        if calls >= state["next"]:
            while calls >= state["next"]:
                state["next"] = next(due, study.budget * 10)
            curve.append({"calls": calls} | measured())

    def watched(record: Any) -> None:
        look(
            record.upper_calls + record.lower_calls, lambda: instance.measure(record.x)
        )

    if candidate.name in constrained.METHODS:
        end, cost = (None, None), sum(study.units.rows)
        made = constrained.METHODS[candidate.name][0](instance.data[0], *setting)
        for k, pair in zip(range(1, study.budget // cost + 1), made, strict=False):
            end = pair
            look(k * cost, lambda end=end: instance.measure_pair(*end))  # type: ignore[misc]
        last, atoms, broken = (
            instance.measure_pair(*end),
            end[0],
            not np.isfinite(end[0]).all(),
        )  # type: ignore[misc]
    else:
        upper, lower = (
            instance.exact
            if candidate.exact
            else (instance.problem.upper, instance.problem.lower)
        )
        with np.errstate(all="ignore"):
            result = tiebreak.minimize(
                upper, lower, instance.problem.x0, method=candidate.make(*setting), budget=study.budget, seed=seed,
                record=None, callback=watched if watch else None,
            )  # fmt: skip
        with np.errstate(all="ignore"):  # of a run that broke down
            last, broken = instance.measure(result.x), not result.success
        atoms = (
            None
            if instance.measure_pair is None
            else instance.data[0].decode(result.x)[0]
        )
    if broken or not all(map(np.isfinite, last.values())):
        last = dict.fromkeys(last, float("inf"))
    return {"end": last, "curve": curve, "atoms": atoms}


def tuned(
    study: Study, candidate: Candidate, instances: dict[int, Instance]
) -> tuple[tuple[float, float], bool]:
    """The best setting on the tuning seeds, and whether it was feasible there."""
    upper = "upper gap" if study.name == "regression" else "upper"
    scores = []
    for setting in product(candidate.steps, candidate.others):
        ends = [
            run(study, instances[s], candidate, setting, s, watch=False)["end"]
            for s in study.tuning
        ]
        gap = float(np.mean([e["lower gap"] for e in ends]))
        feasible = gap <= MARGIN * study.tolerance
        scores.append(
            (
                not feasible,
                float(np.mean([e[upper] for e in ends])) if feasible else gap,
                setting,
            )
        )
    worst, _, setting = min(scores)
    return setting, not worst


def measure(
    study: Study, seeds: Sequence[int], said: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Every method: a record of its setting, and of its runs on the seeds."""
    instances = {seed: study.prepare(seed) for seed in (*study.tuning, *seeds)}
    for candidate in (*candidates(study.units), *study.extra, *defaults()):
        alone = len(candidate.steps) * len(candidate.others) == 1
        setting, feasible = (
            ((candidate.steps[0], candidate.others[0]), True)
            if alone
            else tuned(study, candidate, instances)
        )
        runs = []
        for seed in seeds:
            made = run(study, instances[seed], candidate, setting, seed)
            if study.name == "dictionary":
                made["end"]["fresh"] = instances[seed].data[1](made["atoms"])
            runs.append({"seed": seed, "end": made["end"], "curve": made["curve"]})
        said(f"{candidate.name}: {setting}, " + ", ".join(
            f"{key} {np.mean([r['end'][key] for r in runs]):.3g}" for key in runs[0]["end"]))  # fmt: skip
        yield {
            "method": candidate.name, "exact": candidate.exact, "setting": setting, "tuned": not alone,
            "feasible when tuned": feasible, "runs": runs,
        }  # fmt: skip


_LITERATURE = [
    Candidate(name, True, lambda step, other: None, steps, others)  # type: ignore[arg-type, return-value]
    for name, (_, steps, others) in constrained.METHODS.items()
]
STUDIES = {
    # g = ½ at the start, the targets' variance being 1: a hundredth of it
    "regression": Study(
        "regression",
        regression_instance,
        Units(4.0, 1e-3, (244, 88), (60, 40)),
        5000 * 332,
        0.005,
        (100,),
    ),
    # g may rise by a twentieth
    "dictionary": Study(
        "dictionary",
        dictionary_instance,
        Units(8.0, 1e-5, (200, 250), (100, 125)),
        3000 * 450,
        0.05,
        (100,),
        _LITERATURE,
    ),
}
