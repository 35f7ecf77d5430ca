"""``tiebreak compare``, ``tiebreak sweep``, which is the same with methods as they are, and ``tiebreak problems``."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.markup import escape

from tiebreak.cli.console import Console, completing, kindly, number, say, show_sheets
from tiebreak.cli.live import loading, waiting
from tiebreak.cli.options import (
    Folder,
    Overwrite,
    Quiet,
    Report,
    Scheduler,
    Seed,
    Workers,
)
from tiebreak.cli.report import reported
from tiebreak.cli.sweeping import claim, engine_from, written
from tiebreak.experiments import Comparison
from tiebreak.experiments import compare as run
from tiebreak.experiments.comparing_report import PROSE, notes, sheets
from tiebreak.experiments.contenders import PLANNED
from tiebreak.experiments.engines import Engine
from tiebreak.experiments.entrants import rehearse
from tiebreak.experiments.tables import counted
from tiebreak.methods import NAMED
from tiebreak.problems.noises import NOISES
from tiebreak.problems.testbed import FAMILIES, TESTBED, describe
from tiebreak.solver.result_warnings import unsaid

#: What --quick means for whatever is not said.
_QUICK = {"budgets": "1e3,1e4,1e5", "runs": "3", "trials": "1"}
_USUAL = {"budgets": "1e4,1e5,1e6", "runs": "10", "trials": "7"}


def _usually(text: str, name: str) -> str:
    """Help with what is taken if nothing is said; brackets are escaped, or rich would take them for markup."""
    return rf"{text} \[default: {_USUAL[name]}]"


Problems: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAMES",
        help="all, names (`tiebreak problems` lists them) or FILE.py:NAME; paper+sigma_g=0.1.",
        autocompletion=completing("all", *FAMILIES, *TESTBED),
    ),
]
Methods: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="NAMES",
        help="all, names (`tiebreak methods`) or FILE.py:NAME; sdbgd+a=0.3+step_size=0.02.",
        autocompletion=completing("all", *NAMED, *PLANNED),
    ),
]
Budgets: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="CALLS,…", help=_usually("A profile for each.", "budgets")),
]
Runs: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help=_usually("Independent runs of everything.", "runs")),
]
Steps: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help="End a run after so many steps at the latest."),
]
Kept: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="log|all|N",
        help="Write the curves, too: 50 steps a decade, all, each N-th.",
    ),
]


def compare(
    problems: Problems = ["all"],  # noqa: B006  # typer only reads it
    methods: Methods = ["all"],  # noqa: B006  # likewise
    budgets: Budgets = None,
    runs: Runs = None,
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N", help=_usually("Step sizes tried for each.", "trials")
        ),
    ] = None,
    steps: Steps = None,
    record: Kept = None,
    seed: Seed = "0",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Smaller budgets, 3 runs, no trials: seconds."),
    ] = False,
    output: Folder = Path("results/compare"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Run all methods on all problems, step sizes tuned alike: profiles, and who is best where."""
    texts = {
        "problems": ",".join(problems),
        "methods": ",".join(methods),
        "budgets": budgets,
        "runs": runs,
    }
    texts |= {"trials": trials, "steps": steps, "record": record, "seed": seed}
    with reported(report, output), kindly():
        comparison = _comparison(_QUICK if quick else _USUAL, texts, as_is=False)
        _run(comparison, engine_from(workers, scheduler), output, overwrite)


def sweep(
    problems: Problems = ["paper"],  # noqa: B006  # likewise
    methods: Methods = ["all"],  # noqa: B006  # likewise
    budgets: Budgets = None,
    runs: Runs = None,
    steps: Steps = None,
    record: Kept = None,
    seed: Seed = "0",
    output: Folder = Path("results/sweep"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Run methods on problems as they are: no step size is tuned, and no schedule put into a problem's units."""
    texts = {
        "problems": ",".join(problems),
        "methods": ",".join(methods),
        "budgets": budgets,
        "runs": runs,
    }
    texts |= {"steps": steps, "record": record, "seed": seed}
    with reported(report, output), kindly():
        comparison = _comparison(_USUAL | {"trials": "1"}, texts, as_is=True)
        _run(comparison, engine_from(workers, scheduler), output, overwrite)


def _comparison(
    usual: Mapping[str, str], texts: Mapping[str, str | None], as_is: bool
) -> Comparison:
    """The comparison of these texts, and of the usual ones where there is None."""
    words: dict[str, Any] = {
        **usual,
        **{name: text for name, text in texts.items() if text is not None},
    }
    for name in words.keys() - {"problems", "methods", "budgets"}:
        words[name] = number(words[name])
    words["budgets"] = [number(part) for part in words["budgets"].split(",")]
    return Comparison(as_is=as_is, **words)


def _run(comparison: Comparison, engine: Engine, output: Path, overwrite: bool) -> None:
    counts = f"{counted(len(comparison.contenders), 'method')} on {counted(len(comparison.entrants), 'problem')}"
    budgets = counted(len(comparison.budgets), "budget")
    say(
        f"{counts}, {budgets}, runs: {comparison.runs}, step sizes tried: {comparison.trials}."
    )
    claim(output, comparison.command, overwrite)
    with waiting("Preparing") as line:  # what cannot be run is told before anything is
        rehearse(
            comparison.entrants, comparison.contenders, comparison.budgets, line.rename
        )
    for doubt in (doubt for entrant in comparison.entrants for doubt in entrant.doubts):
        say(f"tiebreak: {doubt}", always=True)
    with loading("matplotlib"):
        from tiebreak.experiments.saving import (
            save_comparison,
        )  # and matplotlib with it

    with unsaid():  # it has been said
        compared = written(
            output, partial(run, comparison, engine=engine), save_comparison
        )
    show_sheets(sheets(compared), notes(compared), PROSE)
    say(f"Written to {output}. {compared.seconds:.0f} s.")


def problems() -> None:
    """List the problems of the test bed."""
    console = Console(highlight=False, soft_wrap=True)
    for family, dimension in FAMILIES.items():
        console.print(
            f"[bold]{family}[/]  {escape(describe(family))} [dim]({dimension} dimensions if none is said)[/]"
        )
    console.print(
        f"\nA name may have a dimension and a noise: valley-100-heavy. Noises: {', '.join(NOISES)}."
    )
    console.print(f"all: {', '.join(TESTBED)}.")
