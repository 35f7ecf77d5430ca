"""Whole experiments in JAX: the schedule is the core's, the loop is compiled, the result is the core's."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from tiebreak import oracles
from tiebreak.budget import Steps, calls
from tiebreak.live import Progress, progress_line
from tiebreak.methods import Method
from tiebreak.optax.oracles import oracle
from tiebreak.optax.run import Problem, execute, watched
from tiebreak.optax.trees import Tree, widen
from tiebreak.recording import means, wanted
from tiebreak.remarks import warned
from tiebreak.result import Result, Status
from tiebreak.schedules import Parameters
from tiebreak.setup import prepare
from tiebreak.state import State

__all__ = ["solve"]

_VALUES = ("upper_value", "lower_value")
_LOOKS = 200  # at least, in a run that is watched


def solve(
    upper: Any,
    lower: Any,
    x0: Tree,
    method: Method | str = "sdbgd",
    *,
    steps: int | None = None,
    budget: int | None = None,
    runs: int | Sequence[int] | None = None,
    key: Any = 0,
    seed: Any = None,
    record: str | int | None = "log",
    keep_iterates: bool = False,
    progress: bool | Callable[[Progress], Any] = False,
) -> Result:
    """:func:`tiebreak.minimize` for problems in JAX: all steps of all runs are one compiled program.

    Parameters
    ----------
    upper, lower : callable or oracle
        f and g. A plain function is a loss, with exact gradients by ``jax.grad``; for noise give :class:`Gaussian` or
        an object of your own with ``gradient(x, key, size)``.
    x0 : tree
        Where to start. Its dtype is the run's: for float64 enable ``jax_enable_x64``.
    method : Method or str
        A row of :mod:`tiebreak.methods`, or your own (rule and estimator in jax.numpy, the schedule in Python). Without
        one it is **SDBGD** with the paper's constants, and not "auto" as in `minimize`: that is not for JAX.
    steps, budget : int, optional
        Steps to make, and calls that each run may make; the first to be reached ends the run.
    runs : int or sequence of int, optional
        How many independent runs, or the numbers of those wanted: run 3 has the same random numbers whatever runs
        beside it. If given, every array of the result has a leading axis for runs.
    key : int or key
        A seed, or a key of ``jax.random``. `minimize` calls it ``seed``; here that word is refused, with this reason.
    record : "log", int or None
        What goes into the history: about 50 steps a decade, every n-th step, or nothing.
    keep_iterates : bool
        Whether the history keeps the recorded iterates, too (flat, where x0 is no array).
    progress : bool or callable
        True for a line on standard error, or a function of :class:`~tiebreak.live.Progress`. The program is then made
        in some hundred parts, and told of in between; the numbers are the same. Compiling takes a little longer.

    Returns
    -------
    Result
        As of :func:`tiebreak.minimize`, in NumPy arrays, with ``history`` as there; ``x`` has the structure of x0. It
        can be saved and loaded, but not resumed.

    Notes
    -----
    Compiling takes some seconds, once for each set of objectives, method and number of steps and runs: pass the same
    functions again, rather than new ones. The random numbers are not those of `minimize`, only their law is.

    Examples
    --------
    >>> def f(x): return jnp.sum((x - jnp.array([3.0, 1.0])) ** 2)
    >>> def g(x): return (x[0] - x[1]) ** 2
    >>> result = solve(f, g, jnp.zeros(2), steps=300, runs=4)
    >>> result.history.multiplier.shape
    (79, 4)
    >>> result.x.shape, bool((result.last.lower_gradient_squared < 0.1).all())
    ((4, 2), True)
    """
    began = time.perf_counter()
    if seed is not None:
        raise TypeError(f"seed={seed!r}: here it is key={seed!r}, a seed or a key of jax.random")
    levels = oracle("upper", upper), oracle("lower", lower)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=jnp.result_type(leaf, jnp.bfloat16)), x0)
    flat, unravel = ravel_pytree(start)
    array = jax.tree.structure(start) == jax.tree.structure(0)  # type: ignore[operator]  # jaxlib has no types
    point = np.asarray(start if array else flat)
    entropy_of = int(key) if isinstance(key, (int, np.integer)) else np.asarray(jax.random.key_data(key)).tolist()
    # The core checks the arguments, and holds the state that results are read from. It does not see the objectives.
    stub = oracles.Exact(lambda x: x, (lambda x: x) if hasattr(levels[1], "value") else None)
    checked = point if point.dtype in (np.float32, np.float64) else point.astype(np.float32)
    setup = prepare(stub, stub, checked, method, budget, steps, runs, entropy_of, record, bool(keep_iterates), None)
    row, state = setup.method, setup.state
    if getattr(row.estimator, "watches", False):
        raise ValueError(
            f"method={row.name!r} chooses its step sizes from what {type(row.estimator).__name__} sees, which "
            "tiebreak.minimize finds out; here give a method with a schedule, such as 'sdbgd' or a plan"
        )
    if not (isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress={progress!r} must be True, False or a function")
    fitting = Steps(row, steps=setup.configuration.steps, budget=setup.configuration.budget)
    parameters = list(fitting)
    if not (record is None or isinstance(record, (str, int))):
        raise ValueError(f"record={record!r} must be 'log', a whole number n ≥ 1 or None; minimize takes call counts")
    recorded = [k for k, chosen in enumerate(wanted(record, 0, len(parameters))) if chosen] or [0]
    looked_at = recorded if progress is False else sorted({*recorded, *_looks(len(parameters))})
    base = jax.random.key(entropy_of) if isinstance(entropy_of, int) else key
    numbers = setup.configuration.runs
    given: dict[str, Any] = {
        "problem": Problem(*levels, row, bool(keep_iterates)),
        "x0": start,
        "keys": jax.vmap(jax.random.fold_in, (None, 0))(base, jnp.array(numbers)),
        "table": {name: jnp.asarray(values, dtype=widen(flat).dtype) for name, values in _table(parameters).items()},
        "starts": jnp.array(looked_at, dtype=int),
        "stops": jnp.array([*looked_at[1:], len(parameters)], dtype=int),
    }
    entropy = np.asarray(jax.random.key_data(base)).tolist()
    uniforms = np.array([np.random.default_rng([*entropy, run]).random() for run in numbers])
    chosen = _selected(parameters, uniforms, np.full(len(numbers), len(parameters)))
    each = np.array([calls(row, p) for p in parameters], dtype=np.int64)
    spent = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(each, axis=0)])
    with progress_line("Compiling") if progress is True else nullcontext(progress or None) as shown:
        if shown is None:
            program = partial(execute, **given)
        else:
            limits = setup.configuration.steps, setup.configuration.budget
            program = partial(watched, **given, hear=partial(_tell, shown, looked_at, spent.sum(axis=1), limits))
        found = jax.device_get(_kindly(program, row, chosen=chosen))
        allowed = _selected(parameters, uniforms, found["steps"])
        if (allowed != chosen).any():  # runs that ended early select among the steps they made: the same numbers again
            chosen = allowed
            found = jax.device_get(program(chosen=chosen))
    if looked_at is not recorded:
        rows = np.searchsorted(looked_at, recorded)
        found["history"] = {name: column[:, rows] for name, column in found["history"].items()}
    state.selected_step, state.weight = chosen, float(sum(p.weight for p in parameters))
    _fill(state, found, spent, recorded, fitting.ended)
    state.elapsed = time.perf_counter() - began
    result = state.result()
    warned(result)
    return result if array else _structured(result, unravel, runs is None)


def _kindly(program: Callable[..., Any], method: Method, **given: Any) -> Any:
    """What the program returns; an error of NumPy functions on traced numbers as a sentence."""
    try:
        return program(**given)
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(
            f"the rule or the estimator of {method.name!r}, or an objective, calls NumPy on numbers of a compiled "
            "program: write it with jax.numpy (jnp.where, jnp.maximum), or take tiebreak.minimize"
        ) from error
    except TypeError as error:
        if not str(error).startswith("Gradient only defined for scalar-output"):
            raise
        raise TypeError(
            f"an objective gives no single number ({error}); it must be a loss, x ↦ one number, of which JAX takes the "
            "gradient. tiebreak.minimize takes gradients; here an oracle with gradient(x, key, size) does"
        ) from error


def _table(parameters: list[Parameters]) -> dict[str, list[float]]:
    rows = [p.named() | {"upper_points": p.upper_points, "lower_points": p.lower_points} for p in parameters]
    return {name: [row[name] for row in rows] for name in rows[0] if name != "k"}


def _looks(steps: int) -> range:
    """Where a run is looked at besides: nothing between two records may take long.

    >>> _looks(1000)
    range(0, 1000, 5)
    """
    return range(0, steps, max(1, steps // _LOOKS))


def _tell(
    shown: Callable[[Progress], Any],
    looked_at: list[int],
    spent: NDArray[np.int64],
    limits: tuple[int | None, int | None],
    last: int,
    rows: Mapping[str, Any],
) -> None:
    """Say what is known at the `last` of the records that were made; all steps before the next one are."""
    k = looked_at[last + 1] if last + 1 < len(looked_at) else len(spent) - 1
    newest = {name: np.asarray(column)[:, -1] for name, column in rows.items()}
    shown(Progress.at(k, int(spent[k]), *limits, *means(newest)))


def _selected(parameters: list[Parameters], uniforms: NDArray[np.float64], steps: Any) -> NDArray[np.int64]:
    """N_K of each run, P(N_K = k) ∝ η_k β_k among the steps it made, by inversion: all weights are known ahead."""
    totals = np.add.accumulate([p.weight for p in parameters])
    made = np.maximum(np.asarray(steps), 1)
    found: NDArray[np.int64] = np.searchsorted(totals, uniforms * totals[made - 1], side="right")
    return np.where(found < made, found, made - 1)


def _fill(
    state: State,
    found: dict[str, Any],
    spent: NDArray[np.int64],
    recorded: list[int],
    ended: Status,
) -> None:
    """Put what the program returned into the core's state; `spent` has the calls of both levels before each step."""
    c, steps = state.configuration, len(spent) - 1
    c.fingerprint = ["jax"]  # so that `minimize` refuses to go on from it
    made = np.asarray(found["steps"], dtype=np.int64)
    alive = made == steps
    charged = spent[np.minimum(made + 1, steps)]  # the step that failed was charged
    if c.record is not None:
        rows = np.array([k for k in recorded if k <= made.max()])
        beyond = rows[:, None] > made[None, :]
        for name, values in found["history"].items():
            column = np.moveaxis(np.asarray(values), 0, 1)[: len(rows)]
            column = column.astype(c.dtype if name == "x" else np.float64)
            state.history[name] = np.where(beyond.reshape(*beyond.shape, *(1,) * (column.ndim - 2)), np.nan, column)
        state.history |= {"step": rows, "upper_calls": spent[rows, 0], "lower_calls": spent[rows, 1]}
    first = {name: np.asarray(found["history"][name], np.float64) for name in _VALUES if name in found["history"]}
    state.start_measures = {name: column[:, 0] for name, column in first.items()}
    state.last_measures, state.selected_measures = (
        {n: np.asarray(v, np.float64) for n, v in found[name].items()}
        for name in ("last_measures", "selected_measures")
    )
    state.k, state.alive = steps, [int(r) for r in np.flatnonzero(alive)]
    state.x, state.selected = np.array(found["x"], dtype=c.dtype), np.array(found["selected"], dtype=c.dtype)
    state.steps = made
    state.upper_calls, state.lower_calls = charged[:, 0], charged[:, 1]
    state.status = [ended.name if going else Status.NON_FINITE.name for going in alive]
    state.faults = {
        int(r): f"run {c.runs[r]} at step {made[r]}: not finite; its last finite iterate is kept"
        for r in np.flatnonzero(~alive)
    }


def _structured(result: Result, unravel: Any, single: bool) -> Result:
    """The iterates in the structure of x0."""

    def points(x: Any) -> Any:
        return jax.tree.map(np.asarray, unravel(x) if single else jax.vmap(unravel)(x))

    each = {name: replace(p, x=points(p.x)) for name in ("start", "last", "selected") if (p := getattr(result, name))}
    return replace(result, **each)
