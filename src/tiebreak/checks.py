"""Checks that several modules make of their arguments."""

import math
from collections.abc import Iterable
from typing import Any


def floating(value: Any) -> float:
    """A number as a float: infinite where a whole number is too large for one, which whoever knows the range refuses.

    Examples
    --------
    >>> floating(10**400), floating(3)
    (inf, 3.0)
    """
    try:
        return float(value)
    except OverflowError:
        if value > 0:
            return math.inf
        return -math.inf


def nonnegative(name: str, value: Any, positive: bool = False) -> None:
    """Raise unless `value` is a finite number ≥ 0, or > 0 if `positive`."""
    number = math.nan if isinstance(value, (bool, str)) else floating(value)
    if not 0 <= number < math.inf or (positive and number == 0):
        raise ValueError(
            f"{name}={value!r} must be finite and {'> 0' if positive else '≥ 0'}"
        )


def positive_pair(name: str, value: Any) -> tuple[float, float]:
    """Two finite numbers > 0, from a pair or from a number that stands for both.

    Examples
    --------
    >>> positive_pair("epsilon", 0.1)
    (0.1, 0.1)
    """
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or any(
        isinstance(item, (bool, str)) or not 0 < floating(item) < math.inf
        for item in pair
    ):
        raise ValueError(
            f"{name}={value!r} must be finite and > 0, or a pair of such numbers"
        )
    return float(pair[0]), float(pair[1])


def whole(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int, if it is a whole number ≥ `least` (1e8 is one).

    Examples
    --------
    >>> whole("budget", 1e8)
    100000000
    """
    try:
        number = int(value)
        if isinstance(value, (bool, str)) or number != value or number < least:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r} must be a whole number ≥ {least}") from None
    return number


def one_of(name: str, value: Any, legal: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the words that are legal."""
    if not isinstance(value, str) or value not in legal:
        raise ValueError(
            f"{name}={value!r} must be one of {', '.join(map(repr, legal))}{nearest(value, legal)}"
        )


def nearest(word: Any, legal: Iterable[str]) -> str:
    """A question to add to an error, where a legal word is spelt much like this one, or continues it.

    Examples
    --------
    >>> nearest("sdgbd", ("sdbgd", "penalty")), nearest("adam", ("sdbgd", "penalty"))
    ("; did you mean 'sdbgd'?", '')
    """
    from difflib import get_close_matches  # needed in errors alone

    if not isinstance(word, str):
        return ""
    alike = get_close_matches(word.lower(), legal, cutoff=0.75)
    alike.sort(key=lambda other: not other.startswith(word.lower()))
    if alike:
        return f"; did you mean {alike[0]!r}?"
    return ""


def install(extra: str) -> str:
    """What brings an extra: from a clone, as long as nothing is released.

    Examples
    --------
    >>> install("torch")
    'pip install ".[torch]" in a clone of tiebreak'
    """
    return f'pip install ".[{extra}]" in a clone of tiebreak'
