"""All commands in one place, with help and version."""

from typing import Annotated

import typer

import tiebreak
from tiebreak.cli.compare import compare
from tiebreak.cli.console import command_line
from tiebreak.cli.list_names import list_names
from tiebreak.cli.plan import plan
from tiebreak.cli.reproduce import reproduce
from tiebreak.cli.results import diff, publish, repeat, report
from tiebreak.cli.table import table
from tiebreak.cli.verify import verify

# A traceback is for bugs; rich's would fill the screen with arrays.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
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


for command in (reproduce, compare, verify, plan, table, report, publish, diff, repeat):
    app.command()(command_line(command))
app.command("list")(command_line(list_names))
