"""Problems and methods by their place: an attribute of a module or of a user's file, or an object of this process.

A user's file travels as its path and checksum. Each process reads the file again and runs it only if the checksum is
the same. Modules that the file imports from its own folder belong to it.
"""

import hashlib
import importlib
import os
import sys
import traceback
import types
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tiebreak.studies.folder import COPIES, checksum

_Value = TypeVar("_Value")


class SweepError(RuntimeError):
    """A sweep cannot go on; finished blocks are kept."""


@dataclass(frozen=True)
class Source:
    """A place such as "module:name" or "file.py:name".

    Attributes
    ----------
    place : str
        As the user wrote it.
    files : tuple of (path, checksum)
        The user's file and the neighbours that it imports, both with the folder of `place`; empty for modules of
        packages.
    """

    place: str
    files: tuple[tuple[str, str], ...] = ()

    @property
    def in_process(self) -> bool:
        """Whether it is an object, which no other process can load."""
        return self.place in _OBJECTS

    def load(self) -> Any:
        """The attribute, or the object."""
        if self.in_process:
            return _OBJECTS[self.place]
        module, _, attribute = self.place.rpartition(":")
        if not self.files:
            return getattr(importlib.import_module(module), attribute)
        for path, digest in self.files:
            _check_unchanged(path, digest)
        path, digest = self.files[0]
        return getattr(_run_file(os.path.abspath(path), digest)[0], attribute)


#: Objects by the names of their sources, which no other process gives.
_OBJECTS: dict[str, Any] = {}
_PROCESS = uuid.uuid4().hex
_neighbours: dict[str, str] = {}  # names of modules, and the folders of their files


def source_of_object(value: Any, name: str) -> Source:
    """The source of an object of this process; no finished block of another object is taken for one of this object."""
    place = f"object {len(_OBJECTS)} of process {_PROCESS}:{name}"
    _OBJECTS[place] = value
    return Source(place)


def source_at(place: str, name: str = "function") -> Source:
    """The source at ``"module:attribute"`` or ``"file.py:attribute"``; ValueError, for the argument `name`, if it fails.

    >>> source_at("tiebreak.problems:paper")
    Source(place='tiebreak.problems:paper', files=())
    """
    text = f"{name}={place!r}"
    module, _, attribute = str(place).rpartition(":")
    legal = f"{text} must be 'module:name' or 'file.py:name'"
    if not (module and attribute):
        raise ValueError(legal)
    is_file = module.endswith(".py")
    content = _read(module, text) if is_file else b""
    wrong = f"{text} cannot be run" if is_file else legal
    source = Source(str(place))
    try:
        if is_file:
            path = os.path.abspath(module)
            _, neighbours = _run_file(path, checksum(content))
            files = [(module, checksum(content))]
            for neighbour, digest in neighbours:
                inner = os.path.relpath(neighbour, os.path.dirname(path))
                files.append((os.path.join(os.path.dirname(module), inner), digest))
            source = Source(str(place), tuple(files))
        source.load()
    except (ImportError, SyntaxError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        itself = not is_file and f"{module}.".startswith(f"{missing}.")
        if missing and not itself:
            raise ValueError(
                f"{text} needs {missing}, which is not installed"
            ) from None
        raise ValueError(f"{wrong}; {error}") from None
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        if isinstance(error, AttributeError) and error.name == attribute:
            raise ValueError(
                f"{text}: {module} has no attribute {attribute!r}"
            ) from None
        raise ValueError(f"{wrong}; {error_line(error, [module])}") from None
    return source


def _read(path: str, text: str) -> bytes:
    try:
        content = Path(path).read_bytes()
        content.decode()
    except (OSError, ValueError) as error:
        raise ValueError(f"{text}: {path!r} cannot be read: {error}") from None
    return content


def _check_unchanged(path: str, digest: str) -> None:
    if not Path(path).is_file():
        raise SweepError(f"{path!r} is not on the machine of this worker")
    if checksum(Path(path).read_bytes()) != digest:
        raise SweepError(f"{path!r} has changed since the sweep began")


@cache
def _run_file(
    path: str, digest: str
) -> tuple[types.ModuleType, tuple[tuple[str, str], ...]]:
    """The module of a user's file, and the neighbours that it imported with their checksums; once in a process."""
    content = Path(path).read_bytes()
    if checksum(content) != digest:
        raise SweepError(f"{path!r} has changed since the sweep began")
    folder = os.path.dirname(path)
    _forget_namesakes(folder)
    before = set(sys.modules)
    name = f"tiebreak_user_{hashlib.sha256(path.encode()).hexdigest()[:8]}_{digest[:8]}"
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses look their module up there
    sys.path.append(folder)  # at the end, so no installed package is hidden
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    finally:
        sys.path.remove(folder)
    neighbours = []
    for other in sorted(set(sys.modules) - before - {name}):
        file = getattr(sys.modules[other], "__file__", None) or ""
        if file.endswith(".py") and file.startswith(folder + os.sep):
            _neighbours[other] = folder
            neighbours.append((file, checksum(Path(file).read_bytes())))
    return module, tuple(neighbours)


def _forget_namesakes(folder: str) -> None:
    """Let a file import its own neighbour, though another file's neighbour of the same name was imported before."""
    for name, other in [*_neighbours.items()]:
        if other != folder:
            sys.modules.pop(name, None)
            del _neighbours[name]


def error_line(error: BaseException, paths: Iterable[str]) -> str:
    """An error in a line: its type, its text, and its place in one of the files."""
    files = {os.path.abspath(path): path for path in paths}
    text = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{text} ({files[frame.filename]}, line {frame.lineno})"
    return text


def explained(text: str, sources: Iterable[Any], make: Callable[[], _Value]) -> _Value:
    """The value that the user's code makes, or a ValueError with `text` and the line of the file that failed."""
    paths = [path for source in in_files(sources) for path, _ in source.files]
    try:
        return make()
    except Exception as error:  # the user's code may raise anything
        line = error_line(error, paths)
        if ", line " not in line:
            line = str(error) or type(error).__name__
        raise ValueError(f"{text} cannot be run: {line}") from error


def in_files(sources: Iterable[Any]) -> list[Source]:
    """The sources that are in users' files; anything else may have a `source`, or is in no file."""
    places = [getattr(each, "source", each) for each in sources]
    return [each for each in places if isinstance(each, Source) and each.files]


def checksums(sources: Iterable[Any]) -> dict[str, str]:
    """The checksums of the users' files by their paths, for the record of a result."""
    return {
        path: digest for source in in_files(sources) for path, digest in source.files
    }


def copies(sources: Iterable[Any]) -> Mapping[str, str]:
    """The texts of the users' files by the names of their copies: a file and its neighbours in one folder."""
    texts = {}
    for source in in_files(sources):
        root = os.path.dirname(os.path.abspath(source.files[0][0]))
        for path, _ in source.files:
            inner = os.path.relpath(os.path.abspath(path), root)
            name = f"{copy_folder(*source.files[0])}/{Path(inner).as_posix()}"
            texts[name] = Path(path).read_text(encoding="utf-8")
    return texts


def copy_folder(path: str, digest: str) -> str:
    """The folder of the copies of a file and of its neighbours, by the checksum of the file.

    >>> copy_folder("there/mine.py", "75d94e60d088f212")
    'own/mine-75d94e60'
    """
    return f"{COPIES}/{Path(path).stem}-{digest[:8]}"
