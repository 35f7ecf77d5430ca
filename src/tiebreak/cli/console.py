"""What commands say and understand: results on standard output, everything else on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiebreak.experiments import Outcome
from tiebreak.experiments.report import notes, sheets

__all__ = ["INTERRUPTED", "kindly", "number", "numbers", "say", "show"]

#: What shells expect of a program that Ctrl-C ended.
INTERRUPTED = 130


def say(text: str) -> None:
    """Print a line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))


def _fail(text: str) -> NoReturn:
    say(f"tiebreak: {text}")
    raise typer.Exit(2)


@contextmanager
def kindly() -> Iterator[None]:
    """Bad values, and files that cannot be read or written, end the command with a line instead of a traceback."""
    try:
        yield
    except ValueError as error:
        _fail(str(error))
    except OSError as error:
        place = "a file" if error.filename is None else repr(str(error.filename))
        _fail(f"{place} cannot be read or written: {error.strerror or error}")
    except MemoryError:
        _fail("there is not enough memory; ask for fewer --runs, or for a sparser --record")


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
    found = [number(part) for part in text.split(",")]
    return text if any(isinstance(part, str) for part in found) else found


def show(outcome: Outcome) -> None:
    """Print the summary: tables and notes."""
    console = Console(highlight=False)
    for sheet in sheets(outcome):
        console.print(f"[bold]{escape(sheet.title)}[/]")
        table = Table(box=None, pad_edge=False, header_style="dim")
        for i, name in enumerate(sheet.header):
            table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print()
    for text in notes(outcome):
        console.print(f"• {escape(text)}", style="dim")
