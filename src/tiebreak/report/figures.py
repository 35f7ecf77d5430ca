"""A chart of a page as a figure for print: one column wide, or two."""

from importlib import resources
from textwrap import wrap
from typing import Any, Literal

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from tiebreak.experiments.latex import in_latex
from tiebreak.experiments.style import log_grid, look_of
from tiebreak.report.section import Axis, Chart, Series

__all__ = ["Width", "figure"]

Width = Literal["column", "page"]
_DASHES = {"solid": "-", "dash": (0, (5, 1.6)), "dot": (0, (1.2, 1.2)), "dashdot": (0, (5, 1.5, 1, 1.5))}
_MARKERS = "osD^vP*X"
_LETTERS = {"column": 64, "page": 120}  # of a line of the legend
_LABEL = {"x": 60, "y": 34}  # of a line beside an axis
_LINE = 1.35  # a line of the legend, in sizes of its letters
_LINEAR = 1.0  # about zero, on a scale that is logarithmic far away


def figure(chart: Chart, x: Axis, y: Axis, width: Width) -> Figure:
    """The series of a chart that have both axes, with their bands, error bars and marks; the legend above."""
    styles = [str(resources.files("tiebreak.styles").joinpath(f"{name}.mplstyle")) for name in ("base", width)]
    with style.context(styles):
        made = Figure(layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03))
        axes = made.subplots()
        shown = [series for series in chart.series if x.key in series.columns and y.key in series.columns]
        names: dict[str, Line2D] = {}
        for series in shown:
            line = _draw(axes, series, x.key, y.key)
            names.setdefault(series.name, line)
        for axis, letter in ((x, "x"), (y, "y")):
            _scale(axes, axis, letter, [np.asarray(series.columns[axis.key], dtype=float) for series in shown])
        for mark in chart.marks:
            if mark.key in (x.key, y.key):
                draw = axes.axvline if mark.key == x.key else axes.axhline
                draw(mark.at, color="0.4", linewidth=0.8, linestyle="--")
        if axes.get_xscale() == axes.get_yscale() == "log":
            log_grid(axes)
        labels = [in_latex(name, escape=False) for name in names]
        most = _LETTERS[width] // (max(map(len, names), default=1) + 6)  # side by side, with their lines
        across = max(1, min(most, 4))
        legend = made.legend(
            names.values(), labels, loc="outside upper left", ncols=across, frameon=False,
            handlelength=2.2, columnspacing=1.0, labelspacing=0.3,
        )  # fmt: skip
        # A long legend makes the figure higher, not the axes lower: these keep the height that two lines leave them.
        lines = -(-len(names) // across)
        if lines > 2:
            size = legend.prop.get_size_in_points() * _LINE / 72
            made.set_figheight(made.get_figheight() + (lines - 2) * size)
    return made


def _draw(axes: Axes, series: Series, x: str, y: str) -> Line2D:
    own = look_of(series.look)
    columns = {name: np.asarray(column, dtype=float) for name, column in series.columns.items()}
    across, up = columns[x], columns[y]
    if f"{y}:low" in columns:
        low, high = columns[f"{y}:low"], columns[f"{y}:high"]
        axes.fill_between(across, low, high, color=own["color"], alpha=0.18, linewidth=0)
    marker = _MARKERS[series.look % len(_MARKERS)] if "markers" in series.mode else ""
    dashes: Any = "" if series.mode == "markers" else _DASHES.get(series.dash or "", own["linestyle"])
    errors = {side: columns.get(f"{key}:error") for side, key in (("xerr", x), ("yerr", y))}
    if any(error is not None for error in errors.values()):
        axes.errorbar(across, up, **errors, linestyle="", color=own["color"], elinewidth=0.6)  # type: ignore[arg-type]  # two arrays by name
    where: Any = {"drawstyle": "steps-post"} if series.shape == "hv" else {}
    (line,) = axes.plot(across, up, color=own["color"], linestyle=dashes, marker=marker, **where)
    return line


def _scale(axes: Axes, axis: Axis, letter: str, columns: list[Any]) -> None:
    lines = wrap(axis.label, _LABEL[letter]) if len(axis.label) > _LABEL[letter] else [axis.label]
    getattr(axes, f"set_{letter}label")("\n".join(in_latex(line, escape=False) for line in lines))
    if axis.scale == "log" and not any((np.isfinite(column) & (column > 0)).any() for column in columns):
        return  # of runs that all failed nothing can be drawn, and a logarithm has no scale then
    if axis.scale == "log":
        getattr(axes, f"set_{letter}scale")("log", nonpositive="mask")
    elif axis.scale == "symlog":
        getattr(axes, f"set_{letter}scale")("symlog", linthresh=_LINEAR)
