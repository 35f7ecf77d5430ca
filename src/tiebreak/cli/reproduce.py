"""``tiebreak reproduce``."""

from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.console import INTERRUPTED, kindly, number, numbers, say, show_sheets
from tiebreak.cli.live import bar, loading, waiting
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
from tiebreak.cli.sweeping import claim, engine_from, kept, store_in
from tiebreak.experiments import Experiment, run
from tiebreak.experiments.blocks import Store
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import notes, sheets
from tiebreak.experiments.tables import counted

_DEFAULT = Experiment()


# Values are taken as text: Experiment knows the legal ranges and says them, typer knows types alone.
def reproduce(
    methods: Annotated[
        list[str],
        typer.Option(
            metavar="NAMES",
            help="By commas or repeated; `tiebreak methods` lists them.",
        ),
    ] = [*_DEFAULT.methods],  # noqa: B006  # typer only reads it
    runs: Annotated[
        str, typer.Option(metavar="N", help="Independent runs of each method.")
    ] = str(_DEFAULT.runs),
    budget: Annotated[
        str, typer.Option(metavar="CALLS", help="Oracle calls of each run.")
    ] = "1e8",
    seed: Seed = "0",
    start: Annotated[
        str, typer.Option(metavar="X,Y", help="Where every run starts.")
    ] = "1.5,1.5",
    noise: Annotated[
        str,
        typer.Option(
            metavar="SIGMA",
            help="Per coordinate of a sampled gradient; F,G if they differ.",
        ),
    ] = "0.5",
    record: Annotated[
        str,
        typer.Option(
            metavar="log|all|N", help="Steps kept: 50 a decade, all, each N-th."
        ),
    ] = "log",
    per_sample: Annotated[
        bool,
        typer.Option("--per-sample", help="Draw every sample: slow, the same law."),
    ] = False,
    output: Folder = Path("results"),
    overwrite: Overwrite = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiment: data, figures and a summary."""
    with reported(report, output), kindly():
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
        # Not above, so that help and complaints need not wait for matplotlib; and before the run, to miss it early.
        with loading("matplotlib"):
            from tiebreak.experiments import figures  # noqa: F401  # and matplotlib with it

        claim(output, experiment.command, overwrite)
        with store_in(output) as store:
            with bar() as hear:
                outcome = run(experiment, hear, engine=engine, store=store)
            _write(outcome, output, store)
    if outcome.faults:
        say(
            f"{counted(len(outcome.faults), 'run')} could not go on; the summary says why."
        )
        raise typer.Exit(1)


def _write(outcome: Outcome, output: Path, store: Store) -> None:
    """Write and show what was reached; Ctrl-C loses no data. Blocks are kept if some are missing."""
    from tiebreak.experiments import draw

    if not outcome.methods:
        say(
            f"Interrupted before a method was done; nothing was written. {kept(output)}"
        )
        raise typer.Exit(INTERRUPTED)
    saved = False
    try:
        with waiting("Writing the files"):
            _save(outcome, output, store)
        saved = True
        with waiting("Drawing the figures"):
            draw(outcome, output)
    except KeyboardInterrupt:
        if not saved:  # what took long to compute takes a moment to save
            _save(outcome, output, store)
        say(
            f"Interrupted while writing. The data are saved, and `tiebreak plot {output}` draws them."
        )
        raise typer.Exit(INTERRUPTED) from None
    show_sheets(sheets(outcome), notes(outcome))
    say(f"Written to {output}. {sum(outcome.seconds.values()):.1f} s.")
    if outcome.interrupted:
        say(
            f"Interrupted: the files hold what was reached, and the summary says what is missing. {kept(output)}"
        )
        raise typer.Exit(INTERRUPTED)


def _save(outcome: Outcome, output: Path, store: Store) -> None:
    from tiebreak.experiments import save

    save(outcome, output)
    if not outcome.interrupted:
        store.clear()
