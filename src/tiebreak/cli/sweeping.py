"""What commands that sweep have in common: where to work, the bar, and what is kept when one is stopped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich import progress as bars
from rich.console import Console

from tiebreak.checks import whole
from tiebreak.cli.console import INTERRUPTED, number, say
from tiebreak.experiments.blocks import Store
from tiebreak.experiments.engines import Engine, checked

__all__ = ["Scheduler", "Workers", "bar", "engine_from", "kept", "stages", "store_in", "written"]

Found = TypeVar("Found")

Workers: TypeAlias = Annotated[
    str | None, typer.Option(metavar="N", help="Local processes; if not said, as many as pay.")
]
Scheduler: TypeAlias = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, or local:4 to start one.")
]


def engine_from(workers: str | None, scheduler: str | None) -> Engine:
    """What both options say together."""
    if workers is not None and scheduler is not None:
        raise ValueError(f"workers={workers!r} and scheduler={scheduler!r}: give one of them")
    if workers is None:
        return checked(scheduler)
    return whole("workers", number(workers))


def store_in(output: Path) -> Store:
    """Where finished blocks are kept until everything is written."""
    return Store(output / ".blocks")


def kept(output: Path) -> str:
    """What to say of the blocks of a sweep that was stopped."""
    count = len(list(store_in(output).folder.glob("*.block")))
    return f"Finished blocks are kept ({count}), and the same command goes on from there." if count else ""


@contextmanager
def bar() -> Iterator[Callable[[str, float], Any]]:
    """One bar for all that is done."""
    columns = (
        bars.BarColumn(bar_width=None),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda name, share: shown.update(task, completed=share, description=name)


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


def written(output: Path, sweep: Callable[..., Found], save: Callable[[Found, Path], Any]) -> Found:
    """What ``sweep(hear, store)`` finds, saved in the folder; until then its finished blocks are kept there."""
    with store_in(output) as store:
        try:
            with bar() as hear:
                found = sweep(hear, store=store)
        except KeyboardInterrupt:
            say(f"Interrupted; nothing was written. {kept(output)}")
            raise typer.Exit(INTERRUPTED) from None
        save(found, output)
        store.clear()
    return found
