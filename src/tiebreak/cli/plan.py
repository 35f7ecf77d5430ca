"""``tiebreak plan``."""

from pathlib import Path
from typing import Annotated, Any

from tiebreak import theory
from tiebreak.checks import whole
from tiebreak.cli.console import completing, number, say, waiting
from tiebreak.cli.options import (
    ConstantsOption,
    Folder,
    NoiseSmoothness,
    Overwrite,
    Quiet,
    Report,
    Seed,
    Text,
    flag,
    option,
)
from tiebreak.cli.study import run_study
from tiebreak.studies.comparison.problems import ComparedProblem, compared_problems
from tiebreak.studies.constants_text import constants_from, smoothness_from
from tiebreak.studies.planning import Planning
from tiebreak.studies.tables import scientific
from tiebreak.theory.plans import CHOICES, Plan


def plan(
    budget: Annotated[Text, option("CALLS", "Oracle calls that may be spent.")] = None,
    epsilon: Annotated[
        Text,
        option("E", "Or the accuracy wanted of both residuals."),
    ] = None,
    method: Annotated[
        Text,
        option(
            "NAME",
            "sdbgd, penalty, either with storm_ or spider_, or lazy_penalty. "
            r"\[default: sdbgd; penalty for practice]",
            autocompletion=completing(*dict.fromkeys(name for name, _, _ in CHOICES)),
        ),
    ] = None,
    objective: Annotated[
        str,
        option(
            "bound|practice",
            "What is proved, or expected.",
            autocompletion=completing("bound", "practice"),
        ),
    ] = "bound",
    kind: Annotated[
        Text,
        option(
            "horizon|anytime",
            "Constant parameters, or laws.",
            autocompletion=completing("horizon", "anytime"),
        ),
    ] = None,
    constants: ConstantsOption = None,
    noise_smoothness: NoiseSmoothness = None,
    problem: Annotated[
        Text,
        option(
            "NAME",
            "For this problem: one of the test bed, or FILE.py:NAME, which is run.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        flag(
            "--estimate",
            "With it: estimate its constants from samples, in pilot runs.",
        ),
    ] = False,
    run: Annotated[
        bool,
        flag("--run", "Run it on the problem, too; the paper's, if none is named."),
    ] = False,
    runs: Annotated[str, option("N", "Runs for --run.")] = "100",
    seed: Seed = "0",
    output: Folder = Path("results/plan"),
    overwrite: Overwrite = False,
    report: Report = False,
    quiet: Quiet = False,
) -> None:
    """Choose all constants of a schedule, for a budget or for an accuracy."""
    count = whole("runs", number(runs))
    first = whole("seed", number(seed), least=0)
    if (budget is None) == (epsilon is None):  # before slow work
        which = "neither is there"
        if budget is not None:
            which = f"--budget {budget} and --epsilon {epsilon} are both there"
        raise ValueError(
            f"a plan is for --budget CALLS or for --epsilon E: give one of them; {which}"
        )
    compared, values = _problem(problem, estimate, constants, first)
    options: dict[str, Any] = {
        "budget": budget and number(budget),
        "epsilon": epsilon and number(epsilon),
        "method": method,
        "objective": objective,
        "kind": kind,
        "noise_smoothness": smoothness_from(noise_smoothness),
    }
    chosen = _planned(values, options)
    options |= {"constants": constants, "problem": problem, "estimate": estimate}
    study = Planning(chosen, options, compared, run, count, first)
    say(f"Planned: {chosen.method.name}, {chosen.steps:,} steps.")
    run_study(study, output, engine="here", overwrite=overwrite, report=report)


def _problem(
    name: str | None, estimate: bool, constants: str | None, seed: int
) -> tuple[ComparedProblem | None, theory.Constants]:
    """The problem, if one is named, and the constants to plan with: as typed, its own, or estimated."""
    if name is None:
        if estimate:
            raise ValueError(
                "--estimate needs --problem: constants are estimated from a problem's samples"
            )
        return None, constants_from(constants or "paper")
    (compared,) = compared_problems([name])
    if constants is not None:
        if estimate:
            raise ValueError(
                f"--constants {constants} and --estimate: give one of them"
            )
        return compared, constants_from(constants)
    if estimate:
        with waiting("Estimating the constants"):
            estimates = theory.estimate_constants(compared.problem, seed=seed)
        say(str(estimates))
        return compared, estimates
    if compared.problem.constants is None:
        raise ValueError(
            f"--problem {name} has no constants, and a plan needs them: say --estimate, or --constants"
        )
    return compared, compared.problem.constants


def _planned(constants: theory.Constants, options: dict[str, Any]) -> Plan:
    """The plan; a search for an accuracy, which may take a while, shows where it is."""
    with waiting("Planning") as line:

        def show(plan: Plan) -> None:
            reached = plan.prediction or plan.bounds
            worst = max(reached.lower_gradient_squared, reached.direction_squared)
            line.rename(
                f"Planning: {scientific(plan.budget)} calls for an accuracy of {scientific(worst)}"
            )

        return theory.plan(constants, progress=show, **options)
