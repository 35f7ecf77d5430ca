"""A decision as one kernel: its arithmetic is written down once, from its own source, and compiled by Triton.

Rules and laws are arithmetic and comparisons on scalars. Called with :class:`Traced` numbers they leave a list of
operations behind, in the order in which Python made them. As torch operations these are hundreds of launches a step; as
a kernel they are one. Nothing is written twice: the formula is the one that NumPy, JAX and the host use.
"""

import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import triton
import triton.language as tl


class Writer:
    """The operations so far, as lines of Triton."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[str, str] = {}

    def new(self, text: str, truth: bool = False) -> "Traced":
        """The result of an operation."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Traced(self, name, truth)

    def read(self, pointer: str) -> "Traced":
        """A number from memory, in float64."""
        return self.new(f"tl.load({pointer}).to(tl.float64)")

    def true(self) -> "Traced":
        """A truth that holds."""
        return self.new("tl.full((), 1, tl.int1)", truth=True)

    def select(self, condition: "Traced", one: Any, other: Any) -> "Traced":
        """One where the condition holds, else the other: not by a product, which would keep what is no number."""
        return self.new(
            f"tl.where({condition.name}, {self.text(one)}, {self.text(other)})"
        )

    def text(self, value: Any) -> str:
        """A number as it stands in an operation; truths count as 0 and 1, as everywhere."""
        if isinstance(value, Traced):
            return f"{value.name}.to(tl.float64)" if value.truth else value.name
        if not isinstance(value, Real):
            raise TypeError(f"{value!r} is no number that a kernel can work with")
        number = repr(float(value))
        if (
            number not in self._constants
        ):  # made a float64 by name: Triton would round a bare literal to float32
            self._constants[number] = self.new(
                f"tl.full((), float({number!r}), tl.float64)"
            ).name
        return self._constants[number]


class Traced:
    """A number that is known on the device only; what is done with it is written down.

    It cannot be asked whether it is true: a rule with an ``if`` is no arithmetic.
    """

    __hash__ = None  # type: ignore[assignment]  # equality makes a number, not a truth

    def __init__(self, writer: Writer, name: str, truth: bool = False) -> None:
        self.writer, self.name, self.truth = writer, name, truth

    def __bool__(self) -> bool:
        raise TypeError(
            "a number on the device is neither true nor false yet: a rule has no `if`"
        )

    def _made(self, operator: str, other: Any, swapped: bool = False) -> "Traced":
        a, b = self.writer.text(self), self.writer.text(other)
        return self.writer.new(
            f"{b} {operator} {a}" if swapped else f"{a} {operator} {b}",
            operator in _COMPARISONS,
        )

    def __add__(self, other: Any) -> "Traced":
        return self._made("+", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Traced":
        return self._made("-", other)

    def __rsub__(self, other: Any) -> "Traced":
        return self._made("-", other, swapped=True)

    def __mul__(self, other: Any) -> "Traced":
        return self._made("*", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Traced":
        return self._made("/", other)

    def __rtruediv__(self, other: Any) -> "Traced":
        return self._made("/", other, swapped=True)

    def __gt__(self, other: Any) -> "Traced":
        return self._made(">", other)

    def __lt__(self, other: Any) -> "Traced":
        return self._made("<", other)

    def __ge__(self, other: Any) -> "Traced":
        return self._made(">=", other)

    def __le__(self, other: Any) -> "Traced":
        return self._made("<=", other)

    def __eq__(self, other: Any) -> "Traced":  # type: ignore[override]  # a number, not a truth
        return self._made("==", other)

    def __ne__(self, other: Any) -> "Traced":  # type: ignore[override]  # a number, not a truth
        return self._made("!=", other)

    def __neg__(self) -> "Traced":
        return self.writer.new(f"-{self.writer.text(self)}")

    def __pow__(self, power: Any) -> "Traced":
        if isinstance(power, (int, float)) and power == 0.5:
            return self.writer.new(f"tl.sqrt({self.writer.text(self)})")
        if isinstance(power, (int, float)) and power in range(
            5
        ):  # a base of 0 is allowed, too
            product = self if power else 0 * self + 1
            for _ in range(int(power) - 1):
                product = product * self
            return product
        return _power(self.writer, self, power)

    def __rpow__(self, base: Any) -> "Traced":
        return _power(self.writer, base, self)


def _power(writer: Writer, base: Any, power: Any) -> Traced:
    """Of a base above 0, as the laws have it; else no number, which the guard sees."""
    return writer.new(f"tl.exp(tl.log({writer.text(base)}) * {writer.text(power)})")


_COMPARISONS = {">", "<", ">=", "<=", "==", "!="}


def finite(values: Sequence[Any]) -> Any:
    """Whether all are: a truth, traced."""
    fine = values[0] - values[0] == 0
    for value in values[1:]:
        fine = fine * (value - value == 0) != 0
    return fine


def kernel(
    name: str, pointers: Sequence[str], body: Callable[[Writer], Mapping[str, Any]]
) -> Any:
    """A Triton kernel with these pointers as arguments.

    Parameters
    ----------
    body : callable
        ``body(writer)`` computes with :class:`Traced` numbers, and returns what is to be stored: place → number, a
        place being an expression such as ``"out + 3"``.
    """
    writer = Writer()
    stores = [
        f"tl.store({place}, {writer.text(value)})"
        for place, value in body(writer).items()
    ]
    source = f"def {name}({', '.join(pointers)}):\n" + "".join(
        f"    {line}\n" for line in (*writer.lines, *stores)
    )
    file = f"<tiebreak {name} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        file,
    )  # Triton reads the source
    scope: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(source, file, "exec"), scope)
    return triton.jit(scope[name], do_not_specialize=list(pointers))
