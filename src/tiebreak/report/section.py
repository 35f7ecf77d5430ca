"""What a page is made of: a verdict, then sections of charts, landscapes, tables, notes, facts and commands.

Plain data: whoever reads a folder makes these, and :mod:`tiebreak.report.page` alone knows how they look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tiebreak.experiments.tables import Sheet

__all__ = [
    "NEUTRAL",
    "Axis",
    "Chart",
    "Code",
    "Facts",
    "Landscape",
    "Mark",
    "Notes",
    "Page",
    "Path",
    "Section",
    "Series",
    "Verdict",
]

#: The look of what is there for comparison, and is no method of its own.
NEUTRAL = -1

Numbers: TypeAlias = Sequence[float] | Any  # or an array


@dataclass(frozen=True)
class Axis:
    """A quantity that a chart can show: the column `key` of its series. `problem` says of which problem it is."""

    key: str
    label: str
    scale: Literal["linear", "log", "symlog"] = "linear"
    problem: str = ""


@dataclass(frozen=True)
class Series:
    """A line or points of a chart.

    Parameters
    ----------
    name : str
        In the legend; series of one name are shown and hidden together.
    columns : dict of str to numbers
        A column for each axis, by its key. ``"key:low"`` and ``"key:high"`` make a band, ``"key:error"`` error bars. A
        series without the column that is shown is left out.
    look : int
        Which colour and dashes: the same number, the same look.
    dash : str
        Plotly's name of dashes, where they are not the look's own.
    """

    name: str
    columns: Mapping[str, Numbers]
    look: int
    mode: Literal["lines", "markers", "lines+markers"] = "lines"
    dash: str | None = None
    shape: Literal["linear", "hv"] = "linear"


@dataclass(frozen=True)
class Mark:
    """A line across a chart, where the axis with this key has this value."""

    key: str
    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Series against a choice of quantities: where there are several, the page has a switch for them."""

    title: str
    about: str
    x: Sequence[Axis]
    y: Sequence[Axis]
    series: Sequence[Series]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Path:
    """The iterates of a run in the plane, and how far each is along it."""

    name: str
    look: int
    x: Numbers
    y: Numbers
    steps: Numbers
    calls: Numbers


@dataclass(frozen=True)
class Landscape:
    """Paths over the contours of a function of two variables; the page has a slider along the run.

    `places` are names, Plotly's symbol, and points; `views` are limits ((left, right), (bottom, top)) by name, the
    first of them shown first.
    """

    title: str
    about: str
    x: Numbers
    y: Numbers
    values: Any
    paths: Sequence[Path]
    places: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]
    views: Mapping[str, Any]


@dataclass(frozen=True)
class Notes:
    """Sentences, one below the other."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """Text to be copied as it is."""

    title: str
    text: str


#: A :class:`~tiebreak.experiments.tables.Sheet` is a table that can be sorted.
Part: TypeAlias = Chart | Landscape | Sheet | Notes | Facts | Code


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Verdict:
    """What was asked, what came out, and whether it is inside.

    `good` is None where nothing was promised that could be kept or broken.
    """

    word: str
    good: bool | None
    asked: str
    found: Sequence[str]


@dataclass(frozen=True)
class Page:
    """All of a report."""

    title: str
    verdict: Verdict
    sections: Sequence[Section]
