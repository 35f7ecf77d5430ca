"""All laws, as tuned, on a set of groups: every measure of every run."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.tolerance import study
from tiebreak.tolerance import MOVING, NUMBER, START

RESULTS = Path(__file__).parents[1] / "results"
#: Single weights of the sweep, for who would not sweep.
WEIGHTS = {f"weight {study.WEIGHTS[k]:.0f}": k for k in (8, 10, 12, 15, 16)}
#: What is ours, as it is shipped.
OURS = {
    "ours, twin": ("ours, moving", MOVING, "twin"),
    "ours, twin, share": ("ours, share", MOVING, "twin"),
    "ours, start": ("ours, moving", START, "start"),
    "ours, curve": ("ours, moving", MOVING, "curve"),
    "ours, number": ("ours, number", NUMBER, "number"),
}


def rows():
    """name → (law, constants, kind of reference)."""
    found = dict(OURS)
    chosen = json.loads((RESULTS / "tolerance_tuning.json").read_text())["chosen"]
    for name, values in chosen.items():
        law, kind = name.rsplit(", ", 1)
        found[name] = (law, tuple(values.values()), kind)
    return found


def group(chosen, seeds, say=print):
    """A JSON-ready record of one group: measures[row][measure][setting][seed]."""
    bench = study.Bench(chosen, seeds, say)
    every = range(len(chosen.settings))
    pairs = [(name, i) for name in rows() for i in every]
    outcomes = bench.train([bench.run(i, *rows()[name]) for name, i in pairs])
    found = {name: [] for name in [*rows(), *WEIGHTS]}
    for (name, i), outcome in zip(pairs, outcomes, strict=True):
        found[name].append(bench.measures(i, outcome))
    for name, k in WEIGHTS.items():
        found[name] = [bench.measures(i, bench.sweep[i][k]) for i in every]

    say(f"{chosen.task}, {chosen.batch}: done")
    return {
        **bench.group._asdict(),
        "settings": [list(s) for s in chosen.settings],
        "seeds": list(seeds),
        "rates": [float(f"{bench.rates[s[:2]]:.3g}") for s in chosen.settings],
        "lower": [float(f"{t.lower.mean():.4g}") for t in bench.twins],
        "upper": [float(f"{t.upper.mean():.4g}") for t in bench.twins],
        "best": [float(f"{b.mean():.4g}") for b in bench.best],
        "twin swing": [
            float(f"{(t.swing.std(1) / tol).mean():.3g}") for t, tol in zip(bench.twins, bench.tolerances, strict=True)
        ],
        "rows": {name: _lists(measures) for name, measures in found.items()},
    }


def _lists(measures):
    """A dictionary of measures per setting as JSON has it: measure → setting × seed."""

    def short(x):
        return float(f"{x:.4g}") if np.isfinite(x) else None

    return {m: [[short(x) for x in one[m]] for one in measures] for m in measures[0]}


def again(chosen, record, seeds, names=tuple(OURS), say=print):
    """The record with some of our rows measured again: learning rates and f*, a mean over seeds, are the record's."""
    known = {tuple(s[:2]): rate for s, rate in zip(record["settings"], record["rates"], strict=True)}

    class Known(study.Bench):
        def _pairs(self):
            return [pair for pair in super()._pairs() if pair not in known]

        def _tune(self):
            return known | super()._tune()

        def _best(self, i):
            return np.full(len(seeds), record["best"][i])

    bench = Known(chosen._replace(tolerance=record["tolerance"]), seeds, say, weights=())
    found = {}
    for name in names:
        outcomes = bench.train([bench.run(i, *OURS[name]) for i in range(len(chosen.settings))])
        found[name] = _lists([bench.measures(i, outcome) for i, outcome in enumerate(outcomes)])
    return record | {"rows": record["rows"] | found}


def run(groups, seeds, say=print, threads=None):
    """Records of all groups; their programs are compiled side by side."""
    with ThreadPoolExecutor(threads or len(groups)) as pool:
        return list(pool.map(lambda one: group(one, seeds, say), groups))
