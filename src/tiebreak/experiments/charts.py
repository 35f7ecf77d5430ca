"""Charts as plain data: matplotlib draws them for print, Plotly draws them on a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

#: The look of a series that is drawn for comparison and is not a method.
NEUTRAL = -1

Numbers: TypeAlias = Sequence[float] | Any  # or an array
Scale: TypeAlias = Literal["linear", "log", "symlog"]


@dataclass(frozen=True)
class Axis:
    """A quantity that a chart can show: the column `key` of its series, of one `problem` if there are several."""

    key: str
    label: str
    scale: Scale = "linear"
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
        Plotly's name of the dashes, if they are not those of the look.
    """

    name: str
    columns: Mapping[str, Numbers]
    look: int
    mode: Literal["lines", "markers", "lines+markers"] = "lines"
    dash: str | None = None
    shape: Literal["linear", "hv"] = "linear"


@dataclass(frozen=True)
class Mark:
    """A line across a chart, at one value of the axis with this key."""

    key: str
    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Series against a choice of quantities: if there are several, the page has a switch for them."""

    title: str
    about: str
    x: Sequence[Axis]
    y: Sequence[Axis]
    series: Sequence[Series]
    marks: Sequence[Mark] = ()


def thinned(count: int, most: int = 400) -> Any:
    """The rows of `count` to keep: all, or at most so many, evenly spaced, with the first and the last.

    >>> thinned(5).tolist(), thinned(1000, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 500, 999])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(int))


def spread(
    key: str, values: Any, band: tuple[float, float] | None = (0.1, 0.9)
) -> dict[str, Any]:
    """The mean of each row and, of several columns, two quantiles or None: columns of a series.

    NaN is left out, and a row of NaN alone stays NaN. So does a row with an infinity, which has no mean.

    >>> {name: column.tolist() for name, column in spread("g", [[1.0, 3.0], [np.nan, np.nan]], (0, 1)).items()}
    {'g': [2.0, nan], 'g:low': [1.0, nan], 'g:high': [3.0, nan]}
    """
    rows = np.asarray(values, dtype=float)
    defined = ~np.isnan(rows).all(axis=1) & ~np.isinf(rows).any(axis=1)
    columns = {key: np.full(len(rows), np.nan)}
    columns[key][defined] = np.nanmean(rows[defined], axis=1)
    if band is not None and rows.shape[1] > 1:
        for name, share in zip(("low", "high"), band, strict=True):
            columns[f"{key}:{name}"] = np.full(len(rows), np.nan)
            columns[f"{key}:{name}"][defined] = np.nanquantile(
                rows[defined], share, axis=1
            )
    return columns
