"""Files that are either whole or as they were: written beside their place, flushed to the disk, then moved there.

A process that is killed while it writes leaves a temporary file. The next one that writes the same file removes it. A
process holds a lock on its temporary file for as long as it lives, so a file whose lock is free belongs to no one. It
likewise holds what it writes again and again, a checkpoint or a folder: a second process is refused, and one that was
killed holds nothing.
"""

import errno
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

if sys.platform != "win32":
    import fcntl

FilePath: TypeAlias = str | os.PathLike[str]
_LOCKS = (
    sys.platform != "win32"
)  # elsewhere nothing is removed, because nobody knows whose it is
_SUFFIX = ".tiebreak"


def regular(path: FilePath) -> Path:
    """The path, if there is a file; OSError else. A pipe would be waited for, and a device may never end.

    Examples
    --------
    >>> regular("/dev/zero")
    Traceback (most recent call last):
        ...
    OSError: [Errno 22] it is neither a file nor a link to one: '/dev/zero'
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
        )
    if not stat.S_ISREG(mode):
        raise OSError(
            errno.EINVAL, "it is neither a file nor a link to one", os.fspath(path)
        )
    return Path(path)


@contextmanager
def locked(path: FilePath | None) -> Iterator[None]:
    """Hold what is written at `path`, a file or a folder, so that no other process writes it at the same time.

    Raises BlockingIOError where another one does, and another OSError where `path` cannot be written: now rather than
    when it is needed. Nothing is left behind, neither the lock nor a folder that was made for it and stayed empty.
    Nothing is held where `path` is None, and on a system or a file system without locks.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.npz"
    >>> with locked(path), locked(path):  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
        ...
    BlockingIOError: [Errno ...] '...run.npz' is being written by process ...; wait for it, or choose another place
    """
    if path is None:
        yield
        return
    target = Path(path)
    place = target.with_name(f".{target.name.lstrip('.')}.lock")
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = _held(place)
    except OSError as error:
        wrong = "is" if isinstance(error, BlockingIOError) else "cannot be written:"
        raise type(error)(
            error.errno, f"{os.fspath(path)!r} {wrong} {error.strerror}"
        ) from None
    try:
        yield
    finally:
        if handle is not None:
            with suppress(
                OSError
            ):  # what cannot be removed may stay: only the lock counts
                place.unlink()
            os.close(handle)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _held(place: Path) -> int | None:
    """A locked file at `place`, with this process's number in it; None where there are no locks."""
    while True:
        handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        free = _lock(handle, wait=False)
        if free is None:
            os.close(handle)
            place.unlink()
            return None
        if not free:
            holder = (
                os.read(handle, 20).decode(errors="replace").strip() or "another one"
            )
            os.close(handle)
            remedy = f"being written by process {holder}; wait for it, or choose another place"
            raise BlockingIOError(errno.EWOULDBLOCK, remedy)
        with suppress(FileNotFoundError):
            if os.stat(place).st_ino == os.fstat(handle).st_ino:
                with suppress(
                    OSError
                ):  # a full disk; the number is for the message alone
                    os.ftruncate(handle, 0)
                    os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(
            handle
        )  # its holder ended, and removed it, between its opening and its locking: once more


@contextmanager
def atomic(path: FilePath, mode: str = "wb") -> Iterator[IO[Any]]:
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
    _sweep(target)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    handle, temporary = _temporary(target)
    try:
        with os.fdopen(handle, mode, **text) as file:  # type: ignore[call-overload]  # one of two literal modes
            yield file
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(
                temporary, 0o666 & ~umask
            )  # mkstemp makes private files; results are as readable as any other
            if _LOCKS:  # as long as the file is open it is locked, and no one takes it for left behind
                os.replace(temporary, target)
        if not _LOCKS:  # where there are no locks, an open file cannot be moved either
            os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _temporary(target: Path) -> tuple[int, str]:
    """A new file beside the target, open and locked, and its path."""
    while True:
        handle, path = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=_SUFFIX
        )
        if not _lock(handle):
            return (
                handle,
                path,
            )  # a file system without locks: no one can lock it, and so no one removes it
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle, path
        os.close(
            handle
        )  # it was swept away between its making and its locking: once more


def _sweep(target: Path) -> None:
    """Remove the temporary files of processes that no longer live."""
    ours = re.compile(
        re.escape(f".{target.name}.") + r"[a-z0-9_]{8}" + re.escape(_SUFFIX)
    )
    with suppress(
        OSError
    ):  # whatever cannot be read or removed stays: the save itself matters more
        for path in [
            entry.path
            for entry in os.scandir(target.parent)
            if ours.fullmatch(entry.name)
        ]:
            with suppress(OSError), open(path, "rb") as file:
                if _lock(file.fileno(), wait=False):
                    os.unlink(path)


def _lock(handle: int, wait: bool = True) -> bool | None:
    """Lock an open file until it is closed; False if another one has, None where there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
