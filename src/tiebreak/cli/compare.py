"""``tiebreak compare`` and ``tiebreak problems``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from tiebreak.cli.console import kindly, number, say, show_sheets
from tiebreak.cli.sweeping import Scheduler, Workers, engine_from, written
from tiebreak.experiments import Comparison
from tiebreak.experiments import compare as run
from tiebreak.experiments.comparing_report import PROSE, notes, sheets
from tiebreak.problems import FAMILIES, TESTBED
from tiebreak.problems.noises import NOISES
from tiebreak.problems.testbed import describe

__all__ = ["compare", "problems"]

#: What --quick means for whatever is not said.
_QUICK = {"budgets": "1e3,1e4,1e5", "runs": "3", "trials": "1"}
_USUAL = {"budgets": "1e4,1e5,1e6", "runs": "10", "trials": "7"}


def compare(
    problems: Annotated[
        list[str], typer.Option(metavar="NAMES", help="all, names (`tiebreak problems` lists them) or FILE.py:NAME.")
    ] = ["all"],  # noqa: B006  # typer only reads it
    methods: Annotated[
        list[str],
        typer.Option(metavar="NAMES", help="all, names (`tiebreak methods`; sdbgd_practice, …) or FILE.py:NAME."),
    ] = ["all"],  # noqa: B006  # likewise
    budgets: Annotated[
        str | None, typer.Option(metavar="CALLS,…", help=f"A profile for each. [default: {_USUAL['budgets']}]")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(metavar="N", help=f"Independent runs of everything. [default: {_USUAL['runs']}]")
    ] = None,
    trials: Annotated[
        str | None, typer.Option(metavar="N", help=f"Step sizes tried for each. [default: {_USUAL['trials']}]")
    ] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="The same seed gives the same numbers.")] = "0",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller budgets, 3 runs, no trials: seconds.")] = False,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("results/compare"),
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Run all methods on all problems: performance profiles, and who is best where."""
    usual = _QUICK if quick else _USUAL
    given = {"budgets": budgets, "runs": runs, "trials": trials}
    texts = {name: usual[name] if text is None else text for name, text in given.items()}
    with kindly():
        numbers: dict[str, Any] = {name: number(texts[name]) for name in ("runs", "trials")}
        asked = Comparison(
            problems=",".join(problems),
            methods=",".join(methods),
            budgets=[number(part) for part in texts["budgets"].split(",")],
            seed=number(seed),
            **numbers,
        )
        engine = engine_from(workers, scheduler)
        from tiebreak.experiments import check_folder, save_comparison  # and matplotlib with it

        check_folder(output)
        counts = f"{len(asked.contenders)} methods on {len(asked.entrants)} problems"
        say(f"{counts}, {len(asked.budgets)} budgets, runs: {asked.runs}, step sizes tried: {asked.trials}.")
        found = written(output, partial(run, asked, engine=engine), save_comparison)
    show_sheets(sheets(found), notes(found), PROSE)
    say(f"Written to {output}. {found.seconds:.0f} s.")


def problems() -> None:
    """List the problems of the test bed."""
    console = Console(highlight=False, soft_wrap=True)
    for family, dimension in FAMILIES.items():
        console.print(f"[bold]{family}[/]  {escape(describe(family))} [dim]({dimension} dimensions if none is said)[/]")
    console.print(f"\nA name may have a dimension and a noise: valley-100-heavy. Noises: {', '.join(NOISES)}.")
    console.print(f"all: {', '.join(TESTBED)}.")
