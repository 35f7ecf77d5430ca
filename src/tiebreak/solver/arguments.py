"""From what a user gives to what the loop needs: every argument checked before anything is changed."""

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
    """Check every argument of :func:`tiebreak.minimize`; start afresh, or from the result or file `resume`."""
    if budget is None and steps is None and resume is None:  # a plan knows
        budget = getattr(method, "budget", None)
        steps = getattr(method, "steps", None)
    budget = None if budget is None else limit("budget", budget)
    steps = None if steps is None else limit("steps", steps)
    if resume is None:
        if budget is None and steps is None:
            raise ValueError(
                "budget=None and steps=None: give at least one of them, a whole number ≥ 1"
            )
        chosen = methods.get("auto" if method is None else method)
        state = _fresh(x0, chosen, budget, steps, runs, seed, record, keep_iterates)
    else:
        if isinstance(resume, Result):
            state = copy.deepcopy(resume.state)
            resume = "the result"
        elif isinstance(resume, (str, os.PathLike)):
            state = load_state(resume)
        else:
            raise TypeError(
                f"resume={resume!r} must be a result, or the path of a saved one: result.save(path), then resume=path"
            )
        chosen = _resumed(state, resume, method, x0, runs, seed)
        state.configuration.budget = (
            state.configuration.budget if budget is None else budget
        )
        state.configuration.steps = (
            state.configuration.steps if steps is None else steps
        )
    c = state.configuration
    levels = [
        Level(n, o, c.shape, np.dtype(c.dtype))
        for n, o in (("upper", upper), ("lower", lower))
    ]
    if "lower_value" in chosen.needs and not levels[1].has_value:
        raise ValueError(
            f"the rule of {chosen.name!r} needs the lower objective's value: give the lower oracle `value=`"
        )
    if chosen.schedule.step_size is None:
        raise ValueError(
            f"the schedule of {chosen.name!r} sets no step_size: give it one, a number > 0 or a law"
        )
    lost = [
        n
        for n in MEASURES
        if n in state.history and n not in Measurer(chosen, *levels).available
    ]
    if lost:
        raise ValueError(
            f"the oracles no longer give {', '.join(lost)}, which the history of {os.fspath(resume or '')!r} holds: "
            "give them `value` and `exact_gradient` as they had before"
        )
    if resume is not None:
        for level in levels:
            _fits(level, state, resume)
    cost = first_cost(chosen)
    if c.budget is not None and c.budget < cost:
        raise ValueError(
            f"budget={c.budget!r} must be at least {cost}, the cost of the first step of {chosen.name}"
        )
    return Setup(levels[0], levels[1], chosen, c, state)


def _fresh(
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
    single = runs is None
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
        single=single,
        record=_record(record, budget),
        keep_iterates=bool(keep_iterates),
        budget=budget,
        steps=steps,
    )
    count = len(numbers)
    x = np.repeat(start.reshape(1, -1), count, axis=0)
    zeros = [np.zeros(count, dtype=np.int64) for _ in range(4)]
    remembered = [
        tuple(
            np.array(np.broadcast_to(column, count), dtype=np.float64)
            for column in method.begin(np.zeros(count))
        )
        for _ in range(2)
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
        selected_step=zeros[0],
        steps=zeros[1],
        upper_calls=zeros[2],
        lower_calls=zeros[3],
        status=["RUNNING"] * count,
        faults={},
        history={},
        last_measures={},
        selected_measures={},
        rule=remembered[0],
        selected_rule=remembered[1],
    )


def _fits(level: Level, state: State, path: Any) -> None:
    """See that the objective takes the points of the run that is resumed; exact, and not charged."""
    look = level.exact if level.has_exact else level.value if level.has_value else None
    try:
        with np.errstate(all="ignore"):
            if look is not None:
                look(state.start[None])
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{level.name} cannot be evaluated at the start of {os.fspath(path)!r}, of shape {level.shape}: {error}. "
            "It must be the objective of that run"
        ) from error


def _record(given: Any, budget: int | None) -> str | int | tuple[int, ...] | None:
    if given is None or (isinstance(given, str) and given == "log"):
        return given
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return given
    if not isinstance(given, (list, tuple, np.ndarray)):
        raise ValueError(
            f"record={given!r} must be 'log', a whole number n ≥ 1 (every n-th step), call counts that grow, or None"
        )
    counts = tuple(limit("record", count) for count in given)
    if (
        not counts
        or list(counts) != sorted(set(counts))
        or counts[-1] > (budget or counts[-1])
    ):
        most = "" if budget is None else f", at most the budget, {budget}"
        raise ValueError(f"record={given!r} must be call counts that grow{most}")
    return counts


def _resumed(
    state: State, path: Any, method: Any, x0: Any, runs: Any, seed: Any
) -> Method:
    """The method to go on with; whatever was given again must be what it was."""
    c = state.configuration
    given = method
    if method is None:
        named = [m for m in methods.NAMED.values() if m.name == c.method]
        if not named:
            raise ValueError(
                f"method=None: {os.fspath(path)!r} was made with {c.method!r}, a method of your own; give it again"
            )
        method = named[0]
    chosen = methods.get(method)
    if chosen.name != c.method:
        raise ValueError(
            f"method={chosen.name!r} must be {c.method!r}, which {os.fspath(path)!r} was made with"
        )
    if _fingerprint(chosen) != c.fingerprint:
        again = (
            "method=None: give it again"
            if given is None
            else f"method={chosen.name!r} is another one"
        )
        raise ValueError(
            f"{again}; {os.fspath(path)!r} was made with a {c.method} of another rule, estimator or schedule"
        )
    if x0 is not None and np.shape(x0) != c.shape:
        raise ValueError(
            f"x0 has shape {np.shape(x0)}; {os.fspath(path)!r} has {c.shape}. Leave it out to resume"
        )
    if x0 is not None and not np.array_equal(_point(x0).reshape(-1), state.start):
        raise ValueError(
            f"x0 differs from the start of {os.fspath(path)!r}. Leave it out to resume"
        )
    if runs is not None and _runs(runs) != c.runs:
        raise ValueError(
            f"runs={runs!r} must be those of {os.fspath(path)!r}, {list(c.runs)}. Leave it out to resume"
        )
    if seed is not None and (_seed(seed).entropy, _seed(seed).spawn_key) != (
        c.entropy,
        c.spawn_key,
    ):
        raise ValueError(
            f"seed={seed!r} must be that of {os.fspath(path)!r}, {c.entropy!r}. Leave it out to resume"
        )
    _check_memory(state, path, chosen)
    return chosen


def _check_memory(state: State, path: Any, method: Method) -> None:
    """Raise unless the file remembers what the method's estimator is going to ask for."""
    there = len(state.rule)
    asked = len(method.begin(np.zeros(1)))
    if there != asked:
        raise ValueError(
            f"{os.fspath(path)!r} remembers {there} numbers for the rule of {method.name}; it has {asked}"
        )
    rows = state.x[state.alive]
    twice = method.estimator.evaluations == 2
    for level, memory in state.memory.items():
        begun = method.estimator.begin(level, 0 * rows, 0 * rows[:, :1])
        needed = [_kind(array) for array in ((rows, *begun) if twice else begun)]
        kept = [_kind(array) for array in memory or ()]
        if kept != needed and not (memory is None and state.k == 0):
            raise ValueError(
                f"{os.fspath(path)!r} remembers {kept} for the {level} level; "
                f"{type(method.estimator).__name__} needs {needed}"
            )


def _kind(values: Any) -> str:
    """The kind of numbers in an array, and its shape."""
    array = np.asarray(values)
    kinds = {"f": "real numbers", "i": "whole numbers", "u": "whole numbers"}
    return f"{kinds.get(array.dtype.kind, array.dtype.name)} of shape {array.shape}"


def _fingerprint(method: Method) -> list[Any]:
    """What tells two methods apart without comparing functions: names, power laws, first values of all other laws."""
    rule = getattr(method.rule, "__qualname__", type(method.rule).__qualname__)
    first = method.schedule.at(0).named()
    laws = {name: getattr(method.schedule, name, None) for name in first}
    return [
        rule,
        _named(method.estimator),
        {n: repr(w) if isinstance(w, Power) else first[n] for n, w in laws.items()},
    ]


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
    return [kind, settings] if settings else kind


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
        where = int(np.flatnonzero(~np.isfinite(start.reshape(-1)))[0])
        raise ValueError(
            f"x0 must be finite; number {where} of it is {start.reshape(-1)[where]}"
        )
    return start


def _runs(runs: Any) -> tuple[int, ...]:
    if runs is None:
        return (0,)
    if isinstance(runs, (int, np.integer)) and not isinstance(runs, bool):
        if runs < 1:
            raise ValueError(
                f"runs={runs!r} must be a whole number ≥ 1, or the numbers of the runs wanted"
            )
        return tuple(range(int(runs)))
    if not isinstance(runs, (Sequence, range, np.ndarray)) or isinstance(runs, str):
        raise TypeError(
            f"runs={runs!r} must be a whole number ≥ 1, or the numbers of the runs wanted"
        )
    numbers = tuple(int(r) for r in runs)
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
