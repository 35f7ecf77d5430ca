"""Runs of a method on a problem as blocks of a sweep. Both may be your own, in a file."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.experiments.blocks import Block, Interrupted
from tiebreak.experiments.own import in_files, kindly
from tiebreak.experiments.sweeps import split
from tiebreak.experiments.tables import Table, joined
from tiebreak.experiments.tasks import Reference, Task, found, reference
from tiebreak.methods import Method
from tiebreak.problems import Problem
from tiebreak.progress import Share
from tiebreak.result import MEASURES, Point, Result, Status
from tiebreak.solver.budget import steps_within
from tiebreak.solver.minimize import minimize
from tiebreak.solver.result_warnings import unsaid

#: Runs of a block. Vectorised, so many take little more time than one.
BLOCK = 512
_STEP = 8e-5  # seconds, about
_MANY = 50_000  # steps; more of them are not worth counting

Named: TypeAlias = Mapping[str, Any]


def solving(
    name: str,
    problem: str | Reference,
    method: str,
    *,
    budget: int | Sequence[int],
    runs: int,
    seed: int | Sequence[int],
    steps: int | None = None,
    record: str | int | None = "log",
    problem_arguments: Named | None = None,
    method_arguments: Named | None = None,
    iterates: bool = True,
    block: int = BLOCK,
) -> list[Task]:
    """The tasks that make these runs, each a block of them.

    Parameters
    ----------
    name : str
        What the tasks' names begin with.
    problem : str or Reference
        A :class:`~tiebreak.problems.Problem`, or a function that gives one: "module:name" or "file.py:name".
    method : str
        A name in :data:`tiebreak.methods.NAMED`, or where a method or a function that gives one is, likewise.
    budget, runs, seed, steps, record :
        As :func:`tiebreak.minimize` takes them. Run 3 is the same run whatever block it is in. Of several budgets that
        grow, runs are made once, to the largest, and read at each: the tables of last and selected iterates then have a
        column `budget`.
    problem_arguments, method_arguments : dict, optional
        What the problem's and the method's functions take, as plain data.
    iterates : bool
        Whether the blocks hold the points themselves, a column for each coordinate, beside what is known of them.
    block : int
        Runs of a block, at most. Few, where a gradient is dear or not vectorised.

    Examples
    --------
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=4, seed=0, block=2)
    >>> [task.name for task in tasks]
    ['mine, runs 0 to 1', 'mine, runs 2 to 3']
    """
    there = reference(problem, "problem") if isinstance(problem, str) else problem
    chosen: str | Reference = (
        method if method in methods.NAMED else reference(method, "method")
    )
    given: dict[str, Any] = {
        "method": chosen,
        "method_arguments": dict(method_arguments or {}),
    }
    budgets = [budget] if isinstance(budget, int) else [*budget]
    seconds = (
        _STEP
        * steps_within(_method(**given), budgets[-1], min(_MANY, steps or _MANY))[0]
    )
    common: dict[str, Any] = {
        "problem": there,
        "problem_arguments": dict(problem_arguments or {}),
        **given,
    }
    common |= {
        "budget": budget,
        "steps": steps,
        "seed": seed,
        "record": record,
        "iterates": iterates,
    }
    function = reference(f"{__name__}:solve")
    return [
        Task(
            f"{name}, runs {of.start} to {of.stop - 1}",
            function,
            common | {"runs": [of.start, of.stop]},
            seconds,
        )
        for of in split(runs, block)
    ]


def solve(
    hear: Callable[[float], Any],
    *,
    problem: Reference,
    problem_arguments: Named,
    method: str | Reference,
    method_arguments: Named,
    budget: int | Sequence[int],
    steps: int | None,
    runs: Sequence[int],
    seed: int | Sequence[int],
    record: str | int | None,
    iterates: bool,
) -> Block:
    """Runs from the first to before the last: their curves, their last and their selected iterates."""
    chosen = problem_of(problem, problem_arguments)
    row = _method(method, method_arguments)
    budgets, several = (
        ([budget], False) if isinstance(budget, int) else (list(budget), True)
    )
    fresh: dict[str, Any] = {
        "x0": chosen.x0,
        "runs": range(*runs),
        "seed": seed,
        "steps": steps,
    }
    fresh |= {"record": record, "keep_iterates": iterates}
    parts: dict[str, list[Table]] = {"last": [], "selected": []}
    faults = {}
    seconds = 0.0
    options = fresh
    own = in_files([problem, method, method_arguments.get("method", "")])
    for calls in budgets:
        heard = partial(_heard, hear, calls / budgets[-1])
        run = partial(
            minimize,
            chosen.upper,
            chosen.lower,
            method=row,
            budget=calls,
            progress=heard,
            **options,
        )
        with unsaid():  # the tables say it
            result = kindly(f"{row.name} on {chosen.name}", own, run) if own else run()
        for name, tables in parts.items():
            words: Table = (
                {"budget": np.full(len(result.steps), calls)} if several else {}
            )
            tables.append(
                words
                | _points(
                    name,
                    getattr(result, name),
                    result,
                    chosen.x0 if not iterates else None,
                )
            )
        faults[str(calls)] = [
            f"{result.method}, {fault}" for fault in result.faults.values()
        ]
        # As one run that was never stopped; a history at call counts has no selected iterates and no ends of runs.
        seconds = seconds + result.elapsed
        options = {"resume": result}
        if Status.INTERRUPTED in result.status:
            break
    made = {"curves": result.history.tidy()} | {
        name: joined(tables) for name, tables in parts.items()
    }
    block = Block(
        made,
        {"seconds": seconds, "faults": faults if several else faults[str(budgets[0])]},
    )
    if Status.INTERRUPTED in result.status:
        raise Interrupted(block)
    return block


def problem_of(problem: Reference, arguments: Named) -> Problem:
    """The problem there, or the one that the function there gives for these arguments."""
    given = found(problem)
    if callable(given):
        made: Problem = given(**arguments)
        return made
    if arguments:  # to drop them would label one problem as another
        words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        thing = (
            f"{str(problem['where']).rpartition(':')[2]!r} is a {type(given).__name__}"
        )
        raise ValueError(
            f"{words}: {thing}, and takes no arguments; it must be a function that gives a problem for them"
        )
    fixed: Problem = given
    return fixed


def _method(method: str | Reference, method_arguments: Named) -> Method:
    given = method if isinstance(method, str) else found(method)
    return methods.get(given(**method_arguments) if callable(given) else given)


def _heard(hear: Callable[[float], Any], share: float, now: Any) -> None:
    hear(Share(share * now.fraction, now))


def _points(
    name: str, point: Point, result: Result, start: NDArray[np.floating[Any]] | None
) -> Table:
    """An iterate of every run, and how the run ended; with a `start` how far it is from there, in place of itself."""
    runs = len(result.steps)
    table: Table = {
        "run": np.array(result.history.runs),
        "iterate": np.full(runs, name),
        "status": np.array([status.name.lower() for status in result.status]),
        "steps": result.steps,
        "calls": result.calls,
        "upper_calls": result.upper_calls,
        "lower_calls": result.lower_calls,
        "step": np.asarray(point.step),
    }
    table |= {
        measure: getattr(point, measure)
        for measure in MEASURES
        if getattr(point, measure) is not None
    }
    x = point.x.reshape(runs, -1)
    if start is not None:
        with np.errstate(over="ignore"):
            return table | {
                "moved": np.sqrt(np.square(x - start.reshape(-1)).mean(axis=1))
            }
    return table | {f"x{i}": x[:, i] for i in range(x.shape[1])}
