"""The constants of the peers: random trials on `settings.TUNE`, and one rule that chooses among them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.tolerance import settings, study
from tiebreak.provenance import stamp

RESULTS = Path(__file__).parents[1] / "results"
FILE = RESULTS / "tolerance_peers.json"
TRIALS = 24  # for each peer and each kind of reference
ENOUGH = 0.95  # share of the runs that must meet the tolerance before the loss of gain decides
TASKS = (
    "fairness, Adult",
    "fairness, COMPAS",
    "forget a class, pen strokes",
    "l1 sparsity, satellite",
    "robustness, segments",
    "smallest, diabetes",
)
KINDS = ("twin", "number")

_GAINS = {
    "gain": 10.0 ** np.arange(-3, 1.1, 0.5),
    "start": (0, 10, 50, 150, 500, 1000),
    "aim": (0.5, 0.7, 0.8, 0.9, 1.0),
}
_PROPORTIONAL = {"proportional": (0.1, 1, 3, 10, 30, 100)}
#: The values that a trial draws from, in the order of the rule's constants.
SPACES = {
    "dual ascent": _GAINS,
    "νPI": _GAINS | _PROPORTIONAL,
    "PID": _GAINS | _PROPORTIONAL | {"derivative": (0, 10, 100, 1000)},
    "switching": {
        "average": (0.02, 0.05, 0.1, 0.2, 0.5, 1),
        "weight": (0, 0.1, 0.3, 1, 3),
        "aim": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    },
    "RCML": {
        "gain": 10.0 ** np.arange(-3, 0.1, 0.5),
        "start": (0, 10, 50, 150, 500),
        "aim": (0.5, 0.7, 0.8, 0.9, 1.0),
        **_PROPORTIONAL,
    },
    "SPBM": {
        "gain": 10.0 ** np.arange(-3, 0.1, 0.5),
        "start": (1, 10, 50, 150, 500),
        "aim": (0.0, 0.3, 0.5, 0.7, 0.8, 0.9),
        "scale": (0.3, 1, 3, 10),
    },
}


def trials(count=TRIALS):
    """Random constants for each peer: pairs of a rule and its constants."""
    generator = np.random.default_rng(0)
    return [
        (rule, tuple(float(generator.choice(values)) for values in space.values()))
        for rule, space in SPACES.items()
        for _ in range(count)
    ]


def cost(excess, lost):
    """The mean over runs of the gain that was given up; a run outside its tolerance costs 5 and its breach."""
    inside = np.isfinite(excess) & (excess <= 1)
    breach = np.clip(np.nan_to_num(excess, nan=np.inf) - 1, 0, 5)
    return float(
        np.mean(np.where(inside, np.clip(np.nan_to_num(lost), 0, 1), 5 + breach))
    )


def choose(found):
    """The best of the trials: the least median loss among those with enough runs inside, else the least cost.

    `found` maps constants to arrays (excess, lost) of all runs.
    """
    enough = {
        c: np.nanmedian(lost)
        for c, (excess, lost) in found.items()
        if np.mean(excess <= 1) >= ENOUGH
    }
    scores = enough or {c: cost(excess, lost) for c, (excess, lost) in found.items()}
    return min(scores, key=scores.get)


def run(say=print, seeds=(1,)):
    """Try the constants of all peers on `TASKS`, choose, and write `FILE`."""
    groups = [group for group in settings.TUNE if group.task in TASKS]
    jobs = [(rule, constants, kind) for rule, constants in trials() for kind in KINDS]

    def measured(group):
        bench = study.Bench(group, list(seeds), say)
        places = range(len(bench.group.settings))
        runs = [
            bench.run(i, rule, constants, kind)
            for rule, constants, kind in jobs
            for i in places
        ]
        outcomes = iter(bench.train(runs))
        found = {
            job: [bench.measures(i, next(outcomes), job[2]) for i in places]
            for job in jobs
        }
        say(f"{group.task}: tried")
        return found

    with ThreadPoolExecutor(len(groups)) as pool:
        parts = list(pool.map(measured, groups))
    best, figures = {}, {}
    for rule in SPACES:
        for kind in KINDS:
            found = {}
            for job in jobs:
                if (job[0], job[2]) == (rule, kind):
                    rows = [row for part in parts for row in part[job]]
                    found[job[1]] = tuple(
                        np.concatenate([row[name] for row in rows])
                        for name in ("excess", "lost")
                    )
            constants = choose(found)
            excess, lost = found[constants]
            best.setdefault(rule, {})[kind] = constants
            figures[f"{rule}, {kind}"] = {
                "inside": float(np.mean(excess <= 1)),
                "worst": float(excess.max()),
                "lost": float(np.nanmedian(lost)),
                "runs": len(excess),
            }
    record = {"chosen": best, "found": figures, **stamp()}
    FILE.write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def chosen():
    """The chosen constants, by rule and kind of reference."""
    return json.loads(FILE.read_text(encoding="utf-8"))["chosen"]
