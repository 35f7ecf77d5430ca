"""``tiebreak list``."""

from typing import Annotated

import typer

from tiebreak.checks import one_of
from tiebreak.cli.console import Console, printable
from tiebreak.methods import NAMED
from tiebreak.problems.noises import NOISES
from tiebreak.problems.testbed import FAMILIES, TESTBED
from tiebreak.problems.testbed import describe as describe_family
from tiebreak.studies.comparison.methods import PLANNED
from tiebreak.studies.method_names import describe, reconstructed


def list_names(
    what: Annotated[
        str, typer.Argument(metavar="methods|problems", help="Of one kind.")
    ] = "",
) -> None:
    """List the methods and the problems that have names."""
    if what:
        one_of("what", what, ("methods", "problems"))
    lines = []
    if what != "problems":
        lines += _methods()
    if what != "methods":
        lines += _problems()
    Console().print(printable("\n".join(lines)), soft_wrap=True)


def _methods() -> list[str]:
    lines = []
    for name in NAMED:
        parts = describe(name)
        mark = "  † our reconstruction" * reconstructed(name)
        lines.append(f"{name}  {parts.pop('name')}{mark}")
        lines += [f"  {part:<10} {text}" for part, text in parts.items()]
    lines += [
        "",
        "Besides, for `tiebreak compare`, made for a problem's constants and a budget:",
    ]
    return lines + [f"{name}  {planned.words}" for name, planned in PLANNED.items()]


def _problems() -> list[str]:
    lines = [
        f"{family}  {describe_family(family)} ({dimension} dimensions if none is said)"
        for family, dimension in FAMILIES.items()
    ]
    noises = ", ".join(NOISES)
    return [
        *lines,
        "",
        f"A name may have a dimension and a noise: valley-100-heavy. Noises: {noises}.",
        f"all: {', '.join(TESTBED)}.",
    ]
