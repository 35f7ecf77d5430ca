"""One group of settings from the learning rate to the measures."""

import time

import numpy as np

from benchmarks.tolerance import settings as chosen
from benchmarks.tolerance.engine import OPTIMIZERS, Run, Trainer
from benchmarks.tolerance.tasks import named
from tiebreak.tolerance import Constants, adaptive

RATES = {
    "SGD": 10.0 ** np.arange(-2, 1.1, 0.5),
    "SGD with momentum": 10.0 ** np.arange(-3, 0.1, 0.5),
    "Adam": 10.0 ** np.arange(-4, -0.9, 0.5),
    "AdamW": 10.0 ** np.arange(-4, -0.9, 0.5),
    "AdamW, 0.95": 10.0 ** np.arange(-4, -0.9, 0.5),
    "RMSprop": 10.0 ** np.arange(-4, -0.9, 0.5),
    "Adam, 0.5": 10.0 ** np.arange(-4, -0.9, 0.5),
    "SGD with momentum, 0.95": 10.0 ** np.arange(-3.5, -0.4, 0.5),
    "Adam, 0.95": 10.0 ** np.arange(-4, -0.9, 0.5),
    "SGD with decay": 10.0 ** np.arange(-3, 0.1, 0.5),
}
WEIGHTS = np.array([*10.0 ** np.arange(-1.5, 2.3, 0.25), 1e3])  # the sweep: sixteen from 0.03 to 178, and 1000
LADDER = (0.02, 0.05, 0.1, 0.2, 0.5)  # tolerances to choose from before any law is run
ALONE = 1e12  # the weight of lower-only training
NEGLIGIBLE = 0.02  # a possible gain in f below this share of it is none


def schedule(name, steps):
    """Factors of the learning rate."""
    t = np.arange(steps) / steps
    return {
        "cosine": (1 + np.cos(np.pi * t)) / 2,
        "constant": np.ones(steps),
        "linear": 1 - t,
        "quadratic": (1 - t) ** 2,
        "warm-up, constant": np.minimum(1, t / 0.1 + 1 / steps),
        "constant, then linear": np.minimum(1, (1 - t) / 0.3),
        "constant, then cosine": np.where(t < 0.6, 1, (1 + np.cos(np.pi * (t - 0.6) / 0.4)) / 2),
        "square root": (1 + 20 * t) ** -0.5,
        "half a cosine": 0.1 + 0.9 * (1 + np.cos(np.pi * t)) / 2,  # ends at a tenth, not at 0
        "restarts": (1 + np.cos(np.pi * (3 * t % 1))) / 2,
        "step": np.where(t < 0.5, 1, np.where(t < 0.75, 0.1, 0.01)),
        "warm-up, linear": np.minimum(t / 0.1 + 1 / steps, (1 - t) / 0.9),
        "exponential": 0.01**t,
        "inverse root": np.minimum(t / 0.05 + 1 / steps, (np.maximum(t, 0.05) / 0.05) ** -0.5),
        "cosine with warm-up": np.minimum(t / 0.1 + 1 / steps, (1 + np.cos(np.pi * t)) / 2),
        "trapezoid": np.minimum(np.minimum(1, t / 0.05 + 1 / steps), (1 - t) / 0.2),
        "one minus root": 1 - t**0.5,
        "stairs": 0.5 ** np.floor(10 * t),
        "linear to a third": 1 - 2 / 3 * t,
        "cosine to a fifth": 0.6 + 0.4 * np.cos(np.pi * t),
        "triangle": np.minimum(t + 1 / steps, 1 - t) * 2,
        "inverse": 1 / (1 + 9 * t),
        "late drop": np.where(t < 0.9, 1, 0.1),
        "cosine to 3 %": 0.515 + 0.485 * np.cos(np.pi * t),
        "constant, then exponential": np.where(t < 0.5, 1, 0.01 ** (2 * t - 1)),
        "sawtooth": 1 - 0.9 * (4 * t % 1),  # four times from 1 to a tenth
        "one-cycle": np.where(
            t < 0.3, 0.52 - 0.48 * np.cos(np.pi * t / 0.3), (1 + np.cos(np.pi * (t - 0.3) / 0.7)) / 2
        ),
    }[name]


def _for(constants, optimizer):
    """Constants of ours as the library has them around such an optimizer."""
    ours, count = tuple(constants), len(Constants._fields)
    if len(ours) < count or not OPTIMIZERS[optimizer][0]:
        return constants
    return (*adaptive(Constants(*ours[:count])), *ours[count:])


def trainer(group, seeds):
    return Trainer(named(group.task), group.batch, group.steps, seeds)


def repeatable(losses, repeats):
    """The least tolerance of `LADDER`, a share of the mean loss (of 0.1, where that is less), that repeats keep to.

    Nine of ten: `repeats` are what lower-only training reaches from the same starts with other batches.
    """
    scale = max(float(np.mean(losses)), 0.1)
    apart = np.abs(np.asarray(losses) - repeats) / scale
    return next((float(share * scale) for share in LADDER if np.mean(apart <= share) >= 0.9), float(LADDER[-1] * scale))


def tolerances(group, references):
    """As losses, a value per seed; a share is one of the reference's final loss."""
    amount = group.tolerance
    if isinstance(amount, str):
        return [float(amount[:-1]) / 100 * reference.lower for reference in references]
    return [amount + 0 * reference.lower for reference in references]


class Bench:
    """A group with its learning rates, starts, references, tolerances and sweep: what every law is given."""

    def __init__(self, group: chosen.Group, seeds, say=print, weights=WEIGHTS):
        began = time.perf_counter()
        self.group, self.seeds = group, seeds
        self.train = trainer(group, seeds)
        self.rates = self._tune()
        trained = {
            o: self._lower_only(o, "cosine", self.train.fresh) for o in sorted({s.optimizer for s in group.settings})
        }
        results = self.train(list(trained.values()))
        self.trained = {o: r.parameters() for o, r in zip(trained, results, strict=True)}
        count = len(group.settings)
        both = [self._lower_only(*s[:2], self._start(s), s.start) for s in group.settings]
        # At a rate of 0 the start stays as it is, and its loss on every batch is recorded.
        both = self.train(both + [run._replace(rates=0 * run.rates) for run in both])
        self.twins, self.still = twins, _ = both[:count], both[count:]
        if group.tolerance == "repeatable":
            again = self._again(trainer(group, [seed + 5000 for seed in seeds]))
            amount = repeatable([t.lower for t in twins], again)
            self.group = group = group._replace(tolerance=float(f"{amount:.3g}"))
        self.tolerances = tolerances(group, twins)
        runs = [self.run(i, "fixed", (w,), "number") for i in range(len(twins)) for w in weights]
        swept = self.train(runs)
        self.sweep = [swept[i * len(weights) : (i + 1) * len(weights)] for i in range(len(twins))]
        self.best = [self._best(i) for i in range(len(twins))]  # f* per seed
        say(f"{group.task}, {group.batch}: {time.perf_counter() - began:.0f} s")

    def _again(self, other):
        """The losses of lower-only training from the same starts with the batches of other seeds."""
        runs = [self._lower_only(*s[:2], self._start(s), s.start) for s in self.group.settings]
        return np.array([outcome.lower for outcome in other(runs)])

    def _tune(self):
        """The learning rate with the least final lower loss of lower-only training, mean over seeds.

        A rate at which the loss first rises to more than three times its start is left out: nobody would use it.
        """
        pairs = self._pairs()
        runs = [(o, s, rate) for o, s in pairs for rate in RATES[o]]
        results = self.train([self._lower_only(o, s, self.train.fresh, rate=rate) for o, s, rate in runs])

        def score_of(result):
            wild = (result.curve.max(1) > 3 * result.curve[:, 0]).any()
            return np.inf if wild or not np.isfinite(result.curve).all() else result.lower.mean()

        self.untrained = results[0].curve[:, 0]
        score = {run: score_of(r) for run, r in zip(runs, results, strict=True)}
        return {pair: min((score[run], run[2]) for run in runs if run[:2] == pair)[1] for pair in pairs}

    def _pairs(self):
        """Optimizers with schedules; starts are trained with the cosine."""
        return sorted({s[:2] for s in self.group.settings} | {(s.optimizer, "cosine") for s in self.group.settings})

    def _start(self, setting):
        return self.train.fresh if setting.start == "scratch" else self.trained[setting.optimizer]

    def _factors(self, optimizer, name, start, rate=None):
        rate = self.rates[optimizer, name] if rate is None else rate
        return schedule(name, self.group.steps) * rate * (0.1 if start == "fine-tuning" else 1.0)

    def _lower_only(self, optimizer, name, parameters, start="scratch", rate=None):
        nothing = np.zeros((len(self.seeds), self.group.steps))
        rates = self._factors(optimizer, name, start, rate)
        return Run(parameters, rates, optimizer, "fixed", (ALONE,), nothing, np.ones(len(self.seeds)))

    def reference(self, i, kind):
        """Per seed and step: a number, the twin, the frozen start, or the curve of another seed's lower-only run."""
        if kind == "number":
            return np.repeat(self.twins[i].lower[:, None], self.group.steps, 1)
        if kind == "curve":
            return np.roll(self.twins[i].curve, 1, 0)
        return (self.still if kind == "start" else self.twins)[i].curve

    def run(self, i, law, constants, kind):
        """The i-th setting with a law and a kind of reference; a share comes to the same tolerance at the end."""
        setting = self.group.settings[i]
        with np.errstate(divide="ignore"):  # a twin that ends at a loss of 0: of that there is no share
            tolerance = self.tolerances[i] / (self.twins[i].lower if law == "ours, share" else 1.0)
        return Run(
            self._start(setting),
            self._factors(*setting),
            setting.optimizer,
            law,
            tuple(_for(constants, setting.optimizer)),
            self.reference(i, kind),
            tolerance,
        )

    def excess(self, i, outcome):
        return (outcome.lower - self.twins[i].lower) / self.tolerances[i]

    def _best(self, i):
        """f of the best fixed weight: the least f inside, or at the limit between a weight inside and one outside."""
        excess = np.array([self.excess(i, r) for r in self.sweep[i]])
        upper = np.array([r.upper for r in self.sweep[i]])
        best = self.twins[i].upper.copy()
        for s in range(len(self.seeds)):
            e, f = np.nan_to_num(excess[:, s], nan=np.inf), upper[:, s]
            inside = e <= 1
            best[s] = min([best[s], *f[inside]])
            for k in range(len(e) - 1):
                if not inside[k] and inside[k + 1] and np.isfinite(e[k]):
                    part = (1 - e[k + 1]) / (e[k] - e[k + 1])
                    best[s] = min(best[s], f[k + 1] + part * (f[k] - f[k + 1]))
        return best

    def measures(self, i, outcome):
        """Per seed; the lost share is NaN where nothing can be gained."""
        twin, tol = self.twins[i], self.tolerances[i]
        gain = twin.upper - self.best[i]
        gain = np.where(gain > NEGLIGIBLE * np.abs(twin.upper), gain, np.nan)
        wild = ~np.isfinite(outcome.lower) | ~np.isfinite(outcome.upper) | (outcome.lower > self.untrained)
        return {
            "excess": self.excess(i, outcome),
            "lost": (outcome.upper - self.best[i]) / gain,
            "over the start": (outcome.lower - self.still[i].lower) / tol,
            "averaged excess": (outcome.averaged_lower - twin.averaged_lower) / tol,
            "swing": outcome.swing.std(1) / tol,
            "averaged swing": outcome.averaged_swing.std(1) / tol,
            "diverged": wild.astype(float),
        }
