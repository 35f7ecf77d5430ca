"""``tiebreak table``."""

from collections.abc import Collection, Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiebreak.cli.console import kindly, number
from tiebreak.experiments.planning import constants_from
from tiebreak.experiments.report import Sheet
from tiebreak.experiments.verification_report import as_markdown, scientific
from tiebreak.theory import TABLE, oracle_complexity

__all__ = ["CONSTANTS_HELP", "orders", "show_sheets", "table"]

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


def show_sheets(sheets: Iterable[Sheet], notes: Iterable[str] = (), prose: Collection[str] = ()) -> None:
    """Print tables, and notes below them; the columns named in `prose` hold words, to the left."""
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width; rich would assume little
        console.width = max(console.width, 120)
    for sheet in sheets:
        console.print(f"[bold]{escape(sheet.title)}[/]")
        shown = Table(box=None, pad_edge=False, header_style="dim", show_header=any(sheet.header))
        for i, name in enumerate(sheet.header):
            shown.add_column(name, justify="left" if i == 0 or name in prose else "right", overflow="fold")
        for row in sheet.rows:
            shown.add_row(*(f"[red]{cell}[/]" if cell == "FAIL" else escape(cell) for cell in row))
        console.print(shown)
        console.print()
    for text in notes:
        console.print(f"• {escape(text)}", style="dim")
