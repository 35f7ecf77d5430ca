"""Two results of one kind, side by side: what was asked, what came out, and whether it is the same to the last bit."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.tables import Sheet, Table, scientific
from tiebreak.report import kind_of
from tiebreak.report.origin import flat
from tiebreak.report.reading import columns, record

__all__ = ["ROUNDING", "Difference", "command_of", "difference", "sources_of"]

#: Relative differences up to here are rounding: another processor, another library for sin and exp, grown over a run.
ROUNDING = 1e-9
_RECORDS = ("configuration.json", "plan.json")
_CLOCKS = ("seconds", "elapsed", "date")  # never the same twice
_SHOWN = 40  # letters of a value


@dataclass(frozen=True)
class Difference:
    """What differs between two results.

    Attributes
    ----------
    settings : list of (name, first, second)
        Of what was asked for, and of the versions that did it. Dates and seconds are left out.
    tables : list of (file, column, differing cells, cells, largest relative difference)
        Columns that are not equal; an infinite difference is one of words, of rows, or of a whole file.
    """

    settings: list[tuple[str, str, str]]
    tables: list[tuple[str, str, int, int, float]]

    @property
    def largest(self) -> float:
        """The largest relative difference of all numbers; 0 where all are equal to the last bit."""
        return max((row[4] for row in self.tables), default=0.0)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if not self.tables:
            return "The same, bit for bit."
        if self.largest <= ROUNDING:
            return f"The same up to rounding: relative differences of at most {scientific(self.largest)}."
        if any(column.startswith("(rows: ") for _, column, *_ in self.tables):
            return "Different: tables have different numbers of rows."
        if np.isinf(self.largest):
            return "Different: in files, columns or cells that hold words, or a number that is not finite."
        return f"Different, by up to {scientific(self.largest)}, relative."

    def sheets(self) -> list[Sheet]:
        """As tables; none where there is nothing to show."""
        made = []
        if self.settings:
            made.append(Sheet("What was asked for, and by what", ("entry", "first", "second"), self.settings))
        if self.tables:
            rows = [
                [
                    file,
                    column,
                    "–" if column.startswith("(") else f"{count:,} of {cells:,}",
                    "–" if np.isinf(size) else scientific(size),
                ]
                for file, column, count, cells, size in self.tables
            ]
            made.append(Sheet("What came out", ("file", "column", "cells that differ", "at most, relative"), rows))
        return made


def difference(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Difference:
    """Compare two folders that the same command wrote, or two logs of training runs.

    Raises
    ------
    ValueError
        Where one is no result, or they are of different kinds.

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
    one, two = Path(first), Path(second)
    if kinds[0] == "log":
        return Difference([], list(_tables("", columns(one, "step"), columns(two, "step"))))
    settings = list(_settings(_asked(one), _asked(two)))
    names = sorted({path.name for place in (one, two) for path in place.glob("*.csv")})
    found: list[tuple[str, str, int, int, float]] = []
    for name in names:
        if not ((one / name).exists() and (two / name).exists()):
            where = "second" if (one / name).exists() else "first"
            found.append((name, f"(not in the {where})", 1, 1, np.inf))
        else:
            found += _tables(name, columns(one / name), columns(two / name))
    return Difference(settings, found)


def command_of(folder: str | os.PathLike[str]) -> str:
    """The command line that a result was made by, as its record has it.

    Raises
    ------
    ValueError
        Where there is none of the commands that write such a folder: whatever else a record says is not run.
    """
    kind = kind_of(folder)
    found = {} if kind == "log" else _record(Path(folder))
    command = found.get("command")
    known = {kind, "sweep"} if kind == "compare" else {kind}
    if not isinstance(command, str) or command.split()[:1] != ["tiebreak"] or not known & {*command.split()[1:2]}:
        raise ValueError(
            f"folder={str(folder)!r} must have a record with the command of `tiebreak {kind}`, not {command!r}"
        )
    return command


def sources_of(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The files of one's own that a result was made with, by their paths: the checksums of their texts."""
    found = _record(Path(folder)).get("sources") or {}
    if not isinstance(found, dict) or not all(isinstance(digest, str) for digest in found.values()):
        raise ValueError(f"folder={str(folder)!r} must have a record with checksums in 'sources', not {found!r}")
    return {where.rpartition(":")[0]: digest for where, digest in found.items()}


def _record(place: Path) -> dict[str, Any]:
    return next(record(place / name) for name in _RECORDS if (place / name).exists())


def _asked(place: Path) -> dict[str, str]:
    """The entries of the record that are no clock's."""
    return dict(flat({key: value for key, value in _record(place).items() if key not in _CLOCKS}))


def _settings(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*one, *two]):
        first, second = one.get(name, "–"), two.get(name, "–")
        if first != second:
            yield name, _cut(first), _cut(second)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _tables(file: str, one: Table, two: Table) -> Iterator[tuple[str, str, int, int, float]]:
    if set(one) != set(two):
        yield file, f"(columns: {', '.join(sorted(set(one) ^ set(two)))})", 1, 1, np.inf
        return
    lengths = [len(next(iter(table.values()), ())) for table in (one, two)]
    if lengths[0] != lengths[1]:
        yield file, f"(rows: {lengths[0]:,} and {lengths[1]:,})", abs(lengths[0] - lengths[1]), max(lengths), np.inf
        return
    for name in one:
        if name in _CLOCKS:
            continue
        count, size = _column(one[name], two[name])
        if count:
            yield file, name, count, lengths[0], size


def _column(one: Any, two: Any) -> tuple[int, float]:
    """How many cells differ, and by how much of the larger."""
    if one.dtype.kind != "f" or two.dtype.kind != "f":
        count = int(np.sum(one.astype(str) != two.astype(str)))
        return count, np.inf if count else 0.0
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    if same.all():
        return 0, 0.0
    with np.errstate(all="ignore"):
        size = np.abs(one - two) / np.maximum(np.abs(one), np.abs(two))
    return int(np.sum(~same)), float(np.max(np.where(np.isfinite(size), size, np.inf)[~same]))
