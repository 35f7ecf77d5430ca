"""``tiebreak plan``."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tiebreak import theory
from tiebreak.cli.console import completing, kindly, number, say, show_sheets
from tiebreak.cli.live import bar, before_writing, loading, waiting
from tiebreak.cli.options import (
    ConstantsOption,
    Folder,
    NoiseSmoothness,
    Quiet,
    Report,
    Seed,
)
from tiebreak.cli.report import reported
from tiebreak.cli.table import smoothness
from tiebreak.experiments import Experiment
from tiebreak.experiments.entrants import entrants
from tiebreak.experiments.outcome import origin
from tiebreak.experiments.plan_charts import plan_curves
from tiebreak.experiments.planning import (
    check_runnable,
    constants_from,
    measured,
    record_of,
    run_plan,
)
from tiebreak.experiments.tables import SYMBOLS, Sheet, document, scientific
from tiebreak.problems import Problem
from tiebreak.result import Result
from tiebreak.theory.plans import CHOICES, Plan


def plan(
    budget: Annotated[
        str | None,
        typer.Option(metavar="CALLS", help="Oracle calls that may be spent."),
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(metavar="E", help="Or the accuracy wanted of both residuals."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sdbgd, penalty, either with storm_ or spider_, or lazy_penalty. "
            r"\[default: sdbgd; penalty for practice]",
            autocompletion=completing(*dict.fromkeys(name for name, _, _ in CHOICES)),
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="bound|practice",
            help="What is proved, or expected.",
            autocompletion=completing("bound", "practice"),
        ),
    ] = "bound",
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="horizon|anytime",
            help="Constant parameters, or laws.",
            autocompletion=completing("horizon", "anytime"),
        ),
    ] = None,
    constants: ConstantsOption = None,
    noise_smoothness: NoiseSmoothness = None,
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For this problem: one of the test bed, or FILE.py:NAME.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="With it: estimate its constants from samples, in pilot runs.",
        ),
    ] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Run it on the problem, too; the paper's, if none is named."
        ),
    ] = False,
    runs: Annotated[str, typer.Option(metavar="N", help="Runs for --run.")] = "100",
    seed: Seed = "0",
    output: Folder = Path("results/plan"),
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Choose all constants of a schedule, for a budget or for an accuracy."""
    with reported(report, output), kindly():
        experiment = Experiment(runs=number(runs), seed=number(seed))
        if (budget is None) == (epsilon is None):  # before anything that takes long
            clash = f"--budget {budget} and --epsilon {epsilon} are both there"
            which = "neither is there" if budget is None else clash
            raise ValueError(
                f"a plan is for --budget CALLS or for --epsilon E: give one of them; {which}"
            )
        place, values = _problem(problem, estimate, constants, experiment.seed)
        options = {
            "budget": budget and number(budget),
            "epsilon": epsilon and number(epsilon),
            "method": method,
            "objective": objective,
            "kind": kind,
            "noise_smoothness": smoothness(noise_smoothness),
        }
        chosen = _planned(values, options)
        if run:
            check_runnable(chosen, place)
        say(
            f"Planned: {chosen.method.name}, {chosen.steps:,} steps."
        )  # before what is slow to load
        with loading("matplotlib"):
            from tiebreak.experiments.folder import check_folder
            from tiebreak.experiments.saving import save_plan

        check_folder(output)
        if (output / "plan.json").exists():
            say(f"The plan in {str(output)!r} will be replaced.")
        sheets = [Sheet("The plan", ("", ""), chosen.rows())]
        record = record_of(chosen)
        curves = None
        with before_writing(), bar() as hear:
            if run:
                result = run_plan(
                    chosen,
                    experiment.runs,
                    experiment.seed,
                    partial(hear, "The plan"),
                    place,
                )
                curves = measured(result)
                record["measured"], sheet = _ends(result, experiment)
                sheets.append(sheet)
        options |= {"run": run, "runs": experiment.runs, "seed": experiment.seed}
        options |= {"constants": constants, "problem": problem, "estimate": estimate}
        record |= {"command": _command(options), **origin((record["method"],))}
        with waiting("Writing the files"):
            summary = document("Plan", [f"    {record['command']}"], sheets, ())
            save_plan(output, record, summary, plan_curves(chosen), curves)
        show_sheets(sheets, (), prose=("",))
        say(f"Written to {output}: plan.json, its tables and figures.")


def _ends(result: Result, experiment: Experiment) -> tuple[dict[str, Any], Sheet]:
    """The residuals at the last iterate, for the record and as a table."""
    ends = {name: float(getattr(result.last, name).mean()) for name in SYMBOLS}
    title = f"Measured at the last iterate, {experiment.runs} runs"
    sheet = Sheet(
        title, tuple(SYMBOLS.values()), [[scientific(value) for value in ends.values()]]
    )
    return ends | {"runs": experiment.runs, "seed": experiment.seed}, sheet


def _problem(
    name: str | None, estimate: bool, constants: str | None, seed: int
) -> tuple[Problem | None, theory.Constants]:
    """The problem, where one is named, and the constants to plan with: as given, its own, or estimated."""
    if name is None:
        if estimate:
            raise ValueError(
                "--estimate needs --problem: constants are estimated from a problem's samples"
            )
        return None, constants_from(constants or "paper")
    (entrant,) = entrants([name])
    chosen = entrant.problem
    if constants is not None and estimate:
        raise ValueError(f"--constants {constants} and --estimate: give one of them")
    if constants is not None:
        return chosen, constants_from(constants)
    if estimate:
        with waiting("Estimating the constants"):
            estimates = theory.estimate_constants(chosen, seed=seed)
        say(str(estimates))
        return chosen, estimates
    if chosen.constants is None:
        raise ValueError(
            f"--problem {name} has no constants, and a plan needs them: say --estimate, or --constants"
        )
    return chosen, chosen.constants


def _command(given: dict[str, Any]) -> str:
    """The command line that repeats it."""
    words = ["tiebreak", "plan"]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            parts = value if isinstance(value, tuple) else (value,)
            words += [
                option,
                ",".join(
                    f"{part:.17g}" if isinstance(part, float) else str(part)
                    for part in parts
                ),
            ]
    return shlex.join(words)


def _planned(constants: theory.Constants, asked: dict[str, Any]) -> Plan:
    """The plan; on the way to an accuracy, which may take a while, what has been looked at is shown."""
    with before_writing(), waiting("Planning") as line:

        def show(found: Plan) -> None:
            reached = found.prediction or found.bounds
            worst = max(reached.lower_gradient_squared, reached.direction_squared)
            line.rename(
                f"Planning: {scientific(found.budget)} calls for an accuracy of {scientific(worst)}"
            )

        return theory.plan(constants, progress=show, **asked)
