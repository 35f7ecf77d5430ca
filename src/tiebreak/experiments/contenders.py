"""Methods as they are compared: each with its published schedule in the problem's own units, or planned for them.

The published constants are for the paper's problem, which has L_f = L_g = G_f = 1. Every problem has these in units of
its own: lengths in G_f/L_f, values of f in G_f²/L_f, values of g in L_g (G_f/L_f)². There a method runs as published;
translated back, its laws are multiplied by the powers of the constants in :class:`Units`, the same for all methods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from tiebreak import methods, rules, theory
from tiebreak.experiments.running import problem_of
from tiebreak.experiments.tasks import Reference, found
from tiebreak.experiments.variants import Changes, varied
from tiebreak.methods import METHODS, NAMED, Method
from tiebreak.problems import Problem
from tiebreak.schedules import Law, Power
from tiebreak.theory.constants import Constants
from tiebreak.theory.plans import CHOICES
from tiebreak.theory.proved import reduces


@dataclass(frozen=True)
class Units:
    """By what a problem's own units differ from the paper's; all ones where its constants are not known.

    Examples
    --------
    >>> from tiebreak.problems import named
    >>> Units.of(named("paper"))
    Units(step_size=1.0, barrier=1.0, length=1.0, upper_value=1.0, direction_squared=1.0, lower_gradient_squared=1.0)
    """

    step_size: float = 1.0
    barrier: float = 1.0
    length: float = 1.0
    upper_value: float = 1.0
    direction_squared: float = 1.0
    lower_gradient_squared: float = 1.0

    @classmethod
    def of(cls, problem: Problem) -> "Units":
        """Those of a problem: a length is G_f/L_f, and so on."""
        c = problem.constants
        if c is None:
            return cls()
        return cls(
            step_size=1 / c.L_f,
            barrier=c.L_f / c.L_g,
            length=c.G_f / c.L_f,
            upper_value=c.G_f**2 / c.L_f,
            direction_squared=float(c.G_f) ** 2,
            lower_gradient_squared=(c.G_f * c.L_g / c.L_f) ** 2,
        )

    def translated(self, method: Method, scale: float = 1.0) -> Method:
        """The method with its laws in these units, and its step size times a scale; momentum and batches have none."""
        factors = {
            "step_size": scale * self.step_size,
            "barrier": self.barrier,
            "regularizer": self.lower_gradient_squared,
            "penalty": 1 / self.lower_gradient_squared,
        }
        laws = {
            name: (getattr(method.schedule, name), factor)
            for name, factor in factors.items()
        }
        changed = {
            name: _times(law, factor)
            for name, (law, factor) in laws.items()
            if law is not None and factor != 1
        }
        return method.replace(**changed) if changed else method


def _times(law: Law, factor: float) -> Law:
    if isinstance(law, Power):
        return replace(law, constant=factor * law.constant)
    return lambda k: factor * law(k)


@dataclass(frozen=True)
class Planned:
    """A method that is made for a problem's constants and a budget.

    Attributes
    ----------
    label : what tables call it.
    words : what it is.
    make : (constants, budget), and what it `needs` by name, ↦ Method.
    needs : what has to be said besides, as in "spider_penalty_bound+noise_smoothness=1".
    """

    label: str
    words: str
    make: Callable[..., Method]
    needs: tuple[str, ...] = ()

    def __call__(
        self, constants: Constants | None, budget: int, **needed: Any
    ) -> Method:
        return self.make(constants, budget, **needed).replace(name=self.label)


def _batched(constants: Constants | None, budget: int) -> Method:
    return methods.sdbgd.replace(rule=rules.dbgd, regularizer=None)


def _planned(method: str, objective: str) -> Planned:
    name = f"{method}_{objective}"
    title = f"{METHODS[method].name} {objective}"
    needs = ("noise_smoothness",) if reduces(METHODS[method]) else ()

    @cache  # every step size that is tried asks for it
    def make(constants: Constants | None, budget: int, **needed: Any) -> Method:
        if constants is None:
            raise ValueError(
                f"{title!r} must be compared on problems with known constants: plans are made of them"
            )
        missing = [
            one
            for one in needs
            if one not in needed and getattr(constants, one, None) is None
        ]
        if missing:
            raise ValueError(
                f"{name!r} needs {missing[0]}, which no constants imply: write '{name}+{missing[0]}=1'"
            )
        return theory.plan(
            constants, budget=budget, method=method, objective=objective, **needed
        ).method

    words = f"{METHODS[method].name} with all constants chosen by `tiebreak plan --objective {objective}`."
    return Planned(
        title, words + (f" Needs +{needs[0]}=ℓ." if needs else ""), make, needs
    )


#: Methods that are made for a problem's constants and a budget: one for every kind of plan, and DBGD for samples.
PLANNED: Mapping[str, Planned] = MappingProxyType(
    {
        f"{method}_{objective}": _planned(method, objective)
        for method, objective, _ in CHOICES
    }
    | {
        "dbgd_batched": Planned(
            "DBGD batched",
            "DBGD with the batches of SDBGD: the same method but for the regularizer, which is missing.",
            _batched,
        )
    }
)
#: What "all" means. Plain DBGD is for exact gradients: its batches of one make a million calls half a million steps.
#: And what has to be told more than a problem tells cannot be meant.
ALL: tuple[str, ...] = (
    *(name for name in METHODS if name != "dbgd"),
    "auto",
    *(name for name, planned in PLANNED.items() if not planned.needs),
)
#: What of it is made of a problem's constants, and cannot be had without them.
OF_CONSTANTS: tuple[str, ...] = tuple(
    name for name in ALL if name in PLANNED and name != "dbgd_batched"
)


def fit(
    method: str | Reference,
    problem: Problem,
    budget: int,
    scale: float = 1.0,
    changes: Changes | None = None,
    as_is: bool = False,
) -> Method:
    """The method for a problem and a budget, its step size times a scale.

    Parameters
    ----------
    method : str or Reference
        A name in :data:`~tiebreak.methods.NAMED` or PLANNED, or where a Method or a function (constants, budget) is.
    changes : dict, optional
        Constants that are to be others, and `a`, in the units of the published ones.
    as_is : bool
        Whether schedules are what :func:`tiebreak.minimize` would run, and not translated into the problem's units.
    """
    own = changes or {}
    units = Units() if as_is else Units.of(problem)
    if (
        isinstance(method, str) and method in NAMED
    ):  # `auto` has found out the units for itself
        return (Units() if method == "auto" else units).translated(
            varied(NAMED[method], own), scale
        )
    if isinstance(method, str):
        planned = PLANNED[method]
        needed = {name: value for name, value in own.items() if name in planned.needs}
        own = {name: value for name, value in own.items() if name not in needed}
        made = varied(planned(problem.constants, budget, **needed), own)
        return (units if method == "dbgd_batched" else Units()).translated(made, scale)
    given: Any = found(method)
    if callable(given):  # whoever asks for the constants has seen to the units
        return Units().translated(
            varied(methods.get(given(problem.constants, budget)), own), scale
        )
    return units.translated(varied(methods.get(given), own), scale)


def fitted(
    *,
    method: str | Reference,
    problem: Reference,
    problem_arguments: Mapping[str, Any],
    budget: int,
    scale: float,
    changes: Changes,
    as_is: bool = False,
) -> Method:
    """The same from plain data, for the workers of a sweep."""
    return fit(
        method, problem_of(problem, problem_arguments), budget, scale, changes, as_is
    )


def scales(trials: int) -> tuple[float, ...]:
    """The step sizes that are tried, as multiples of the published one: 1, 4, 1/4, 16, 1/16, …

    >>> scales(4)
    (1.0, 4.0, 0.25, 16.0)
    """
    return tuple(
        float(4.0 ** ((-1) ** (i + 1) * ((i + 1) // 2))) for i in range(trials)
    )
