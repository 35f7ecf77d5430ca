"""Runs of a method on a problem as tasks of a sweep. Both may be in a user's file."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from tiebreak import methods
from tiebreak.methods import Method
from tiebreak.problems import Problem
from tiebreak.progress import Share
from tiebreak.result import MEASURES, Point, Result, Status
from tiebreak.solver.budget import steps_within
from tiebreak.solver.minimize import minimize
from tiebreak.solver.result_warnings import unsaid
from tiebreak.studies.sweeps import split
from tiebreak.studies.tables import Columns, joined, labelled
from tiebreak.studies.task import Block, Interrupted, Task
from tiebreak.studies.user_files import Source, explained, in_files, source_at

#: Runs of a block. Runs are vectorised, so that many take little more time than one.
BLOCK = 512
_STEP = 8e-5  # seconds, about
_MANY = 50_000  # steps; further steps are not counted

Facts: TypeAlias = Mapping[str, Any]


class Loadable(Protocol):
    """The place of a method, which each process loads for itself."""

    def load(self) -> Any:
        """The method, or a function that returns one."""
        ...


MethodPlace: TypeAlias = str | Loadable | Method


def solving(
    name: str,
    problem: str | Source,
    method: MethodPlace,
    *,
    budget: int | Sequence[int],
    runs: int,
    seed: int | Sequence[int],
    steps: int | None = None,
    record: str | int | None = "log",
    problem_arguments: Facts | None = None,
    iterates: bool = True,
    block: int = BLOCK,
) -> list[Task]:
    """The tasks that make these runs, each a block of them.

    Parameters
    ----------
    name : str
        The beginning of the names of the tasks.
    problem : str or Source
        A :class:`~tiebreak.problems.Problem`, or a function that returns one: "module:name" or "file.py:name".
    method : str, Source or Method
        A name in :data:`tiebreak.methods.NAMED`, the place of a method or of a function that returns one, or a method.
    budget, runs, seed, steps, record :
        As :func:`tiebreak.minimize` takes them. Run 3 is the same run in every block. With several budgets that grow,
        runs are made once, to the largest, and read at each: the tables of last and selected iterates then have a
        column `budget`.
    problem_arguments : dict, optional
        The arguments of the problem's function, as plain data.
    iterates : bool
        Whether the blocks hold the iterates themselves, a column for each coordinate.
    block : int
        The runs of a block, at most.

    Examples
    --------
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=4, seed=0, block=2)
    >>> [task.name for task in tasks]
    ['mine, runs 0 to 1', 'mine, runs 2 to 3']
    """
    if isinstance(problem, str):
        problem = source_at(problem, "problem")
    if isinstance(method, str) and method not in methods.NAMED:
        method = source_at(method, "method")
    last = budget if isinstance(budget, int) else budget[-1]
    count, *_ = steps_within(method_of(method), last, min(_MANY, steps or _MANY))
    common = {
        "problem": problem,
        "problem_arguments": dict(problem_arguments or {}),
        "method": method,
        "budget": budget,
        "steps": steps,
        "seed": seed,
        "record": record,
        "iterates": iterates,
    }
    return [
        Task(
            f"{name}, runs {part.start} to {part.stop - 1}",
            solve,
            common | {"runs": [part.start, part.stop]},
            _STEP * count,
        )
        for part in split(runs, block)
    ]


def solve(
    progress: Callable[[float], Any],
    *,
    problem: Source,
    problem_arguments: Facts,
    method: MethodPlace,
    budget: int | Sequence[int],
    steps: int | None,
    runs: Sequence[int],
    seed: int | Sequence[int],
    record: str | int | None,
    iterates: bool,
) -> Block:
    """Runs from the first to before the last: their curves, their last and their selected iterates."""
    chosen = problem_of(problem, problem_arguments)
    row = method_of(method)
    budgets = [budget] if isinstance(budget, int) else [*budget]
    options: dict[str, Any] = {
        "x0": chosen.x0,
        "runs": range(*runs),
        "seed": seed,
        "steps": steps,
        "record": record,
        "keep_iterates": iterates,
    }
    points: dict[str, list[Columns]] = {"last": [], "selected": []}
    faults = {}
    seconds = 0.0
    for calls in budgets:
        run = partial(
            minimize,
            chosen.upper,
            chosen.lower,
            method=row,
            budget=calls,
            progress=partial(_report, progress, calls / budgets[-1]),
            **options,
        )
        result = _run(f"{row.name} on {chosen.name}", run, (problem, method))
        for name, parts in points.items():
            table = _points(name, result, None if iterates else chosen.x0)
            if not isinstance(budget, int):
                table = labelled(table, budget=calls)
            parts.append(table)
        faults[str(calls)] = [f"{result.method}, {f}" for f in result.faults.values()]
        seconds += result.elapsed
        # The resumed run equals a run without a stop, with all selected iterates and ends.
        options = {"resume": result}
        if Status.INTERRUPTED in result.status:
            break
    tables = {"curves": result.history.tidy()}
    tables |= {name: joined(parts) for name, parts in points.items()}
    block = Block(tables, {"seconds": seconds, "faults": faults})
    if Status.INTERRUPTED in result.status:
        raise Interrupted(block)
    return block


def _run(text: str, run: Callable[[], Result], sources: Sequence[Any]) -> Result:
    with unsaid():  # the tables report faults
        if in_files(sources):
            return explained(text, sources, run)
        return run()


def problem_of(source: Source, arguments: Facts) -> Problem:
    """The problem of a source, or the problem that its function returns for these arguments."""
    value = source.load()
    if callable(value):
        problem: Problem = value(**arguments)
        return problem
    if arguments:  # without arguments the label would be wrong
        words = ", ".join(f"{name}={each!r}" for name, each in arguments.items())
        name = source.place.rpartition(":")[2]
        raise ValueError(
            f"{words}: {name!r} is a {type(value).__name__}, and takes no arguments; it must be a function that gives "
            "a problem for them"
        )
    fixed: Problem = value
    return fixed


def method_of(method: MethodPlace) -> Method:
    """The method of a name or a source, or the method that its function returns."""
    value = method if isinstance(method, (str, Method)) else method.load()
    return methods.get(value() if callable(value) else value)


def _report(progress: Callable[[float], Any], share: float, now: Any) -> None:
    progress(Share(share * now.fraction, now))


def _points(name: str, result: Result, start: Any) -> Columns:
    """An iterate of every run, and how the run ended; with a `start`, the distance to it instead of coordinates."""
    point: Point = getattr(result, name)
    runs = len(result.steps)
    table: Columns = {
        "run": np.array(result.history.runs),
        "iterate": np.full(runs, name),
        "status": np.array([status.name.lower() for status in result.status]),
        "steps": result.steps,
        "calls": result.calls,
        "upper_calls": result.upper_calls,
        "lower_calls": result.lower_calls,
        "step": np.asarray(point.step),
    }
    for measure in MEASURES:
        if getattr(point, measure) is not None:
            table[measure] = getattr(point, measure)
    x = point.x.reshape(runs, -1)
    if start is None:
        return table | {f"x{i}": x[:, i] for i in range(x.shape[1])}
    with np.errstate(over="ignore"):
        return table | {"moved": np.sqrt(np.square(x - start.reshape(-1)).mean(axis=1))}
