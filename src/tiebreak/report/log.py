"""The CSV log of a training run as a page: what :class:`tiebreak.torch.CSVLog` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.decision import residuals
from tiebreak.experiments.charts import Axis, Chart, Mark, Series
from tiebreak.experiments.tables import Sheet, Table, scientific
from tiebreak.progress import clock
from tiebreak.report.reading import columns, record
from tiebreak.report.section import Page, Section, Verdict, origin

_ALONG = (Axis("step", "steps"), Axis("seconds", "seconds since the log began"))
_RESIDUALS = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("gg", "‖∇g‖²", "log"),
    Axis("ff", "‖∇f‖²", "log"),
)
_LOSSES = {"lower_loss": "lower loss", "reference": "its reference, averaged"}
#: The columns that the residuals are made of, in the order of :func:`tiebreak.decision.residuals`.
PRODUCTS = ("multiplier", "fg", "gg", "ff")
_UPPER = (Axis("upper_loss", "upper loss"),)
_DURING = (
    Axis("multiplier", "multiplier λ", "log"),
    Axis("ratio", "λ in units of ‖∇f‖/‖∇g‖", "log"),
)


def page(path: Path) -> Page:
    """The page of a log."""
    table = _last_run(columns(path, "step", "skipped", "seconds"))
    if not len(table["step"]):
        raise ValueError(f"{str(path)!r} has no step yet: a report needs one")
    steps = _with_residuals(
        {name: column[table["skipped"] != 1] for name, column in table.items()}
    )
    curves = _chart(
        "Residuals",
        "Of the gradients that the rule saw, batch by batch.",
        _RESIDUALS,
        steps,
    )
    curves += _lower_chart(steps)
    curves += _chart("The upper loss", "What is improved.", _UPPER, steps)
    during = _chart(
        "The multiplier", "By the optimizer's own record, step by step.", _DURING, steps
    )
    sections = (
        [Section("The tolerance", [_tolerance_chart(steps)])]
        if len(_known(steps, "excess"))
        else []
    )
    facts = {
        "log": path.name,
        "steps logged": len(table["step"]),
        "columns": ", ".join(table),
    }
    settings = path.with_name(f"{path.name}.json")
    sections += [
        Section("Curves", curves),
        Section("During the run", during),
        Section("Tables", [_ends(steps)]),
        origin(facts | (record(settings) if settings.exists() else {})),
    ]
    return Page(f"Training run: {path.name}", _verdict(table, steps), sections)


def _last_run(table: Table) -> Table:
    """The rows of the last run, and of each of its steps the last row.

    Where the steps begin again, after a resume or in a new run, earlier rows of the same and later steps do not count.
    The time of a new run begins where the last run's ended.
    """
    later = np.minimum.accumulate(np.append(table["step"], np.inf)[::-1])[::-1][1:]
    valid = table["step"] < later
    first = int(np.argmax(valid)) if valid.any() else 0
    rows = {
        name: column[valid]
        for name, column in table.items()
        if column.dtype.kind == "f"
    }
    if first:
        rows["seconds"] = rows["seconds"] - table["seconds"][first - 1]
    return rows


def _with_residuals(table: Table) -> Table:
    """The table with both squared residuals, if the log has the products that they are made of."""
    if not set(PRODUCTS) <= set(table):
        return table
    products = [np.asarray(table[name], dtype=float) for name in PRODUCTS]
    own, least = residuals(*products)
    return table | {"direction_squared": own, "stationarity_squared": least}


def _known(table: Table, name: str) -> Any:
    """The finite values of a column; none if the log has no such column."""
    column = table.get(name, np.zeros(0))
    return column[np.isfinite(column)]


def _series(name: str, table: Table, values: Table, look: int = 0) -> Series:
    return Series(
        name, {"step": table["step"], "seconds": table["seconds"], **values}, look
    )


def _chart(title: str, about: str, axes: Sequence[Axis], table: Table) -> list[Chart]:
    """A chart of those quantities that the log has; none if it has none of them."""
    logged = [axis for axis in axes if len(_known(table, axis.key))]
    series = _series("this run", table, {axis.key: table[axis.key] for axis in logged})
    return [Chart(title, about, _ALONG, logged, [series])] if logged else []


def _lower_chart(table: Table) -> list[Chart]:
    series = []
    for look, (name, text) in enumerate(_LOSSES.items()):
        if len(_known(table, name)):
            series.append(_series(text, table, {"loss": table[name]}, look))
    chart = Chart(
        "The lower loss",
        "What must stay optimal.",
        _ALONG,
        [Axis("loss", "lower loss")],
        series,
    )
    return [chart] if series else []


def _tolerance_chart(table: Table) -> Chart:
    return Chart(
        "Excess of the averaged lower loss over its reference",
        "In tolerances, averaged over recent steps. Inside is at most 1.",
        _ALONG,
        [Axis("excess", "excess, in tolerances", "symlog")],
        [_series("excess", table, {"excess": table["excess"]})],
        [Mark("excess", 1.0, "the tolerance")],
    )


def _verdict(table: Table, steps: Table) -> Verdict:
    skipped = int(np.sum(table["skipped"] == 1))
    skips = f"{skipped:,} of those logged were skipped" if skipped else "none skipped"
    findings = [
        f"{int(table['step'][-1]) + 1:,} steps, {skips}, in {clock(table['seconds'].max())}."
    ]
    for name, text in (("lower_loss", "lower"), ("upper_loss", "upper")):
        if len(_known(steps, name)):
            findings.append(_change(text, _known(steps, name)))
    excess = _known(steps, "excess")
    if not len(excess):
        weighed = len(_known(steps, "multiplier")) or len(_known(steps, "upper_loss"))
        if len(_known(steps, "lower_loss")) and not weighed:
            return Verdict(
                "Lower-only training",
                None,
                "What does training on the lower loss alone reach?",
                findings,
            )
        return Verdict(
            "No tolerance was set",
            None,
            "Two losses, no promise on either: what happened?",
            findings,
        )
    swing = _swing(excess)
    within = (
        ""
        if swing is None
        else f", and swung by ± {swing:.2g} over the last tenth of the steps logged"
    )
    first = [
        f"The lower loss ended {excess[-1]:.2g} tolerances above its reference{within}: both averaged over recent "
        "steps. The last iterate may differ where the learning rate did not fall."
    ]
    undecided = swing is not None and abs(excess[-1] - 1) <= swing
    if undecided:
        first.append(
            "That is too near the tolerance to tell: evaluate both losses over all training data."
        )
    findings = [*first, *findings]
    if len(_known(steps, "upper_loss")):
        findings.append(
            "That compares the upper loss with its own start, not with training on the lower loss alone: with a twin, "
            "evaluate it there, too, `with torch.no_grad(), opt.reference(): …`. All of this is before `opt.finish()`, "
            "which says itself where it has left the model."
        )
    question = (
        "Does the lower loss stay within its tolerance while the upper loss improves?"
    )
    if undecided:
        return Verdict("Not decided by the batches", None, question, findings)
    inside = bool(excess[-1] <= 1)
    return Verdict(
        "Inside the tolerance" if inside else "Outside the tolerance",
        inside,
        question,
        findings,
    )


def _swing(excess: Any) -> float | None:
    """The standard deviation of the excess over the last tenth of the steps; None if these are too few to tell."""
    last = excess[-max(1, len(excess) // 10) :]
    return float(last.std()) if len(last) >= 10 else None


def _change(text: str, losses: Any) -> str:
    """Where a loss began and ended, by averages: a single batch tells next to nothing."""
    tenth = max(1, len(losses) // 10)
    first = float(losses[:tenth].mean())
    last = float(losses[-tenth:].mean())
    went = "rose" if last > first else "fell" if last < first else "stayed the same"
    return (
        f"The {text} loss {went}, from {first:.3g} to {last:.3g}, averaged over the first and the last tenth of the "
        "steps logged."
    )


def _ends(table: Table) -> Sheet:
    rows = []
    for name in table:
        values = _known(table, name)
        if name not in ("step", "skipped", "seconds") and len(values):
            numbers = (
                values[0],
                values[-1],
                values.min(),
                np.median(values),
                values.max(),
            )
            rows.append([name, *(scientific(float(number), 2) for number in numbers)])
    return Sheet(
        "What was logged",
        ("quantity", "first", "last", "least", "median", "largest"),
        rows,
    )
