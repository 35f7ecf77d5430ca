"""``tiebreak table``."""

from typing import Annotated

import typer

from tiebreak.cli.console import kindly, number, show_sheets
from tiebreak.experiments.planning import constants_from
from tiebreak.experiments.tables import Sheet, as_markdown, scientific
from tiebreak.theory import TABLE, oracle_complexity

__all__ = ["CONSTANTS_HELP", "orders", "table"]

CONSTANTS_HELP = "paper, or L_f=…,L_g=…,G_f=…,sigma_f=…,sigma_g=…,delta_f=…,delta_g=…; paper,L_f=2 changes one."
_SUPERSCRIPTS = str.maketrans("0123456789.-", "⁰¹²³⁴⁵⁶⁷⁸⁹·⁻")
_COMPUTED = ("sdbgd", "penalty")
_PROSE = ("setting", "extra assumption", "source", "what this is")
_NOTES = (
    "The Penalty row, ours, is better than every stochastic row of the paper, and under the same assumptions: fewer "
    "calls of both levels and no more iterations. It needs the number of steps beforehand. The proof takes four lines: "
    "“The penalty row” in the documentation (docs/theory.md).",
    "enough: a theorem says that so much is enough with these constants, for the cheapest schedule whose bound is ε. "
    "order only: the bare power of 1/ε; it does not compare with numbers that have their constants.",
)


def table(
    epsilon: Annotated[str, typer.Option(metavar="E", help="The accuracy of both residuals.")] = "0.01",
    constants: Annotated[str, typer.Option(metavar="VALUES", help=CONSTANTS_HELP)] = "paper",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """The paper's Table 1 and a row of ours: orders, and numbers for an accuracy."""
    with kindly():
        sheets = orders(), numbers_at(number(epsilon), constants)
    if markdown:
        for sheet in sheets:
            typer.echo("\n".join([f"**{sheet.title}**", "", *as_markdown(sheet, _PROSE), ""]))
        typer.echo("\n".join(f"- {note}" for note in _NOTES))
    else:
        show_sheets(sheets, _NOTES, prose=_PROSE)


def orders() -> Sheet:
    """Table 1: powers of 1/ε."""
    header = ("method", "setting", "iterations", "upper calls", "lower calls", "extra assumption", "source")
    rows = [
        [r.name, r.setting, *(_order(p) for p in (r.iterations, r.upper, r.lower)), r.assumption, r.source]
        for r in TABLE
    ]
    return Sheet("To reach E‖d‖² ≤ ε and E‖∇g‖² ≤ ε", header, rows)


def _order(power: float) -> str:
    return f"ε{f'-{power:g}'.translate(_SUPERSCRIPTS)}"


def numbers_at(epsilon: float, constants: str) -> Sheet:
    """Table 1 in numbers, with constants where a theorem gives them."""
    known, rows = constants_from(constants), []
    for row in TABLE:
        found = oracle_complexity(epsilon, row.key, known if row.key in _COMPUTED else None)
        counts = [scientific(value, 2) for value in (found.iterations, found.upper_calls, found.lower_calls)]
        rows.append([row.name, *counts, "enough" if found.exact else "order only, constants unknown"])
    header = ("method", "iterations", "upper calls", "lower calls", "what this is")
    return Sheet(f"At ε = {epsilon:g}, constants: {constants}", header, rows)
