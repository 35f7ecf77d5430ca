"""``tiebreak verify``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import kindly, number, say, show_sheets
from tiebreak.cli.live import loading
from tiebreak.cli.options import (
    ConstantsOption,
    Folder,
    NoiseSmoothness,
    Overwrite,
    Quiet,
    Report,
    Scheduler,
    Seed,
    Workers,
)
from tiebreak.cli.report import reported
from tiebreak.cli.sweeping import claim, engine_from, written
from tiebreak.cli.table import smoothness
from tiebreak.experiments import Verification
from tiebreak.experiments import verify as run
from tiebreak.experiments.verification_report import PROSE, notes, sheets


def verify(
    runs: Annotated[
        str, typer.Option(metavar="N", help="Independent runs of everything.")
    ] = "32",
    seed: Seed = "0",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer steps and problems: seconds, not minutes."),
    ] = False,
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check this problem alone: one of the test bed, or FILE.py:NAME.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With it: a method with a proved bound, 'plan NAME', or FILE.py:NAME.",
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="K", help="With it: how many steps.")
    ] = None,
    constants: ConstantsOption = None,
    noise_smoothness: NoiseSmoothness = None,
    output: Folder = Path("results/verify"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Check the theorems against simulation; fails if a bound is violated."""
    with reported(report, output), kindly():
        verification = Verification(
            runs=number(runs),
            seed=number(seed),
            quick=quick,
            problem=problem,
            method=method,
            steps=None if steps is None else number(steps),
            constants=constants,
            noise_smoothness=smoothness(noise_smoothness),
        )
        engine = engine_from(workers, scheduler)
        say(f"The theorems against simulation, {verification.runs} runs of each case.")
        with loading("matplotlib"):
            from tiebreak.experiments.saving import save_verification

        claim(output, verification.command, overwrite)
        findings = written(
            output, partial(run, verification, engine=engine), save_verification
        )
    show_sheets(sheets(findings), notes(findings), PROSE)
    say(f"Written to {output}. {findings.seconds:.0f} s.")
    if not findings.passed:
        say(
            f"FAIL: {findings.verdicts['FAIL']} comparisons violate a bound; {output / 'summary.md'} shows where."
        )
        raise typer.Exit(1)
    say("PASS: no bound is violated.")
