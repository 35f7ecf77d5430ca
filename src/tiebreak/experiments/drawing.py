"""Charts for print: one column of a paper wide, or the whole page."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from tiebreak.experiments.charts import Axis, Chart, Series
from tiebreak.experiments.latex import in_latex
from tiebreak.experiments.style import log_grid, look_of, save

Width = Literal["column", "page"]
_DASHES: dict[str | None, Any] = {
    "solid": "-",
    "dash": (0, (5, 1.6)),
    "dot": (0, (1.2, 1.2)),
}
_MARKERS = "osD^vP*X"
_LETTERS = {"column": 64, "page": 120}  # of a line of the legend
_LABEL = {"x": 60, "y": 34}  # letters of a line beside an axis
_LINE = 1.35  # height of a line of the legend, in sizes of its letters
_LINEAR = 1.0  # a symmetric logarithmic scale is linear up to here


def save_chart(chart: Chart, path: Path) -> list[Path]:
    """Write the chart as PNG and PDF, with a panel for each of its quantities; the paths written."""
    return save(draw_chart(chart, chart.x[0], chart.y, "page"), path)


def draw_chart(chart: Chart, x: Axis, panels: Sequence[Axis], width: Width) -> Figure:
    """A panel for each quantity, side by side, with bands, error bars and marks; the legend above."""
    styles = [
        str(resources.files("tiebreak.styles").joinpath(f"{name}.mplstyle"))
        for name in ("base", width)
    ]
    with style.context(styles):
        figure = Figure(layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03))
        names: dict[str, Line2D] = {}
        for axes, y in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            visible = [
                series
                for series in chart.series
                if x.key in series.columns and y.key in series.columns
            ]
            for series in visible:
                names.setdefault(series.name, _draw_series(axes, series, x.key, y.key))
            for axis, letter in ((x, "x"), (y, "y")):
                _set_scale(
                    axes,
                    axis,
                    letter,
                    [
                        np.asarray(series.columns[axis.key], dtype=float)
                        for series in visible
                    ],
                )
            for mark in chart.marks:
                if mark.key in (x.key, y.key):
                    line = axes.axvline if mark.key == x.key else axes.axhline
                    line(mark.at, color="0.4", linewidth=0.8, linestyle="--")
            if axes.get_xscale() == axes.get_yscale() == "log":
                log_grid(axes)
        _add_legend(figure, names, width)
    return figure


def _add_legend(figure: Figure, names: dict[str, Line2D], width: Width) -> None:
    labels = [in_latex(name, escape=False) for name in names]
    room = _LETTERS[width] // (
        max(map(len, names), default=1) + 6
    )  # entries side by side, with their lines
    columns = max(1, min(room, 4))
    legend = figure.legend(
        names.values(), labels, loc="outside upper left", ncols=columns, frameon=False,
        handlelength=2.2, columnspacing=1.0, labelspacing=0.3,
    )  # fmt: skip
    # A long legend makes the figure higher, not the axes lower: these keep the height that two lines leave them.
    lines = -(-len(names) // columns)
    if lines > 2:
        size = legend.prop.get_size_in_points() * _LINE / 72
        figure.set_figheight(figure.get_figheight() + (lines - 2) * size)


def _draw_series(axes: Axes, series: Series, x: str, y: str) -> Line2D:
    look = look_of(series.look)
    columns = {
        name: np.asarray(column, dtype=float) for name, column in series.columns.items()
    }
    if f"{y}:low" in columns:
        axes.fill_between(
            columns[x],
            columns[f"{y}:low"],
            columns[f"{y}:high"],
            color=look["color"],
            alpha=0.18,
            linewidth=0,
        )
    if f"{y}:error" in columns:
        axes.errorbar(
            columns[x],
            columns[y],
            columns[f"{y}:error"],
            linestyle="",
            color=look["color"],
            elinewidth=0.6,
        )
    marker = _MARKERS[series.look % len(_MARKERS)] if "markers" in series.mode else ""
    dashes = (
        "" if series.mode == "markers" else _DASHES.get(series.dash, look["linestyle"])
    )
    steps: Any = {"drawstyle": "steps-post"} if series.shape == "hv" else {}
    (line,) = axes.plot(
        columns[x],
        columns[y],
        color=look["color"],
        linestyle=dashes,
        marker=marker,
        **steps,
    )
    return line


def _set_scale(axes: Axes, axis: Axis, letter: str, columns: list[Any]) -> None:
    lines = (
        wrap(axis.label, _LABEL[letter])
        if len(axis.label) > _LABEL[letter]
        else [axis.label]
    )
    getattr(axes, f"set_{letter}label")(
        "\n".join(in_latex(line, escape=False) for line in lines)
    )
    set_scale = getattr(axes, f"set_{letter}scale")
    if axis.scale == "symlog":
        set_scale("symlog", linthresh=_LINEAR)
    # If all runs failed, nothing is positive, and a logarithmic axis has no scale.
    if axis.scale == "log" and any(
        (np.isfinite(column) & (column > 0)).any() for column in columns
    ):
        set_scale("log", nonpositive="mask")
