"""``tiebreak compare``."""

from pathlib import Path
from typing import Annotated, Any

from tiebreak.cli.console import completing, number, say, waiting
from tiebreak.cli.options import (
    Folder,
    Overwrite,
    Quiet,
    Report,
    Scheduler,
    Seed,
    Text,
    Workers,
    flag,
    option,
)
from tiebreak.cli.study import engine_from, run_study
from tiebreak.methods import NAMED
from tiebreak.problems.testbed import FAMILIES, TESTBED
from tiebreak.solver.result_warnings import unsaid
from tiebreak.studies.comparison.comparison import Comparison, engine_for
from tiebreak.studies.comparison.methods import PLANNED
from tiebreak.studies.tables import counted

_USUAL = {"budgets": "1e4,1e5,1e6", "runs": "10", "trials": "7"}
#: With --quick, and the trials with --as-is.
_QUICK = {"budgets": "1e3,1e4,1e5", "runs": "3", "trials": "1"}


def compare(
    problems: Annotated[
        list[str],
        option(
            "NAMES",
            "all, names (see tiebreak list) or FILE.py:NAME, which is run; paper+sigma_g=0.1.",
            autocompletion=completing("all", *FAMILIES, *TESTBED),
        ),
    ] = ["all"],  # noqa: B006  # typer only reads the list
    methods: Annotated[
        list[str],
        option(
            "NAMES",
            "all, names (see tiebreak list) or FILE.py:NAME; sdbgd+a=0.3+step_size=0.02.",
            autocompletion=completing("all", *NAMED, *PLANNED),
        ),
    ] = ["all"],  # noqa: B006
    budgets: Annotated[
        Text,
        option(
            "CALLS,…",
            rf"A profile for each. \[default: {_USUAL['budgets']}]",
        ),
    ] = None,
    runs: Annotated[
        Text,
        option("N", r"Independent runs of everything. \[default: 10]"),
    ] = None,
    trials: Annotated[
        Text,
        option("N", r"Step sizes tried for each. \[default: 7]"),
    ] = None,
    steps: Annotated[
        Text,
        option("N", "End a run after so many steps at the latest."),
    ] = None,
    record: Annotated[
        Text,
        option(
            "log|all|N",
            "Write the curves, too: 50 steps a decade, all, each N-th.",
        ),
    ] = None,
    seed: Seed = "0",
    as_is: Annotated[
        bool,
        flag("--as-is", "Trials 1, and no schedule put into a problem's units."),
    ] = False,
    quick: Annotated[
        bool,
        flag("--quick", "Smaller budgets, 3 runs, no trials: seconds."),
    ] = False,
    output: Folder = Path("results/compare"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Run all methods on all problems, step sizes tuned alike: profiles, and who is best where."""
    usual = _QUICK if quick else _USUAL
    if trials is None and as_is:
        trials = "1"
    options: dict[str, Any] = {
        "runs": runs or usual["runs"],
        "trials": trials or usual["trials"],
        "seed": seed,
        "steps": steps,
        "record": record,
    }
    options = {n: number(text) for n, text in options.items() if text is not None}
    comparison = Comparison(
        ",".join(problems),
        ",".join(methods),
        [number(part) for part in (budgets or usual["budgets"]).split(",")],
        as_is=as_is,
        **options,
    )
    engine = engine_for(comparison, engine_from(workers, scheduler))
    counts = [
        f"{counted(len(comparison.compared_methods), 'method')} on "
        f"{counted(len(comparison.compared_problems), 'problem')}",
        counted(len(comparison.budgets), "budget"),
        f"runs: {comparison.runs}",
        f"step sizes tried: {comparison.trials}",
    ]
    say(f"{', '.join(counts)}.")

    def prepare() -> None:
        with waiting("Preparing") as line:
            comparison.rehearse(line.rename)
        for text in comparison.contradictions:
            say(f"tiebreak: {text}", always=True)

    with unsaid():
        run_study(
            comparison,
            output,
            prepare,
            engine=engine,
            overwrite=overwrite,
            report=report,
        )
