"""Measuring along the way: exact gradients, never charged, never seen by the method.

Recorded iterates are kept by reference and measured together, a block at a time: for a vectorized problem the whole
history costs a few array operations.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.result import MEASURES
from tiebreak.schedules import Parameters
from tiebreak.solver.objective import Level
from tiebreak.stationarity import dot, residuals

Columns = dict[str, NDArray[Any]]

_PER_DECADE = 50
_TOGETHER = 64  # iterates that are measured at once
_MANY = 2**16  # numbers that may wait for that
_RARELY = 19  # times as long as a look took, until the next one


def wanted(
    record: str | int | tuple[int, ...] | None,
    first: int,
    count: int,
    spent: Sequence[int] = (),
) -> list[bool]:
    """Which of `count` steps are recorded: every n-th, none, or about 50 a decade (and each of the first twenty).

    Of given call counts: if x_k is the last iterate that one of them pays for. `spent` are the calls before each of
    these steps, and after the last of them.

    Examples
    --------
    >>> [k for k, chosen in enumerate(wanted("log", 0, 100)) if chosen][-5:]
    [83, 87, 91, 95, 99]
    >>> wanted((100, 1000), 7, 2, (90, 100, 110))
    [False, True]
    """
    steps = range(first, first + count)
    if record is None:
        return [False] * count
    if isinstance(record, tuple):
        return [
            later > earlier
            for earlier, later in pairwise(
                bisect_left(record, calls) for calls in spent
            )
        ]
    if isinstance(record, int):
        return [k % record == 0 for k in steps]
    marks = [
        math.floor(_PER_DECADE * math.log10(k)) if k else -1
        for k in (*steps, first + count)
    ]
    return [later > earlier for earlier, later in pairwise(marks)]


class Measurer:
    """Evaluates residuals and values at any iterates, as far as the oracles can tell."""

    def __init__(self, method: Method, upper: Level, lower: Level) -> None:
        self.method = method
        self.upper = upper
        self.lower = lower

    @property
    def known(self) -> tuple[str, ...]:
        """The measures that the oracles can tell."""
        values = {
            "lower_value": self.lower.has_value,
            "upper_value": self.upper.has_value,
        }
        both = self.lower.has_exact and self.upper.has_exact
        single = values | {"lower_gradient_squared": self.lower.has_exact}
        return tuple(name for name in MEASURES if single.get(name, both))

    def __call__(
        self, x: Array, parameters: Sequence[Parameters], memory: Sequence[Any] = ()
    ) -> Columns:
        """Measures of iterates (m, runs, dimension), with parameters for each of the m, or for each run where m = 1.

        `memory` is what a rule with a memory had remembered there, each (m, runs) or (runs,); it stays as it is.
        """
        columns: Columns = {}
        axis = (-1, 1) if len(parameters) == len(x) else (1, -1)
        with np.errstate(all="ignore"):
            if self.lower.has_value:
                columns["lower_value"] = self.lower.value(x)
            if self.upper.has_value:
                columns["upper_value"] = self.upper.value(x)
            if self.lower.has_exact:
                lower = self.lower.exact(x)
                columns["lower_gradient_squared"] = dot(lower, lower)
                if self.upper.has_exact:
                    each = [self.method.arguments(p) for p in parameters]
                    arguments: dict[str, Any] = {
                        n: np.array([a[n] for a in each]).reshape(axis) for n in each[0]
                    }
                    if "lower_value" in self.method.needs:
                        arguments["lower_value"] = columns["lower_value"]
                    upper = self.upper.exact(x)
                    if "ff" in self.method.needs:
                        arguments["ff"] = dot(upper, upper)
                    found = residuals(
                        upper,
                        lower,
                        lambda fg, gg: self.method.multiplier(
                            fg, gg, arguments, memory
                        ),
                    )
                    columns |= {
                        "direction_squared": found.direction_squared,
                        "stationarity_squared": found.stationarity_squared,
                    }
                    columns["exact_multiplier"] = found.multiplier
        return {name: columns[name] for name in MEASURES if name in columns}

    def at(
        self, x: Array, parameters: Sequence[Parameters], memory: Sequence[Any]
    ) -> Columns:
        """The measures of one iterate (runs, dimension)."""
        return {
            name: column[0]
            for name, column in self(x[None], parameters, memory).items()
        }


@dataclass(frozen=True)
class Record:
    """What a callback receives after a step; read-only.

    `x`, `multiplier` (the λ̂ just used) and the measures have a leading axis for the runs that are still going, `runs`,
    if runs were asked for. The measures are those of :class:`tiebreak.result.Point` (`direction_squared`,
    `lower_gradient_squared`, `stationarity_squared`, …), with exact gradients, evaluated only if they are asked for.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> def close(record):
    ...     return record.lower_gradient_squared < 0.5  # ends the run
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=10**4, seed=0, callback=close)
    >>> result.status.name, result.steps < 10**4
    ('CALLBACK', True)
    """

    step: int
    upper_calls: int
    lower_calls: int
    x: Array
    multiplier: Any
    parameters: Parameters
    runs: tuple[int, ...]
    _measurer: Callable[..., Columns]
    _rows: Array
    _single: bool

    @property
    def calls(self) -> int:
        """Calls of both levels, so far."""
        return self.upper_calls + self.lower_calls

    @cached_property
    def _measures(self) -> Mapping[str, Any]:
        measured = self._measurer(self._rows[None], [self.parameters])
        return {
            name: column[0, 0] if self._single else column[0]
            for name, column in measured.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._measures:
            raise AttributeError(
                f"{name!r} is not known here; known are {sorted(self._measures)}"
            )
        return self._measures[name]


class Recorder:
    """Collects the history."""

    def __init__(
        self,
        measurer: Measurer,
        runs: int,
        keep_iterates: bool,
        history: Columns | None = None,
    ) -> None:
        self._measurer = measurer
        self._runs = runs
        self._keep_iterates = keep_iterates
        self._blocks: list[Columns] = [history] if history else []
        self._pending: list[
            tuple[int, Parameters, int, int, Array, Array, tuple[Any, ...]]
        ] = []

    def add(
        self,
        parameters: Parameters,
        upper_calls: int,
        lower_calls: int,
        x: Array,
        multiplier: Array,
        memory: tuple[Any, ...] = (),
        in_force: Parameters | None = None,
    ) -> None:
        """Note an iterate, the cost of reaching it, the multiplier used there, and what the rule remembered before;
        measured at the next flush, with the parameters of the step that it starts, or with others, `in_force`."""
        measured = parameters if in_force is None else in_force
        self._pending.append(
            (parameters.k, measured, upper_calls, lower_calls, x, multiplier, memory)
        )

    def flush(self, alive: Sequence[int], steps: int, whole: bool = True) -> None:
        """Measure what was noted of the first `steps` steps; its rows are the runs `alive`.

        Unless the `whole` of it is wanted, a little of it may wait: measuring one iterate takes as long as measuring
        many.
        """
        self._pending = pending = [row for row in self._pending if row[0] < steps]
        if not pending or not (
            whole or len(pending) >= min(_TOGETHER, _MANY // pending[0][4].size)
        ):
            return
        self._pending = []
        made, parameters, upper_calls, lower_calls, iterates, multipliers, memories = (
            zip(*pending, strict=True)
        )
        x = np.stack(iterates)
        memory = [np.stack(column) for column in zip(*memories, strict=True)]
        columns = {"multiplier": np.stack(multipliers)} | self._measurer(
            x, parameters, memory
        )
        block: Columns = {
            name: self._widen(column, alive) for name, column in columns.items()
        }
        block["step"] = np.array(made, dtype=np.int64)
        block["upper_calls"] = np.array(upper_calls, dtype=np.int64)
        block["lower_calls"] = np.array(lower_calls, dtype=np.int64)
        if self._keep_iterates:
            block["x"] = self._widen(x, alive)
        self._blocks.append(block)

    def _widen(self, column: NDArray[Any], alive: Sequence[int]) -> NDArray[Any]:
        """A column for each run, NaN for those that do not go on."""
        if len(alive) == self._runs:
            return column
        wide = np.full(
            (len(column), self._runs, *column.shape[2:]), np.nan, dtype=column.dtype
        )
        wide[:, alive] = column
        return wide

    def _column(self, block: Columns, name: str) -> NDArray[Any]:
        """NaN where it was not known: an oracle of a resumed run may tell more than it did before."""
        return (
            block[name]
            if name in block
            else np.full((len(block["step"]), self._runs), np.nan)
        )

    def latest(self) -> tuple[float, float, float]:
        """λ, ‖d‖² and ‖∇g‖² at the newest recorded step, means over the runs that went on; NaN where unknown."""
        return means(
            {name: column[-1] for name, column in self._blocks[-1].items()}
            if self._blocks
            else {}
        )

    def history(self) -> Columns:
        """All that was recorded so far, joined."""
        if len(self._blocks) > 1:
            names = dict.fromkeys(name for block in self._blocks for name in block)
            self._blocks = [
                {
                    name: np.concatenate([self._column(b, name) for b in self._blocks])
                    for name in names
                }
            ]
        return dict(self._blocks[0]) if self._blocks else {}


class Glance:
    """The same three numbers of the newest iterate, where nothing is recorded: exact gradients, not charged.

    They may be dear. So they are looked at only so often that it takes a twentieth of the time; in between, those of
    the last look are given.
    """

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self._due = -math.inf
        self._found = (math.nan,) * 3

    def __call__(
        self, x: Array, multiplier: Any, parameters: Parameters, memory: Sequence[Any]
    ) -> tuple[float, ...]:
        """λ, ‖d‖² and ‖∇g‖² of the runs that go on, `x` and whatever is known of them."""
        began = time.monotonic()
        if began >= self._due:
            self._found = means(
                {"multiplier": multiplier} | self._measurer.at(x, [parameters], memory)
            )
            self._due = time.monotonic() + _RARELY * (time.monotonic() - began)
        return self._found


def start_values(start: Array, levels: Iterable[Level], runs: int) -> dict[str, Array]:
    """f and g where all runs begin, those of them that are known, as the columns of a record."""
    with np.errstate(all="ignore"):
        known = {
            level.name: level.value(start[None]) for level in levels if level.has_value
        }
    return {f"{name}_value": np.repeat(value, runs) for name, value in known.items()}


def means(columns: Mapping[str, Any]) -> tuple[float, float, float]:
    """λ, ‖d‖² and ‖∇g‖², means over what is finite; NaN where nothing is."""
    names = ("multiplier", "direction_squared", "lower_gradient_squared")
    rows = [np.asarray(columns.get(name, np.nan)) for name in names]
    first, second, third = (
        float(row[f].mean()) if (f := np.isfinite(row)).any() else math.nan
        for row in rows
    )
    return first, second, third


def fault(a: Array, b: Array, multiplier: np.float64) -> str:
    """What was not finite in a step whose iterate is not."""
    if not np.isfinite(a).all():
        return "the upper gradient is not finite"
    if not np.isfinite(b).all():
        return "the lower gradient is not finite"
    if not np.isfinite(multiplier):
        with np.errstate(over="ignore"):
            long = not np.isfinite(np.square(a).sum() + np.square(b).sum())
        return f"the multiplier is {multiplier}{': squared gradients overflow, the run left for infinity' * long}"
    return "the step overflows"
