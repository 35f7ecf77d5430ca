"""The result of a comparison: residuals of all runs, means, ratios, and the best method on each problem."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.provenance import stamp
from tiebreak.solver.objective import Level
from tiebreak.studies.comparison.methods import scales
from tiebreak.studies.comparison.profiles import grid, profile, ratios
from tiebreak.studies.findings import Findings
from tiebreak.studies.tables import Columns, Estimate, joined, labelled, select
from tiebreak.studies.user_files import Source, checksums, copies

if TYPE_CHECKING:
    from tiebreak.studies.comparison.comparison import Comparison

_MEANS = (
    *("direction_squared", "stationarity_squared", "lower_gradient_squared"),
    *("upper_value", "lower_value", "upper_excess", "lower_excess"),
)
_CLEARLY = 10  # times the best: no tie, however few runs make up the mean


@dataclass(frozen=True)
class ComparisonResult:
    """The result of a comparison.

    Attributes
    ----------
    comparison : Comparison
    runs : dict of arrays
        Tidy: a row for each problem, method, budget and run, with its residual in the problem's units.
    faults : tuple of str
        Runs that could not go on, and why.
    seconds : float
    curves : dict of arrays
        Tidy: a row for each recorded step of each run, if `record` asked for them.
    fallen : tuple of str
        Step sizes that were best in the trials and failed when they were judged; the best smaller ones replaced them.

    Examples
    --------
    >>> from tiebreak.studies import Comparison, compare
    >>> result = compare(Comparison(problems="paper", methods="sdbgd", budgets=[1000], runs=2, trials=1))
    >>> result.runs["steps"].tolist(), result.faults
    ([9, 9], ())
    """

    comparison: "Comparison"
    runs: Columns
    faults: tuple[str, ...]
    seconds: float
    curves: Columns = field(default_factory=dict)
    fallen: tuple[str, ...] = ()

    @cached_property
    def results(self) -> Columns:
        """Tidy: a row for each problem, method and budget, with means over runs, ratios, and the best method.

        A method of which a run failed has the residual ∞. The `best` method has the least mean; methods are `tied` with
        it within two standard errors, by the differences of runs with the same random numbers, and at most ten times as
        large. Ratios are of residuals that are at least 1e-24, which is rounding in the problem's units.
        """
        c = self.comparison
        rows: list[dict[str, Any]] = []
        for budget, problem in product(c.budgets, c.compared_problems):
            runs = select(self.runs, problem=problem.label, budget=budget)
            tables = {m.label: select(runs, method=m.label) for m in c.compared_methods}
            means = [Estimate.of(table["residual"]) for table in tables.values()]
            factors = ratios([[mean.mean for mean in means]])[0]
            best = list(tables.values())[int(np.argmin(factors))]
            for (method, table), mean, ratio in zip(
                tables.items(), means, factors.tolist(), strict=True
            ):
                failed = int(np.sum(~np.isfinite(table["residual"])))
                row = {
                    "problem": problem.label,
                    "method": method,
                    "budget": budget,
                    "residual": np.inf if failed else mean.mean,
                    "error": np.nan if failed else mean.error,
                    "ratio": ratio,
                    "best": ratio == 1,
                    "tied": ratio <= _CLEARLY and _tied(table, best),
                    "failed": failed,
                    "steps": int(np.median(table["steps"])),
                    "scale": float(table["scale"][0]),
                }
                with np.errstate(all="ignore"):  # failed runs may hold infinities
                    row |= {name: float(np.mean(table[name])) for name in _MEANS}
                rows.append(row)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    @property
    def read_off(self) -> dict[str, bool]:
        """Whether results of each method were read off longer runs; not those of a method that depends on the budget."""
        read = self.runs["read_from"] > self.runs["budget"]
        return {
            m.label: bool(read[self.runs["method"] == m.label].any())
            for m in self.comparison.compared_methods
        }

    def ratios(self, budget: int) -> NDArray[np.float64]:
        """(problems, methods), in the order of the comparison."""
        c = self.comparison
        column = select(self.results, budget=budget)["ratio"]
        return column.reshape(len(c.compared_problems), len(c.compared_methods))

    @property
    def profiles(self) -> Columns:
        """Tidy: the corners of every profile, a row for each method, budget and τ."""
        c = self.comparison
        parts = []
        for budget, (i, method) in product(c.budgets, enumerate(c.compared_methods)):
            factors = self.ratios(budget)
            taus = grid(factors)
            corners = {"tau": taus, "share": profile(factors, taus)[:, i]}
            parts.append(labelled(corners, method=method.label, budget=budget))
        return joined(parts)

    def among(self, methods: Sequence[str]) -> "ComparisonResult":
        """The result of these methods alone; their ratios are others then, and no run is made again."""
        fewer = replace(self.comparison, methods=methods)
        labels = [each.label for each in fewer.compared_methods]
        compared = [each.label for each in self.comparison.compared_methods]
        unknown = [label for label in labels if label not in compared]
        if unknown:
            raise ValueError(f"methods={unknown!r} were not compared; {compared} were")

        def of_these(columns: Columns) -> Columns:
            rows = np.isin(columns.get("method", []), labels)
            return {name: column[rows] for name, column in columns.items()}

        return replace(
            self,
            comparison=fewer,
            runs=of_these(self.runs),
            curves=of_these(self.curves),
        )

    @property
    def starts(self) -> dict[str, tuple[float, float]]:
        """f and g at the start of each problem; NaN if they are not known."""
        problems = {p.label: p.problem for p in self.comparison.compared_problems}
        return {
            label: (_value(p.upper, p), _value(p.lower, p))
            for label, p in problems.items()
        }

    @property
    def sources(self) -> list[str | Source]:
        """The sources of problems and methods."""
        c = self.comparison
        problems = [each.source for each in c.compared_problems]
        return [*problems, *(each.source for each in c.compared_methods)]

    def findings(self) -> Findings:
        """The result as tables, notes and charts."""
        from tiebreak.studies.comparison.charts import comparison_charts
        from tiebreak.studies.comparison.report import notes, tables, verdict

        data = {"runs": self.runs, "results": self.results, "profiles": self.profiles}
        if self.curves:
            data["curves"] = self.curves
        return Findings(
            "compare",
            "Methods compared",
            verdict(self),
            tables(self),
            notes(self),
            comparison_charts(self),
            self.record(),
            data,
            copies(self.sources),
        )

    def record(self) -> dict[str, Any]:
        """Everything but the tables, as plain data."""
        c = self.comparison
        problems: dict[str, Any] = {}
        for each in c.compared_problems:
            constants = each.problem.constants
            problems[each.label] = None if constants is None else asdict(constants)
        names = ("budgets", "runs", "seed", "trials", "steps", "record", "as_is")
        return {
            **stamp(),
            "command": c.command,
            "problems": problems,
            "methods": [each.label for each in c.compared_methods],
            **{name: getattr(c, name) for name in names},
            "read_off": self.read_off,
            "sources": checksums(self.sources),
            "scales": scales(c.trials),
            "faults": list(self.faults),
            "fallen": list(self.fallen),
            "seconds": self.seconds,
        }


def _tied(table: Columns, best: Columns) -> bool:
    """Whether the mean difference to the best is within two standard errors."""
    difference = table["residual"] - best["residual"]
    if not np.isfinite(difference).all():
        return False
    mean, error = Estimate.of(difference)
    return bool(mean <= 0 or mean <= 2 * error)


def _value(oracle: Any, problem: Any) -> float:
    level = Level("problem", oracle, np.shape(problem.x0), np.dtype(np.float64))
    if not level.has_value:
        return float("nan")
    return float(level.value(np.reshape(problem.x0, (1, -1)).astype(np.float64))[0])
