"""The comparison that the documentation shows: ``python docs/compare.py`` runs it and writes its tables and its figure.

It is ``tiebreak compare --problems all`` with the nine methods that the page is about, some five minutes of one core.
Finished blocks are kept in ``results/compare``, so that it can be stopped. ``docs/_tables/compare_*.md`` and
``docs/_static/profiles.png`` are then written, and all the data to ``results/compare``.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiebreak.experiments import Comparison, compare
from tiebreak.experiments.blocks import Store
from tiebreak.experiments.compared import Compared
from tiebreak.experiments.comparing_report import PROSE, calls, sheets
from tiebreak.experiments.contenders import Units, scales
from tiebreak.experiments.saving import save_comparison
from tiebreak.experiments.tables import Sheet, as_markdown, chosen, scientific

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results" / "compare"
PUBLISHED = ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg", "penalty")
NINE = (
    *PUBLISHED,
    "sdbgd_practice",
    "sdbgd_bound",
    "penalty_bound",
    "dbgd_batched",
)  # others: docs/all-methods.md


def winners(found: Compared) -> Sheet:
    """The best on every problem at every budget, in one table."""
    per_budget = [sheet.rows for sheet in sheets(found)[1:-1]]
    rows = [
        [same[0][0], *(f"{row[1]} ({row[2].split(' ')[0]})" for row in same)]
        for same in zip(*per_budget, strict=True)
    ]
    return Sheet("", ("problem", *map(calls, found.comparison.budgets)), rows)


def ends(found: Compared) -> Sheet:
    """Where the best method of each problem ends, and where the plain penalty does, in the problem's units."""
    rows, budget = [], found.comparison.budgets[-1]
    for entrant in found.comparison.entrants:
        problem, unit = entrant.problem, Units.of(entrant.problem)
        if problem.solution is None or problem.constants is None:
            continue
        here, c = (
            chosen(found.results, problem=entrant.label, budget=budget),
            problem.constants,
        )
        row, lengths = [entrant.label], (c.G_f / c.L_f) ** 2
        first, plain = (
            int(np.argmin(here["ratio"])),
            here["method"].tolist().index("Penalty"),
        )
        for i in (first, plain):
            above = (
                here["upper_excess"][i] / unit.upper_value,
                here["lower_excess"][i] / (c.L_g * lengths),
            )
            row += [str(here["method"][i])] * (i == first) + [
                scientific(v) for v in (here["residual"][i], *above)
            ]
        rows.append(row)
    names = ("residual", "f − f*", "g − g*")
    return Sheet(
        "",
        ("problem", "best method", *names, *(f"Penalty: {name}" for name in names)),
        rows,
    )


def steps(found: Compared) -> Sheet:
    """How often each multiple of the step size was best, over all problems and budgets."""
    sizes = sorted(scales(found.comparison.trials))
    rows = []
    for contender in found.comparison.contenders:
        taken = chosen(found.results, method=contender.label)["scale"].tolist()
        rows.append([contender.label, *(str(taken.count(size)) for size in sizes)])
    return Sheet(
        "",
        (
            "method",
            *(f"{size:g}" if size >= 1 else f"1/{1 / size:g}" for size in sizes),
        ),
        rows,
    )


def tables(found: Compared) -> dict[str, Sheet]:
    """What the page shows, by the names of the files."""
    fewer = found.among(PUBLISHED)
    return {
        "compare_profiles": sheets(found)[0],
        "compare_published": sheets(fewer)[0],
        "compare_regularizer": sheets(found.among(("sdbgd", "dbgd_batched")))[0],
        "compare_steps": steps(found),
        "compare_best": winners(found),
        "compare_best_published": winners(fewer),
        "compare_residuals": sheets(found)[-1],
        "compare_ends": ends(found),
    }


def write(found: Compared) -> None:
    """Tables and figure into the documentation, all data into the results."""
    save_comparison(found, RESULTS)
    shutil.copy(RESULTS / "profiles.png", DOCS / "_static" / "profiles.png")
    for name, sheet in tables(found).items():
        words: Sequence[str] = (
            *PROSE,
            "best method",
            *(sheet.header[1:] if "_best" in name else ()),
        )
        text = "\n".join([*as_markdown(sheet, words), ""])
        (DOCS / "_tables" / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"{name}\n{text}", flush=True)


if __name__ == "__main__":
    with Store(RESULTS / ".blocks") as store:
        asked = Comparison(methods=NINE)
        write(
            compare(
                asked,
                lambda name, share: print(f"\r{share:6.1%}", end="", flush=True),
                store=store,
            )
        )
        store.clear()
