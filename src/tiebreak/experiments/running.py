"""Runs of a method on a problem as blocks of a sweep. Both may be your own, in a file."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tiebreak import methods
from tiebreak.budget import steps_within
from tiebreak.experiments.blocks import Block, Interrupted
from tiebreak.experiments.sweeps import split
from tiebreak.experiments.tables import Table
from tiebreak.experiments.tasks import Reference, Task, found, reference
from tiebreak.methods import Method
from tiebreak.problems import Problem
from tiebreak.result import MEASURES, Point, Result, Status
from tiebreak.solve import minimize

__all__ = ["BLOCK", "solve", "solving"]

#: Runs of a block. Vectorised, so many take little more time than one.
BLOCK = 512
_STEP = 8e-5  # seconds, about
_MANY = 50_000  # steps; more of them are not worth counting

Named: TypeAlias = Mapping[str, Any]


def solving(
    name: str,
    problem: str,
    method: str,
    *,
    budget: int,
    runs: int,
    seed: int,
    record: str | int | None = "log",
    problem_arguments: Named | None = None,
    block: int = BLOCK,
) -> list[Task]:
    """The tasks that make these runs, each a block of them.

    Parameters
    ----------
    name : str
        What the tasks' names begin with.
    problem : str
        A :class:`~tiebreak.problems.Problem`, or a function that gives one: "module:name" or "file.py:name".
    method : str
        A name in :data:`tiebreak.methods.METHODS`, or where it is, likewise.
    budget, runs, seed, record :
        As :func:`tiebreak.minimize` takes them. Run 3 is the same run whatever block it is in.
    problem_arguments : dict, optional
        What the problem's function takes, as plain data.
    block : int
        Runs of a block, at most. Few, where a gradient is dear or not vectorised.
    """
    there = reference(problem, "problem")
    chosen: str | Reference = method if method in methods.METHODS else reference(method, "method")
    seconds = _STEP * steps_within(_method(chosen), budget, _MANY)[0]
    common: dict[str, Any] = {"problem": there, "problem_arguments": dict(problem_arguments or {}), "method": chosen}
    common |= {"budget": budget, "seed": seed, "record": record}
    function = reference(f"{__name__}:solve")
    return [
        Task(f"{name}, runs {of.start} to {of.stop - 1}", function, common | {"runs": [of.start, of.stop]}, seconds)
        for of in split(runs, block)
    ]


def solve(
    hear: Callable[[float], Any],
    *,
    problem: Reference,
    problem_arguments: Named,
    method: str | Reference,
    budget: int,
    runs: Sequence[int],
    seed: int,
    record: str | int | None,
) -> Block:
    """Runs from the first to before the last: their curves, their last and their selected iterates."""
    given = found(problem)
    chosen: Problem = given if isinstance(given, Problem) else given(**problem_arguments)
    result = minimize(
        chosen.upper,
        chosen.lower,
        chosen.x0,
        method=_method(method),
        budget=budget,
        runs=range(*runs),
        seed=seed,
        record=record,
        keep_iterates=True,
        progress=lambda now: hear(now.fraction),
    )
    tables = {"curves": result.history.tidy()}
    tables |= {name: _points(name, getattr(result, name), result) for name in ("last", "selected")}
    faults = [f"{result.method}, {fault}" for fault in result.faults.values()]
    block = Block(tables, {"seconds": result.elapsed, "faults": faults})
    if Status.INTERRUPTED in result.status:
        raise Interrupted(block)
    return block


def _method(given: str | Reference) -> Method:
    return methods.get(given if isinstance(given, str) else found(given))


def _points(name: str, point: Point, result: Result) -> Table:
    """An iterate of every run, and how the run ended."""
    runs = len(result.steps)
    table: Table = {
        "run": np.array(result.history.runs),
        "iterate": np.full(runs, name),
        "status": np.array([status.name.lower() for status in result.status]),
        "steps": result.steps,
        "calls": result.calls,
        "step": np.asarray(point.step),
    }
    table |= {measure: getattr(point, measure) for measure in MEASURES if getattr(point, measure) is not None}
    x = point.x.reshape(runs, -1)
    return table | {f"x{i}": x[:, i] for i in range(x.shape[1])}
