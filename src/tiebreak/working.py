"""What a step changes: the working arrays of the solver, a row for each run that goes on, or one for all of them.

Without noise all runs are the same run, but for the iterate that each selects. Then there is one row of everything
else, and it is written to every run when the state is.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.estimators.contract import Memory
from tiebreak.levels import Level
from tiebreak.oracles import Array
from tiebreak.result import Status
from tiebreak.state import State

_WIDE = np.dtype(np.float64)
# numbers that Python moves, and that it looks at, in less time than NumPy
_FEW = 4
_SMALL = 16


class Kept(NamedTuple):
    """The iterate that each run would return as the selected one, its step, and what the rule remembered there."""

    x: Array
    step: NDArray[np.int64]
    rule: tuple[Any, ...]


class Now(NamedTuple):
    """All that a step changes, replaced in one assignment: an interrupt finds the state before a step or after it."""

    k: int
    x: Array
    upper: Memory
    lower: Memory
    rule: tuple[Any, ...]  # what a rule with a memory remembers
    selected: Kept
    upper_calls: int
    lower_calls: int
    multiplier: Any  # λ̂ of the step just made: a number for each row, or a float where there is one row

    @property
    def multipliers(self) -> NDArray[np.float64]:
        """λ̂, a number for each row."""
        return np.atleast_1d(self.multiplier)

    @classmethod
    def of(cls, state: State, one: bool) -> "Now":
        """The state's runs that go on; `one` row of what is the same for all of them."""
        rows = state.alive[:1] if one else state.alive
        count = len(rows)
        return cls(
            state.k,
            frozen(state.x[rows]),
            _first(state.memory["upper"], count),
            _first(state.memory["lower"], count),
            tuple(column[rows] for column in state.rule),
            Kept(
                state.selected[state.alive],
                state.selected_step[state.alive],
                tuple(column[state.alive] for column in state.selected_rule),
            ),
            int(state.upper_calls[state.alive[0]]) if state.alive else 0,
            int(state.lower_calls[state.alive[0]]) if state.alive else 0,
            np.zeros(count),
        )

    def without(self, others: list[int]) -> "Now":
        """These rows alone. Where there is one for all runs, none is left: they cannot go on together."""
        kept = self.selected
        shared = others if len(self.x) == len(kept.x) else []

        def of_rows(memory: Memory) -> Memory:
            return None if memory is None else tuple(array[shared] for array in memory)

        return self._replace(
            x=frozen(self.x[shared]),
            upper=of_rows(self.upper),
            lower=of_rows(self.lower),
            rule=tuple(column[shared] for column in self.rule),
            selected=Kept(kept.x[others], kept.step[others], tuple(column[others] for column in kept.rule)),
            multiplier=self.multipliers[shared],
        )

    def store(self, state: State, run: int, row: int, steps: int, status: Status) -> None:
        """Write a run's row to the state."""
        kept = self.selected
        shared = row if len(self.x) == len(kept.x) else 0
        state.x[run], state.selected[run] = self.x[shared], kept.x[row]
        state.selected_step[run] = kept.step[row]
        for rule, columns, place in ((state.rule, self.rule, shared), (state.selected_rule, kept.rule, row)):
            for into, column in zip(rule, columns, strict=True):
                into[run] = column[place]
        state.upper_calls[run], state.lower_calls[run] = self.upper_calls, self.lower_calls
        state.steps[run], state.status[run] = steps, status.name

    def memory(self) -> dict[str, Memory]:
        """What the estimators remember, a row for each run."""
        runs = len(self.selected.x)
        levels = {"upper": self.upper, "lower": self.lower}
        return {name: None if m is None else tuple(for_all(a, runs) for a in m) for name, m in levels.items()}


def alike(state: State, upper: Level, lower: Level) -> bool:
    """Whether all runs that go on are, and will stay, the same: neither level is random, and they are at one point."""
    if len(state.alive) < 2 or not (upper.deterministic and lower.deterministic):
        return False
    own = [state.x[state.alive], *(column[state.alive] for column in state.rule)]
    own += [array for memory in state.memory.values() for array in memory or ()]
    return all(bool((array == array[:1]).all()) for array in own)


def for_all(array: Any, runs: int) -> Any:
    """A row for each run, of an array that may have one for all of them."""
    return array if len(array) == runs else np.repeat(array, runs, axis=0)


def descended(x: Array, a: Array, b: Array, multiplier: Any, pace: Any) -> tuple[Array, bool]:
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
    moved = b * (multiplier if type(multiplier) is float else multiplier.astype(x.dtype, copy=False)[:, None])
    moved += a
    moved *= pace
    moved += x
    moved.setflags(write=False)  # an oracle that works in place must fail loudly, not corrupt the run
    if x.size <= _SMALL:
        return moved, all(map(math.isfinite, moved.ravel().tolist()))
    return moved, bool(np.isfinite(moved).all())


def frozen(x: Array) -> Array:
    """Read-only: an oracle that works in place must fail loudly, not corrupt the run."""
    x.flags.writeable = False
    return x


def _first(memory: Memory, count: int) -> Memory:
    return None if memory is None else tuple(array[:count] for array in memory)
