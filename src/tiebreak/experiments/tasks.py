"""Work by name: what to call, with which arguments, told so that any process on any machine can do it.

A function is named by where it is: ``"package.module:function"``, or ``"file.py:function"``. A file travels as text, so
that a worker needs no copy of it. Arguments are plain data, as JSON knows them. Name, text, arguments and the code of
the library together are the task's fingerprint: the same fingerprint, the same result.
"""

import hashlib
import importlib
import json
import os
import sys
import traceback
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import tiebreak
from tiebreak.experiments.workers import tell

#: Where something is, and the text of its file if it is in one; made by :func:`reference`, found by :func:`found`.
Reference: TypeAlias = dict[str, str | None]


class SweepError(RuntimeError):
    """A sweep cannot go on, and why; what it has finished is kept."""


@cache
def _code() -> str:
    """What computes: the versions, and every line of the library."""
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
        Its own, among the tasks of a sweep.
    function : Reference
        ``function(hear, **arguments)`` gives a :class:`~tiebreak.experiments.blocks.Block`; it may call ``hear(share)``
        with the share that is done.
    arguments : dict
        Plain data, references among them.
    seconds : float
        What it takes, about, as far as that can be told beforehand.

    Examples
    --------
    >>> from tiebreak.experiments.tasks import reference
    >>> task = Task("mine", reference("tiebreak.experiments.running:solve"), {"seed": 0})
    >>> task.name, len(task.fingerprint)
    ('mine', 64)
    """

    name: str
    function: Reference
    arguments: Mapping[str, Any]
    seconds: float = 0.0
    code: str = field(default_factory=_code)

    @cached_property
    def fingerprint(self) -> str:
        """What the result depends on, in 64 letters."""
        parts = {
            "function": self.function,
            "arguments": self.arguments,
            "code": self.code,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def reference(where: str, name: str = "function") -> Reference:
    """What is at ``"module:attribute"`` or ``"file.py:attribute"``; ValueError, for the argument `name`, if nothing is.

    >>> reference("tiebreak.problems:paper")
    {'where': 'tiebreak.problems:paper', 'text': None}
    """
    module, _, attribute = str(where).rpartition(":")
    legal = f"{name}={where!r} must be 'module:name' or 'file.py:name'"
    if not (module and attribute):
        raise ValueError(legal)
    text = None
    if module.endswith(".py"):
        try:
            text = Path(module).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{name}={where!r}: {module!r} cannot be read: {error}"
            ) from None
    made: Reference = {"where": str(where), "text": text}
    wrong = legal if text is None else f"{name}={where!r} cannot be run"
    try:
        found(made)
    except (ImportError, SyntaxError) as error:
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacks and not (
            text is None and f"{module}.".startswith(f"{lacks}.")
        ):  # it is there, what it imports is not
            raise ValueError(
                f"{name}={where!r} needs {lacks}, which is not installed"
            ) from None
        raise ValueError(f"{wrong}; {error}") from None
    except (
        Exception,
        SystemExit,
    ) as error:  # somebody's file may raise anything, and odd names of modules too
        if (
            isinstance(error, AttributeError) and error.name == attribute
        ):  # not something else, in the file itself
            raise ValueError(
                f"{name}={where!r}: {module} has no attribute {attribute!r}"
            ) from None
        raise ValueError(f"{wrong}; {told(error, module)}") from None
    return made


def held(thing: Any, name: str) -> Reference:
    """A reference to an object, which is known in this process alone.

    No other process gives the same reference, so a finished block of another object never passes for its own.
    """
    where = f"{_HERE}{_PROCESS}:{len(_KEPT)}:{name}"
    _KEPT[where] = thing
    return {"where": where, "text": None}


def stays(made: Any) -> bool:
    """Whether a reference is to an object of this process."""
    return isinstance(made, dict) and str(made["where"]).startswith(_HERE)


_HERE = "here:"
_KEPT: dict[str, Any] = {}
_PROCESS = uuid.uuid4().hex


def told(error: BaseException, path: str) -> str:
    """An error in somebody's file in a line: what it is, and where in the file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f"{type(error).__name__}: {error}" + (
        f" ({path}, line {lines[-1]})" if lines else ""
    )


def found(made: Reference) -> Any:
    """What a reference stands for."""
    if stays(made):
        return _KEPT[str(made["where"])]
    module, _, attribute = str(made["where"]).rpartition(":")
    text = made["text"]
    return getattr(
        importlib.import_module(module) if text is None else _own(module, text),
        attribute,
    )


@cache
def _own(path: str, text: str) -> types.ModuleType:
    """A module made of a file's text, once in a process."""
    name = f"tiebreak_own_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses look themselves up there
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def perform(task: Task, hear: Callable[[float], Any] | None = None) -> Any:
    """Do the task, in this process and with one thread: with more of them NumPy's products differ in the last bits."""
    if task.code != _code():
        raise SweepError(
            "a worker has another version of tiebreak or NumPy than the process that asks it to work"
        )
    newest = 0.0

    def note(share: float) -> None:
        nonlocal newest
        newest = share
        tell((task.name, share))

    with one_thread():
        made = found(task.function)(hear or note, **task.arguments)
        if newest:  # tell() leaves out what comes too often; where a task has got to is the last thing to leave out
            tell((task.name, newest), at_once=True)
        return made


@contextmanager
def one_thread() -> Iterator[None]:
    """Numerical libraries use one thread, as far as they can be told: it takes threadpoolctl, of the `cli` extra."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(1):
        yield
