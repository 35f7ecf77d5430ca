"""The tables and the figure of the comparison: ``docs/_tables/all-methods.md`` and ``docs/_static/all-methods.png``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.methods import METHODS
from tiebreak.problems import named
from tiebreak.studies.comparison.report import calls
from tiebreak.studies.method_names import label
from tiebreak.studies.tables import Table, as_markdown, scientific

DOCS = Path(__file__).parents[1] / "docs"
TABLE, FIGURE = (
    DOCS / "_tables" / "all-methods.md",
    DOCS / "_static" / "all-methods.png",
)
KINDS = {"table": "as it stands", "planned": "planned", "tuned": "tuned"}
FLOOR = named(
    "paper"
).constants.sigma_g  # times ‖∇f‖/√N, and ‖∇f‖ is 0.99 where methods end
SHOWN = (10**6, 10**8)  # budgets whose medians are shown for everything

Row = Mapping[str, Any]
Found = Mapping[tuple[str, str, str, int], Row]  # by kind, method, problem, budget


def indexed(whole: Mapping[str, Any]) -> Found:
    return {
        (r["kind"], r["method"], r["problem"], r["budget"]): r for r in whole["rows"]
    }


def name_of(method: str) -> str:
    """What tables call it; of a plan, with what is minimised."""
    row, *objective = method.split()
    return " ".join([label(row) if row in METHODS else row, *objective])


def methods_of(found: Found, kind: str) -> list[str]:
    """In the library's order, whichever was done first."""
    order = ["auto", *METHODS]
    return sorted(
        {m for k, m, _, _ in found if k == kind},
        key=lambda m: (order.index(m.split()[0]), m),
    )


def median(row: Row | None) -> float:
    """∞ where it is not finite, NaN where it is not there."""
    return (
        math.nan
        if row is None
        else math.inf
        if row["median"] is None
        else float(row["median"])
    )


def cell(row: Row | None) -> str:
    """The median and, in brackets, the quartiles."""
    if row is None:
        return "–"
    low, high = (scientific(q) if q is not None else "∞" for q in row["quartiles"])
    middle = scientific(row["median"]) if row["median"] is not None else "∞"
    return f"{middle}{carried(row)} ({low} … {high})"


def carried(row: Row) -> str:
    """A mark for constants that were tuned for a smaller budget."""
    return "°" if row.get("tuned_for", row["budget"]) != row["budget"] else ""


def least(found: Found, problem: str, budget: int, kinds: Iterable[str]) -> Row | None:
    """The row with the least median there."""
    here = [
        r
        for (k, _, p, b), r in found.items()
        if k in kinds and (p, b) == (problem, budget)
    ]
    return min(here, key=median, default=None)


def winners(found: Found, problems: Sequence[str], budgets: Sequence[int]) -> Table:
    """The best of each kind of constants, on each problem at each budget; with "or" those whose quartiles overlap."""
    rows = []
    for problem in problems:
        for kind, word in KINDS.items():
            cells = []
            for budget in budgets:
                best = least(found, problem, budget, [kind])
                if best is None:
                    cells.append("–")
                    continue
                top = (
                    best["quartiles"][1]
                    if best["quartiles"][1] is not None
                    else math.inf
                )
                near = [
                    m
                    for m in methods_of(found, kind)
                    if (r := found.get((kind, m, problem, budget))) is not None
                    and r is not best
                    and r["quartiles"][0] is not None
                    and r["quartiles"][0] <= top
                ]
                more = ", ".join(map(name_of, near[:2])) + (
                    f" and {len(near) - 2} more" if len(near) > 2 else ""
                )
                names = f"{name_of(best['method'])}{f', or {more},' if near else ''}"
                cells.append(f"{names} {scientific(best['median'])}{carried(best)}")
            rows.append([problem, word, *cells])
    return Table("", ("problem", "constants", *map(calls, budgets)), rows)


def ratios(
    found: Found, kind: str, method: str, problems: Sequence[str], budget: int
) -> list[float]:
    """Medians over the least median of everything there, for each problem; NaN where a run was left out."""
    return [
        median(found.get((kind, method, p, budget)))
        / median(least(found, p, budget, KINDS))
        for p in problems
    ]


def overall(found: Found, problems: Sequence[str], budgets: Sequence[int]) -> Table:
    """Over the problems that were tuned for: the geometric mean of the ratios to the best, and the largest of them."""
    rows = []
    for kind, word in KINDS.items():
        for method in methods_of(found, kind):
            cells = []
            for budget in budgets:
                each = ratios(
                    found, kind, method, tuned_on(found, problems, budget), budget
                )
                if not each or any(map(math.isnan, each)):
                    cells.append("–")
                else:
                    mean = (
                        math.exp(sum(map(math.log, each)) / len(each))
                        if math.inf not in each
                        else math.inf
                    )
                    cells.append(f"{_two(mean)} ({_two(max(each))})")
            rows.append([name_of(method), word, *cells])
    return Table("", ("method", "constants", *map(calls, budgets)), rows)


def tuned_on(found: Found, problems: Sequence[str], budget: int) -> list[str]:
    return [
        p
        for p in problems
        if any(
            (k, q, b) == ("tuned", p, budget) and r["tuned_for"] == b
            for (k, _, q, b), r in found.items()
        )
    ]


def _two(value: float) -> str:
    return (
        "∞"
        if math.isinf(value)
        else f"{value:.1f}"
        if value < 10
        else f"{float(f'{value:.2g}'):,.0f}"
    )


def everything(found: Found, problems: Sequence[str], budget: int) -> Table:
    """Median and quartiles of every method on every problem."""
    rows = [
        [name_of(m), word, *(cell(found.get((kind, m, p, budget))) for p in problems)]
        for kind, word in KINDS.items()
        for m in methods_of(found, kind)
    ]
    return Table("", ("method", "constants", *problems), rows)


def tables(whole: Mapping[str, Any]) -> str:
    """All tables as Markdown."""
    found, s = indexed(whole), whole["setting"]
    problems, budgets = s["problems"], s["budgets"]
    per_budget = ", ".join(
        f"{len(tuned_on(found, problems, b))} at {calls(b)}" for b in budgets
    )
    far = (
        "**How far from the best.** The median over the least median of all rows, as a geometric mean over the "
        f"problems that were tuned for ({per_budget}), and in brackets the largest. –: left out on one of them."
    )
    best = (
        "**The best of each kind**, with its median; “or” names those whose middle half of the runs reaches into, or "
        "below, the winner's. °: constants carried over from the largest budget that was tuned for, here and below."
    )
    parts = [
        (far, overall(found, problems, budgets)),
        (best, winners(found, problems, budgets)),
    ]
    for budget in (b for b in SHOWN if b in budgets):
        parts.append(
            (
                f"**All medians (and quartiles) at {calls(budget)}.**",
                everything(found, problems, budget),
            )
        )
    last = s["last"]
    beyond = [["paper", *_pair(r)] for r in sorted(_of(found, last), key=median)]
    if beyond:
        head = ("problem", "method", "constants", "residual", "steps")
        parts.append(
            (
                f"**At {calls(last)}**, the paper's problem alone, best first.",
                Table("", head, beyond),
            )
        )
    words = ("problem", "method", "constants", *problems, *map(calls, budgets))
    return (
        "\n\n".join(
            "\n".join([text, "", *as_markdown(sheet._replace(words=words))])
            for text, sheet in parts
        )
        + "\n"
    )


def _of(found: Found, budget: int) -> list[Row]:
    return [r for (*_, b), r in found.items() if b == budget]


def _pair(row: Row) -> list[str]:
    kind = KINDS[row["kind"]] + (
        f" for {calls(row['tuned_for'])}" if row["kind"] == "tuned" else ""
    )
    return [name_of(row["method"]), kind, cell(row), f"{row['steps']:,}"]


def figure(whole: Mapping[str, Any]) -> Any:
    """Medians over budgets, a column for each problem, a row for each kind of constants; quartiles as bars."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    from tiebreak.studies.figures import footnote, legend, log_grid, look_of, style

    found, s = indexed(whole), whole["setting"]
    problems = s["problems"]
    order = ["auto", *METHODS]
    with style():
        drawn = Figure(
            figsize=(2.5 * len(problems) + 0.8, 8.6),
            layout=ConstrainedLayoutEngine(h_pad=0.06),
        )
        axes = drawn.subplots(
            len(KINDS), len(problems), sharex="col", sharey="col", squeeze=False
        )
        for i, (kind, word) in enumerate(KINDS.items()):
            for j, problem in enumerate(problems):
                here = axes[i][j]
                here.set(xscale="log", yscale="log")
                for m in methods_of(found, kind):
                    rows = [
                        r
                        for (k, n, p, _), r in found.items()
                        if (k, n, p) == (kind, m, problem)
                    ]
                    rows = sorted(
                        (r for r in rows if None not in (r["median"], *r["quartiles"])),
                        key=_budget,
                    )
                    if not rows:
                        continue
                    look = look_of(order.index(m.split()[0]))
                    if m.endswith("bound"):
                        look |= {"alpha": 0.5}
                    x, y = (
                        [r["budget"] for r in rows],
                        np.array([r["median"] for r in rows]),
                    )
                    ends = np.array([r["quartiles"] for r in rows]).T
                    here.errorbar(
                        x,
                        y,
                        yerr=np.abs(ends - y),
                        linewidth=1.4,
                        elinewidth=0.8,
                        capsize=1.5,
                        **look,
                    )
                if problem == "paper":
                    x = np.array([s["budgets"][0], s["last"]], dtype=float)
                    here.plot(
                        x, FLOOR / np.sqrt(x), color="0.3", linestyle=":", linewidth=1
                    )
                log_grid(here)
                if i == 0:
                    here.set_title(problem, loc="left")
                if j == 0:
                    here.set_ylabel(f"{word}: larger residual")
            axes[-1][0].set_xlabel("calls")
        lines = [
            Line2D([], [], linewidth=1.8, label=name_of(m), **look_of(order.index(m)))
            for m in order
        ]
        legend(drawn, lines, 7, length=3)
        text = (
            f"Medians and quartiles of {s['runs']} runs. Planned: pale lines minimise a proved bound, the others a "
            "model of practice. Tuned: in hindsight. Dotted: ‖∇f‖σ/√N.  † Our reconstruction of the rule."
        )
        footnote(drawn, text)
    return drawn


def _budget(row: Row) -> int:
    return int(row["budget"])


def write(whole: Mapping[str, Any]) -> None:
    """Both into the documentation."""
    from tiebreak.studies.figures import style

    TABLE.write_text(tables(whole), encoding="utf-8")
    with style():
        figure(whole).savefig(FIGURE, dpi=110, metadata={"Software": None})
    print(TABLE.read_text(encoding="utf-8"))
