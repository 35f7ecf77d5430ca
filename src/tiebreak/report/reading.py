"""Reading results on disk: their kind, records and tables, and the tables and notes of a summary."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.tables import Sheet, Table
from tiebreak.files import regular
from tiebreak.report.section import Notes, Section, origin

LEGAL = "a folder that `tiebreak reproduce`, `compare`, `sweep`, `verify` or `plan` wrote, or the CSV log of a training run"
_WORDS = (
    "problem",
    "method",
)  # columns of names, even of a problem that is called "1" or "nan"


def kind_of(place: str | os.PathLike[str]) -> str:
    """The kind of a result: "reproduce", "compare", "verify", "plan" or "log".

    Raises
    ------
    ValueError
        If it is none of these.
    """
    path = Path(place)
    if path.is_file():
        return "log"
    if not path.is_dir():
        raise ValueError(f"no such file or folder: {path}; it must be {LEGAL}")
    if (path / "plan.json").exists():
        return "plan"
    if (path / "configuration.json").exists():
        saved = record(path / "configuration.json")
        for key, kind in (
            ("experiment", "reproduce"),
            ("verification", "verify"),
            ("budgets", "compare"),
        ):
            if key in saved:
                return kind
    raise ValueError(
        f"place={str(place)!r} must be {LEGAL}; it has no configuration.json or plan.json of these"
    )


def record_of(folder: Path) -> dict[str, Any]:
    """The record of a folder: its command, settings and versions."""
    return record(
        folder / ("plan.json" if kind_of(folder) == "plan" else "configuration.json")
    )


def record(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises
    ------
    ValueError
        If the file holds none.
    """
    try:
        saved = json.loads(regular(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} holds no JSON: {error}") from None
    if not isinstance(saved, dict):
        raise ValueError(f"{str(path)!r} must hold an object")
    return saved


def columns(path: Path, *needed: str) -> Table:
    """The columns of a CSV file with a header: floats if every cell is a number or empty, else text.

    Half a line at the end, which a process that was killed leaves, is not read.

    Raises
    ------
    ValueError
        If a needed column is missing, or a line has more or fewer cells than the header.
    """
    try:
        with regular(path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{str(path)!r} is no table: {error}") from None
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    if body and len(body[-1]) < len(header):
        body = body[:-1]
    lacking = [name for name in needed if name not in header]
    if lacking:
        has = (
            "it has none of them"
            if lacking == [*needed]
            else f"it lacks {', '.join(lacking)}"
        )
        raise ValueError(
            f"{str(path)!r} must have the columns {', '.join(needed)}; {has}"
        )
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{str(path)!r}, line {number}, must have {len(header)} cells; it has {len(row)}"
            )
    return {
        name: _column([row[i] for row in body], name) for i, name in enumerate(header)
    }


def _column(cells: list[str], name: str) -> Any:
    try:
        if name in _WORDS:
            raise ValueError
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells, dtype=np.str_)


def summary(path: Path) -> tuple[list[Sheet], list[str]]:
    """The tables and the notes of a summary.md that a command wrote; nothing if there is none.

    >>> import tempfile
    >>> from tiebreak.experiments.tables import document
    >>> path = Path(tempfile.mkdtemp()) / "summary.md"
    >>> _ = path.write_text(document("Summary", ["Seed 0"], [Sheet("Ends", ("method", "g"), [["a", "1"]])], ["True."]))
    >>> summary(path)
    ([Sheet(title='Ends', header=['method', 'g'], rows=[['a', '1']])], ['True.'])
    """
    if not path.exists():
        return [], []
    sheets = []
    notes = []
    title = ""
    block = list[list[str]]()
    for line in [
        *regular(path).read_text(encoding="utf-8", errors="replace").splitlines(),
        "",
    ]:
        if line.startswith("| "):
            block.append([cell.strip() for cell in line.strip("|").split(" | ")])
            continue
        if len(block) > 1:
            sheets.append(Sheet(title, block[0], block[2:]))
        block = []
        if heading := re.fullmatch(r"## (.*)|\*\*(.*)\*\*", line):
            title = heading[1] or heading[2]
        elif line.startswith("- "):
            notes.append(line[2:])
    return sheets, notes


def closing(folder: Path, saved: dict[str, Any], *omitted: str) -> list[Section]:
    """The last sections of a page: the tables and notes of the summary, and the origin."""
    sheets, notes = summary(folder / "summary.md")
    return [
        Section("Tables", [*sheets, Notes(notes)] if notes else sheets),
        origin(saved, omitted),
    ]
