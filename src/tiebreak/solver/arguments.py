"""The arguments of :func:`tiebreak.minimize`, checked before anything is changed, and the state to start from."""

import copy
import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from tiebreak import methods
from tiebreak.estimators import Estimator
from tiebreak.files import FilePath
from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.result import MEASURES, Result
from tiebreak.schedules import Power
from tiebreak.solver.budget import first_cost, limit
from tiebreak.solver.checkpoint import Configuration, State, load_state
from tiebreak.solver.history import Measurer
from tiebreak.solver.objective import Level


class Setup(NamedTuple):
    """A checked problem and the state to start from."""

    upper: Level
    lower: Level
    method: Method
    configuration: Configuration
    state: State


def prepare(
    upper: Any,
    lower: Any,
    x0: Any,
    method: Any,
    budget: Any,
    steps: Any,
    runs: Any,
    seed: Any,
    record: Any,
    keep_iterates: bool,
    resume: Result | FilePath | None,
) -> Setup:
    """Check every argument of :func:`tiebreak.minimize`; start a new run, or resume a result or a file."""
    if budget is None and steps is None and resume is None:  # a plan has both
        budget = getattr(method, "budget", None)
        steps = getattr(method, "steps", None)
    budget = None if budget is None else limit("budget", budget)
    steps = None if steps is None else limit("steps", steps)
    source = ""
    if resume is None:
        if budget is None and steps is None:
            raise ValueError(
                "budget=None and steps=None: give at least one of them, a whole number ≥ 1"
            )
        chosen = methods.get("auto" if method is None else method)
        state = _new_state(x0, chosen, budget, steps, runs, seed, record, keep_iterates)
    else:
        state, source = _loaded(resume)
        chosen = _resumed_method(state, source, method)
        _check_repeated(state, source, x0, runs, seed)
        _check_memory(state, source, chosen)
        if budget is not None:
            state.configuration.budget = budget
        if steps is not None:
            state.configuration.steps = steps
    c = state.configuration
    above = Level("upper", upper, c.shape, np.dtype(c.dtype))
    below = Level("lower", lower, c.shape, np.dtype(c.dtype))
    if "lower_value" in chosen.needs and not below.has_value:
        raise ValueError(
            f"the rule of {chosen.name!r} needs the lower objective's value: give the lower oracle `value=`"
        )
    if chosen.schedule.step_size is None:
        raise ValueError(
            f"the schedule of {chosen.name!r} sets no step_size: give it one, a number > 0 or a law"
        )
    if resume is not None:
        _check_oracles(above, below, chosen, state, source)
    cost = first_cost(chosen)
    if c.budget is not None and c.budget < cost:
        raise ValueError(
            f"budget={c.budget!r} must be at least {cost}, the cost of the first step of {chosen.name}"
        )
    return Setup(above, below, chosen, c, state)


# ----------------------------------------------------------------------------------------------------- a new run


def _new_state(
    x0: Any,
    method: Method,
    budget: int | None,
    steps: int | None,
    runs: Any,
    seed: Any,
    record: Any,
    keep_iterates: bool,
) -> State:
    start = _point(x0)
    numbers = _runs(runs)
    sequence = _seed(seed)
    configuration = Configuration(
        method=method.name,
        fingerprint=_fingerprint(method),
        shape=start.shape,
        dtype=start.dtype.name,
        entropy=sequence.entropy,
        spawn_key=sequence.spawn_key,
        runs=numbers,
        single=runs is None,
        record=_record(record, budget),
        keep_iterates=bool(keep_iterates),
        budget=budget,
        steps=steps,
    )
    count = len(numbers)
    x = np.repeat(start.reshape(1, -1), count, axis=0)
    counts = np.zeros(count, dtype=np.int64)
    memory = [
        np.broadcast_to(column, count) for column in method.begin(np.zeros(count))
    ]
    return State(
        configuration=configuration,
        k=0,
        weight=0.0,
        alive=list(range(count)),
        memory={"upper": None, "lower": None},
        streams={},
        start=start.reshape(-1),
        x=x,
        selected=x.copy(),
        selected_step=counts.copy(),
        steps=counts.copy(),
        upper_calls=counts.copy(),
        lower_calls=counts.copy(),
        status=["RUNNING"] * count,
        faults={},
        history={},
        last_measures={},
        selected_measures={},
        rule=tuple(np.array(column, np.float64) for column in memory),
        selected_rule=tuple(np.array(column, np.float64) for column in memory),
    )


def _point(x0: Any) -> Array:
    if x0 is None:
        raise ValueError("x0=None: give the point to start from")
    start = np.array(x0)
    if start.dtype.kind in "iu":
        start = start.astype(np.float64)
    if start.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"x0 has dtype {start.dtype}; it must be float32 or float64 (or whole numbers)"
        )
    if start.size == 0:
        raise ValueError(
            f"x0 has shape {start.shape}; it must hold at least one number"
        )
    if not np.isfinite(start).all():
        place = int(np.flatnonzero(~np.isfinite(start.reshape(-1)))[0])
        raise ValueError(
            f"x0 must be finite; number {place} of it is {start.reshape(-1)[place]}"
        )
    return start


def _runs(runs: Any) -> tuple[int, ...]:
    """The numbers of the runs."""
    legal = "a whole number ≥ 1, or the numbers of the runs wanted"
    if runs is None:
        return (0,)
    if isinstance(runs, (int, np.integer)) and not isinstance(runs, bool):
        if runs < 1:
            raise ValueError(f"runs={runs!r} must be {legal}")
        return tuple(range(int(runs)))
    if not isinstance(runs, (Sequence, range, np.ndarray)) or isinstance(runs, str):
        raise TypeError(f"runs={runs!r} must be {legal}")
    numbers = tuple(map(int, runs))
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"runs={runs!r} must be different whole numbers ≥ 0, at least one"
        )
    return numbers


def _seed(seed: Any) -> SeedSequence:
    if isinstance(seed, SeedSequence):
        return seed
    try:
        return SeedSequence(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"seed={seed!r} must be a whole number ≥ 0, a sequence of them, a SeedSequence or None"
        ) from None


def _record(record: Any, budget: int | None) -> str | int | tuple[int, ...] | None:
    if record is None or (isinstance(record, str) and record == "log"):
        return record
    if isinstance(record, int) and not isinstance(record, bool) and record >= 1:
        return record
    if not isinstance(record, (list, tuple, np.ndarray)):
        raise ValueError(
            f"record={record!r} must be 'log', a whole number n ≥ 1 (every n-th step), call counts that grow, or None"
        )
    counts = tuple(limit("record", count) for count in record)
    grows = bool(counts) and list(counts) == sorted(set(counts))
    if not grows or (budget is not None and counts[-1] > budget):
        most = "" if budget is None else f", at most the budget, {budget}"
        raise ValueError(f"record={record!r} must be call counts that grow{most}")
    return counts


# ------------------------------------------------------------------------------------------------- a resumed run


def _loaded(resume: Any) -> tuple[State, str]:
    """The state to resume, and a name of its source for messages."""
    if isinstance(resume, Result):
        return copy.deepcopy(resume.state), "the result"
    if isinstance(resume, (str, os.PathLike)):
        return load_state(resume), os.fspath(resume)
    raise TypeError(
        f"resume={resume!r} must be a result, or the path of a saved one: result.save(path), then resume=path"
    )


def _resumed_method(state: State, source: str, method: Any) -> Method:
    """The method to go on with: the one that made the state."""
    c = state.configuration
    named = method is None
    if method is None:
        rows = [row for row in methods.NAMED.values() if row.name == c.method]
        if not rows:
            raise ValueError(
                f"method=None: {source!r} was made with {c.method!r}, a method of your own; give it again"
            )
        method = rows[0]
    chosen = methods.get(method)
    if chosen.name != c.method:
        raise ValueError(
            f"method={chosen.name!r} must be {c.method!r}, which {source!r} was made with"
        )
    if _fingerprint(chosen) != c.fingerprint:
        remedy = (
            "method=None: give it again"
            if named
            else f"method={chosen.name!r} is another one"
        )
        raise ValueError(
            f"{remedy}; {source!r} was made with a {c.method} of another rule, estimator or schedule"
        )
    return chosen


def _check_repeated(state: State, source: str, x0: Any, runs: Any, seed: Any) -> None:
    """Arguments that are given again must be what they were."""
    c = state.configuration
    remedy = "Leave it out to resume"
    if x0 is not None and np.shape(x0) != c.shape:
        raise ValueError(
            f"x0 has shape {np.shape(x0)}; {source!r} has {c.shape}. {remedy}"
        )
    if x0 is not None and not np.array_equal(_point(x0).reshape(-1), state.start):
        raise ValueError(f"x0 differs from the start of {source!r}. {remedy}")
    if runs is not None and _runs(runs) != c.runs:
        raise ValueError(
            f"runs={runs!r} must be those of {source!r}, {list(c.runs)}. {remedy}"
        )
    if seed is not None:
        sequence = _seed(seed)
        if (sequence.entropy, sequence.spawn_key) != (c.entropy, c.spawn_key):
            raise ValueError(
                f"seed={seed!r} must be that of {source!r}, {c.entropy!r}. {remedy}"
            )


def _check_memory(state: State, source: str, method: Method) -> None:
    """Raise unless the state holds the memory of the method's rule and estimator."""
    stored = len(state.rule)
    needed = len(method.begin(np.zeros(1)))
    if stored != needed:
        raise ValueError(
            f"{source!r} remembers {stored} numbers for the rule of {method.name}; it has {needed}"
        )
    rows = state.x[state.alive]
    for level, memory in state.memory.items():
        if memory is None and state.k == 0:
            continue
        begun = method.estimator.begin(level, 0 * rows, 0 * rows[:, :1])
        if method.estimator.evaluations == 2:
            begun = (rows, *begun)
        expected = list(map(_kind, begun))
        kinds = list(map(_kind, memory or ()))
        if kinds != expected:
            raise ValueError(
                f"{source!r} remembers {kinds} for the {level} level; "
                f"{type(method.estimator).__name__} needs {expected}"
            )


def _check_oracles(
    upper: Level, lower: Level, method: Method, state: State, source: str
) -> None:
    """Raise unless the oracles take the points of the run, and provide the measures of its history; not charged."""
    available = Measurer(method, upper, lower).available
    lost = [
        name for name in MEASURES if name in state.history and name not in available
    ]
    if lost:
        raise ValueError(
            f"the oracles no longer give {', '.join(lost)}, which the history of {source!r} holds: "
            "give them `value` and `exact_gradient` as they had before"
        )
    for level in (upper, lower):
        try:
            with np.errstate(all="ignore"):
                if level.has_exact:
                    level.exact(state.start[None])
                elif level.has_value:
                    level.value(state.start[None])
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{level.name} cannot be evaluated at the start of {source!r}, of shape {level.shape}: {error}. "
                "It must be the objective of that run"
            ) from error


def _kind(values: Any) -> str:
    """The kind of numbers in an array, and its shape."""
    array = np.asarray(values)
    kinds = {"f": "real numbers", "i": "whole numbers", "u": "whole numbers"}
    return f"{kinds.get(array.dtype.kind, array.dtype.name)} of shape {array.shape}"


def _fingerprint(method: Method) -> list[Any]:
    """What tells two methods apart without comparing functions: names, power laws, first values of all other laws."""
    rule = getattr(method.rule, "__qualname__", type(method.rule).__qualname__)
    laws: dict[str, Any] = method.schedule.at(0).named()
    for name in laws:
        law = getattr(method.schedule, name, None)
        if isinstance(law, Power):
            laws[name] = repr(law)
    return [rule, _named(method.estimator), laws]


def _named(estimator: Any) -> Any:
    """An estimator's kind, and those of its own settings that are not the default and can be compared."""
    kind = type(estimator).__qualname__
    settings: dict[str, Any] = {}
    for field in fields(estimator) if is_dataclass(estimator) else ():
        value = getattr(estimator, field.name)
        if isinstance(value, Estimator):
            settings[field.name] = _named(value)
        elif isinstance(value, (bool, int, str)) and value != field.default:
            settings[field.name] = value
    if settings:
        return [kind, settings]
    return kind
