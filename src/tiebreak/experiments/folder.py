"""An experiment on disk: curves.parquet, curves.csv, points.csv and configuration.json, each whole or as it was."""

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.outcome import Outcome, Table
from tiebreak.files import atomic
from tiebreak.result import MEASURES

__all__ = ["DRAWN", "check_folder", "load", "save"]

#: What is made from the data, and out of date as soon as the data change.
DRAWN = ("summary.md", "comparison.png", "comparison.pdf", "trajectories.png", "trajectories.pdf")

_WORDS = {"method", "iterate", "status"}
_WHOLE = {"run", "step", "steps", "calls", "upper_calls", "lower_calls"}
_NEEDED = {"method", "run", "step", "calls", "x0", "x1", *MEASURES}


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise ValueError if the folder is known to be unfit for writing, before anything is run. Makes nothing."""
    place = Path(folder).absolute()
    nearest = next(path for path in (place, *place.parents) if path.exists())
    wanted = f"output={os.fspath(folder)!r} must be a folder that can be written"
    if not nearest.is_dir():
        raise ValueError(f"{wanted}; {nearest.name!r} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{wanted}; {nearest.name!r} may not be")


def save(outcome: Outcome, folder: str | os.PathLike[str]) -> None:
    """Write the data, and remove figures and summary of older data.

    All files are written before the first takes its place, so an error leaves the folder as it was.
    """
    place = Path(folder)
    with ExitStack() as stack:
        names = ("configuration.json", "points.csv", "curves.csv", "curves.parquet")
        configuration, points, curves, parquet = (stack.enter_context(atomic(place / name)) for name in names)
        configuration.write((json.dumps(outcome.configuration(), indent=2, ensure_ascii=False) + "\n").encode())
        _write_csv(pa.table(outcome.points), points)
        _write_csv(pa.table(outcome.curves), curves)
        pa.parquet.write_table(pa.table(outcome.curves), parquet)
        for name in DRAWN:
            (place / name).unlink(missing_ok=True)


def load(folder: str | os.PathLike[str]) -> Outcome:
    """Read what :func:`save` wrote; from curves.csv if curves.parquet is not there.

    Raises
    ------
    ValueError
        Where the folder, or a file of it, is missing or is not what `save` writes.
    """
    place, wanted = Path(folder), f"folder={os.fspath(folder)!r} must be one that `tiebreak reproduce` wrote"
    if not place.is_dir():
        raise ValueError(f"{wanted}; it is no folder")
    found = [name for name in ("curves.parquet", "curves.csv") if (place / name).exists()]
    missing = [n for n in ("configuration.json", "points.csv") if not (place / n).exists()]
    missing += [] if found else ["curves.parquet or curves.csv"]
    if missing:
        raise ValueError(f"{wanted}; it lacks {' and '.join(missing)}")
    name = "configuration.json"
    try:
        saved = json.loads((place / name).read_text(encoding="utf-8"))
        experiment = Experiment(**saved["experiment"])
        known = {key: saved.pop(key) for key in ("seconds", "interrupted", "faults")}
        name = found[0]
        curves = _read(place / name, _NEEDED)
        name = "points.csv"
        points = _read(place / name, _NEEDED | {"iterate", "status", "steps"})
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # Arrow's errors are ValueErrors
        raise ValueError(f"{os.fspath(place / name)!r} is not as `tiebreak reproduce` writes it: {error}") from None
    return Outcome(
        experiment=experiment,
        curves=curves,
        points=points,
        seconds=known["seconds"],
        interrupted=known["interrupted"],
        faults=tuple(known["faults"]),
        origin={key: value for key, value in saved.items() if key not in ("experiment", "command")},
    )


def _write_csv(table: Any, file: IO[bytes]) -> None:
    """Every digit, and nothing quoted: no name or word here needs it, but Arrow would quote the header."""
    file.write((",".join(table.column_names) + "\n").encode())
    pa.csv.write_csv(table, file, pa.csv.WriteOptions(include_header=False, quoting_style="none"))


def _read(path: Path, needed: Iterable[str]) -> Table:
    if path.suffix == ".parquet":
        table = pa.parquet.read_table(path)
    else:
        # Told, not guessed: a column may begin with whole numbers, and a run's number is never a float.
        with path.open(encoding="utf-8") as file:
            types = {name: _type(name) for name in file.readline().strip().split(",")}
        table = pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=types))
    lacking = sorted(set(needed) - set(table.column_names))
    if lacking:
        raise ValueError(f"there is no column {', '.join(lacking)}")
    return {name: _array(table.column(name), name) for name in table.column_names}


def _type(name: str) -> Any:
    return pa.string() if name in _WORDS else pa.int64() if name in _WHOLE else pa.float64()


def _array(column: Any, name: str) -> Any:
    values = column.to_numpy()
    return values.astype(np.str_) if name in _WORDS else values
