"""The CSV log of a training run as a page: what :class:`tiebreak.torch.CSVLog` writes."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Axis, Chart, Mark, Series
from tiebreak.experiments.tables import Sheet, Table, scientific
from tiebreak.live import clock
from tiebreak.report.reading import columns, record
from tiebreak.report.section import Page, Part, Section, Verdict, origin

__all__ = ["page"]

_ALONG = (Axis("step", "steps"), Axis("seconds", "seconds since the log began"))
_RESIDUALS = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("gg", "‖∇g‖²", "log"),
    Axis("ff", "‖∇f‖²", "log"),
)
_LOSSES = {"lower_loss": "lower loss", "average_loss": "lower loss, averaged", "reference": "its reference"}
_DURING = (
    Axis("multiplier", "multiplier λ", "log"),
    Axis("ratio", "λ in units of ‖∇f‖/‖∇g‖", "log"),
    Axis("noise", "standard error of the excess, as a share of the tolerance", "log"),
)


def page(path: Path) -> Page:
    """The page of a log."""
    table = _last_lines(columns(path, "step", "skipped"))
    if not len(table["step"]):
        raise ValueError(f"{str(path)!r} has no step yet: a report needs one")
    made = {name: column[table["skipped"] != 1] for name, column in table.items()}
    sections = [Section("Curves", _curves(made))]
    if _there(made, "excess"):
        sections.insert(0, Section("The tolerance", [_tolerance(made)]))
    during = _chart("Multiplier and noise", "By the optimizer's own record, step by step.", _DURING, made)
    sections.append(Section("During the run", [] if during is None else [during]))
    sections.append(Section("Tables", [_ends(table, made)]))
    facts = {"log": path.name, "steps logged": len(table["step"]), "columns": ", ".join(table)}
    beside = path.with_name(f"{path.name}.json")
    sections.append(origin(facts | (record(beside) if beside.exists() else {})))
    return Page(f"Training run: {path.name}", _verdict(table, made), sections)


def _last_lines(table: Table) -> Table:
    """Where the steps begin again, after a resume or in a new run, what stood from there on does not count.

    Of a new run nothing before counts: its time begins where the last run's ended.
    """
    later = np.minimum.accumulate(np.append(table["step"], np.inf)[::-1])[::-1][1:]
    kept = table["step"] < later
    begins = int(np.argmax(kept)) if kept.any() else 0
    found = {name: column[kept] for name, column in table.items() if column.dtype.kind == "f"}
    if begins and "seconds" in found and np.isfinite(table["seconds"][begins - 1]):
        found["seconds"] = found["seconds"] - table["seconds"][begins - 1]
    return found


def _there(table: Table, name: str) -> bool:
    return name in table and bool(np.isfinite(table[name]).any())


def _along(table: Table) -> list[Axis]:
    """What curves can be drawn against: steps, and the time where the log has it for all of them."""
    return [axis for axis in _ALONG if axis.key in table and bool(np.isfinite(table[axis.key]).all())]


def _kept(table: Table, **named: Any) -> dict[str, Any]:
    """Columns of a series by name, with those of both axes."""
    return {axis.key: table[axis.key] for axis in _along(table)} | named


def _chart(title: str, about: str, axes: Any, table: Table) -> Chart | None:
    """A chart of those axes that the log has."""
    there = [axis for axis in axes if _there(table, axis.key)]
    if not there:
        return None
    columns = _kept(table, **{axis.key: table[axis.key] for axis in there})
    return Chart(title, about, _along(table), there, [Series("this run", columns, 0, dash="solid")])


def _curves(table: Table) -> list[Part]:
    parts = [_chart("Residuals", "Of the gradients that the rule saw, batch by batch.", _RESIDUALS, table)]
    lower = [
        Series(text, _kept(table, loss=table[name]), i)
        for i, (name, text) in enumerate(_LOSSES.items())
        if _there(table, name)
    ]
    if lower:
        axes = [Axis("loss", "lower loss")]
        parts.append(Chart("The lower loss", "What must stay optimal.", _along(table), axes, lower))
    parts.append(_chart("The upper loss", "What is improved.", [Axis("upper_loss", "upper loss")], table))
    return [part for part in parts if part is not None]


def _tolerance(table: Table) -> Chart:
    found, excess = {"excess": table["excess"]}, table["excess"]
    if _there(table, "noise"):
        found |= {"excess:low": excess - table["noise"], "excess:high": excess + table["noise"]}
    return Chart(
        "Excess of the averaged lower loss over its reference",
        "In tolerances; the band is its standard error. Inside is at most 1.",
        _along(table), [Axis("excess", "excess, in tolerances", "symlog")],
        [Series("excess", _kept(table, **found), 0)],
        [Mark("excess", 1.0, "the tolerance")],
    )  # fmt: skip


def _verdict(table: Table, made: Table) -> Verdict:
    skipped = int(np.sum(table["skipped"] == 1))
    steps = int(table["step"][-1]) + 1
    found = [f"{steps:,} steps" + (f", {skipped:,} of those logged were skipped." if skipped else ", none skipped.")]
    if _there(table, "seconds"):
        found[0] = f"{found[0][:-1]}, in {clock(float(np.nanmax(table['seconds'])))}."
    for name, text in (("lower_loss", "lower"), ("upper_loss", "upper")):
        if _there(made, name):
            found.append(_change(text, made[name]))
    weighed = ["multiplier", "upper_loss", "excess"]
    if _there(made, "lower_loss") and not any(_there(made, name) for name in weighed):
        return Verdict("Lower-only training", None, "What does training on the lower loss alone reach?", found)
    if not _there(made, "excess"):
        return Verdict("No tolerance was set", None, "Two losses, no promise on either: what happened?", found)
    last = float(made["excess"][np.isfinite(made["excess"])][-1])
    noise: Any = made["noise"][np.isfinite(made["noise"])] if _there(made, "noise") else ()
    within = f", known to ± {noise[-1]:.2g}" if len(noise) else ""
    found.insert(
        0,
        f"The lower loss ended {last:.2g} tolerances above its reference{within}: both averaged over recent steps. The "
        "last iterate may differ where the learning rate did not fall.",
    )
    if _there(made, "returns") and (back := made["returns"][np.isfinite(made["returns"])])[-1] > 0:
        step = int(made["step"][np.isfinite(made["returns"])][np.argmax(back == back[-1])])
        often = "once, at" if back[-1] == 1 else f"{back[-1]:,.0f} times, the last time at"
        found.insert(
            1,
            f"The model was set to its twin {often} step {step:,}: many steps on the lower loss alone had not brought "
            "it back. What the upper loss had gained until then was given up.",
        )
    if _there(made, "upper_loss"):
        found.append(
            "That compares the upper loss with its own start, not with training on the lower loss alone: with a twin, "
            "evaluate it there, too, `with torch.no_grad(), opt.reference(): …`. All of this is before `opt.finish()`, "
            "which says itself where it has left the model."
        )
    asked = "Does the lower loss stay within its tolerance while the upper loss improves?"
    if len(noise) and abs(last - 1) <= noise[-1]:
        found.insert(1, "That is too near the tolerance to tell: evaluate both losses over all training data.")
        return Verdict("Not decided by the batches", None, asked, found)
    good = last <= 1
    return Verdict("Inside the tolerance" if good else "Outside the tolerance", good, asked, found)


def _change(text: str, losses: Any) -> str:
    """Where a loss began and ended. A single batch tells next to nothing: averages of many are compared."""
    known = losses[np.isfinite(losses)]
    tenth = max(1, len(known) // 10)
    first, last = float(known[:tenth].mean()), float(known[-tenth:].mean())
    went = "rose" if last > first else "fell" if last < first else "stayed the same"
    return (
        f"The {text} loss {went}, from {first:.3g} to {last:.3g}, averaged over the first and the last tenth of the "
        "steps logged."
    )


def _ends(table: Table, made: Table) -> Sheet:
    rows = []
    for name, column in made.items():
        known = column[np.isfinite(column)]
        if name not in ("step", "skipped", "seconds") and len(known):
            values = (known[0], known[-1], known.min(), float(np.median(known)), known.max())
            rows.append([name, *(scientific(float(value), 2) for value in values)])
    return Sheet("What was logged", ("quantity", "first", "last", "least", "median", "largest"), rows)
