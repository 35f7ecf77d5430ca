"""Charts as plain data: matplotlib draws them for print, Plotly draws them on a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np

#: The colours of all figures and pages: Okabe and Ito's, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: The look of a series that is no method and is drawn for comparison.
NEUTRAL = -1

Numbers: TypeAlias = Sequence[float] | Any  # or an array


@dataclass(frozen=True)
class Axis:
    """A quantity that a chart can show: the column `key` of its series, of one `problem` if there are several.

    >>> Axis("calls", "oracle calls", "log").scale
    'log'
    """

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
        The number of the colour and the dashes.
    dash : str
        Plotly's name of the dashes, if they are not those of the look.
    faint : bool
        Whether the line is thin, as that of one run of many.

    Examples
    --------
    >>> Series("SDBGD", {"calls": [1, 10], "g": [1.0, 0.1]}, look=0).mode
    'lines'
    """

    name: str
    columns: Mapping[str, Numbers]
    look: int
    mode: Literal["lines", "markers", "lines+markers"] = "lines"
    dash: str | None = None
    shape: Literal["linear", "hv"] = "linear"
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """A line across a chart, at one value of the axis with this key.

    >>> Mark("excess", 1.0, "the tolerance").at
    1.0
    """

    key: str
    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Series against a choice of quantities: the page has a switch for them, and print has a panel for each of `panels`.

    Parameters
    ----------
    panels : int
        How many of the quantities `y` the figure of a result shows; with 0 there is no figure, only the page.
    equal : bool
        Whether units are equally long on both axes, as on a map.

    Examples
    --------
    >>> series = [Series("SDBGD", {"calls": [1, 10], "g": [1.0, 0.1]}, look=0)]
    >>> Chart("Values", "", [Axis("calls", "calls")], [Axis("g", "g", "log")], series).panels
    2
    """

    title: str
    about: str
    x: Sequence[Axis]
    y: Sequence[Axis]
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    panels: int = 2
    equal: bool = False


def chart_from(data: Mapping[str, Any]) -> Chart:
    """The chart that ``dataclasses.asdict`` made this data of; ValueError if the data are of no chart."""
    kinds: dict[str, Any] = {"x": Axis, "y": Axis, "series": Series, "marks": Mark}
    try:
        parts = {n: [kind(**each) for each in data[n]] for n, kind in kinds.items()}
        for series in parts["series"]:
            _check_columns(series)
        return Chart(**{**data, **parts})
    except (KeyError, TypeError, AttributeError) as error:
        names = ", ".join(field.name for field in fields(Chart))
        raise ValueError(f"a chart must have {names}: {error!r}") from None


def _check_columns(series: Series) -> None:
    for key, column in series.columns.items():
        if np.asarray(column, dtype=object).ndim != 1:
            raise ValueError(f"{key!r} of {series.name!r} must be a list of numbers")
        try:
            np.asarray(column, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(f"{key!r} of {series.name!r} must be numbers") from None


def thinned(count: int, most: int = 400) -> Any:
    """The rows of `count` to keep: all, or at most `most`, evenly spaced, with the first and the last.

    >>> thinned(5).tolist(), thinned(1000, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 500, 999])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(int))


def spread(
    key: str, values: Any, band: tuple[float, float] | None = (0.1, 0.9)
) -> dict[str, Any]:
    """The mean of each row and, of several columns, two quantiles: columns of a series.

    NaN is left out, and a row of NaN alone stays NaN. A row with an infinity has no mean, and is NaN as well.

    >>> {name: column.tolist() for name, column in spread("g", [[1.0, 3.0], [np.nan, np.nan]], (0, 1)).items()}
    {'g': [2.0, nan], 'g:low': [1.0, nan], 'g:high': [3.0, nan]}
    """
    rows = np.asarray(values, dtype=float)
    defined = ~np.isnan(rows).all(axis=1) & ~np.isinf(rows).any(axis=1)
    columns = {key: np.full(len(rows), np.nan)}
    columns[key][defined] = np.nanmean(rows[defined], axis=1)
    if band is not None and rows.shape[1] > 1:
        for name, share in zip(("low", "high"), band, strict=True):
            quantile = np.full(len(rows), np.nan)
            quantile[defined] = np.nanquantile(rows[defined], share, axis=1)
            columns[f"{key}:{name}"] = quantile
    return columns
