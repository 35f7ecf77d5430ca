"""What commands that sweep have in common: where to work, the bar, and what is kept when one is stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from tiebreak.checks import whole
from tiebreak.cli.console import INTERRUPTED, number, say
from tiebreak.cli.live import bar, loading, waiting
from tiebreak.experiments.blocks import Store
from tiebreak.experiments.engines import Engine, checked

Result = TypeVar("Result")


def engine_from(workers: str | None, scheduler: str | None) -> Engine:
    """What both options say together."""
    if workers is not None and scheduler is not None:
        raise ValueError(
            f"workers={workers!r} and scheduler={scheduler!r}: give one of them"
        )
    if workers is None:
        return checked(scheduler)
    return whole("workers", number(workers))


def claim(output: Path, command: str, overwrite: bool) -> None:
    """See that the results may go there, and say so if others are replaced."""
    with loading("pyarrow"):
        from tiebreak.experiments.folder import check_folder

    replaced = check_folder(output, command, overwrite)
    if replaced:
        say(replaced)


def store_in(output: Path) -> Store:
    """Where finished blocks are kept until everything is written."""
    return Store(output / ".blocks")


def kept(output: Path) -> str:
    """What to say of the blocks of a sweep that was stopped."""
    count = len(list(store_in(output).folder.glob("*.block")))
    return (
        f"Finished blocks are kept ({count}), and the same command goes on from there."
        if count
        else ""
    )


def written(
    output: Path, sweep: Callable[..., Result], save: Callable[[Result, Path], Any]
) -> Result:
    """The result of ``sweep(hear, store)``, saved in the folder; until then its finished blocks are kept there."""
    with store_in(output) as store:
        try:
            with bar() as hear:
                result = sweep(hear, store=store)
        except KeyboardInterrupt:
            say(f"Interrupted; nothing was written. {kept(output)}")
            raise typer.Exit(INTERRUPTED) from None
        with waiting("Writing the files"):
            save(result, output)
        store.clear()
    return result
