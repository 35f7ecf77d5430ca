"""``tiebreak verify``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tiebreak.cli.console import kindly, number, say, show_sheets
from tiebreak.cli.live import Quiet, loading
from tiebreak.cli.report import Report, reported
from tiebreak.cli.sweeping import Overwrite, Scheduler, Workers, claim, engine_from, written
from tiebreak.cli.table import CONSTANTS_HELP, smoothness
from tiebreak.experiments import Verification
from tiebreak.experiments import verify as run
from tiebreak.experiments.verification_report import PROSE, notes, sheets

__all__ = ["verify"]


def verify(
    runs: Annotated[str, typer.Option(metavar="N", help="Independent runs of everything.")] = "32",
    seed: Annotated[str, typer.Option(metavar="N", help="The same seed gives the same numbers.")] = "0",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and problems: seconds, not minutes.")] = False,
    problem: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Check this problem alone: one of the test bed, or FILE.py:NAME."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With it: a method with a proved bound, 'plan NAME', or FILE.py:NAME."),
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="K", help="With it: how many steps.")] = None,
    constants: Annotated[str | None, typer.Option(metavar="VALUES", help=CONSTANTS_HELP)] = None,
    noise_smoothness: Annotated[
        str | None, typer.Option(metavar="L|L_F,L_G", help="ℓ of the noise, for SPIDER and STORM; 0 if additive.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("results/verify"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Check the theorems against simulation; fails if a bound is violated."""
    with reported(report, output), kindly():
        own: dict[str, Any] = {"problem": problem, "method": method, "constants": constants}
        own["steps"] = None if steps is None else number(steps)
        own["noise_smoothness"] = smoothness(noise_smoothness)
        asked = Verification(runs=number(runs), seed=number(seed), quick=quick, **own)
        engine = engine_from(workers, scheduler)
        say(f"The theorems against simulation, {asked.runs} runs of each case.")
        with loading("matplotlib"):
            from tiebreak.experiments.saving import save_verification

        claim(output, asked.command, overwrite)
        findings = written(output, partial(run, asked, engine=engine), save_verification)
    show_sheets(sheets(findings), notes(findings), PROSE)
    say(f"Written to {output}. {findings.seconds:.0f} s.")
    if not findings.passed:
        say(f"FAIL: {findings.verdicts['FAIL']} comparisons violate a bound; {output / 'summary.md'} shows where.")
        raise typer.Exit(1)
    say("PASS: no bound is violated.")
