"""Checks that several modules make of their arguments."""

from typing import Any

__all__ = ["whole"]


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
