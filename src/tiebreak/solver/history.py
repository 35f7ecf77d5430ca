"""The history of a run: exact gradients, never charged, never seen by the method.

Recorded states are kept by reference and measured together, a block at a time: for a vectorized problem the whole
history costs a few array operations.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.result import MEASURES
from tiebreak.schedules import Parameters
from tiebreak.solver.objective import Level
from tiebreak.solver.step import StepState
from tiebreak.stationarity import dot, residuals

Columns = dict[str, NDArray[Any]]

_PER_DECADE = 50
_TOGETHER = 64  # iterates in a measurement
_MANY = 2**16  # numbers that may wait for a measurement
_RARELY = 19  # pause between measurements for progress, in units of their duration
_SHOWN = ("multiplier", "direction_squared", "lower_gradient_squared")


def recorded_steps(
    record: str | int | tuple[int, ...] | None,
    first: int,
    count: int,
    calls: Sequence[int] = (),
) -> list[bool]:
    """Which of `count` steps are recorded: every n-th, none, or about 50 a decade (and each of the first twenty).

    If `record` has call counts: those steps whose x_k is the last iterate that one of the counts pays for. `calls` are
    the calls before each of these steps, and after the last of them.

    Examples
    --------
    >>> [k for k, chosen in enumerate(recorded_steps("log", 0, 100)) if chosen][-5:]
    [83, 87, 91, 95, 99]
    >>> recorded_steps((100, 1000), 7, 2, (90, 100, 110))
    [False, True]
    """
    steps = range(first, first + count)
    if record is None:
        return [False] * count
    if isinstance(record, int):
        return [k % record == 0 for k in steps]
    if isinstance(record, tuple):
        marks = [bisect_left(record, spent) for spent in calls]
    else:
        marks = [
            math.floor(_PER_DECADE * math.log10(k)) if k else -1
            for k in (*steps, first + count)
        ]
    return [later > earlier for earlier, later in pairwise(marks)]


class Measurer:
    """Evaluates residuals and values at any iterates, as far as the oracles provide them."""

    def __init__(self, method: Method, upper: Level, lower: Level) -> None:
        self.method = method
        self.upper = upper
        self.lower = lower

    @property
    def available(self) -> tuple[str, ...]:
        """The measures that the oracles provide."""
        exact = self.lower.has_exact and self.upper.has_exact
        single = {
            "lower_value": self.lower.has_value,
            "upper_value": self.upper.has_value,
            "lower_gradient_squared": self.lower.has_exact,
        }
        return tuple(name for name in MEASURES if single.get(name, exact))

    def __call__(
        self, x: Array, parameters: Sequence[Parameters], memory: Sequence[Any] = ()
    ) -> Columns:
        """Measures of iterates (m, runs, dimension), with parameters for each of the m, or for each run where m = 1.

        `memory` is the rule's memory at these iterates, each (m, runs) or (runs,); it is not changed.
        """
        columns: Columns = {}
        with np.errstate(all="ignore"):
            if self.lower.has_value:
                columns["lower_value"] = self.lower.value(x)
            if self.upper.has_value:
                columns["upper_value"] = self.upper.value(x)
            if self.lower.has_exact:
                lower = self.lower.exact(x)
                columns["lower_gradient_squared"] = dot(lower, lower)
                if self.upper.has_exact:
                    upper = self.upper.exact(x)
                    arguments = self._arguments(x, upper, parameters, columns)

                    def multiplier(fg: Any, gg: Any) -> Any:
                        return self.method.multiplier(fg, gg, arguments, memory)

                    norms = residuals(upper, lower, multiplier)
                    columns["direction_squared"] = norms.direction_squared
                    columns["stationarity_squared"] = norms.stationarity_squared
                    columns["exact_multiplier"] = norms.multiplier
        return {name: columns[name] for name in MEASURES if name in columns}

    def _arguments(
        self, x: Array, upper: Array, parameters: Sequence[Parameters], columns: Columns
    ) -> dict[str, Any]:
        """The arguments of the rule, as arrays that broadcast with (m, runs)."""
        axis = (-1, 1) if len(parameters) == len(x) else (1, -1)
        each = [self.method.arguments(p) for p in parameters]
        arguments: dict[str, Any] = {}
        for name in each[0]:
            arguments[name] = np.array([numbers[name] for numbers in each]).reshape(
                axis
            )
        if "lower_value" in self.method.needs:
            arguments["lower_value"] = columns["lower_value"]
        if "ff" in self.method.needs:
            arguments["ff"] = dot(upper, upper)
        return arguments

    def at(
        self, x: Array, parameters: Sequence[Parameters], memory: Sequence[Any]
    ) -> Columns:
        """The measures of one iterate (runs, dimension)."""
        columns = self(x[None], parameters, memory)
        return {name: column[0] for name, column in columns.items()}


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
        self._pending: list[tuple[StepState, Parameters, NDArray[np.float64]]] = []
        self._due = -math.inf
        self._shown: tuple[float, ...] = (math.nan,) * 3

    def add(
        self, state: StepState, parameters: Parameters, multiplier: NDArray[np.float64]
    ) -> None:
        """Note the state before a step and the multiplier of that step, to be measured with these parameters."""
        self._pending.append((state, parameters, multiplier))

    def flush(self, alive: Sequence[int], steps: int, complete: bool = True) -> None:
        """Measure the noted states of the first `steps` steps; their rows are the runs `alive`.

        Unless the `complete` history is needed, a few states may wait: measuring one takes as long as measuring many.
        """
        self._pending = pending = [row for row in self._pending if row[0].k < steps]
        if not pending:
            return
        if not complete and len(pending) < min(
            _TOGETHER, _MANY // pending[0][0].x.size
        ):
            return
        self._pending = []
        states, parameters, multipliers = zip(*pending, strict=True)
        x = np.stack([state.x for state in states])
        memories = zip(*(state.rule for state in states), strict=True)
        memory = [np.stack(column) for column in memories]
        columns = {"multiplier": np.stack(multipliers)} | self._measurer(
            x, parameters, memory
        )
        if self._keep_iterates:
            columns["x"] = x
        block = {name: self._widen(column, alive) for name, column in columns.items()}
        block["step"] = np.array([state.k for state in states], dtype=np.int64)
        block["upper_calls"] = np.array(
            [state.upper_calls for state in states], dtype=np.int64
        )
        block["lower_calls"] = np.array(
            [state.lower_calls for state in states], dtype=np.int64
        )
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

    def history(self) -> Columns:
        """Join the blocks; NaN where a measure was unknown, since an oracle of a resumed run may provide more."""
        if len(self._blocks) > 1:
            joined: Columns = {}
            for name in dict.fromkeys(name for block in self._blocks for name in block):
                unknown = [
                    np.full((len(block["step"]), self._runs), np.nan)
                    for block in self._blocks
                ]
                pairs = zip(self._blocks, unknown, strict=True)
                joined[name] = np.concatenate(
                    [block.get(name, nan) for block, nan in pairs]
                )
            self._blocks = [joined]
        if self._blocks:
            return dict(self._blocks[0])
        return {}

    def latest(self) -> tuple[float, ...]:
        """λ, ‖d‖² and ‖∇g‖² at the newest recorded step, means over the living runs; NaN where unknown."""
        if not self._blocks:
            return means({})
        return means({name: column[-1] for name, column in self._blocks[-1].items()})

    def glance(self, state: StepState, parameters: Parameters) -> tuple[float, ...]:
        """Measure the same numbers of a state that is not recorded, so rarely that it takes a twentieth of the time."""
        began = time.monotonic()
        if began >= self._due:
            columns = self._measurer.at(state.x, [parameters], state.rule)
            self._shown = means(columns | {"multiplier": state.multipliers})
            self._due = time.monotonic() + _RARELY * (time.monotonic() - began)
        return self._shown


def start_values(start: Array, levels: Iterable[Level], runs: int) -> dict[str, Array]:
    """f and g where all runs begin, if the oracles provide values, as the columns of a record."""
    values: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for level in levels:
            if level.has_value:
                values[f"{level.name}_value"] = np.repeat(
                    level.value(start[None]), runs
                )
    return values


def means(columns: Mapping[str, Any]) -> tuple[float, ...]:
    """λ, ‖d‖² and ‖∇g‖², means over their finite values; NaN if there are none."""
    rows = [np.asarray(columns.get(name, np.nan)) for name in _SHOWN]
    finite = [row[np.isfinite(row)] for row in rows]
    return tuple(float(row.mean()) if row.size else math.nan for row in finite)
