"""A comparison of methods: what to run, checked, and what came of it: means, ratios, and who is best."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.contenders import scales
from tiebreak.experiments.entrants import (
    Contender,
    Entrant,
    contenders,
    entrants,
    left_out,
)
from tiebreak.experiments.own import sources
from tiebreak.experiments.profiles import ratios
from tiebreak.experiments.tables import Table, chosen, estimate
from tiebreak.experiments.tasks import Reference
from tiebreak.solver.budget import limit
from tiebreak.solver.objective import Level

MANY_TRIALS = 9  # 4^4 is far from what anybody publishes


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Parameters
    ----------
    problems : sequence of str or Problem, or one of them
        "all" (:data:`tiebreak.problems.testbed.TESTBED`), names that :func:`tiebreak.problems.named` takes,
        "file.py:name" (a Problem, or a function that gives one), or problems themselves. "paper+sigma_f=1+sigma_g=0.1"
        changes arguments.
    methods : sequence of str, Method or function, or one of them
        "all", names, "file.py:name", or themselves: a Method, or a function (constants, budget) that gives one. "all"
        is without the plans where the constants of a problem are not known.
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
        them, on other random numbers, is what is judged. 1 means its own, untried.
    steps : int, optional
        Steps after which a run ends, if its budget does not end it before.
    record : "log", int or None
        What goes into the curves, as :func:`tiebreak.minimize` takes it; nothing by default.
    as_is : bool
        Whether schedules, published ones and your own, are run as they are, as :func:`tiebreak.minimize` would. If not,
        they are translated into the units of each problem whose constants are known. `tiebreak sweep` says True.

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
    entrants: tuple[Entrant, ...] = field(init=False, repr=False)
    contenders: tuple[Contender, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plain = Experiment(runs=self.runs, seed=self.seed)  # knows the legal ranges
        trials = whole("trials", self.trials)
        if trials > MANY_TRIALS:
            raise ValueError(f"trials={self.trials!r} must be from 1 to {MANY_TRIALS}")
        checked: dict[str, Any] = {
            "runs": plain.runs,
            "seed": plain.seed,
            "trials": trials,
            "budgets": _budgets(self.budgets),
            "steps": None if self.steps is None else limit("steps", self.steps),
            "record": None
            if self.record is None
            else Experiment(record=self.record).record,
        }
        problems = entrants(self.problems)
        checked |= {
            "entrants": problems,
            "contenders": contenders(self.methods, problems, self.as_is),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Methods that "all" is without here, by name: the plans, where a problem's constants are not known."""
        return left_out(self.methods, self.entrants)

    @property
    def command(self) -> str:
        """The command line that repeats this."""
        words = {
            name: _words(getattr(self, name))
            for name in ("problems", "methods", "budgets")
        }
        swept = self.as_is and self.trials == 1
        words |= {
            name: str(getattr(self, name))
            for name in ("runs", "seed", *([] if swept else ["trials"]))
        }
        words |= {
            n: str(v)
            for n in ("steps", "record")
            if (v := getattr(self, n)) is not None
        }
        return " ".join(
            [
                "tiebreak sweep" if swept else "tiebreak compare",
                *(f"--{name} {text}" for name, text in words.items()),
            ]
        )


def _words(given: Any) -> str:
    each = given if isinstance(given, (list, tuple)) else [given]
    return ",".join(
        one
        if isinstance(one, str)
        else f"<{one.name}>"
        if hasattr(one, "name")
        else str(one)
        for one in each
    )


def _budgets(given: Any) -> tuple[int, ...]:
    each = given if isinstance(given, (list, tuple)) else [given]
    found = [limit("budgets", budget) for budget in each]
    if not found or None in found or sorted(set(found)) != found:
        raise ValueError(
            f"budgets={_words(given)!r} must be whole numbers ≥ 1 that grow, such as 1e4,1e5,1e6"
        )
    return tuple(found)


@dataclass(frozen=True)
class Compared:
    """What came of a comparison.

    Attributes
    ----------
    comparison : Comparison
    runs : dict of arrays
        Tidy: a row for each problem, method, budget and run, with its residual in the problem's units.
    faults : tuple of str
        Runs that could not go on, and why.
    seconds : float
        What it took.
    origin : dict
        Date, commit, versions and platform.
    curves : dict of arrays
        Tidy: a row for each recorded step of each run, where `record` asked for them.
    fallen : tuple of str
        Where the step size that was best in the trials failed when it was judged, and the best smaller one was taken.

    Examples
    --------
    >>> from tiebreak.experiments import Comparison, compare
    >>> found = compare(Comparison(problems="paper", methods="sdbgd", budgets=[1000], runs=2, trials=1))
    >>> found.runs["steps"].tolist(), found.faults
    ([9, 9], ())
    """

    comparison: Comparison
    runs: Table
    faults: tuple[str, ...]
    seconds: float
    origin: Mapping[str, Any]
    curves: Table = field(default_factory=dict)
    fallen: tuple[str, ...] = ()

    @cached_property
    def results(self) -> Table:
        """Tidy: a row for each problem, method and budget, with means over runs, ratios, and who is best.

        A method of which a run failed has the residual ∞. `best` is who has the least mean; `tied` is who is within two
        standard errors of it, by the differences of runs with the same random numbers, and at most ten times as large.
        Ratios are of residuals that are at least 1e-24, which is rounding in the problem's units.
        """
        rows: list[dict[str, Any]] = []
        for budget, entrant in product(
            self.comparison.budgets, self.comparison.entrants
        ):
            here = [
                chosen(self.runs, problem=entrant.label, budget=budget, method=c.label)
                for c in self._methods
            ]
            means = [estimate(table["residual"]) for table in here]
            found = ratios([[mean.mean for mean in means]])[0]
            least = int(np.argmin(found))
            for contender, table, mean, ratio in zip(
                self._methods, here, means, found.tolist(), strict=True
            ):
                failed = int(np.sum(~np.isfinite(table["residual"])))
                rows.append(
                    {
                        "problem": entrant.label,
                        "method": contender.label,
                        "budget": budget,
                    }
                    | {
                        "residual": mean.mean if not failed else np.inf,
                        "error": mean.error if not failed else np.nan,
                    }
                    | {
                        "ratio": ratio,
                        "best": ratio == 1,
                        "tied": ratio <= _CLEARLY and _tied(table, here[least]),
                    }
                    | {
                        "failed": failed,
                        "steps": int(np.median(table["steps"])),
                        "scale": float(table["scale"][0]),
                    }
                    | {name: _mean(table[name]) for name in _MEANS}
                )
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    @property
    def _methods(self) -> tuple[Contender, ...]:
        return self.comparison.contenders

    @property
    def read_off(self) -> dict[str, bool]:
        """Of every method whether some of its results were read off longer runs; what depends on the budget is not."""
        read = self.runs["read_from"] > self.runs["budget"]
        return {
            c.label: bool(read[self.runs["method"] == c.label].any())
            for c in self._methods
        }

    def ratios(self, budget: int) -> NDArray[np.float64]:
        """(problems, methods), in the comparison's order."""
        found = chosen(self.results, budget=budget)["ratio"]
        return found.reshape(len(self.comparison.entrants), len(self._methods))

    def among(self, methods: Sequence[str]) -> "Compared":
        """The same with these methods alone, by names as :class:`Comparison` takes them; their ratios are others then.

        No run is made again: a method's runs do not depend on who else is there.
        """
        fewer = replace(self.comparison, methods=methods)
        unknown = [each.label for each in fewer.contenders if each not in self._methods]
        if unknown:
            raise ValueError(
                f"methods={unknown!r} were not compared; {[each.label for each in self._methods]} were"
            )
        labels = [each.label for each in fewer.contenders]

        def of_them(table: Table) -> Table:
            return {
                name: column[np.isin(table["method"], labels)]
                for name, column in table.items()
            }

        return replace(
            self, comparison=fewer, runs=of_them(self.runs), curves=of_them(self.curves)
        )

    @property
    def starts(self) -> dict[str, tuple[float, float]]:
        """f and g at the start of each problem; NaN where they are not known."""
        problems = {e.label: e.problem for e in self.comparison.entrants}
        return {
            label: (_value(p.upper, p), _value(p.lower, p))
            for label, p in problems.items()
        }

    @property
    def references(self) -> list[str | Reference]:
        """Where problems and methods come from."""
        c = self.comparison
        return [
            *(each.where for each in c.entrants),
            *(each.method for each in c.contenders),
        ]

    def configuration(self) -> dict[str, Any]:
        """Everything but the tables, for a JSON file."""
        c = self.comparison
        problems = {
            e.label: None if (k := e.problem.constants) is None else asdict(k)
            for e in c.entrants
        }
        return {
            **self.origin,
            "command": c.command,
            "problems": problems,
            "methods": [each.label for each in c.contenders],
            **{
                name: getattr(c, name)
                for name in (
                    "budgets",
                    "runs",
                    "seed",
                    "trials",
                    "steps",
                    "record",
                    "as_is",
                )
            },
            "read_off": self.read_off,
            "sources": sources(self.references),
            "scales": scales(c.trials),
            "faults": list(self.faults),
            "fallen": list(self.fallen),
            "seconds": self.seconds,
        }


_MEANS = (
    *("direction_squared", "stationarity_squared", "lower_gradient_squared"),
    *("upper_value", "lower_value", "upper_excess", "lower_excess"),
)
_CLEARLY = 10  # times the best: no tie, however few runs make up the mean


def _mean(values: NDArray[np.float64]) -> float:
    with np.errstate(all="ignore"):  # a run that failed may hold infinities
        return float(np.mean(values))


def _tied(table: Table, best: Table) -> bool:
    """Whether the mean difference to the best is within two standard errors."""
    if not (
        np.isfinite(table["residual"]).all() and np.isfinite(best["residual"]).all()
    ):
        return False
    difference = estimate(table["residual"] - best["residual"])
    return bool(difference.mean <= 0 or difference.mean <= 2 * difference.error)


def _value(oracle: Any, problem: Any) -> float:
    level = Level("problem", oracle, np.shape(problem.x0), np.dtype(np.float64))
    return (
        float(level.value(np.reshape(problem.x0, (1, -1)).astype(np.float64))[0])
        if level.has_value
        else np.nan
    )
