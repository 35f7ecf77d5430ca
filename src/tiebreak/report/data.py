"""Parts of a page as JSON: few digits, no NaN, and nothing that HTML could take for its own."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tiebreak.report.section import Chart, Landscape, Page, Part

__all__ = ["MOST", "chart", "embedded", "landscape", "sparser", "spread", "thinned"]

#: Points of a curve, at most: more of them than pixels only make the page heavy.
MOST = 400
_DIGITS = 6


def thinned(count: int, most: int = MOST) -> Any:
    """Which of `count` rows to keep: all, or at most so many, evenly in their number, the first and the last with them.

    >>> thinned(5).tolist(), thinned(1000, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 500, 999])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(int))


def sparser(page: Page, most: int) -> Page:
    """The same page with at most so many points of each curve and path."""

    def fewer(columns: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        return {name: column[thinned(len(column), most)] for name, column in arrays.items()}

    def part(given: Part) -> Part:
        if isinstance(given, Chart):
            return replace(given, series=[replace(s, columns=fewer(s.columns)) for s in given.series])
        if isinstance(given, Landscape):
            axes = ("x", "y", "steps", "calls")
            return replace(
                given, paths=[replace(p, **fewer({name: getattr(p, name) for name in axes})) for p in given.paths]
            )
        return given

    return replace(page, sections=[replace(s, parts=[part(p) for p in s.parts]) for s in page.sections])


def spread(key: str, values: Any, band: tuple[float, float] = (0.1, 0.9)) -> dict[str, Any]:
    """The mean of each row and, of several columns, where so much of them lies: columns of a series.

    What is NaN is left out, and a row of nothing else stays NaN. So does one with an infinity, which has no mean.

    >>> {name: column.tolist() for name, column in spread("g", [[1.0, 3.0], [np.nan, np.nan]], (0, 1)).items()}
    {'g': [2.0, nan], 'g:low': [1.0, nan], 'g:high': [3.0, nan]}
    """
    rows = np.asarray(values, dtype=float)
    there = ~np.isnan(rows).all(axis=1) & ~np.isinf(rows).any(axis=1)
    found = {key: np.full(len(rows), np.nan)}
    found[key][there] = np.nanmean(rows[there], axis=1)
    if rows.shape[1] > 1:
        for name, share in zip(("low", "high"), band, strict=True):
            found[f"{key}:{name}"] = np.full(len(rows), np.nan)
            found[f"{key}:{name}"][there] = np.nanquantile(rows[there], share, axis=1)
    return found


def chart(part: Chart) -> dict[str, Any]:
    """What the page's program needs of a chart."""
    data = asdict(part)
    for series in data["series"]:
        series["columns"] = {key: _numbers(column) for key, column in series["columns"].items()}
    return data | {"kind": "chart"}


def landscape(part: Landscape) -> dict[str, Any]:
    """What the page's program needs of a landscape."""
    data = asdict(part)
    data |= {"x": _numbers(part.x), "y": _numbers(part.y), "values": [_numbers(row, 4) for row in part.values]}
    for path in data["paths"]:
        path |= {name: _numbers(path[name]) for name in ("x", "y", "steps", "calls")}
    data["views"] = {name: np.asarray(view).tolist() for name, view in part.views.items()}
    return data | {"kind": "landscape"}


def _numbers(values: Any, digits: int = _DIGITS) -> list[float | int | None]:
    return [_number(value, digits) for value in np.asarray(values).tolist()]


def _number(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def embedded(data: Any) -> str:
    """JSON for a script element: a "<" of the data cannot end the element, and U+2028 cannot end a line.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
