"""Files of one's own that problems and methods come from: checksums for the record, copies, and what fails in them."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tiebreak.experiments.tasks import Reference, told

_Made = TypeVar("_Made")

#: The folder of the copies, in that of a result.
KEPT = "own"


def path_of(where: str | Reference) -> str | None:
    """The file of a reference; None of what has none: names, modules, objects.

    >>> path_of({"where": "mine.py:method", "text": "method = 1"}), path_of("sdbgd")
    ('mine.py', None)
    """
    if isinstance(where, str) or where["text"] is None:
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
    return {
        str(each["where"]): checksum(str(each["text"])) for each in in_files(references)
    }


def copies(references: Iterable[str | Reference]) -> Mapping[str, str]:
    """The texts of these files, by the names of their copies."""
    texts = {
        str(each["where"]).rpartition(":")[0]: str(each["text"])
        for each in in_files(references)
    }
    return {copy_name(path, checksum(text)): text for path, text in texts.items()}


def in_files(references: Iterable[str | Reference]) -> list[Reference]:
    """Those of the references that are in files."""
    return [
        each
        for each in references
        if not isinstance(each, str) and path_of(each) is not None
    ]


def kindly(
    text: str, references: Iterable[str | Reference], make: Callable[[], _Made]
) -> _Made:
    """What is made with somebody's own code, or a ValueError with `text` and the line of the file that failed."""
    files = [str(path_of(each)) for each in in_files(references)]
    try:
        return make()
    except (
        Exception
    ) as error:  # it is not our code: whatever it raises is its user's to mend
        where = next(
            (
                words
                for words in (told(error, file) for file in files)
                if ", line " in words
            ),
            None,
        )
        raise ValueError(
            f"{text} cannot be run: {where or error or type(error).__name__}"
        ) from error
