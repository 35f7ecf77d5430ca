"""What commands print and read: results on standard output, everything else on standard error."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar, get_type_hints

import rich.console
import rich.table
import typer
from rich.text import Text
from typer.models import ArgumentInfo, OptionInfo

from tiebreak.progress import Line, show
from tiebreak.studies.tables import Table, fitted
from tiebreak.studies.user_files import SweepError

#: What shells expect of a program that Ctrl-C, SIGTERM or SIGPIPE ended.
INTERRUPTED = 130
_TERMINATED = 143
_NO_READER = 141
_KEPT = "finished blocks are kept, and the same command goes on from there"

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PLACES = {"place": "", "name": ""}  # what has no option, whatever the command calls it
_words: ContextVar[dict[str, str]] = ContextVar(
    "_words"
)  # of the running command, by Python's names
_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)


class Console(rich.console.Console):
    """A console that ends the command without a word where nobody reads its results any more, as `head` does.

    Remarks that nobody reads end nothing: the work goes on, and its files are written.
    """

    def on_broken_pipe(self) -> None:
        """Write nothing more, not even what Python would when it ends."""
        self.quiet = True
        if self.stderr:
            broken = sys.stderr
        else:
            broken = sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())
        if not self.stderr:
            raise SystemExit(_NO_READER)


def say(text: str, always: bool = False) -> None:
    """Print a line on standard error; with ``--quiet`` only what must be said `always`."""
    if _quiet.get() and not always:
        return
    Console(stderr=True).print(printable(text), soft_wrap=True)


def printable(text: str, style: str = "") -> Text:
    """The text as it is: neither markup nor emoji nor control characters of a terminal."""
    return Text(
        "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), style
    )


def _fail(text: str) -> NoReturn:
    say(f"tiebreak: {text}", always=True)
    raise typer.Exit(2)


def command_line(command: _Command) -> _Command:
    """A command that knows ``--quiet``, whose faults are a line with options as they are typed, such as ``--budget 0``."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        words = _words.set(_typed(command))
        quiet = _quiet.set(kwargs.get("quiet", False))
        try:
            with faults_in_a_line():
                return command(*args, **kwargs)
        finally:
            _words.reset(words)
            _quiet.reset(quiet)

    return run  # type: ignore[return-value]  # with the command's own signature


def _typed(command: Callable[..., Any]) -> dict[str, str]:
    """How each argument of a command is typed: an option's name, or nothing for one that has its place."""
    typed = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                long = [
                    word for word in info.param_decls or () if word.startswith("--")
                ]
                if long:
                    typed[name] = long[0]
                else:
                    typed[name] = f"--{name.strip('_').replace('_', '-')}"
            elif isinstance(info, ArgumentInfo):
                typed[name] = ""
    return typed


def _as_typed(text: str, words: dict[str, str]) -> str:
    """A sentence about Python's arguments as one about what was typed.

    >>> _as_typed("runs=0 must be a whole number ≥ 1", {"runs": "--runs"})
    '--runs 0 must be a whole number ≥ 1'
    >>> _as_typed("budget=None, epsilon=None: give one of them", {"budget": "--budget", "epsilon": "--epsilon"})
    'no --budget, no --epsilon: give one of them'
    >>> _as_typed("place='x' must be a folder, not 'y'", {"place": ""})
    "'x' must be a folder, not 'y'"
    """

    def said(match: re.Match[str]) -> str:
        word = words[match["name"]]
        value = match["value"]
        if not word:
            return value
        if value == "None":
            return f"no {word}"
        return f"{word} {value.strip(chr(39) + chr(34)) or value}"

    names = "|".join(map(re.escape, words)) or "(?!)"
    values = r"""'[^']*'|"[^"]*"|[^\s,:;'"]+"""
    return re.sub(rf"(?<![\w.'\"-])(?P<name>{names})=(?P<value>{values})", said, text)


@contextmanager
def faults_in_a_line() -> Iterator[None]:
    """Bad values, and files that cannot be read or written, end the command with a line instead of a traceback."""
    try:
        yield
    except ValueError as error:
        _fail(_as_typed(str(error), _PLACES | _words.get({})))
    except OSError as error:
        if error.filename is None:
            place = "a file"
        else:
            place = repr(str(error.filename))
        _fail(f"{place} cannot be read or written: {error.strerror or error}")
    except SweepError as error:
        _fail(f"{error}; {_KEPT}")
    except SystemExit as end:
        if end.code == _TERMINATED:
            say(f"tiebreak: terminated; {_KEPT}", always=True)
        raise
    except KeyboardInterrupt:
        say("Interrupted; nothing was written.")
        raise typer.Exit(INTERRUPTED) from None
    except MemoryError:
        _fail(
            "there is not enough memory; ask for fewer --runs, or for a sparser --record"
        )


def number(text: str) -> Any:
    """The number that a text spells, whole if it can be; else the text, and whoever knows the legal range complains."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def numbers(text: str) -> Any:
    """The numbers that a text spells between commas; else the text."""
    parts = [number(part) for part in text.split(",")]
    if any(isinstance(part, str) for part in parts):
        return text
    return parts


def completing(*names: str) -> Callable[[str], list[str]]:
    """What the Tab key offers of an option that takes these names, also the last of several between commas.

    >>> completing("sdbgd", "sdbpg", "penalty")("auto,sd")
    ['auto,sdbgd', 'auto,sdbpg']
    """

    def offered(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return offered


def show_tables(tables: Iterable[Table], notes: Iterable[str] = ()) -> None:
    """Print tables, and notes below them. A wide table of numbers is transposed or in parts; words are folded."""
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width
        console.width = max(console.width, 120)
    for table in tables:
        for part in [table] if table.words else fitted(table, console.width):
            _show(console, part)
    for text in notes:
        console.print(printable(f"• {text}", "dim"))


def _show(console: Console, table: Table) -> None:
    console.print(printable(table.title, "bold"))
    grid = rich.table.Table(
        box=None, pad_edge=False, header_style="dim", show_header=any(table.header)
    )
    for i, name in enumerate(table.header):
        side: Any = "left" if i == 0 or name in table.words else "right"
        grid.add_column(printable(name), justify=side, overflow="fold")
    for row in table.rows:
        grid.add_row(*(printable(c, "red" if c == "FAIL" else "") for c in row))
    console.print(grid)
    console.print()


@contextmanager
def bar(name: str = "Starting") -> Iterator[Callable[[str, float], Any]]:
    """A line for work with a share: told a name, a share, and numbers if the work has some."""
    with waiting(name) as line:

        def tell(name: str, share: float) -> None:
            show(line, share, printable(name).plain, getattr(share, "now", None))

        yield tell


def waiting(name: str) -> Line:
    """A line for work without a share, which is written if the work takes long."""
    return Line(quiet=_quiet.get(), name=name)
