"""The command that made a result, checked before it is run again."""

import re
import shlex
from pathlib import Path

from tiebreak.studies.folder import (
    CONFIG,
    COPIES,
    changed_files,
    checksum,
    kind_of,
    read_json,
)
from tiebreak.studies.user_files import copy_folder

_KINDS = ("reproduce", "compare", "verify", "plan")


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
        If the record has no command that writes such a folder, or if the command would run a file or import a module
        that the record does not list with its checksum, that has changed, or that came with the result.
    """
    kind = kind_of(folder)
    record = {} if kind == "log" else read_json(folder / CONFIG)
    command = record.get("command")
    words = shlex.split(command) if isinstance(command, str) else []
    text = f"folder={str(folder)!r}"
    if kind not in ("log", *_KINDS) and words and words[0] != "tiebreak":
        raise ValueError(f"{text}: this result was made by `{command}`; run that")
    if kind not in _KINDS or words[:2] != ["tiebreak", kind]:
        raise ValueError(
            f"{text} must have a record with the command of `tiebreak {kind}`, not {command!r}"
        )
    sources = record.get("sources") or {}
    digests = sources.values() if isinstance(sources, dict) else [None]
    if not all(isinstance(digest, str) for digest in digests):
        raise ValueError(
            f"{text} must have a record with checksums in 'sources', not {sources!r}"
        )
    values = [re.sub(r"^--[\w-]+=", "", word) for word in words[2:]]
    parts = [part for value in values for part in value.split(",") if ":" in part]
    places = [part.partition(":")[0] for part in parts]
    for place in places:
        if not place.endswith(".py"):
            raise ValueError(
                f"{text} would import the module {place!r}; run the command yourself if you trust it: {command}"
            )
    files = dict.fromkeys(places)
    if own:
        return _with_copies(folder, words, files, sources)
    for path in dict.fromkeys([*files, *sources]):
        if Path(path).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{text} has {path!r} in it: look at it, and say --own to run it"
            )
        if path not in sources:
            raise ValueError(
                f"{text} would run {path!r}, which its record does not list"
            )
        if not _has_content(Path(path), sources[path]):
            reason = "has changed since" if Path(path).is_file() else "is not here"
            raise ValueError(
                f"{text} was made with {path!r}, which {reason}; {folder / COPIES} has it as it was: look at it, and "
                "say --own to run that"
            )
    return words


def _with_copies(
    folder: Path, words: list[str], files: dict[str, None], sources: dict[str, str]
) -> list[str]:
    """The words with the copies in the folder instead of the user's files."""
    text = f"folder={str(folder)!r}"
    if not files:
        raise ValueError(f"--own: {text} was made without files of one's own")
    for path in files:
        digest = sources.get(path, "")
        copy = folder.absolute() / copy_folder(path, digest) / Path(path).name
        inside = [
            str(p.relative_to(folder.absolute())) for p in copy.parent.rglob("*.py")
        ]
        if not _has_content(copy, digest) or changed_files(folder, inside):
            raise ValueError(
                f"{text} must have {copy.name!r} in {str(copy.parent.name)!r} as it was written, and has not"
            )
        words = [word.replace(f"{path}:", f"{copy}:") for word in words]
    return words


def _has_content(file: Path, digest: str) -> bool:
    return file.is_file() and checksum(file.read_bytes()) == digest
