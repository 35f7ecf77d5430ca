"""Selections on scalars by arithmetic and comparisons alone, for every array library.

Multiplying by a comparison selects exactly in Python, NumPy, torch, JAX and the tracer of the Triton kernels. Numbers
of the result's type are made as ``0 * value + number``: torch would make float32 of a number times a comparison.
"""

from tiebreak.rules import Scalar


def at_least(value: Scalar, bound: Scalar) -> Scalar:
    """The value, or the bound if the value is smaller.

    Examples
    --------
    >>> at_least(2.0, 3.0), at_least(4.0, 3.0)
    (3.0, 4.0)
    """
    return value * (value > bound) + (0 * value + bound) * (value <= bound)


def at_most(value: Scalar, bound: Scalar) -> Scalar:
    """The value, or the bound if the value is larger."""
    return value * (value < bound) + (0 * value + bound) * (value >= bound)


def larger(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two values of one type."""
    return a * (a >= b) + b * (a < b)


def smaller(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two values of one type."""
    return a * (a <= b) + b * (a > b)


def positive(value: Scalar) -> Scalar:
    """The value, or 0 if it is negative."""
    return value * (value > 0)


def clip(value: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """The value, or the nearer bound if it lies outside."""
    return at_most(at_least(value, low), high)


def magnitude(value: Scalar) -> Scalar:
    """The absolute value."""
    return value * (value > 0) - value * (value < 0)


def quotient(value: Scalar, divisor: Scalar) -> Scalar:
    """The quotient, or 0 if the divisor is 0.

    Examples
    --------
    >>> quotient(1.0, 2.0), quotient(1.0, 0.0)
    (0.5, 0.0)
    """
    return value * (divisor != 0) / (divisor + (divisor == 0))


def indicator(like: Scalar, condition: Scalar) -> Scalar:
    """1 where the condition holds and 0 elsewhere, in the type of `like`."""
    return (0 * like + 1) * condition
