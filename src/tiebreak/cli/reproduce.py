"""``tiebreak reproduce``."""

from pathlib import Path
from typing import Annotated

from tiebreak.cli.console import number, numbers, say
from tiebreak.cli.options import (
    Folder,
    Overwrite,
    Quiet,
    Report,
    Scheduler,
    Seed,
    Workers,
    flag,
    option,
)
from tiebreak.cli.study import engine_from, run_study
from tiebreak.studies.reproduction import Experiment

_DEFAULT = Experiment()


# Values are taken as text: Experiment knows the legal ranges, typer knows types alone.
def reproduce(
    methods: Annotated[
        list[str],
        option("NAMES", "By commas or repeated; see tiebreak list."),
    ] = [*_DEFAULT.methods],  # noqa: B006  # typer only reads the list
    runs: Annotated[str, option("N", "Independent runs of each method.")] = str(
        _DEFAULT.runs
    ),
    budget: Annotated[str, option("CALLS", "Oracle calls of each run.")] = "1e8",
    seed: Seed = "0",
    start: Annotated[str, option("X,Y", "Where every run starts.")] = "1.5,1.5",
    noise: Annotated[
        str,
        option(
            "SIGMA",
            "Per coordinate of a sampled gradient; F,G if they differ.",
        ),
    ] = "0.5",
    record: Annotated[
        str,
        option("log|all|N", "Steps kept: 50 a decade, all, each N-th."),
    ] = "log",
    per_sample: Annotated[
        bool,
        flag("--per-sample", "Draw every sample: slow, the same law."),
    ] = False,
    output: Folder = Path("results"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiment: data, figures and a summary."""
    experiment = Experiment(
        methods=",".join(methods),
        runs=number(runs),
        budget=number(budget),
        seed=number(seed),
        start=numbers(start),
        noise=numbers(noise) if "," in noise else number(noise),
        record=number(record),
        per_sample=per_sample,
    )
    engine = engine_from(workers, scheduler)
    say(
        f"The paper's problem, {experiment.budget:,} calls a run, runs: {experiment.runs}."
    )
    run_study(experiment, output, engine=engine, overwrite=overwrite, report=report)
