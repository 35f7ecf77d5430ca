"""Checks that several modules make of their arguments."""

from typing import Any

__all__ = ["one_of", "whole"]


def whole(name: str, value: Any) -> int:
    """`value` as an int, if it is a whole number ≥ 1 (1e8 is one).

    Examples
    --------
    >>> whole("budget", 1e8)
    100000000
    """
    try:
        number = int(value)
        if isinstance(value, (bool, str)) or number != value or number < 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r} must be a whole number ≥ 1") from None
    return number


def one_of(name: str, value: Any, legal: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the words that are legal."""
    if value not in legal:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, legal))}")
