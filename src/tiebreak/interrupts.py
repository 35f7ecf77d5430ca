"""Ctrl-C and SIGTERM between steps instead of within one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def interrupts(terminations: bool = False) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a question that the loop asks after each step; the second interrupts at once.

    With `terminations` SIGTERM is taken likewise, for a loop that has something to save: when it has done so, the
    program ends with code 143, what shells expect of one that SIGTERM ended.
    """
    signalled = 0

    def note(number: int, *_: Any) -> None:
        nonlocal signalled
        if signalled:
            raise KeyboardInterrupt
        signalled = number

    with ExitStack() as handled:
        handled.enter_context(_handled(signal.SIGINT, signal.default_int_handler, note))
        if terminations:
            handled.enter_context(_handled(signal.SIGTERM, signal.SIG_DFL, note))
        yield lambda: signalled > 0
    if signalled == signal.SIGTERM:
        raise SystemExit(128 + signalled)


@contextmanager
def terminations() -> Iterator[None]:
    """SIGTERM ends the program as an exception would, with code 143, so that whatever is open is closed."""

    def end(number: int, *_: Any) -> None:
        raise SystemExit(128 + number)

    with _handled(signal.SIGTERM, signal.SIG_DFL, end):
        yield


@contextmanager
def _handled(number: int, default: Any, handler: Callable[..., None]) -> Iterator[None]:
    """Handle a signal, if we may: only the main thread may, and only the default handler is ours to replace."""
    replaceable = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is default
    )
    if replaceable:
        signal.signal(number, handler)
    try:
        yield
    finally:
        if replaceable:
            signal.signal(number, default)
