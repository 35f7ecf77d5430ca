"""Which problems and methods a comparison has: names of the library, or files of one's own, tried before the work."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from tiebreak.budget import first_cost
from tiebreak.experiments.configuration import label
from tiebreak.experiments.contenders import ALL, PLANNED, fit
from tiebreak.experiments.running import problem_of
from tiebreak.experiments.tasks import Reference, found, reference, told
from tiebreak.methods import METHODS, Method
from tiebreak.problems import FAMILIES, TESTBED, Problem, named
from tiebreak.solve import minimize

__all__ = ["Contender", "Entrant", "contenders", "entrants", "rehearse"]


@dataclass(frozen=True)
class Entrant:
    """A problem: what tables call it, where it is, and the problem itself."""

    label: str
    where: Reference
    arguments: Mapping[str, Any]
    problem: Problem = field(repr=False, compare=False)


@dataclass(frozen=True)
class Contender:
    """A method: what tables call it, and its name or where it is."""

    label: str
    method: str | Reference


def entrants(given: Sequence[str]) -> tuple[Entrant, ...]:
    """The problems of these names or places; "all" is the standard selection of the test bed."""
    found_all = [_entrant(text) for text in _listed("problems", given, TESTBED)]
    _different("problems", [each.label for each in found_all])
    return tuple(found_all)


def contenders(given: Sequence[str]) -> tuple[Contender, ...]:
    """The methods of these names or places; "all" is every stochastic method of the library, and the plans."""
    found_all = [_contender(text) for text in _listed("methods", given, ALL)]
    _different("methods", [each.label for each in found_all])
    return tuple(found_all)


def _listed(name: str, given: Any, everything: Iterable[str]) -> list[str]:
    words = given.split(",") if isinstance(given, str) else [str(word) for word in given]
    words = [part.strip() for word in words for part in word.split(",")]
    if not words or not all(words):
        raise ValueError(f"{name}={','.join(words)!r} must be 'all', or names or places between commas, at least one")
    return [each for word in words for each in (everything if word == "all" else [word])]


def _different(name: str, labels: Sequence[str]) -> None:
    twice = sorted({each for each in labels if labels.count(each) > 1})
    if twice:
        raise ValueError(
            f"{name}: {', '.join(map(repr, twice))} is there more than once; they must have different names"
        )


def _entrant(text: str) -> Entrant:
    if ":" not in text:
        try:
            made = named(text)
        except ValueError as error:
            places = "" if text.split("-")[0] in FAMILIES else ", or be 'file.py:name'"
            raise ValueError(f"problems: {error}{places}") from None
        return Entrant(made.name, reference("tiebreak.problems:named"), {"name": made.name}, made)
    there = reference(text, "problems")
    made = _kindly(f"problems={text!r}", _files(there), partial(problem_of, there, {}))
    if not isinstance(made, Problem):
        raise ValueError(
            f"problems={text!r} must be a tiebreak.problems.Problem, or a function that gives one; it is "
            f"{type(made).__name__}"
        )
    return Entrant(made.name, there, {}, made)


def _contender(text: str) -> Contender:
    if ":" not in text:
        name = text.lower().replace("-", "_")
        if name not in (*METHODS, *PLANNED):
            legal = ", ".join((*METHODS, *PLANNED))
            raise ValueError(f"methods: {text!r} is not a method; they must be among {legal}, or be 'file.py:name'")
        if name in METHODS:
            return Contender(label(name), name)
        return Contender(PLANNED[name](named("paper").constants, 10**6).name, name)
    there = reference(text, "methods")
    made: Any = found(there)
    made = getattr(made, "method", made)
    if isinstance(made, Method):
        return Contender(made.name, there)
    if not callable(made):
        raise ValueError(
            f"methods={text!r} must be a tiebreak.Method, or a function (constants, budget) that gives one; "
            f"it is {type(made).__name__}"
        )
    return Contender(text.rpartition(":")[2], there)


def rehearse(problems: Sequence[Entrant], methods: Sequence[Contender], budgets: Sequence[int]) -> None:
    """See that every method can begin on every problem, and make two steps of all that is one's own.

    What is wrong in a file mostly shows in the first steps, and is told with its place before the work begins.
    """
    for entrant, contender in product(problems, methods):
        text, files = f"{contender.label} on {entrant.label}", [*_files(entrant.where), *_files(contender.method)]
        for budget in budgets:
            method: Method = _kindly(text, files, partial(fit, contender.method, entrant.problem, budget))
            least = first_cost(method)
            if budget < least:
                raise ValueError(f"budgets={budget} must be at least {least}, the cost of the first step of {text}")
        if files:
            _kindly(text, files, partial(_two_steps, entrant.problem, method))


def _files(where: str | Reference) -> list[str]:
    """The file of a reference that has one."""
    return [] if isinstance(where, str) or where["text"] is None else [str(where["where"]).rpartition(":")[0]]


def _two_steps(problem: Problem, method: Method) -> None:
    result = minimize(problem.upper, problem.lower, problem.x0, method=method, steps=2, runs=2, seed=0)
    if result.last.stationarity_squared is None:
        raise ValueError("both oracles must tell `exact_gradient(x)`, which the residuals are made of")


def _kindly(text: str, files: Sequence[str], make: Callable[[], Any]) -> Any:
    """What somebody's own code makes, or a sentence with its place."""
    try:
        return make()
    except Exception as error:  # it is not our code: whatever it raises is its user's to mend
        where = next((words for words in (told(error, file) for file in files) if ", line " in words), None)
        raise ValueError(f"{text} cannot be run: {where or error or type(error).__name__}") from error
