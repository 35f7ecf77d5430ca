"""One group of settings from the learning rate to the measures."""

import functools
import time

import numpy as np

from benchmarks.tolerance import landed
from benchmarks.tolerance import settings as chosen
from benchmarks.tolerance.engine import OPTIMIZERS, Run, Trainer
from benchmarks.tolerance.tasks import named
from tiebreak.line_search import search

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
    "Muon": 10.0 ** np.arange(-3, 0.1, 0.5),
}
WEIGHTS = np.array(
    [*10.0 ** np.arange(-1.5, 2.3, 0.25), 1e3]
)  # the sweep: sixteen from 0.03 to 178, and 1000
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
        "constant, then cosine": np.where(
            t < 0.6, 1, (1 + np.cos(np.pi * (t - 0.6) / 0.4)) / 2
        ),
        "square root": (1 + 20 * t) ** -0.5,
        "half a cosine": 0.1
        + 0.9 * (1 + np.cos(np.pi * t)) / 2,  # ends at a tenth, not at 0
        "restarts": (1 + np.cos(np.pi * (3 * t % 1))) / 2,
        "step": np.where(t < 0.5, 1, np.where(t < 0.75, 0.1, 0.01)),
        "warm-up, linear": np.minimum(t / 0.1 + 1 / steps, (1 - t) / 0.9),
        "exponential": 0.01**t,
        "inverse root": np.minimum(
            t / 0.05 + 1 / steps, (np.maximum(t, 0.05) / 0.05) ** -0.5
        ),
        "cosine with warm-up": np.minimum(
            t / 0.1 + 1 / steps, (1 + np.cos(np.pi * t)) / 2
        ),
        "trapezoid": np.minimum(np.minimum(1, t / 0.05 + 1 / steps), (1 - t) / 0.2),
        "cosine to a fifth": 0.6 + 0.4 * np.cos(np.pi * t),
        "triangle": np.minimum(t + 1 / steps, 1 - t) * 2,
        "inverse": 1 / (1 + 9 * t),
        "late drop": np.where(t < 0.9, 1, 0.1),
        "cosine to 3 %": 0.515 + 0.485 * np.cos(np.pi * t),
        "constant, then exponential": np.where(t < 0.5, 1, 0.01 ** (2 * t - 1)),
        "sawtooth": 1 - 0.9 * (4 * t % 1),  # four times from 1 to a tenth
        "one-cycle": np.where(
            t < 0.3,
            0.52 - 0.48 * np.cos(np.pi * t / 0.3),
            (1 + np.cos(np.pi * (t - 0.3) / 0.7)) / 2,
        ),
    }[name]


def _for(law, constants, optimizer):
    """The constants of a rule as its library has them around such an optimizer."""
    if not law.startswith("landed") or not OPTIMIZERS[optimizer].adaptive:
        return constants
    return tuple(landed.rule.adaptive(landed.rule.Constants(*constants)))


def trainer(group, seeds, offset=0):
    muon = any(setting.optimizer == "Muon" for setting in group.settings)
    return Trainer(named(group.task), group.batch, group.steps, seeds, muon, offset)


def repeatable(losses, repeats):
    """The least tolerance of `LADDER`, a share of the mean loss (of 0.1, where that is less), that repeats keep to.

    Nine of ten: `repeats` are what lower-only training reaches from the same starts with other batches.
    """
    scale = max(float(np.mean(losses)), 0.1)
    apart = np.abs(np.asarray(losses) - repeats) / scale
    return next(
        (float(share * scale) for share in LADDER if np.mean(apart <= share) >= 0.9),
        float(LADDER[-1] * scale),
    )


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
            o: self._lower_only(o, "cosine", self.train.fresh)
            for o in sorted({s.optimizer for s in group.settings})
        }
        results = self.train(list(trained.values()))
        self.trained = {
            o: r.parameters() for o, r in zip(trained, results, strict=True)
        }
        count = len(group.settings)
        both = [
            self._lower_only(*s[:2], self._start(s), s.start) for s in group.settings
        ]
        # At a rate of 0 the start stays as it is, and its loss on every batch is recorded.
        both = self.train(both + [run._replace(rates=0 * run.rates) for run in both])
        self.twins, self.still = twins, _ = both[:count], both[count:]
        self.others = self._again(trainer(group, seeds, 5000))
        if group.tolerance == "repeatable":
            amount = repeatable(
                [t.lower for t in twins],
                np.array([other.lower for other in self.others]),
            )
            self.group = group = group._replace(tolerance=float(f"{amount:.3g}"))
        self.tolerances = tolerances(group, twins)
        runs = [
            self.run(i, "fixed", (w,), "number")
            for i in range(len(twins))
            for w in weights
        ]
        swept = self.train(runs)
        self.sweep = [
            swept[i * len(weights) : (i + 1) * len(weights)] for i in range(len(twins))
        ]
        self.best = [self._best(i) for i in range(len(twins))]  # f* per seed
        say(f"{group.task}, {group.batch}: {time.perf_counter() - began:.0f} s")

    def _again(self, other):
        """Lower-only training from the same starts with the batches of other seeds."""
        return other(
            [
                self._lower_only(*s[:2], self._start(s), s.start)
                for s in self.group.settings
            ]
        )

    def _tune(self):
        """The learning rate with the least final lower loss of lower-only training, mean over seeds.

        A rate at which the loss first rises to more than three times its start is left out: nobody would use it.
        """
        pairs = self._pairs()
        runs = [(o, s, rate) for o, s in pairs for rate in RATES[o]]
        results = self.train(
            [self._lower_only(o, s, self.train.fresh, rate=rate) for o, s, rate in runs]
        )

        def score_of(result):
            wild = (result.curve.max(1) > 3 * result.curve[:, 0]).any()
            return (
                np.inf
                if wild or not np.isfinite(result.curve).all()
                else result.lower.mean()
            )

        self.untrained = results[0].curve[:, 0]
        score = {run: score_of(r) for run, r in zip(runs, results, strict=True)}
        return {
            pair: min((score[run], run[2]) for run in runs if run[:2] == pair)[1]
            for pair in pairs
        }

    def _pairs(self):
        """Optimizers with schedules; starts are trained with the cosine."""
        return sorted(
            {s[:2] for s in self.group.settings}
            | {(s.optimizer, "cosine") for s in self.group.settings}
        )

    def _start(self, setting):
        return (
            self.train.fresh
            if setting.start == "scratch"
            else self.trained[setting.optimizer]
        )

    def _factors(self, optimizer, name, start, rate=None):
        rate = self.rates[optimizer, name] if rate is None else rate
        return (
            schedule(name, self.group.steps)
            * rate
            * (0.1 if start == "fine-tuning" else 1.0)
        )

    def _lower_only(self, optimizer, name, parameters, start="scratch", rate=None):
        nothing = np.zeros((len(self.seeds), self.group.steps))
        rates = self._factors(optimizer, name, start, rate)
        return Run(
            parameters,
            rates,
            optimizer,
            "fixed",
            (ALONE,),
            nothing,
            np.ones(len(self.seeds)),
        )

    def reference(self, i, kind):
        """Per seed and step: a number, the twin, the frozen start, or the curve of another seed's lower-only run."""
        if kind in ("number", "other"):  # of one that was trained with other batches
            return np.repeat(self._anchor(i, kind).lower[:, None], self.group.steps, 1)
        if kind == "curve":
            return np.roll(self.twins[i].curve, 1, 0)
        return (self.still if kind == "start" else self.twins)[i].curve

    def run(self, i, law, constants, kind):
        """The i-th setting with a law and a kind of reference; a share comes to the same tolerance at the end."""
        setting = self.group.settings[i]
        with np.errstate(
            divide="ignore"
        ):  # a twin that ends at a loss of 0: of that there is no share
            tolerance = self.tolerances[i] / (
                self.twins[i].lower if law == "ours, share" else 1.0
            )
        return Run(
            self._start(setting),
            self._factors(*setting),
            setting.optimizer,
            law,
            tuple(_for(law, constants, setting.optimizer)),
            self.reference(i, kind),
            tolerance,
        )

    def _anchor(self, i, kind):
        """The model that a run is finished from, and whose loss its reference is: the twin's but for two kinds."""
        return {"other": self.others, "start": self.still}.get(kind, self.twins)[i]

    def excess(self, i, outcome, kind="twin"):
        """Over lower-only training, also where the reference is the start."""
        return (
            outcome.lower
            - self._anchor(i, "other" if kind == "other" else "twin").lower
        ) / self.tolerances[i]

    def finished(self, runs, anchors=None, ends=None):
        """Finish each of `runs`, (setting, outcome, kind of reference): a list of ``Finish`` per run, one per seed.

        `anchors` and `ends` are the parameters of the two ends of each line, if they are not the usual ones.
        """
        anchors = anchors or [self._anchor(i, kind).parameters() for i, _, kind in runs]
        ends = ends or [outcome.parameters() for _, outcome, _ in runs]
        losses = self.train.along(anchors, ends)
        reference = np.concatenate([self._anchor(i, kind).lower for i, _, kind in runs])
        tolerance = np.concatenate(
            [self.tolerances[i] + 0 * self.twins[i].lower for i, _, _ in runs]
        )

        def measure(places):
            lower, upper = losses(places)
            return (lower - reference) / tolerance, upper

        found = together(len(reference), measure)
        return [
            found[k : k + len(self.seeds)]
            for k in range(0, len(found), len(self.seeds))
        ]

    def ways_back(self, i, outcome, kind):
        """Other ways to finish a run that ended outside: measures by way, per seed.

        "steps": a phase of steps on g alone, a twentieth of the training at a falling tenth of the rate, then the line.
        "last inside": the line from the last iterate whose averaged excess met the tolerance.
        """
        setting = self.group.settings[i]
        steps = max(self.group.steps // 20, 5)
        phase = trainer(self.group._replace(steps=steps), self.seeds, 9000)
        rates = self._factors(*setting).max() * 0.1 * (1 - np.arange(steps) / steps)
        nothing = np.zeros((len(self.seeds), steps))
        alone = Run(
            outcome.parameters(),
            rates,
            setting.optimizer,
            "fixed",
            (ALONE,),
            nothing,
            np.ones(len(self.seeds)),
        )
        after = phase([alone])[0]
        run = [(i, outcome, kind)]
        ends = {
            "line": self.finished(run),
            "steps": self.finished(run, ends=[after.parameters()]),
            "last inside": self.finished(run, anchors=[outcome.inside()]),
        }
        return {way: self._finished_measures(i, end[0]) for way, end in ends.items()}

    def _finished_measures(self, i, end):
        excess, upper = np.array([(one.excess, one.upper_loss) for one in end]).T
        return {
            "finished excess": excess,
            "finished lost": (upper - self.best[i]) / self._gain(i),
        }

    def _gain(self, i):
        """What f can gain, per seed; NaN if that is next to nothing."""
        gain = self.twins[i].upper - self.best[i]
        return np.where(gain > NEGLIGIBLE * np.abs(self.twins[i].upper), gain, np.nan)

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

    def measures(self, i, outcome, kind="twin", finished=None):
        """Per seed: the excess over what was promised, and the share of f's possible gain that was given up.

        With the start as the reference the excess is over the start. The share is NaN if nothing can be gained.
        """
        if kind == "start":
            excess = (outcome.lower - self.still[i].lower) / self.tolerances[i]
        else:
            excess = self.excess(i, outcome, kind)
        wild = (
            ~np.isfinite(outcome.lower)
            | ~np.isfinite(outcome.upper)
            | (outcome.lower > self.untrained)
        )
        measured = {
            "excess": np.nan_to_num(excess, nan=np.inf, posinf=np.inf),
            "lost": (outcome.upper - self.best[i]) / self._gain(i),
            "diverged": wild.astype(float),
            "returns": outcome.returns,
        }
        return (
            measured
            if finished is None
            else measured | self._finished_measures(i, finished)
        )


class _Wanted(Exception):
    """A place that has not been measured yet."""


def together(count, measure):
    """So many searches at once; `measure` gives excesses and upper losses at a place for each of them.

    A search starts again from the known places whenever it asks for another one, which costs next to nothing.
    """
    known, found = [{} for _ in range(count)], [None] * count

    def look(mine, place):
        if place not in mine:
            raise _Wanted(place)
        return mine[place]

    while None in found:
        places = np.ones(count)
        for k in range(count):
            if found[k] is None:
                try:
                    found[k] = search(functools.partial(look, known[k]))
                except _Wanted as wanted:
                    places[k] = wanted.args[0]
        both = measure(places)
        for k in range(count):
            if found[k] is None:
                known[k][float(places[k])] = tuple(float(values[k]) for values in both)
    return found
