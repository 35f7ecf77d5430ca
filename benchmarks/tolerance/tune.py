"""Every law is tuned alike on the tuning set: the same number of trials, the same search, the same cost."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.tolerance import study
from tiebreak.tolerance import Constants

_GAINS = {"gain": 10.0 ** np.arange(-3, 1.1, 0.5), "start": (0, 10, 50, 150, 500, 1000), "aim": (0.7, 0.8, 0.9, 1.0)}
_OURS = {
    "aim": (0.85, 0.9, 0.93, 0.97),
    "early": (0, 0.05, 0.1, 0.15, 0.2, 0.3),
    "doubt": (0, 0.25, 0.5, 1),
    "sway": (0, 0.5, 1, 2),
    "widest": (0.3, 0.5, 0.8),
    "span": (10, 15, 20, 30),
    "rise": (1, 2, 4),
    "boost": (2, 3, 4, 6),
    "dip": (0.1, 0.3, 0.6),
    "ahead": (30, 100, 200),
    "floor": (0.2, 0.3, 0.5),
    "ceiling": (4, 10),
    "first": (100, 300, 1000),
    "most": (300, 1000, 3000),
    "burst": (1, 3, 10),
    "clip": (2, 4),
    "trouble": (1.2, 1.5, 2),
    "knee": (1, 2, 4),
    "gentle": (0.7, 0.8, 0.85, 0.9),
    "steep": (0, 0.3, 1, 2),
    "fade": (0, 0.5, 1, 2),
}
SPACES = {
    "dual ascent": _GAINS,
    "νPI": {**_GAINS, "proportional": (0.1, 1, 3, 10, 30, 100)},
    "PID": {**_GAINS, "proportional": (0.1, 1, 3, 10, 30, 100), "derivative": (0, 10, 100, 1000)},
    "switching": {
        "average": (0.02, 0.05, 0.1, 0.2, 0.5, 1),
        "weight": (0, 0.1, 0.3, 1, 3),
        "aim": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    },
    "ours, moving": _OURS,
    "ours, number": {
        **_OURS,
        "aim": (0.7, 0.75, 0.8, 0.85, 0.9),
        "early": (0, 0.1),
        "doubt": (0, 0.5),
        "sway": (0, 0.5, 1),
        "widest": (0.5, 0.8, 1.5),
        "span": (15, 30, 60),
        "first": (8, 15, 30),
        "most": (8, 15, 30),
        "knee": (0, 1, 2),
        "pace": (0, 0.05, 0.1),
    },
}
#: What is tuned: a law and the kinds of reference for which one set of its constants has to serve.
ROWS = [(law, (kind,)) for law in SPACES if "ours" not in law for kind in ("twin", "number")]
ROWS += [("ours, moving", ("twin",)), ("ours, number", ("number",))]


def name(row):
    """As the file of constants has it."""
    return ", ".join((row[0], *row[1])) if "ours" not in row[0] else row[0]


def cost(excess, lost):
    """Per run: the lost share inside; outside 5 and the breach, which counts up to 5."""
    inside = np.isfinite(excess) & (excess <= 1)
    breach = np.minimum(np.where(np.isfinite(excess), excess, np.inf) - 1, 5)
    return np.where(inside, np.clip(np.nan_to_num(lost), 0, 1), 5 + breach)


def constants(law, trial):
    return Constants(**trial) if "ours" in law else tuple(trial.values())


def evaluate(benches, trials):
    """`trials` is a list of (row, values): per trial the cost, and what it is made of, over all benches.

    With the starting model as reference a run is inside where it ends at most a tolerance above that; a run from
    scratch has no such reference and does not count.
    """

    def one(bench):
        every = range(len(bench.group.settings))
        taught = [i for i in every if bench.group.settings[i].start != "scratch"]
        jobs = [
            (t, kind, i)
            for t, (row, _) in enumerate(trials)
            for kind in row[1]
            for i in (taught if kind == "start" else every)
        ]
        outcomes = bench.train([bench.run(i, trials[t][0][0], constants(trials[t][0][0], trials[t][1]), kind)
                                for t, kind, i in jobs])  # fmt: skip
        found = [([], []) for _ in trials]
        for (t, kind, i), outcome in zip(jobs, outcomes, strict=True):
            measured = bench.measures(i, outcome)
            found[t][0].extend(measured["over the start" if kind == "start" else "excess"])
            found[t][1].extend(measured["lost"])
        return found

    with ThreadPoolExecutor(len(benches)) as pool:
        parts = list(pool.map(one, benches))
    results = []
    for t, (_, values) in enumerate(trials):
        excess, lost = (np.array([x for part in parts for x in part[t][k]]) for k in (0, 1))
        results.append(
            {
                "cost": float(cost(excess, lost).mean()),
                "inside": float(np.mean(excess <= 1)),
                "worst": float(np.nanmax(excess)),
                "lost": float(np.nanmedian(lost)),
                "values": values,
            }
        )
    return results


def search(benches, begin, seconds, children=8, parents=4, seed=0, say=print, keep=lambda known: None):
    """From the constants in use, then children of the best: of a parent's values two in the mean are drawn anew.

    Parameters
    ----------
    begin : dict
        Row → a list of the first trials; one that is too short is filled up with children of its first.
    seconds : float
        No generation begins after so many; each row has had the same number of trials then.
    keep : callable
        Told all that is known after each generation.
    """
    generator, began = np.random.default_rng(seed), time.perf_counter()
    longest = max(map(len, begin.values()))

    def child(space, parent):
        anew = {k: float(generator.choice(v)) for k, v in space.items() if generator.random() < 2 / len(space)}
        return parent | anew

    known = {row: [] for row in begin}
    while not any(known.values()) or time.perf_counter() - began < seconds:
        trials = []
        for row, first in begin.items():
            best = sorted(known[row], key=lambda t: t["cost"])[:parents]
            if best:
                new = [child(SPACES[row[0]], best[k % len(best)]["values"]) for k in range(children)]
            else:
                new = first + [child(SPACES[row[0]], first[0]) for _ in range(longest - len(first))]
            trials += [(row, values) for values in new]
        for (row, _), result in zip(trials, evaluate(benches, trials), strict=True):
            known[row].append(result)
        say("; ".join(f"{name(row)} {len(found)}: {min(t['cost'] for t in found):.3f}" for row, found in known.items()))
        keep({row: sorted(found, key=lambda t: t["cost"]) for row, found in known.items()})


def benches(groups, seeds, say=print):
    """All groups at once: their programs are compiled side by side."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(lambda group: study.Bench(group, seeds, say), groups))
