"""Finished blocks on disk: complete, with a checksum, and for the same work alone."""

import hashlib
import io
import json
import os
import shutil
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from tiebreak.files import FilePath, atomic, locked, regular
from tiebreak.interrupts import terminations
from tiebreak.studies.folder import COMMAND
from tiebreak.studies.tables import Columns
from tiebreak.studies.task import Block, Task

_SUFFIX = ".block"


class Store:
    """A folder of finished blocks that one process uses at a time (`with Store(folder) as store`).

    A block is written completely or not at all. It is read only if its checksum is right and it was made by the same
    code from the same arguments, as the fingerprint of its task tells. The `command` of the study, if given, is
    written beside the first block.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.studies import solving, sweep
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=2, seed=0)
    >>> with Store(tempfile.mkdtemp()) as store:
    ...     result = sweep(tasks, engine="here", store=store)
    ...     block = store.read(tasks[0])
    >>> block.tables["last"]["steps"].tolist() == result.blocks[tasks[0].name].tables["last"]["steps"].tolist()
    True
    """

    def __init__(self, folder: FilePath, command: str = "") -> None:
        self.folder = Path(folder)
        self.command = command
        self._lock = ExitStack()
        self._full = False

    def __enter__(self) -> Self:
        with ExitStack() as lock:
            # The handler of SIGTERM comes first, so a later signal removes the lock.
            lock.enter_context(terminations())
            lock.enter_context(locked(self.folder))
            self._lock = lock.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def __len__(self) -> int:
        return len(list(self.folder.glob(f"*{_SUFFIX}")))

    def place(self, task: Task) -> Path:
        """The path of the task's block."""
        return self.folder / f"{task.fingerprint}{_SUFFIX}"

    def read(self, task: Task) -> Block | None:
        """The task's block, if there is a sound one; a warning says what is damaged."""
        place = self.place(task)
        try:
            return decoded(regular(place).read_bytes(), task.fingerprint)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            message = (
                f"{os.fspath(place)!r} is not used: {error}; {task.name} is run again"
            )
            warnings.warn(message, stacklevel=2)
            return None

    def write(self, task: Task, block: Block) -> None:
        """Keep a block. On a full disk one warning is given, and the sweep goes on."""
        try:
            if self.command:
                with atomic(self.folder / COMMAND) as file:
                    file.write(self.command.encode())
                self.command = ""
            with atomic(self.place(task)) as file:
                file.write(encoded(block, task.fingerprint))
        except OSError as error:
            if not self._full:
                self._full = True
                message = f"blocks cannot be kept in {os.fspath(self.folder)!r}: {error.strerror}; the sweep goes on"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def clear(self) -> None:
        """Remove all blocks."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


def encoded(block: Block, fingerprint: str) -> bytes:
    """The content of a block's file: a line with the checksum, and a NumPy archive."""
    arrays: dict[str, Any] = {
        "facts": np.array(json.dumps(block.facts)),
        "tables": np.array([*block.tables], dtype=str),
    }
    for table, columns in block.tables.items():
        for name, column in columns.items():
            if column.dtype.hasobject:
                raise TypeError(
                    f"column {table}.{name} holds Python objects; it must hold numbers or text"
                )
            arrays[f"{table}.{name}"] = column
    body = io.BytesIO()
    np.savez(body, **arrays)
    return _head(fingerprint, body.getvalue()) + b"\n" + body.getvalue()


def _head(fingerprint: str, body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return json.dumps({"fingerprint": fingerprint, "sha256": digest}).encode()


def decoded(content: bytes, fingerprint: str) -> Block:
    """The block of a file's content; ValueError if it was not written for this fingerprint."""
    head, _, body = content.partition(b"\n")
    if head != _head(fingerprint, body):
        raise ValueError(
            "it is damaged, or was made by other code or of other arguments"
        )
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            tables: dict[str, Columns] = {name: {} for name in file["tables"].tolist()}
            for key in file.files[2:]:
                table, _, column = key.partition(".")
                tables[table][column] = file[key]
            facts = json.loads(str(file["facts"]))
    except Exception as error:  # a made-up archive can raise almost anything
        raise ValueError(
            f"it holds no block ({type(error).__name__}: {error})"
        ) from None
    if not isinstance(facts, dict):
        raise ValueError("the facts in it are no object")
    return Block(tables, facts)
