"""All commands in one place, and what belongs to none of them: help and version."""

from typing import Annotated

import typer

import tiebreak
from tiebreak.cli.compare import compare, problems, sweep
from tiebreak.cli.console import spoken
from tiebreak.cli.methods import methods
from tiebreak.cli.plan import plan
from tiebreak.cli.plot import plot
from tiebreak.cli.publish import diff, publish, repeat
from tiebreak.cli.report import report
from tiebreak.cli.reproduce import reproduce
from tiebreak.cli.table import table
from tiebreak.cli.verify import verify

# A traceback is for bugs; rich's would fill the screen with arrays.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiebreak {tiebreak.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Minimise one objective among the minimisers of another, from stochastic gradients."""


for command in (
    reproduce,
    plot,
    methods,
    problems,
    table,
    plan,
    verify,
    compare,
    sweep,
    report,
    publish,
    diff,
    repeat,
):
    app.command()(spoken(command))
