"""``tiebreak publish``, ``tiebreak diff`` and ``tiebreak repeat``."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import kindly, say, show_sheets
from tiebreak.cli.live import waiting
from tiebreak.cli.options import Quiet
from tiebreak.experiments.tables import counted

_PLACE = "A folder that a command wrote, or a training run's CSV log."


def publish(
    place: Annotated[Path, typer.Argument(help=_PLACE, show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the files go; paper in the folder, if not said.",
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of several problems: figures of this one, and of all its residuals.",
        ),
    ] = None,
) -> None:
    """Write a result for a paper: LaTeX tables, figures in one and two columns, what to cite."""
    with kindly(), waiting("Drawing the figures"):
        from tiebreak.report.publish import publish as write  # and matplotlib with it

        written = write(place, output, problem)
    tables, figures = (
        sum(path.suffix == kind for path in written) for kind in (".tex", ".pdf")
    )
    files = f"{counted(tables - 1, 'table')}, {counted(figures, 'figure')}"  # main.tex is none
    say(f"Written to {written[0].parent}: {files}, references.bib, main.tex.")


def diff(
    first: Annotated[Path, typer.Argument(help=_PLACE, show_default=False)],
    second: Annotated[
        Path, typer.Argument(help="Another one of the same kind.", show_default=False)
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="R",
            help="Relative differences that count as none; 0: to the last bit.",
        ),
    ] = 0.0,
) -> None:
    """Compare two results: what was asked for, what came out. Ends with 1 where they differ."""
    with kindly():
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r} must be from 0 to below 1")
        _compare(first, second, tolerance)


def repeat(
    folder: Annotated[
        Path, typer.Argument(help="A folder that a command wrote.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Where the new result goes; it must not exist yet."
        ),
    ],
    own: Annotated[
        bool,
        typer.Option(
            "--own",
            help="Run the copies that the result keeps of own files (FOLDER/own). Look first.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the command that a result was made by once more, here, and compare. Ends with 1 where they differ."""
    with kindly():
        from tiebreak.report.repeat import repeated_command

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
    from tiebreak.report.difference import difference

    result = difference(first, second)
    show_sheets(result.sheets(), prose=("first", "second", "column"))
    say(result.verdict, always=True)
    if result.largest > tolerance:
        raise typer.Exit(1)
