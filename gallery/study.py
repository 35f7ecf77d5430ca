"""All methods on all seeds: timed, tuned, judged at two budgets. A sweep, so that nothing finished is done again."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from gallery import referred, work
from gallery.example import Example
from gallery.finishing import Finished
from gallery.methods import METHODS, AnyMethod, chosen
from gallery.methods.method import WEIGHTS, Knobs
from gallery.training import Goal
from gallery.tuning import FIRST_TUNING_SEED, Trial, choose, trials
from tiebreak.checks import one_of, whole
from tiebreak.studies.engines import Engine
from tiebreak.studies.store import Store
from tiebreak.studies.sweeps import Blocks, SweepResult, sweep
from tiebreak.studies.tables import Columns
from tiebreak.studies.task import Block, Task
from tiebreak.studies.user_files import Source

__all__ = ["BUDGETS", "Findings", "Run", "Study", "run"]

#: What is the same for all: gradient evaluations, or seconds.
BUDGETS = ("evaluations", "seconds")
_SAME = 0.02  # of a time: two timings of one method differ by more
_CLOCK = "weighted-sum"  # the budget in seconds is what its 2 · steps gradient evaluations take


@dataclass(frozen=True)
class Study:
    """What to run.

    Parameters
    ----------
    name : str
        Of an example, or a file that has one.
    quick : bool
        Fewer data and steps, three trials instead of six on one seed instead of two, and no budget in seconds.
    methods : tuple of str
        Which; all that fit, if empty.
    seeds : int
        Those that methods are judged on.
    knobs : mapping, optional
        What an earlier study chose, by method: nothing is tuned then.
    finish : bool
        Whether every judged model is finished, too: some ten evaluations of both losses over all training data.
    """

    name: str
    quick: bool = False
    methods: tuple[str, ...] = ()
    seeds: int = 5
    device: str = "cpu"
    trials: int = 6
    tuning_seeds: int = 2
    budgets: tuple[str, ...] = BUDGETS
    knobs: Mapping[str, Knobs] | None = None
    finish: bool = True

    def __post_init__(self) -> None:
        for name in ("seeds", "trials", "tuning_seeds"):
            whole(name, getattr(self, name))
        for budget in self.budgets:
            one_of("budget", budget, BUDGETS)
        if len(set(self.budgets)) < len(self.budgets) or not self.budgets:
            raise ValueError(
                f"budgets={self.budgets!r} must be {' or '.join(BUDGETS)}, or both, each once"
            )
        if self.trials > len(WEIGHTS):
            raise ValueError(
                f"trials={self.trials} must be at most {len(WEIGHTS)}: methods have no more settings"
            )
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ValueError(
                f"device={self.device!r} must be a device of torch's, such as 'cpu' or 'cuda'"
            ) from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={self.device!r}: torch finds no GPU here")
        lacking = [
            name
            for name, method in self.methods_of(self.example).items()
            if trials(method, 2)
        ]
        lacking = [
            name
            for name in lacking
            if self.knobs is not None and name not in self.knobs
        ]
        if lacking:
            raise ValueError(
                f"knobs must have those of {', '.join(lacking)}; else leave these methods out"
            )
        for name, method in self.methods_of(self.example).items():
            legal = [
                *dict.fromkeys(
                    key for knobs in trials(method, len(WEIGHTS)) for key in knobs
                )
            ]
            given = (self.knobs or {}).get(name, {}) if legal else {}
            fine = sorted(given) == sorted(legal) and all(
                0 <= value < math.inf for value in given.values()
            )
            if self.knobs is not None and not fine:
                raise ValueError(
                    f"knobs of {name}: {given!r} must have {', '.join(legal)}, each a finite number ≥ 0"
                )

    @property
    def source(self) -> Source:
        """The source of the example, which any process can load."""
        return referred(self.name)

    @property
    def example(self) -> Example:
        """The example itself."""
        given = self.source.load()
        if not isinstance(given, Example):
            raise ValueError(
                f"name={self.name!r} must have an Example, not {type(given).__name__}"
            )
        return given

    def methods_of(self, example: Example) -> dict[str, AnyMethod]:
        """The methods asked for, those whose packages are missing among them."""
        return chosen(self.methods, example)

    @property
    def command(self) -> str:
        """The command line that repeats the study."""
        parts = ["python", "-m", "gallery", self.name, *["--quick"] * self.quick]
        parts += [part for name in self.methods for part in ("--method", name)]
        parts += [part for name in self.budgets for part in ("--budget", name)]
        parts += ["--seeds", str(self.seeds), "--trials", str(self.trials)]
        parts += ["--tuning-seeds", str(self.tuning_seeds), "--device", self.device]
        parts += ["--no-finish"] * (not self.finish)
        # The knobs are those in the file that is written with the results.
        parts += ["--knobs", "config.json"] * (self.knobs is not None)
        return shlex.join(parts)

    def tasks(self, blocks: Blocks) -> list[Task]:
        """The tasks of the stages whose blocks are finished, and of the next one."""
        return list(_Stages(self, blocks).tasks.values())

    def outcome(self, result: SweepResult) -> "Findings":
        """All trainings whose blocks are finished."""
        findings = _Stages(self, result.blocks).findings
        findings.interrupted = result.interrupted
        findings.elapsed = result.seconds
        return findings


@dataclass(frozen=True)
class Run:
    """A training: what was asked for, and what came of it."""

    budget: str  # "tuning" or one of BUDGETS
    method: str
    seed: int
    knobs: Knobs
    status: str
    lower: float
    upper: float
    excess: float
    steps: int
    evaluations: float
    seconds: float
    metrics: Mapping[str, float]
    promise: float  # the excess as the method measures it by a reference of its own; NaN where it has none
    warned: tuple[str, ...]
    curve: Columns
    finished: Finished | None = None

    @property
    def inside(self) -> bool:
        """Whether it ended within the tolerance."""
        return self.excess <= 1

    @property
    def ended(self) -> "Run":
        """The same with the losses and metrics of the finished model; itself where it was not finished."""
        end = self.finished
        if end is None:
            return self
        return replace(
            self,
            lower=end.lower,
            upper=end.upper,
            excess=end.excess,
            metrics=end.metrics,
        )


@dataclass
class Findings:
    """What came of a study.

    Attributes
    ----------
    knobs : dict
        What was chosen, by method; methods with nothing to choose are not there.
    seconds : dict
        Of a gradient evaluation, by method, measured alone.
    missing : dict
        Methods that were not run, and the modules that they lack.
    goals : dict
        What they were judged by: budget → reference and tolerance, means over seeds.
    """

    study: Study
    steps: int = 0
    runs: list[Run] = field(default_factory=list)
    knobs: dict[str, Knobs] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    goals: dict[str, Goal] = field(default_factory=dict)
    interrupted: bool = False
    elapsed: float = 0.0


def run(
    study: Study,
    progress: Callable[[str, float], Any] = lambda name, share: None,
    *,
    engine: Engine = None,
    store: Store | None = None,
) -> Findings:
    """Time, tune and judge. Ctrl-C gives what is finished; with a `store` the next call goes on from there."""
    return study.outcome(
        sweep(study.tasks, engine=engine, store=store, progress=progress)
    )


def affordable(usual: float, seconds: float, each: float) -> float | None:
    """The gradient evaluations that fit into a time; None, the `usual` budget, where that is the same within what a
    timing can tell: the training may be there already. None, too, where a method was over before one could be timed: an
    example's limit that reads its model from the disk, say.

    >>> affordable(8, 2.0, 0.5), affordable(8, 2.0, 0.25), affordable(8, 2.01, 0.25), affordable(8, 2.0, math.nan)
    (4.0, None, None, None)
    """
    return (
        None
        if math.isnan(each) or abs(seconds / each - usual) <= _SAME * usual
        else seconds / each
    )


class _Unfinished(Exception):
    """A stage has blocks that are not finished; its results so far are in the findings."""


class _Stages:
    """The stages of a study, each made of the blocks of those before: timing, lower-only training, tuning, judging."""

    def __init__(self, study: Study, blocks: Blocks) -> None:
        self.study, self.blocks = study, blocks
        self.tasks: dict[str, Task] = {}
        self.example, self.findings = study.example, Findings(study)
        wanted = study.methods_of(self.example)
        lacking = {
            name: METHODS[name].missing()
            for name in wanted
            if name in METHODS and METHODS[name].missing()
        }
        self.findings.missing = lacking
        self.methods = {
            name: method for name, method in wanted.items() if name not in lacking
        }
        self.tried = {
            name: trials(method, study.trials) for name, method in self.methods.items()
        }
        self.tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + study.tuning_seeds)
        if study.knobs is not None:
            self.findings.knobs = {
                name: study.knobs[name] for name, tried in self.tried.items() if tried
            }
            self.tried, self.tuning = {}, range(0)
        with suppress(_Unfinished):
            self.all()

    def all(self) -> None:
        study, findings, tuning = self.study, self.findings, self.tuning
        judging = range(study.seeds)
        budgets = {budget: dict[str, float | None]() for budget in study.budgets}
        budgets["evaluations"] = dict.fromkeys(self.methods)
        facts = self.done([self.timing()])["timing"].facts
        findings.steps, findings.seconds = facts["steps"], facts["seconds"]
        if "seconds" in study.budgets:
            whole_time = 2 * findings.steps * findings.seconds[_CLOCK]
            usual = 2.0 * findings.steps
            budgets["seconds"] = {
                name: affordable(usual, whole_time, findings.seconds[name])
                for name in self.methods
            }
        alone = {("tuning", seed): self.task("lower-only", seed, {}) for seed in tuning}
        for budget in study.budgets:
            evaluations = budgets[budget]["lower-only"]
            alone |= {
                (budget, seed): self.task("lower-only", seed, {}, evaluations)
                for seed in judging
            }
        done = self.done(alone.values())
        for budget in dict.fromkeys(of for of, _ in alone):
            blocks = {
                seed: done[task.name]
                for (of, seed), task in alone.items()
                if of == budget
            }
            of_start = self.example.reference == "start"
            lowers = [
                block.facts["reference" if of_start else "lower"]
                for block in blocks.values()
            ]
            known = [
                lower for lower in lowers if math.isfinite(lower)
            ]  # a seed may have diverged
            findings.goals[budget] = Goal.of(
                fmean(known) if known else math.nan, self.example.tolerance
            )
            for seed, block in blocks.items():
                self.keep(budget, "lower-only", seed, {}, block)
        if self.tried:
            self.tune(tuning)
        for budget in study.budgets:
            self.judge(budget, judging, budgets[budget])

    def tune(self, seeds: Iterable[int]) -> None:
        goal = self.findings.goals["tuning"]
        tasks = {
            (name, k, seed): self.task(name, seed, knobs, goal=goal)
            for name, tried in self.tried.items()
            for k, knobs in enumerate(tried)
            for seed in seeds
        }
        done = self.done(tasks.values(), stop=False)
        for (name, k, seed), task in tasks.items():
            if task.name in done:
                self.keep("tuning", name, seed, self.tried[name][k], done[task.name])
        if len(done) < len(tasks):
            raise _Unfinished
        runs = [run for run in self.findings.runs if run.budget == "tuning"]
        for name, tried in self.tried.items():
            of = [
                [run for run in runs if run.method == name and run.knobs == knobs]
                for knobs in tried
            ]
            outcomes = [
                Trial(knobs, [run.excess for run in some], [run.upper for run in some])
                for knobs, some in zip(tried, of, strict=True)
            ]
            if outcomes:
                self.findings.knobs[name] = choose(outcomes)

    def judge(
        self, budget: str, seeds: Iterable[int], evaluations: Mapping[str, float | None]
    ) -> None:
        goal = self.findings.goals[budget]
        more: dict[str, Any] = {"finished": True} if self.study.finish else {}
        if self.study.finish and self.example.reference == "twin":
            more["alone"] = evaluations["lower-only"]
        tasks = {
            (name, seed): self.task(
                name, seed, self.knobs(name), evaluations[name], goal, more
            )
            for seed in seeds
            for name in self.methods
            if name != "lower-only"
        }
        # A method may train equally long at both budgets, and be judged by another reference.
        tasks = {
            key: replace(task, name=f"{task.name}, equal {budget}")
            for key, task in tasks.items()
        }
        done = self.done(tasks.values(), stop=False)
        for (name, seed), task in tasks.items():
            if task.name in done:
                self.keep(budget, name, seed, self.knobs(name), done[task.name])
        if len(done) < len(tasks):
            raise _Unfinished

    def knobs(self, name: str) -> Knobs:
        return self.findings.knobs.get(name, {})

    def task(
        self, name: str, seed: int, knobs: Knobs, evaluations: float | None = None, goal: Goal | None = None,
        more: Mapping[str, Any] = {},
    ) -> Task:  # fmt: skip
        told = ", ".join(f"{key} {value:g}" for key, value in knobs.items())
        within = "" if evaluations is None else f", {evaluations:.0f} evaluations"
        arguments = self.shared()
        arguments |= {
            "method": name,
            "seed": seed,
            "knobs": dict(knobs),
            "evaluations": evaluations,
        }
        arguments |= {
            "reference": None
            if goal is None or self.example.reference == "start"
            else goal.reference
        }
        shown = f"{name}{', ' * bool(told)}{told}, seed {seed}{within}"
        return Task(shown, work.trained, arguments | dict(more))

    @property
    def size(self) -> str:
        return "quick" if self.study.quick else "full"

    def shared(self) -> dict[str, Any]:
        """The arguments that all tasks have."""
        return {
            "example": self.study.source,
            "code": work.code_digest(),
            "size": self.size,
            "device": self.study.device,
        }

    def timing(self) -> Task:
        names = (
            [*dict.fromkeys([*self.methods, _CLOCK])]
            if "seconds" in self.study.budgets
            else []
        )
        arguments = self.shared()
        knobs = {
            name: dict(self.tried[name][0]) if self.tried.get(name) else {"weight": 1.0}
            for name in names
        }
        knobs |= {
            name: dict(self.knobs(name)) for name in names if self.knobs(name)
        }  # given
        return Task("timing", work.timed, arguments | {"knobs": knobs})

    def done(self, tasks: Iterable[Task], stop: bool = True) -> Blocks:
        """The finished blocks of the tasks; `stop` if nothing can be made of a part of them."""
        named = {task.name: task for task in tasks}
        self.tasks |= named
        done = {name: self.blocks[name] for name in named if name in self.blocks}
        if len(done) < len(named) and (stop or not done):
            raise _Unfinished
        return done

    def keep(
        self, budget: str, name: str, seed: int, knobs: Knobs, block: Block
    ) -> None:
        facts, goal = dict(block.facts), self.findings.goals[budget]
        start = facts.pop("reference")
        if start is not None:  # a task's own
            goal = Goal.of(start, self.example.tolerance)
        excess = goal.excess(facts["lower"])
        curve = dict(block.tables["curve"])
        curve["excess"] = (curve["lower"] - goal.reference) / goal.tolerance
        facts["warned"] = tuple(facts["warned"])
        facts["finished"] = (
            None if facts["finished"] is None else Finished(**facts["finished"])
        )
        self.findings.runs.append(
            Run(budget, name, seed, knobs, excess=excess, curve=curve, **facts)
        )
