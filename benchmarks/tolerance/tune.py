"""Every law is tuned alike on the tuning set: the same number of trials, the same search, the same cost."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.tolerance import study
from tiebreak.tolerance import Constants

_GAINS = {"gain": 10.0 ** np.arange(-3, 1.1, 0.5), "start": (0, 10, 50, 150, 500, 1000), "aim": (0.7, 0.8, 0.9, 1.0)}
_OURS = {
    "aim": (0.85, 0.9, 0.93, 0.97),
    "early": (0.1, 0.15, 0.2, 0.3),
    "doubt": (0, 0.25, 0.5, 1),
    "sway": (1, 1.5, 2, 3),
    "widest": (0.3, 0.5, 0.8, 1.5),
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
    "sharp": (1, 2),
    "recall": (10, 30, 100, 1e9),
    "foresee": (0, 1, 2, 4),
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
        "doubt": (0, 0.25, 0.5),
        "sway": (0, 0.5, 1),
        "widest": (0.5, 1.5, 5),
        "span": (15, 30, 60),
        "slow": (0.005, 0.01, 0.02),
        "dip": (0.1, 0.2, 0.3, 0.6),
        "first": (15, 30, 60, 120, 300),
        "most": (3, 4, 6, 8, 12),
        "lift": (0, 1, 2, 3),
        "burst": (10, 30, 100, 200, 1000),
        "ceiling": (2, 2.5, 4, 10),
        "knee": (0, 1, 2),
        "pace": (0, 0.05, 0.1),
        "foresee": (0,),
    },
}
#: Changes that ours begins with, of what is in use.
CHANGES = (
    *({"sway": x} for x in (1, 3)),
    *({"recall": x} for x in (30, 1e9)),
    *({"sharp": 2, "doubt": 1} | more for more in ({}, {"early": 0.25, "aim": 0.95})),
    *({"early": e, "aim": a} for e, a in ((0.25, 0.95), (0.3, 0.95))),
    {"first": 1000},
    {"gentle": 0.8},
    {"lift": 2},
)
NUMBER_CHANGES = (
    *({"burst": x} for x in (30, 200, 1000)),
    *({"most": x} for x in (4, 8, 12)),
    *({"lift": x} for x in (1, 3)),
    *({"ceiling": x} for x in (4, 10)),
    {"doubt": 0.35},
)
#: What is tuned: a law and the kinds of reference for which one set of its constants has to serve.
ROWS = [(law, (kind,)) for law in SPACES if "ours" not in law for kind in ("twin", "number")]
ROWS += [("ours, moving", ("twin", "share")), ("ours, number", ("number",))]
#: What share of the runs has to end inside before the lost share decides.
INSIDE = {"twin": 0.975, "share": 0.955, "number": 0.955}
FINALISTS = 5


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


def _job(bench, law, values, kind, i):
    if kind == "share":
        return bench.run(i, "ours, share", constants(law, values), "twin")
    return bench.run(i, law, constants(law, values), kind)


def _counts(bench, kind, i):
    """A share is one of the reference: where the tolerance is more than all of it nobody would write it so."""
    return kind != "share" or bool((bench.tolerances[i] <= bench.twins[i].lower).all())


def evaluate(benches, trials):
    """`trials` is a list of (row, values): per trial {kind: (excess, lost share) of every run} over all benches."""

    def one(bench):
        jobs = [
            (t, kind, i)
            for t, (row, _) in enumerate(trials)
            for kind in row[1]
            for i in range(len(bench.group.settings))
            if _counts(bench, kind, i)
        ]
        outcomes = bench.train([_job(bench, trials[t][0][0], trials[t][1], kind, i) for t, kind, i in jobs])
        found = [{kind: ([], []) for kind in row[1]} for row, _ in trials]
        for (t, kind, i), outcome in zip(jobs, outcomes, strict=True):
            measured = bench.measures(i, outcome)
            found[t][kind][0].extend(measured["excess"])
            found[t][kind][1].extend(measured["lost"])
        return found

    with ThreadPoolExecutor(len(benches)) as pool:
        parts = list(pool.map(one, benches))
    return [
        {kind: tuple(np.array([x for part in parts for x in part[t][kind][k]]) for k in (0, 1)) for kind in row[1]}
        for t, (row, _) in enumerate(trials)
    ]


def together(*runs):
    """Runs of the same trial on several sets of benches as those of one."""
    return {kind: tuple(np.concatenate([r[kind][k] for r in runs]) for k in (0, 1)) for kind in runs[0]}


def summary(runs):
    """The cost, and per kind of reference what it is made of."""
    parts = {
        kind: {
            "inside": float(np.mean(excess <= 1)),
            "worst": float(np.nanmax(excess)),
            "lost": float(np.nanmedian(lost)),
            "runs": len(excess),
        }
        for kind, (excess, lost) in runs.items()
    }
    return {"cost": float(np.mean([cost(*pair).mean() for pair in runs.values()])), **parts}


def choose(found):
    """The rule of the choice, for every law alike: of trials with enough runs inside that which loses least.

    Where none has enough, that of the least cost.
    """
    enough = [f for f in found if all(f[kind]["inside"] >= INSIDE[kind] for kind in INSIDE if kind in f)]
    if enough:
        return min(enough, key=lambda f: np.mean([f[kind]["lost"] for kind in INSIDE if kind in f]))
    return min(found, key=lambda f: f["cost"])


def search(benches, others, begin, seconds, children=8, parents=4, seed=0, say=print, keep=lambda known, chosen: None):
    """From the constants in use, then children of the best: of a parent's values two in the mean are drawn anew.

    Parameters
    ----------
    others : list
        Benches on which the best of the search, and the first of all, are compared: the choice is by all runs of both.
    begin : dict
        Row → a list of the first trials; one that is too short is filled up with children of its first.
    seconds : float
        No generation begins that would end later; each row has had the same number of trials then.
    keep : callable
        Told all that is known after each generation, and at the end what is chosen.
    """
    generator, began = np.random.default_rng(seed), time.perf_counter()
    longest = max(map(len, begin.values()))

    def child(space, parent):
        anew = {k: float(generator.choice(v)) for k, v in space.items() if generator.random() < 2 / len(space)}
        return parent | anew

    known, last = {row: [] for row in begin}, 0.0
    while not any(known.values()) or time.perf_counter() - began + 1.8 * last < seconds:
        started, trials = time.perf_counter(), []
        for row, first in begin.items():
            best = sorted(known[row], key=lambda t: t["cost"])[:parents]
            if best:
                new = [child(SPACES[row[0]], best[k % len(best)]["values"]) for k in range(children)]
            else:
                new = first + [child(SPACES[row[0]], first[0]) for _ in range(longest - len(first))]
            trials += [(row, values) for values in new]
        for (row, values), runs in zip(trials, evaluate(benches, trials), strict=True):
            known[row].append({**summary(runs), "values": values, "all": runs})
        say("; ".join(f"{name(row)} {len(found)}: {min(t['cost'] for t in found):.3f}" for row, found in known.items()))
        keep({row: sorted(found, key=lambda t: t["cost"]) for row, found in known.items()}, {})
        last = (time.perf_counter() - started) * children / len(trials) * len(begin)

    finalists = []
    for row, found in known.items():
        best = sorted(found[1:], key=lambda t: t["cost"])[:FINALISTS]
        finalists += [(row, t) for t in (found[0], *best)]  # the first is what was in use before
    compared = evaluate(others, [(row, t["values"]) for row, t in finalists])
    chosen = {}
    for row in known:
        found = [
            {**summary(together(t["all"], runs)), "elsewhere": summary(runs), "values": t["values"]}
            for (own, t), runs in zip(finalists, compared, strict=True)
            if own == row
        ]
        chosen[row] = {**choose(found), "finalists": found}
        say(f"{name(row)}: { ({k: v for k, v in chosen[row].items() if k not in ('finalists', 'values')}) }")
    keep({row: sorted(found, key=lambda t: t["cost"]) for row, found in known.items()}, chosen)


def benches(pairs, say=print):
    """Of pairs of a group and seeds, all at once: their programs are compiled side by side."""
    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(lambda pair: study.Bench(*pair, say), pairs))
