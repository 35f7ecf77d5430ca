"""The command that made a result, checked before it is run again."""

import re
import shlex
from pathlib import Path
from typing import Any

from tiebreak.experiments.own import KEPT, checksum, copy_name
from tiebreak.report.reading import kind_of, record_of


def repeated_command(folder: Path, own: bool = False) -> list[str]:
    """The words of the command in the record of a result.

    Parameters
    ----------
    own : bool
        Run the copies that the result keeps of the user's files. By default the files themselves are run, and must be
        as they were.

    Raises
    ------
    ValueError
        If the record has no command that writes such a folder, or names a file that is missing, has changed or came
        with the result. Nothing else that a record says is ever run.
    """
    kind = kind_of(folder)
    saved = {} if kind == "log" else record_of(folder)
    command = saved.get("command")
    words = shlex.split(command) if isinstance(command, str) else []
    commands = ("compare", "sweep") if kind == "compare" else (kind,)
    if words[:1] != ["tiebreak"] or not {*words[1:2]} & {*commands}:
        raise ValueError(
            f"folder={str(folder)!r} must have a record with the command of `tiebreak {kind}`, not {command!r}"
        )
    files = [path for word in words for path in re.findall(r"([^,]+\.py):", word)]
    inside = [
        path for path in files if Path(path).resolve().is_relative_to(folder.resolve())
    ]
    if inside and not own:
        raise ValueError(
            f"folder={str(folder)!r} has {inside[0]!r} in it: look at it, and say --own to run it"
        )
    sources = _sources(folder, saved)
    if own and not sources:
        raise ValueError(
            f"--own: folder={str(folder)!r} was made without files of one's own"
        )
    for path, digest in sources.items():
        if own:
            copy = _whole_copy(folder, path, digest)
            words = [word.replace(f"{path}:", f"{copy}:") for word in words]
        else:
            _check_unchanged(folder, path, digest)
    return words


def _sources(folder: Path, saved: dict[str, Any]) -> dict[str, str]:
    """The user's files that a result was made with: the checksums of their texts by their paths."""
    sources = saved.get("sources") or {}  # `reproduce` and `plan` run no such files
    if not isinstance(sources, dict) or not all(
        isinstance(digest, str) for digest in sources.values()
    ):
        raise ValueError(
            f"folder={str(folder)!r} must have a record with checksums in 'sources', not {sources!r}"
        )
    return {where.rpartition(":")[0]: digest for where, digest in sources.items()}


def _check_unchanged(folder: Path, path: str, digest: str) -> None:
    if not _has_text(Path(path), digest):
        why = "has changed since" if Path(path).is_file() else "is not here"
        raise ValueError(
            f"folder={str(folder)!r} was made with {path!r}, which {why}; {folder / KEPT} has it as it was: look "
            "at it, and say --own to run that"
        )


def _whole_copy(folder: Path, path: str, digest: str) -> Path:
    copy = folder.absolute() / copy_name(path, digest)
    if not _has_text(copy, digest):
        raise ValueError(
            f"folder={str(folder)!r} must have {copy.name!r} in it as it was written, and has not"
        )
    return copy


def _has_text(file: Path, digest: str) -> bool:
    return file.is_file() and checksum(file.read_text(encoding="utf-8")) == digest
