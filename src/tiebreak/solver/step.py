"""One step of all living runs: measure, decide, move."""

import math
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tiebreak.decision import Decision, Measurement
from tiebreak.estimators import Minibatch
from tiebreak.estimators.contract import Memory, estimate
from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.result import Status
from tiebreak.schedules import Parameters
from tiebreak.solver.checkpoint import State
from tiebreak.solver.curvature_probe import CurvatureProbe
from tiebreak.solver.objective import Level
from tiebreak.stateful_rules import StatefulRule
from tiebreak.stationarity import dot, products

_WIDE = np.dtype(np.float64)
_FEW = 4  # Python moves so few numbers in less time than NumPy
_SMALL = 16  # Python checks so few numbers in less time than NumPy


class SelectedIterate(NamedTuple):
    """The iterate that each run would return as the selected one, its step, and the rule's memory there."""

    x: Array
    step: NDArray[np.int64]
    rule: Memory


class StepState(NamedTuple):
    """Everything that a step changes, with a row for each living run.

    It is replaced in one assignment: an interrupt finds the state before a step or after it.
    """

    k: int
    x: Array
    upper: Memory | None
    lower: Memory | None
    rule: Memory
    selected: SelectedIterate
    upper_calls: int
    lower_calls: int
    multiplier: Any  # λ̂ of the step just made: a number for each row, or a float for a single row

    @property
    def multipliers(self) -> NDArray[np.float64]:
        """λ̂, a number for each row."""
        return np.atleast_1d(self.multiplier)

    @property
    def calls(self) -> int:
        """Calls of both levels so far."""
        return self.upper_calls + self.lower_calls

    @classmethod
    def of(cls, state: State) -> "StepState":
        """Return the living runs of a whole state."""
        rows = state.alive
        selected = SelectedIterate(
            state.selected[rows],
            state.selected_step[rows],
            _rows(state.selected_rule, rows),
        )
        return cls(
            state.k,
            frozen(state.x[rows]),
            state.memory["upper"],
            state.memory["lower"],
            _rows(state.rule, rows),
            selected,
            int(state.upper_calls[rows].max(initial=0)),
            int(state.lower_calls[rows].max(initial=0)),
            np.zeros(len(rows)),
        )

    def of_rows(self, rows: list[int]) -> "StepState":
        """Return these rows alone."""
        selected = self.selected
        return self._replace(
            x=frozen(self.x[rows]),
            upper=_rows(self.upper, rows),
            lower=_rows(self.lower, rows),
            rule=_rows(self.rule, rows),
            selected=SelectedIterate(
                selected.x[rows], selected.step[rows], _rows(selected.rule, rows)
            ),
            multiplier=self.multipliers[rows],
        )

    def store(
        self, state: State, run: int, row: int, steps: int, status: Status
    ) -> None:
        """Write a run's row to the whole state."""
        selected = self.selected
        state.x[run] = self.x[row]
        state.selected[run] = selected.x[row]
        state.selected_step[run] = selected.step[row]
        columns = zip(
            state.rule + state.selected_rule, self.rule + selected.rule, strict=True
        )
        for target, column in columns:
            target[run] = column[row]
        state.upper_calls[run] = self.upper_calls
        state.lower_calls[run] = self.lower_calls
        state.steps[run] = steps
        state.status[run] = status.name


class Stepper:
    """Makes steps of a method on both levels. The state goes in and comes out; nothing about a run is kept here."""

    def __init__(
        self, method: Method, upper: Level, lower: Level, start: Array
    ) -> None:
        self.method = method
        self.upper = upper
        self.lower = lower
        self.probe = CurvatureProbe(method, start)
        self.evaluate_upper = self.probe.observed("upper", upper)
        self.evaluate_lower = self.probe.observed("lower", lower)
        self.minibatch = type(method.estimator) is Minibatch
        self.in_direction = method.estimator.direction
        apply = method.applied if method.remembers else method.multiplier
        self.decision = Decision(method, normalize=False, apply=apply)
        rule: Any = method.rule
        sets_step_size = isinstance(rule, StatefulRule) and rule.sets_step_size
        self.step_sizes = rule.step_size if sets_step_size else None
        self.measures = bool(method.measured)  # more than the two inner products

    def step(
        self,
        state: StepState,
        parameters: Parameters,
        cost: tuple[int, int],
        upper_tokens: Any,
        lower_tokens: Any,
        replaced: NDArray[np.bool_] | None,
    ) -> tuple[StepState, dict[int, str]]:
        """Return the next state, and why by row if a run cannot go on: its row keeps the iterate.

        `replaced` says which rows take x_k as their selected iterate.
        """
        (
            k,
            x,
            upper_memory,
            lower_memory,
            memory,
            selected,
            upper_calls,
            lower_calls,
            _,
        ) = state
        # Measure.
        self.upper.tokens = upper_tokens
        self.lower.tokens = lower_tokens
        if self.minibatch:
            a = estimate_f = self.evaluate_upper(x)
            b = estimate_g = self.evaluate_lower(x)
            upper_memory = ()
            lower_memory = ()
        else:
            estimator = self.method.estimator
            estimate_f, a, upper_memory = estimate(
                estimator,
                "upper",
                self.evaluate_upper,
                x,
                upper_memory,
                parameters,
                _zero,
            )
            estimate_g, b, lower_memory = estimate(
                estimator,
                "lower",
                self.evaluate_lower,
                x,
                lower_memory,
                parameters,
                _zero,
            )
            if self.in_direction:
                a = estimate_f
                b = estimate_g
        measurement: Any = products(estimate_f, estimate_g)
        if self.measures:
            measurement = self._measurement(state, measurement, estimate_f, parameters)
        # Decide.
        multiplier, rule = self.decision.multiplier(parameters, measurement, memory)
        # Move.
        pace = -parameters.step_size
        if self.step_sizes is not None:
            pace = (pace * self.step_sizes(rule))[:, None]
        moved, all_finite = take_step(x, a, b, multiplier, pace)
        failures: dict[int, str] = {}
        # A NaN or an infinity in a, b or λ always reaches the new iterate, so a single check is enough.
        if not all_finite:
            fine = np.asarray(np.isfinite(moved).all(axis=1))
            each = np.atleast_1d(multiplier)
            for row in np.flatnonzero(~fine).tolist():
                failures[row] = fault(a[row], b[row], each[row])
            moved = frozen(np.where(fine[:, None], moved, x))
            replaced = None if replaced is None else replaced & fine
            rule = _selected(fine, rule, memory)
        if replaced is not None:
            selected = SelectedIterate(
                np.where(replaced[:, None], x, selected.x),
                np.where(replaced, k, selected.step),
                _selected(replaced, memory, selected.rule),
            )
        following = (
            k + 1,
            moved,
            upper_memory,
            lower_memory,
            rule,
            selected,
            upper_calls + cost[0],
            lower_calls + cost[1],
            multiplier,
        )
        # StepState(*following) takes twice the time.
        return tuple.__new__(StepState, following), failures

    def _measurement(
        self, state: StepState, both: Any, upper: Array, parameters: Parameters
    ) -> Measurement:
        """Add what else the rule asks for to the inner products."""
        names = self.method.measured
        further: dict[str, Any] = {}
        if "ff" in names:
            further["ff"] = dot(upper, upper)
        if "lower_value" in names:
            if not parameters.lower_points:
                raise ValueError(
                    f"the rule of {self.method.name!r} needs the lower objective of every step's mini-batch, and "
                    f"{self.method.estimator!r} draws none in step {parameters.k}"
                )
            further["lower_value"] = self.lower.value(state.x, self.lower.tokens)
        if self.probe.on:
            further["watched"] = self.probe.compare(state.x, state.upper, state.lower)
        return Measurement(*both, **further)


def take_step(
    x: Array, a: Array, b: Array, multiplier: Any, pace: Any
) -> tuple[Array, bool]:
    """x + p(a + λb), read-only, with λ and p for each row or floats for a single one; and whether all of it is finite.

    Python makes a few numbers bit for bit as NumPy does, in less time than NumPy needs to begin.

    Examples
    --------
    >>> take_step(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), np.array([[5.0, 6.0]]), 2.0, -0.5)
    (array([[-5.5, -6. ]]), True)
    """
    if type(multiplier) is type(pace) is float and x.size <= _FEW and x.dtype is _WIDE:
        rows = zip(x.tolist()[0], a.tolist()[0], b.tolist()[0], strict=True)
        row = [(q * multiplier + p) * pace + z for z, p, q in rows]
        moved = np.array([row])
        moved.setflags(write=False)
        return moved, all(map(math.isfinite, row))
    if type(multiplier) is not float:
        multiplier = multiplier.astype(x.dtype, copy=False)[:, None]
    moved = b * multiplier
    moved += a
    moved *= pace
    moved += x
    frozen(moved)
    if x.size <= _SMALL:
        return moved, all(map(math.isfinite, moved.ravel().tolist()))
    return moved, bool(np.isfinite(moved).all())


def frozen(x: Array) -> Array:
    """Make an array read-only: an oracle that works in place must fail loudly, not corrupt the run."""
    x.flags.writeable = False
    return x


def fault(a: Array, b: Array, multiplier: np.float64) -> str:
    """Say what was not finite in a step whose iterate is not."""
    if not np.isfinite(a).all():
        return "the upper gradient is not finite"
    if not np.isfinite(b).all():
        return "the lower gradient is not finite"
    if np.isfinite(multiplier):
        return "the step overflows"
    with np.errstate(over="ignore"):
        overflows = not np.isfinite(np.square(a).sum() + np.square(b).sum())
    reason = (
        ": squared gradients overflow, the run left for infinity" if overflows else ""
    )
    return f"the multiplier is {multiplier}{reason}"


@overload
def _rows(columns: Memory, rows: list[int]) -> Memory: ...
@overload
def _rows(columns: None, rows: list[int]) -> None: ...
def _rows(columns: Memory | None, rows: list[int]) -> Memory | None:
    """The rows of each column; None before the first step."""
    if columns is None:
        return None
    return tuple(column[rows] for column in columns)


def _selected(condition: NDArray[np.bool_], columns: Memory, others: Memory) -> Memory:
    """Each column where the condition holds, and the other column elsewhere."""
    pairs = zip(columns, others, strict=True)
    return tuple(np.where(condition, column, other) for column, other in pairs)


def _zero(gradient: Array) -> Array:
    """The scalar zero of an estimator's memory: a number for each run."""
    return 0 * gradient[:, :1]
