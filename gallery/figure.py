"""One picture of a study: the curve that a sweep of weights draws, every method as a point, the tolerance as a line."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from gallery.methods import METHODS
from gallery.report import TITLES, Row, Spread, rows, swept
from gallery.study import Findings
from tiebreak.studies.charts import COLOURS
from tiebreak.studies.figures import footnote, legend, style

__all__ = ["plane"]

_MARKS = "osD^v<>PXph*d8"
_CROSSES = "x+1234|_"
_LINEAR = 3.0  # tolerances, beyond which the axis is logarithmic


def plane(findings: Findings) -> Figure:
    """Excess of the lower loss against the first metric and against the upper loss, at the first of the budgets."""
    budget = findings.study.budgets[0]
    metric, found = findings.study.example.metrics[0], rows(findings, budget)
    own = [method.name for method in findings.study.example.methods]
    looks = {row.method: _look(row.method, own) for row in found}
    with style():
        figure = Figure(figsize=(7.4, 4.6), layout=ConstrainedLayoutEngine(h_pad=0.06))
        both = figure.subplots(1, 2)
        for axes, name in zip(both, (metric.name, "upper"), strict=True):
            _sweep(axes, findings, name)
            for row in found:
                _point(
                    axes,
                    row,
                    row.upper if name == "upper" else row.metrics[name],
                    looks[row.method],
                )
            _tolerance(axes)
            axes.set_xlabel("excess of the lower loss, in tolerances")
            axes.set_title("upper loss" if name == "upper" else name, loc="left")
        lines = [
            Line2D([], [], linestyle="", label=row.title, **looks[row.method])
            for row in found
        ]
        swept = Line2D([], [], color="0.6", linewidth=1, label="weights swept")
        legend(figure, [swept, *lines], 4, length=1.2)
        seeds = findings.study.seeds
        spread = (
            f"Means over {seeds} seeds with standard deviations"
            if seeds > 1
            else "One seed"
        )
        footnote(
            figure, f"{spread}, {TITLES[budget].lower()}. Shaded: inside the tolerance."
        )
    return figure


def _look(method: str, own: Sequence[str]) -> dict[str, Any]:
    """Ours are filled, an example's own are dark crosses and stars, and all have their own mark and colour whoever else
    is drawn.
    """
    if method in own:
        mark = _CROSSES[own.index(method) % len(_CROSSES)]
        return {"marker": mark, "color": "0.2", "markersize": 7, "markeredgewidth": 1.5}
    place = list(METHODS).index(method)
    colour = COLOURS[place % len(COLOURS)]
    ours = METHODS[method].ours
    return {
        "marker": _MARKS[place % len(_MARKS)], "color": colour, "markersize": 7 if ours else 6,
        "markerfacecolor": colour if ours else "white", "markeredgewidth": 1.2,
    }  # fmt: skip


def _tolerance(axes: Axes) -> None:
    """The scale of the axis, and what lies inside: linear about the tolerance, logarithmic far away from it."""
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.5)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.5), max(high, 2.0))
    ticks = [
        t
        for t in (-1000, -100, -10, -2, -1, 0, 1, 2, 3, 10, 30, 100, 1000, 10000)
        if low <= t <= max(high, 2)
    ]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.axvspan(min(low, -0.5), 1, color="0.94", linewidth=0, zorder=0)
    axes.axvline(1, color="0.3", linewidth=1, linestyle="--")
    axes.axvline(0, color="0.8", linewidth=0.7)


def _sweep(axes: Axes, findings: Findings, name: str) -> None:
    """The weighted sum's trials, as a line."""
    trials = swept(findings)
    if trials:
        axes.plot(
            trials["excess"],
            trials[name],
            color="0.6",
            linewidth=1,
            marker=".",
            markersize=4,
            zorder=1,
        )


def _point(axes: Axes, row: Row, height: Spread, look: dict[str, Any]) -> None:
    if not (math.isfinite(row.excess.mean) and math.isfinite(height.mean)):
        return
    wide, high = (
        [0 if math.isnan(s.deviation) else s.deviation] for s in (row.excess, height)
    )
    axes.errorbar(
        [row.excess.mean], [height.mean], xerr=wide, yerr=high, elinewidth=0.8, ecolor=look["color"],
        linestyle="", zorder=3, **look,
    )  # fmt: skip
