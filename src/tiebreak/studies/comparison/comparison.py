"""A comparison as a study: trials of step sizes, then judged runs of the best, then of a smaller one if that failed."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.files import FilePath
from tiebreak.solver.budget import limit
from tiebreak.solver.result_warnings import Remark
from tiebreak.studies.command_line import command_line
from tiebreak.studies.comparison.methods import (
    ALL,
    OF_CONSTANTS,
    ComparedMethod,
    Fit,
    check_labels,
    compared_method,
    listed,
    scales,
)
from tiebreak.studies.comparison.problems import (
    ComparedProblem,
    compared_problems,
    rehearse,
)
from tiebreak.studies.comparison.result import ComparisonResult
from tiebreak.studies.comparison.units import Units
from tiebreak.studies.engines import HERE, Engine
from tiebreak.studies.findings import Findings
from tiebreak.studies.reproduction import checked_record
from tiebreak.studies.runs import BLOCK, solving
from tiebreak.studies.store import Store
from tiebreak.studies.sweeps import Blocks, Hear, SweepResult, sweep
from tiebreak.studies.tables import Columns, joined, labelled, select
from tiebreak.studies.task import Block, Task
from tiebreak.studies.user_files import Source

_MANY_TRIALS = 9  # 4^4 is far from every published step size
_TRIAL_RUNS = 3
_GONE = 1e3  # units of f, or lengths
_NUMBERS = (
    2**22
)  # in the iterates of a block: a step makes about ten arrays of equal size
_POINT = (
    *("run", "status", "steps", "calls", "upper_calls", "lower_calls"),
    *("direction_squared", "stationarity_squared", "lower_gradient_squared"),
)


class Key(NamedTuple):
    """A problem, a method and a budget, for which one step size is judged."""

    problem: ComparedProblem
    method: ComparedMethod
    budget: int


class Case(NamedTuple):
    """Runs of a method on a problem, made once and read at some budgets, for all of which the method is the same."""

    problem: ComparedProblem
    method: ComparedMethod
    scale: float
    budgets: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods, problems and budgets to compare.

    Parameters
    ----------
    problems : sequence of str or Problem, or one of them
        "all" (:data:`tiebreak.problems.testbed.TESTBED`), names that :func:`tiebreak.problems.named` takes,
        "file.py:name" (a Problem, or a function that returns one), or problems themselves. "paper+sigma_f=1+sigma_g=0.1"
        changes arguments.
    methods : sequence of str, Method or function, or one of them
        "all", names, "file.py:name", or themselves: a Method, or a function (constants, budget) that returns one. "all"
        is without the plans if the constants of a problem are not known.
        "sdbgd+a=0.3+step_size=0.02" changes constants.
    budgets : sequence of int
        Calls of both levels together; a profile for each. A method that does not depend on the budget is run once, to
        the largest, and read at each: the same numbers, bit for bit.
    runs : int
        Independent runs of everything.
    seed : int
        Of the runs that are judged. Trials have streams of their own.
    trials : int
        Step sizes that are tried for every method, problem and budget: 1, 4, 1/4, 16, … times its own. The best of
        them, on other random numbers, is judged. 1 means its own, untried.
    steps : int, optional
        Steps after which a run ends, if its budget does not end it before.
    record : "log", int or None
        The steps that the curves hold, as :func:`tiebreak.minimize` takes it; by default none, and "log" for a single
        problem.
    as_is : bool
        Whether schedules, published ones and the user's, are run as they are, as :func:`tiebreak.minimize` would. If
        not, they are translated into the units of each problem whose constants are known.

    Examples
    --------
    >>> Comparison(problems="paper,valley-4", methods=["sdbgd", "penalty"], budgets=[1e3]).command
    'tiebreak compare --problems paper,valley-4 --methods sdbgd,penalty --budgets 1000 --runs 10 --seed 0 --trials 7'
    """

    problems: Any = "all"
    methods: Any = "all"
    budgets: Sequence[int] = (10**4, 10**5, 10**6)
    runs: int = 10
    seed: int = 0
    trials: int = 7
    steps: int | None = None
    record: str | int | None = None
    as_is: bool = False
    compared_problems: tuple[ComparedProblem, ...] = field(init=False, repr=False)
    compared_methods: tuple[ComparedMethod, ...] = field(init=False, repr=False)
    _tasks: dict[Any, list[Task]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        trials = whole("trials", self.trials)
        if trials > _MANY_TRIALS:
            raise ValueError(f"trials={self.trials!r} must be from 1 to {_MANY_TRIALS}")
        checked: dict[str, Any] = {
            "runs": whole("runs", self.runs),
            "seed": whole("seed", self.seed, least=0),
            "trials": trials,
            "budgets": _budgets(self.budgets),
        }
        if self.steps is not None:
            checked["steps"] = limit("steps", self.steps)
        if self.record is not None:
            checked["record"] = checked_record(self.record)
        problems = compared_problems(self.problems)
        if len(problems) == 1 and self.record is None:
            checked["record"] = "log"
        checked["compared_problems"] = problems
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        everything = [name for name in ALL if name not in self.left_out]
        names = listed("methods", self.methods, everything)
        methods = tuple(compared_method(each, self.as_is) for each in names)
        check_labels("methods", [each.label for each in methods])
        object.__setattr__(self, "compared_methods", methods)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The methods that "all" is without: the plans, if the constants of a problem are not known."""
        names = listed("methods", self.methods, ["all"])
        has_all = any(isinstance(name, str) and name == "all" for name in names)
        unknown = any(p.problem.constants is None for p in self.compared_problems)
        if has_all and unknown:
            return OF_CONSTANTS
        return ()

    @property
    def contradictions(self) -> list[str]:
        """Contradictions between the oracles of the user's problems."""
        return [text for each in self.compared_problems for text in each.contradictions]

    @property
    def command(self) -> str:
        """The command line that repeats the comparison."""
        names = (
            *("problems", "methods", "budgets", "runs", "seed", "trials"),
            *("steps", "record", "as_is"),
        )
        return command_line("compare", {name: getattr(self, name) for name in names})

    def rehearse(self, tell: Any = lambda text: None) -> None:
        """Check that every method can begin on every problem."""
        rehearse(self.compared_problems, self.compared_methods, self.budgets, tell)

    # --- the study ----------------------------------------------------------------------------------------------------

    def tasks(self, blocks: Blocks) -> list[Task]:
        """The trials; when these are finished the judged runs; and when some of these failed those that replace them."""
        tasks = {
            task.name: task for case in self._trials() for task in self._of(case, True)
        }
        if all(name in blocks for name in tasks):
            judged, _ = self._judged(blocks)
            for case in judged.values():
                tasks |= {task.name: task for task in self._of(case)}
        return list(tasks.values())

    def collect(self, result: SweepResult) -> Findings:
        """The findings; KeyboardInterrupt if the sweep was interrupted."""
        return self.result(result).findings()

    def result(self, result: SweepResult) -> ComparisonResult:
        """The residuals of all runs, as a table and with what belongs to it."""
        if result.interrupted:
            raise KeyboardInterrupt
        judged, fallen = self._judged(result.blocks)
        rows = []
        faults = []
        for key, case in judged.items():
            blocks = [result.blocks[task.name] for task in self._of(case)]
            rows.append(_rows(key, case, blocks))
            text = f"{key.problem.label}, {key.budget:,} calls"
            for block in blocks:
                faults += [
                    f"{text}: {f}" for f in block.facts["faults"][str(key.budget)]
                ]
            gone = np.isinf(rows[-1]["residual"]) & (rows[-1]["status"] != "non_finite")
            if gone.any():
                faults.append(f"{text}: {key.method.label} left for infinity")
        curves: Columns = {}
        if self.record is not None:
            cases = dict.fromkeys(judged.values())
            curves = joined(self._curves(case, result.blocks) for case in cases)
        seconds = round(result.seconds, 1)
        return ComparisonResult(
            self, joined(rows), tuple(faults), seconds, curves, tuple(fallen)
        )

    @property
    def _keys(self) -> list[Key]:
        pairs = product(self.budgets, self.compared_problems, self.compared_methods)
        return [Key(problem, method, budget) for budget, problem, method in pairs]

    def _cases(
        self,
        problem: ComparedProblem,
        method: ComparedMethod,
        scale: float,
        budgets: Sequence[int],
    ) -> list[Case]:
        """One case for the budgets for which the method is the same."""
        groups: list[tuple[Any, list[int]]] = []
        for budget in budgets:
            fitted = method.fitted(problem.problem, budget, scale)
            for other, group in groups:
                if other == fitted:
                    group.append(budget)
                    break
            else:
                groups.append((fitted, [budget]))
        return [Case(problem, method, scale, tuple(group)) for _, group in groups]

    def _trials(self) -> list[Case]:
        if self.trials == 1:
            return []
        return [
            case
            for problem, method, scale in product(
                self.compared_problems, self.compared_methods, scales(self.trials)
            )
            for case in self._cases(problem, method, scale, self.budgets)
        ]

    def _of(self, case: Case, trial: bool = False) -> list[Task]:
        """The tasks of a case."""
        name = (case, trial)
        if name in self._tasks:
            return self._tasks[name]
        problem, method, scale, budgets = case
        calls = " and ".join(f"{budget:,}" for budget in budgets)
        fit = Fit(method, problem.source, dict(problem.arguments), budgets[-1], scale)
        self._tasks[name] = solving(
            f"{'trial: ' * trial}{problem.label}, {method.label}, {calls} calls, step × {scale:g}",
            problem.source,
            fit,
            budget=budgets,
            steps=self.steps,
            runs=_TRIAL_RUNS if trial else self.runs,
            seed=[self.seed, int(trial)],
            record=None if trial else self.record,
            problem_arguments=problem.arguments,
            iterates=False,
            block=max(1, min(BLOCK, _NUMBERS // problem.problem.x0.size)),
        )
        return self._tasks[name]

    def _trial_means(self, blocks: Blocks) -> dict[Key, dict[float, float]]:
        """The mean residuals of all step sizes that were tried."""
        means: dict[Key, dict[float, float]] = {}
        for case in self._trials():
            parts = [blocks[task.name] for task in self._of(case, True)]
            for budget in case.budgets:
                key = Key(case.problem, case.method, budget)
                residual = _rows(key, case, parts)["residual"]
                means.setdefault(key, {})[case.scale] = float(np.mean(residual))
        return means

    def _judged(self, blocks: Blocks) -> tuple[dict[Key, Case], list[str]]:
        """The case that is judged for each key as far as the blocks tell, and the step sizes that fell back.

        The best step size of the trials may fail in a judged run. Then the best smaller one is judged.
        """
        means = self._trial_means(blocks)
        # Of equal means the first is taken, so a method whose runs all fail keeps its published step size.
        best = {
            key: min(means[key], key=means[key].__getitem__) if means else 1.0
            for key in self._keys
        }
        fallen: list[str] = []
        while True:
            judged = self._cases_of(best)
            smaller: dict[Key, list[float]] = {}
            for key, case in judged.items():
                names = [task.name for task in self._of(case)]
                if not all(name in blocks for name in names):
                    return judged, fallen
                rows = _rows(key, case, [blocks[name] for name in names])
                if means and np.isinf(rows["residual"]).any():
                    smaller[key] = [
                        scale
                        for scale, mean in means[key].items()
                        if scale < best[key] and np.isfinite(mean)
                    ]
            smaller = {key: each for key, each in smaller.items() if each}
            if not smaller:
                return judged, fallen
            for key, scales_below in smaller.items():
                fallen.append(
                    f"{key.method.label} on {key.problem.label} at {key.budget:,} calls (× {best[key]:g})"
                )
                best[key] = min(scales_below, key=means[key].__getitem__)

    def _cases_of(self, best: Mapping[Key, float]) -> dict[Key, Case]:
        """The case of each key, with its best step size."""
        cases: dict[Key, Case] = {}
        for problem, method in product(self.compared_problems, self.compared_methods):
            keys = [Key(problem, method, budget) for budget in self.budgets]
            for scale in dict.fromkeys(best[key] for key in keys):
                budgets = [key.budget for key in keys if best[key] == scale]
                for case in self._cases(problem, method, scale, budgets):
                    cases |= {Key(problem, method, b): case for b in case.budgets}
        return {key: cases[key] for key in self._keys}

    def _curves(self, case: Case, blocks: Blocks) -> Columns:
        """The recorded curves of a case; a run that is read at several budgets has one curve."""
        curves = joined(blocks[task.name].tables["curves"] for task in self._of(case))
        return labelled(
            curves,
            problem=case.problem.label,
            method=case.method.label,
            budget=case.budgets[-1],
            scale=case.scale,
        )


def compare(
    comparison: Comparison | None = None,
    progress: Hear | None = None,
    *,
    engine: Engine = None,
    store: Store | FilePath | None = None,
) -> ComparisonResult:
    """Run all methods on all problems at all budgets. Ctrl-C is passed on.

    Parameters
    ----------
    comparison : Comparison, optional
    progress : callable, optional
        Told what is being done, and the share of everything that is done.
    engine, store :
        As :func:`tiebreak.studies.sweep` takes them.

    Examples
    --------
    >>> result = compare(Comparison(problems="paper", methods="sdbgd,penalty", budgets=[10**6], runs=2, trials=1))
    >>> result.results["method"][result.results["best"]].tolist()
    ['Penalty']
    """
    c = comparison or Comparison()
    engine = engine_for(c, engine)
    c.rehearse()
    for text in c.contradictions:
        warnings.warn(text, Remark, stacklevel=2)
    return c.result(sweep(c.tasks, engine=engine, store=store, progress=progress))


def engine_for(comparison: Comparison, engine: Engine) -> Engine:
    """The engine, or this process if objects are compared, which no other process can load."""
    sources = [(p.label, p.source) for p in comparison.compared_problems]
    sources += [
        (m.label, m.source)
        for m in comparison.compared_methods
        if isinstance(m.source, Source)
    ]
    objects = [label for label, source in sources if source.in_process]
    if objects and engine not in (None, HERE):
        raise ValueError(
            f"{', '.join(map(repr, objects))} cannot be sent to workers; give engine=None, or name what is in a module or "
            "a file: 'file.py:name'"
        )
    if objects:
        return HERE
    return engine


def _budgets(value: Any) -> tuple[int, ...]:
    parts = value if isinstance(value, (list, tuple)) else [value]
    budgets = [limit("budgets", part) for part in parts]
    if not budgets or None in budgets or sorted(set(budgets)) != budgets:
        raise ValueError(
            f"budgets={','.join(map(str, parts))!r} must be whole numbers ≥ 1 that grow, such as 1e4,1e5,1e6"
        )
    return tuple(budgets)


def _rows(key: Key, case: Case, blocks: Sequence[Block]) -> Columns:
    """A row for each run of a case at a budget: the last iterate, its residual and excesses."""
    points = joined(block.tables["last"] for block in blocks)
    points = select(points, budget=key.budget)
    p = key.problem.problem
    rows = labelled(
        {name: points[name] for name in _POINT},
        problem=key.problem.label,
        dimension=p.x0.size,
        method=key.method.label,
        budget=key.budget,
        read_from=case.budgets[-1],
        scale=case.scale,
    )
    unknown = np.full(len(points["run"]), np.nan)
    risen = unknown
    with np.errstate(all="ignore"):
        for name, level in (("upper", p.upper), ("lower", p.lower)):
            oracle: Any = level
            values = points.get(f"{name}_value", unknown)
            rows[f"{name}_value"] = values
            rows[f"{name}_excess"] = unknown
            if p.solution is not None and f"{name}_value" in points:
                rows[f"{name}_excess"] = values - float(oracle.value(p.solution))
            if name == "upper" and "upper_value" in points:
                risen = values - float(oracle.value(p.x0))
        size = float(np.sqrt(np.square(p.x0).mean()))
        rows["residual"] = residuals(points, risen, size, Units.of(p))
    return rows


def residuals(
    points: Columns, risen: NDArray[np.float64], size: float, units: Units
) -> NDArray[np.float64]:
    """The larger of both residuals, in the problem's units; ∞ for a run that failed.

    If gradients are bounded a run that leaves for infinity stays finite, and may have small residuals there. Such a run
    has failed as well if f has `risen` beyond all that the problem is about; if f is not known, if a coordinate has
    moved as far, counted in lengths or in the `size` of the start.
    """
    upper = points["stationarity_squared"] / units.direction_squared
    lower = points["lower_gradient_squared"] / units.lower_gradient_squared
    larger = np.maximum(upper, lower)
    gone = risen > _GONE * units.upper_value
    if "upper_value" not in points:
        gone = points["moved"] > _GONE * max(units.length, size)
    valid = np.isfinite(larger) & (points["status"] != "non_finite") & ~gone
    return np.where(valid, larger, np.inf)
