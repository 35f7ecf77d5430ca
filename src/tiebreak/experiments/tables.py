"""Tables, whatever they hold: columns of numbers, in files; and rows of text, for the screen and for Markdown."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Columns of equal length, by name.
Table: TypeAlias = dict[str, NDArray[Any]]

__all__ = [
    "SYMBOLS",
    "Estimate",
    "Sheet",
    "Table",
    "as_markdown",
    "chosen",
    "document",
    "estimate",
    "joined",
    "scientific",
    "short",
    "with_error",
]

#: What tables call the residuals.
SYMBOLS = {"direction_squared": "‖d‖²", "lower_gradient_squared": "‖∇g‖²", "stationarity_squared": "min over λ"}


class Estimate(NamedTuple):
    """A mean over runs and its standard error; NaN where a single run has none."""

    mean: float
    error: float


class Sheet(NamedTuple):
    """A table as text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def estimate(values: NDArray[np.float64]) -> Estimate:
    """The mean over runs and its standard error.

    >>> estimate(np.array([1.0, 3.0]))
    Estimate(mean=2.0, error=1.0)
    """
    if len(values) == 1 or values.min() == values.max():  # where all are equal, rounding would leave an error of 1e-17
        return Estimate(float(values[0]), math.nan if len(values) == 1 else 0.0)
    with np.errstate(all="ignore"):  # a run that could not go on may hold infinities
        return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def short(number: str) -> str:
    """A number's text without what an exponent does not need."""
    return number.replace("e-0", "e-").replace("e+00", "").replace("e+0", "e").replace("e+", "e")


def scientific(value: float, digits: int = 1) -> str:
    """A number in few letters.

    >>> scientific(0.0123), scientific(1.0), scientific(2e22)
    ('1.2e-2', '1.0', '2.0e22')
    """
    return short(f"{value:.{digits}e}")


def with_error(mean: str, error: float) -> str:
    """A mean's text and its standard error, if there is one."""
    return mean if math.isnan(error) else f"{mean} ± {scientific(error, 0)}"


def as_markdown(sheet: Sheet, prose: Collection[str] = ()) -> list[str]:
    """The lines of a Markdown table; the first column and those of `prose` to the left, the others to the right."""
    aligned = ["---" if i == 0 or name in prose else "---:" for i, name in enumerate(sheet.header)]
    rows = [sheet.header, aligned, *sheet.rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def document(
    title: str, opening: Sequence[str], sheets: Iterable[Sheet], notes: Iterable[str], prose: Collection[str] = ()
) -> str:
    """A Markdown document: an opening, tables with their titles, notes."""
    lines = [f"# {title}", "", *opening]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", "", *as_markdown(sheet, prose)]
    return "\n".join([*lines, "", "## Notes", "", *(f"- {text}" for text in notes), ""])


def chosen(table: Table, **wanted: Any) -> Table:
    """The rows of a table that have these values."""
    rows = np.logical_and.reduce([table[name] == value for name, value in wanted.items()])
    return {name: column[rows] for name, column in table.items()}


def joined(tables: Iterable[Table]) -> Table:
    """One table of many; numbers that one of them does not have are NaN there. None of none.

    >>> joined([{"k": np.array([1.0])}, {"k": np.array([2.0]), "f": np.array([3.0])}])
    {'k': array([1., 2.]), 'f': array([nan,  3.])}
    """
    found = list(tables)
    names = dict.fromkeys(name for table in found for name in table)

    def column(table: Table, name: str) -> Any:
        return table[name] if name in table else np.full(len(next(iter(table.values()), ())), np.nan)

    return {name: np.concatenate([column(table, name) for table in found]) for name in names}
