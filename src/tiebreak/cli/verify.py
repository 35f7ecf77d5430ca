"""``tiebreak verify``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import kindly, number, say, show_sheets
from tiebreak.cli.sweeping import Scheduler, Workers, engine_from, written
from tiebreak.experiments import Verification
from tiebreak.experiments import verify as run
from tiebreak.experiments.verification_report import PROSE, notes, sheets

__all__ = ["verify"]


def verify(
    runs: Annotated[str, typer.Option(metavar="N", help="Independent runs of everything.")] = "32",
    seed: Annotated[str, typer.Option(metavar="N", help="The same seed gives the same numbers.")] = "0",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and problems: seconds, not minutes.")] = False,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("results/verify"),
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Check the theorems against simulation; fails if a bound is violated."""
    with kindly():
        asked = Verification(runs=number(runs), seed=number(seed), quick=quick)
        from tiebreak.experiments import check_folder, save_verification

        engine = engine_from(workers, scheduler)
        check_folder(output)
        say(f"The theorems against simulation, {asked.runs} runs of each case.")
        findings = written(output, partial(run, asked, engine=engine), save_verification)
    show_sheets(sheets(findings), notes(findings), PROSE)
    say(f"Written to {output}. {findings.seconds:.0f} s.")
    if not findings.passed:
        say(f"FAIL: {findings.verdicts['FAIL']} comparisons violate a bound; {output / 'summary.md'} shows where.")
        raise typer.Exit(1)
    say("PASS: no bound is violated.")
