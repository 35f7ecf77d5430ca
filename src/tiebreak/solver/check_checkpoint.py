"""Checks of a saved run before it is resumed: every type, shape and range."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import PCG64, SeedSequence

from tiebreak.checks import floating
from tiebreak.result import MEASURES, Status

_COUNTS = ("step", "upper_calls", "lower_calls")  # of a history, one for all runs
_LEVELS = {"upper", "lower"}
_WIDE = np.dtype(np.float64)
_WHOLE = np.dtype(np.int64)


def check(state: Any) -> None:
    """Raise ValueError, TypeError or KeyError with the fault; `state` is a :class:`tiebreak.solver.checkpoint.State`."""
    c = state.configuration
    _configuration(c)
    runs = len(c.runs)
    dimension = math.prod(c.shape)
    dtype = np.dtype(c.dtype)
    _must("k", state.k, "a whole number ≥ 0", _is_count(state.k))
    for name in ("weight", "elapsed"):
        value = getattr(state, name)
        fits = type(value) in (int, float) and 0 <= floating(value) < math.inf
        _must(name, value, "a finite number ≥ 0", fits)
    alive = state.alive
    fits = isinstance(alive, list) and all(
        _is_count(run) and run < runs for run in alive
    )
    _must(
        "alive",
        alive,
        f"different numbers below {runs}, in order",
        fits and alive == sorted(set(alive)),
    )
    status = state.status
    fits = isinstance(status, list) and all(
        word in Status.__members__ for word in status
    )
    _must("status", status, f"{runs} names of a status", fits and len(status) == runs)
    fits = all(
        0 <= run < runs and isinstance(text, str) for run, text in state.faults.items()
    )
    _must("faults", state.faults, f"texts for runs below {runs}", fits)
    _arrays(state, ("start",), (dimension,), dtype)
    _arrays(state, ("x", "selected"), (runs, dimension), dtype)
    counts = ("selected_step", "steps", "upper_calls", "lower_calls")
    _arrays(state, counts, (runs,), _WHOLE)
    for name in counts:
        values = getattr(state, name)
        _must(name, values.tolist(), "whole numbers ≥ 0", bool(np.all(values >= 0)))
    for table in ("start_measures", "last_measures", "selected_measures", "chosen"):
        for name, column in getattr(state, table).items():
            named = table == "chosen" or name in MEASURES
            _must(table, name, f"one of {', '.join(MEASURES)}", named)
            _array(f"{table}.{name}", column, (runs,), _WIDE)
    for name in ("rule", "selected_rule"):
        for i, array in enumerate(getattr(state, name)):
            _array(f"{name}.{i}", array, (runs,), _WIDE)
    _history(state.history, runs, dimension, dtype, c.keep_iterates)
    _streams(state.streams, len(alive))
    _must(
        "memory",
        list(state.memory),
        "that of 'upper' and 'lower'",
        set(state.memory) == _LEVELS,
    )
    legal = f"numbers for each of {len(alive)} runs"
    for level, memory in state.memory.items():
        for i, array in enumerate(memory or ()):
            fits = (
                array.ndim >= 1
                and len(array) == len(alive)
                and array.dtype.kind in "fiub"
            )
            _must(f"memory.{level}.{i}", _described(array), legal, fits)


def _configuration(c: Any) -> None:
    for name in ("budget", "steps"):
        value = getattr(c, name)
        fits = value is None or (_is_count(value) and value >= 1)
        _must(name, value, "None or a whole number ≥ 1", fits)
    record = c.record
    counts = record if isinstance(record, tuple) else (record,)
    grows = (
        all(_is_count(n) and n >= 1 for n in counts)
        and list(counts) == sorted(set(counts)) != []
    )
    legal = "None, 'log', a whole number ≥ 1 or such numbers that grow"
    _must("record", record, legal, record in (None, "log") or grows)
    _must("method", c.method, "a name", isinstance(c.method, str))
    _must("fingerprint", c.fingerprint, "a list", isinstance(c.fingerprint, list))
    _must("dtype", c.dtype, "'float32' or 'float64'", c.dtype in ("float32", "float64"))
    sizes = all(_is_count(size) and size >= 1 for size in c.shape)
    _must("shape", c.shape, "whole numbers ≥ 1", sizes)
    different = all(map(_is_count, c.runs)) and len(set(c.runs)) == len(c.runs) > 0
    _must("runs", c.runs, "different whole numbers ≥ 0, at least one", different)
    for name in ("single", "keep_iterates"):
        value = getattr(c, name)
        _must(name, value, "true or false", isinstance(value, bool))
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
    required = [*_COUNTS, "multiplier"]
    if iterates:
        required.append("x")
    for name in required:
        if name not in history:
            raise KeyError(f"history.{name}")
    rows = len(np.atleast_1d(history["step"]))
    shapes: dict[str, Any] = dict.fromkeys(_COUNTS, ((rows,), _WHOLE))
    shapes |= dict.fromkeys(("multiplier", *MEASURES), ((rows, runs), _WIDE))
    if iterates:
        shapes["x"] = ((rows, runs, dimension), dtype)
    for name, column in history.items():
        _must("history", name, f"one of {', '.join(shapes)}", name in shapes)
        _array(f"history.{name}", column, *shapes[name])
    increasing = bool(np.all(np.diff(history["step"]) > 0))
    _must("history.step", "the steps", "increasing", increasing)
    for name in _COUNTS:
        least = int(history[name].min(initial=0))
        _must(
            "history",
            f"a table with the count {least}",
            "one of whole numbers ≥ 0",
            least >= 0,
        )


def _streams(streams: Any, alive: int) -> None:
    """The states of the generators; empty in a result that cannot be resumed."""
    names = {*_LEVELS, "selection"}
    fits = isinstance(streams, dict) and set(streams) <= names
    _must("streams", "what is there", f"those of {sorted(names)}", fits)
    if streams and set(streams) != names:
        raise KeyError(f"streams.{min(names - set(streams))}")
    generator = PCG64(0)
    for name, states in streams.items():
        complete = isinstance(states, list) and len(states) == alive
        _must(
            f"streams.{name}",
            "the list of states",
            f"one for each of {alive} runs",
            complete,
        )
        for state in states:
            try:
                generator.state = state
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise ValueError(
                    f"streams.{name} holds no state of a generator: {error!r}"
                ) from None


def _is_count(value: Any) -> bool:
    # No bool, and not larger than a file can hold.
    return type(value) is int and 0 <= value < 2**63


def _arrays(
    state: Any, names: tuple[str, ...], shape: tuple[int, ...], dtype: Any
) -> None:
    for name in names:
        _array(name, getattr(state, name), shape, dtype)


def _array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    fits = array.shape == shape and array.dtype == dtype
    _must(name, _described(array), f"of shape {shape} and dtype {dtype}", fits)


def _described(array: Any) -> str:
    return f"an array of shape {array.shape} and dtype {array.dtype}"


def _must(name: str, value: Any, legal: str, holds: Any) -> None:
    if not holds:
        text = value if isinstance(value, str) else repr(value)
        raise ValueError(f"{name} is {text}; it must be {legal}")
