"""What commands say and understand: results on standard output, everything else on standard error."""

import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar, get_type_hints

import rich.console
import typer
from rich.markup import escape
from rich.table import Table
from typer.models import ArgumentInfo, OptionInfo

from tiebreak.experiments.tables import Sheet, fitted
from tiebreak.experiments.tasks import SweepError

#: What shells expect of a program that Ctrl-C ended.
INTERRUPTED = 130
_TERMINATED = 143  # by SIGTERM
_NO_READER = 141  # by SIGPIPE


_Command = TypeVar("_Command", bound=Callable[..., Any])
_PLACES = {"place": "", "name": ""}  # what has no option, whatever the command calls it
_words: ContextVar[dict[str, str]] = ContextVar(
    "_words"
)  # of the command that runs, by Python's names
_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)


def hushed() -> bool:
    """Whether the command that runs has ``--quiet``."""
    return _quiet.get()


class Console(rich.console.Console):
    """A console that ends the command without a word where nobody reads its results any more, as `head` does.

    Remarks that nobody reads end nothing: the work goes on, and its files are written.
    """

    def on_broken_pipe(self) -> None:
        """Write nothing more, not even what Python would when it ends."""
        self.quiet = True
        broken = sys.stderr if self.stderr else sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())
        if not self.stderr:
            raise SystemExit(_NO_READER)


def say(text: str, always: bool = False) -> None:
    """Print a line on standard error; with ``--quiet`` only what must be said `always`."""
    if hushed() and not always:
        return
    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))


def _fail(text: str) -> NoReturn:
    say(f"tiebreak: {text}", always=True)
    raise typer.Exit(2)


def spoken(command: _Command) -> _Command:
    """A command that knows ``--quiet``, and whose errors name options as they are typed: ``--budget 0``."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        words = _words.set(_typed(command))
        quiet = _quiet.set(kwargs.get("quiet", False))
        try:
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
                typed[name] = (
                    long[0] if long else f"--{name.strip('_').replace('_', '-')}"
                )
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
        return (
            f"no {word}"
            if value == "None"
            else f"{word} {value.strip(chr(39) + chr(34)) or value}"
        )

    names = "|".join(map(re.escape, words)) or "(?!)"
    values = r"""'[^']*'|"[^"]*"|[^\s,:;'"]+"""
    return re.sub(rf"(?<![\w.'\"-])(?P<name>{names})=(?P<value>{values})", said, text)


@contextmanager
def kindly() -> Iterator[None]:
    """Bad values, and files that cannot be read or written, end the command with a line instead of a traceback."""
    try:
        yield
    except ValueError as error:
        _fail(_as_typed(str(error), _PLACES | _words.get({})))
    except OSError as error:
        place = "a file" if error.filename is None else repr(str(error.filename))
        _fail(f"{place} cannot be read or written: {error.strerror or error}")
    except SweepError as error:
        _fail(
            f"{error}; finished blocks are kept, and the same command goes on from there"
        )
    except SystemExit as end:
        if end.code == _TERMINATED:
            say(
                "tiebreak: terminated; finished blocks are kept, and the same command goes on from there",
                always=True,
            )
        raise
    except (
        KeyboardInterrupt
    ):  # where nothing more can be said of it: while something is loaded, say
        say("Interrupted.")
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
    return text if any(isinstance(part, str) for part in parts) else parts


def completing(*names: str) -> Callable[[str], list[str]]:
    """What the Tab key offers of an option that takes these names, also the last of several between commas.

    >>> completing("sdbgd", "sdbpg", "penalty")("auto,sd")
    ['auto,sdbgd', 'auto,sdbpg']
    """

    def offered(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return offered


def _cut(sheets: Iterable[Sheet], prose: Collection[str], room: int) -> Iterator[Sheet]:
    """Tables of numbers that are wider than the screen turned or in parts; words are folded instead."""
    for sheet in sheets:
        yield from (
            [sheet]
            if any(name in prose for name in sheet.header[1:])
            else fitted(sheet, room)
        )


def show_sheets(
    sheets: Iterable[Sheet], notes: Iterable[str] = (), prose: Collection[str] = ()
) -> None:
    """Print tables, and notes below them; the columns named in `prose` hold words, to the left."""
    console = Console(highlight=False)
    if (
        not console.is_terminal
    ):  # a file or a pipe has no width; rich would assume little
        console.width = max(console.width, 120)
    for sheet in _cut(sheets, prose, console.width):
        console.print(f"[bold]{escape(sheet.title)}[/]")
        table = Table(
            box=None, pad_edge=False, header_style="dim", show_header=any(sheet.header)
        )
        for i, name in enumerate(sheet.header):
            table.add_column(
                name,
                justify="left" if i == 0 or name in prose else "right",
                overflow="fold",
            )
        for row in sheet.rows:
            table.add_row(
                *(f"[red]{cell}[/]" if cell == "FAIL" else escape(cell) for cell in row)
            )
        console.print(table)
        console.print()
    for text in notes:
        console.print(f"• {escape(text)}", style="dim")
