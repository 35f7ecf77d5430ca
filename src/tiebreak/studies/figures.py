"""Charts for print by matplotlib: one column of a paper wide, or the whole page; and how all our figures look."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from textwrap import wrap
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from tiebreak.provenance import made_by
from tiebreak.studies.charts import COLOURS, Axis, Chart, Series
from tiebreak.studies.latex import for_matplotlib

Width = Literal["column", "page"]
#: Dashes that can be told apart without any colour.
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_NAMED_DASHES = {"solid": _DASHES[0], "dash": _DASHES[1], "dot": _DASHES[3]}
_MARKERS = "osD^vP*X"
_LETTERS = {"column": 64, "page": 120}  # of a line of the legend
_LABEL = {"x": 60, "y": 34}  # letters of a line beside an axis
_LINE = 1.35  # height of a line of the legend, in font sizes
_LINEAR = 1.0  # a symmetric logarithmic scale is linear up to here


@contextmanager
def style(*names: str) -> Iterator[None]:
    """Set the look of our figures, with these style files on top of the basic one."""
    files = resources.files("tiebreak.styles")
    paths = [str(files.joinpath(f"{name}.mplstyle")) for name in ("base", *names)]
    with matplotlib.rc_context():
        for path in paths:
            params = matplotlib.rc_params_from_file(path, use_default_template=False)
            matplotlib.rcParams.update(params)
        yield


def look_of(number: int) -> dict[str, Any]:
    """The colour and the dashes of the i-th of many series."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def log_grid(axes: Axes) -> None:
    """A line at each power of ten, and ticks between them."""
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(numticks=12))


def legend(figure: Figure, lines: list[Line2D], columns: int, length: float) -> None:
    """A legend above the panels."""
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        handlelength=length,
    )


def footnote(figure: Figure, text: str) -> None:
    """A sentence below the figure."""
    figure.supxlabel(text, fontsize=8.5, color="0.35")


def draw(chart: Chart) -> Figure:
    """The figure of a chart in the folder of a result.

    >>> from tiebreak.studies.charts import Series
    >>> series = [Series("SDBGD", {"calls": [1, 10], "g": [1.0, 0.1]}, look=0)]
    >>> chart = Chart("Values", "", [Axis("calls", "calls")], [Axis("g", "g", "log")], series)
    >>> draw(chart).axes[0].get_yscale()
    'log'
    """
    return draw_chart(chart, chart.x[0], chart.y[: chart.panels], "page")


def draw_all(charts: Mapping[str, Chart]) -> dict[str, bytes]:
    """The figures of all charts that have panels as PNG and PDF, by the names of their files."""
    contents: dict[str, bytes] = {}
    for name, chart in charts.items():
        if chart.panels:
            figure = draw(chart)
            contents |= {f"{name}.{k}": image(figure, k) for k in ("png", "pdf")}
    return contents


def image(figure: Figure, kind: str) -> bytes:
    """The figure as "png" or "pdf"; the same figure gives the same bytes."""
    maker = json.dumps(made_by())
    metadata: dict[str, Any] = {"Software": maker}
    if kind == "pdf":
        metadata = {"CreationDate": None, "Creator": maker}
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def draw_chart(chart: Chart, x: Axis, panels: Sequence[Axis], width: Width) -> Figure:
    """A panel for each quantity, side by side, with bands, error bars and marks; the legend above."""
    with style(width):
        figure = Figure(layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03))
        names: dict[str, Line2D] = {}
        subplots = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, y in zip(subplots, panels, strict=True):
            visible = [
                series
                for series in chart.series
                if {x.key, y.key} <= series.columns.keys()
            ]
            for series in visible:
                names.setdefault(series.name, _draw_series(axes, series, x.key, y.key))
            for axis, letter in ((x, "x"), (y, "y")):
                columns = [_floats(series.columns[axis.key]) for series in visible]
                _label_axis(axes, axis, letter)
                _set_scale(axes, axis, letter, columns)
            for mark in chart.marks:
                if mark.key in (x.key, y.key):
                    line = axes.axvline if mark.key == x.key else axes.axhline
                    line(mark.at, color="0.4", linewidth=0.8, linestyle="--")
            if axes.get_xscale() == axes.get_yscale() == "log":
                log_grid(axes)
            if chart.equal:
                axes.set_aspect("equal")
                figure.set_figheight(3.3)
        _add_legend(figure, list(names.values()), list(names), width)
    return figure


def _floats(column: Any) -> Any:
    return np.asarray(column, dtype=float)


def _add_legend(
    figure: Figure, lines: Sequence[Line2D], names: Sequence[str], width: Width
) -> None:
    labels = [for_matplotlib(name) for name in names]
    longest = max(map(len, names), default=1) + 6  # with the line beside the name
    columns = max(1, min(_LETTERS[width] // longest, 4))
    above = figure.legend(
        lines,
        labels,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.0,
        labelspacing=0.3,
    )
    # A long legend makes the figure higher: the axes keep the height beside a legend of two lines.
    rows = -(-len(names) // columns)
    if rows > 2:
        height = above.prop.get_size_in_points() * _LINE / 72
        figure.set_figheight(figure.get_figheight() + (rows - 2) * height)


def _draw_series(axes: Axes, series: Series, x: str, y: str) -> Line2D:
    look = look_of(series.look)
    color = look["color"]
    columns = {name: _floats(column) for name, column in series.columns.items()}
    if f"{y}:low" in columns:
        band = columns[f"{y}:low"], columns[f"{y}:high"]
        axes.fill_between(columns[x], *band, color=color, alpha=0.18, linewidth=0)
    if f"{y}:error" in columns:
        errors = columns[f"{y}:error"]
        axes.errorbar(
            columns[x], columns[y], errors, linestyle="", color=color, elinewidth=0.6
        )
    style_of_line = {
        "color": color,
        "linestyle": _NAMED_DASHES.get(series.dash or "", look["linestyle"]),
        "drawstyle": "steps-post" if series.shape == "hv" else "default",
    }
    if series.faint:
        style_of_line |= {"linestyle": "-", "linewidth": 0.5, "alpha": 0.45}
    if series.mode == "markers":
        style_of_line["linestyle"] = ""
    if "markers" in series.mode:
        style_of_line["marker"] = _MARKERS[series.look % len(_MARKERS)]
    (line,) = axes.plot(columns[x], columns[y], **style_of_line)
    return line


def _label_axis(axes: Axes, axis: Axis, letter: str) -> None:
    lines = [axis.label]
    if len(axis.label) > _LABEL[letter]:
        lines = wrap(axis.label, _LABEL[letter])
    text = "\n".join(for_matplotlib(line) for line in lines)
    getattr(axes, f"set_{letter}label")(text)


def _set_scale(axes: Axes, axis: Axis, letter: str, columns: Iterable[Any]) -> None:
    set_scale = getattr(axes, f"set_{letter}scale")
    if axis.scale == "symlog":
        set_scale("symlog", linthresh=_LINEAR)
    # If all runs failed, nothing is positive, and a logarithmic axis has no scale.
    positive = [bool((np.isfinite(each) & (each > 0)).any()) for each in columns]
    if axis.scale == "log" and any(positive):
        set_scale("log", nonpositive="mask")
