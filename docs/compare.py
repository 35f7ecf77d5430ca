"""The comparison that the documentation shows: ``python docs/compare.py`` runs it and writes its tables and its figure.

It is ``tiebreak compare --problems all`` with the nine methods that the page is about, some five minutes of one core.
Finished blocks are kept in ``results/compare``, so that it can be stopped. ``docs/_tables/compare_*.md`` and
``docs/_static/profiles.png`` are then written, and all the data to ``results/compare``.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiebreak.studies import Comparison, compare
from tiebreak.studies.comparison.methods import scales
from tiebreak.studies.comparison.report import calls
from tiebreak.studies.comparison.report import tables as tables_of
from tiebreak.studies.comparison.result import ComparisonResult
from tiebreak.studies.comparison.units import Units
from tiebreak.studies.figures import draw, image
from tiebreak.studies.folder import save
from tiebreak.studies.store import Store
from tiebreak.studies.tables import Table, as_markdown, scientific, select

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


def winners(found: ComparisonResult) -> Table:
    """The best on every problem at every budget, in one table."""
    per_budget = [sheet.rows for sheet in tables_of(found)[1:-1]]
    rows = [
        [same[0][0], *(f"{row[1]} ({row[2].split(' ')[0]})" for row in same)]
        for same in zip(*per_budget, strict=True)
    ]
    return Table("", ("problem", *map(calls, found.comparison.budgets)), rows)


def ends(found: ComparisonResult) -> Table:
    """Where the best method of each problem ends, and where the plain penalty does, in the problem's units."""
    rows, budget = [], found.comparison.budgets[-1]
    for entrant in found.comparison.compared_problems:
        problem, unit = entrant.problem, Units.of(entrant.problem)
        if problem.solution is None or problem.constants is None:
            continue
        here, c = (
            select(found.results, problem=entrant.label, budget=budget),
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
    return Table(
        "",
        ("problem", "best method", *names, *(f"Penalty: {name}" for name in names)),
        rows,
    )


def steps(found: ComparisonResult) -> Table:
    """How often each multiple of the step size was best, over all problems and budgets."""
    sizes = sorted(scales(found.comparison.trials))
    rows = []
    for contender in found.comparison.compared_methods:
        taken = select(found.results, method=contender.label)["scale"].tolist()
        rows.append([contender.label, *(str(taken.count(size)) for size in sizes)])
    return Table(
        "",
        (
            "method",
            *(f"{size:g}" if size >= 1 else f"1/{1 / size:g}" for size in sizes),
        ),
        rows,
    )


def tables(found: ComparisonResult) -> dict[str, Table]:
    """What the page shows, by the names of the files."""
    fewer = found.among(PUBLISHED)
    return {
        "compare_profiles": tables_of(found)[0],
        "compare_published": tables_of(fewer)[0],
        "compare_regularizer": tables_of(found.among(("sdbgd", "dbgd_batched")))[0],
        "compare_steps": steps(found),
        "compare_best": winners(found),
        "compare_best_published": winners(fewer),
        "compare_residuals": tables_of(found)[-1],
        "compare_ends": ends(found),
    }


def write(found: ComparisonResult) -> None:
    """Tables and figure into the documentation, all data into the results."""
    findings = found.findings()
    save(findings, RESULTS, overwrite=True)
    profiles = image(draw(findings.charts["profiles"]), "png")
    (DOCS / "_static" / "profiles.png").write_bytes(profiles)
    for name, sheet in tables(found).items():
        words: Sequence[str] = ("best", "best method")
        if "_best" in name:
            words = sheet.header[1:]
        text = "\n".join([*as_markdown(sheet._replace(words=words)), ""])
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
