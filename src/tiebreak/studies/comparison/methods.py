"""The methods of a comparison: published ones in the problem's units, plans for its constants, and the user's own."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from tiebreak import methods, rules, theory
from tiebreak.checks import nearest
from tiebreak.methods import METHODS, NAMED, Method
from tiebreak.problems import Problem
from tiebreak.studies.comparison.changes import (
    changed,
    split_changes,
    with_changes,
)
from tiebreak.studies.comparison.units import Units
from tiebreak.studies.method_names import label
from tiebreak.studies.runs import problem_of
from tiebreak.studies.tables import Facts
from tiebreak.studies.user_files import Source, source_at, source_of_object
from tiebreak.theory.constants import Constants
from tiebreak.theory.plans import CHOICES
from tiebreak.theory.proved import reduces


@dataclass(frozen=True)
class Planned:
    """A method that is made for a problem's constants and a budget.

    Attributes
    ----------
    label : its name in tables.
    words : its description.
    make : (constants, budget), and by name what it `needs`, ↦ Method.
    needs : what the name must be followed by, as in "spider_penalty_bound+noise_smoothness=1".
    """

    label: str
    words: str
    make: Callable[..., Method]
    needs: tuple[str, ...] = ()

    def __call__(
        self, constants: Constants | None, budget: int, **options: Any
    ) -> Method:
        return self.make(constants, budget, **options).replace(name=self.label)


def _batched(constants: Constants | None, budget: int) -> Method:
    return methods.sdbgd.replace(rule=rules.dbgd, regularizer=None)


def _planned(method: str, objective: str) -> Planned:
    name = f"{method}_{objective}"
    title = f"{METHODS[method].name} {objective}"
    needs = ("noise_smoothness",) if reduces(METHODS[method]) else ()

    @cache  # called for every step size of the trials
    def make(constants: Constants | None, budget: int, **options: Any) -> Method:
        if constants is None:
            raise ValueError(
                f"{title!r} must be compared on problems with known constants: plans are made of them"
            )
        for option in needs:
            if option not in options and getattr(constants, option, None) is None:
                raise ValueError(
                    f"{name!r} needs {option}, which no constants imply: write '{name}+{option}=1'"
                )
        plan = theory.plan(
            constants, budget=budget, method=method, objective=objective, **options
        )
        return plan.method

    words = f"{METHODS[method].name} with all constants chosen by `tiebreak plan --objective {objective}`."
    words += "".join(f" Needs +{option}=ℓ." for option in needs)
    return Planned(title, words, make, needs)


_BATCHED = "dbgd_batched"
#: Methods that are made for a problem's constants and a budget: one for every kind of plan, and DBGD for samples.
PLANNED: Mapping[str, Planned] = MappingProxyType(
    {f"{m}_{objective}": _planned(m, objective) for m, objective, _ in CHOICES}
    | {
        _BATCHED: Planned(
            "DBGD batched",
            "DBGD with the batches of SDBGD: the same method but for the regularizer, which is missing.",
            _batched,
        )
    }
)
#: The methods of "all". Plain DBGD is for exact gradients: its batches of one make a million calls half a million steps.
#: Plans that need more than the constants of a problem are not among them.
ALL: tuple[str, ...] = (
    *(name for name in METHODS if name != "dbgd"),
    "auto",
    *(name for name, planned in PLANNED.items() if not planned.needs),
)
#: The methods of "all" that are made of a problem's constants.
OF_CONSTANTS = tuple(name for name in ALL if name in PLANNED and name != _BATCHED)


@dataclass(frozen=True)
class ComparedMethod:
    """A method: its name in tables, its name or source, and the constants that are changed.

    With `as_is` schedules are not translated into a problem's units.
    """

    label: str
    source: str | Source
    changes: Facts = field(default_factory=dict)
    as_is: bool = False

    def __hash__(self) -> int:
        return hash(self.label)  # labels differ in a comparison

    def fitted(self, problem: Problem, budget: int, scale: float = 1.0) -> Method:
        """The method for a problem and a budget, its step size times a scale."""
        units = Units() if self.as_is else Units.of(problem)
        if isinstance(self.source, Source):
            value: Any = self.source.load()
            value = getattr(value, "method", value)  # of a plan
            if callable(value):  # a function of the constants has seen to the units
                units = Units()
                value = value(problem.constants, budget)
            return units.translated(changed(methods.get(value), self.changes), scale)
        if self.source in NAMED:
            if self.source == "auto":  # `auto` measures the units
                units = Units()
            return units.translated(changed(NAMED[self.source], self.changes), scale)
        planned = PLANNED[self.source]
        options = {n: v for n, v in self.changes.items() if n in planned.needs}
        changes = {n: v for n, v in self.changes.items() if n not in planned.needs}
        method = changed(planned(problem.constants, budget, **options), changes)
        if self.source != _BATCHED:
            units = Units()
        return units.translated(method, scale)


@dataclass(frozen=True)
class Fit:
    """A method that is fitted to a problem, a budget and a scale by the process that runs it."""

    method: ComparedMethod
    problem: Source
    arguments: Mapping[str, Any]
    budget: int
    scale: float

    @property
    def source(self) -> str | Source:
        """The source of the method."""
        return self.method.source

    def load(self) -> Method:
        """The fitted method."""
        problem = problem_of(self.problem, self.arguments)
        return self.method.fitted(problem, self.budget, self.scale)


def scales(trials: int) -> tuple[float, ...]:
    """The step sizes that are tried, as multiples of the published one: 1, 4, 1/4, 16, 1/16, …

    >>> scales(4)
    (1.0, 4.0, 0.25, 16.0)
    """
    powers = [(-1) ** (i + 1) * ((i + 1) // 2) for i in range(trials)]
    return tuple(float(4.0**power) for power in powers)


def compared_method(value: Any, as_is: bool = False) -> ComparedMethod:
    """The method of a name, a place or an object; ValueError if there is none."""
    if not isinstance(value, str):
        method = getattr(value, "method", value)
        name = getattr(method, "__name__", type(method).__name__)
        if isinstance(method, Method):
            name = method.name
        legal = "must be a Method, a function (constants, budget), a name or a place"
        _check_maker(f"methods={value!r} {legal}", method, name)
        return ComparedMethod(name, source_of_object(method, name), as_is=as_is)
    text, changes = split_changes("methods", value)
    if ":" in text:
        source = source_at(text, "methods")
        method = source.load()
        method = getattr(method, "method", method)
        name = text.rpartition(":")[2]
        legal = "must be a tiebreak.Method, or a function (constants, budget) that gives one"
        _check_maker(f"methods={text!r} {legal}", method, name)
        if isinstance(method, Method):
            name = method.name
        return ComparedMethod(with_changes(name, changes), source, changes, as_is)
    name = text.lower().replace("-", "_")
    legal_names = (*NAMED, *PLANNED)
    if name not in legal_names:
        raise ValueError(
            f"methods: {text!r} is not a method; they must be among {', '.join(legal_names)}, or be 'file.py:name'"
            f"{nearest(name, legal_names)}"
        )
    if name in NAMED:
        changed(NAMED[name], changes)  # which checks the changes
        return ComparedMethod(with_changes(label(name), changes), name, changes, as_is)
    title = with_changes(PLANNED[name].label, changes)
    return ComparedMethod(title, name, changes, as_is)


def _check_maker(text: str, value: Any, name: str) -> None:
    """Raise ValueError unless the value is a method, or can make one of constants and a budget."""
    if isinstance(value, Method):
        return
    if not callable(value):
        raise ValueError(f"{text}; it is {type(value).__name__}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # no signature to check
        return
    names = list(signature.parameters)
    if names[:2] == ["fg", "gg"]:
        raise ValueError(
            f"{text}; it is a rule. Write mine = tiebreak.Method('mine', {name}, tiebreak.methods.sdbgd.schedule) beside "
            "it"
        )
    try:
        signature.bind(None, 1)
    except TypeError:
        kind = "class" if isinstance(value, type) else "function"
        raise ValueError(f"{text}; it is a {kind} ({', '.join(names)})") from None


def listed(name: str, value: Any, everything: Sequence[str]) -> list[Any]:
    """Names and places, one by one, with `everything` for "all"; objects as they are."""
    parts: list[Any] = []
    for each in value if isinstance(value, (list, tuple)) else [value]:
        parts += map(str.strip, each.split(",")) if isinstance(each, str) else [each]
    if not parts or not all(part for part in parts if isinstance(part, str)):
        text = ",".join(map(str, parts))
        raise ValueError(
            f"{name}={text!r} must be 'all', or names or places between commas, at least one"
        )
    items: list[Any] = []
    for part in parts:
        items += everything if isinstance(part, str) and part == "all" else [part]
    return items


def check_labels(name: str, labels: Sequence[str]) -> None:
    """Raise ValueError if two labels are the same."""
    twice = sorted({each for each in labels if labels.count(each) > 1})
    if twice:
        raise ValueError(
            f"{name}: {', '.join(map(repr, twice))} is there more than once; they must have different names"
        )
