"""How figures look, and how they are saved: fonts, colours, dashes, legend and footnote, PNG and PDF."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from tiebreak.experiments.colours import COLOURS
from tiebreak.experiments.configuration import label, reconstructed
from tiebreak.files import atomic
from tiebreak.methods import METHODS
from tiebreak.provenance import made_by

#: Told apart without any colour.
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_STYLE = matplotlib.rc_params_from_file(
    str(resources.files("tiebreak.styles").joinpath("base.mplstyle")),
    use_default_template=False,
)


@contextmanager
def style() -> Iterator[None]:
    """Set the look for a while."""
    with matplotlib.rc_context(_STYLE):
        yield


def look(method: str) -> dict[str, Any]:
    """A method's own colour and dashes, whichever others are drawn beside it."""
    return look_of(list(METHODS).index(method))


def look_of(place: int) -> dict[str, Any]:
    """The colour and dashes of the i-th of many."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": _DASHES[place % len(_DASHES)],
    }


def log_grid(axes: Axes) -> None:
    """A line at each power of ten, and ticks between them."""
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(numticks=12))


def method_lines(methods: Iterable[str]) -> list[Line2D]:
    """A line for the legend of each method."""
    return [Line2D([], [], linewidth=1.8, label=label(m), **look(m)) for m in methods]


def legend(figure: Figure, lines: list[Line2D], columns: int, length: float) -> None:
    """A legend above the panels."""
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        handlelength=length,
    )


def footnote(figure: Figure, text: str, methods: Iterable[str] = ()) -> None:
    """Say below the figure what it shows, and what the dagger means where a method has one."""
    if any(map(reconstructed, methods)):
        text += "  † Our reconstruction of the rule."
    figure.supxlabel(text, fontsize=8.5, color="0.35")


def save(figure: Figure, path: Path) -> list[Path]:
    """The figure as PNG and PDF, and their paths; the same figure gives the same bytes."""
    written = []
    maker = json.dumps(made_by())
    for kind, metadata in (
        ("png", {"Software": maker}),
        ("pdf", {"CreationDate": None, "Creator": maker}),
    ):
        written.append(path.with_name(f"{path.name}.{kind}"))
        with style(), atomic(written[-1]) as file:
            figure.savefig(file, format=kind, metadata=metadata)
    return written
