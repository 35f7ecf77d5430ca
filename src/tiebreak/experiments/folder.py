"""Folders: how files are written, all or none; and an experiment's own, with its curves, points and configuration."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.own import KEPT, checksum
from tiebreak.experiments.tables import Table, chosen
from tiebreak.files import atomic, regular
from tiebreak.provenance import origin_of
from tiebreak.result import MEASURES, write_csv

#: What is made from the data, and out of date as soon as the data change.
DRAWN = (
    "summary.md",
    "comparison.png",
    "comparison.pdf",
    "trajectories.png",
    "trajectories.pdf",
)

_WRITTEN = (
    "results.csv",
    "runs.csv",
    "points.csv",
    "curves.csv",
    "summary.md",
)  # each beside a record
_WORDS = {"problem", "method", "iterate", "status"}
_WHOLE = {"run", "step", "steps", "calls", "upper_calls", "lower_calls"}
_DATA = ("configuration.json", "points.csv", "curves.csv")
_NEEDED = {"method", "run", "step", "calls", "x0", "x1", *MEASURES}


def check_folder(
    folder: str | os.PathLike[str],
    command: str | None = None,
    overwrite: bool = False,
    record: str = "configuration.json",
) -> str:
    """Raise ValueError if the folder is known to be unfit for writing, before anything is run. Makes nothing.

    Where there are results already, they must be those of the same command, with files of one's own as they were, or
    `overwrite` must be said; likewise where files of such names are there without the `record` that says what made
    them. What will be replaced then is returned, as a sentence.

    Examples
    --------
    >>> import tempfile
    >>> check_folder(f"{tempfile.mkdtemp()}/new")
    ''
    """
    place = Path(folder).absolute()
    nearest = next(path for path in (place, *place.parents) if path.exists())
    wanted = f"output={os.fspath(folder)!r} must be a folder that can be written"
    if not nearest.is_dir():
        raise ValueError(f"{wanted}; {nearest.name!r} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{wanted}; {nearest.name!r} may not be")
    there, changed = _made_by(place / record)
    if command is not None and there is not None and not overwrite:
        other = (
            f"another command, `{there}`"
            if there != command
            else changed and f"{changed} as it was before"
        )
        if other:
            raise ValueError(
                f"output={os.fspath(folder)!r} holds the results of {other}; choose another folder, or say --overwrite"
            )
    foreign = [
        name
        for name in _WRITTEN
        if command and there is None and (place / name).exists()
    ]
    if foreign and not overwrite:
        raise ValueError(
            f"output={os.fspath(folder)!r} holds {', '.join(foreign)} of something else (there is no {record} beside); "
            "choose another folder, or say --overwrite"
        )
    return (
        f"What is in {os.fspath(folder)!r} will be replaced: `{there}`."
        if command and there
        else ""
    )


def _made_by(path: Path) -> tuple[str | None, str]:
    """The command that made the results of a configuration, None where there is none; and a file of one's own that has
    changed since.
    """
    if not path.exists():
        return None, ""
    try:
        saved = json.loads(regular(path).read_text(encoding="utf-8"))
        files = {
            where.rpartition(":")[0]: digest
            for where, digest in (saved.get("sources") or {}).items()
        }
        now = {
            name: checksum(Path(name).read_text(encoding="utf-8"))
            for name in files
            if Path(name).is_file()
        }
        return str(saved["command"]), next(
            (repr(name) for name in now if now[name] != files[name]), ""
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "unknown", ""


def write(
    folder: str | os.PathLike[str],
    contents: Mapping[str, Any],
    outdated: Iterable[str] = (),
) -> list[Path]:
    """Write tables (.csv, .parquet), plain data (.json) and text (.md, .py) by their names; the paths written.

    All files are written before the first takes its place, so an error leaves the folder as it was. Files that are
    `outdated` then are removed, and so is the report of a folder whose data are written. Parquet files say what made
    them as configuration.json does: date, commit, versions.
    """
    place = Path(folder)
    made = json.dumps(origin_of(contents.get("configuration.json", {})))
    with ExitStack() as stack:
        for name, content in contents.items():
            kind = Path(name).suffix
            file = stack.enter_context(
                atomic(place / name, "wb" if kind == ".parquet" else "w")
            )
            _WRITERS[kind](
                pa.table(content, metadata={"tiebreak": made})
                if kind == ".parquet"
                else content,
                file,
            )
        # A page of older data is, too, whoever writes new ones.
        for name in (
            *outdated,
            *["report.html"] * any(not name.endswith(".md") for name in contents),
        ):
            (place / name).unlink(missing_ok=True)
        if (
            "configuration.json" in contents
        ):  # and so are copies of own files that an older result was made with
            for path in (place / KEPT).glob("*.py"):
                if f"{KEPT}/{path.name}" not in contents:
                    path.unlink()
    return [place / name for name in contents]


_WRITERS: Mapping[str, Callable[[Any, IO[Any]], Any]] = {
    ".csv": write_csv,
    ".parquet": lambda table, file: pa.parquet.write_table(table, file),
    ".json": lambda data, file: file.write(
        json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    ),
    ".md": lambda text, file: file.write(text),
    ".py": lambda text, file: file.write(text),
}


def save(outcome: Outcome, folder: str | os.PathLike[str]) -> None:
    """Write the data, and remove figures and summary of older data.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> folder = tempfile.mkdtemp()
    >>> save(outcome, folder)
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['configuration.json', 'curves.csv', 'curves.parquet', 'points.csv']
    """
    contents = {
        "configuration.json": outcome.configuration(),
        "points.csv": outcome.points,
        "curves.csv": outcome.curves,
        "curves.parquet": outcome.curves,
    }
    write(folder, contents, outdated=DRAWN)


def load(folder: str | os.PathLike[str]) -> Outcome:
    """Read what :func:`save` wrote.

    Raises
    ------
    ValueError
        If the folder, or a file of it, is missing or is not what `save` writes.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> folder = tempfile.mkdtemp()
    >>> save(outcome, folder)
    >>> load(folder).methods
    ('sdbgd',)
    """
    place = Path(folder)
    wanted = f"folder={os.fspath(folder)!r} must be one that `tiebreak reproduce` wrote"
    if not place.is_dir():
        raise ValueError(f"{wanted}; it is no folder")
    missing = [name for name in _DATA if not (place / name).exists()]
    if missing:
        raise ValueError(f"{wanted}; it lacks {' and '.join(missing)}")
    path = place / "configuration.json"
    try:
        saved = json.loads(regular(path).read_text(encoding="utf-8"))
        experiment, known = _configuration(saved)
    except (ValueError, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not as `tiebreak reproduce` writes it: {error}"
        ) from None
    curves = read_table(place / "curves.csv", _NEEDED)
    points = read_table(place / "points.csv", _NEEDED | {"iterate", "status", "steps"})
    for method in known["seconds"]:
        if not len(chosen(curves, method=method)["run"]):
            raise ValueError(
                f"{os.fspath(place / 'curves.csv')!r} is not complete: there are no rows of {method}"
            )
        for iterate in ("last", "selected"):
            if not len(chosen(points, method=method, iterate=iterate)["run"]):
                where = os.fspath(place / "points.csv")
                raise ValueError(
                    f"{where!r} is not complete: there are no rows of {method}, {iterate}"
                )
    return Outcome(
        experiment=experiment,
        curves=curves,
        points=points,
        seconds=known["seconds"],
        interrupted=known["interrupted"],
        faults=tuple(known["faults"]),
        origin={
            key: value
            for key, value in saved.items()
            if key not in ("experiment", "command", *known)
        },
    )


def _configuration(saved: Any) -> tuple[Experiment, dict[str, Any]]:
    """The experiment, and what came of it besides tables; ValueError if something is missing or of another type."""

    def part(name: str, kind: type | UnionType, words: str) -> Any:
        if name not in saved:
            raise ValueError(f"there is no {name!r}")
        if not isinstance(saved[name], kind):
            raise ValueError(f"{name!r} must be {words}, not {saved[name]!r}")
        return saved[name]

    if not isinstance(saved, dict):
        raise ValueError(f"it must be an object, not {saved!r}"[:200])
    given = part("experiment", dict, "an object")
    legal = {field.name for field in fields(Experiment)}
    odd = sorted(set(given) ^ legal)
    if odd:
        raise ValueError(
            f"'experiment' must have {', '.join(sorted(legal))}; it differs in {', '.join(odd)}"
        )
    experiment = Experiment(**given)
    known = {
        "seconds": part("seconds", dict, "an object of seconds by method"),
        "interrupted": part("interrupted", bool, "true or false"),
        "faults": part("faults", list, "a list of texts"),
    }
    part("date", str, "a text")
    part("commit", str | None, "a text or null")
    part("versions", dict, "an object")
    seconds = known["seconds"]
    faults = known["faults"]
    if not seconds or any(
        name not in experiment.methods or type(value) not in (int, float)
        for name, value in seconds.items()
    ):
        raise ValueError(
            f"'seconds' must be numbers for some of {', '.join(experiment.methods)}, not {seconds!r}"
        )
    if not all(isinstance(text, str) for text in faults):
        raise ValueError(f"'faults' must be a list of texts, not {faults!r}")
    return experiment, known


def read_table(path: Path, needed: Iterable[str]) -> Table:
    """The columns of a CSV file that a command wrote.

    Raises
    ------
    ValueError
        If a needed column is missing, or a cell holds something else than its column.
    """
    # The types are given, not guessed: a column of floats may begin with whole numbers.
    try:
        with regular(path).open(encoding="utf-8") as file:
            types = {name: _type(name) for name in file.readline().strip().split(",")}
        table = pa.csv.read_csv(
            path, convert_options=pa.csv.ConvertOptions(column_types=types)
        )
        lacking = sorted(set(needed) - set(table.column_names))
        if lacking:
            raise ValueError(f"there is no column {', '.join(lacking)}")
        return {name: _array(table.column(name), name) for name in table.column_names}
    except ValueError as error:  # Arrow's errors are ValueErrors
        raise ValueError(
            f"{os.fspath(path)!r} is not as a command writes it: {error}"
        ) from None


def _type(name: str) -> Any:
    return (
        pa.string()
        if name in _WORDS
        else pa.int64()
        if name in _WHOLE
        else pa.float64()
    )


def _array(column: Any, name: str) -> Any:
    values = column.to_numpy()
    if name in _WORDS:
        return values.astype(np.str_)
    whole = name in _WHOLE
    if values.dtype.kind not in ("i" if whole else "if"):
        raise ValueError(
            f"column {name} must hold {'whole ' if whole else ''}numbers, not {column.type}"
        )
    return values
