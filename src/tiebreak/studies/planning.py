"""A plan as a study: its constants, the bounds along the way and, if it is run, the residuals that it reaches."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tiebreak import methods
from tiebreak.problems import paper
from tiebreak.provenance import stamp
from tiebreak.schedules import LEGAL
from tiebreak.solver.budget import Many, calls, steps_within
from tiebreak.studies.charts import Axis, Chart, Series, spread
from tiebreak.studies.command_line import command_line
from tiebreak.studies.comparison.problems import ComparedProblem
from tiebreak.studies.findings import Findings, Verdict
from tiebreak.studies.method_names import describe
from tiebreak.studies.runs import solving
from tiebreak.studies.sweeps import Blocks, SweepResult
from tiebreak.studies.tables import (
    SYMBOLS,
    Columns,
    Facts,
    Table,
    by_step,
    joined,
    scientific,
)
from tiebreak.studies.task import Task
from tiebreak.studies.user_files import checksums, copies, source_at
from tiebreak.studies.verification.evidence import RESIDUALS, bounds_of
from tiebreak.theory.plans import Plan

_LONGEST = 10**6  # steps of a plan with --run
_ALONG = (Axis("calls", "calls", "log"), Axis("step", "steps", "log"))
_OBJECTIVES = {"bound": "best proved bound", "practice": "best expected residuals"}


@dataclass(frozen=True)
class Planning:
    """A plan, the problem that it is run on, and the options of the command that made it.

    Parameters
    ----------
    plan : Plan
    options : dict
        Of ``tiebreak plan``, by name.
    problem : ComparedProblem, optional
        The paper's, if none is given.
    run : bool
        Whether the plan is run.
    """

    plan: Plan
    options: Facts = field(default_factory=dict)
    problem: ComparedProblem | None = None
    run: bool = False
    runs: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.run:
            return
        of_paper = paper().constants
        if self.problem is None and self.plan.constants != of_paper:
            raise ValueError(
                f"constants={self.plan.constants} must be those of the paper's problem to be run there: {of_paper}"
            )
        if self.plan.steps > _LONGEST:
            raise ValueError(
                f"steps={self.plan.steps:,} of the plan must be at most {_LONGEST:,} to be run"
            )

    @property
    def command(self) -> str:
        """The command line that repeats the plan."""
        options = {"run": self.run, "runs": self.runs, "seed": self.seed}
        return command_line("plan", {**self.options, **options})

    def tasks(self, blocks: Blocks) -> list[Task]:
        """The runs of the plan."""
        if not self.run:
            return []
        source = source_at("tiebreak.problems:paper")
        arguments: Facts = {}
        if self.problem is not None:
            source = self.problem.source
            arguments = self.problem.arguments
        return solving(
            "The plan",
            source,
            self.plan.method,
            budget=self.plan.budget,
            steps=self.plan.steps,
            runs=self.runs,
            seed=self.seed,
            problem_arguments=arguments,
        )

    def collect(self, result: SweepResult) -> Findings:
        """The findings; KeyboardInterrupt if the sweep was interrupted."""
        if result.interrupted:
            raise KeyboardInterrupt
        plan = self.plan
        data = {"curves": plan_curves(plan)}
        record = plan_record(plan)
        tables = [Table("The plan", ("", ""), plan.rows(), words=("",))]
        ends: dict[str, float] = {}
        if self.run:
            blocks = result.blocks.values()
            data["measured"] = _measured(joined(b.tables["curves"] for b in blocks))
            last = joined(block.tables["last"] for block in blocks)
            ends = {name: float(last[name].mean()) for name in SYMBOLS}
            record["measured"] = ends | {"runs": self.runs, "seed": self.seed}
            title = f"Measured at the last iterate, {self.runs} runs"
            cells = [scientific(value) for value in ends.values()]
            tables.append(Table(title, tuple(SYMBOLS.values()), [cells]))
        sources = [] if self.problem is None else [self.problem.source]
        record |= {
            "command": self.command,
            "sources": checksums(sources),
            **stamp(),
            "methods": {record["method"]: describe(record["method"])},
        }
        return Findings(
            "plan",
            "A plan",
            self._verdict(ends),
            tables,
            [],
            _charts(data),
            record,
            data,
            copies(sources),
        )

    def _verdict(self, ends: Mapping[str, float]) -> Verdict:
        plan = self.plan
        question = f"Which constants for {plan.budget:,} gradient calls, for the {_OBJECTIVES[plan.objective]}?"
        answers = [
            f"Proved at x_N: E{SYMBOLS[name]} ≤ {scientific(getattr(plan.bounds, name))}."
            for name in RESIDUALS
        ]
        if plan.prediction is not None:
            answers += [
                f"Expected, by a model: {SYMBOLS[name]} about {scientific(getattr(plan.prediction, name))}."
                for name in RESIDUALS
            ]
        if not ends:
            word = f"{plan.steps:,} steps planned; not run"
            return Verdict(word, None, question, answers)
        texts = [f"{SYMBOLS[name]} {scientific(end)}" for name, end in ends.items()]
        answers += [
            f"Measured at the last iterate, {self.runs} runs: {', '.join(texts)}.",
            "The bounds speak of x_N, drawn among all iterates; the last one is not promised anything, and often better.",
        ]
        inside = all(ends[name] <= getattr(plan.bounds, name) for name in RESIDUALS)
        word = "Inside what is proved" if inside else "Outside what is proved"
        return Verdict(f"{word}, {plan.steps:,} steps", inside, question, answers)


def plan_record(plan: Plan) -> dict[str, Any]:
    """All of a plan as plain data.

    >>> from tiebreak.studies.constants_text import constants_from
    >>> from tiebreak.theory import plan
    >>> chosen = plan(constants_from("paper"), budget=10**6)
    >>> plan_record(chosen)["steps"] == chosen.steps
    True
    """
    names = {row.name: name for name, row in methods.METHODS.items()}
    laws = {name: getattr(plan.schedule, name) for name in LEGAL}
    prediction = None
    if plan.prediction is not None:
        prediction = {name: getattr(plan.prediction, name) for name in RESIDUALS}
    return {
        "method": names[plan.method.name],
        "objective": plan.objective,
        "horizon": "horizon" if plan.schedule.constant() else "anytime",
        "budget": plan.budget,
        "steps": plan.steps,
        "upper_calls": plan.upper_calls,
        "lower_calls": plan.lower_calls,
        "schedule": {n: asdict(law) for n, law in laws.items() if law is not None},
        "bounds": {name: getattr(plan.bounds, name) for name in RESIDUALS},
        "prediction": prediction,
        "constants": asdict(plan.constants),
        "noise_smoothness": plan.noise_smoothness,
    }


def plan_curves(plan: Plan) -> Columns:
    """Batches, calls and bounds on a logarithmic grid of steps."""
    constant = plan.schedule.constant()
    # A bound computed step by step takes as long for every K.
    count = 24 if plan.noise_smoothness is not None and not constant else 200
    powers = 10 ** np.linspace(0, math.log10(plan.steps), count)
    steps = sorted({min(plan.steps, max(1, int(p))) for p in powers} | {plan.steps})
    K: Any = np.array(steps, dtype=object if plan.steps > 2**62 else np.int64)
    at = [plan.schedule.at(k - 1) for k in steps]
    if constant:
        budget = 2 * plan.budget  # enough for every step
        counts = [steps_within(plan.method, budget, horizon=k)[1:] for k in steps]
        charged = np.array([float(sum(each)) for each in counts])
    else:
        of_steps = sum(calls(plan.method, Many(plan.schedule, plan.steps)))
        charged = np.cumsum(of_steps)[K - 1]
    return {
        "K": K.astype(float),
        "upper_batch": np.array([float(p.upper_batch) for p in at]),
        "lower_batch": np.array([float(p.lower_batch) for p in at]),
        "calls": charged,
        **bounds_of(plan.method, plan.constants, K, plan.noise_smoothness),
    }


def _measured(curves: Columns) -> Columns:
    """Steps, calls, and each residual's mean and the middle 80 % of the runs."""
    steps, charged, *arrays = by_step(curves, "calls", *SYMBOLS)
    columns: Columns = {"step": steps, "calls": np.nanmax(charged, axis=1)}
    for name, values in zip(SYMBOLS, arrays, strict=True):
        columns |= spread(name, values)
    return columns


def _charts(data: Mapping[str, Columns]) -> dict[str, Chart]:
    curves = data["curves"] | {"step": data["curves"]["K"]}
    series = [Series("proved at x_N", curves, 0, dash="dash")]
    axes = [Axis(name, SYMBOLS[name], "log") for name in RESIDUALS]
    title = "What is proved"
    about = "The bounds speak of x_N, drawn among all iterates."
    if "measured" in data:
        series.append(Series("measured", data["measured"], 1, dash="solid"))
        label = "min over λ of ‖∇f+λ∇g‖², measured"
        axes.append(Axis("stationarity_squared", label, "log"))
        title += ", and what was measured"
        about += " Measured: means over the runs at the last iterate, bands hold the middle 80 % of them."
    return {
        "plan": Chart(title, about, _ALONG, axes, series, panels=3),
        "batches": Chart(
            "What it spends",
            "Batches of every step, and calls so far.",
            [Axis("step", "step", "log")],
            [
                Axis("lower_batch", "lower batch size", "log"),
                Axis("upper_batch", "upper batch size", "log"),
                Axis("calls", "calls so far", "log"),
            ],
            [Series("the plan", curves, 0)],
            panels=3,
        ),
    }
