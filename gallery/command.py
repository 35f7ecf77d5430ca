"""The command ``python -m gallery``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gallery import EXAMPLES, place
from tiebreak.checks import install
from tiebreak.cli.console import (
    INTERRUPTED,
    Console,
    bar,
    command_line,
    number,
    say,
    show_tables,
    waiting,
)
from tiebreak.cli.options import Overwrite, Quiet, Report, Scheduler, Workers
from tiebreak.cli.study import engine_from, kept_blocks
from tiebreak.studies.engines import cores

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def example(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of an example, or a Python file that defines EXAMPLE.",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the examples and the methods.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Less data, fewer steps and trials, one seed: takes minutes.",
        ),
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this method and lower-only training alone; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Number of seeds of the final runs; 5, or 1 with --quick."
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Number of settings to try for each method, at most 6; 6, or 3 with --quick.",
        ),
    ] = None,
    tuning_seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Number of seeds for each setting; 2, or 1 with --quick."
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What every method may use equally: evaluations or seconds; both, or evaluations with --quick.",
        ),
    ] = None,
    knobs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="config.json of an earlier run: use its settings and do not tune.",
        ),
    ] = None,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish/--no-finish",
            help="Move every final model to the best point inside its tolerance, too.",
        ),
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for the results; results/NAME by default."
        ),
    ] = None,
    overwrite: Overwrite = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="PyTorch device: cpu or cuda.")
    ] = "cpu",
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Train a real problem by every method with equal tuning, and compare tolerances, upper losses and costs."""
    folder = output or Path("results") / Path(name or "").stem
    if list_:
        _list()
        return
    if name is None:
        raise ValueError("say which example; --list shows them")
    place(name)  # before what takes long: is there such a one?
    _torch()
    if report:
        import plotly  # noqa: F401  # before what takes long: is it there?
    from gallery.needs import Missing, check
    from gallery.record import save, whole
    from gallery.report import notes, sheets
    from gallery.study import BUDGETS, Study, run
    from tiebreak.studies.folder import check_folder
    from tiebreak.studies.store import Store

    engine = engine_from(workers, scheduler) or cores()
    usual = {"seeds": 1, "trials": 3, "tuning_seeds": 1} if quick else {}
    counts = {"seeds": seeds, "trials": trials, "tuning_seeds": tuning_seeds}
    study = Study(
        name,
        quick=quick,
        methods=tuple(method or ()),
        budgets=tuple(budget or (BUDGETS[:1] if quick else BUDGETS)),
        device=device,
        knobs=None if knobs is None else _chosen(knobs),
        finish=finish,
        **usual | {n: number(text) for n, text in counts.items() if text is not None},
    )
    replaced = check_folder(folder, study.command, overwrite)
    say(f"{study.example.title}. {study.example.question}")
    if replaced:
        say(replaced)
    try:
        check(study.example.needs)
        with Store(folder / ".blocks") as store:
            with bar(
                "Starting: data are read and, the first time, a model to change is trained"
            ) as progress:
                findings = run(study, progress, engine=engine, store=store)
            if not findings.runs:
                say(
                    f"Interrupted before a training was judged; nothing was written. {kept_blocks(folder)}"
                )
                raise typer.Exit(INTERRUPTED)
            if findings.interrupted and whole(folder):
                say(
                    f"Interrupted; the whole study in {folder} is left as it was. {kept_blocks(folder)}"
                )
                raise typer.Exit(INTERRUPTED)
            say("Writing the files.")
            try:
                with waiting("Writing the files"):
                    written = save(findings, folder, report, overwrite)
            except OSError:  # a full disk: at least it can be read here
                show_tables(sheets(findings), notes(findings))
                raise
            if not findings.interrupted:
                store.clear()
    except Missing as missing:
        raise ValueError(str(missing)) from None
    show_tables(sheets(findings), notes(findings))
    say(
        f"Written to {folder}: {', '.join(path.name for path in written)}. {findings.elapsed:.0f} s."
    )
    if findings.interrupted:
        say(kept_blocks(folder))
        raise typer.Exit(INTERRUPTED)


def _chosen(file: Path) -> dict[str, dict[str, float]]:
    """What an earlier run chose."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["chosen"]
        return {
            str(name): {str(key): float(value) for key, value in knobs.items()}
            for name, knobs in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"--knobs {file}: must be config.json or summary.json of an earlier run; {error}"
        ) from None


def _torch() -> None:
    try:
        if "torch" not in sys.modules:
            say("Loading torch.")  # at once: that takes seconds
        with waiting("Loading torch"):
            import torch  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(f"examples need torch: {install('gallery')}") from None


def _list() -> None:
    _torch()
    from gallery import get
    from gallery.methods import METHODS
    from gallery.needs import PACKAGES

    console = Console(highlight=False, soft_wrap=True)
    for name in EXAMPLES:
        try:
            found = get(name)
        except ValueError as error:
            lacking = str(error).removeprefix(f"name={place(name)!r} ")
            console.print(f"[bold]{name}[/]  [red]{escape(lacking)}[/]")
            continue
        console.print(f"[bold]{name}[/]  {escape(found.title)}")
        console.print(f"  {escape(found.question)}")
        for need in found.needs:
            console.print(
                f"  [dim]needs {escape(PACKAGES[need].holds)}: {escape(PACKAGES[need].command)}[/]"
            )
    console.print("\n[bold]methods[/]")
    width = 2 + max(map(len, METHODS))
    for name, method in METHODS.items():
        lacking = (
            f"  [red]needs {', '.join(method.missing())}[/]" if method.missing() else ""
        )
        console.print(f"  {name:<{width}}[dim]{escape(method.about)}[/]{lacking}")


app.command()(command_line(example))
