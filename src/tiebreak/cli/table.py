"""``tiebreak table``."""

import math
from typing import Annotated, Any

import typer

from tiebreak.cli.console import number, show_tables, waiting
from tiebreak.cli.options import ConstantsOption, NoiseSmoothness, flag, option
from tiebreak.studies.constants_text import constants_from, smoothness_from
from tiebreak.studies.latex import as_latex
from tiebreak.studies.tables import SUPERSCRIPTS, Table, as_markdown, scientific
from tiebreak.theory import Constants, least_complexity, oracle_complexity
from tiebreak.theory.complexity import LOWER_BOUNDS, TABLE
from tiebreak.theory.plans import COMPUTED

_NOTES = (
    "The Penalty row, ours, is better than every stochastic row of the paper, and under the same assumptions: fewer "
    "calls of both levels and no more iterations. The proof takes four lines: “The penalty row” in the documentation "
    "(docs/theory.md). It and the rows below it were derived by us and reviewed by nobody outside.",
    "no method below: whatever a method does, and whatever its λ, some problem takes it so much, up to a universal "
    "constant that is not counted here. So penalties are optimal in iterations and lower calls.",
    "enough: a theorem says that so much is enough with these constants, for the cheapest schedule whose bound is ε. "
    "order only: the bare power of 1/ε; it does not compare with numbers that have their constants.",
)


def table(
    epsilon: Annotated[str, option("E", "The accuracy of both residuals.")] = "0.01",
    constants: ConstantsOption = None,
    noise_smoothness: NoiseSmoothness = None,
    markdown: Annotated[bool, flag("--markdown", "Print Markdown.")] = False,
    latex: Annotated[bool, flag("--latex", "Print LaTeX, with booktabs.")] = False,
) -> None:
    """The paper's Table 1, rows of ours and what no method beats: orders, and numbers for an accuracy."""
    if markdown and latex:
        raise ValueError("--markdown and --latex: give one of them")
    smooth = smoothness_from(noise_smoothness)
    with waiting("Looking for the cheapest schedules"):
        numbers = numbers_at(number(epsilon), constants or "paper", smooth)
    tables = {"tab:orders": orders(), "tab:numbers": numbers}
    if latex:
        lines = [as_latex(each, label) for label, each in tables.items()]
        lines += [f"% {note}" for note in _NOTES]
    elif markdown:
        lines = []
        for each in tables.values():
            lines += [f"**{each.title}**", "", *as_markdown(each), ""]
        lines += [f"- {note}" for note in _NOTES]
    else:
        show_tables(tables.values(), _NOTES)
        return
    typer.echo("\n".join(lines))


def orders() -> Table:
    """Table 1: powers of 1/ε."""
    header = (
        "method",
        "setting",
        "iterations",
        "upper calls",
        "lower calls",
        "extra assumption",
        "source",
    )
    rows = [
        [
            r.name,
            r.setting,
            *(_order(p) for p in (r.iterations, r.upper, r.lower)),
            r.assumption,
            r.source,
        ]
        for r in (*TABLE, *LOWER_BOUNDS)
    ]
    words = ("setting", "extra assumption", "source")
    return Table("To reach E‖d‖² ≤ ε and E‖∇g‖² ≤ ε", header, rows, words)


def _order(power: float) -> str:
    return "–" if math.isnan(power) else f"ε{f'-{power:g}'.translate(SUPERSCRIPTS)}"


def numbers_at(
    epsilon: float,
    constants: str,
    noise_smoothness: float | tuple[float, float] | None = None,
) -> Table:
    """Table 1 in numbers, with constants where a theorem gives them."""
    values = constants_from(constants)
    rows = []
    for row in TABLE:
        if not row.key:
            continue
        reduced = row.assumption == TABLE[-1].assumption
        exact = row.key in COMPUTED and (noise_smoothness is not None or not reduced)
        smooth = noise_smoothness if exact and reduced else None
        costs = oracle_complexity(epsilon, row.key, values if exact else None, smooth)
        counts = [
            scientific(value, 2)
            for value in (costs.iterations, costs.upper_calls, costs.lower_calls)
        ]
        unknown = "known with --noise-smoothness" if row.key in COMPUTED else "unknown"
        rows.append(
            [
                row.name,
                *counts,
                "enough" if costs.exact else f"order only, constants {unknown}",
            ]
        )
    for row, smooth in zip(LOWER_BOUNDS, (None, noise_smoothness), strict=True):
        if row is not LOWER_BOUNDS[1] or smooth is not None:
            rows.append(_least(row.name, epsilon, values, smooth))
    header = ("method", "iterations", "upper calls", "lower calls", "what this is")
    title = f"At ε = {epsilon:g}, constants: {constants}"
    return Table(title, header, rows, words=("what this is",))


def _least(name: str, epsilon: float, constants: Constants, smooth: Any) -> list[str]:
    with_it = "" if smooth is None else ", with mean-squared smoothness"
    try:
        costs = least_complexity(epsilon, constants, smooth)
    except ValueError:
        return [name, "–", "–", "–", f"ε is too large for the lower bound{with_it}"]
    counts = [scientific(costs.iterations, 2), "–", scientific(costs.lower_calls, 2)]
    return [name, *counts, f"needed in the worst case, up to a constant{with_it}"]
