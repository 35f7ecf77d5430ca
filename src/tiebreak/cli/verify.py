"""``tiebreak verify``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import progress as bars
from rich.console import Console

from tiebreak.cli.console import INTERRUPTED, kindly, number, say, show_sheets
from tiebreak.experiments import Verification
from tiebreak.experiments import verify as run
from tiebreak.experiments.verification_report import PROSE, notes, sheets

__all__ = ["stages", "verify"]


def verify(
    runs: Annotated[str, typer.Option(metavar="N", help="Independent runs of everything.")] = "32",
    seed: Annotated[str, typer.Option(metavar="N", help="The same seed gives the same numbers.")] = "0",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and problems: seconds, not minutes.")] = False,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("results/verify"),
) -> None:
    """Check the theorems against simulation; fails if a bound is violated."""
    with kindly():
        asked = Verification(runs=number(runs), seed=number(seed), quick=quick)
        from tiebreak.experiments import check_folder, save_verification

        check_folder(output)
        try:
            with stages() as hear:
                findings = run(asked, hear)
        except KeyboardInterrupt:
            say("Interrupted; nothing was written.")
            raise typer.Exit(INTERRUPTED) from None
        save_verification(findings, output)
    show_sheets(sheets(findings), notes(findings), PROSE)
    say(f"Written to {output}. {findings.seconds:.0f} s.")
    if not findings.passed:
        say(f"FAIL: {findings.verdicts['FAIL']} comparisons violate a bound; {output / 'summary.md'} shows where.")
        raise typer.Exit(1)
    say("PASS: no bound is violated.")


@contextmanager
def stages() -> Iterator[Callable[[str, float], Any]]:
    """A bar for each stage, shown when it is first heard of."""
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, bars.TaskID] = {}

        def hear(stage: str, share: float) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=1.0)
            shown.update(tasks[stage], completed=share)

        yield hear
