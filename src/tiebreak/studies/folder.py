"""The folder of a result: files that are written all or none, beside a manifest that lists them with their checksums.

A command replaces and removes only files that the manifest lists with the checksum that they have. Every other file
belongs to the user.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.files import FilePath, atomic, regular
from tiebreak.provenance import origin_of, stamp
from tiebreak.result import write_csv
from tiebreak.studies.findings import Findings, from_json, summary, to_json
from tiebreak.studies.tables import Columns, Facts

MANIFEST = "manifest.json"
CONFIG = "config.json"
FINDINGS = "findings.json"
PAGE = "report.html"
#: The folder of finished blocks until all is done, and the file in it with the command of the study.
BLOCKS = ".blocks"
COMMAND = "command"
#: The folder of the copies of the user's files.
COPIES = "own"
LEGAL = "a folder that `tiebreak reproduce`, `compare`, `verify` or `plan` wrote, or the CSV log of a training run"

_TABLES = (
    *("points", "curves", "runs", "results", "profiles"),
    *("bounds", "deviations", "rates", "slopes", "measured"),
)
_NAMES = (CONFIG, FINDINGS, PAGE, "summary.md", *(f"{name}.csv" for name in _TABLES))
_REDRAWN = (
    ".html",
    ".md",
    ".pdf",
    ".png",
)  # ``tiebreak report`` writes these files again
_WORDS = ("problem", "method")  # columns of names, even for a problem called "1"


def checksum(content: bytes) -> str:
    """The SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError if there is none."""
    try:
        data = json.loads(regular(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} holds no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{str(path)!r} must hold an object")
    return data


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; an empty one if the folder has none."""
    path = folder / MANIFEST
    if not path.exists():
        return {"files": {}}
    manifest = read_json(path)
    files = manifest.get("files")
    sources = manifest.get("sources", {})
    if not isinstance(files, dict) or not isinstance(sources, dict):
        raise ValueError(f"{str(path)!r} must list files with their checksums")
    return manifest


def check_folder(folder: FilePath, command: str, overwrite: bool) -> str:
    """Raise ValueError if the results of a command may not be written to a folder; a sentence if others are replaced.

    Nothing is written. The folder may hold results of the same command that nobody has changed since, and must not
    hold files of other programs by the names of ours, unless `overwrite` is said.

    Examples
    --------
    >>> import tempfile
    >>> check_folder(f"{tempfile.mkdtemp()}/new", "tiebreak verify", False)
    ''
    """
    text = f"output={os.fspath(folder)!r}"
    place = Path(folder).absolute()
    try:
        nearest = next(path for path in (place, *place.parents) if path.exists())
    except OSError as error:
        raise ValueError(
            f"{text} must be a folder that can be written; {error.strerror}"
        ) from None
    if not nearest.is_dir():
        raise ValueError(
            f"{text} must be a folder that can be written; {nearest.name!r} is a file"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(
            f"{text} must be a folder that can be written; {nearest.name!r} may not be"
        )
    if overwrite:
        return ""
    advice = "choose another folder, or say --overwrite"
    manifest = manifest_of(place)
    names = [*_NAMES, *manifest["files"]]
    foreign = _foreign(place, names, manifest)
    if foreign:
        raise ValueError(
            f"{text} holds {', '.join(foreign)}, which no command wrote or which were changed since; {advice}"
        )
    unfinished = unfinished_command(place)
    if unfinished not in ("", command):
        raise ValueError(
            f"{text} holds unfinished work of another command, `{unfinished}`; finish it with that command, or {advice}"
        )
    if not manifest["files"]:
        return ""
    earlier = str(manifest.get("command"))
    if earlier != command:
        raise ValueError(
            f"{text} holds the results of another command, `{earlier}`; {advice}"
        )
    for path, digest in manifest.get("sources", {}).items():
        if Path(path).is_file() and checksum(Path(path).read_bytes()) != digest:
            raise ValueError(
                f"{text} holds the results of {path!r} as it was before; {advice}"
            )
    return f"What is in {os.fspath(folder)!r} will be replaced: `{earlier}`."


def unfinished_command(folder: Path) -> str:
    """The command whose finished blocks a folder keeps for the next time; empty if there are no such blocks."""
    path = folder / BLOCKS / COMMAND
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _foreign(folder: Path, names: Iterable[str], manifest: Facts) -> list[str]:
    """Those of the names that are in the folder and that the manifest does not list as they are."""
    files = manifest["files"]
    foreign = []
    for name in dict.fromkeys(names):
        path = folder / name
        if not os.path.lexists(path):
            continue
        # A made-up manifest may name files that are not in the folder.
        inside = path.resolve().is_relative_to(folder.resolve()) and path.is_file()
        if not inside or checksum(path.read_bytes()) != files.get(name):
            foreign.append(name)
    return foreign


def write_files(
    folder: Path,
    contents: Facts,
    facts: Facts | None = None,
    *,
    update: bool = False,
    overwrite: bool = False,
) -> list[Path]:
    """Write columns (.csv, .parquet), plain data (.json), texts and bytes by their names; the paths.

    All files are on the disk before the first takes its place, and the manifest takes its place last: an error leaves
    the folder as it was, and a mixture of old and new files does not agree with any manifest.

    Parameters
    ----------
    facts : dict, optional
        What the manifest says besides: the kind and the command; by default what it said before.
    update : bool
        Whether the other files of the manifest stay; if not, they are removed.
    """
    try:
        manifest = manifest_of(folder)
    except ValueError:
        if not overwrite:
            raise
        manifest = {"files": {}}
    if facts is None:
        facts = {name: fact for name, fact in manifest.items() if name != "files"}
    encoded = {name: _encoded(name, each, facts) for name, each in contents.items()}
    if overwrite:
        foreign = []
    else:
        foreign = _foreign(folder, encoded, manifest)
    if foreign:
        raise ValueError(
            f"output={str(folder)!r} holds {', '.join(foreign)}, which no command wrote or which were changed since; "
            "choose another folder, or say --overwrite"
        )
    if update:
        outdated = []
    else:
        outdated = [n for n in manifest["files"] if n not in encoded]
    unchanged = set(outdated) - set(_foreign(folder, outdated, manifest))
    if update:
        files = manifest["files"]
    else:
        files = {}
    files |= {name: checksum(content) for name, content in encoded.items()}
    encoded = {MANIFEST: _json({**facts, "files": files}), **encoded}
    with ExitStack() as stack:
        for name, content in encoded.items():
            file = stack.enter_context(atomic(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        for name in unchanged:
            (folder / name).unlink(missing_ok=True)
    for name in unchanged:
        _remove_empty(folder, (folder / name).parent)
    return [folder / name for name in contents]


def _remove_empty(folder: Path, inner: Path) -> None:
    while inner != folder and inner.is_dir() and not any(inner.iterdir()):
        inner.rmdir()
        inner = inner.parent


def _json(data: Any) -> bytes:
    return f"{json.dumps(data, indent=2, ensure_ascii=False)}\n".encode()


def _encoded(name: str, content: Any, facts: Facts) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    kind = Path(name).suffix
    if kind == ".json":
        return _json(content)
    if kind == ".csv":
        text = io.StringIO(newline="")
        write_csv(content, text)
        return text.getvalue().encode()
    import pyarrow as pa
    import pyarrow.parquet

    origin = json.dumps(origin_of(facts))
    buffer = io.BytesIO()
    table = pa.table(content, metadata={"tiebreak": origin})
    pa.parquet.write_table(table, buffer)
    return buffer.getvalue()


def save(findings: Findings, folder: FilePath, overwrite: bool = False) -> list[Path]:
    """Write the record, the findings, the summary, the data and copies of the user's files; the paths.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.studies import Experiment, run
    >>> folder = tempfile.mkdtemp()
    >>> _ = save(run(Experiment(methods=["sdbgd"], runs=2, budget=1000)), folder)
    >>> load(folder).verdict.word
    'Complete, inside the budget'
    """
    if "date" in findings.record:
        origin = origin_of(findings.record)
    else:
        origin = stamp()
    record = {"kind": findings.kind, **findings.record, **origin}
    contents: dict[str, Any] = {
        CONFIG: record,
        FINDINGS: to_json(findings),
        "summary.md": summary(findings),
    }
    for name, columns in findings.data.items():
        contents |= {f"{name}.csv": columns, f"{name}.parquet": columns}
    contents |= findings.copies
    facts = {name: record.get(name) for name in ("kind", "command", "sources")}
    facts = {name: fact for name, fact in facts.items() if fact} | origin
    return write_files(Path(folder), contents, facts, overwrite=overwrite)


def kind_of(place: FilePath) -> str:
    """The kind of a result: that of its folder, or "log" of a file; ValueError if the place holds no result."""
    path = Path(place)
    if path.is_file():
        return "log"
    if not path.is_dir():
        raise ValueError(f"no such file or folder: {path}; it must be {LEGAL}")
    unfinished = unfinished_command(path)
    if unfinished and not (path / MANIFEST).exists():
        raise ValueError(
            f"place={str(place)!r} holds unfinished work and no result yet; the same command goes on from there: "
            f"{unfinished}"
        )
    if not (path / MANIFEST).exists():
        raise ValueError(f"place={str(place)!r} must be {LEGAL}; it has no {MANIFEST}")
    return str(manifest_of(path).get("kind"))


def load(folder: FilePath) -> Findings:
    """The findings of a folder that a command wrote, without their data.

    Raises
    ------
    ValueError
        If a file is missing, was changed, or is not as a command writes it. Pages and figures may have changed:
        ``tiebreak report`` writes them again.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.studies import Experiment, run
    >>> folder = tempfile.mkdtemp()
    >>> _ = run(Experiment(methods=["sdbgd"], runs=2, budget=1000), folder)
    >>> load(folder).tables[1].header
    ['method', 'steps', 'calls', 'f', 'g', 'seconds']
    """
    place = Path(folder)
    kind = kind_of(place)
    for name in (CONFIG, FINDINGS):
        if not (place / name).exists():
            raise ValueError(f"place={str(folder)!r} must be {LEGAL}; it lacks {name}")
    names = [n for n in manifest_of(place)["files"] if Path(n).suffix not in _REDRAWN]
    damaged = changed_files(place, (CONFIG, FINDINGS, *names))
    if damaged:
        raise ValueError(
            f"{str(place / damaged[0])!r} is not as the command wrote it: its checksum differs; run the command again, "
            "with --overwrite"
        )
    try:
        return from_json(kind, read_json(place / CONFIG), read_json(place / FINDINGS))
    except ValueError as error:
        raise ValueError(
            f"place={str(folder)!r} is not as `tiebreak {kind}` writes it: {error}"
        ) from None


def changed_files(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Those of the files, of all if none are named, that are not as the manifest lists them."""
    manifest = manifest_of(folder)
    if names is None:
        listed = manifest["files"]
    else:
        listed = names
    return _foreign(folder, listed, manifest)


def read_columns(path: Path, *needed: str) -> Columns:
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
    header, *body = rows or [[]]
    if body and len(body[-1]) < len(header):
        body = body[:-1]
    missing = [name for name in needed if name not in header]
    if missing:
        lacks = f"it lacks {', '.join(missing)}"
        if missing == [*needed]:
            lacks = "it has none of them"
        raise ValueError(
            f"{str(path)!r} must have the columns {', '.join(needed)}; {lacks}"
        )
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{str(path)!r}, line {number}, must have {len(header)} cells; it has {len(row)}"
            )
    cells = {name: [row[i] for row in body] for i, name in enumerate(header)}
    return {name: _column(name, column) for name, column in cells.items()}


def _column(name: str, cells: list[str]) -> Any:
    try:
        if name in _WORDS:
            raise ValueError
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells, dtype=np.str_)
