"""The paper's experiment, from Python: what to run, what came of it, files, figures, a summary.

>>> from tiebreak.experiments import Experiment, run
>>> outcome = run(Experiment(methods=("sdbgd",), runs=2, budget=1000))
>>> outcome.at("sdbgd", "last")["steps"]
array([9, 9])

``save(outcome, folder)`` and ``load(folder)`` keep the data, ``draw(outcome, folder)`` writes figures and summary.
``tiebreak reproduce`` and ``tiebreak plot`` do no more than call these. ``verify()`` checks the theorems against
simulation, and ``save_verification(findings, folder)`` keeps and draws what it finds, as ``tiebreak verify`` does.

Both are sweeps: blocks of work, each a :class:`Task`, done by ``sweep(tasks)`` on any executor and kept as they are
finished. ``compare(Comparison(…))`` runs many methods on many problems, and ``save_comparison`` keeps and draws what
came of it. ``solving(…)`` makes the tasks for a problem and a method, of the library's or your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebreak.experiments.blocks import Block, Store
from tiebreak.experiments.compared import Compared, Comparison
from tiebreak.experiments.comparing import compare
from tiebreak.experiments.configuration import Experiment, describe
from tiebreak.experiments.outcome import Outcome, run
from tiebreak.experiments.report import markdown, summarize
from tiebreak.experiments.running import solving
from tiebreak.experiments.sweeps import Swept, sweep
from tiebreak.experiments.tasks import SweepError, Task, reference
from tiebreak.experiments.verification import Findings, Verification, verify, verify_case
from tiebreak.experiments.workers import Processes

if TYPE_CHECKING:
    from tiebreak.experiments.figures import comparison, draw, trajectories
    from tiebreak.experiments.folder import check_folder, load, save
    from tiebreak.experiments.saving import save_comparison, save_verification

__all__ = [
    "Block",
    "Compared",
    "Comparison",
    "Experiment",
    "Findings",
    "Outcome",
    "Processes",
    "Store",
    "SweepError",
    "Swept",
    "Task",
    "Verification",
    "check_folder",
    "compare",
    "comparison",
    "describe",
    "draw",
    "load",
    "markdown",
    "reference",
    "run",
    "save",
    "save_comparison",
    "save_verification",
    "solving",
    "summarize",
    "sweep",
    "trajectories",
    "verify",
    "verify_case",
]

# pyarrow and matplotlib are slow to import, and an experiment can be run without either.
_LATER = dict.fromkeys(("check_folder", "load", "save"), "folder")
_LATER |= dict.fromkeys(("comparison", "draw", "trajectories"), "figures")
_LATER |= dict.fromkeys(("save_comparison", "save_verification"), "saving")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
