"""Which problems and methods a comparison has: names of the library, or files of one's own, tried before the work."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from tiebreak.checks import nearest
from tiebreak.experiments.configuration import label
from tiebreak.experiments.contenders import ALL, OF_CONSTANTS, PLANNED, fit
from tiebreak.experiments.own import in_files, kindly
from tiebreak.experiments.running import problem_of
from tiebreak.experiments.tasks import Reference, found, held, reference
from tiebreak.experiments.variants import Changes, split_changes, varied
from tiebreak.methods import NAMED, Method
from tiebreak.oracles.check_oracle import disagreements
from tiebreak.problems import Problem, named
from tiebreak.problems.testbed import FAMILIES, TESTBED
from tiebreak.solver.budget import first_cost
from tiebreak.solver.minimize import minimize
from tiebreak.solver.result_warnings import unsaid

#: What "name+constant=value" may set of a problem of the test bed.
_CHANGEABLE = ("sigma", "sigma_f", "sigma_g", "dimension", "noise")


@dataclass(frozen=True)
class Entrant:
    """A problem: what tables call it, where it is, the problem itself, and what in one's own does not fit together."""

    label: str
    where: Reference
    arguments: Mapping[str, Any]
    problem: Problem = field(repr=False, compare=False)
    doubts: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.label)  # they are different in a comparison


@dataclass(frozen=True)
class Contender:
    """A method: what tables call it, its name or where it is, and the constants that are to be others."""

    label: str
    method: str | Reference
    changes: Changes = field(default_factory=dict)
    as_is: bool = False

    def __hash__(self) -> int:
        return hash(self.label)  # likewise

    def fitted(self, problem: Problem, budget: int, scale: float = 1.0) -> Method:
        """The method for a problem and a budget, its step size times a scale."""
        return fit(self.method, problem, budget, scale, self.changes, self.as_is)


def entrants(given: Sequence[Any]) -> tuple[Entrant, ...]:
    """The problems of these names or places, or these; "all" is the standard selection of the test bed."""
    found_all = [_entrant(text) for text in _listed("problems", given, TESTBED)]
    _different("problems", [each.label for each in found_all])
    return tuple(found_all)


def contenders(
    given: Sequence[Any], problems: Sequence[Entrant] = (), as_is: bool = False
) -> tuple[Contender, ...]:
    """The methods of these names or places, or these; "all" is every stochastic one of the library, and the plans.

    Where the constants of one of the problems are not known, "all" is without the plans (:func:`left_out`).
    """
    everything = [name for name in ALL if name not in left_out("all", problems)]
    found_all = [
        replace(_contender(text), as_is=as_is)
        for text in _listed("methods", given, everything)
    ]
    _different("methods", [each.label for each in found_all])
    return tuple(found_all)


def left_out(given: Sequence[Any], problems: Sequence[Entrant]) -> tuple[str, ...]:
    """What "all" is without, because plans are made of constants, and every method is run on every problem."""
    asked = "all" in [
        word for word in _listed("methods", given, ["all"]) if isinstance(word, str)
    ]
    return (
        OF_CONSTANTS
        if asked and any(each.problem.constants is None for each in problems)
        else ()
    )


def _listed(name: str, given: Any, everything: Iterable[str]) -> list[Any]:
    """Names and places, one by one; objects as they are."""
    each = given if isinstance(given, (list, tuple)) else [given]
    words = [
        part
        for word in each
        for part in (
            map(str.strip, word.split(",")) if isinstance(word, str) else [word]
        )
    ]
    if not words or not all(word for word in words if isinstance(word, str)):
        text = ",".join(map(str, words))
        raise ValueError(
            f"{name}={text!r} must be 'all', or names or places between commas, at least one"
        )
    return [
        one
        for word in words
        for one in (everything if isinstance(word, str) and word == "all" else [word])
    ]


def _different(name: str, labels: Sequence[str]) -> None:
    twice = sorted({each for each in labels if labels.count(each) > 1})
    if twice:
        raise ValueError(
            f"{name}: {', '.join(map(repr, twice))} is there more than once; they must have different names"
        )


def _entrant(given: Any) -> Entrant:
    if isinstance(given, Problem):
        return Entrant(given.name, held(given, given.name), {}, given, _doubts(given))
    if not isinstance(given, str):
        raise ValueError(
            f"problems={given!r} must be a Problem, a name or a place 'file.py:name'"
        )
    text, changes = split_changes("problems", given)
    if ":" not in text:
        strange = [name for name in changes if name not in _CHANGEABLE]
        if strange:
            raise ValueError(
                f"problems={given!r}: {strange[0]} must be one of {', '.join(_CHANGEABLE)}"
                f"{nearest(strange[0], _CHANGEABLE)}"
            )
        try:
            made = named(text, **changes)
        except ValueError as error:
            places = (
                ""
                if text.split("-")[0] in FAMILIES or "did you" in str(error)
                else ", or be 'file.py:name'"
            )
            raise ValueError(f"problems: {error}{places}") from None
        return Entrant(
            _label(made.name, changes),
            reference("tiebreak.problems:named"),
            {"name": text} | changes,
            made,
        )
    there = reference(text, "problems")
    made = kindly(f"problems={text!r}", [there], partial(problem_of, there, changes))
    if not isinstance(made, Problem):
        raise ValueError(
            f"problems={text!r} must be a tiebreak.problems.Problem, or a function that gives one; it is "
            f"{type(made).__name__}"
        )
    return Entrant(_label(made.name, changes), there, changes, made, _doubts(made))


def _doubts(problem: Problem) -> tuple[str, ...]:
    """Where gradients, values and samples of somebody's own contradict each other: it would run, and mean nothing."""
    try:
        levels = {"upper": problem.upper, "lower": problem.lower}
        return tuple(
            f"{problem.name}, {name}: {each}"
            for name, oracle in levels.items()
            for each in disagreements(oracle, problem.x0)
        )
    except Exception:  # what cannot be run at all is told by rehearse(), with its line
        return ()


def _label(name: str, changes: Changes) -> str:
    shown = (
        f"{n}={value}"
        for n, value in changes.items()
        if n not in ("dimension", "noise")
    )  # the name has these
    return " ".join([name, *shown])


def _contender(given: Any) -> Contender:
    if not isinstance(given, str):
        made = getattr(given, "method", given)  # a plan's
        name = (
            made.name
            if isinstance(made, Method)
            else getattr(made, "__name__", type(made).__name__)
        )
        wrong = _no_maker(made, name)
        if wrong is not None:
            kinds = (
                "must be a Method, a function (constants, budget), a name or a place"
            )
            raise ValueError(f"methods={given!r} {kinds}; {wrong}")
        return Contender(name, held(made, name))
    text, changes = split_changes("methods", given)
    if ":" not in text:
        name = text.lower().replace("-", "_")
        if name not in (*NAMED, *PLANNED):
            legal = (*NAMED, *PLANNED)
            raise ValueError(
                f"methods: {text!r} is not a method; they must be among {', '.join(legal)}, or be 'file.py:name'"
                f"{nearest(name, legal)}"
            )
        if name in NAMED:
            varied(NAMED[name], changes)  # complains, if it has to
        shown = label(name) if name in NAMED else PLANNED[name].label
        return Contender(_label(shown, changes), name, changes)
    there = reference(text, "methods")
    made = found(there)
    made = getattr(made, "method", made)
    name = made.name if isinstance(made, Method) else text.rpartition(":")[2]
    wrong = _no_maker(made, name)
    if wrong is not None:
        raise ValueError(
            f"methods={text!r} must be a tiebreak.Method, or a function (constants, budget) that gives one; {wrong}"
        )
    return Contender(_label(name, changes), there, changes)


def _no_maker(made: Any, name: str) -> str | None:
    """Why this neither is a method nor can make one of constants and a budget; None if it can."""
    if isinstance(made, Method):
        return None
    if not callable(made):
        return f"it is {type(made).__name__}"
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):  # nobody knows
        return None
    names = list(signature.parameters)
    if names[:2] == ["fg", "gg"]:
        return f"it is a rule. Write mine = tiebreak.Method('mine', {name}, tiebreak.methods.sdbgd.schedule) beside it"
    try:
        signature.bind(None, 1)
    except TypeError:
        kind = "class" if isinstance(made, type) else "function"
        return f"it is a {kind} ({', '.join(names)})"
    return None


def rehearse(
    problems: Sequence[Entrant],
    methods: Sequence[Contender],
    budgets: Sequence[int],
    hear: Callable[[str], Any] = lambda what: None,
) -> None:
    """See that every method can begin on every problem, and make two steps of all that is one's own.

    What is wrong in a file mostly shows in the first steps, and is told with its place before the work begins. Plans
    are made here, which takes a while where there are many problems: `hear` is told what is tried.
    """
    for i, (entrant, contender) in enumerate(product(problems, methods), 1):
        text = f"{contender.label} on {entrant.label}"
        where = (entrant.where, contender.method)
        hear(f"Preparing {i} of {len(problems) * len(methods)}: {text}")
        for budget in budgets:
            method = kindly(
                text, where, partial(contender.fitted, entrant.problem, budget)
            )
            least = first_cost(method)
            if budget < least:
                raise ValueError(
                    f"budgets={budget} must be at least {least}, the cost of the first step of {text}"
                )
        if in_files(where):
            kindly(text, where, partial(_two_steps, entrant.problem, method))


def _two_steps(problem: Problem, method: Method) -> None:
    with unsaid():
        result = minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=method,
            steps=2,
            runs=2,
            seed=0,
        )
    if result.last.stationarity_squared is None:
        raise ValueError(
            "both oracles must have `exact_gradient(x)`, which the residuals are made of"
        )
