"""How figures look: fonts, colours, dashes, legend and footnote."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tiebreak.experiments.configuration import reconstructed
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import label
from tiebreak.methods import METHODS

__all__ = ["footnote", "handles", "look", "style"]

#: Okabe and Ito's colours, told apart by colour-blind readers, and dashes, told apart without any colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 10,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "legend.fontsize": 10,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.direction": "out",
    "pdf.fonttype": 42,  # letters stay letters, to be searched and edited
    "savefig.dpi": 300,
}


@contextmanager
def style() -> Iterator[None]:
    """Set the look for a while."""
    with matplotlib.rc_context(_STYLE):
        yield


def look(method: str) -> dict[str, Any]:
    """A method's own colour and dashes, whichever others are drawn beside it."""
    place = list(METHODS).index(method)
    return {"color": _COLOURS[place % len(_COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def handles(outcome: Outcome) -> list[Line2D]:
    """The legend's lines, one for each method."""
    return [Line2D([], [], linewidth=1.8, label=label(m), **look(m)) for m in outcome.methods]


def footnote(figure: Figure, outcome: Outcome, text: str) -> None:
    """Say below the figure what it shows, and what the dagger means."""
    if any(map(reconstructed, outcome.methods)):
        text += "  † Our reconstruction of the rule."
    figure.supxlabel(text, fontsize=8.5, color="0.35")
