"""Generated input: how much of it, what is nasty, and what may come of it.

CI takes a few thousand inputs, the same ones every time. ``make fuzz`` sets TIEBREAK_FUZZ to the number of inputs in
all, which are then new ones every time; a failure prints how to repeat it.
"""

import ast
import copy
import faulthandler
import functools
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import strategies as st

import tiebreak

PACKAGE = Path(tiebreak.__file__).parent
KINDS = (
    ValueError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    OSError,
)  # what our sentences come in

_ALL = int(os.environ.get("TIEBREAK_FUZZ", "0"))
_SLOW = (
    120  # seconds that one input may take, on a machine that does other things besides
)


def inputs(share: float, short: int) -> settings:
    """Settings for this share of all inputs of ``make fuzz``; `short` of them in CI, always the same ones there."""
    checks = [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ]
    checks += [HealthCheck.function_scoped_fixture, HealthCheck.large_base_example]
    return settings(
        max_examples=max(1, round(share * _ALL)) if _ALL else short,
        derandomize=not _ALL,
        deadline=None,
        database=None,
        print_blob=True,
        verbosity=Verbosity.normal,
        suppress_health_check=checks,
    )


class Hang(BaseException):
    """An input took too long."""


@contextmanager
def limited(seconds: float = _SLOW) -> Iterator[None]:
    """No hang: an alarm within, and the end of the process where not even that is heard."""

    def ring(*_: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ours(error: BaseException) -> bool:
    """Whether an exception is a sentence of the library's own: of a known kind, raised by a `raise` of its source.

    A file that cannot be opened is the system's to complain of, by its name.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.filename is not None or "'" in str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    sentence = len(str(error).split()) >= 4
    return (
        isinstance(error, KINDS)
        and sentence
        and _raises(frame.filename, frame.lineno or 0)
    )


def _raises(file: str, line: int) -> bool:
    return PACKAGE in Path(file).parents and any(
        first <= line <= last for first, last in _places(file)
    )


@functools.cache
def _places(file: str) -> list[tuple[int, int]]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return [
        (n.lineno, n.end_lineno or n.lineno)
        for n in ast.walk(tree)
        if isinstance(n, ast.Raise) and n.exc
    ]


@contextmanager
def only_ours(seconds: float = _SLOW) -> Iterator[list[BaseException]]:
    """Within, nothing goes wrong but with a sentence of ours; it is in the list then."""
    said: list[BaseException] = []
    with limited(seconds):
        try:
            yield said
        except Exception as error:
            if not ours(error):
                raise
            said.append(error)


# --- what is nasty ----------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, -1, 2, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400]
NUMBERS += [0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan]
WORDS = [
    "",
    " ",
    "0",
    "nan",
    "inf",
    "-1",
    "1e400",
    "sdbgd",
    "\0",
    "é∇\u202e",
    "\ud800",
    "../x",
    "%s{}",
    "[red]",
    "x" * 5000,
]
VALUES: list[Any] = [
    *NUMBERS,
    *WORDS[:-1],
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": None},
    [0.5, "x"],
    {"value": [1]},
]


DEEP = "a list in a list in a list"


def as_json(value: Any) -> str:
    """Plain data as JSON; where it says DEEP there are so many lists in one another that few can go through them."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 900 + "]" * 900)


def nasty() -> st.SearchStrategy[Any]:
    """A value that does not belong where it is put."""
    return st.one_of(
        st.sampled_from(VALUES).map(copy.deepcopy),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.just(DEEP),
    )


@st.composite
def mangled(draw: st.DrawFn, value: Any, values: Any = None) -> Any:
    """Plain data with one to three places changed: replaced, removed, doubled, renamed, or moved."""
    found = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        found = _mangled_once(draw, found, nasty() if values is None else values)
    return found


def _mangled_once(draw: st.DrawFn, value: Any, values: Any) -> Any:
    if (
        not isinstance(value, (dict, list, tuple))
        or not value
        or draw(st.integers(0, 9)) == 0
    ):
        return draw(values)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    new: Any = dict(value) if isinstance(value, dict) else list(value)
    what = draw(
        st.sampled_from(
            ["into", "into", "into", "replace", "remove", "double", "rename"]
        )
    )
    if what == "into":
        new[key] = _mangled_once(draw, value[key], values)
    elif what == "replace":
        new[key] = draw(values)
    elif what == "remove":
        del new[key]
    elif isinstance(new, dict):
        name = draw(st.sampled_from([*WORDS, 0, *map(str, keys)]))
        new[name] = new[key] if what == "double" else new.pop(key)
    else:
        new.insert(0, copy.deepcopy(new[key]))
        if what == "rename":
            new.pop()
    return new


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A file's bytes with one to four of them flipped, or with a piece cut, doubled, replaced or put in."""
    size = len(content)
    at = draw(st.integers(0, size))
    length = draw(st.one_of(st.integers(0, 16), st.integers(0, size)))
    kind = draw(
        st.sampled_from(
            [
                "flip",
                "flip",
                "flip",
                "cut",
                "end",
                "double",
                "replace",
                "insert",
                "other",
            ]
        )
    )
    if kind == "flip":
        found = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            if found:
                found[draw(st.integers(0, size - 1))] ^= 1 << draw(st.integers(0, 7))
        return bytes(found)
    if kind == "cut":
        return content[:at] + content[at + length :]
    if kind == "end":
        return content[:at]
    if kind == "double":
        return content[: at + length] + content[at:]
    piece = draw(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([w.encode("utf-8", "replace") for w in WORDS]),
        )
    )
    if kind == "replace":
        return content[:at] + piece + content[at + len(piece) :]
    return content[:at] + piece + content[at:] if kind == "insert" else piece
