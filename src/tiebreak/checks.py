"""Checks that several modules make of their arguments."""

import math
from typing import Any

__all__ = ["one_of", "tolerated", "whole"]


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


def tolerated(tolerance: Any, reference: Any) -> tuple[float, bool]:
    """A tolerance as a number, and whether it is relative to the reference; both checked.

    Examples
    --------
    >>> tolerated("2%", None), tolerated(0.01, 0.5)
    ((0.02, True), (0.01, False))
    """
    text = str(tolerance).strip()
    relative = text.endswith("%")
    try:
        amount = float(text.removesuffix("%")) / (100 if relative else 1)
    except ValueError:
        amount = math.nan
    if isinstance(tolerance, bool) or not 0 <= amount < math.inf:
        raise ValueError(f'tolerance={tolerance!r} must be a number ≥ 0, or a share such as "2%"')
    if reference is not None and not math.isfinite(reference):
        raise ValueError(f"reference={reference!r} must be finite, or None for the best loss so far")
    return amount, relative


def one_of(name: str, value: Any, legal: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the words that are legal."""
    if value not in legal:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, legal))}")
