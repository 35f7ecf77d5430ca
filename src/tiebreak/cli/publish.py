"""``tiebreak publish``, ``tiebreak diff`` and ``tiebreak repeat``."""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import counted, kindly, say, show_sheets
from tiebreak.cli.live import Quiet, waiting

__all__ = ["diff", "publish", "repeat"]

_PLACE = "A folder that a command wrote, or a training run's CSV log."


def publish(
    place: Annotated[Path, typer.Argument(help=_PLACE, show_default=False)],
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the files go; paper in the folder, if not said.")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of several problems: figures of this one, and of all its residuals."),
    ] = None,
) -> None:
    """Write a result for a paper: LaTeX tables, figures in one and two columns, what to cite."""
    with kindly(), waiting("Drawing the figures"):
        from tiebreak.report.publish import publish as write  # and matplotlib with it

        written = write(place, output, problem)
    tables, figures = (sum(path.suffix == kind for path in written) for kind in (".tex", ".pdf"))
    held = f"{counted(tables - 1, 'table')}, {counted(figures, 'figure')}"  # main.tex is none
    say(f"Written to {written[0].parent}: {held}, references.bib, main.tex.")


def diff(
    first: Annotated[Path, typer.Argument(help=_PLACE, show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another one of the same kind.", show_default=False)],
    tolerance: Annotated[
        float, typer.Option(metavar="R", help="Relative differences that count as none; 0: to the last bit.")
    ] = 0.0,
) -> None:
    """Compare two results: what was asked for, what came out. Ends with 1 where they differ."""
    with kindly():
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r} must be from 0 to below 1")
        _compare(first, second, tolerance)


def repeat(
    folder: Annotated[Path, typer.Argument(help="A folder that a command wrote.", show_default=False)],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the new result goes; it must not exist yet.")],
    own: Annotated[
        bool, typer.Option("--own", help="Run the copies that the result keeps of own files (FOLDER/own). Look first.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the command that a result was made by once more, here, and compare. Ends with 1 where they differ."""
    with kindly(), tempfile.TemporaryDirectory() as place:
        from tiebreak.report.difference import command_of

        words = shlex.split(command_of(folder))
        if output.exists():
            raise ValueError(f"output={str(output)!r} must not exist yet: nothing is to be mixed with the new result")
        copied = _copied(folder, words, Path(place)) if own else _as_they_were(folder)
        say(shlex.join(words))
        done = subprocess.run(
            [sys.executable, "-m", *words, "--output", str(output.absolute()), *["--quiet"] * quiet],
            stdout=subprocess.DEVNULL,
            cwd=place if copied else None,
        )
        if done.returncode:
            raise typer.Exit(done.returncode)
        _compare(folder, output, 0.0)


def _as_they_were(folder: Path) -> bool:
    """See that the files of one's own are here, and as they were; no copy is needed then."""
    from tiebreak.experiments.own import KEPT, checksum
    from tiebreak.report.difference import sources_of

    for path, digest in sources_of(folder).items():
        if not Path(path).is_file() or checksum(Path(path).read_text(encoding="utf-8")) != digest:
            why = "has changed since" if Path(path).is_file() else "is not here"
            raise ValueError(
                f"folder={str(folder)!r} was made with {path!r}, which {why}; {folder / KEPT} has it as it was: look "
                "at it, and say --own to run that"
            )
    return False


def _copied(folder: Path, words: list[str], place: Path) -> bool:
    """Lay the copies of own files out as the command names them; one from elsewhere gets another name in it."""
    from tiebreak.experiments.own import checksum, copy_name
    from tiebreak.report.difference import sources_of

    found = sources_of(folder)
    if not found:
        raise ValueError(f"--own: folder={str(folder)!r} was made without files of one's own")
    for path, digest in found.items():
        copy = folder / copy_name(path, digest)
        if not copy.is_file() or checksum(text := copy.read_text(encoding="utf-8")) != digest:
            raise ValueError(f"folder={str(folder)!r} must have {copy.name!r} in it as it was written, and has not")
        target = path
        if Path(path).is_absolute() or ".." in Path(path).parts:
            target = copy.name
            words[:] = [word.replace(f"{path}:", f"{target}:") for word in words]
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        (place / target).write_text(text, encoding="utf-8")
    return True


def _compare(first: Path, second: Path, tolerance: float) -> None:
    from tiebreak.report.difference import difference

    found = difference(first, second)
    show_sheets(found.sheets(), prose=("first", "second", "column"))
    say(found.verdict, always=True)
    if found.largest > tolerance:
        raise typer.Exit(1)
