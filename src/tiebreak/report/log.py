"""The CSV log of a training run as a page: what :class:`tiebreak.torch.CSVLog` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Axis, Chart, Mark, Series
from tiebreak.experiments.tables import Sheet, Table, scientific
from tiebreak.live import clock
from tiebreak.report.reading import columns, record
from tiebreak.report.section import Page, Section, Verdict, origin

_ALONG = (Axis("step", "steps"), Axis("seconds", "seconds since the log began"))
_RESIDUALS = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("gg", "‖∇g‖²", "log"),
    Axis("ff", "‖∇f‖²", "log"),
)
_LOSSES = {"lower_loss": "lower loss", "average_loss": "lower loss, averaged", "reference": "its reference"}
_UPPER = (Axis("upper_loss", "upper loss"),)
_DURING = (
    Axis("multiplier", "multiplier λ", "log"),
    Axis("ratio", "λ in units of ‖∇f‖/‖∇g‖", "log"),
    Axis("noise", "standard error of the excess, as a share of the tolerance", "log"),
)


def page(path: Path) -> Page:
    """The page of a log."""
    table = _last_run(columns(path, "step", "skipped", "seconds"))
    if not len(table["step"]):
        raise ValueError(f"{str(path)!r} has no step yet: a report needs one")
    steps = {name: column[table["skipped"] != 1] for name, column in table.items()}
    curves = _chart("Residuals", "Of the gradients that the rule saw, batch by batch.", _RESIDUALS, steps)
    curves += _lower_chart(steps)
    curves += _chart("The upper loss", "What is improved.", _UPPER, steps)
    during = _chart("Multiplier and noise", "By the optimizer's own record, step by step.", _DURING, steps)
    sections = [Section("The tolerance", [_tolerance_chart(steps)])] if len(_known(steps, "excess")) else []
    facts = {"log": path.name, "steps logged": len(table["step"]), "columns": ", ".join(table)}
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
    rows = {name: column[valid] for name, column in table.items() if column.dtype.kind == "f"}
    if first:
        rows["seconds"] = rows["seconds"] - table["seconds"][first - 1]
    return rows


def _known(table: Table, name: str) -> Any:
    """The finite values of a column; none if the log has no such column."""
    column = table.get(name, np.zeros(0))
    return column[np.isfinite(column)]


def _series(name: str, table: Table, values: Table, look: int = 0) -> Series:
    return Series(name, {"step": table["step"], "seconds": table["seconds"], **values}, look)


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
    chart = Chart("The lower loss", "What must stay optimal.", _ALONG, [Axis("loss", "lower loss")], series)
    return [chart] if series else []


def _tolerance_chart(table: Table) -> Chart:
    excess = table["excess"]
    values = {"excess": excess}
    if len(_known(table, "noise")):
        values |= {"excess:low": excess - table["noise"], "excess:high": excess + table["noise"]}
    return Chart(
        "Excess of the averaged lower loss over its reference",
        "In tolerances; the band is its standard error. Inside is at most 1.",
        _ALONG,
        [Axis("excess", "excess, in tolerances", "symlog")],
        [_series("excess", table, values)],
        [Mark("excess", 1.0, "the tolerance")],
    )


def _verdict(table: Table, steps: Table) -> Verdict:
    skipped = int(np.sum(table["skipped"] == 1))
    skips = f"{skipped:,} of those logged were skipped" if skipped else "none skipped"
    findings = [f"{int(table['step'][-1]) + 1:,} steps, {skips}, in {clock(table['seconds'].max())}."]
    for name, text in (("lower_loss", "lower"), ("upper_loss", "upper")):
        if len(_known(steps, name)):
            findings.append(_change(text, _known(steps, name)))
    excess = _known(steps, "excess")
    if not len(excess):
        weighed = len(_known(steps, "multiplier")) or len(_known(steps, "upper_loss"))
        if len(_known(steps, "lower_loss")) and not weighed:
            return Verdict("Lower-only training", None, "What does training on the lower loss alone reach?", findings)
        return Verdict("No tolerance was set", None, "Two losses, no promise on either: what happened?", findings)
    noise = _known(steps, "noise")
    within = f", known to ± {noise[-1]:.2g}" if len(noise) else ""
    first = [
        f"The lower loss ended {excess[-1]:.2g} tolerances above its reference{within}: both averaged over recent "
        "steps. The last iterate may differ where the learning rate did not fall."
    ]
    undecided = len(noise) > 0 and abs(excess[-1] - 1) <= noise[-1]
    if undecided:
        first.append("That is too near the tolerance to tell: evaluate both losses over all training data.")
    findings = [*first, *_returns(steps), *findings]
    if len(_known(steps, "upper_loss")):
        findings.append(
            "That compares the upper loss with its own start, not with training on the lower loss alone: with a twin, "
            "evaluate it there, too, `with torch.no_grad(), opt.reference(): …`. All of this is before `opt.finish()`, "
            "which says itself where it has left the model."
        )
    question = "Does the lower loss stay within its tolerance while the upper loss improves?"
    if undecided:
        return Verdict("Not decided by the batches", None, question, findings)
    inside = bool(excess[-1] <= 1)
    return Verdict("Inside the tolerance" if inside else "Outside the tolerance", inside, question, findings)


def _returns(table: Table) -> list[str]:
    """How often and when the model was set to its twin."""
    count = _known(table, "returns")
    if not len(count) or count[-1] == 0:
        return []
    step = int(table["step"][np.argmax(table["returns"] == count[-1])])
    often = "once, at" if count[-1] == 1 else f"{count[-1]:,.0f} times, the last time at"
    return [
        f"The model was set to its twin {often} step {step:,}: many steps on the lower loss alone had not brought "
        "it back. What the upper loss had gained until then was given up."
    ]


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
            numbers = (values[0], values[-1], values.min(), np.median(values), values.max())
            rows.append([name, *(scientific(float(number), 2) for number in numbers)])
    return Sheet("What was logged", ("quantity", "first", "last", "least", "median", "largest"), rows)
