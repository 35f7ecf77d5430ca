"""Studies: a question, the tasks that answer it, and findings with tables, notes and charts.

>>> from tiebreak.studies import Experiment, run
>>> findings = run(Experiment(methods=("sdbgd",), runs=2, budget=1000))
>>> findings.verdict.word
'Complete, inside the budget'

``run(study, folder)`` also writes data, figures and a summary. The commands of ``tiebreak`` do no more than call it
with an :class:`Experiment`, a :class:`Comparison` or a :class:`Verification`. A study of your own is a class with a
command, tasks and a collector (:class:`Study`).
"""

from tiebreak.studies.charts import Axis, Chart, Series
from tiebreak.studies.comparison.comparison import Comparison, compare
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.folder import load
from tiebreak.studies.reproduction import Experiment
from tiebreak.studies.runs import solving
from tiebreak.studies.study import Study, run
from tiebreak.studies.sweeps import sweep
from tiebreak.studies.tables import Estimate, Table
from tiebreak.studies.task import Block, Task
from tiebreak.studies.verification.verification import Verification, verify_case

__all__ = [
    "Axis",
    "Block",
    "Chart",
    "Comparison",
    "Estimate",
    "Experiment",
    "Findings",
    "Series",
    "Study",
    "Table",
    "Task",
    "Verdict",
    "Verification",
    "compare",
    "load",
    "run",
    "solving",
    "sweep",
    "verify_case",
]
