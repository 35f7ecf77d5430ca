"""Two results of one kind side by side: their settings, their data, and whether they are equal to the last bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiebreak.files import FilePath
from tiebreak.studies.folder import (
    CONFIG,
    changed_files,
    kind_of,
    read_columns,
    read_json,
)
from tiebreak.studies.page import flat
from tiebreak.studies.tables import Columns, Table, scientific

#: Relative differences up to here are rounding: another processor, another library for sin and exp, grown over a run.
ROUNDING = 1e-9
_CHANGED = "(changed since written)"
_CLOCKS = ("seconds", "elapsed", "date")  # never the same twice
_SHOWN = 40  # letters of a value
_ROWS = 500  # of a table of settings


class Change(NamedTuple):
    """A column that differs; `largest` is relative, and infinite for words, rows, columns and files that differ."""

    file: str
    column: str
    different: int
    cells: int
    largest: float


@dataclass(frozen=True)
class Difference:
    """The differences between two results.

    Attributes
    ----------
    settings : list of (name, first, second)
        Of the records: settings and versions, without dates and seconds.
    changes : list of Change
        Columns that are not equal.
    """

    settings: list[tuple[str, str, str]]
    changes: list[Change]

    @property
    def largest(self) -> float:
        """The largest relative difference of all numbers; 0 if all are equal to the last bit."""
        return max((change.largest for change in self.changes), default=0.0)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if not self.changes:
            return "The same, bit for bit."
        if self.largest <= ROUNDING:
            return f"The same up to rounding: relative differences of at most {scientific(self.largest)}."
        if any(change.column.startswith("(rows: ") for change in self.changes):
            return "Different: tables have different numbers of rows."
        if all(change.column == _CHANGED for change in self.changes):
            return "Different: files have changed since they were written."
        if np.isinf(self.largest):
            return "Different: in files, columns or cells that hold words, or a number that is not finite."
        return f"Different, by up to {scientific(self.largest)}, relative."

    def tables(self) -> list[Table]:
        """The differences as tables; none if there are no differences."""
        tables = []
        if self.settings:
            rows = [[_shortened(text) for text in row] for row in self.settings[:_ROWS]]
            names = ("entry", "first", "second")
            title = "What was asked for, and by what"
            tables.append(Table(title, names, rows, words=names))
        if self.changes:
            header = ("file", "column", "cells that differ", "at most, relative")
            rows = [_cells(change) for change in self.changes]
            tables.append(Table("What came out", header, rows, words=("column",)))
        return tables


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 1]}…"


def _cells(change: Change) -> list[str]:
    count = f"{change.different:,} of {change.cells:,}"
    if change.column.startswith("("):
        count = "–"
    largest = "–" if np.isinf(change.largest) else scientific(change.largest)
    return [change.file, change.column, count, largest]


def difference(first: FilePath, second: FilePath) -> Difference:
    """Compare two folders that the same command wrote, or two logs of training runs.

    Raises
    ------
    ValueError
        If one is no result, or they are of different kinds.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.studies import Experiment, run
    >>> folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
    >>> for folder in folders:
    ...     _ = run(Experiment(methods=["sdbgd"], runs=2, budget=1000), folder)
    >>> difference(*folders).verdict
    'The same, bit for bit.'
    """
    kinds = [kind_of(place) for place in (first, second)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"first={str(first)!r} is of `{kinds[0]}`, second={str(second)!r} of `{kinds[1]}`: compare like with like"
        )
    one = Path(first)
    two = Path(second)
    if kinds[0] == "log":
        columns = read_columns(one, "step"), read_columns(two, "step")
        return Difference([], list(_changes("", *columns)))
    changes: list[Change] = []
    names = {path.name for folder in (one, two) for path in folder.glob("*.csv")}
    for name in sorted(names):
        if not (one / name).exists():
            changes.append(Change(name, "(not in the first)", 1, 1, np.inf))
        elif not (two / name).exists():
            changes.append(Change(name, "(not in the second)", 1, 1, np.inf))
        else:
            columns = read_columns(one / name), read_columns(two / name)
            changes += _changes(name, *columns)
    compared = {change.file for change in changes}
    for name in dict.fromkeys([*changed_files(one), *changed_files(two)]):
        if name not in compared:
            changes.append(Change(name, _CHANGED, 1, 1, np.inf))
    return Difference(_settings(one, two), changes)


def _settings(one: Path, two: Path) -> list[tuple[str, str, str]]:
    """The entries of both records that differ, without dates and seconds."""
    first = _entries(one)
    second = _entries(two)
    names = dict.fromkeys([*first, *second])
    pairs = [(name, first.get(name, "–"), second.get(name, "–")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _entries(folder: Path) -> dict[str, str]:
    record = read_json(folder / CONFIG)
    entries = dict(flat({n: v for n, v in record.items() if n not in _CLOCKS}))
    entries |= dict.fromkeys(changed_files(folder), "changed since it was written")
    return entries


def _changes(file: str, one: Columns, two: Columns) -> Iterator[Change]:
    if set(one) != set(two):
        names = ", ".join(sorted(set(one) ^ set(two)))
        yield Change(file, f"(columns: {names})", 1, 1, np.inf)
        return
    first, second = (len(next(iter(table.values()), ())) for table in (one, two))
    if first != second:
        rows = f"(rows: {first:,} and {second:,})"
        yield Change(file, rows, abs(first - second), max(first, second), np.inf)
        return
    for name in one:
        if name not in _CLOCKS:
            count, largest = _compared(one[name], two[name])
            if count:
                yield Change(file, name, count, first, largest)


def _compared(one: Any, two: Any) -> tuple[int, float]:
    """How many cells differ, and by how much of the larger value."""
    if one.dtype.kind != "f" or two.dtype.kind != "f":
        count = int(np.sum(one.astype(str) != two.astype(str)))
        return count, np.inf if count else 0.0
    different = ~((one == two) | (np.isnan(one) & np.isnan(two)))
    if not different.any():
        return 0, 0.0
    with np.errstate(all="ignore"):
        relative = (np.abs(one - two) / np.maximum(np.abs(one), np.abs(two)))[different]
    largest = np.max(np.where(np.isfinite(relative), relative, np.inf))
    return int(np.sum(different)), float(largest)
