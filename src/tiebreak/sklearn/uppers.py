"""What breaks the tie: upper objectives by name, and functions of one's own.

A function gets what it asks for by name, the first of `scores`, `probabilities` and `coef` decides what it is a
function of, and it returns a value and the gradient for that.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tiebreak.checks import one_of
from tiebreak.sklearn.descent import Values

__all__ = ["UPPERS", "asks", "between", "checked", "l1", "l2"]

_MODEL = ("scores", "probabilities", "coef")  # what a function of one's own may be a function of
_DATA = ("X", "y", "groups", "sample_weight")  # and what it may know besides


def l2(weights: list[Values]) -> tuple[float, list[Values]]:
    """Half the sum of squared weights."""
    return sum(float((w**2).sum()) for w in weights) / 2, weights


def l1(weights: list[Values], width: float) -> tuple[float, list[Values]]:
    """The sum of √(w² + width²) − width: the sizes of the weights, round at 0."""
    if width == 0:
        return sum(float(np.abs(w).sum()) for w in weights), [np.sign(w) for w in weights]
    roots = [np.sqrt(w**2 + width**2) for w in weights]
    return sum(float((r - width).sum()) for r in roots), [w / r for w, r in zip(weights, roots, strict=True)]


def between(values: Values, parts: Values, weights: Values) -> tuple[float, Values]:
    """The variance between parts of the mean value, and its gradient; columns are summed.

    Parameters
    ----------
    values : array, n × columns
    parts : array of int, n
        The part of each row, 0, 1, …
    weights : array
        A weight for each row.

    Examples
    --------
    Means of 1 and 3, as heavy as each other: a variance of 1.

    >>> between(np.array([[0.0], [2.0], [3.0]]), np.array([0, 0, 1]), np.array([1.0, 1.0, 2.0]))[0]
    1.0
    """
    count = int(parts.max()) + 1
    share = np.bincount(parts, weights, count)
    present = share > 0
    inverse = np.where(present, 1 / np.where(present, share, 1), 0)
    means = np.stack([np.bincount(parts, weights * column, count) * inverse for column in values.T], axis=1)
    share = share / share.sum()
    apart = means - share @ means
    gradient = 2 * (share * inverse)[parts][:, None] * weights[:, None] * apart[parts]
    return float(share @ (apart**2).sum(axis=1)), gradient


#: By name, with what each asks of `fit`.
UPPERS: Mapping[str, tuple[str, ...]] = {"l2": (), "l1": (), "parity": ("groups",), "odds": ("groups", "y")}


def asks(upper: Any, *, labels: bool) -> tuple[str, ...]:
    """What an upper objective asks for, by name; raises where it is none. `labels`: whether it is for a classifier."""
    if not callable(upper):
        one_of("upper", upper, tuple(name for name in UPPERS if labels or name != "odds"))
        return UPPERS[upper]
    names = tuple(inspect.signature(upper).parameters)
    legal = tuple(n for n in (*_MODEL, *_DATA) if labels or n != "probabilities")
    if sum(name in _MODEL for name in names) != 1 or not set(names) <= set(legal):
        name = getattr(upper, "__name__", type(upper).__name__)
        models = " or ".join(n for n in _MODEL if n in legal)
        raise ValueError(f"upper={name} has the arguments {names!r}; it must have {models}, and may have {_DATA!r}")
    return names


def checked(upper: Callable[..., Any], at: Values, given: Mapping[str, Any]) -> tuple[float, Values]:
    """A function of one's own at a point: a value, and a gradient of the point's shape."""
    name = getattr(upper, "__name__", type(upper).__name__)
    try:
        value, gradient = upper(**given)
        found = float(value), np.asarray(gradient, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"upper={name} must return a value and its gradient: {error}") from error
    if found[1].shape != at.shape:
        raise ValueError(f"upper={name} returned a gradient of shape {found[1].shape}; it must be {at.shape}")
    return found
