"""Headroom with the start as the reference: ``python -m benchmarks.tolerance.headroom [select|judge|fresh]``.

Trained models whose learning rate begins anew at full height and falls ("trained"), or at a tenth of it
("fine-tuning"). The amount was chosen on `SELECT`; `JUDGE` has other data, schedules, optimizers and seeds, and was run
once. Then "auto" was made; its constants were chosen on the data and settings of `SELECT`, with a constant rate
besides, and on tuning seeds of three of the gallery's quick sizes, among some thirty variants that are not in the
record. `FRESH` has data that nothing was chosen on. Half an hour on two cores for all. What it writes,
``benchmarks/results/headroom.json``, has a row per run:

* over: how far g ends above the start, in tolerances; inside is at most 1;
* lost, finished: (f − f*)/(f₀ − f*), f₀ of lower-only training, f* of the best of nine fixed weights that is inside of
  *its* tolerance; as training left the model, and after `finish` from the start. A start may be worse than lower-only
  training comes to, so that less than 0 is possible.
"""

import argparse
import json

import numpy as np

from benchmarks.tolerance import settings, study
from benchmarks.tolerance.judge import RESULTS
from benchmarks.tolerance.settings import Setting
from tiebreak.options import _room
from tiebreak.provenance import stamp
from tiebreak.tolerance import START

FILE = RESULTS / "headroom.json"
LONGEST = 800  # steps
SELECT = (
    (
        "continual, occupations", "fairness, votes", "sparsity, cars", "smallest, hotels",
        "forget a class, bird strikes", "confidence, exams",
    ),
    (
        Setting("AdamW", "cosine", "trained"),
        Setting("SGD with momentum", "half a cosine", "trained"),
        Setting("Adam", "step", "trained"),
        Setting("SGD", "linear", "trained"),
        Setting("Adam", "constant, then linear", "trained"),
        Setting("AdamW", "linear", "fine-tuning"),
    ),
    (0.0, 10.0, 20.0),
    (600, 601, 602, 603),
)  # fmt: skip
JUDGE = (
    (
        "fairness, heart attacks", "sparsity, developers", "forget a class, pitches", "continual, regions",
        "smallest, trains", "confidence, packages", "robustness, cities", "forget 200 rows, plebiscite",
        "fairness, patients",
    ),
    (
        Setting("Adam, 0.95", "cosine to 3 %", "trained"),
        Setting("RMSprop", "linear", "trained"),
        Setting("SGD with decay", "cosine", "trained"),
        Setting("AdamW, 0.95", "exponential", "trained"),
        Setting("SGD with momentum, 0.95", "trapezoid", "trained"),
        Setting("AdamW", "late drop", "trained"),
        Setting("Adam, 0.5", "cosine with warm-up", "fine-tuning"),
    ),
    (0.0, 10.0),
    (700, 701, 702, 703),
)  # fmt: skip
FRESH = (
    (
        "fairness, savings", "forget 200 rows, subscribers", "robustness, proteins", "fairness, borrowers",
        "confidence, lectures", "fairness, visits", "romances after tragedies, letters", "fairness, young women",
        "fairness, arrests", "sparsity, loans", "spam after mail, letters",
    ),
    JUDGE[1],
    (0.0, 10.0, "auto"),
    (800, 801, 802, 803),
)  # fmt: skip
STUDIES = {"select": SELECT, "judge": JUDGE, "fresh": FRESH}
_GROUPS = {group.task: group for group in settings._TENTH + settings._ELEVENTH}


def runs(task, chosen, headrooms, seeds):
    """A row for each setting, headroom and seed of a task."""
    group = _GROUPS[task]._replace(settings=list(chosen), steps=min(_GROUPS[task].steps, LONGEST))
    bench = study.Bench(group, list(seeds), lambda text: None, weights=study.WEIGHTS[::2])
    pairs = [(headroom, i) for headroom in headrooms for i in range(len(chosen))]
    trained = bench.train([bench.run(i, "ours, moving", START._replace(**_room(h)), "start") for h, i in pairs])
    ends = bench.finished([(i, outcome, "start") for (_, i), outcome in zip(pairs, trained, strict=True)])
    for (headroom, i), outcome, end in zip(pairs, trained, ends, strict=True):
        found = bench.measures(i, outcome, "start", end)
        for k, seed in enumerate(seeds):
            over, lost, finished = (found[name][k] for name in ("over the start", "lost", "finished lost"))
            numbers = {"over": over, "lost": lost, "finished": finished}
            numbers = {name: float(f"{x:.3g}") if np.isfinite(x) else None for name, x in numbers.items()}
            yield {"task": task, "setting": list(chosen[i]), "seed": seed, "headroom": headroom} | numbers


def told(rows):
    """Shares inside, and medians and means of what is lost; means of values between −1 and 2: few are far outside."""
    lines = []
    for headroom in dict.fromkeys(row["headroom"] for row in rows):
        some = [row for row in rows if row["headroom"] == headroom]
        inside = np.mean([row["over"] <= 1 for row in some])
        lost, finished = (
            np.clip([np.nan if row[name] is None else row[name] for row in some], -1, 2)
            for name in ("lost", "finished")
        )
        lines.append(
            f"headroom {headroom}: {len(some)} runs, {100 * inside:.0f} % inside, the worst at "
            f"{max(row['over'] for row in some):.1f}; lost {np.nanmedian(lost):.2f} (median), {np.nanmean(lost):.2f} "
            f"(mean); finished {np.nanmedian(finished):.2f}, {np.nanmean(finished):.2f}"
        )
    return lines


def write(found):
    """A line for each run: what changes is seen."""
    parts = []
    for name, value in found.items():
        text = json.dumps(value) if isinstance(value, dict) else "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        parts.append(f'"{name}": {text}')
    FILE.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(STUDIES)}; all, if none is named")
    names = parser.parse_args(arguments).names or [*STUDIES]
    for name in names:  # before the first begins
        if name not in STUDIES:
            parser.error(f"{name!r} must be one of {', '.join(STUDIES)}")
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in names:
        tasks, chosen, headrooms, seeds = STUDIES[name]
        found[name] = []
        for task in tasks:
            found[name] += runs(task, chosen, headrooms, seeds)
            print(task, *told([row for row in found[name] if row["task"] == task]), sep="\n  ", flush=True)
        print(name, *told(found[name]), sep="\n  ")
        found[f"{name} made"] = stamp()
        write(found)


if __name__ == "__main__":
    main()
