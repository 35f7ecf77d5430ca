"""The table and the figure of a study, from its record, into docs/_tables and docs/_static."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from gallery.constrained import left_over
from gallery.problems.dictionary import dictionary_data, recovery
from gallery.problems.regression import regression_data
from tiebreak.studies.figures import COLOURS, legend, log_grid, style

__all__ = ["report"]

DOCS = Path(__file__).parent.parent.parent / "docs"
COLUMNS = {
    "regression": ("lower gap", "upper gap", "distance", "test"),
    "dictionary": ("lower gap", "upper", "recovery", "old atoms", "new atoms", "fresh"),
}
DRAWN = {
    "regression": (
        "weighted sum",
        "DBGD",
        "SDBGD",
        "BiG-SAM",
        "PR-SDBPG†, sampled",
        "growing penalty, sampled",
    ),
    "dictionary": (
        "weighted sum",
        "DBGD",
        "SDBGD averaged, sampled",
        "BiG-SAM",
        "DBGD, projected",
        "CG-BiO",
    ),
}


def report(path: Path) -> None:
    """Write both."""
    record = json.loads(path.read_text())
    (DOCS / "_tables" / path.with_suffix(".md").name).write_text(table(record))
    figure(record, DOCS / "_static" / f"{path.stem}.png")


def known(name: str, seeds: range) -> dict[str, list[dict[str, float]]]:
    """What needs no method: where all begin, and for the regression two exact answers."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        if name == "dictionary":
            data = dictionary_data(seed)
            row = {"lower gap": 0.0, "upper": data.upper(*data.decode(data.x0))}
            parts = {
                "recovery": slice(None),
                "old atoms": slice(29),
                "new atoms": slice(40, None),
            }
            row |= {
                key: recovery(data.atoms, data.truth[:, part])
                for key, part in parts.items()
            }
            found.setdefault("start: the first stage", []).append(
                row | {"fresh": left_over(data.atoms, data.fresh, 3.0)}
            )
            continue
        rows = regression_data(seed)
        best = rows.solution()
        points = {
            "start: the mean for every row": 0 * best,
            "least-norm fit of the training rows": np.linalg.pinv(rows.train.features)
            @ rows.train.targets,
            "exact solution": best,
        }
        for key, x in points.items():
            distance = float(np.linalg.norm(x - best) / np.linalg.norm(best))
            gap = rows.validation.loss(x) - rows.validation.loss(best)
            row = {
                "lower gap": rows.train.loss(x),
                "upper gap": gap,
                "distance": distance,
                "test": rows.test.loss(x),
            }
            found.setdefault(key, []).append(row)
    return found


def table(record: dict[str, Any]) -> str:
    """Means and standard deviations over the seeds; bold: the least upper value inside, of those inside when tuned."""
    columns = COLUMNS[record["name"]]
    upper = columns[1]
    kept = {m["method"]: ends(m) for m in record["methods"]}
    inside = {
        n: e
        for n, e in kept.items()
        if np.mean([r["lower gap"] for r in e]) <= record["tolerance"]
    }
    # Who found no setting inside when tuned was given the least gap it had, wherever that lay: it cannot win by that.
    found = [
        m["method"]
        for m in record["methods"]
        if m["feasible when tuned"] and m["method"] in inside
    ]
    best = min(
        found, key=lambda n: float(np.mean([r[upper] for r in inside[n]])), default=None
    )
    lines = [
        f"| method | inside | {' | '.join(columns)} |",
        "| --- | :---: |" + " ---: |" * len(columns),
    ]
    for key, rows in known(record["name"], range(5)).items():
        lines.append(
            f"| {key} | | " + " | ".join(cell(rows, c) for c in columns) + " |"
        )
    for method in record["methods"]:
        name = method["method"]
        shown = f"**{name}**" if name == best else name
        mark = "yes" if name in inside else ""
        lines.append(
            f"| {shown} | {mark} | "
            + " | ".join(cell(kept[name], c) for c in columns)
            + " |"
        )
    return "\n".join(lines) + "\n"


def ends(method: dict[str, Any]) -> list[dict[str, float]]:
    return [run["end"] for run in method["runs"]]


def cell(rows: list[dict[str, float]], column: str) -> str:
    values = np.array([row[column] for row in rows])
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if not np.isfinite(mean):
        return "diverged"
    if column in ("recovery", "old atoms", "new atoms"):
        return f"{mean:.0%} ± {spread:.0%}"
    if column == "lower gap" or mean == 0:
        return f"{mean:.1e}" if abs(mean) > 1e-12 else "0"
    return f"{mean:.3g} ± {spread:.1g}"


def panels(titles, xlabel):
    """A figure of two panels with logarithmic axes."""
    drawn = Figure(figsize=(7.4, 3.7), layout=ConstrainedLayoutEngine(h_pad=0.06))
    both = drawn.subplots(1, 2)
    for axes, title in zip(both, titles, strict=True):
        axes.set(xscale="log", yscale="log", xlabel=xlabel)
        axes.set_title(title, loc="left")
    return drawn, both


def figure(record: dict[str, Any], path: Path) -> None:
    """Lower gap and what is gained, against gradient evaluations; medians over the seeds."""
    name = record["name"]
    second = "distance" if name == "regression" else "recovery"
    titles = ("lower gap" + ("" if name == "regression" else ", as a share of the least loss"), {
        "distance": "distance to the exact solution", "recovery": "share of the true atoms found"}[second])  # fmt: skip
    with style():
        drawn, both = panels(titles, "gradient evaluations (rows)")
        lines = []
        for colour, wanted in zip(COLOURS, DRAWN[name], strict=False):
            [method] = [m for m in record["methods"] if m["method"] == wanted]
            curves = [run["curve"] for run in method["runs"]]
            count = min(map(len, curves))
            calls = [point["calls"] for point in curves[0][:count]]
            dashes = "--" if "sampled" in wanted else "-"
            for axes, column in zip(both, ("lower gap", second), strict=True):
                middle = np.median(
                    [[point[column] for point in curve[:count]] for curve in curves],
                    axis=0,
                )
                [line] = axes.plot(
                    calls,
                    np.maximum(middle, 1e-6),
                    dashes,
                    color=colour,
                    linewidth=1.6,
                    label=wanted,
                )
            lines.append(line)
        both[0].axhline(record["tolerance"], color="0.5", linewidth=0.8, linestyle=":")
        both[1].set_yscale("linear")
        both[1].set_ylim(0, 1.02)
        log_grid(both[0])
        both[1].grid(color="0.9", linewidth=0.6)
        legend(drawn, lines, 3, length=2.4)
        drawn.savefig(path, dpi=150)
