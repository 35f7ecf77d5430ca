"""Tables, whatever they hold: columns of numbers, in files; and rows of text, for the screen and for Markdown."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Columns of equal length, by name.
Table: TypeAlias = dict[str, NDArray[Any]]

SUPERSCRIPTS = str.maketrans("0123456789.-", "⁰¹²³⁴⁵⁶⁷⁸⁹·⁻")
#: What tables call the residuals.
SYMBOLS = {
    "direction_squared": "‖d‖²",
    "lower_gradient_squared": "‖∇g‖²",
    "stationarity_squared": "min over λ",
}


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
    if (
        len(values) == 1 or values.min() == values.max()
    ):  # where all are equal, rounding would leave an error of 1e-17
        return Estimate(float(values[0]), math.nan if len(values) == 1 else 0.0)
    with np.errstate(all="ignore"):  # a run that could not go on may hold infinities
        return Estimate(
            float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
        )


def short(number: str) -> str:
    """A number's text without what an exponent does not need."""
    return (
        number.replace("e-0", "e-")
        .replace("e+00", "")
        .replace("e+0", "e")
        .replace("e+", "e")
    )


def scientific(value: float, digits: int = 1) -> str:
    """A number in few letters.

    >>> scientific(0.0123), scientific(1.0), scientific(2e22)
    ('1.2e-2', '1.0', '2.0e22')
    """
    return short(f"{value:.{digits}e}")


def counted(count: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "table"), counted(2, "table")
    ('1 table', '2 tables')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def with_error(mean: str, error: float) -> str:
    """A mean's text and its standard error, if there is one."""
    return mean if math.isnan(error) else f"{mean} ± {scientific(error, 0)}"


def as_markdown(sheet: Sheet, prose: Collection[str] = ()) -> list[str]:
    """The lines of a Markdown table; the first column and those of `prose` to the left, the others to the right."""
    aligned = [
        "---" if i == 0 or name in prose else "---:"
        for i, name in enumerate(sheet.header)
    ]
    rows = [sheet.header, aligned, *sheet.rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def fitted(sheet: Sheet, room: int, letters: Callable[[str], int] = len) -> list[Sheet]:
    """The table in parts of at most `room` letters, with the first column in each; turned, if that takes fewer.

    Parameters
    ----------
    letters : callable
        How wide a cell is.

    >>> wide = Sheet("Ends", ("problem", *(f"method {i}" for i in range(30))), [["paper", *["1.4e-2"] * 30]])
    >>> [(part.title, len(part.header), len(part.rows)) for part in fitted(wide, 100)]
    [('Ends', 2, 30)]
    """
    turned = Sheet(
        sheet.title, ("", *(row[0] for row in sheet.rows)), _turned(sheet)[1:]
    )
    parts = min(
        (list(_parts(each, room, letters)) for each in (sheet, turned)), key=len
    )
    if len(parts) == 1:
        return parts
    return [
        part._replace(title=f"{part.title} ({i} of {len(parts)})")
        for i, part in enumerate(parts, 1)
    ]


def widths(sheet: Sheet, letters: Callable[[str], int] = len) -> list[int]:
    """How wide each column is, with the space beside it."""
    return [max(map(letters, column)) + 2 for column in _turned(sheet)]


def _turned(sheet: Sheet) -> list[tuple[str, ...]]:
    return list(zip(sheet.header, *sheet.rows, strict=True))


def _parts(sheet: Sheet, room: int, letters: Callable[[str], int]) -> Iterator[Sheet]:
    first, *others = widths(sheet, letters)
    columns = [0]
    taken = first
    for i, width in enumerate(others, 1):
        if len(columns) > 1 and taken + width > room:
            yield _cut(sheet, columns)
            columns = [0]
            taken = first
        columns.append(i)
        taken += width
    yield _cut(sheet, columns)


def _cut(sheet: Sheet, columns: Sequence[int]) -> Sheet:
    header, *rows = ([row[i] for i in columns] for row in (sheet.header, *sheet.rows))
    return Sheet(sheet.title, header, rows)


def document(
    title: str,
    opening: Sequence[str],
    sheets: Iterable[Sheet],
    notes: Iterable[str],
    prose: Collection[str] = (),
) -> str:
    """A Markdown document: an opening, tables with their titles, notes."""
    lines = [f"# {title}", "", *opening]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", "", *as_markdown(sheet, prose)]
    return "\n".join([*lines, "", "## Notes", "", *(f"- {text}" for text in notes), ""])


def chosen(table: Table, **wanted: Any) -> Table:
    """The rows of a table that have these values."""
    rows = np.logical_and.reduce(
        [table[name] == value for name, value in wanted.items()]
    )
    return {name: column[rows] for name, column in table.items()}


def distinct(table: Table, column: str) -> list[Any]:
    """The values of a column, each once, in the order of the table."""
    return list(dict.fromkeys(table[column].tolist()))


def joined(tables: Iterable[Table]) -> Table:
    """One table of many; numbers that one of them does not have are NaN there. None of none.

    >>> joined([{"k": np.array([1.0])}, {"k": np.array([2.0]), "f": np.array([3.0])}])
    {'k': array([1., 2.]), 'f': array([nan,  3.])}
    """
    found = list(tables)
    names = dict.fromkeys(name for table in found for name in table)

    def column(table: Table, name: str) -> Any:
        return (
            table[name]
            if name in table
            else np.full(len(next(iter(table.values()), ())), np.nan)
        )

    return {
        name: np.concatenate([column(table, name) for table in found]) for name in names
    }
