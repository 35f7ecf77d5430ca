"""Short fine-tuning from a model that has converged: ``python -m benchmarks.tolerance.short`` (five minutes of a CPU).

On data of the tuning set; what the constants for the starting model were searched on. Everything is counted from the
start: the tolerance is above its loss, and f* is the best of nine fixed weights that ends within it.
"""

import functools

import jax
import numpy as np

from benchmarks.tolerance import study
from benchmarks.tolerance.settings import Group, Setting
from tiebreak.tolerance import MOVING, START

SETTINGS = [
    Setting("AdamW", "cosine", "fine-tuning"),
    Setting("SGD with momentum", "cosine", "fine-tuning"),
    Setting("Adam", "constant", "fine-tuning"),
    Setting("SGD", "linear", "trained"),
    Setting("AdamW", "cosine", "trained"),
    Setting("SGD with momentum", "constant", "trained"),
]
GROUPS = [
    Group("forget a class, digits", 64, 150, 0.02, SETTINGS),
    Group("forget a class, pen strokes", 128, 200, 0.02, SETTINGS),
    Group("forget a speaker, vowels", 128, 300, 0.02, SETTINGS),
    Group("confidence, phonemes", 64, 150, "5%", SETTINGS),
    Group("continual, textures", 64, 200, 0.05, SETTINGS),
    Group("continual, vowels", 128, 150, 0.02, SETTINGS),
    Group("sparsity, satellite", 128, 300, "2%", SETTINGS),
    Group("fairness, COMPAS", 256, 150, "2%", SETTINGS),
    Group("fairness, German credit", 64, 200, "5%", SETTINGS),
    Group("continual, digits", 64, 800, 0.02, SETTINGS),
    Group("confidence, wine", 64, 800, 0.01, SETTINGS),
]
SEEDS = (410, 411)
WEIGHTS = 10.0 ** np.arange(-1.5, 2.6, 0.5)
TRAINED = 1000  # steps, at least, before the run


class Bench(study.Bench):
    """A bench whose starts are trained for longer than the runs are, and whose reference is the start."""

    @functools.cached_property
    def trained(self):
        now = dict.fromkeys(sorted({s.optimizer for s in self.group.settings}), self.train.fresh)
        for _ in range(max(1, TRAINED // self.group.steps)):
            results = self.train([self._lower_only(o, "cosine", start) for o, start in now.items()])
            now = {o: r.parameters() for o, r in zip(now, results, strict=True)}
        return now

    def __init__(self, group, seeds, say=print):
        self.group, self.seeds = group, seeds
        self.train = study.trainer(group, seeds)
        self.rates = self._tune()
        runs = [self._lower_only(*s[:2], self._start(s), s.start) for s in group.settings]
        self.twins = self.still = self.train([run._replace(rates=0 * run.rates) for run in runs])
        self.tolerances = study.tolerances(group, self.still)
        swept = self.train([self.run(i, "fixed", (w,), "number") for i in range(len(runs)) for w in WEIGHTS])
        self.sweep = [swept[i * len(WEIGHTS) : (i + 1) * len(WEIGHTS)] for i in range(len(runs))]
        self.best = [self._best(i) for i in range(len(runs))]
        say(f"{group.task}, {group.steps} steps: ready")


def measure(benches, constants):
    """Excess and lost share of every run."""
    found = []
    for bench in benches:
        count = range(len(bench.group.settings))
        outcomes = bench.train([bench.run(i, "ours, moving", constants, "start") for i in count])
        found += [bench.measures(i, outcome) for i, outcome in enumerate(outcomes)]
    return (np.concatenate([m[name] for m in found]) for name in ("excess", "lost"))


def main():
    jax.config.update("jax_default_matmul_precision", "float32")
    benches = [Bench(group, SEEDS) for group in GROUPS]
    for name, constants in (("for the start", START), ("for a twin", MOVING)):
        excess, lost = measure(benches, constants)
        print(
            f"constants {name}: {100 * np.mean(excess <= 1):.1f} % of {len(excess)} runs inside, worst "
            f"{np.nanmax(excess):.2f}, {100 * np.nanmedian(lost):.0f} % lost in the median"
        )


if __name__ == "__main__":
    main()
