"""A study on disk: what was asked for, every training, curves, the summary, the picture."""

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gallery.example import COLUMNS
from gallery.report import markdown, notes, rows, winner
from gallery.study import Findings
from tiebreak.provenance import stamp
from tiebreak.studies.folder import write_files
from tiebreak.studies.tables import Columns

__all__ = ["configuration", "results", "save", "summary", "whole"]

_PACKAGES = ("torch", "torchjd", "cooper-optim", "quadprog")


def configuration(findings: Findings) -> dict[str, Any]:
    """Everything that the numbers depend on, and with what they were made."""
    made = stamp()
    versions: dict[str, str] = dict(made["versions"])
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = findings.study.device
    named = (
        torch.cuda.get_device_name(device)
        if torch.device(device).type == "cuda"
        else device
    )
    return {
        "study": asdict(findings.study),
        "command": findings.study.command,
        "steps": findings.steps,
        "goals": {budget: asdict(goal) for budget, goal in findings.goals.items()},
        "chosen": {name: dict(knobs) for name, knobs in findings.knobs.items()},
        "seconds_per_evaluation": findings.seconds,
        "missing": findings.missing,
        "interrupted": findings.interrupted,
        "elapsed": findings.elapsed,
        "device": named,
        **made,
        "versions": versions,
    }


def results(findings: Findings) -> Columns:
    """A row for each training, tuning among them."""
    runs, names = (
        findings.runs,
        [metric.name for metric in findings.study.example.metrics],
    )
    table: Columns = {
        name: np.array([getattr(run, name) for run in runs])
        for name in ("budget", "method", "seed")
    }
    table["knobs"] = np.array(
        [
            "; ".join(f"{key} {value:g}" for key, value in run.knobs.items())
            for run in runs
        ]
    )
    plain = [name for name in COLUMNS if name not in table]
    table |= {name: np.array([getattr(run, name) for run in runs]) for name in plain}
    table |= {
        name: np.array([run.metrics.get(name, np.nan) for run in runs])
        for name in names
    }
    ends = [run.finished for run in runs]
    if not any(ends):
        return table
    for name in ("place", "looks", "seconds", "excess", "lower", "upper"):
        table[f"finished {name}"] = np.array(
            [np.nan if end is None else getattr(end, name) for end in ends]
        )
    for name in names:
        table[f"finished {name}"] = np.array(
            [np.nan if e is None else e.metrics.get(name, np.nan) for e in ends]
        )
    return table


def _curves(findings: Findings) -> Columns:
    """The curves of what was judged, tidy."""
    runs = [run for run in findings.runs if run.budget != "tuning"]
    counts = [len(run.curve["step"]) for run in runs]
    table: Columns = {
        name: np.repeat(np.array([getattr(run, name) for run in runs]), counts)
        for name in ("budget", "method", "seed")
    }
    columns = runs[0].curve if runs else {}
    return table | {
        name: np.concatenate([run.curve[name] for run in runs]) for name in columns
    }


def summary(findings: Findings) -> dict[str, Any]:
    """The tables as data."""
    example, budgets = findings.study.example, dict[str, dict[str, Any]]()
    for budget in findings.study.budgets:
        found, last = rows(findings, budget), rows(findings, budget, finished=True)
        ended = {row.method: row for row in last}
        best = {"winner": winner(found, example.metrics[0])}
        if ended:
            finished = [ended.get(row.method, row) for row in found]
            best["winner finished"] = winner(finished, example.metrics[0])
        budgets[budget] = {
            name: None if one is None else asdict(one) for name, one in best.items()
        } | {
            "rows": [_plain(asdict(row)) for row in found],
            "finished": [
                _plain(asdict(row) | _search(findings, budget, row.method))
                for row in last
            ],
        }
    return {
        "example": example.name, "title": example.title, "question": example.question,
        "metrics": [asdict(metric) for metric in example.metrics], "budgets": budgets, "notes": notes(findings),
        **configuration(findings),
    }  # fmt: skip


def _search(findings: Findings, budget: str, method: str) -> dict[str, Any]:
    """Where a method's models were moved, and what that took: seed by seed."""
    ends = [
        run.finished
        for run in findings.runs
        if (run.budget, run.method) == (budget, method)
    ]
    return {
        f"finish {name}": [end and getattr(end, name) for end in ends]
        for name in ("place", "looks", "seconds")
    }


def _plain(data: Any) -> Any:
    """NaN has no place in JSON."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not np.isfinite(data) else data


def whole(folder: Path) -> bool:
    """Whether a study that was not interrupted is there."""
    try:
        return not json.loads((folder / "config.json").read_text(encoding="utf-8"))[
            "interrupted"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def save(
    findings: Findings, folder: Path, report: bool = False, overwrite: bool = False
) -> list[Path]:
    """Write all of it, with a page if a `report` is asked for; the paths."""
    from gallery.figure import plane
    from gallery.page import page
    from tiebreak.studies.figures import image
    from tiebreak.studies.page import render

    figure = plane(findings)
    record = {"kind": "gallery", **_plain(configuration(findings))}
    contents: dict[str, Any] = {
        "config.json": record,
        "results.csv": results(findings),
        "curves.csv": _curves(findings),
        "summary.md": markdown(findings),
        "summary.json": _plain(summary(findings)),
        **{f"plane.{kind}": image(figure, kind) for kind in ("png", "pdf")},
    }
    if report:
        contents["report.html"] = render(page(findings))
    facts = {name: record[name] for name in ("kind", "command")}
    return write_files(folder, contents, facts, overwrite=overwrite)
