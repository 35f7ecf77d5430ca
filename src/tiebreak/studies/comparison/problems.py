"""The problems of a comparison: names of the test bed, users' files and objects, tried before the work begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from tiebreak.checks import nearest
from tiebreak.methods import Method
from tiebreak.oracles.check_oracle import disagreements
from tiebreak.problems import Problem, named
from tiebreak.problems.testbed import FAMILIES, TESTBED
from tiebreak.solver.budget import first_cost
from tiebreak.solver.minimize import minimize
from tiebreak.solver.result_warnings import unsaid
from tiebreak.studies.comparison.changes import split_changes, with_changes
from tiebreak.studies.comparison.methods import ComparedMethod, check_labels, listed
from tiebreak.studies.runs import problem_of
from tiebreak.studies.tables import Facts
from tiebreak.studies.user_files import (
    Source,
    explained,
    in_files,
    source_at,
    source_of_object,
)

#: The arguments of a problem of the test bed that "name+argument=value" may set.
_CHANGEABLE = ("sigma", "sigma_f", "sigma_g", "dimension", "noise")


@dataclass(frozen=True)
class ComparedProblem:
    """A problem: its name in tables, its source, and contradictions between its gradients, values and samples."""

    label: str
    source: Source
    arguments: Facts
    problem: Problem = field(repr=False, compare=False)
    contradictions: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.label)  # labels differ in a comparison


def compared_problems(value: Any) -> tuple[ComparedProblem, ...]:
    """The problems of names, places or objects; "all" is the standard selection of the test bed."""
    problems = [_compared_problem(each) for each in listed("problems", value, TESTBED)]
    check_labels("problems", [each.label for each in problems])
    return tuple(problems)


def _compared_problem(value: Any) -> ComparedProblem:
    if isinstance(value, Problem):
        source = source_of_object(value, value.name)
        return ComparedProblem(value.name, source, {}, value, _contradictions(value))
    if not isinstance(value, str):
        raise ValueError(
            f"problems={value!r} must be a Problem, a name or a place 'file.py:name'"
        )
    text, changes = split_changes("problems", value)
    if ":" not in text:
        problem = _of_testbed(value, text, changes)
        source = source_at("tiebreak.problems:named")
        arguments = {"name": text} | changes
        title = with_changes(problem.name, changes)
        return ComparedProblem(title, source, arguments, problem)
    source = source_at(text, "problems")
    make = partial(problem_of, source, changes)
    problem = explained(f"problems={text!r}", [source], make)
    if not isinstance(problem, Problem):
        raise ValueError(
            f"problems={text!r} must be a tiebreak.problems.Problem, or a function that gives one; it is "
            f"{type(problem).__name__}"
        )
    title = with_changes(problem.name, changes)
    return ComparedProblem(title, source, changes, problem, _contradictions(problem))


def _of_testbed(value: str, name: str, changes: Facts) -> Problem:
    for change in changes:
        if change not in _CHANGEABLE:
            raise ValueError(
                f"problems={value!r}: {change} must be one of {', '.join(_CHANGEABLE)}{nearest(change, _CHANGEABLE)}"
            )
    try:
        return named(name, **changes)
    except ValueError as error:
        is_family = name.split("-")[0] in FAMILIES or "did you" in str(error)
        places = "" if is_family else ", or be 'file.py:name'"
        raise ValueError(f"problems: {error}{places}") from None


def _contradictions(problem: Problem) -> tuple[str, ...]:
    """Contradictions between gradients, values and samples: such a problem runs, and its results mean nothing."""
    try:
        return tuple(
            f"{problem.name}, {name}: {each}"
            for name in ("upper", "lower")
            for each in disagreements(getattr(problem, name), problem.x0)
        )
    except Exception:  # rehearse() reports faults with their line
        return ()


def rehearse(
    problems: Sequence[ComparedProblem],
    methods: Sequence[ComparedMethod],
    budgets: Sequence[int],
    tell: Callable[[str], Any] = lambda text: None,
) -> None:
    """Check that every method can begin on every problem, and make two steps of everything in users' files.

    Most faults in a file show in the first steps, and are told with their line before the work begins. Plans are made
    here, which takes a while for many problems: `tell` is told what is tried.
    """
    count = len(problems) * len(methods)
    for i, (each, method) in enumerate(product(problems, methods), 1):
        text = f"{method.label} on {each.label}"
        sources = (each.source, method.source)
        tell(f"Preparing {i} of {count}: {text}")
        for budget in budgets:
            fit = partial(method.fitted, each.problem, budget)
            fitted = explained(text, sources, fit)
            least = first_cost(fitted)
            if budget < least:
                raise ValueError(
                    f"budgets={budget} must be at least {least}, the cost of the first step of {text}"
                )
        if in_files(sources):
            explained(text, sources, partial(_two_steps, each.problem, fitted))


def _two_steps(problem: Problem, method: Method) -> None:
    levels = problem.upper, problem.lower
    with unsaid():
        result = minimize(*levels, problem.x0, method=method, steps=2, runs=2, seed=0)
    if result.last.stationarity_squared is None:
        raise ValueError(
            "both oracles must have `exact_gradient(x)`, which the residuals are made of"
        )
