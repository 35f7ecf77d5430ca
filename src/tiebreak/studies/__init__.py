"""Studies: a question, the tasks that answer it, and findings with tables, notes and charts.

>>> from tiebreak.studies import Experiment, run
>>> findings = run(Experiment(methods=("sdbgd",), runs=2, budget=1000))
>>> findings.verdict.word
'Complete, inside the budget'

``run(study, folder)`` also writes data, figures and a summary. The commands of ``tiebreak`` do no more than call it
with an :class:`Experiment`, a :class:`Comparison` or a :class:`Verification`. A study of your own is a class with a
command, tasks and a collector (:class:`Study`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebreak.studies.charts import Axis, Chart, Mark, Series
from tiebreak.studies.comparison.comparison import Comparison, compare
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.folder import load, save
from tiebreak.studies.reproduction import Experiment
from tiebreak.studies.runs import solving
from tiebreak.studies.study import Study, run
from tiebreak.studies.sweeps import sweep
from tiebreak.studies.tables import Estimate, Table, select
from tiebreak.studies.task import Block, Task
from tiebreak.studies.verification.verification import Verification, verify_case

if TYPE_CHECKING:
    from tiebreak.studies.figures import draw
    from tiebreak.studies.page import write_page

__all__ = [
    "Axis",
    "Block",
    "Chart",
    "Comparison",
    "Estimate",
    "Experiment",
    "Findings",
    "Mark",
    "Series",
    "Study",
    "Table",
    "Task",
    "Verdict",
    "Verification",
    "compare",
    "draw",
    "load",
    "run",
    "save",
    "select",
    "solving",
    "sweep",
    "verify_case",
    "write_page",
]

# matplotlib is slow to import, and a study can be run without it.
_SLOW = {"draw": "figures", "write_page": "page"}


def __getattr__(name: str) -> Any:
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SLOW[name]}"), name)
