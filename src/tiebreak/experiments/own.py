"""Files of one's own that problems and methods come from: their checksums for the record, and copies beside it."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tiebreak.experiments.tasks import Reference

__all__ = ["KEPT", "checksum", "copies", "copy_name", "path_of", "sources"]

#: The folder of the copies, in that of a result.
KEPT = "own"


def path_of(where: str | Reference) -> str | None:
    """The file of a reference; None of what has none: names, modules, objects.

    >>> path_of({"where": "mine.py:method", "text": "method = 1"}), path_of("sdbgd")
    ('mine.py', None)
    """
    if isinstance(where, str) or where["text"] is None or str(where["where"]).startswith("pickle:"):
        return None
    return str(where["where"]).rpartition(":")[0]


def checksum(text: str) -> str:
    """What tells a file's text from every other one."""
    return hashlib.sha256(text.encode()).hexdigest()


def copy_name(path: str, digest: str) -> str:
    """Where the copy of a file lies in the folder of a result, by its checksum.

    >>> copy_name("there/mine.py", "75d94e60d088f212")
    'own/mine-75d94e60.py'
    """
    return f"{KEPT}/{Path(path).stem}-{digest[:8]}.py"


def sources(references: Iterable[str | Reference]) -> dict[str, str]:
    """The places that are in files, each with the checksum of the file's text."""
    return {str(each["where"]): checksum(str(each["text"])) for each in _own(references)}


def copies(references: Iterable[str | Reference]) -> Mapping[str, str]:
    """The texts of these files, by the names of their copies."""
    texts = {str(each["where"]).rpartition(":")[0]: str(each["text"]) for each in _own(references)}
    return {copy_name(path, checksum(text)): text for path, text in texts.items()}


def _own(references: Iterable[str | Reference]) -> list[Reference]:
    return [each for each in references if not isinstance(each, str) and path_of(each) is not None]
