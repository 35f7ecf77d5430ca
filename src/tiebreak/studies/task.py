"""Tasks: blocks of work that any process can do, and what a block of work gives."""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tiebreak
from tiebreak.studies.tables import Columns, Facts
from tiebreak.studies.user_files import Source, SweepError


class Block(NamedTuple):
    """Tables of columns by name, and facts, which are plain data as JSON knows them.

    Examples
    --------
    >>> import numpy as np
    >>> block = Block({"curve": {"step": np.arange(3)}}, {"seconds": 0.5})
    >>> block.tables["curve"]["step"].tolist(), block.facts["seconds"]
    ([0, 1, 2], 0.5)
    """

    tables: Mapping[str, Columns]
    facts: Facts


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a block that can tell how far it has come."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.block = block


@cache
def _code_digest() -> str:
    """The checksum of the versions and of every line of the library."""
    digest = hashlib.sha256(f"{tiebreak.__version__} {np.__version__}".encode())
    root = Path(tiebreak.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(os.fspath(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Task:
    """A block of work.

    Parameters
    ----------
    name : str
        Different from those of the other tasks of a sweep.
    function : callable or Source
        ``function(progress, **arguments)`` returns a :class:`Block`; it may call ``progress(share)``. A function of a
        module, so that other processes can import it.
    arguments : dict
        Plain data, sources and dataclasses of these.
    seconds : float
        About how long it takes, if that is known.

    Examples
    --------
    >>> task = Task("mine", divmod, {"seed": 0})
    >>> task.name, len(task.fingerprint)
    ('mine', 64)
    """

    name: str
    function: Callable[..., Block] | Source
    arguments: Facts
    seconds: float = 0.0
    code: str = field(default_factory=_code_digest)

    @cached_property
    def fingerprint(self) -> str:
        """What the result depends on, in 64 letters: the function, its arguments and the code."""
        parts = [_described(self.function), self.arguments, self.code]
        text = json.dumps(parts, sort_keys=True, default=_described)
        return hashlib.sha256(text.encode()).hexdigest()


def _described(value: Any) -> Any:
    """A function, or a dataclass such as a source or a method, as plain data."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        return [type(value).__qualname__, parts]
    if inspect.isroutine(value):
        return [value.__module__, value.__qualname__, _file_digest(value.__module__)]
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


@cache
def _file_digest(module: str) -> str:
    """The checksum of a module that is not part of the library."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if module.startswith("tiebreak.") or not path or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def perform(task: Task, progress: Callable[[float], Any] | None = None) -> Block:
    """Do the task in this process with one thread: with more threads NumPy's products differ in the last bits."""
    if task.code != _code_digest():
        raise SweepError(
            "a worker has another version of tiebreak or NumPy than the process that asks it to work"
        )
    function = (
        task.function.load() if isinstance(task.function, Source) else task.function
    )
    try:
        with one_thread():
            block = function(progress or (lambda share: None), **task.arguments)
    except Exception as error:
        error.add_note(f"The task {task.name!r} failed.")
        raise
    if not isinstance(block, Block):
        raise TypeError(
            f"{task.name}: {function.__module__}.{function.__qualname__} gave {type(block).__name__}; it must give a Block"
        )
    # Facts are equal to those of a block read from a file.
    return Block(block.tables, json.loads(json.dumps(block.facts)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numerical libraries use one thread, if threadpoolctl is installed, which the `cli` extra brings."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(1):
        yield
