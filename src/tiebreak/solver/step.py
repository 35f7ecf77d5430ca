"""What a step changes: the working arrays of the solver, with a row for each run that goes on."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.estimators.contract import Memory
from tiebreak.oracles import Array
from tiebreak.result import Status
from tiebreak.solver.checkpoint import State

_WIDE = np.dtype(np.float64)
# numbers that Python moves, and that it looks at, in less time than NumPy
_FEW = 4
_SMALL = 16


class Kept(NamedTuple):
    """The iterate that each run would return as the selected one, its step, and what the rule remembered there."""

    x: Array
    step: NDArray[np.int64]
    rule: Memory


class Now(NamedTuple):
    """All that a step changes, replaced in one assignment: an interrupt finds the state before a step or after it."""

    k: int
    x: Array
    upper: Memory | None
    lower: Memory | None
    rule: Memory  # what a rule with a memory remembers
    selected: Kept
    upper_calls: int
    lower_calls: int
    multiplier: Any  # λ̂ of the step just made: a number for each row, or a float where there is one row

    @property
    def multipliers(self) -> NDArray[np.float64]:
        """λ̂, a number for each row."""
        return np.atleast_1d(self.multiplier)

    @classmethod
    def of(cls, state: State) -> "Now":
        """The state's runs that go on."""
        rows = state.alive
        return cls(
            state.k,
            frozen(state.x[rows]),
            state.memory["upper"],
            state.memory["lower"],
            tuple(column[rows] for column in state.rule),
            Kept(
                state.selected[rows],
                state.selected_step[rows],
                tuple(column[rows] for column in state.selected_rule),
            ),
            int(state.upper_calls[rows[0]]) if rows else 0,
            int(state.lower_calls[rows[0]]) if rows else 0,
            np.zeros(len(rows)),
        )

    def of_rows(self, rows: list[int]) -> "Now":
        """These rows alone."""
        kept = self.selected

        def remembered(memory: Memory | None) -> Memory | None:
            return None if memory is None else tuple(array[rows] for array in memory)

        return self._replace(
            x=frozen(self.x[rows]),
            upper=remembered(self.upper),
            lower=remembered(self.lower),
            rule=tuple(column[rows] for column in self.rule),
            selected=Kept(
                kept.x[rows],
                kept.step[rows],
                tuple(column[rows] for column in kept.rule),
            ),
            multiplier=self.multipliers[rows],
        )

    def store(
        self, state: State, run: int, row: int, steps: int, status: Status
    ) -> None:
        """Write a run's row to the state."""
        kept = self.selected
        state.x[run] = self.x[row]
        state.selected[run] = kept.x[row]
        state.selected_step[run] = kept.step[row]
        for into, column in zip(
            state.rule + state.selected_rule, self.rule + kept.rule, strict=True
        ):
            into[run] = column[row]
        state.upper_calls[run], state.lower_calls[run] = (
            self.upper_calls,
            self.lower_calls,
        )
        state.steps[run], state.status[run] = steps, status.name


def descended(
    x: Array, a: Array, b: Array, multiplier: Any, pace: Any
) -> tuple[Array, bool]:
    """x + p(a + λb), read-only, with λ and p for each row or floats for a single one; and whether all of it is finite.

    Of a few numbers Python makes it, bit for bit the same, in less time than NumPy needs to begin.

    Examples
    --------
    >>> descended(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), np.array([[5.0, 6.0]]), 2.0, -0.5)
    (array([[-5.5, -6. ]]), True)
    """
    if type(multiplier) is type(pace) is float and x.size <= _FEW and x.dtype is _WIDE:
        rows = zip(x.tolist()[0], a.tolist()[0], b.tolist()[0], strict=True)
        row = [(q * multiplier + p) * pace + z for z, p, q in rows]
        moved = np.array([row])
        moved.setflags(write=False)
        return moved, all(map(math.isfinite, row))
    # A float takes the type of b, as the array is made to.
    moved = b * (
        multiplier
        if type(multiplier) is float
        else multiplier.astype(x.dtype, copy=False)[:, None]
    )
    moved += a
    moved *= pace
    moved += x
    moved.setflags(
        write=False
    )  # an oracle that works in place must fail loudly, not corrupt the run
    if x.size <= _SMALL:
        return moved, all(map(math.isfinite, moved.ravel().tolist()))
    return moved, bool(np.isfinite(moved).all())


def frozen(x: Array) -> Array:
    """Read-only: an oracle that works in place must fail loudly, not corrupt the run."""
    x.flags.writeable = False
    return x
