"""What is made from the data, as files: the summary and both figures."""

import os
from pathlib import Path

from tiebreak.experiments.curves import comparison
from tiebreak.experiments.maps import trajectories
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import markdown
from tiebreak.experiments.style import style
from tiebreak.files import atomic

__all__ = ["comparison", "draw", "trajectories"]


def draw(outcome: Outcome, folder: str | os.PathLike[str]) -> list[Path]:
    """Write summary.md, and both figures as PNG and PDF; the paths written. The same data give the same bytes."""
    place = Path(folder)
    written = [place / "summary.md"]
    with atomic(written[0], "w") as text:
        text.write(markdown(outcome))
    for name, make in (("comparison", comparison), ("trajectories", trajectories)):
        figure = make(outcome)
        for kind, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
            written.append(place / f"{name}.{kind}")
            with style(), atomic(written[-1]) as file:
                figure.savefig(file, format=kind, metadata=metadata)
    return written
