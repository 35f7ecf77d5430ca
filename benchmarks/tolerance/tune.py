"""Every law is tuned alike on the tuning set: the same number of trials, the same search, the same cost."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.tolerance import study
from tiebreak.tolerance import Constants

_GAINS = {"gain": 10.0 ** np.arange(-3, 1.1, 0.5), "start": (0, 10, 50, 150, 1000), "aim": (0.7, 0.8, 0.9, 1.0)}
_OURS = {
    "aim": (0.85, 0.9, 0.93, 0.97),
    "early": (0, 0.15, 0.3, 0.5),
    "doubt": (0, 0.5, 1, 2),
    "sway": (0, 0.5, 1, 2),
    "widest": (0.3, 0.5, 0.8),
    "span": (15, 30, 60, 120),
    "rise": (1, 2, 4, 6),
    "boost": (2, 3, 4, 6),
    "dip": (0.1, 0.3, 0.6),
    "ahead": (0, 30, 100, 200),
    "exact": (0.04, 0.08),
    "fast": (0.1, 0.2),
    "slow": (0.01, 0.02, 0.04),
    "norms": (0.01, 0.02, 0.05),
    "floor": (0.3, 0.5, 0.7, 0.85),
    "ceiling": (2, 4, 10),
    "first": (10, 30, 300, 1000),
    "least": (0.1, 0.3, 1),
    "most": (30, 100, 300, 1000),
    "burst": (1, 3, 10),
    "clip": (2, 4),
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
        "aim": (0.7, 0.75, 0.8, 0.85),
        "early": (0,),
        "sway": (0, 0.5, 1),
        "widest": (0.5, 0.8, 1.5),
        "first": (8, 15, 30),
        "most": (8, 15, 30),
    },
}
#: The laws that are tuned, each with the references it may be given.
KINDS = dict.fromkeys(SPACES, ("twin", "number")) | {"ours, moving": ("twin",), "ours, number": ("number",)}


def cost(excess, lost):
    """Per run: the lost share inside; outside 5 and the breach, which counts up to 5."""
    inside = np.isfinite(excess) & (excess <= 1)
    breach = np.minimum(np.where(np.isfinite(excess), excess, np.inf) - 1, 5)
    return np.where(inside, np.clip(np.nan_to_num(lost), 0, 1), 5 + breach)


def constants(law, trial):
    return Constants(**trial) if "ours" in law else tuple(trial.values())


def evaluate(benches, trials):
    """`trials` is a list of (law, kind, values): their measures, trial × run, over all benches."""

    def one(bench):
        pairs = [(t, i) for t in trials for i in range(len(bench.group.settings))]
        outcomes = bench.train([bench.run(i, law, constants(law, v), kind) for (law, kind, v), i in pairs])
        measured = [bench.measures(i, o) for (_, i), o in zip(pairs, outcomes, strict=True)]
        return {k: np.array([m[k] for m in measured]).reshape(len(trials), -1) for k in measured[0]}

    with ThreadPoolExecutor(len(benches)) as pool:
        parts = list(pool.map(one, benches))
    return {k: np.concatenate([part[k] for part in parts], 1) for k in parts[0]}


def search(benches, first=48, generations=3, children=32, parents=6, seed=0, begin=None, say=print):
    """Random trials, then children of the best: a third of a parent's values is drawn anew. Best first, per law.

    `begin` may give the first trials of some rows; those are not searched further.
    """
    generator, begin = np.random.default_rng(seed), begin or {}

    def draw(space):
        return {k: float(generator.choice(v)) for k, v in space.items()}

    def child(space, parent):
        return {k: float(generator.choice(v)) if generator.random() < 1 / 3 else parent[k] for k, v in space.items()}

    rows = [(law, kind) for law in SPACES for kind in KINDS[law]]
    known = {row: [] for row in rows}
    for generation in range(1 + generations):
        trials = []
        for row in rows:
            space, best = SPACES[row[0]], sorted(known[row], key=lambda t: t["cost"])[:parents]
            if row in begin:
                new = begin[row] if generation == 0 else []
            elif generation == 0:
                new = [draw(space) for _ in range(first)]
            else:
                new = [child(space, best[k % len(best)]["values"]) for k in range(children)]
            trials += [(*row, values) for values in new]
        measured = evaluate(benches, trials)
        costs = cost(measured["excess"], measured["lost"]).mean(1)
        for k, (law, kind, values) in enumerate(trials):
            e, lost = measured["excess"][k], measured["lost"][k]
            summary = {
                "inside": float(np.mean(e <= 1)),
                "worst": float(np.nanmax(e)),
                "lost": float(np.nanmedian(lost)),
            }
            known[law, kind].append({"cost": float(costs[k]), "values": values, **summary})
        say(
            f"generation {generation}: "
            + ", ".join(f"{row[0]}/{row[1]} {min(t['cost'] for t in known[row]):.3f}" for row in rows)
        )
    return {row: sorted(found, key=lambda t: t["cost"]) for row, found in known.items()}


def benches(groups, seeds, say=print):
    """All groups at once: their programs are compiled side by side."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(lambda group: study.Bench(group, seeds, say), groups))
