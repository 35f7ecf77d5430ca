"""A run, whole: what a result is read from and what a resumed run starts from. Saved as one file, without pickles."""

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
    """What was asked for; everything that must stay the same when a run is resumed."""

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
    chosen: dict[str, NDArray[Any]] = field(
        default_factory=dict
    )  # what a rule with a memory tells people
    elapsed: float = 0.0
    start_measures: dict[str, NDArray[Any]] = field(
        default_factory=dict
    )  # f and g at x_0, as far as they are known
    rule: tuple[
        NDArray[np.float64], ...
    ] = ()  # what a rule with a memory remembers, of every run
    selected_rule: tuple[
        NDArray[np.float64], ...
    ] = ()  # and what it did at the selected iterate

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

    def save(self, path: FilePath) -> None:
        """Write atomically: `path` is the old file or the new one, never a part."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self._ARRAYS}
        for table in self._TABLES:
            arrays |= {
                f"{table}.{name}": column
                for name, column in getattr(self, table).items()
            }
        for level, memory in self.memory.items():
            arrays |= {
                f"memory.{level}.{i}": array for i, array in enumerate(memory or ())
            }
        for name in self._RULES:
            arrays |= {
                f"{name}.{i}": array for i, array in enumerate(getattr(self, name))
            }
        meta = {"format": _FORMAT, "configuration": asdict(self.configuration)}
        meta |= {
            name: getattr(self, name)
            for name in ("k", "weight", "alive", "streams", "status", "elapsed")
        }
        meta["made_by"] = stamp()
        meta["faults"] = list(self.faults.items())
        lengths = {
            level: None if memory is None else len(memory)
            for level, memory in self.memory.items()
        }
        meta["memory"] = lengths | ({"rule": len(self.rule)} if self.rule else {})
        with atomic(path) as file:
            np.savez(file, meta=np.array(json.dumps(meta)), **arrays)

    def result(self) -> Result:
        """What a user sees of it."""
        c = self.configuration

        def take(values: Any) -> Any:
            first = values[0] if c.single else values
            return first.item() if isinstance(first, np.generic) else first

        def point(
            x: Array, step: NDArray[np.int64], measures: dict[str, NDArray[Any]]
        ) -> Point:
            known = {
                name: take(measures[name]) for name in MEASURES if name in measures
            }
            points = x.reshape(len(c.runs), *c.shape)
            return Point(points[0, ...] if c.single else points, take(step), **known)

        status = [Status[name] for name in self.status]
        seed = (
            c.entropy
            if not c.spawn_key
            else SeedSequence(c.entropy, spawn_key=c.spawn_key)
        )
        return Result(
            last=point(self.x, self.steps, self.last_measures),
            selected=point(self.selected, self.selected_step, self.selected_measures),
            status=take(status),
            steps=take(self.steps),
            upper_calls=take(self.upper_calls),
            lower_calls=take(self.lower_calls),
            history=self._history(),
            method=c.method,
            seed=seed,
            elapsed=self.elapsed,
            faults=self.faults,
            chosen={name: take(column) for name, column in self.chosen.items()},
            start=point(
                np.repeat(self.start[None], len(c.runs), axis=0),
                0 * self.steps,
                self.start_measures,
            ),
            state=self,
        )

    def _history(self) -> History:
        c = self.configuration
        rows = dict(self.history)
        if c.record is not None:  # the last iterate closes the history
            alive = np.isin(np.arange(len(c.runs)), self.alive)
            calls = [
                int(array[self.alive[0]]) if self.alive else 0
                for array in (self.upper_calls, self.lower_calls)
            ]
            last: dict[str, Any] = {
                "step": self.k,
                "upper_calls": calls[0],
                "lower_calls": calls[1],
            }
            last["multiplier"] = np.full(len(c.runs), np.nan)
            last |= {
                name: np.where(alive, column, np.nan)
                for name, column in self.last_measures.items()
            }
            if c.keep_iterates:
                last["x"] = np.where(alive[:, None], self.x, np.nan)
            unknown = np.full(len(c.runs), np.nan)
            if not rows:
                rows = {name: np.array([value]) for name, value in last.items()}
            elif self.alive:
                rows = {
                    name: np.concatenate([rows[name], [last.get(name, unknown)]])
                    for name in rows
                }
        shared = [
            rows.pop(n, np.zeros(0, dtype=np.int64))
            for n in ("step", "upper_calls", "lower_calls")
        ]
        x = rows.pop("x", None)
        if x is not None:
            x = x.reshape(len(x), len(c.runs), *c.shape)
            x = x[:, 0] if c.single else x
        order = ("multiplier", *MEASURES)
        columns = {name: rows[name] for name in order if name in rows}
        return History(
            shared[0], shared[1], shared[2], columns, c.runs, self.steps, x, c.single
        )


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
    """Read what :meth:`State.save` wrote, and make sure of all of it: a run must not find out after hours."""
    with open(regular(path), "rb") as raw:
        try:
            with np.load(raw, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                arrays = {name: file[name] for name in file.files if name != "meta"}
        except (
            Exception
        ) as error:  # a damaged archive can make its reader raise almost anything
            wrong = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{os.fspath(path)!r} is not a result saved by tiebreak, or not all of one ({wrong})"
            ) from None
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != _FORMAT:
        raise ValueError(
            f"{os.fspath(path)!r} has format {found!r}; this version reads format {_FORMAT}"
        )
    try:
        state = _assembled(meta, arrays)
        check(state)
    except KeyError as error:
        raise ValueError(
            f"{os.fspath(path)!r} was not saved by tiebreak: there is no {error.args[0]!r} in it"
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{os.fspath(path)!r} was not saved by tiebreak: {error}"
        ) from None
    return state


def _assembled(meta: dict[str, Any], arrays: dict[str, Any]) -> State:
    if not isinstance(meta["made_by"], dict):
        raise ValueError(f"made_by={meta['made_by']!r} must be an object")
    c = dict(meta["configuration"])
    c |= {name: tuple(c[name]) for name in ("shape", "spawn_key", "runs")}
    c |= {"record": tuple(c["record"])} if isinstance(c.get("record"), list) else {}
    tables: dict[str, Any] = {
        table: {
            n.removeprefix(f"{table}."): a
            for n, a in arrays.items()
            if n.startswith(f"{table}.")
        }
        for table in State._TABLES
    }
    counts = dict(meta["memory"])
    rule = counts.pop("rule", 0)  # not there, where a rule has no memory
    memory = {
        level: None
        if count is None
        else tuple(arrays[f"memory.{level}.{i}"] for i in range(count))
        for level, count in counts.items()
    }
    remembered: dict[str, Any] = {
        name: tuple(arrays[f"{name}.{i}"] for i in range(rule)) for name in State._RULES
    }
    return State(
        configuration=Configuration(**c),
        memory=memory,
        **remembered,
        faults={int(run): text for run, text in meta["faults"]},
        **{
            name: meta[name]
            for name in ("k", "weight", "alive", "streams", "status", "elapsed")
        },
        **{name: arrays[name] for name in State._ARRAYS},
        **tables,
    )
