"""The command line. A command is a function in a module of its own, and a name in :mod:`tiebreak.cli.app`."""

import io
import sys
from importlib import import_module

from tiebreak.checks import install

__all__ = ["main"]

_EXTRA = ("typer", "rich", "matplotlib", "pyarrow", "plotly")


def main(module: str = "tiebreak.cli.app", name: str = "tiebreak") -> None:
    """Run the `app` of a module as the command `name`; what only the `cli` extra installs is asked for kindly."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a terminal without ∇ shows a question mark, not a traceback
    try:
        import_module(module).app(prog_name=name)
    except KeyboardInterrupt:  # while modules are imported
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        report = (
            missing == "plotly" or "report" in sys.argv[1:2] or "--report" in sys.argv
        )
        what, extra = ("a report", "report") if report else ("the command line", "cli")
        sys.exit(
            f"tiebreak: {missing} is not installed; {what} needs: {install(extra)}"
        )
