"""Puts what full runs of the gallery found where the documentation has it.

``python -m gallery NAME --output FOLDER``, then ``python docs/collect.py FOLDER …``: the table goes to
``docs/_tables/gallery-NAME.md``, the picture to ``docs/_static/gallery-NAME.png``, the numbers to
``benchmarks/results/gallery-NAME.json``; and a page of ``docs/gallery`` that has the line ``<!-- gallery-NAME -->``
gets the picture and the table there, in the place of a paragraph that begins with "**Not measured yet.**". What was
run with the knobs of an earlier run (``--knobs FILE``) goes beside that run's table, without a picture: as
``gallery-NAME-time`` where it was run at equal time alone, else as ``gallery-NAME-again``. A run of the quick size with
five seeds or more is ``gallery-NAME-quick``, with all of this; with fewer it is refused, as are interrupted runs.
``docs/_tables/gallery.md`` is written from all records; without arguments, only this table is written.
"""

import json
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
SEEDS = 5  # that a table in the documentation has at least


def shown(name: str, title: str, picture: bool = True) -> str:
    """The lines that show an example's results on a page of docs/gallery."""
    drawn = (
        f"```{{image}} ../_static/gallery-{name}.png\n"
        f":alt: {title}: every method in the plane of lower loss and metric\n```\n\n"
    )
    return f"<!-- gallery-{name} -->\n\n{drawn * picture}```{{include}} ../_tables/gallery-{name}.md\n```\n"


def collect(folder: Path, docs: Path = DOCS, results: Path = RESULTS) -> str:
    """Copy one run's summary; the name that it goes by."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    name, study = summary["example"], summary["study"]
    few = study["quick"] and study["seeds"] < SEEDS
    for wrong in ("is interrupted",) * summary["interrupted"] + (
        f"is quick, and has fewer than {SEEDS} seeds",
    ) * few:
        raise SystemExit(
            f"{folder} holds a run that {wrong}; the documentation shows whole ones: {summary['command']}"
        )
    if study["methods"] and not any(
        text.startswith("Left out:") for text in summary["notes"]
    ):
        raise SystemExit(
            f"{folder} holds {', '.join(study['methods'])} alone, and does not say what was left out"
        )
    name += "-quick" * study["quick"]
    later = study.get("knobs") is not None
    if later:
        name += "-time" if study["budgets"] == ["seconds"] else "-again"
    shutil.copyfile(folder / "summary.md", docs / "_tables" / f"gallery-{name}.md")
    if not later:
        shutil.copyfile(folder / "plane.png", docs / "_static" / f"gallery-{name}.png")
    shutil.copyfile(folder / "summary.json", results / f"gallery-{name}.json")
    marker = f"<!-- gallery-{name} -->"
    for page in sorted((docs / "gallery").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if marker in text and f"../_tables/gallery-{name}.md" not in text:
            place = re.compile(
                rf"{re.escape(marker)}\n(\n\*\*Not measured yet\.\*\*[^\n]*\n)?"
            )
            page.write_text(
                place.sub(lambda _: shown(name, summary["title"], not later), text),
                encoding="utf-8",
            )
    return str(name)


#: Names of metrics for the overview, if the record's name needs its page.
METRICS = {
    "gap": "distance from a retrained network, points",
    "leak": "bits that a code gives away",
    "average": "mean accuracy on all classes",
    "removed": "share of weights removed",
    "recovery": "share of atoms found",
}
#: The rows of the overview: a name, the record after equal gradient evaluations, the record after equal time.
OVERVIEW = (
    ("Fairness, Adult, parity", "fairness-adult-parity-again", "fairness-adult-parity"),
    ("Fairness, Adult, odds", "fairness-adult-odds-again", "fairness-adult-odds"),
    ("Fairness, COMPAS, parity", "fairness-compas-parity-again", None),
    ("Fairness, COMPAS, odds", "fairness-compas-odds-again", None),
    ("Dictionary learning", "dictionary", None),
    ("Regression", "regression", None),
    ("Forgetting a class", "unlearning-class", "unlearning-class-time"),
    ("Forgetting secrets", "unlearning-secrets", None),
    ("Forgetting secrets, quick size", "unlearning-secrets-quick", None),
    ("New classes, all old images", "continual-all", "continual-all-time"),
    ("Sparsity", "sparsity", None),
)
OURS = ("tolerance-twin", "tolerance-start")


def compared(record: dict, budget: str) -> tuple[str, str]:
    """Return the best other method that is inside on every seed, finished or not, and ours, finished, as two cells."""
    metric = record["metrics"][0]
    name = metric["name"]
    sign = 1 if metric["better"] == "lower" else -1
    result = record["budgets"].get(budget, {"rows": []})
    rows = [*result.get("finished", []), *result["rows"]]
    others = [
        row
        for row in rows
        if row["inside"] == 1
        and not row["limit"]
        and not row["title"].startswith(("ours", "lower only"))
    ]
    ours = [row for row in rows if row["method"] in OURS]
    if not ours:
        return "", ""
    best = min(others, key=lambda row: sign * row["metrics"][name]["mean"])
    title = best["title"].split(" (")[0]
    other_cell = f"{title}, {best['metrics'][name]['mean']:.3g}"
    own_cell = f"{ours[0]['metrics'][name]['mean']:.3g}"
    if ours[0]["inside"] < 1:
        own_cell += f" (inside on {ours[0]['inside']:.0%} of the seeds)"
    return other_cell, own_cell


def overview(results: Path = RESULTS) -> str:
    """The table of all examples: the best other method and ours, after equal gradient evaluations and equal time."""
    lines = [
        "| example | metric | best other method | ours | same time: best other | ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for title, equal, timed in OVERVIEW:
        record, record_of_time = (
            json.loads((results / f"gallery-{name}.json").read_text(encoding="utf-8"))
            for name in (equal, timed or equal)
        )
        metric = record["metrics"][0]
        arrow = "↓" if metric["better"] == "lower" else "↑"
        cells = (
            title,
            f"{METRICS.get(metric['name'], metric['name'])} {arrow}",
            *compared(record, "evaluations"),
            *compared(record_of_time, "seconds"),
        )
        lines.append(f"| {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for place in sys.argv[1:]:
        print(collect(Path(place)))
    (DOCS / "_tables" / "gallery.md").write_text(overview(), encoding="utf-8")
