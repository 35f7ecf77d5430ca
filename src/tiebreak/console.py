"""The console: a line of progress, and Ctrl-C between steps instead of within one."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["Progress", "interrupts", "progress_line"]


class Progress(NamedTuple):
    """What a progress function is told, between blocks of steps."""

    steps: int
    calls: int
    fraction: float


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a question that the loop asks after each step; the second interrupts at once."""
    asked = False

    def note(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    # Only the main thread may, and only the default handler is ours to replace.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def progress_line() -> Iterator[Callable[[Progress], None]]:
    """A line on standard error that is written again as the run goes on."""
    last = 0.0

    def show(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 0.1 or now.fraction >= 1:
            last = time.monotonic()
            print(
                f"\r{now.fraction:7.1%}  step {now.steps:,}  {now.calls:,} calls", end="", file=sys.stderr, flush=True
            )

    try:
        yield show
    finally:
        print(file=sys.stderr)
