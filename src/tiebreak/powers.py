"""Laws of the step number k = 0, 1, …: powers of t = k + 1, which the theory is made of, and powers with a cap."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

from tiebreak.checks import floating

#: Any function of k.
Law: TypeAlias = Callable[[int], float]


@dataclass(frozen=True)
class Power:
    """The law c · t^e, t = k+1; with a `start`, c until t is so large and c · (t/start)^e from there, up to a `stop`.

    Examples
    --------
    >>> Power(0.5, -0.25)(15)
    0.25
    >>> [Power(3.0, 1, start=10, stop=30)(k) for k in (0, 9, 19, 99)]
    [3.0, 3.0, 6.0, 9.0]
    """

    constant: float
    exponent: float = 0.0
    start: float = 1.0
    stop: float | None = None

    def __post_init__(self) -> None:
        for name in ("constant", "exponent", "start", "stop"):
            value = getattr(self, name)
            if not (name == "stop" and value is None):
                _check_finite(f"{name}={value!r} of a power law", value)
        if self.start < 1:
            raise ValueError(
                f"start={self.start!r} of a power law must be ≥ 1: the step, from 1 on, where it begins"
            )
        if self.stop is not None and self.stop < self.start:
            raise ValueError(
                f"stop={self.stop!r} of a power law must be ≥ start={self.start!r}"
            )

    def __call__(self, k: int) -> float:
        if self.start != 1 or self.stop is not None:
            t = min(k + 1, self.stop or math.inf)
            return float(self.constant * max(1.0, t / self.start) ** self.exponent)
        value = float(self.constant * (k + 1) ** self.exponent)
        if self.constant != 1 or self.exponent <= 0 or not math.isfinite(value):
            return value
        # 32^2.8 is 2^14, though 2.8 is no float: a whole power is given as a whole number, for floors.
        nearest = round(value)
        ratio = self._ratio
        if ratio is None or not 0 < abs(value - nearest) <= 1e-13 * nearest:
            return value
        if nearest**ratio.denominator == (k + 1) ** ratio.numerator:
            return float(nearest)
        return value

    def values(self, start: int, count: int) -> list[float]:
        """The law at the steps `start`, …, `start` + `count` − 1, bit for bit as one by one, in less time.

        >>> Power(1, 2.5).values(2, 3) == [Power(1, 2.5)(k) for k in (2, 3, 4)]
        True
        """
        constant = self.constant
        exponent = self.exponent
        if exponent == 0:
            return [float(constant)] * count
        if self.start != 1 or self.stop is not None:
            return [self(k) for k in range(start, start + count)]
        values = [constant * t**exponent for t in range(start + 1, start + count + 1)]
        if not (type(constant) is type(exponent) is float):
            values = list(map(float, values))
        if constant != 1 or exponent <= 0 or exponent == 1:
            return values
        # Only a value next to a whole number can be a whole power.
        for i, value in enumerate(values):
            fraction = value % 1.0
            if fraction and not 1e-12 * value < fraction < 1 - 1e-12 * value:
                values[i] = self(start + i)
        return values

    @cached_property
    def _ratio(self) -> Fraction | None:
        """The exponent as a fraction p/q with q ≤ 64; None if it is no such fraction."""
        near = Fraction(self.exponent).limit_denominator(64)
        if self.exponent > 0 and abs(float(near) - self.exponent) <= 1e-15 * (
            1 + self.exponent
        ):
            return near
        return None

    def __repr__(self) -> str:
        more = ""
        if self.start != 1:
            more += f", start={self.start!r}"
        if self.stop is not None:
            more += f", stop={self.stop!r}"
        return f"Power(constant={self.constant!r}, exponent={self.exponent!r}{more})"

    def __str__(self) -> str:
        if self.exponent == 0:
            return f"{self.constant:g}"
        t = "t"
        if self.stop is not None:
            t = f"min(t, {self.stop:g})"
        if self.start != 1:
            t = f"max(1, {t}/{self.start:g})"
        return f"{self.constant:g}·{t}^{self.exponent:g}"


@dataclass(frozen=True)
class Capped:
    """A law that never exceeds a number, such as a batch that grows until it is the whole sum.

    Examples
    --------
    >>> law = Capped(Power(1, 2), 50)
    >>> law(3), law(9), str(law)
    (16.0, 50.0, 'min(1·t^2, 50)')
    """

    law: Law
    largest: float

    def __post_init__(self) -> None:
        if not callable(self.law):
            raise TypeError(
                f"law={self.law!r} must be a function of the step k, such as Power(1, 2)"
            )
        _check_finite(f"largest={self.largest!r} of a capped law", self.largest)

    def __call__(self, k: int) -> float:
        try:
            return float(min(self.law(k), self.largest))
        except OverflowError:  # a power beyond floats exceeds the cap
            return float(self.largest)

    def __str__(self) -> str:
        return f"min({self.law}, {self.largest:g})"


def _check_finite(subject: str, value: Any) -> None:
    number = hasattr(value, "__float__") and not isinstance(value, (bool, str))
    if not number or not math.isfinite(floating(value)):
        raise ValueError(f"{subject} must be a finite number")
