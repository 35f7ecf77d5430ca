"""The paper's experiment: its problem, some methods, and the residuals that they reach with a budget."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from tiebreak.checks import nearest, whole
from tiebreak.methods import METHODS, NAMED
from tiebreak.provenance import stamp
from tiebreak.result import MEASURES
from tiebreak.solver.budget import first_cost, limit
from tiebreak.studies.command_line import command_line
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.method_names import describe, label, reconstructed
from tiebreak.studies.reproduction_charts import reproduction_charts
from tiebreak.studies.runs import solving
from tiebreak.studies.sweeps import Blocks, SweepResult
from tiebreak.studies.tables import (
    Columns,
    Estimate,
    Facts,
    Table,
    counted,
    distinct,
    joined,
    labelled,
    scientific,
    select,
)
from tiebreak.studies.task import Task

_LARGEST = 1e100  # squares of numbers up to here, and sums of squares, are finite


@dataclass(frozen=True)
class Experiment:
    """The paper's problem, some methods, and how long and how often to run them. The defaults are the paper's.

    Parameters
    ----------
    methods : sequence of str
        Names in :data:`tiebreak.methods.METHODS`. All of them get the same seed, hence common random numbers.
    runs : int
        Independent runs, at least 1.
    budget : int
        Calls of both levels together that each run may make.
    seed : int
        At least 0.
    start : pair of float
        x₀.
    noise : float or pair of float
        Standard deviation of both gradients' noise, per coordinate; or that of the upper and that of the lower.
    per_sample : bool
        Draw every sample instead of the batch mean's exact law: the same law, much more work.
    record : "log", "all" or int
        The steps that the curves hold: about 50 a decade, all, or every n-th.

    Examples
    --------
    >>> Experiment(methods=["VR-PR-SDBPG"], budget=1e6).methods
    ('vr_pr_sdbpg',)
    >>> Experiment(runs=0)
    Traceback (most recent call last):
        ...
    ValueError: runs=0 must be a whole number ≥ 1
    """

    partial: ClassVar[bool] = True

    methods: Sequence[str] = ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg")
    runs: int = 10
    budget: int = 10**8
    seed: int = 0
    start: Sequence[float] = (1.5, 1.5)
    noise: float | Sequence[float] = 0.5
    per_sample: bool = False
    record: str | int = "log"

    def __post_init__(self) -> None:
        checked = {
            "methods": _methods(self.methods),
            "runs": whole("runs", self.runs),
            "budget": limit("budget", self.budget),
            "seed": whole("seed", self.seed, least=0),
            "start": _start(self.start),
            "noise": _noise(self.noise),
            "record": checked_record(self.record),
        }
        if not isinstance(self.per_sample, bool):
            raise ValueError(f"per_sample={self.per_sample!r} must be True or False")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        least, dearest = max((first_cost(METHODS[name]), name) for name in self.methods)
        if self.budget < least:
            raise ValueError(
                f"budget={self.budget} must be at least {least}, the cost of the first step of {dearest}"
            )

    @property
    def noises(self) -> tuple[float, float]:
        """The noise of the upper and of the lower gradient."""
        return self.noise if isinstance(self.noise, tuple) else (self.noise, self.noise)

    @property
    def command(self) -> str:
        """The command line that repeats the experiment.

        >>> Experiment(runs=3, per_sample=True).command[:60]
        'tiebreak reproduce --methods sdbgd,sdbpg,pr_sdbpg,vr_pr_sdbp'
        """
        return command_line("reproduce", asdict(self))

    def _tasks_of(self, name: str) -> list[Task]:
        upper, lower = self.noises
        noise = {"sigma_f": upper, "sigma_g": lower}
        if upper == lower:
            noise = {"sigma": upper}
        arguments = {**noise, "x0": list(self.start), "per_sample": self.per_sample}
        return solving(
            name,
            "tiebreak.problems:paper",
            name,
            budget=self.budget,
            runs=self.runs,
            seed=self.seed,
            record=self.record,
            problem_arguments=arguments,
        )

    def tasks(self, blocks: Blocks) -> list[Task]:
        """The runs of all methods."""
        return [task for name in self.methods for task in self._tasks_of(name)]

    def collect(self, result: SweepResult) -> Findings:
        """The findings of all methods whose blocks were finished, or cut short by Ctrl-C."""
        reached = {**result.blocks, **result.partial}
        curves: list[Columns] = []
        points: list[Columns] = []
        seconds = {}
        faults: list[str] = []
        for name in self.methods:
            names = [task.name for task in self._tasks_of(name)]
            if not all(each in reached for each in names):
                continue
            blocks = [reached[each] for each in names]
            for iterate in ("last", "selected"):
                part = joined(block.tables[iterate] for block in blocks)
                points.append(labelled(part, method=name))
            curves.append(
                labelled(joined(b.tables["curves"] for b in blocks), method=name)
            )
            seconds[name] = round(sum(b.facts["seconds"] for b in blocks), 4)
            for block in blocks:
                faults += block.facts["faults"][str(self.budget)]
        if not seconds:
            raise KeyboardInterrupt
        record = {
            "experiment": asdict(self),
            "command": self.command,
            "interrupted": result.interrupted,
            "faults": faults,
            "seconds": seconds,
            **stamp(),
            "methods": {name: describe(name) for name in seconds},
        }
        return findings_of(
            self, record, {"curves": joined(curves), "points": joined(points)}
        )


def findings_of(
    experiment: Experiment, record: Facts, data: Mapping[str, Columns]
) -> Findings:
    """The findings of curves and points."""
    e = experiment
    return Findings(
        "reproduce",
        "The paper's experiment",
        _verdict(e, record, data["points"]),
        _tables(e, record, data["points"]),
        _notes(e, record, data["points"]),
        reproduction_charts(e, data["curves"], record["seconds"]),
        record,
        data,
    )


def estimates(points: Columns, method: str, iterate: str) -> dict[str, Estimate]:
    """The mean of every measure over the runs of a method, at the "last" or the "selected" iterate.

    >>> from tiebreak.studies import run
    >>> findings = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> estimates(findings.data["points"], "sdbgd", "last")["lower_gradient_squared"].mean
    1.29067105018897
    """
    rows = select(points, method=method, iterate=iterate)
    return {measure: Estimate.of(rows[measure]) for measure in MEASURES}


def _tables(experiment: Experiment, record: Facts, points: Columns) -> list[Table]:
    """Residuals, and effort and values."""
    residuals = []
    effort = []
    for name, seconds in record["seconds"].items():
        for iterate in ("last", "selected"):
            means = estimates(points, name, iterate)
            cells = [means[measure].text(".2e") for measure in MEASURES[:3]]
            residuals.append([label(name), iterate, *cells])
        last = select(points, method=name, iterate="last")
        means = estimates(points, name, "last")
        values = [means[level].text(".5g") for level in ("upper_value", "lower_value")]
        spans = [_span(last["steps"]), _span(last["calls"])]
        effort.append([label(name), *spans, *values, f"{seconds:.2f}"])
    over = "one run"
    if experiment.runs > 1:
        over = f"mean ± standard error over {experiment.runs} runs"
    return [
        Table(
            f"Residuals, {over}",
            ("method", "iterate", "‖d‖²", "‖∇g‖²", "min ‖∇f+λ∇g‖²"),
            residuals,
        ),
        Table(
            f"Effort, and values at the last iterate, {over}",
            ("method", "steps", "calls", "f", "g", "seconds"),
            effort,
        ),
    ]


def _span(counts: Any) -> str:
    low, high = counts.min(), counts.max()
    if low == high:
        return f"{low:,}"
    return f"{low:,}–{high:,}"


def _notes(experiment: Experiment, record: Facts, points: Columns) -> list[str]:
    """What a reader must know to read the tables."""
    methods = record["seconds"]
    notes = [
        "‖d‖² is ‖∇f+λ∇g‖² with each method's own λ, so it does not compare methods; the least over all λ ≥ 0, in the "
        "last column, does. Residuals use exact gradients, which are never charged.",
        "The selected iterate is x_{N_K}, drawn with P(N_K = k) ∝ η_k β_k: the one that the theory speaks of. Rare "
        "early ones with large residuals make up much of its mean: few runs may hold none and err by more than shown.",
        _where(select(points, iterate="last")),
    ]
    if any(map(reconstructed, methods)):
        notes.append(
            "† Our reconstruction: the authors' rule for PR-SDBPG and VR-PR-SDBPG is not available to us. It is "
            "pinned down by their complexities and parameters but for where μ enters; among the rules that fit, the "
            "residuals differ from ours by up to a factor of three, and the order of the methods in ‖d‖² and ‖∇g‖² "
            "is the same."
        )
    if record["interrupted"]:
        missing = [label(name) for name in experiment.methods if name not in methods]
        cut = distinct(select(points, status="interrupted"), "method")
        parts = [f"; cut short: {', '.join(map(label, cut))}"] * bool(cut)
        parts += [f"; not run: {', '.join(missing)}"] * bool(missing)
        notes.append(f"Interrupted from the keyboard{''.join(parts)}.")
    return notes + fault_notes(record["faults"])


def fault_notes(faults: Sequence[str]) -> list[str]:
    """A sentence with the first faults; none if there are no faults."""
    if not faults:
        return []
    if len(faults) > 3:
        more = f" (and {len(faults) - 3} more)"
    else:
        more = ""
    return [f"Runs that could not go on: {'; '.join(faults[:3])}{more}."]


def _where(last: Columns) -> str:
    """The minimiser of g that the runs end nearest to."""
    with np.errstate(all="ignore"):
        periods = np.rint(last["x0"] / (2 * math.pi))
    counts = Counter(int(m) for m in periods if math.isfinite(m))
    names = {m: f"({f'{2 * m}π' if m else '0'}, 0)".replace("-", "−") for m in counts}
    ends = ", ".join(f"{names[m]} in {count}" for m, count in counts.most_common(3))
    return (
        f"Of g's minimisers (2πm, 0), the nearest to the last iterate is {ends} of {len(periods)} runs. The bilevel "
        "solution is (2π, 0); stationarity is what the methods promise, not the solution."
    )


def _verdict(experiment: Experiment, record: Facts, points: Columns) -> Verdict:
    question = (
        f"Which method has the smallest residuals after {experiment.budget:,} gradient calls, on the paper's problem, "
        f"{counted(experiment.runs, 'run')}, seed {experiment.seed}?"
    )
    answers = []
    for measure, symbol in (
        ("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²"),
        ("lower_gradient_squared", "‖∇g‖²"),
    ):
        ends = {
            name: estimates(points, name, "last")[measure].mean
            for name in record["seconds"]
        }
        best = min(ends, key=lambda name: np.nan_to_num(ends[name], nan=np.inf))
        answers.append(
            f"By {symbol}: {label(best)}, {scientific(ends[best])} at the last iterate."
        )
    most = int(points["calls"].max())
    answers.append(
        f"Calls: at most {most:,} of {experiment.budget:,} a run, inside the budget."
    )
    faults = record["faults"]
    interrupted = record["interrupted"]
    answers += [f"{len(faults)} runs could not go on."] * bool(faults)
    if interrupted:
        answers.append("It was interrupted: methods may be missing or cut short.")
    good = most <= experiment.budget and not faults and not interrupted
    if good:
        word = "Complete, inside the budget"
    else:
        word = "Not complete"
    return Verdict(word, good, question, answers)


def _methods(value: Any) -> tuple[str, ...]:
    legal = f"must be different names among {', '.join(METHODS)}"
    if isinstance(value, str):
        names = value.split(",")
    else:
        names = value
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"methods={value!r} {legal}, at least one")
    keys = [str(name).strip().lower().replace("-", "_") for name in names]
    for name, key in zip(names, keys, strict=True):
        if key not in METHODS:
            advice = nearest(key, METHODS)
            if key in NAMED or {*"+:"} & {*key}:
                advice = ". Constants of your own, plans, files and `auto` go to `tiebreak compare --as-is`"
            raise ValueError(f"methods: {name!r} is not a method; they {legal}{advice}")
    if not keys or len(set(keys)) < len(keys):
        raise ValueError(f"methods={','.join(keys)!r} {legal}, at least one")
    return tuple(keys)


def _start(value: Any) -> tuple[float, float]:
    try:
        first, second = (_moderate(part) for part in value)
        return first, second
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"start={value!r} must be two numbers such as 1.5,1.5, each within ±{_LARGEST:g}"
        ) from None


def _noise(value: Any) -> float | tuple[float, float]:
    """One number, or two; a pair of equal ones is one."""
    if isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = [value]
    try:
        sigmas = [_moderate(part) for part in parts]
        if len(sigmas) not in (1, 2) or min(sigmas) < 0:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"noise={value!r} must be a number from 0 to {_LARGEST:g}, or two: of f and of g"
        ) from None
    if sigmas[0] == sigmas[-1]:
        return sigmas[0]
    return (sigmas[0], sigmas[1])


def _moderate(value: Any) -> float:
    if isinstance(value, (bool, str)):
        number = math.nan
    else:
        number = float(value)
    if not abs(number) <= _LARGEST:
        raise ValueError
    return number


def checked_record(value: Any) -> str | int:
    """The steps to record: "log", or every n-th."""
    if value == "log":
        return "log"
    try:
        return whole("record", 1 if value == "all" else value)
    except ValueError:
        raise ValueError(
            f"record={value!r} must be 'log', 'all' or a whole number n ≥ 1 (every n-th step)"
        ) from None
