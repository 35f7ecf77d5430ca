"""Whether a state that was read from a file can be gone on with: every type, shape and range, before it is used."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import PCG64, SeedSequence

from tiebreak.checks import floating
from tiebreak.result import MEASURES, Status

_COUNTS = ("step", "upper_calls", "lower_calls")  # of a history, one for all runs


def check(state: Any) -> None:
    """Raise ValueError, TypeError or KeyError with what is wrong; `state` is a :class:`tiebreak.solver.checkpoint.State`."""
    c = state.configuration
    _configuration(c)
    runs = len(c.runs)
    dimension = math.prod(c.shape)
    dtype = np.dtype(c.dtype)
    _must("k", state.k, "a whole number ≥ 0", _count(state.k))
    for name in ("weight", "elapsed"):
        value = getattr(state, name)
        fits = type(value) in (int, float) and 0 <= floating(value) < math.inf
        _must(name, value, "a finite number ≥ 0", fits)
    alive = state.alive
    in_range = isinstance(alive, list) and all(
        _count(run) and run < runs for run in alive
    )
    _must(
        "alive",
        alive,
        f"different numbers below {runs}, in order",
        in_range and alive == sorted(set(alive)),
    )
    known = isinstance(state.status, list) and all(
        word in Status.__members__ for word in state.status
    )
    _must(
        "status",
        state.status,
        f"{runs} names of a status",
        known and len(state.status) == runs,
    )
    named = all(
        0 <= run < runs and isinstance(text, str) for run, text in state.faults.items()
    )
    _must("faults", state.faults, f"texts for runs below {runs}", named)
    _array("start", state.start, (dimension,), dtype)
    for name in ("x", "selected"):
        _array(name, getattr(state, name), (runs, dimension), dtype)
    for name in ("selected_step", "steps", "upper_calls", "lower_calls"):
        counts = getattr(state, name)
        _array(name, counts, (runs,), np.dtype(np.int64))
        _must(name, counts.tolist(), "whole numbers ≥ 0", bool(np.all(counts >= 0)))
    for table in ("start_measures", "last_measures", "selected_measures"):
        for name, column in getattr(state, table).items():
            _must(table, name, f"one of {', '.join(MEASURES)}", name in MEASURES)
            _array(f"{table}.{name}", column, (runs,), np.dtype(np.float64))
    for name, column in state.chosen.items():
        _array(f"chosen.{name}", column, (runs,), np.dtype(np.float64))
    _history(state.history, runs, dimension, dtype, c.keep_iterates)
    _streams(state.streams, len(alive))
    _must(
        "memory",
        list(state.memory),
        "that of 'upper' and 'lower'",
        set(state.memory) == {"upper", "lower"},
    )
    for name in ("rule", "selected_rule"):
        for i, array in enumerate(getattr(state, name)):
            _array(f"{name}.{i}", array, (runs,), np.dtype(np.float64))
    for level, memory in state.memory.items():
        for i, array in enumerate(memory or ()):
            fits = (
                array.ndim >= 1
                and len(array) == len(alive)
                and array.dtype.kind in "fiub"
            )
            _must(
                f"memory.{level}.{i}",
                _shown(array),
                f"numbers for each of {len(alive)} runs",
                fits,
            )


def _configuration(c: Any) -> None:
    optional = {name: getattr(c, name) for name in ("budget", "steps")}
    record = c.record
    legal = "None, 'log', a whole number ≥ 1 or such numbers that grow"
    for name, value in optional.items():
        _must(
            name,
            value,
            "None or a whole number ≥ 1",
            value is None or (_count(value) and value >= 1),
        )
    each = record if isinstance(record, tuple) else (record,)
    grows = (
        all(_count(n) and n >= 1 for n in each)
        and list(each) == sorted(set(each)) != []
    )
    _must("record", record, legal, record in (None, "log") or grows)
    _must("method", c.method, "a name", isinstance(c.method, str))
    _must("fingerprint", c.fingerprint, "a list", isinstance(c.fingerprint, list))
    _must("dtype", c.dtype, "'float32' or 'float64'", c.dtype in ("float32", "float64"))
    _must(
        "shape",
        c.shape,
        "whole numbers ≥ 1",
        all(_count(size) and size >= 1 for size in c.shape),
    )
    different = all(map(_count, c.runs)) and len(set(c.runs)) == len(c.runs) > 0
    _must("runs", c.runs, "different whole numbers ≥ 0, at least one", different)
    for name in ("single", "keep_iterates"):
        _must(
            name, getattr(c, name), "true or false", isinstance(getattr(c, name), bool)
        )
    _must(
        "single",
        c.single,
        "false where there are several runs",
        not c.single or len(c.runs) == 1,
    )
    try:
        SeedSequence(c.entropy, spawn_key=c.spawn_key)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"entropy={c.entropy!r} and spawn_key={c.spawn_key!r} make no seed: {error}"
        ) from None


def _history(
    history: Mapping[str, Any], runs: int, dimension: int, dtype: Any, iterates: bool
) -> None:
    if not history:
        return
    for name in (*_COUNTS, "multiplier", *(["x"] if iterates else [])):
        if name not in history:
            raise KeyError(f"history.{name}")
    rows = len(np.atleast_1d(history["step"]))
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        name: ((rows,), np.dtype(np.int64)) for name in _COUNTS
    }
    shapes |= {
        name: ((rows, runs), np.dtype(np.float64)) for name in ("multiplier", *MEASURES)
    }
    shapes |= {"x": ((rows, runs, dimension), dtype)} if iterates else {}
    for name, column in history.items():
        _must("history", name, f"one of {', '.join(shapes)}", name in shapes)
        _array(f"history.{name}", column, *shapes[name])
    _must(
        "history.step",
        "the steps",
        "increasing",
        bool(np.all(np.diff(history["step"]) > 0)),
    )
    least = min((int(history[name].min()) for name in _COUNTS if rows), default=0)
    _must(
        "history",
        f"a table with the count {least}",
        "one of whole numbers ≥ 0",
        least >= 0,
    )


def _streams(streams: Any, alive: int) -> None:
    """The states of the generators; none in a result that cannot be resumed."""
    names = {"upper", "lower", "selection"}
    _must(
        "streams",
        "what is there",
        f"those of {sorted(names)}",
        isinstance(streams, dict) and set(streams) <= names,
    )
    if streams and set(streams) != names:
        raise KeyError(f"streams.{min(names - set(streams))}")
    for name, states in streams.items():
        full = isinstance(states, list) and len(states) == alive
        _must(
            f"streams.{name}",
            "the list of states",
            f"one for each of {alive} runs",
            full,
        )
        generator = PCG64(0)
        for state in states:
            try:
                generator.state = state
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise ValueError(
                    f"streams.{name} holds no state of a generator: {error!r}"
                ) from None


def _count(value: Any) -> bool:
    return (
        type(value) is int and 0 <= value < 2**63
    )  # not a bool, and as large as a file can hold


def _array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    fits = array.shape == shape and array.dtype == dtype
    _must(name, _shown(array), f"of shape {shape} and dtype {dtype}", fits)


def _shown(array: Any) -> str:
    return f"an array of shape {array.shape} and dtype {array.dtype}"


def _must(name: str, value: Any, legal: str, holds: Any) -> None:
    if not holds:
        raise ValueError(
            f"{name} is {value if isinstance(value, str) else repr(value)}; it must be {legal}"
        )
