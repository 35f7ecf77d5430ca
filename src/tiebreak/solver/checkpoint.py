"""The whole state of a run: a result is made of it, and a resumed run starts from it. Saved as one file, without pickles."""

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from tiebreak.estimators.contract import Memory
from tiebreak.files import FilePath, atomic, regular
from tiebreak.oracles import Array
from tiebreak.provenance import stamp
from tiebreak.result import MEASURES, History, Point, Result, Status
from tiebreak.solver.check_checkpoint import check

_FORMAT = 1


@dataclass
class Configuration:
    """The arguments of a run, which stay the same when it is resumed."""

    method: str
    fingerprint: list[Any]
    shape: tuple[int, ...]
    dtype: str
    entropy: Any
    spawn_key: tuple[int, ...]
    runs: tuple[int, ...]
    single: bool
    record: str | int | tuple[int, ...] | None
    keep_iterates: bool
    budget: int | None
    steps: int | None


@dataclass
class State:
    """Everything after k steps: `memory` and `streams` of the runs that go on, all else of every run."""

    configuration: Configuration
    k: int
    weight: float
    alive: list[int]
    memory: dict[str, Memory | None]
    streams: dict[str, list[Any]]
    start: Array
    x: Array
    selected: Array
    selected_step: NDArray[np.int64]
    steps: NDArray[np.int64]
    upper_calls: NDArray[np.int64]
    lower_calls: NDArray[np.int64]
    status: list[str]
    faults: dict[int, str]
    history: dict[str, NDArray[Any]]
    last_measures: dict[str, NDArray[Any]]
    selected_measures: dict[str, NDArray[Any]]
    # The numbers that a rule with a memory chose, by name.
    chosen: dict[str, NDArray[Any]] = field(default_factory=dict)
    elapsed: float = 0.0
    # f and g at x_0, if the oracles provide values.
    start_measures: dict[str, NDArray[Any]] = field(default_factory=dict)
    # The memory of the rule, of every run, at the last and at the selected iterate.
    rule: tuple[NDArray[np.float64], ...] = ()
    selected_rule: tuple[NDArray[np.float64], ...] = ()

    _ARRAYS = (
        "start",
        "x",
        "selected",
        "selected_step",
        "steps",
        "upper_calls",
        "lower_calls",
    )
    _TABLES = (
        "history",
        "start_measures",
        "last_measures",
        "selected_measures",
        "chosen",
    )
    _RULES = ("rule", "selected_rule")
    _META = ("k", "weight", "alive", "streams", "status", "elapsed")

    def save(self, path: FilePath) -> None:
        """Write atomically: `path` is the old file or the new one, never a part."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self._ARRAYS}
        for table in self._TABLES:
            for name, column in getattr(self, table).items():
                arrays[f"{table}.{name}"] = column
        memories = {f"memory.{level}": memory for level, memory in self.memory.items()}
        memories |= {name: getattr(self, name) for name in self._RULES}
        for name, memory in memories.items():
            arrays |= {f"{name}.{i}": array for i, array in enumerate(memory or ())}
        lengths: dict[str, int | None] = {}
        for level, memory in self.memory.items():
            if memory is None:
                lengths[level] = None
            else:
                lengths[level] = len(memory)
        if self.rule:
            lengths["rule"] = len(self.rule)
        meta = {"format": _FORMAT, "configuration": asdict(self.configuration)}
        meta |= {name: getattr(self, name) for name in self._META}
        meta |= {
            "made_by": stamp(),
            "faults": list(self.faults.items()),
            "memory": lengths,
        }
        with atomic(path) as file:
            np.savez(file, meta=np.array(json.dumps(meta)), **arrays)

    def result(self) -> Result:
        """The result of the run."""
        c = self.configuration
        seed = c.entropy
        if c.spawn_key:
            seed = SeedSequence(c.entropy, spawn_key=c.spawn_key)
        start = np.repeat(self.start[None], len(c.runs), axis=0)
        return Result(
            last=self._point(self.x, self.steps, self.last_measures),
            selected=self._point(
                self.selected, self.selected_step, self.selected_measures
            ),
            status=self._of_runs([Status[name] for name in self.status]),
            steps=self._of_runs(self.steps),
            upper_calls=self._of_runs(self.upper_calls),
            lower_calls=self._of_runs(self.lower_calls),
            history=self._history(),
            method=c.method,
            seed=seed,
            elapsed=self.elapsed,
            faults=self.faults,
            chosen={
                name: self._of_runs(column) for name, column in self.chosen.items()
            },
            start=self._point(start, 0 * self.steps, self.start_measures),
            state=self,
        )

    def _of_runs(self, values: Any) -> Any:
        """A value for each run; of a single run without an axis for runs, the value itself."""
        if not self.configuration.single:
            return values
        if isinstance(values[0], np.generic):
            return values[0].item()
        return values[0]

    def _point(
        self, x: Array, step: NDArray[np.int64], measures: dict[str, NDArray[Any]]
    ) -> Point:
        c = self.configuration
        points = x.reshape(len(c.runs), *c.shape)
        columns = {
            name: self._of_runs(measures[name]) for name in MEASURES if name in measures
        }
        return Point(
            points[0, ...] if c.single else points, self._of_runs(step), **columns
        )

    def _history(self) -> History:
        c = self.configuration
        rows = dict(self.history)
        if c.record is not None:  # the last iterate closes the history
            last = self._last_row()
            if not rows:
                rows = {name: np.array([value]) for name, value in last.items()}
            elif self.alive:
                unknown = np.full(len(c.runs), np.nan)
                for name, column in rows.items():
                    rows[name] = np.concatenate([column, [last.get(name, unknown)]])
        nothing = np.zeros(0, dtype=np.int64)
        step, upper_calls, lower_calls = (
            rows.pop(name, nothing) for name in ("step", "upper_calls", "lower_calls")
        )
        x = rows.pop("x", None)
        if x is not None:
            x = x.reshape(len(x), len(c.runs), *c.shape)
            if c.single:
                x = x[:, 0]
            else:
                x = x
        columns = {
            name: rows[name] for name in ("multiplier", *MEASURES) if name in rows
        }
        return History(
            step, upper_calls, lower_calls, columns, c.runs, self.steps, x, c.single
        )

    def _last_row(self) -> dict[str, Any]:
        """The last iterate as a row of the history, NaN for runs that ended before."""
        runs = len(self.configuration.runs)
        alive = np.isin(np.arange(runs), self.alive)
        last: dict[str, Any] = {"step": self.k}
        for name in ("upper_calls", "lower_calls"):
            if self.alive:
                last[name] = int(getattr(self, name)[self.alive[0]])
            else:
                last[name] = 0
        last["multiplier"] = np.full(runs, np.nan)
        for name, column in self.last_measures.items():
            last[name] = np.where(alive, column, np.nan)
        if self.configuration.keep_iterates:
            last["x"] = np.where(alive[:, None], self.x, np.nan)
        return last


def load(path: FilePath) -> Result:
    """Read a saved result, or a checkpoint of a run that was cut short.

    Examples
    --------
    >>> import tempfile, tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=20, seed=0)
    >>> path = f"{tempfile.mkdtemp()}/run.npz"
    >>> result.save(path)
    >>> again = load(path)
    >>> bool((again.x == result.x).all()), again.steps
    (True, 20)
    """
    return load_state(path).result()


def load_state(path: FilePath) -> State:
    """Read a file of :meth:`State.save`, and check all of it before a run goes on from it."""
    name = os.fspath(path)
    with open(regular(path), "rb") as raw:
        try:
            with np.load(raw, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                arrays = {key: file[key] for key in file.files if key != "meta"}
        except (
            Exception
        ) as error:  # the reader of a damaged archive can raise almost anything
            wrong = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{name!r} is not a result saved by tiebreak, or not all of one ({wrong})"
            ) from None
    if isinstance(meta, dict):
        version = meta.get("format")
    else:
        version = None
    if version != _FORMAT:
        raise ValueError(
            f"{name!r} has format {version!r}; this version reads format {_FORMAT}"
        )
    try:
        state = _assembled(meta, arrays)
        check(state)
    except KeyError as error:
        raise ValueError(
            f"{name!r} was not saved by tiebreak: there is no {error.args[0]!r} in it"
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{name!r} was not saved by tiebreak: {error}") from None
    return state


def _assembled(meta: dict[str, Any], arrays: dict[str, Any]) -> State:
    """The state of a file's contents, unchecked."""
    if not isinstance(meta["made_by"], dict):
        raise ValueError(f"made_by={meta['made_by']!r} must be an object")
    c = dict(meta["configuration"])
    for name in ("shape", "spawn_key", "runs"):
        c[name] = tuple(c[name])
    if isinstance(c.get("record"), list):
        c["record"] = tuple(c["record"])

    def columns(name: str, count: int) -> Memory:
        return tuple(arrays[f"{name}.{i}"] for i in range(count))

    tables: dict[str, Any] = {table: {} for table in State._TABLES}
    for name, array in arrays.items():
        table, _, column = name.partition(".")
        if table in tables and column:
            tables[table][column] = array
    counts = dict(meta["memory"])
    rule_count = counts.pop("rule", 0)  # missing if the rule has no memory
    memory: dict[str, Memory | None] = {}
    for level, count in counts.items():
        if count is None:
            memory[level] = None
        else:
            memory[level] = columns(f"memory.{level}", count)
    values: dict[str, Any] = {name: columns(name, rule_count) for name in State._RULES}
    values |= {name: meta[name] for name in State._META}
    values |= {name: arrays[name] for name in State._ARRAYS}
    faults = {int(run): text for run, text in meta["faults"]}
    return State(
        configuration=Configuration(**c),
        memory=memory,
        faults=faults,
        **values,
        **tables,
    )
