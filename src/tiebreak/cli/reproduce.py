"""``tiebreak reproduce``."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich import progress as bars
from rich.console import Console

import tiebreak
from tiebreak.cli.console import INTERRUPTED, kindly, number, numbers, say, show_sheets
from tiebreak.experiments import Experiment, Outcome, run
from tiebreak.experiments.configuration import label
from tiebreak.experiments.report import notes, sheets

__all__ = ["reproduce"]

_DEFAULT = Experiment()


# Values are taken as text: Experiment knows the legal ranges and says them, typer knows types alone.
def reproduce(
    methods: Annotated[
        list[str], typer.Option(metavar="NAMES", help="By commas or repeated; `tiebreak methods` lists them.")
    ] = [*_DEFAULT.methods],  # noqa: B006  # typer only reads it
    runs: Annotated[str, typer.Option(metavar="N", help="Independent runs of each method.")] = str(_DEFAULT.runs),
    budget: Annotated[str, typer.Option(metavar="CALLS", help="Oracle calls of each run.")] = "1e8",
    seed: Annotated[str, typer.Option(metavar="N", help="The same seed gives the same numbers.")] = "0",
    start: Annotated[str, typer.Option(metavar="X,Y", help="Where every run starts.")] = "1.5,1.5",
    noise: Annotated[str, typer.Option(metavar="SIGMA", help="Per coordinate of a sampled gradient.")] = "0.5",
    record: Annotated[str, typer.Option(metavar="log|all|N", help="Steps kept: 50 a decade, all, each N-th.")] = "log",
    per_sample: Annotated[bool, typer.Option("--per-sample", help="Draw every sample: slow, the same law.")] = False,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("results"),
) -> None:
    """Run the paper's experiment: data, figures and a summary."""
    with kindly():
        experiment = Experiment(
            methods=",".join(methods),
            runs=number(runs),
            budget=number(budget),
            seed=number(seed),
            start=numbers(start),
            noise=number(noise),
            record=number(record),
            per_sample=per_sample,
        )
        # Not above, so that help and complaints need not wait for matplotlib; and before the run, to miss it early.
        from tiebreak.experiments import check_folder, draw, save

        check_folder(output)
        say(f"The paper's problem, {experiment.budget:,} calls a run, runs: {experiment.runs}.")
        outcome = _run(experiment)
    if not outcome.methods:
        say("Interrupted before anything was reached; nothing was written.")
        raise typer.Exit(INTERRUPTED)
    began = time.perf_counter()
    saved = False
    try:
        with kindly():
            save(outcome, output)
            saved = True
            draw(outcome, output)
    except KeyboardInterrupt:
        if not saved:  # what took long to compute takes a moment to save
            with kindly():
                save(outcome, output)
        say(f"Interrupted while writing. The data are saved, and `tiebreak plot {output}` draws them.")
        raise typer.Exit(INTERRUPTED) from None
    show_sheets(sheets(outcome), notes(outcome))
    seconds = sum(outcome.seconds.values())
    say(f"Written to {output}. Runs {seconds:.1f} s, files {time.perf_counter() - began:.1f} s.")
    if outcome.interrupted:
        say("Interrupted: the files hold what was reached, and the summary says what is missing.")
        raise typer.Exit(INTERRUPTED)
    if outcome.faults:
        say(f"{len(outcome.faults)} runs could not go on; the summary says why.")
        raise typer.Exit(1)


def _run(experiment: Experiment) -> Outcome:
    """Run with a bar for each method."""
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[steps]:,} steps"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        tasks = {m: shown.add_task(label(m), start=False, total=1.0, steps=0) for m in experiment.methods}

        def finish(method: str) -> None:
            shown.update(tasks[method], completed=1.0)  # the budget is rarely spent to the last call

        def tell(method: str, now: tiebreak.Progress) -> None:
            for earlier in experiment.methods[: experiment.methods.index(method)]:
                finish(earlier)
            shown.start_task(tasks[method])
            shown.update(tasks[method], completed=now.fraction, steps=now.steps)

        outcome = run(experiment, tell)
        for method in outcome.methods[: len(outcome.methods) - outcome.interrupted]:
            finish(method)
    return outcome
