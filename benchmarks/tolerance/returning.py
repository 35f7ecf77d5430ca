"""What being set to the twin brings: ``python -m benchmarks.tolerance.returning eighth`` chooses, ``ninth`` measures.

The judging's twin is a recorded curve, which leads nowhere back. Here every run carries its twin. Learning rates,
tolerances, f₀ and f* are those of the judging's records (means over the seeds of a setting, so the lost shares differ
from the judging's): only rates at which starts were trained are tuned again where no setting has them. Two cores need
minutes for a group. Each group is written down when it is done, and is not run again.
"""

import argparse
import itertools
import json
import time

import jax
import numpy as np

from benchmarks.tolerance import judge, laws, study
from benchmarks.tolerance.settings import Group, Setting
from tiebreak.provenance import stamp
from tiebreak.tolerance import MOVING

RESULT = judge.RESULTS / "tolerance_return.json"
NEVER = laws.Return(patience=1e9)
FIRST = laws.Return(50, 0.05, 1)
#: The loosest: whoever is not set back by this is not by any. Then what was there at first, and single changes of it.
VARIANTS = [
    laws.Return(25, 0.02, 0),
    FIRST,
    FIRST._replace(patience=25),
    FIRST._replace(patience=100),
    FIRST._replace(share=0.02),
    FIRST._replace(share=0.1),
    FIRST._replace(errors=0),
    FIRST._replace(errors=2),
]


class Bench(study.Bench):
    """A group as the judging recorded it."""

    def __init__(self, record, say):
        self.record, self.seeds = record, record["seeds"]
        settings = [Setting(*s) for s in record["settings"]]
        self.group = group = Group(record["task"], record["batch"], record["steps"], record["tolerance"], settings)
        self.train = study.trainer(group, self.seeds)
        self.train.queues = (2, 8)
        rounded = zip(settings, record["rates"], strict=True)
        self.rates = {s[:2]: min(study.RATES[s.optimizer], key=lambda r, x=rate: abs(r - x)) for s, rate in rounded}
        self.trained = self._starts(sorted({s.optimizer for s in settings if s.start != "scratch"}))
        self.tolerances = [np.full(len(self.seeds), group.tolerance) for _ in settings]
        say(f"{group.task}: starts")

    def _starts(self, optimizers):
        """Models trained with the cosine: at the recorded rate, or at the best of those around the rates recorded."""
        tried = {}
        for o in optimizers:
            near = [self.rates[o, "cosine"]] if (o, "cosine") in self.rates else self._near(o)
            tried |= {(o, rate): self._lower_only(o, "cosine", self.train.fresh, rate=rate) for rate in near}
        outcomes = dict(zip(tried, self.train(list(tried.values())), strict=True))
        best = {
            o: min((self._score(out), rate) for (p, rate), out in outcomes.items() if p == o)[1] for o in optimizers
        }
        self.rates |= {(o, "cosine"): rate for o, rate in best.items()}
        return {o: outcomes[o, rate].parameters() for o, rate in best.items()}

    def _near(self, optimizer):
        grid = study.RATES[optimizer]
        places = [int(np.argmin(abs(grid - rate))) for (o, _), rate in self.rates.items() if o == optimizer]
        return grid[max(0, min(places) - 1) : max(places) + 2]

    @staticmethod
    def _score(result):
        wild = (result.curve.max(1) > 3 * result.curve[:, 0]).any() or not np.isfinite(result.curve).all()
        return np.inf if wild else result.lower.mean()

    def measured(self, trials):
        """`trials` are (setting, Return); excess, lost share and number of returns of each, a value per seed."""
        runs = []
        for i, back in trials:
            s = self.group.settings[i]
            constants = (*study._for(MOVING, s.optimizer), *back)
            nothing = np.zeros((len(self.seeds), self.group.steps))
            start, rates = self._start(s), self._factors(*s)
            runs.append(study.Run(start, rates, s.optimizer, "ours, moving", constants, nothing, self.tolerances[i]))
        return [self._told(i, out) for (i, _), out in zip(trials, self.train(runs, carried=True), strict=True)]

    def _told(self, i, outcome):
        first, best = self.record["upper"][i], self.record["best"][i]
        known = np.array(self.record["rows"]["ours, twin"]["lost"][i], float)  # NaN where nothing can be gained
        return {
            "excess": (outcome.lower - outcome.twin_lower) / self.tolerances[i],
            "lost": (outcome.upper - best) / (first - best) + 0 * known,
            "returns": outcome.returns,
            "twin": outcome.twin_lower,
        }


def explore(record, say):
    """Without a return and with all variants; where the loosest sets no seed of a setting back, all are the same."""
    bench = Bench(record, say)
    every = range(len(bench.group.settings))
    loosest, *others = VARIANTS
    loose = bench.measured([(i, loosest) for i in every])
    some = [i for i in every if loose[i]["returns"].any()]
    say(f"{record['task']}: set back by the loosest in {sum((x['returns'] > 0).sum() for x in loose):.0f} runs")
    trials = [(i, back) for back in (NEVER, *others) for i in some]
    told = dict(zip(trials, bench.measured(trials), strict=True))
    rows = {"without": NEVER, **{_name(back): back for back in VARIANTS}}
    lists = {name: _lists([told.get((i, back), loose[i]) for i in every]) for name, back in rows.items()}
    return {"task": record["task"], "lower": _lower(loose), "rows": lists}


def measure(record, say, back):
    """Without a return and with one: the same for runs that are not set back."""
    bench = Bench(record, say)
    every = range(len(bench.group.settings))
    found = bench.measured([(i, back) for i in every])
    some = [i for i in every if found[i]["returns"].any()]
    without = dict(zip(some, bench.measured([(i, NEVER) for i in some]), strict=True))
    # A run that is not set back is the same run; another program's last bits would make it another.
    for i, one in without.items():
        for m in one:
            one[m] = np.where(found[i]["returns"] > 0, one[m], found[i][m])
    lists = {"without": _lists([without.get(i, found[i]) for i in every]), "with": _lists(found)}
    return {"task": record["task"], "lower": _lower(found), "rows": lists}


def _lower(row):
    return [float(f"{x['twin'].mean():.4g}") for x in row]


def _name(back):
    return f"patience {back.patience:.0f}, share {back.share}, errors {back.errors:.0f}"


def _lists(row):
    return {
        m: [[round(float(x), 4) if np.isfinite(x) else None for x in one[m]] for one in row]
        for m in row[0]
        if m != "twin"
    }


def summary(records, row):
    """Inside, worst, lost share in the median, and how many runs were set back."""
    all_of = {
        m: np.array([x for r in records for one in r["rows"][row][m] for x in one], float)
        for m in ("excess", "lost", "returns")
    }
    return {
        "runs": len(all_of["excess"]),
        "inside": float(np.mean(all_of["excess"] <= 1)),
        "worst": float(np.nanmax(all_of["excess"])),
        "lost": float(np.nanmedian(all_of["lost"])),
        "set back": int((all_of["returns"] > 0).sum()),
        "returns": int(all_of["returns"].sum()),
    }


def choose(records):
    """What was there at first, unless with another more runs end inside, or as many and a hundredth less is lost."""
    best = _name(FIRST)
    for row in map(_name, VARIANTS):
        here, there = summary(records, row), summary(records, best)
        fewer_lost = here["inside"] == there["inside"] and here["lost"] < there["lost"] - 0.01
        best = row if here["inside"] > there["inside"] or fewer_lost else best
    return best


def told():
    """The measurements in words."""
    found = _kept()

    def words(records, row):
        one = summary(records, row)
        return f"{100 * one['inside']:.1f} % inside, the worst at {one['worst']:.2f}, {100 * one['lost']:.0f} % lost"

    def compared(records, row):
        moved, back = summary(records, row)["set back"], summary(records, row)["returns"]
        return (
            f"without it {words(records, 'without')}; with it {words(records, row)}; {moved} of "
            f"{summary(records, row)['runs']} runs were set to their twin, {back} times in all"
        )

    eighth, ninth = found["eighth"], found["ninth"]
    every = {name: summary(eighth, name) for name in map(_name, VARIANTS)}
    inside = [100 * one["inside"] for one in every.values()]
    return (
        f"The set of the round before ({'; '.join(r['task'] for r in eighth)}): {compared(eighth, choose(eighth))}. "
        f"{len(every)} variants were compared there, {min(inside):.1f} to {max(inside):.1f} % inside; chosen: "
        f"{choose(eighth)}. This set ({'; '.join(r['task'] for r in ninth)}): {compared(ninth, 'with')}."
    )


def _kept():
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("eighth", "ninth"), help="which set this is")
    parser.add_argument("--records", default=judge.RESULTS / "tolerance.json", help="a results file of its judging")
    parser.add_argument("--tasks", nargs="+", default=[""], help="only groups with such words in their names, in order")
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "float32")
    began = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    with open(options.records) as file:
        records = json.load(file)
    records = records["judging"] if isinstance(records, dict) else records
    for word, record in itertools.product(options.tasks, records):
        if word not in record["task"] or record["task"] in {k["task"] for k in _kept().get(options.name, [])}:
            continue
        look = explore if options.name == "eighth" else lambda r, s: measure(r, s, laws.Return())
        found = look(record, say)
        now = _kept()  # what was measured beside this meanwhile, too
        known = [*now.get(options.name, []), found]
        RESULT.write_text(json.dumps({**now, **stamp(), options.name: known}, ensure_ascii=False) + "\n")
        say(f"{record['task']}: recorded lower {record['lower']}, now {found['lower']}")
    known = _kept()[options.name]
    for row in known[0]["rows"]:
        say(f"{row:40} {summary(known, row)}")


if __name__ == "__main__":
    main()
