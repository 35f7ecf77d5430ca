"""The paper's experiment, from Python: what to run, what came of it, files, figures, a summary.

>>> from tiebreak.experiments import Experiment, run
>>> outcome = run(Experiment(methods=("sdbgd",), runs=2, budget=1000))
>>> outcome.at("sdbgd", "last")["steps"]
array([9, 9])

``save(outcome, folder)`` and ``load(folder)`` keep the data, ``draw(outcome, folder)`` writes figures and summary.
``tiebreak reproduce`` and ``tiebreak plot`` do no more than call these. ``verify()`` checks the theorems against
simulation.

Both are sweeps: blocks of work, done by ``sweep(tasks)`` on any executor and kept as they are finished.
``compare(Comparison(…))`` runs many methods on many problems. ``solving(…)`` makes the tasks for a problem and a
method, of the library's or your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebreak.experiments.compared import Comparison
from tiebreak.experiments.comparing import compare
from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.outcome import run
from tiebreak.experiments.running import solving
from tiebreak.experiments.sweeps import sweep
from tiebreak.experiments.verification import Verification, verify, verify_case

if TYPE_CHECKING:
    from tiebreak.experiments.figures import draw
    from tiebreak.experiments.folder import load, save

__all__ = [
    "Comparison",
    "Experiment",
    "Verification",
    "compare",
    "draw",
    "load",
    "run",
    "save",
    "solving",
    "sweep",
    "verify",
    "verify_case",
]

# pyarrow and matplotlib are slow to import, and an experiment can be run without either.
_LATER = {"load": "folder", "save": "folder", "draw": "figures"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
