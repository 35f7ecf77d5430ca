"""Running an experiment, and what comes of it: two tidy tables and where they come from."""

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tiebreak
from tiebreak import Progress
from tiebreak.experiments.configuration import Experiment, describe
from tiebreak.experiments.tables import Table, chosen, joined
from tiebreak.problems import paper
from tiebreak.result import MEASURES, Result, Status
from tiebreak.solve import minimize

__all__ = ["Outcome", "origin", "run"]


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment; all that figures and summary need, fresh or read from a folder.

    Attributes
    ----------
    experiment : Experiment
    curves : dict of arrays
        Tidy: a row for each method, run and recorded step.
    points : dict of arrays
        Tidy: a row for each method, run and iterate, which is "last" or "selected" (the x_{N_K} of the theory).
    seconds : dict of str to float
        What the runs of each method took, together.
    interrupted : bool
        Whether it was stopped from the keyboard: methods may be missing, and the last one cut short.
    faults : list of str
        Runs that could not go on, and why.
    origin : dict
        Date, versions, platform, and the methods in words.
    """

    experiment: Experiment
    curves: Table
    points: Table
    seconds: Mapping[str, float]
    interrupted: bool
    faults: tuple[str, ...]
    origin: Mapping[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that were run, in the experiment's order."""
        return tuple(self.seconds)

    def curve(self, method: str, column: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A column of the curves as an array (records, runs), NaN after a run has ended, and the calls of its records.

        >>> outcome = run(Experiment(methods=["sdbgd"], runs=3, budget=100))
        >>> calls, values = outcome.curve("sdbgd", "lower_gradient_squared")
        >>> calls.tolist(), values.shape
        ([0, 2, 9, 27, 63], (5, 3))
        """
        rows = self.curves["method"] == method
        steps, first, record = np.unique(self.curves["step"][rows], return_index=True, return_inverse=True)
        runs, place = np.unique(self.curves["run"][rows], return_inverse=True)
        values = np.full((len(steps), len(runs)), np.nan)
        values[record, place] = self.curves[column][rows]
        return self.curves["calls"][rows][first], values

    def at(self, method: str, iterate: str) -> Table:
        """The rows of :attr:`points` for a method and an iterate, "last" or "selected"."""
        return chosen(self.points, method=method, iterate=iterate)

    def configuration(self) -> dict[str, Any]:
        """Everything but the tables, for a JSON file."""
        return {
            "experiment": asdict(self.experiment),
            "command": self.experiment.command,
            "interrupted": self.interrupted,
            "faults": list(self.faults),
            "seconds": dict(self.seconds),
            **self.origin,
        }


def run(experiment: Experiment | None = None, progress: Callable[[str, Progress], Any] | None = None) -> Outcome:
    """Run every method of the experiment, the paper's if none is given. Ctrl-C ends it and keeps what was reached.

    Parameters
    ----------
    experiment : Experiment, optional
    progress : callable, optional
        Told the method and a :class:`tiebreak.Progress`, between blocks of steps.
    """
    asked = experiment or Experiment()
    first, second = asked.start
    problem = paper(asked.noise, x0=(first, second), per_sample=asked.per_sample)
    began = origin(asked.methods)
    results: dict[str, Result] = {}
    interrupted = False
    try:
        for name in asked.methods:
            results[name] = minimize(
                problem.upper,
                problem.lower,
                problem.x0,
                method=name,
                budget=asked.budget,
                runs=asked.runs,
                seed=asked.seed,
                record=asked.record,
                keep_iterates=True,
                progress=partial(progress, name) if progress is not None else False,
            )
            interrupted = Status.INTERRUPTED in results[name].status
            if interrupted:
                break
    except KeyboardInterrupt:  # between two methods, or a second one
        interrupted = True
    return Outcome(
        experiment=asked,
        curves=_labelled({name: result.history.tidy() for name, result in results.items()}),
        points=_labelled({name: _points(result) for name, result in results.items()}),
        seconds={name: round(result.elapsed, 4) for name, result in results.items()},
        interrupted=interrupted,
        faults=tuple(f"{result.method}, {fault}" for result in results.values() for fault in result.faults.values()),
        origin=began,
    )


def _points(result: Result) -> Table:
    """The last and the selected iterate of every run, and how the run ended."""
    runs = len(result.steps)
    both = {"last": result.last, "selected": result.selected}
    table: Table = {
        "run": np.tile(np.arange(runs), 2),
        "iterate": np.repeat(list(both), runs),
        "status": np.tile([status.name.lower() for status in result.status], 2),
        "steps": np.tile(result.steps, 2),
        "calls": np.tile(result.calls, 2),
        "step": np.concatenate([point.step for point in both.values()]),
    }
    table |= {name: np.concatenate([getattr(point, name) for point in both.values()]) for name in MEASURES}
    x = np.concatenate([point.x for point in both.values()])
    return table | {f"x{i}": x[:, i] for i in range(x.shape[1])}


def _labelled(tables: Mapping[str, Table]) -> Table:
    """One table of many, the method's name in front."""
    return joined({"method": np.full(len(table["run"]), name)} | table for name, table in tables.items())


def origin(methods: Iterable[str]) -> dict[str, Any]:
    """Date, versions, platform, and the methods in words."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tiebreak": tiebreak.__version__,
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "methods": {name: describe(name) for name in methods},
    }
