"""What the commands that run a study have in common: engine, progress, files, tables and exit codes."""

from collections.abc import Callable
from pathlib import Path

import typer

from tiebreak.checks import whole
from tiebreak.cli.console import (
    INTERRUPTED,
    bar,
    number,
    say,
    show_tables,
    waiting,
)
from tiebreak.files import locked
from tiebreak.studies.engines import Engine, checked_engine
from tiebreak.studies.findings import Findings, stored
from tiebreak.studies.folder import check_folder, write_files
from tiebreak.studies.store import Store
from tiebreak.studies.study import Study, run


def engine_from(workers: str | None, scheduler: str | None) -> Engine:
    """The engine of both options."""
    if workers is None:
        return checked_engine(scheduler)
    if scheduler is not None:
        raise ValueError(
            f"workers={workers!r} and scheduler={scheduler!r}: give one of them"
        )
    return whole("workers", number(workers))


def load_libraries(report: bool) -> None:
    """Import what is slow or may be missing, before anything is run."""
    with waiting("Loading matplotlib"):
        import pyarrow  # noqa: F401

        import tiebreak.studies.figures  # noqa: F401
    if report:
        import plotly  # noqa: F401


def run_study(
    study: Study,
    output: Path,
    prepare: Callable[[], None] = lambda: None,
    *,
    engine: Engine = None,
    overwrite: bool = False,
    report: bool = False,
) -> None:
    """Run a study, write and show its findings; exit with 1 if they are bad, and with 130 after Ctrl-C."""
    replaced = check_folder(output, study.command, overwrite)
    if replaced:
        say(replaced)
    load_libraries(report)
    prepare()
    try:
        with bar() as progress:
            findings = run(
                study, output, engine=engine, progress=progress, overwrite=overwrite
            )
    except KeyboardInterrupt:
        say(f"Interrupted; nothing was written. {kept_blocks(output)}")
        raise typer.Exit(INTERRUPTED) from None
    try:
        draw(findings, output, overwrite)
        if report:
            write_report(output, overwrite)
    except KeyboardInterrupt:
        say(
            f"Interrupted while drawing. The data are saved, and `tiebreak report {output}` draws them."
        )
        raise typer.Exit(INTERRUPTED) from None
    show_tables(findings.tables, findings.notes)
    say(f"Written to {output}. {findings.verdict.word}.")
    if findings.interrupted:
        say(
            f"Interrupted: the files hold what was reached, and the summary says what is missing. {kept_blocks(output)}"
        )
        raise typer.Exit(INTERRUPTED)
    if findings.verdict.good is False:
        raise typer.Exit(1)


def draw(findings: Findings, folder: Path, overwrite: bool = False) -> None:
    """Write the figures into the folder of the findings."""
    from tiebreak.studies.figures import draw_all

    with waiting("Drawing the figures"):
        figures = draw_all(stored(findings).charts)
        with locked(folder / ".blocks"):
            write_files(folder, figures, update=True, overwrite=overwrite)


def write_report(folder: Path, overwrite: bool = False) -> None:
    """Write the page of the folder."""
    from tiebreak.studies.page import write_page

    with waiting("Writing the report"):
        target = write_page(folder, overwrite)
    say_size(target)


def say_size(page: Path) -> None:
    """Say where a page is."""
    say(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB, needs no network).")


def kept_blocks(output: Path) -> str:
    """A sentence about the finished blocks of a sweep that was stopped."""
    count = len(Store(output / ".blocks"))
    if not count:
        return ""
    return (
        f"Finished blocks are kept ({count}), and the same command goes on from there."
    )
