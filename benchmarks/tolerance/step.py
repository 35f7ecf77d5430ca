"""The step that tolerance mode makes, with SGD: ``python -m benchmarks.tolerance.step``.

The table of the study was measured with steps along (∇f/s + w∇g)/(1 + w), in which g has less than its learning rate,
and a model falls behind its twin. This runs the SGD settings of some judging groups, on other seeds, with the step as
it is now, (∇f/s + w∇g)/max(1, w). Bases of Adam's kind do not see the difference.
"""

import json

import numpy as np

from benchmarks.tolerance import settings, study
from benchmarks.tolerance.judge import RESULTS
from tiebreak.files import atomic
from tiebreak.tolerance import MOVING, NUMBER

SEEDS = (400, 401, 402)
TASKS = ("stop and frisk", "admissions", "nursery", "wine", "forget a class, MNIST")
ROWS = {"twin": ("ours, moving", MOVING, "twin"), "number": ("ours, number", NUMBER, "number")}


def measured():
    """A record for each group, setting and reference."""
    found = []
    for group in settings.JUDGE:
        if any(task in group.task for task in TASKS):
            mine = group._replace(settings=[s for s in group.settings if s.optimizer.startswith("SGD")])
            bench = study.Bench(mine, SEEDS)
            for name, (law, constants, kind) in ROWS.items():
                outcomes = bench.train([bench.run(i, law, constants, kind) for i in range(len(mine.settings))])
                for i, outcome in enumerate(outcomes):
                    measures = bench.measures(i, outcome)
                    lists = {
                        m: [float(f"{x:.4g}") if np.isfinite(x) else None for x in measures[m]]
                        for m in ("excess", "lost")
                    }
                    found.append({"task": mine.task, "setting": list(mine.settings[i]), "reference": name} | lists)
    return found


def summary(records, before):
    """Lines: inside, worst, lost share in the median; now, and in the judged table."""
    lines = []
    for name in ROWS:
        now = [r for r in records if r["reference"] == name]
        groups = [g for g in before["judging"] if any(task in g["task"] for task in TASKS)]
        pairs = [(g["rows"][f"ours, {name}"], i) for g in groups for i, s in enumerate(g["settings"]) if "SGD" in s[0]]
        then = [{"excess": rows["excess"][i], "lost": rows["lost"][i]} for rows, i in pairs]
        for label, runs in (("max(1, w)", now), ("1 + w", then)):
            excess = np.array([x for r in runs for x in r["excess"]], float)
            lost = np.array([x for r in runs for x in r["lost"]], float)
            lines.append(
                f"{name:7} / {label:9} {len(excess):4} runs, inside {np.mean(excess <= 1):.1%}, "
                f"worst {excess.max():.2f}, lost {np.nanmedian(lost):.0%}"
            )
    return lines


if __name__ == "__main__":
    records = measured()
    with atomic(RESULTS / "tolerance_step.json", "w") as file:
        json.dump(records, file)
    print("\n".join(summary(records, json.loads((RESULTS / "tolerance.json").read_text()))))
