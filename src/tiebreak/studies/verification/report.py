"""The verdict, the tables, the notes and the charts of a verification."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebreak.studies.charts import Axis, Chart, Mark, Series
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.tables import (
    SYMBOLS,
    Columns,
    Estimate,
    Table,
    distinct,
    scientific,
    select,
)
from tiebreak.studies.verification.evidence import ERRORS, RESIDUALS, worst

if TYPE_CHECKING:
    from tiebreak.studies.verification.verification import Verification

_SYMBOLS = {"direction_squared": "E‖d‖²", "lower_gradient_squared": "E‖∇g‖²"}
_STEPS = (Axis("K", "steps K", "log"),)
_TITLES = {"paper": "the paper's problem", "worst case": "near the worst case"}


def verification_findings(
    verification: "Verification",
    record: Mapping[str, Any],
    data: Mapping[str, Columns],
    copies: Mapping[str, str],
) -> Findings:
    """The findings of the tables of a verification."""
    tables = [data[name] for name in ("bounds", "deviations") if name in data]
    words = np.concatenate([table["verdict"] for table in tables])
    verdicts = {word: int((words == word).sum()) for word in ("PASS", "FAIL", "open")}
    passed = verdicts["FAIL"] == 0
    verdict = Verdict(
        "PASS: no bound is violated" if passed else "FAIL: a bound is violated",
        passed,
        f"Do the residuals of {verification.runs} runs of each case stay inside the bounds that the theorems prove?",
        [
            f"{verdicts['PASS']:,} comparisons inside their bound, {verdicts['FAIL']:,} outside, {verdicts['open']:,} "
            "open."
        ],
    )
    return Findings(
        "verify",
        "The theorems against simulation",
        verdict,
        _tables(verification, data),
        list(_notes(verification, data, verdicts)),
        _charts(data),
        {**record, "passed": passed, "verdicts": verdicts},
        data,
        copies,
    )


# --- tables and notes -------------------------------------------------------------------------------------------------


def _tables(verification: "Verification", data: Mapping[str, Columns]) -> list[Table]:
    """Theorem 1 in detail, all bounds at a glance, the rates."""
    if "slopes" not in data:  # a single case of the user
        return [_theorem_table(data["bounds"], "own"), _share_table(data)]
    return [
        _theorem_table(data["bounds"], "paper"),
        _share_table(data),
        _rate_table(data["slopes"], verification.sizes.rate_steps),
    ]


def _theorem_table(bounds: Columns, group: str) -> Table:
    bounds = select(bounds, group=group)
    rows = []
    for schedule in distinct(bounds, "schedule"):
        of_schedule = select(bounds, schedule=schedule)
        steps = np.unique(of_schedule["K"])
        for K in steps[np.isin(steps, [*10 ** np.arange(18), steps[-1]])]:
            at_K = select(of_schedule, K=K)
            row = [schedule, f"{K:,}"]
            for name in RESIDUALS:
                values = select(at_K, residual=name)
                row += [scientific(values[key][0]) for key in ("mean", "bound")]
            rows.append([*row, worst(at_K["verdict"].tolist())])
    names = [name for symbol in _SYMBOLS.values() for name in (symbol, "bound")]
    where = _TITLES.get(group, str(bounds["problem"][0]))
    header = ("schedule", "K", *names, "verdict")
    return Table(f"What is proved, on {where}", header, rows, words=("schedule",))


def _share_table(data: Mapping[str, Columns]) -> Table:
    bounds = data["bounds"]
    names = ("group", "dimension", "schedule")
    keys = zip(*(bounds[name].tolist() for name in names), strict=True)
    rows = []
    for group, dimension, schedule in dict.fromkeys(keys):
        key = {"group": group, "dimension": dimension, "schedule": schedule}
        checked = select(bounds, **key)
        words = checked["verdict"].tolist()
        deviation = "–"
        if "deviations" in data:
            lemma = select(data["deviations"], **key)
            words += lemma["verdict"].tolist()
            if len(lemma["ratio"]):
                deviation = f"{lemma['ratio'].max():.1%}"
        title = group
        if group == "own":
            title = str(checked["problem"][0])
        elif group not in _TITLES:
            title = f"random, {group} noise"
        shares = [select(checked, residual=r)["ratio"].max() for r in RESIDUALS]
        problems = len(distinct(checked, "problem"))
        counts = [str(dimension), schedule, str(problems), f"{len(words):,}"]
        cells = [f"{share:.1%}" for share in shares]
        rows.append([title, *counts, *cells, deviation, worst(words)])
    header = (
        *("problem", "dim", "schedule", "count", "checks"),
        *("‖d‖²", "‖∇g‖²", "‖d−d̂‖²", "verdict"),
    )
    title = "The largest share of each bound that was measured"
    return Table(title, header, rows, words=("schedule",))


def _rate_table(slopes: Columns, steps: int) -> Table:
    rows = []
    for i, name in enumerate(slopes["residual"].tolist()):
        row = {key: column[i] for key, column in slopes.items()}
        log = " (log)" if row["log"] else ""
        measured = [
            Estimate(row[estimate], row[f"{estimate}_error"]).text(".3f")
            for estimate in ("weighted", "last")
        ]
        promised = [f"{row['corollary']:g}{log}", f"{row['bound']:.3f}"]
        rows.append([f"{row['a']:g}", SYMBOLS[name], *promised, *measured])
    names = ("Corollary 1", "the bound's own", "measured at x_N", "measured at x_K")
    title = f"Rates: the power of 1/K, over K from {steps // 10:,} to {steps:,}"
    return Table(title, ("a", "residual", *names), rows, words=("residual",))


def _notes(
    verification: "Verification",
    data: Mapping[str, Columns],
    verdicts: Mapping[str, int],
) -> Iterator[str]:
    """What a reader must know to read the tables."""
    v = verification
    yield (
        f"{verdicts['PASS']:,} comparisons passed, {verdicts['FAIL']} failed, {verdicts['open']} are open. A mean passes "
        f"if it is below its bound by {ERRORS} standard errors or more, and fails if it is above by as many."
    )
    yield (
        f"E is the mean over {v.runs} runs of Σ w_k r_k / Σ w_k, the expectation over N_K taken exactly."
    )
    paper = " On the paper's, ‖∇g‖² never exceeds 1.37: a bound above that says nothing there. It is true all the same."
    yield (
        "Bounds hold for the worst problem with these constants, and these problems are not the worst."
        + paper * (v.problem is None)
    )
    if "deviations" in data:
        yield (
            f"‖d−d̂‖² is the stability lemma, E‖d−d̂‖² ≤ τ², from {v.sizes.draws:,} mini-batches at each of eight iterates "
            "of a step; the share is that of the worst iterate."
        )
    if "slopes" in data:
        yield (
            "The corollary's powers are promises for the worst case, so measured ones may be steeper. "
            "At x_N they cannot be much more than 2a: the start stays in the mean, with a weight that falls as "
            "1/Σ η_kβ_k ~ K^−2a. The last iterate, of which the theorem does not speak, is much better. (log): times "
            "log K."
        )
    if v.constants is not None:
        yield f"The constants are those of --constants {v.constants}, not the problem's own: a FAIL may be theirs."


# --- charts -----------------------------------------------------------------------------------------------------------


def _charts(data: Mapping[str, Columns]) -> dict[str, Chart]:
    """The charts by the names of their figures; a single case has no rates, and may have no deviations."""
    charts: dict[str, Chart] = {
        "bounds": _bound_chart(data["bounds"]),
        "family": _family_chart(data["bounds"]),
    }
    if "deviations" in data:
        charts["stability"] = _stability_chart(data["deviations"])
    if "rates" in data:
        charts["rates"] = _rate_chart(data["rates"])
    return charts


def _bound_chart(bounds: Columns) -> Chart:
    title = f"The bounds on {', '.join(distinct(bounds, 'problem'))}"
    if "paper" in bounds["group"]:
        title = "Theorem 1 on the paper's problem"
        bounds = select(bounds, group="paper")
    series = []
    for look, schedule in enumerate(distinct(bounds, "schedule")):
        rows = select(bounds, schedule=schedule)
        series += [
            _residual_series(f"{schedule}, measured", rows, "mean", look),
            _residual_series(f"{schedule}, proved", rows, "bound", look, "dash"),
        ]
    about = "What is proved of x_N, and the mean that was measured."
    return Chart(title, about, _STEPS, _axes("{} at x_N"), series)


def _residual_series(
    name: str,
    rows: Columns,
    column: str,
    look: int,
    dash: str = "solid",
) -> Series:
    """A column of the rows, for both residuals against K."""
    columns: Columns = {}
    for residual in _SYMBOLS:
        part = select(rows, residual=residual)
        columns |= {"K": part["K"], residual: part[column]}
    return Series(name, columns, look, dash=dash)


def _axes(label: str) -> list[Axis]:
    return [Axis(name, label.format(text), "log") for name, text in _SYMBOLS.items()]


def _cases(table: Columns) -> Iterator[tuple[str, int, Columns]]:
    """Every problem and schedule: its name in a legend, the number of its group, and its rows."""
    groups = distinct(table, "group")
    names = ("group", "problem", "schedule")
    keys = zip(*(table[name].tolist() for name in names), strict=True)
    for group, problem, schedule in dict.fromkeys(keys):
        title = _TITLES.get(group, f"random problems, {group} noise")
        if group == "own":
            title = problem
        rows = select(table, problem=problem, schedule=schedule)
        yield title, groups.index(group), rows


def _family_chart(bounds: Columns) -> Chart:
    series = [
        _residual_series(name, rows, "ratio", look)
        for name, look, rows in _cases(bounds)
    ]
    axes = _axes("{} at x_N, share of its bound")
    return Chart(
        "Measured as a share of what is proved",
        "A line for each case. Nothing may be above 1.",
        _STEPS,
        axes,
        series,
        [Mark(axis.key, 1.0, "the bound") for axis in axes],
    )


def _stability_chart(deviations: Columns) -> Chart:
    series = []
    for name, look, rows in _cases(deviations):
        columns = {"step": rows["step"] + 1, "ratio": rows["ratio"]}
        series.append(Series(name, columns, look, dash="solid"))
    return Chart(
        "Stability of the direction",
        "The stability lemma at the worst of some iterates of a step. Nothing may be above 1.",
        [Axis("step", "step k + 1", "log")],
        [Axis("ratio", "E‖d−d̂‖², share of τ²", "log")],
        series,
        [Mark("ratio", 1.0, "the bound")],
    )


def _rate_chart(rates: Columns) -> Chart:
    estimates = (
        ("weighted", "at x_N", "solid"),
        ("last", "at the last iterate", "dot"),
    )
    powers = enumerate(sorted(distinct(rates, "a")))
    series = []
    for (look, a), (column, where, dash) in product(powers, estimates):
        rows = select(rates, a=a)
        name = f"a = {a:g}, {where}"
        series.append(_residual_series(name, rows, column, look, dash))
    return Chart(
        "Corollary 1: how fast the residuals fall",
        "Anytime schedules on the paper's problem.",
        _STEPS,
        _axes("{}"),
        series,
    )
