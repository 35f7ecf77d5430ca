"""Running an experiment, and what comes of it: two tidy tables and where they come from."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.experiments.blocks import Store
from tiebreak.experiments.configuration import Experiment, describe
from tiebreak.experiments.engines import Engine
from tiebreak.experiments.running import solving
from tiebreak.experiments.sweeps import sweep
from tiebreak.experiments.tables import Table, chosen, joined
from tiebreak.provenance import stamp


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
        Whether it was stopped from the keyboard: methods may be missing, and the last one may be cut short.
    faults : list of str
        Runs that could not go on, and why.
    origin : dict
        Date, commit, versions, platform, and the methods in words.

    Examples
    --------
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> outcome.methods, outcome.at("sdbgd", "last")["calls"].tolist(), outcome.interrupted
    (('sdbgd',), [794, 794], False)
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

    def curve(
        self, method: str, column: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A column of the curves as an array (records, runs), NaN after a run has ended, and the calls of its records.

        >>> outcome = run(Experiment(methods=["sdbgd"], runs=3, budget=100))
        >>> calls, values = outcome.curve("sdbgd", "lower_gradient_squared")
        >>> calls.tolist(), values.shape
        ([0, 2, 9, 27, 63], (5, 3))
        """
        rows = self.curves["method"] == method
        steps, first, record = np.unique(
            self.curves["step"][rows], return_index=True, return_inverse=True
        )
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


def run(
    experiment: Experiment | None = None,
    progress: Callable[[str, float], Any] | None = None,
    *,
    engine: Engine = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> Outcome:
    """Run every method of the experiment, the paper's if none is given. Ctrl-C ends it and keeps what was reached.

    Parameters
    ----------
    experiment : Experiment, optional
    progress : callable, optional
        Told what is being run, and which share of everything is done.
    engine, store :
        Where it is run and where finished blocks are kept, as :func:`tiebreak.experiments.sweep` takes them. The
        numbers are the same for every engine.

    Examples
    --------
    >>> outcome = run(Experiment(methods=["sdbgd", "penalty"], runs=2, budget=1000))
    >>> outcome.methods
    ('sdbgd', 'penalty')
    """
    asked = experiment or Experiment()
    upper, lower = asked.noises
    sigmas = (
        {"sigma": upper} if upper == lower else {"sigma_f": upper, "sigma_g": lower}
    )
    problem = {**sigmas, "x0": list(asked.start), "per_sample": asked.per_sample}
    limits: dict[str, Any] = {
        name: getattr(asked, name) for name in ("budget", "runs", "seed", "record")
    }
    began = origin(asked.methods)
    tasks = {
        name: solving(
            name, "tiebreak.problems:paper", name, problem_arguments=problem, **limits
        )
        for name in asked.methods
    }
    swept = sweep(
        [task for each in tasks.values() for task in each],
        engine=engine,
        store=store,
        hear=progress,
    )
    reached = {**swept.blocks, **swept.partial}
    blocks = {
        name: [reached[task.name] for task in each]
        for name, each in tasks.items()
        if all(task.name in reached for task in each)
    }
    return Outcome(
        experiment=asked,
        curves=_labelled(
            {
                name: joined(b.tables["curves"] for b in each)
                for name, each in blocks.items()
            }
        ),
        points=_labelled(
            {
                name: joined(b.tables[i] for i in ("last", "selected") for b in each)
                for name, each in blocks.items()
            }
        ),
        seconds={
            name: round(sum(b.facts["seconds"] for b in each), 4)
            for name, each in blocks.items()
        },
        interrupted=swept.interrupted,
        faults=tuple(
            fault
            for each in blocks.values()
            for b in each
            for fault in b.facts["faults"]
        ),
        origin=began,
    )


def _labelled(tables: Mapping[str, Table]) -> Table:
    """One table of many, the method's name in front."""
    return joined(
        {"method": np.full(len(table["run"]), name)} | table
        for name, table in tables.items()
    )


def origin(methods: Iterable[str]) -> dict[str, Any]:
    """Date, commit, versions, platform, and the methods in words."""
    return {**stamp(), "methods": {name: describe(name) for name in methods}}
