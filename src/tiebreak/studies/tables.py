"""Tables of text for the screen, Markdown and LaTeX; columns of numbers; a mean with its standard error."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Plain data by name.
Facts: TypeAlias = Mapping[str, Any]
#: Arrays of equal length, by name.
Columns: TypeAlias = dict[str, NDArray[Any]]

SUPERSCRIPTS = str.maketrans("0123456789.-", "⁰¹²³⁴⁵⁶⁷⁸⁹·⁻")
#: The symbols of the residuals in tables.
SYMBOLS = {
    "direction_squared": "‖d‖²",
    "lower_gradient_squared": "‖∇g‖²",
    "stationarity_squared": "min over λ",
}


class Table(NamedTuple):
    """A table as text; the columns named in `words` hold words and are aligned to the left, as is the first column.

    >>> Table("Ends", ("method", "g"), [["SDBGD", "0.1"]]).rows[0]
    ['SDBGD', '0.1']
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()


class Estimate(NamedTuple):
    """A mean over runs and its standard error, which is NaN for a single run.

    >>> Estimate(0.0123, 0.001).text()
    '1.2e-2 ± 1e-3'
    """

    mean: float
    error: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Estimate":
        """The mean of some values and its standard error.

        >>> Estimate.of(np.array([1.0, 3.0]))
        Estimate(mean=2.0, error=1.0)
        """
        first = float(values[0])
        if len(values) == 1:
            return cls(first, math.nan)
        if values.min() == values.max():  # rounding would leave an error of 1e-17
            return cls(first, 0.0)
        with np.errstate(all="ignore"):  # failed runs may hold infinities
            deviation = float(values.std(ddof=1))
            return cls(float(values.mean()), deviation / math.sqrt(len(values)))

    def text(self, digits: str = ".1e") -> str:
        """The mean in a format, and the error, if it is known.

        >>> Estimate(0.0123, 0.001).text(), Estimate(1.5, math.nan).text(".5g")
        ('1.2e-2 ± 1e-3', '1.5')
        """
        mean = short(format(self.mean, digits))
        if math.isnan(self.error):
            return mean
        return f"{mean} ± {scientific(self.error, 0)}"


def short(number: str) -> str:
    """The text of a number without the zeros and the plus sign of its exponent."""
    return (
        number.replace("e-0", "e-")
        .replace("e+00", "")
        .replace("e+0", "e")
        .replace("e+", "e")
    )


def scientific(value: float, digits: int = 1) -> str:
    """A number with an exponent, in few letters.

    >>> scientific(0.0123), scientific(1.0), scientific(2e22)
    ('1.2e-2', '1.0', '2.0e22')
    """
    return short(f"{value:.{digits}e}")


def counted(count: int, noun: str) -> str:
    """A number and a noun in its singular or plural.

    >>> counted(1, "table"), counted(2, "table")
    ('1 table', '2 tables')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def in_markdown(text: str) -> str:
    r"""A cell or a sentence as Markdown shows it: on one line, without HTML, and without the end of a cell.

    >>> print(in_markdown("a | b\n<i>"))
    a \| b &lt;i>
    """
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def as_markdown(table: Table) -> list[str]:
    """The lines of a Markdown table."""
    words = {table.header[0], *table.words}
    aligned = ["---" if name in words else "---:" for name in table.header]
    aligned[0] = "---"
    rows = [[in_markdown(cell) for cell in row] for row in (table.header, *table.rows)]
    return [f"| {' | '.join(row)} |" for row in (rows[0], aligned, *rows[1:])]


def document(
    title: str,
    opening: Sequence[str],
    tables: Iterable[Table],
    notes: Iterable[str],
) -> str:
    """A Markdown document: an opening, tables with their titles, notes."""
    lines = [f"# {in_markdown(title)}", "", *opening]
    for table in tables:
        lines += ["", f"## {in_markdown(table.title)}", "", *as_markdown(table)]
    items = [f"- {in_markdown(text)}" for text in notes]
    return "\n".join([*lines, "", "## Notes", "", *items, ""])


def widths(table: Table, letters: Callable[[str], int] = len) -> list[int]:
    """The width of each column, with the space beside it."""
    return [max(map(letters, column)) + 2 for column in _transposed(table)]


def fitted(table: Table, room: int, letters: Callable[[str], int] = len) -> list[Table]:
    """The table in parts of at most `room` letters with the first column in each; transposed if that makes fewer parts.

    Parameters
    ----------
    letters : callable
        The width of a cell.

    >>> wide = Table("Ends", ("problem", *(f"method {i}" for i in range(30))), [["paper", *["1.4e-2"] * 30]])
    >>> [(part.title, len(part.header), len(part.rows)) for part in fitted(wide, 100)]
    [('Ends', 2, 30)]
    """
    header = ("", *(row[0] for row in table.rows))
    turned = Table(table.title, header, _transposed(table)[1:])
    parts = min(
        (list(_parts(each, room, letters)) for each in (table, turned)), key=len
    )
    if len(parts) == 1:
        return parts
    return [
        part._replace(title=f"{part.title} ({i} of {len(parts)})")
        for i, part in enumerate(parts, 1)
    ]


def _transposed(table: Table) -> list[tuple[str, ...]]:
    return list(zip(table.header, *table.rows, strict=True))


def _parts(table: Table, room: int, letters: Callable[[str], int]) -> Iterator[Table]:
    first, *widths_after = widths(table, letters)
    columns = [0]
    total = first
    for i, width in enumerate(widths_after, 1):
        if len(columns) > 1 and total + width > room:
            yield _with_columns(table, columns)
            columns = [0]
            total = first
        columns.append(i)
        total += width
    yield _with_columns(table, columns)


def _with_columns(table: Table, columns: Sequence[int]) -> Table:
    header, *rows = ([row[i] for i in columns] for row in (table.header, *table.rows))
    return table._replace(header=header, rows=rows)


def select(columns: Columns, **values: Any) -> Columns:
    """The rows that have these values.

    >>> select({"run": np.array([0, 1]), "g": np.array([0.5, 0.25])}, run=1)
    {'run': array([1]), 'g': array([0.25])}
    """
    rows = np.logical_and.reduce([columns[n] == value for n, value in values.items()])
    return {name: column[rows] for name, column in columns.items()}


def distinct(columns: Columns, name: str) -> list[Any]:
    """The values of a column, each once, in their order."""
    return list(dict.fromkeys(columns[name].tolist()))


def labelled(columns: Columns, **labels: Any) -> Columns:
    """The columns, with a column for each label before them."""
    rows = len(next(iter(columns.values())))
    return {name: np.full(rows, value) for name, value in labels.items()} | columns


def joined(parts: Iterable[Columns]) -> Columns:
    """The rows of all parts; a column that a part lacks is NaN there.

    >>> joined([{"k": np.array([1.0])}, {"k": np.array([2.0]), "f": np.array([3.0])}])
    {'k': array([1., 2.]), 'f': array([nan,  3.])}
    """
    parts = list(parts)
    names = dict.fromkeys(name for part in parts for name in part)
    lengths = [len(next(iter(part.values()), ())) for part in parts]
    columns: Columns = {}
    for name in names:
        pieces = [
            part.get(name, np.full(length, np.nan))
            for part, length in zip(parts, lengths, strict=True)
        ]
        columns[name] = np.concatenate(pieces)
    return columns


def by_step(columns: Columns, *names: str) -> list[NDArray[Any]]:
    """The recorded steps, and each of these columns as an array (steps, runs), NaN where a run has no such step.

    >>> curves = {"run": np.array([0, 0, 1]), "step": np.array([0, 1, 0]), "g": np.array([1.0, 2.0, 3.0])}
    >>> by_step(curves, "g")[1].tolist()
    [[1.0, 3.0], [2.0, nan]]
    """
    steps, step_of_row = np.unique(columns["step"], return_inverse=True)
    runs, run_of_row = np.unique(columns["run"], return_inverse=True)
    arrays = [steps]
    for name in names:
        values = np.full((len(steps), len(runs)), np.nan)
        values[step_of_row, run_of_row] = columns[name]
        arrays.append(values)
    return arrays
