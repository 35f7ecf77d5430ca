"""``tiebreak report``, and ``--report`` of the commands that write a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import kindly, say
from tiebreak.cli.live import waiting


def report(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER or LOG.csv",
            help="A folder that a command wrote, or a training run's CSV log.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page; report.html in the folder, or beside the log, if not said.",
        ),
    ] = None,
) -> None:
    """Write one HTML page of a result on disk: verdict, interactive curves, tables, origin."""
    with kindly():
        _write(place, output)


@contextmanager
def reported(wanted: bool, folder: Path) -> Iterator[None]:
    """Write the page of the folder after what is done inside, however that ends, as long as there is a result.

    That the page can be made is checked before: what takes long is not begun without it.
    """
    if wanted:
        import plotly  # noqa: F401  # is it there?
    before = _stamp(folder)
    try:
        yield
    finally:
        if wanted and _stamp(folder) not in (before, None):
            with kindly():
                _write(folder)


def _stamp(folder: Path) -> tuple[int, ...] | None:
    """Which result the folder holds: the times of its configuration; None if there is none."""
    places = [folder / name for name in ("configuration.json", "plan.json")]
    return tuple(place.stat().st_mtime_ns for place in places if place.exists()) or None


def _write(place: Path, output: Path | None = None) -> None:
    from tiebreak.report import write_report

    with waiting("Writing the report"):
        target = write_report(place, output)
    say(f"Report: {target} ({target.stat().st_size / 1e6:.1f} MB, needs no network).")
