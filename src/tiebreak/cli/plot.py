"""``tiebreak plot``."""

from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import kindly, say, show_sheets
from tiebreak.cli.live import waiting
from tiebreak.experiments.report import notes, sheets


def plot(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder that `tiebreak reproduce` wrote.", show_default=False
        ),
    ],
) -> None:
    """Draw the figures and write the summary again, from the saved data."""
    with kindly(), waiting("Drawing the figures"):
        from tiebreak.experiments import (
            draw,
            load,
        )  # here, so that `tiebreak --help` need not wait for matplotlib

        outcome = load(folder)
        written = draw(outcome, folder)
    show_sheets(sheets(outcome), notes(outcome))
    say(f"Written to {folder}: {', '.join(path.name for path in written)}.")
