"""The findings in the CSV log of a training run, which :class:`tiebreak.torch.CSVLog` writes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.decision import residuals
from tiebreak.files import FilePath
from tiebreak.progress import clock
from tiebreak.studies.charts import Axis, Chart, Mark, Series
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.folder import LEGAL, kind_of, load, read_columns, read_json
from tiebreak.studies.tables import Columns, Table, scientific

_ALONG = (Axis("step", "steps"), Axis("seconds", "seconds since the log began"))
#: The columns that the residuals are made of, in the order of :func:`tiebreak.decision.residuals`.
PRODUCTS = ("multiplier", "fg", "gg", "ff")
_LOWER = "The lower loss"
_TOLERANCE = Mark("excess", 1.0, "the tolerance")
#: The title, the sentence and the quantities of each chart, by the name of its figure.
_CHARTS: dict[str, Any] = {
    "tolerance": (
        "Excess of the averaged lower loss over its reference",
        "In tolerances, averaged over recent steps. Inside is at most 1.",
        Axis("excess", "excess, in tolerances", "symlog"),
    ),
    "residuals": (
        "Residuals",
        "Of the gradients that the rule saw, batch by batch.",
        Axis("direction_squared", "‖d‖², own λ", "log"),
        Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
        Axis("gg", "‖∇g‖²", "log"),
        Axis("ff", "‖∇f‖²", "log"),
    ),
    "lower": (
        _LOWER,
        "What must stay optimal.",
        Axis("lower_loss", "lower loss"),
        Axis("reference", "its reference, averaged"),
    ),
    "upper": (
        "The upper loss",
        "What is improved.",
        Axis("upper_loss", "upper loss"),
    ),
    "multiplier": (
        "The multiplier",
        "By the optimizer's own record, step by step.",
        Axis("multiplier", "multiplier λ", "log"),
        Axis("ratio", "λ in units of ‖∇f‖/‖∇g‖", "log"),
    ),
}


def findings_of(place: FilePath) -> Findings:
    """The findings of a folder that a command wrote, or of the CSV log of a training run.

    Raises
    ------
    ValueError
        If a file is missing, or is not as the command writes it.
    """
    path = Path(place)
    if kind_of(path) != "log":
        return load(path)
    try:
        return log_findings(path)
    except ValueError as error:
        hint = ""
        if path.suffix == ".npz":
            hint = " It is a result that `minimize` saved, perhaps: tiebreak.load reads it."
        raise ValueError(
            f"place={str(place)!r} must be {LEGAL}; it is no such log: {error}.{hint}"
        ) from None


def log_findings(path: Path) -> Findings:
    """The findings of a log."""
    rows = _last_run(read_columns(path, "step", "skipped", "seconds"))
    if not len(rows["step"]):
        raise ValueError(f"{str(path)!r} has no step yet: a report needs one")
    is_made = rows["skipped"] != 1
    steps = _with_residuals({name: column[is_made] for name, column in rows.items()})
    charts = {name: _chart(steps, *spec) for name, spec in _CHARTS.items()}
    charts["tolerance"] = replace(charts["tolerance"], marks=[_TOLERANCE])
    record = {
        "log": path.name,
        "steps logged": len(rows["step"]),
        "columns": ", ".join(rows),
    }
    settings = path.with_name(f"{path.name}.json")
    if settings.exists():
        record |= read_json(settings)
    return Findings(
        "log",
        f"Training run: {path.name}",
        _verdict(rows, steps),
        [_ends(steps)],
        [],
        {name: chart for name, chart in charts.items() if chart.series},
        record,
    )


def _last_run(rows: Columns) -> Columns:
    """The rows of the last run, and of each of its steps the last row.

    Where the steps begin again, after a resume or in a new run, earlier rows of the same and later steps do not count.
    The time of a new run begins where the last run's ended.
    """
    later = np.minimum.accumulate(np.append(rows["step"], np.inf)[::-1])[::-1][1:]
    valid = rows["step"] < later
    first = int(np.argmax(valid)) if valid.any() else 0
    numbers = {name: each for name, each in rows.items() if each.dtype.kind == "f"}
    run = {name: column[valid] for name, column in numbers.items()}
    if first:
        run["seconds"] = run["seconds"] - rows["seconds"][first - 1]
    return run


def _with_residuals(rows: Columns) -> Columns:
    """The rows with both squared residuals, if the log has the products that they are made of."""
    if not set(PRODUCTS) <= set(rows):
        return rows
    products = [np.asarray(rows[name], dtype=float) for name in PRODUCTS]
    direction, least = residuals(*products)
    return rows | {"direction_squared": direction, "stationarity_squared": least}


def _finite(rows: Columns, name: str) -> Any:
    """The finite values of a column; none if the log has no such column."""
    column = rows.get(name, np.zeros(0))
    return column[np.isfinite(column)]


def _chart(rows: Columns, title: str, about: str, *axes: Axis) -> Chart:
    """A chart of the quantities that the log has; losses share an axis, a series for each."""
    logged = [axis for axis in axes if len(_finite(rows, axis.key))]
    along = {key: rows[key] for key in ("step", "seconds")}
    if title != _LOWER:
        series = [Series("this run", along | {a.key: rows[a.key] for a in logged}, 0)]
        return Chart(title, about, _ALONG, logged, series if logged else [])
    series = [
        Series(axis.label, along | {"loss": rows[axis.key]}, look)
        for look, axis in enumerate(logged)
    ]
    return Chart(title, about, _ALONG, [Axis("loss", "lower loss")], series)


def _verdict(rows: Columns, steps: Columns) -> Verdict:
    answers = [_length(rows)]
    for name in ("lower", "upper"):
        losses = _finite(steps, f"{name}_loss")
        if len(losses):
            answers.append(_change(name, losses))
    excess = _finite(steps, "excess")
    if not len(excess):
        return _without_tolerance(steps, answers)
    swing = _swing(excess)
    within = ""
    if swing is not None:
        within = f", and swung by ± {swing:.2g} over the last tenth of the steps logged"
    first = [
        f"The lower loss ended {excess[-1]:.2g} tolerances above its reference{within}: both averaged over recent "
        "steps. The last iterate may differ where the learning rate did not fall."
    ]
    undecided = swing is not None and abs(excess[-1] - 1) <= swing
    if undecided:
        first.append(
            "That is too near the tolerance to tell: evaluate both losses over all training data."
        )
    answers = [*first, *answers]
    if len(_finite(steps, "upper_loss")):
        answers.append(
            "That compares the upper loss with its own start, not with training on the lower loss alone: with a twin, "
            "evaluate it there, too, `with torch.no_grad(), opt.reference(): …`. All of this is before `opt.finish()`, "
            "which says itself where it has left the model."
        )
    question = (
        "Does the lower loss stay within its tolerance while the upper loss improves?"
    )
    if undecided:
        return Verdict("Not decided by the batches", None, question, answers)
    inside = bool(excess[-1] <= 1)
    word = "Inside the tolerance" if inside else "Outside the tolerance"
    return Verdict(word, inside, question, answers)


def _without_tolerance(steps: Columns, answers: Sequence[str]) -> Verdict:
    weighted = len(_finite(steps, "multiplier")) or len(_finite(steps, "upper_loss"))
    if len(_finite(steps, "lower_loss")) and not weighted:
        question = "What does training on the lower loss alone reach?"
        return Verdict("Lower-only training", None, question, answers)
    question = "Two losses, no promise on either: what happened?"
    return Verdict("No tolerance was set", None, question, answers)


def _length(rows: Columns) -> str:
    skipped = int(np.sum(rows["skipped"] == 1))
    skips = f"{skipped:,} of those logged were skipped" if skipped else "none skipped"
    steps = int(rows["step"][-1]) + 1
    return f"{steps:,} steps, {skips}, in {clock(rows['seconds'].max())}."


def _swing(excess: Any) -> float | None:
    """The standard deviation of the excess over the last tenth of the steps; None if these are too few to tell."""
    last = excess[-max(1, len(excess) // 10) :]
    if len(last) >= 10:
        return float(last.std())
    return None


def _change(name: str, losses: Any) -> str:
    """Where a loss began and ended, by averages: a single batch tells next to nothing."""
    tenth = max(1, len(losses) // 10)
    first = float(losses[:tenth].mean())
    last = float(losses[-tenth:].mean())
    change = "stayed the same"
    if last != first:
        change = "rose" if last > first else "fell"
    return (
        f"The {name} loss {change}, from {first:.3g} to {last:.3g}, averaged over the first and the last tenth of the "
        "steps logged."
    )


def _ends(rows: Columns) -> Table:
    lines = []
    for name in rows:
        values = _finite(rows, name)
        if name not in ("step", "skipped", "seconds") and len(values):
            middle = values.min(), np.median(values), values.max()
            numbers = (values[0], values[-1], *middle)
            lines.append([name, *(scientific(float(n), 2) for n in numbers)])
    header = ("quantity", "first", "last", "least", "median", "largest")
    return Table("What was logged", header, lines)
