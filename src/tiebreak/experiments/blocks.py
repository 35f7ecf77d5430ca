"""What a block of work gives, and finished blocks on disk: whole, with a checksum, and for the same work alone."""

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tiebreak.experiments.tables import Table
from tiebreak.experiments.tasks import Task
from tiebreak.files import atomic, locked, regular
from tiebreak.interrupts import terminations

_FORMAT = 1
_SUFFIX = ".block"


class Block(NamedTuple):
    """Tables by name, and facts, which are plain data as JSON knows them.

    Examples
    --------
    >>> import numpy as np
    >>> block = Block({"curve": {"step": np.arange(3)}}, {"seconds": 0.5})
    >>> block.tables["curve"]["step"].tolist(), block.facts["seconds"]
    ([0, 1, 2], 0.5)
    """

    tables: Mapping[str, Table]
    facts: Mapping[str, Any]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, in a block that can tell what it has reached."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.block = block


class Store:
    """A folder of finished blocks, held by one process at a time (`with Store(folder) as store`).

    A block is written whole or not at all. It is read only if its checksum is right and it was made by the same code,
    from the same arguments, as the task's fingerprint tells; else it is as if it were not there.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import solving, sweep
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=2, seed=0)
    >>> with Store(tempfile.mkdtemp()) as store:
    ...     done = sweep(tasks, engine="here", store=store)
    ...     kept = store.read(tasks[0])
    >>> kept.tables["last"]["steps"].tolist() == done.blocks[tasks[0].name].tables["last"]["steps"].tolist()
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._held = ExitStack()
        self._full = False

    def __enter__(self) -> Self:
        with ExitStack() as held:
            # The handler of SIGTERM comes first, so that a signal at any later moment removes the lock.
            held.enter_context(terminations())
            held.enter_context(locked(self.folder))
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def place(self, task: Task) -> Path:
        """Where the task's block is, or would be."""
        return self.folder / f"{task.fingerprint}{_SUFFIX}"

    def read(self, task: Task) -> Block | None:
        """The task's block, if it is there and sound. What is not sound is said, and removed when it is made again."""
        place = self.place(task)
        try:
            return _decoded(regular(place).read_bytes(), task.fingerprint)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warnings.warn(
                f"{os.fspath(place)!r} is not used: {error}; {task.name} is run again",
                stacklevel=2,
            )
            return None

    def write(self, task: Task, block: Block) -> None:
        """Keep a block. A full disk must not end a long sweep: it is said once, and the sweep goes on."""
        try:
            with atomic(self.place(task)) as file:
                file.write(_encoded(block, task.fingerprint))
        except OSError as error:
            if not self._full:
                self._full = True
                message = f"blocks cannot be kept in {os.fspath(self.folder)!r}: {error.strerror}; the sweep goes on"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def clear(self) -> None:
        """Remove all blocks: what was made of them is kept elsewhere."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


def _encoded(block: Block, fingerprint: str) -> bytes:
    arrays: dict[str, Any] = {
        f"{table}.{name}": column
        for table, columns in block.tables.items()
        for name, column in columns.items()
    }
    for name, column in arrays.items():
        if column.dtype.hasobject:
            raise TypeError(
                f"column {name} holds Python objects; it must hold numbers or text"
            )
    body = io.BytesIO()
    parts: dict[str, Any] = {
        "facts": np.array(json.dumps(block.facts)),
        "tables": np.array([*block.tables], dtype=str),
    }
    np.savez(body, **parts, **arrays)
    content = body.getvalue()
    head = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n" + content


def _decoded(content: bytes, fingerprint: str) -> Block:
    """The block; ValueError if it is not what was written for this fingerprint."""
    first, _, body = content.partition(b"\n")
    head = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    if first != json.dumps(head).encode():
        raise ValueError(
            "it is damaged, or was made by other code or of other arguments"
        )
    try:  # from here on it is as it was written, unless somebody has made it up, checksum and all
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            tables: dict[str, Table] = {
                str(name): {} for name in file["tables"].tolist()
            }
            for key in file.files[2:]:
                table, _, column = key.partition(".")
                tables[table][column] = file[key]
            facts = json.loads(str(file["facts"]))
    except (
        Exception
    ) as error:  # an archive that is none can make its reader raise almost anything
        raise ValueError(
            f"it holds no block ({type(error).__name__}: {error})"
        ) from None
    if not isinstance(facts, dict):
        raise ValueError("the facts in it are no object")
    return Block(tables, facts)
