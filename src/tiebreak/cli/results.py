"""``tiebreak report``, ``publish``, ``diff`` and ``repeat``: what can be done with a result on disk."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import say, show_tables, waiting
from tiebreak.cli.options import Overwrite, Place, Quiet, Text, flag, option
from tiebreak.cli.study import draw, say_size, write_report
from tiebreak.studies.tables import counted


def report(
    place: Place,
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the page there; by default with figures and summary in the folder.",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page of a result, and draw its figures again."""
    from tiebreak.studies.findings import summary
    from tiebreak.studies.folder import write_files
    from tiebreak.studies.page import write_single_page
    from tiebreak.studies.training_log import findings_of

    findings = findings_of(place)
    if output is None and place.is_dir():
        write_files(
            place, {"summary.md": summary(findings)}, update=True, overwrite=overwrite
        )
        draw(findings, place, overwrite)
        write_report(place, overwrite)
        show_tables(findings.tables, findings.notes)
        return
    with waiting("Writing the report"):
        target = output or place.with_suffix(".html")
        write_single_page(findings, target, overwrite)
    say_size(target)


def publish(
    place: Place,
    output: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Where the files go; paper in the folder, if not said.",
        ),
    ] = None,
    problem: Annotated[
        Text,
        option(
            "NAME",
            "Of several problems: figures of this one, and of all its residuals.",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a result for a paper: LaTeX tables, figures in one and two columns, what to cite."""
    with waiting("Drawing the figures"):
        from tiebreak.studies.publish import publish as write

        written = write(place, output, problem, overwrite)
    tables = sum(path.suffix == ".tex" for path in written) - 1  # without main.tex
    figures = sum(path.suffix == ".pdf" for path in written)
    files = f"{counted(tables, 'table')}, {counted(figures, 'figure')}"
    say(f"Written to {written[0].parent}: {files}, references.bib, main.tex.")


def diff(
    first: Place,
    second: Place,
    tolerance: Annotated[
        float,
        option(
            "R",
            "Relative differences that count as none; 0: to the last bit.",
        ),
    ] = 0.0,
) -> None:
    """Compare two results: what was asked for, what came out. Ends with 1 where they differ."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance={tolerance!r} must be from 0 to below 1")
    _compare(first, second, tolerance)


def repeat(
    folder: Place,
    output: Annotated[
        Path,
        option("FOLDER", "Where the new result goes; it must not exist yet."),
    ],
    own: Annotated[
        bool,
        flag(
            "--own",
            "Run the copies that the result keeps of own files (FOLDER/own). Look first.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the command of a result once more, here, with the FILE.py that it names, and compare."""
    from tiebreak.studies.repeat import repeated_command

    words = repeated_command(folder, own)
    if output.exists():
        raise ValueError(
            f"output={str(output)!r} must not exist yet: nothing is to be mixed with the new result"
        )
    say(shlex.join(words))
    words += ["--output", str(output), *["--quiet"] * quiet]
    # -P: nothing is imported from the current folder, which may be the result's.
    done = subprocess.run(
        [sys.executable, "-P", "-m", *words], stdout=subprocess.DEVNULL
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    _compare(folder, output, 0.0)


def _compare(first: Path, second: Path, tolerance: float) -> None:
    from tiebreak.studies.difference import difference

    result = difference(first, second)
    show_tables(result.tables())
    say(result.verdict, always=True)
    if result.largest > tolerance:
        raise typer.Exit(1)
