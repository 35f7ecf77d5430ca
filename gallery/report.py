"""A study in tables: who is inside, who wins, what it cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from gallery.example import Metric, OwnMethod
from gallery.methods import METHODS, AnyMethod, chosen
from gallery.study import Findings, Run
from tiebreak.studies.tables import Table, as_markdown, scientific, short

__all__ = [
    "TITLES",
    "Row",
    "Spread",
    "Winner",
    "markdown",
    "notes",
    "rows",
    "sheets",
    "swept",
    "title",
    "winner",
]

#: What tables of a budget are called.
TITLES = {
    "evaluations": "After equal gradient evaluations",
    "seconds": "After equal time",
}
#: Columns that hold words.
WORDS = ("chosen",)
_CLOCKED = "those of a training alone on the machine, by the timing of its steps"
_LOOSE = 3.0  # tolerances
_AS_THEY_RAN = "those that each training took, beside whatever else ran"
_FIRST = 4  # metrics of the main table; the others follow


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its standard deviation; NaN where there is none."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of all seeds, so that one training that diverged is not left out in silence.

        >>> str(Spread.of([1.0, 2.0])), str(Spread(1e-15, 0.2))
        ('1.5 ± 0.7', '0 ± 0.2')
        """
        if not values or not all(map(math.isfinite, values)):
            return cls(math.nan, math.nan)
        return cls(fmean(values), stdev(values) if len(values) > 1 else math.nan)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        mean = short(
            f"{0.0 if abs(self.mean) < 1e-6 * self.deviation else self.mean:.3g}"
        )  # no rounding errors
        return (
            mean
            if math.isnan(self.deviation)
            else f"{mean} ± {short(f'{self.deviation:.1g}')}"
        )


@dataclass(frozen=True)
class Row:
    """A method at a budget, over all seeds."""

    method: str
    title: str
    limit: bool  # it may see what others may not
    seeds: int
    inside: float  # share of seeds
    excess: Spread
    promise: Spread  # the same as the method measures it
    lower: Spread
    upper: Spread
    metrics: dict[str, Spread]
    steps: int
    evaluations: float
    seconds: float  # of a training alone on the machine, where that was timed
    trials: int
    tuning: tuple[
        int, float, float
    ]  # trainings, gradient evaluations and seconds of all trials
    needs_reference: bool
    knobs: str
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Winner:
    """The best by the example's first metric among the methods inside on most seeds, and who is no worse by that much.

    `inside` is the share of seeds that the winner kept the tolerance on: less than 1 where none did better.
    """

    method: str
    inside: float
    tied: tuple[str, ...]


def title(name: str) -> str:
    """What tables call a method."""
    return METHODS[name].title if name in METHODS else name


def rows(findings: Findings, budget: str, finished: bool = False) -> list[Row]:
    """A row for each method that was run at this budget; of what its models were `finished` to, where any was."""
    example = findings.study.example
    wanted = findings.study.methods_of(example)
    found = []
    for name, method in wanted.items():
        runs = [
            run for run in findings.runs if run.budget == budget and run.method == name
        ]
        if finished:
            runs = (
                [run.ended for run in runs] if any(run.finished for run in runs) else []
            )
        if runs:
            found.append(
                _row(
                    name,
                    method,
                    runs,
                    findings,
                    [metric.name for metric in example.metrics],
                )
            )
    return found


def _row(
    name: str,
    method: AnyMethod,
    runs: list[Run],
    findings: Findings,
    metrics: list[str],
) -> Row:
    own = isinstance(method, OwnMethod)
    tuning = [
        run
        for run in findings.runs
        if run.budget == "tuning" and run.method == name and run.knobs
    ]
    spent = (
        len(tuning),
        sum(run.evaluations for run in tuning),
        sum(_alone(run, findings) for run in tuning),
    )
    return Row(
        method=name,
        title=title(name),
        limit=own and method.limit,  # type: ignore[union-attr]  # an own one's
        seeds=len(runs),
        inside=fmean(run.inside for run in runs),
        excess=Spread.of([run.excess for run in runs]),
        promise=Spread.of([run.promise for run in runs]),
        lower=Spread.of([run.lower for run in runs]),
        upper=Spread.of([run.upper for run in runs]),
        metrics={
            key: Spread.of([run.metrics.get(key, math.nan) for run in runs])
            for key in metrics
        },
        steps=max(run.steps for run in runs),
        evaluations=max(run.evaluations for run in runs),
        seconds=fmean(_alone(run, findings) for run in runs),
        trials=len({_told(run) for run in tuning}),
        tuning=spent,
        needs_reference=not own and method.needs_reference,  # type: ignore[union-attr]  # a common one's
        knobs=_told(runs[0]),
        failed=tuple(
            f"seed {run.seed}: {run.status}" for run in runs if run.status != "finished"
        ),
    )


def _alone(run: Run, findings: Findings) -> float:
    """A training's seconds, without whatever else the machine did."""
    each = findings.seconds.get(run.method)
    return run.seconds if each is None else each * run.evaluations


def _told(run: Run) -> str:
    return "; ".join(f"{name} {value:g}" for name, value in run.knobs.items())


def _cost(metric: Metric, value: float) -> float:
    """The lower, the better."""
    if metric.better == "equal":
        return abs(value - (metric.target or 0.0))
    return -value if metric.better == "higher" else value


def winner(found: Sequence[Row], metric: Metric) -> Winner | None:
    """Who wins, be it ours or not."""
    able = [
        row
        for row in found
        if not row.limit and math.isfinite(row.metrics[metric.name].mean)
    ]
    if not able or max(row.inside for row in able) == 0:
        return None
    inside = max(row.inside for row in able)
    able = [row for row in able if row.inside == inside]
    best = min(able, key=lambda row: _cost(metric, row.metrics[metric.name].mean))
    mine = best.metrics[metric.name]

    def near(row: Row) -> bool:
        theirs = row.metrics[metric.name]
        apart = math.hypot(theirs.deviation, mine.deviation) / math.sqrt(best.seeds)
        return (
            row is not best
            and _cost(metric, theirs.mean) - _cost(metric, mine.mean) <= 2 * apart
        )

    return Winner(best.method, inside, tuple(row.method for row in able if near(row)))


def swept(findings: Findings) -> dict[str, list[float]]:
    """The weighted sum's trials in the order of their weights: means over the tuning seeds of "excess", "upper" and
    each metric. Empty where it was not tuned.
    """
    runs = [
        run
        for run in findings.runs
        if (run.budget, run.method) == ("tuning", "weighted-sum")
    ]
    by_weight: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.knobs["weight"]):
        by_weight.setdefault(run.knobs["weight"], []).append(run)
    if not by_weight:
        return {}
    columns = {
        "excess": [
            Spread.of([run.excess for run in some]).mean for some in by_weight.values()
        ],
        "upper": [
            Spread.of([run.upper for run in some]).mean for some in by_weight.values()
        ],
    }
    for metric in findings.study.example.metrics:
        values = [
            [run.metrics.get(metric.name, math.nan) for run in some]
            for some in by_weight.values()
        ]
        columns[metric.name] = [Spread.of(some).mean for some in values]
    return columns


def sheets(findings: Findings) -> list[Table]:
    """For each budget who is where; then all other metrics, and what it cost."""
    study, example, made = findings.study, findings.study.example, []
    names = [metric.name for metric in example.metrics]
    for budget in study.budgets:
        found = rows(findings, budget)
        if not found:
            continue
        head = ("method", "inside", "excess", "upper loss", *names[:_FIRST])
        body = [
            [_marked(row), f"{row.inside:.0%}", str(row.excess), str(row.upper),
             *(str(row.metrics[name]) for name in names[:_FIRST])]
            for row in found
        ]  # fmt: skip
        lacking = [[title(name), f"needs {', '.join(which)}"] + [""] * (len(head) - 2)
                   for name, which in findings.missing.items()]  # fmt: skip
        made.append(Table(TITLES[budget], head, body + lacking))
        if names[_FIRST:]:
            more = [
                [_marked(row), *(str(row.metrics[name]) for name in names[_FIRST:])]
                for row in found
            ]
            made.append(
                Table(
                    f"{TITLES[budget]}: further metrics",
                    ("method", *names[_FIRST:]),
                    more,
                )
            )
        made += _finished(findings, budget)
        cost = [
            [_marked(row), f"{row.steps:,}", f"{row.evaluations:,.0f}", f"{row.seconds:.3g}",
             str(row.trials or ("earlier" if study.knobs and row.knobs else "none")),
             f"{row.tuning[0]} ({scientific(row.tuning[1])})" if row.trials else "",
             "yes" if row.needs_reference else "", row.knobs]
            for row in found
        ]  # fmt: skip
        header = (
            "method",
            "steps",
            "evaluations",
            "seconds",
            "trials",
            "trainings (evaluations)",
            "needs the reference",
            "chosen",
        )
        made.append(Table(f"{TITLES[budget]}: what it cost", header, cost, WORDS))
    return made


def _on_finishing(findings: Findings) -> list[str]:
    """What was done to the models, and to whose not."""
    moved = {run.method for run in findings.runs if run.finished}
    if not moved:
        return []
    begin, more = "the starting model", ""
    if findings.study.example.reference == "twin":
        begin, more = (
            "lower-only training's model of the same seed",
            ", as does the training of that model",
        )
    judged = dict.fromkeys(
        run.method for run in findings.runs if run.budget != "tuning"
    )
    left = ", ".join(title(name) for name in judged if name not in moved)
    return [
        f"Finished: models were moved along the line from {begin} (place 0) through where training left them (1), to "
        "the smallest upper loss that a few looks found inside, by opt.finish() of DynamicBarrier; where no place was "
        "inside, they stayed. Looks are evaluations of both losses over all training data. They come on top of the "
        f"budget{more}; their seconds are those of the machine as it was. Not moved, and compared as they are: {left}."
    ]


def _finished(findings: Findings, budget: str) -> list[Table]:
    """What the models become on the line from the reference's, with what that took."""
    names = [metric.name for metric in findings.study.example.metrics][:_FIRST]
    head = (
        "method",
        "inside",
        "excess",
        "upper loss",
        *names,
        "place",
        "looks",
        "seconds",
    )
    body = []
    for row in rows(findings, budget, finished=True):
        ends = [
            run.finished
            for run in findings.runs
            if (run.budget, run.method) == (budget, row.method)
        ]
        columns = (
            [end.place if end else math.nan for end in ends],
            [end.looks if end else math.nan for end in ends],
        )
        took = fmean(end.seconds for end in ends if end)
        body.append([_marked(row), f"{row.inside:.0%}", str(row.excess), str(row.upper),
                     *(str(row.metrics[name]) for name in names), *(str(Spread.of(c)) for c in columns),
                     f"{took:.2g}"])  # fmt: skip
    return [Table(f"{TITLES[budget]}, then finished", head, body)] if body else []


def _marked(row: Row) -> str:
    return f"{row.title} (limit)" if row.limit else row.title


def notes(findings: Findings) -> list[str]:
    """The winner, what the sweep cost, and whatever a reader must know."""
    study, example = findings.study, findings.study.example
    metric, texts = example.metrics[0], []
    for budget in study.budgets:
        found = rows(findings, budget)
        if found:
            texts.append(
                f"{TITLES[budget]}: {_verdict(found, metric, findings, budget)}"
            )
        ended = {row.method: row for row in rows(findings, budget, finished=True)}
        if ended:
            verdict = _verdict(
                [ended.get(row.method, row) for row in found], metric, findings, budget
            )
            texts.append(f"{TITLES[budget]}, then finished: {verdict}")
    texts += _sweep_cost(findings)
    texts += _on_finishing(findings)
    if any(budget in findings.goals for budget in study.budgets):
        what = "what lower-only training reaches at the same budget, over the seeds"
        if example.reference == "start":
            what = "the starting model's, seed by seed"
        texts.append(
            f"Inside: the lower loss over all training data at most {example.tolerance} above {what}. Excess is in "
            f"tolerances. {f'± is the standard deviation over {study.seeds} seeds' if study.seeds > 1 else 'One seed'}."
        )
    number = "what lower-only training reaches: one training more, which is not counted"
    if example.reference == "start":
        number = (
            "the starting model's loss over all training data, which takes no training"
        )
    texts.append(
        f"Seconds are {_CLOCKED if findings.seconds else _AS_THEY_RAN}. A method that "
        f"needs the reference was given, as a number, {number}."
    )
    texts.append(
        "Knobs are those that an earlier study chose for each method: nothing was tuned here."
        if study.knobs is not None
        else f"Every method with knobs had the same number of trials, each on {study.tuning_seeds} "
        f"seed{'s' * (study.tuning_seeds > 1)} that it is not judged on: the least upper loss among those inside was "
        "chosen, else the nearest. Ours with a tolerance has nothing to tune, and had none."
    )
    texts += _untuned(findings)
    texts += _unbound(findings)
    for budget in study.budgets:
        for row in rows(findings, budget):
            texts += [
                f"{row.title}, {text} ({TITLES[budget].lower()})."
                for text in row.failed
            ]
        texts += [
            f"{row.title} measures its excess itself, against its own reference on batches: {row.promise} "
            f"({TITLES[budget].lower()})."
            for row in rows(findings, budget)
            if math.isfinite(row.promise.mean)
        ]
    warned = {
        (run.method, text)
        for run in findings.runs
        for text in run.warned
        if run.budget != "tuning"
    }
    texts += [f"{title(name)} warned: {text}" for name, text in sorted(warned)]
    left = [
        name for name in chosen((), example) if name not in study.methods_of(example)
    ]
    if left:
        texts.append(f"Left out: {', '.join(map(title, left))}.")
    if findings.interrupted:
        texts.append(
            "Interrupted: this is what was finished. The same command goes on from there."
        )
    return texts


def _untuned(findings: Findings) -> list[str]:
    """Methods that nothing could be chosen for, and a reference that not all seeds have a share in."""
    tried = [run for run in findings.runs if run.budget == "tuning" and run.knobs]
    names = dict.fromkeys(run.method for run in tried)
    lost = [
        name
        for name in names
        if not any(math.isfinite(run.excess) for run in tried if run.method == name)
    ]
    texts = []
    if lost:
        texts.append(
            f"No trial of {', '.join(map(title, lost))} could be judged, because they diverged or lower-only training "
            "on the tuning seeds did: the first setting was taken."
        )
    for budget, goal in (
        findings.goals.items() if findings.study.example.reference == "twin" else ()
    ):
        runs = [
            run
            for run in findings.runs
            if (run.budget, run.method) == (budget, "lower-only")
        ]
        gone = [str(run.seed) for run in runs if not math.isfinite(run.lower)]
        if gone and math.isfinite(goal.reference):
            texts.append(
                f"Lower-only training diverged on seed {', '.join(gone)} ({TITLES.get(budget, budget).lower()}): the "
                "reference is that of the others, and models of that seed were not finished."
            )
    return texts


def _unbound(findings: Findings) -> list[str]:
    """Where the starting model, whose loss is the reference, was far from the best that training on g reaches."""
    runs = [
        run.excess
        for run in findings.runs
        if run.method == "lower-only" and run.budget != "tuning"
    ]
    below = (
        -fmean(runs)
        if runs and findings.study.example.reference == "start"
        else math.nan
    )
    if not below > _LOOSE:
        return []
    return [
        f"Lower-only training ends {below:.3g} tolerances below the starting model, so the tolerance asks for less "
        "than it seems: either that model was not trained to the end, or the training data are being learnt by heart."
    ]


def _verdict(
    found: Sequence[Row], metric: Metric, findings: Findings, budget: str
) -> str:
    if findings.interrupted:
        return "nobody is named the winner before all seeds are there."
    best = winner(found, metric)
    if best is None:
        if not math.isfinite(findings.goals[budget].reference):
            return "nobody can be judged: there is no reference, because lower-only training diverged."
        if any(row.inside for row in found if not row.limit):
            return f"nobody is named the winner: no method inside has a finite {metric.name} on every seed."
        return "no method ended inside the tolerance."
    row = next(row for row in found if row.method == best.method)
    share = (
        "on every seed"
        if best.inside == 1
        else f"on {best.inside:.0%} of the seeds (none on more)"
    )
    tied = (
        f"; within two standard errors of it: {', '.join(map(title, best.tied))}"
        if best.tied
        else ""
    )
    value = row.metrics[metric.name]
    return (
        f"{row.title} wins by {metric.name} ({value}) among those inside {share}{tied}."
    )


def _sweep_cost(findings: Findings) -> list[str]:
    swept = [
        row
        for row in rows(findings, "evaluations")
        if row.method == "weighted-sum" and row.trials
    ]
    if not swept:
        return []
    trainings, evaluations, seconds = swept[0].tuning
    return [
        f"The weighted sum's sweep of {swept[0].trials} weights took {trainings} trainings before the one that counts: "
        f"{scientific(evaluations)} gradient evaluations, {seconds:.3g} s."
    ]


def markdown(findings: Findings) -> str:
    """The tables for documentation: without a title, because a page has one."""
    lines: list[str] = []
    for sheet in sheets(findings):
        lines += [f"**{sheet.title}**", "", *as_markdown(sheet), ""]
    return "\n".join([*lines, *(f"- {text}" for text in notes(findings)), ""])
