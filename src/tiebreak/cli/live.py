"""The line that shows how a long command is going."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from tiebreak.cli.console import INTERRUPTED, hushed, say
from tiebreak.progress import Line, show


@contextmanager
def bar(first: str = "Starting") -> Iterator[Callable[[str, float], Any]]:
    """A line for all that is done: told a name and a share, and what a solver told where it did; before, `first`."""
    with Line(quiet=hushed(), name=first) as line:
        yield lambda name, share: show(line, share, name, getattr(share, "now", None))


def waiting(what: str) -> Line:
    """A line for something that has no share: it is written if that takes longer than may be silent."""
    return Line(quiet=hushed(), name=what)


@contextmanager
def before_writing() -> Iterator[None]:
    """Ctrl-C in work that has left nothing behind ends the command, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        say("Interrupted; nothing was written.")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def loading(what: str) -> Iterator[None]:
    """A line for a library that is slow to load, before anything is run."""
    with before_writing(), waiting(f"Loading {what}"):
        yield
