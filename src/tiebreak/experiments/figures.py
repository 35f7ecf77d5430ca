"""What is made from the data, as files: the summary and both figures."""

import os
from pathlib import Path

from tiebreak.experiments.curves import comparison
from tiebreak.experiments.folder import write
from tiebreak.experiments.maps import trajectories
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import markdown
from tiebreak.experiments.style import save


def draw(outcome: Outcome, folder: str | os.PathLike[str]) -> list[Path]:
    """Write summary.md, and both figures as PNG and PDF; the paths written. The same data give the same bytes.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> [path.name for path in draw(outcome, tempfile.mkdtemp())]
    ['summary.md', 'comparison.png', 'comparison.pdf', 'trajectories.png', 'trajectories.pdf']
    """
    place = Path(folder)
    written = write(place, {"summary.md": markdown(outcome)})
    for name, make in (("comparison", comparison), ("trajectories", trajectories)):
        written += save(make(outcome), place / name)
    return written
