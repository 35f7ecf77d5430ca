"""``tiebreak verify``."""

from pathlib import Path
from typing import Annotated

from tiebreak.cli.console import number, say
from tiebreak.cli.options import (
    ConstantsOption,
    Folder,
    NoiseSmoothness,
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
from tiebreak.studies.constants_text import smoothness_from
from tiebreak.studies.verification.verification import Verification


def verify(
    runs: Annotated[str, option("N", "Independent runs of everything.")] = "32",
    seed: Seed = "0",
    quick: Annotated[
        bool,
        flag("--quick", "Fewer steps and problems: seconds, not minutes."),
    ] = False,
    problem: Annotated[
        Text,
        option(
            "NAME",
            "Check this problem alone: one of the test bed, or FILE.py:NAME, which is run.",
        ),
    ] = None,
    method: Annotated[
        Text,
        option(
            "NAME",
            "With it: a method with a proved bound, 'plan NAME', or FILE.py:NAME.",
        ),
    ] = None,
    steps: Annotated[Text, option("K", "With it: how many steps.")] = None,
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
    verification = Verification(
        runs=number(runs),
        seed=number(seed),
        quick=quick,
        problem=problem,
        method=method,
        steps=None if steps is None else number(steps),
        constants=constants,
        noise_smoothness=smoothness_from(noise_smoothness),
    )
    engine = engine_from(workers, scheduler)
    say(f"The theorems against simulation, {verification.runs} runs of each case.")
    run_study(verification, output, engine=engine, overwrite=overwrite, report=report)
