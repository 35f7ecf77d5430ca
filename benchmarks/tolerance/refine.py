"""Which mechanisms of our law can go, and which changes help: ``python -m benchmarks.tolerance.refine``.

Three rounds, a rule after each, no hand in between, and everything is written down as it is found:

1. Changes of what is used with a twin and with a number (`candidates.CHANGES`, `MOVING_CHANGES`), and every mechanism
   of the law with a twin left out in turn (`WITHOUT`).
2. The best for a number: its mechanisms left out in turn, and two changes at once. With a twin: mechanisms left out
   together, the least missed first.
3. The same for a number; with a twin, changes of what is left.

Best: `tune.choose`. Simple: as many mechanisms left out together as can be before a run costs more in the mean than the
standard error, over groups, of the difference, or fewer are inside. Final: the simple one, unless the best costs less
by more than that error.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from benchmarks.tolerance import candidates, judge, laws, report, settings, study, tune
from tiebreak.tolerance import MOVING, NUMBER, START

FAR = 1e9
#: Mechanisms, by what it takes to leave them out. Not among them: cutting ∇g and the brake, which keep rare trainings
#: from diverging that are not among these groups, and `foresee`, which acts on a tolerance given as a share alone.
WITHOUT = {
    "early": {"early": 0},
    "doubt": {"doubt": 0},
    "sharp": {"sharp": 1},
    "widest": {"widest": FAR},
    "sway": {"sway": 0},
    "rise": {"rise": 1},
    "boost": {"boost": 0},
    "dip": {"dip": 3},
    "no dip": {"dip": 0},
    "ahead": {"ahead": 0},
    "exact": {"exact": FAR},
    "exact, slow": {"exact": 1e-6},
    "floor": {"floor": 0.01},
    "ceiling": {"ceiling": FAR},
    "most": {"most": FAR, "lift": 0},
    "lift": {"lift": 0},
    "burst": {"burst": FAR},
    "no burst": {"burst": 1},
    "clip": {"clip": FAR},
    "memory of trouble": {"knee": 0},
    "wary": {"wary": 0},
    "recall": {"recall": FAR},
    "fade": {"fade": 0},
    "pace": {"pace": 0},
    "steep": {"steep": 0},
    "least": {"least": 0.01},
}
#: Changes of what is used with a twin.
MOVING_CHANGES = {
    "early 0.3": {"early": 0.3},
    "early 0.3, aim 0.95": {"early": 0.3, "aim": 0.95},
    "early 0.4, aim 1": {"early": 0.4, "aim": 1.0},
    "sway 3": {"sway": 3},
    "sway 4, doubt 0": {"sway": 4, "doubt": 0},
    "aim 0.85": {"aim": 0.85},
    "ahead 200": {"ahead": 200},
    "first 1000": {"first": 1000},
    "boost 6": {"boost": 6},
    "gentle 0.8": {"gentle": 0.8},
}


def plain(base, changes):
    """All constants by name, those of `candidates` too."""
    return {**base._asdict(), **candidates.More()._asdict(), **{k: float(v) for k, v in changes.items()}}


class Board:
    """What was tried, by kind of reference and name, and where it is written."""

    def __init__(self, benches, path, seconds, say=print):
        self.benches, self.path, self.say, self.until = benches, path, say, time.perf_counter() + seconds
        self.values, self.runs, self.record, self.pace = {}, {}, {"groups": [b.group.task for b in benches]}, 0.0

    def try_all(self, trials, part=1.0):
        """`trials` maps (kind, name) to constants: every run of every bench. What is known is not tried again.

        As many as `part` of the time that is left suffices for, the first ones first.
        """
        new = {key: values for key, values in trials.items() if key not in self.values}
        left = self.until - time.perf_counter()
        count = int(part * left / (1.1 * self.pace)) if self.pace else len(new)
        if count < len(new):
            self.say(f"{left:.0f} s left: time for {max(count, 0)} of {len(new)} trials")
            new = dict(list(new.items())[: max(count, 0)])
        if not new:
            return
        began = time.perf_counter()
        for (key, values), runs in zip(new.items(), evaluate(self.benches, new), strict=True):
            self.values[key], self.runs[key] = values, runs
            self._tell(key)
        self.pace = (time.perf_counter() - began) / len(new)
        self.say(f"{len(new)} trials, {self.pace:.2f} s each")
        self.write()

    def figures(self, key):
        (kind, _), (excess, lost, _) = key, self.runs[key]
        return tune.summary({kind: (excess, lost)})

    def dearer(self, key, base):
        """By how much a run costs more in the mean, and the standard error of that, over groups."""
        (one, two), group = (tune.cost(*self.runs[k][:2]) for k in (key, base)), self.runs[key][2]
        apart = np.array([np.mean((one - two)[group == g]) for g in np.unique(group)])
        return float(apart.mean()), float(apart.std(ddof=1) / len(apart) ** 0.5) if len(apart) > 1 else 0.0

    def best(self, kind):
        """By the rule of every law: `tune.choose`."""
        keys = [key for key in self.values if key[0] == kind]
        return tune.choose([{**self.figures(key), "key": key} for key in keys])["key"]

    def tried(self, kind, names):
        return [name for name in names if (kind, name) in self.values]

    def write(self):
        self.record["trials"] = {
            f"{key[0]}: {key[1]}": {
                **self.figures(key),
                "dearer": self.dearer(key, (key[0], "in use")),
                "by group": self._by_group(key),
                "values": self.values[key],
            }
            for key in self.values
        }
        self.path.write_text(json.dumps(self.record, ensure_ascii=False) + "\n")

    def _by_group(self, key):
        excess, lost, group = self.runs[key]
        return {
            self.benches[g].group.task: [int((excess[group == g] <= 1).sum()), _middle(lost[group == g])]
            for g in np.unique(group)
        }

    def _tell(self, key):
        found = self.figures(key)
        own = found[key[0]]
        self.say(
            f"{key[0]:6s} {key[1]:44s} {100 * own['inside']:5.1f} % worst {own['worst']:7.2f} "
            f"lost {100 * own['lost']:3.0f} % cost {found['cost']:.4f}"
        )


def _middle(values):
    return float(f"{np.nanmedian(values):.3g}") if np.isfinite(values).any() else None


def evaluate(benches, trials):
    """Per trial: excess, lost share and group of every run. `trials` maps (kind, name) to constants."""

    def one(place):
        bench = benches[place]
        jobs = [(t, i) for t in range(len(trials)) for i in range(len(bench.group.settings))]
        given = [(kind, tuple(values.values())) for (kind, _), values in trials.items()]
        # The law is the same for both kinds of reference but for what `candidates` changes, which a twin's has not.
        runs = [bench.run(i, "ours, number", given[t][1], given[t][0]) for t, i in jobs]
        found = [([], [], []) for _ in trials]
        for (t, i), outcome in zip(jobs, bench.train(runs), strict=True):
            measured = bench.measures(i, outcome)
            found[t][0].extend(measured["excess"])
            found[t][1].extend(measured["lost"])
            found[t][2].extend([place] * len(measured["excess"]))
        return found

    with ThreadPoolExecutor(min(16, len(benches))) as pool:
        parts = list(pool.map(one, range(len(benches))))
    return [tuple(np.array([x for part in parts for x in part[t][k]]) for k in range(3)) for t in range(len(trials))]


def removals(base):
    """The mechanisms that `base` has: constants without them, by name."""
    found = {}
    for name, change in WITHOUT.items():
        values = base | {k: float(v) for k, v in change.items()}
        if values != base:
            found[name] = values
    return found


LIMIT = 0.03  # what a mechanism may cost alone to be left out with others at all
FEWER = 0.006  # of the runs may be inside without what is left out: two of 320


def nested(board, base, prefix):
    """Sets of mechanisms to leave out: the least missed, then two, and so on; of one with two ways out the better."""
    kind, missed = base[0], {}
    for name in WITHOUT:
        if (kind, prefix + name) in board.values:
            missed[name] = board.dearer((kind, prefix + name), base)[0]
    seen, kept, values, found = set(), [], dict(board.values[base]), {}
    for name in sorted(missed, key=missed.get):
        if set(WITHOUT[name]) & seen or missed[name] > LIMIT:
            continue
        seen |= set(WITHOUT[name])
        kept.append(name)
        values = values | {k: float(v) for k, v in WITHOUT[name].items()}
        found[prefix + " + ".join(kept)] = values
    return found


def simplest(board, base, sets):
    """Of the nested sets the largest that is not dearer than the standard error of that, and keeps as many inside."""
    chosen = base
    for name in board.tried(base[0], sets):
        key = base[0], name
        more, error = board.dearer(key, base)
        inside = (board.figures(k)[k[0]]["inside"] for k in (key, base))
        chosen = key if more <= error and next(inside) >= next(inside) - FEWER else chosen
    return chosen


def final(board, best, simple):
    """The simple one, unless the best costs less by more than the standard error of that."""
    less, error = board.dearer(best, simple)
    return best if less < -error else simple


def make(pairs, seconds, say, threads=16):
    """Benches, as many at a time as cores; none is begun after `seconds`, and one that fails is left out and told."""
    until = time.perf_counter() + seconds

    def one(pair):
        if time.perf_counter() > until:
            return None
        try:
            return study.Bench(*pair, say)
        except Exception as problem:  # a group that finds no memory must not end the search
            say(f"{pair[0].task}: {type(problem).__name__}: {str(problem)[:300]}")
            return None

    with ThreadPoolExecutor(threads) as pool:
        return [bench for bench in pool.map(one, pairs) if bench]


def run(pairs, path, seconds, say=print, changes=candidates.CHANGES, moving=MOVING_CHANGES, threads=16):
    """All rounds, as far as there is time. Returns constants by name: for each kind in use, best, simple and final."""
    began = time.perf_counter()
    benches = make(pairs, 0.45 * seconds, say, threads)
    board = Board(benches, path, seconds - (time.perf_counter() - began), say)
    say(f"{len(benches)} groups ready")

    twin, number = ("twin", "in use"), ("number", "in use")
    first = {number: plain(NUMBER, {}), twin: plain(MOVING, {})}
    board.try_all(first | {("number", name): plain(NUMBER, change) for name, change in changes.items()})
    alone = {("twin", f"without {name}"): values for name, values in removals(board.values[twin]).items()}
    other = {("twin", name): plain(MOVING, change) for name, change in moving.items()}
    board.try_all(alone | other, 0.4)

    best = board.best("number")
    say(f"the best for a number so far: {best[1]}")
    start = board.values[best]
    alone = {f"{best[1]}; without {name}": values for name, values in removals(start).items()}
    sets = nested(board, twin, "without ")
    liked = sorted((k for k in board.values if k[0] == "number" and k != best), key=lambda k: board.figures(k)["cost"])
    pairs_of = {
        f"{best[1]} + {key[1]}": start | {k: v for k, v in board.values[key].items() if v != board.values[number][k]}
        for key in liked[:5]
    }
    both = {("twin", name): values for name, values in sets.items()}
    both |= {("number", name): values for name, values in (pairs_of | alone).items()}
    board.try_all(both, 0.65)

    number_sets = nested(board, best, f"{best[1]}; without ")
    third = {("number", name): values for name, values in number_sets.items()}
    simple = {"twin": simplest(board, twin, sets), "number": best}
    for name, change in moving.items():
        values = board.values[simple["twin"]] | {k: float(v) for k, v in change.items()}
        third["twin", f"{simple['twin'][1]}; {name}"] = values
    board.try_all(third, 0.85)
    simple["number"] = simplest(board, best, number_sets)

    chosen = {}
    for kind, known in (("twin", twin), ("number", number)):
        top = board.best(kind)
        found = {"in use": known, "best": top, "simple": simple[kind], "final": final(board, top, simple[kind])}
        chosen |= {f"{kind}, {word}": key for word, key in found.items()}
    board.record["chosen"] = {
        name: {"name": key[1], **board.figures(key), "values": board.values[key]} for name, key in chosen.items()
    }
    board.write()
    for name, key in chosen.items():
        say(f"chosen, {name}: {key[1]}: {board.figures(key)}")
    return {name: board.values[key] for name, key in chosen.items()}


def only(names):
    """As few laws as are needed: a smaller program."""
    laws.LAWS = {name: laws.LAWS[name] for name in names}
    laws.NAMES = list(laws.LAWS)


def rows(chosen):
    """What is judged: ours as chosen and as it was, what else was found, the others as the last search left them."""
    gone = {(k, float(v)) for change in WITHOUT.values() for k, v in change.items()}
    less = {k: v for k, v in chosen["twin, final"].items() if v != chosen["twin, in use"][k] and (k, v) in gone}
    start = tuple((plain(START, {}) | less).values())
    twin, number = (tuple(chosen[f"{kind}, final"].values()) for kind in ("twin", "number"))
    found = {
        "ours, twin": ("ours, number", twin, "twin"),
        "ours, twin, share": ("ours, share", twin, "twin"),
        "ours, start": ("ours, number", start, "start"),
        "ours, curve": ("ours, number", twin, "curve"),
        "ours, number": ("ours, number", number, "number"),
        "before, start": ("ours, number", tuple(plain(START, {}).values()), "start"),
    }
    for name, values in chosen.items():
        kind, word = name.split(", ")
        if word == "in use" or (word != "final" and values != chosen[f"{kind}, final"]):
            found[f"{'before' if word == 'in use' else word}, {kind}"] = ("ours, number", tuple(values.values()), kind)
    for name, (law, values, kind) in judge.rows().items():
        if not name.startswith(("ours", "within")):
            found[name] = (law, values, kind)
    return found


def known(path):
    """What was chosen, or, by a search that was stopped, the best until then."""
    record = json.loads(path.read_text()) if path.exists() else {}
    if "chosen" in record:
        return {name: c["values"] for name, c in record["chosen"].items()}
    chosen = {}
    for kind, base in (("twin", MOVING), ("number", NUMBER)):
        used = plain(base, {})
        tried = [t for name, t in record.get("trials", {}).items() if name.startswith(kind)]
        best = tune.choose(tried)["values"] if tried else used
        chosen |= {f"{kind}, in use": used, f"{kind}, final": best}
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=judge.RESULTS, help="where the results go")
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--judge", action="store_true", help="judge what was found there on fresh data")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="a trial of the program: few groups and steps")
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "float32")  # no TF32: the excess is a small difference
    began = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    say(f"{jax.default_backend()}, jax {jax.__version__}")
    found, judged = options.folder / "tolerance_refined.json", options.folder / "tolerance_part.json"
    if options.judge:
        only([name for name in laws.LAWS if name not in ("within", "ours, moving")])
        chosen = known(found)
        groups, seeds = settings.JUDGE, settings.JUDGE_SEEDS
        if options.tiny:
            groups, seeds = [_small(group, 60, 2) for group in groups[7:10]], seeds[:2]
        records = judge.run(
            groups,
            seeds,
            say,
            options.threads,
            lambda records: judged.write_text(json.dumps(records)),
            rows(chosen),
            options.seconds,
        )
        print(report.table(records, ""))
        return
    only(("fixed", "ours, number"))
    if options.tiny:
        pairs = [(_small(group, 60, 2), seeds) for group, seeds in PAIRS[3:5]]
        run(pairs, found, options.seconds, say, dict(list(candidates.CHANGES.items())[-3:]), threads=options.threads)
        return
    run(PAIRS, found, options.seconds, say, threads=options.threads)


def _small(group, steps, count):
    return group._replace(steps=steps, settings=group.settings[:count])


#: Groups of the last judging, of the last search and of its comparison: unlike ones first, in case time is short.
NAMES = (
    "fairness, customers; sparsity, storms; smallest, houses; continual, lamps; forget 200 rows, yeast; "
    "confidence, jobs; "
    "fairness, doctors; forget a class, rodents; robustness, caravans; smallest, wages; sparsity, noughts and crosses; "
    "fairness, crashes; continual, signs; confidence, phonemes; forget 200 rows, leaf shapes; fairness, contacts; "
    "continual, storms; sparsity, endgames; smallest, food; forget a class, pen strokes; confidence, tuna; "
    "fairness, mothers; robustness, spam; confidence, cells"
)


def _pairs():
    """With their seeds, and no longer than 800 steps."""
    sets = (
        (settings.AGAIN, settings.AGAIN_SEEDS),
        (settings.SEARCH, settings.SEARCH_SEEDS),
        (settings.COMPARE, settings.COMPARE_SEEDS),
    )
    known = {g.task: (g._replace(steps=min(g.steps, 800)), seeds) for groups, seeds in sets for g in groups}
    return [known[name] for name in NAMES.split("; ")]


PAIRS = _pairs()


if __name__ == "__main__":
    main()
