"""The tables of the study, from its records."""

from pathlib import Path

import numpy as np

from benchmarks.tolerance.judge import ABLATIONS

TABLES = Path(__file__).parents[2] / "docs" / "_tables"
RESULTS = Path(__file__).parents[1] / "results"
KINDS = {
    "twin": "a twin",
    "start": "the start",
    "number": "a number",
    "other": "a number of another run",
}
HEAD = (
    "| {} | reference | runs | inside | worst excess | given up: median | mean | finished: inside | given up: median | "
    "mean |\n|---|---|---|---|---|---|---|---|---|---|"
)


def gather(records, name, kind, measure, keep=lambda setting: True):
    """A measure of all runs of a row as one array; what was not finite is NaN."""
    values = []
    for record in records:
        for row in record["rows"]:
            if (row["name"], row["kind"]) == (name, kind):
                chosen = [
                    run
                    for i, run in zip(row["settings"], row["runs"], strict=True)
                    if keep(record["settings"][i])
                ]
                values += [x for run in chosen for x in run[measure]]
    return np.array(values, float)


def figures(records, name, kind, keep=lambda setting: True):
    """The numbers of a line: runs, and before and after `finish` the share inside and what was given up."""
    excess, lost, end, left = (
        gather(records, name, kind, measure, keep)
        for measure in ("excess", "lost", "finished excess", "finished lost")
    )
    excess = np.nan_to_num(excess, nan=np.inf)
    return {
        "runs": len(excess),
        "inside": np.mean(excess <= 1),
        "worst": excess.max(),
        "lost": np.nanmedian(lost),
        "mean lost": _mean(lost),
        "finished inside": np.mean(end <= 1),
        "finished lost": np.nanmedian(left),
        "finished mean lost": _mean(left),
    }


def _mean(lost):
    """The mean of values between −1 and 2: a few runs are far outside."""
    return np.nanmean(np.clip(lost, -1, 2))


def _percent(share):
    return f"{100 * share:.0f} %"


def _line(label, kind, found):
    worst = f"{found['worst']:.2f}" if found["worst"] < 100 else "diverged"
    cells = [
        label,
        KINDS[kind],
        str(found["runs"]),
        f"{100 * found['inside']:.1f} %",
        worst,
    ]
    cells += [
        _percent(found["lost"]),
        _percent(found["mean lost"]),
        f"{100 * found['finished inside']:.1f} %",
    ]
    cells += [_percent(found["finished lost"]), _percent(found["finished mean lost"])]
    return f"| {' | '.join(cells)} |"


def _rows(records):
    """Names and kinds of all rows, in the order of the records."""
    return list(
        dict.fromkeys(
            (row["name"], row["kind"]) for record in records for row in record["rows"]
        )
    )


def rules_table(records, kinds=tuple(KINDS)):
    """Ours, the landed rule and the peers, by kind of reference."""
    names = [(name, kind) for name, kind in _rows(records) if name not in ABLATIONS]
    lines = [HEAD.format("rule")]
    for wanted in kinds:
        lines += [
            _line(name, kind, figures(records, name, kind))
            for name, kind in names
            if kind == wanted
        ]
    return "\n".join(lines) + "\n"


def ablation_table(records):
    """Ours with a part left out."""
    lines = [HEAD.format("change")]
    for kind in ("twin", "start", "number"):
        lines.append(_line("none", kind, figures(records, "ours", kind)))
        names = [
            name
            for name, row_kind in _rows(records)
            if row_kind == kind and name in ABLATIONS
        ]
        lines += [_line(name, kind, figures(records, name, kind)) for name in names]
    return "\n".join(lines) + "\n"


def groups_table(records):
    """Every group: runs inside and the worst excess before `finish`, and what was given up after it."""
    shown = [
        ("ours", "twin"),
        ("landed", "twin"),
        ("ours", "start"),
        ("landed", "start"),
    ]
    head = [
        "task",
        "batch",
        "steps",
        "tolerance",
        *(f"{name}, {KINDS[kind]}" for name, kind in shown),
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for record in records:
        cells = [str(record[key]) for key in ("task", "batch", "steps", "tolerance")]
        for name, kind in shown:
            if not len(gather([record], name, kind, "excess")):
                cells.append("")
                continue
            found = figures([record], name, kind)
            lost = (
                f"{100 * found['finished lost']:.0f} %"
                if np.isfinite(found["finished lost"])
                else "no gain"
            )
            cells.append(
                f"{round(found['runs'] * found['inside'])}/{found['runs']}, {found['worst']:.2f}; {lost}"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ways_back_table(records):
    """How much a run gives up that ended outside its tolerance, by way of finishing it."""
    lines = [
        "| reference | way | runs | inside | given up: median | mean |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("twin", "number"):
        found = {}
        for record in records:
            for row in record["rows"]:
                if (row["name"], row["kind"]) == ("ours", kind):
                    for run in row["runs"]:
                        outside = np.array(run["excess"], float) > 1
                        for way, measured in run.get("ways back", {}).items():
                            pairs = found.setdefault(way, ([], []))
                            pairs[0].extend(
                                np.array(measured["finished excess"], float)[outside]
                            )
                            pairs[1].extend(
                                np.array(measured["finished lost"], float)[outside]
                            )
        for way, (excess, lost) in found.items():
            cells = [
                KINDS[kind],
                way,
                str(len(excess)),
                _percent(np.mean(np.array(excess) <= 1)),
            ]
            cells += [_percent(np.nanmedian(lost)), _percent(_mean(np.array(lost)))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(found):
    """All tables in their places. If a part is missing, the judging groups stand in for it."""
    judged = found["judge"]
    tables = {
        "tolerance.md": rules_table(judged, ("twin", "start")),
        "tolerance-number.md": rules_table(
            found.get("number", judged), ("number", "other")
        ),
        "tolerance-ablation.md": ablation_table(found.get("ablation", judged)),
        "tolerance-groups.md": groups_table(judged),
        "tolerance-ways-back.md": ways_back_table(judged + found.get("number", [])),
        "tolerance-headroom.md": rules_table(found["headroom"]),
    }
    for name, text in tables.items():
        (TABLES / name).write_text(text, encoding="utf-8")
