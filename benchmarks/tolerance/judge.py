"""All laws, as tuned, on a set of groups: every measure of every run."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np

from benchmarks.tolerance import study
from tiebreak.tolerance import MOVING, NUMBER, START, Constants

RESULTS = Path(__file__).parents[1] / "results"
#: Single weights of the sweep, for who would not sweep.
WEIGHTS = {f"weight {study.WEIGHTS[k]:.0f}": k for k in (8, 10, 12, 15, 16)}


#: Rows in which every run carries its twin.
CARRIED = ("ours, twin", "ours, twin, share")


def tuned():
    """What the search found, and how."""
    return json.loads((RESULTS / "tolerance_tuning.json").read_text())


def constants():
    """Ours: what the search chose, or what is shipped where none did or the rule has other constants since."""
    chosen, found = tuned()["chosen"], {"moving": MOVING, "number": NUMBER, "start": START}
    for kind in found:
        values = chosen.get(f"ours, {kind}", {})
        if set(values) == set(Constants._fields):
            found[kind] = Constants(**values)
    return found


def judged():
    """Ours as the judging had them, for its results: also such as the rule has no more."""
    chosen, shipped = tuned()["chosen"], constants()
    return {kind: chosen.get(f"ours, {kind}") or shipped[kind]._asdict() for kind in shipped}


def since():
    """Ours that are shipped with other constants than the judging had."""
    shipped = {"moving": MOVING, "number": NUMBER, "start": START}
    return {kind: c._asdict() for kind, c in shipped.items() if differ(judged()[kind], c)}


def differ(values, shipped):
    """Whether the constants of both have an effect that differs: of those that only one of them has, any but 0."""
    shipped = shipped._asdict()
    return any(values.get(k, 0.0) != shipped.get(k, 0.0) for k in values | shipped)


def rows():
    """name → (law, constants, kind of reference)."""
    ours = constants()
    found = {
        "ours, twin": ("ours, moving", ours["moving"], "twin"),
        "ours, twin, share": ("ours, share", ours["moving"], "twin"),
        "ours, start": ("ours, moving", ours["start"], "start"),
        "ours, curve": ("ours, moving", ours["moving"], "curve"),
        "ours, number": ("ours, number", ours["number"], "number"),
        "ours, number, other batches": ("ours, number", ours["number"], "other"),
    }
    for name, values in tuned()["chosen"].items():
        law, kind = name.rsplit(", ", 1)
        if law not in ("ours", "within"):  # the first law of all is not compared any more
            found[name] = (law, tuple(values.values()), kind)
    return found


def group(chosen, seeds, say=print, laws=None):
    """A JSON-ready record of one group: measures[row][measure][setting][seed]. `laws` are those of `rows`."""
    bench = study.Bench(chosen, seeds, say)
    every, laws = range(len(chosen.settings)), laws or rows()
    pairs = [(name, i) for name in laws for i in every]
    kinds = {name: kind for name, (_, _, kind) in laws.items()} | dict.fromkeys(WEIGHTS, "number")
    outcomes = {(name, i): bench.sweep[i][k] for name, k in WEIGHTS.items() for i in every}
    # Ours with a twin may be set to it, so it carries one; for the others its recorded losses are enough.
    for carried in (True, False):
        some = [(name, i) for name, i in pairs if (name in CARRIED) == carried]
        trained = bench.train([bench.run(i, *laws[name]) for name, i in some], carried=carried)
        outcomes |= dict(zip(some, trained, strict=True))
    finished = bench.finished([(i, outcome, kinds[name]) for (name, i), outcome in outcomes.items()])
    ends = dict(zip(outcomes, finished, strict=True))
    found = {
        name: [bench.measures(i, outcomes[name, i], kinds[name], ends[name, i]) for i in every]
        for name in [*laws, *WEIGHTS]
    }

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


def run(groups, seeds, say=print, threads=None, keep=lambda records: None, laws=None, seconds=np.inf):
    """Records of all groups; their programs are compiled side by side. `keep` is told what there is so far.

    No group is begun after `seconds`, and one that fails is told and has no record.
    """
    found, lock, until = {}, Lock(), time.perf_counter() + seconds

    def one(place):
        if time.perf_counter() > until:
            say(f"{groups[place].task}: no time left")
            return
        try:
            record = group(groups[place], seeds, say, laws)
        except Exception as problem:  # the GPU's memory, most likely: the others are not to be lost
            say(f"{groups[place].task}: {type(problem).__name__}: {str(problem)[:300]}")
            return
        with lock:
            found[place] = record
            keep([found[k] for k in sorted(found)])

    with ThreadPoolExecutor(threads or len(groups)) as pool:
        list(pool.map(one, range(len(groups))))
    return [found[k] for k in sorted(found)]
