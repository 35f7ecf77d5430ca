"""Two results of one kind side by side: their settings, their tables, and whether they are equal to the last bit."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiebreak.experiments.tables import Sheet, Table, scientific
from tiebreak.report.reading import columns, kind_of, record_of
from tiebreak.report.section import flat

#: Relative differences up to here are rounding: another processor, another library for sin and exp, grown over a run.
ROUNDING = 1e-9
_CLOCKS = ("seconds", "elapsed", "date")  # never the same twice
_SHOWN = 40  # letters of a value


class Change(NamedTuple):
    """A column that differs; `largest` is relative, and infinite for words, rows, columns and files that differ."""

    file: str
    column: str
    different: int
    cells: int
    largest: float


@dataclass(frozen=True)
class Difference:
    """What differs between two results.

    Attributes
    ----------
    settings : list of (name, first, second)
        Of the records: settings and versions, without dates and seconds.
    tables : list of Change
        Columns that are not equal.
    """

    settings: list[tuple[str, str, str]]
    tables: list[Change]

    @property
    def largest(self) -> float:
        """The largest relative difference of all numbers; 0 if all are equal to the last bit."""
        return max((change.largest for change in self.tables), default=0.0)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if not self.tables:
            return "The same, bit for bit."
        if self.largest <= ROUNDING:
            return f"The same up to rounding: relative differences of at most {scientific(self.largest)}."
        if any(change.column.startswith("(rows: ") for change in self.tables):
            return "Different: tables have different numbers of rows."
        if np.isinf(self.largest):
            return "Different: in files, columns or cells that hold words, or a number that is not finite."
        return f"Different, by up to {scientific(self.largest)}, relative."

    def sheets(self) -> list[Sheet]:
        """As tables; none if nothing differs."""
        sheets = []
        if self.settings:
            rows = [[_shortened(text) for text in row] for row in self.settings]
            sheets.append(
                Sheet(
                    "What was asked for, and by what",
                    ("entry", "first", "second"),
                    rows,
                )
            )
        if self.tables:
            header = ("file", "column", "cells that differ", "at most, relative")
            sheets.append(
                Sheet(
                    "What came out", header, [_cells(change) for change in self.tables]
                )
            )
        return sheets


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _cells(change: Change) -> list[str]:
    count = (
        "–"
        if change.column.startswith("(")
        else f"{change.different:,} of {change.cells:,}"
    )
    return [
        change.file,
        change.column,
        count,
        "–" if np.isinf(change.largest) else scientific(change.largest),
    ]


def difference(
    first: str | os.PathLike[str], second: str | os.PathLike[str]
) -> Difference:
    """Compare two folders that the same command wrote, or two logs of training runs.

    Raises
    ------
    ValueError
        If one is no result, or they are of different kinds.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run, save
    >>> folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
    >>> for folder in folders:
    ...     save(run(Experiment(methods=["sdbgd"], runs=2, budget=1000)), folder)
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
        return Difference(
            [], list(_changes("", columns(one, "step"), columns(two, "step")))
        )
    changes: list[Change] = []
    for name in sorted(
        {path.name for folder in (one, two) for path in folder.glob("*.csv")}
    ):
        missing = [
            where
            for where, folder in (("first", one), ("second", two))
            if not (folder / name).exists()
        ]
        if missing:
            changes.append(Change(name, f"(not in the {missing[0]})", 1, 1, np.inf))
        else:
            changes += _changes(name, columns(one / name), columns(two / name))
    return Difference(_settings(one, two), changes)


def _settings(one: Path, two: Path) -> list[tuple[str, str, str]]:
    """The entries of both records that differ, without dates and seconds."""
    records = []
    for folder in (one, two):
        saved = record_of(folder)
        records.append(
            dict(
                flat({key: value for key, value in saved.items() if key not in _CLOCKS})
            )
        )
    names = dict.fromkeys([*records[0], *records[1]])
    pairs = [
        (name, records[0].get(name, "–"), records[1].get(name, "–")) for name in names
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _changes(file: str, one: Table, two: Table) -> Iterator[Change]:
    if set(one) != set(two):
        yield Change(
            file, f"(columns: {', '.join(sorted(set(one) ^ set(two)))})", 1, 1, np.inf
        )
        return
    rows = [len(next(iter(table.values()), ())) for table in (one, two)]
    if rows[0] != rows[1]:
        yield Change(
            file,
            f"(rows: {rows[0]:,} and {rows[1]:,})",
            abs(rows[0] - rows[1]),
            max(rows),
            np.inf,
        )
        return
    for name in [name for name in one if name not in _CLOCKS]:
        count, largest = _compared(one[name], two[name])
        if count:
            yield Change(file, name, count, rows[0], largest)


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
    return int(np.sum(different)), float(
        np.max(np.where(np.isfinite(relative), relative, np.inf))
    )
