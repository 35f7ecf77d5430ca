"""Files that are either whole or as they were: written beside their place, flushed to the disk, then moved there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["atomic", "probe"]


def probe(path: str | os.PathLike[str]) -> None:
    """Make sure that a file can be written at `path`, now rather than when it is needed; leaves its folder alone."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise type(error)(error.errno, f"{os.fspath(path)!r} cannot be written: {error.strerror}") from None


@contextmanager
def atomic(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open `path` for writing so that a crash, a kill or a full disk leaves the old file, or none, never half of one.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic(path, "w") as file:
    ...     _ = file.write("whole")
    >>> path.read_text()
    'whole'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, mode, **text) as file:  # type: ignore[call-overload]  # one of two literal modes
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; results are as readable as any other
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
