"""The methods, one row each: rule × schedule × estimator.

>>> from tiebreak import methods
>>> print(methods.sdbgd.schedule)
step_size=0.05·t^-0.25, upper_batch=1·t^1, lower_batch=1·t^2.5, barrier=0.5·t^-0.25, regularizer=1·t^-1.5

A method of your own is a row as well, inside the package or out of it:

>>> mine = methods.Method("mine", lambda fg, gg, barrier: barrier / (1 + gg), methods.sdbgd.schedule)
>>> mine.needs
('barrier',)
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak import rules
from tiebreak.estimators import Estimator, Minibatch, Storm, named
from tiebreak.schedules import LEGAL, PAPER, Parameters, Power, Schedule

__all__ = ["METHODS", "Method", "asked", "dbgd", "get", "penalty", "pr_sdbpg", "sdbgd", "sdbpg", "vr_pr_sdbpg"]


def asked(rule: rules.Rule) -> tuple[str, ...]:
    """The names that a rule asks for, after fg and gg.

    Examples
    --------
    >>> asked(rules.sdbgd)
    ('barrier', 'regularizer')
    """
    return tuple(_named_arguments(rule))


def _named_arguments(rule: rules.Rule) -> dict[str, inspect.Parameter]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not callable(rule):
        raise TypeError(f"rule={rule!r} must be a function of fg, gg and what it needs by name")
    parameters = list(inspect.signature(rule).parameters.values())
    if len(parameters) < 2:
        raise TypeError(f"rule={rule!r} must take fg and gg first, and then what it needs by name")
    return {p.name: p for p in parameters[2:] if p.kind in by_name}


@dataclass(frozen=True, repr=False)
class Method:
    """How to choose λ, with which parameters, from which estimates.

    Parameters
    ----------
    name : str
        What tables and legends call it.
    rule : callable
        ``rule(fg, gg, …)`` ↦ λ, on arrays with a value per run. Its further arguments are found by their names: any
        parameter that the schedule sets, its `others`, the step ``k``, ``ff`` = ‖∇f‖², and ``lower_value``, the lower
        objective on this step's mini-batch at x_k.
    schedule : Schedule
    estimator : Estimator
    """

    name: str
    rule: rules.Rule
    schedule: Schedule
    estimator: Estimator = field(default_factory=Minibatch)

    def __post_init__(self) -> None:
        for name, right in (("rule", callable(self.rule)), ("schedule", isinstance(self.schedule, Schedule))):
            if not right:
                raise TypeError(f"{name}={getattr(self, name)!r} of method {self.name!r} must be a {name}")
        try:
            object.__setattr__(self, "estimator", named(self.estimator))
        except ValueError as error:
            raise TypeError(f"{error}, in method {self.name!r}") from None
        own = getattr(self.estimator, "momentum", None)
        if own is not None:  # one place to look for it, whoever set it
            object.__setattr__(self, "schedule", self.schedule.replace(momentum=own))
        given = {"k", "ff", "lower_value", *self.schedule.others}
        given |= {name for name in LEGAL if getattr(self.schedule, name) is not None}
        wanting = [name for name in getattr(self.estimator, "needs", ()) if name not in given]
        if wanting:
            kind = type(self.estimator).__name__
            raise ValueError(f"{kind} needs {wanting}: give {kind}({wanting[0]}=…), or set it in the schedule")
        missing = [n for n, p in self._arguments.items() if p.default is p.empty and n not in given]
        if missing:
            raise ValueError(
                f"the rule of {self.name!r} needs {missing}, which its schedule does not set; it sets {sorted(given)}"
            )

    @cached_property
    def _arguments(self) -> Mapping[str, inspect.Parameter]:
        return _named_arguments(self.rule)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The names that the rule asks for, after fg and gg."""
        return tuple(self._arguments)

    def arguments(self, parameters: Parameters) -> dict[str, float]:
        """What the rule gets at a step, but for ``ff`` and ``lower_value``, which only the step knows."""
        named = {name: getattr(parameters, name, parameters.others.get(name)) for name in self._arguments}
        return {name: value for name, value in named.items() if value is not None}

    def multiplier(self, fg: Any, gg: Any, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        """The rule on arrays, as an array of their shape."""
        try:
            found = np.asarray(self.rule(fg, gg, **arguments))
            if found.dtype.kind not in "fiub":
                raise TypeError(f"it returned {found!r}")
            found = found.astype(np.float64, copy=False)
            return found if found.shape == fg.shape else np.broadcast_to(found, fg.shape)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"the rule of method {self.name!r} failed: {error}. A rule sees arrays, a value for each run and "
                "record, and returns as many: np.maximum and np.where instead of max and if."
            ) from error

    def replace(self, **changes: Any) -> "Method":
        """This method with another rule, schedule, estimator or name, or with some laws of its schedule changed.

        >>> sdbgd.replace(barrier=0.3).schedule.at(99).barrier
        0.3
        """
        parts = {f.name for f in fields(self)}
        laws = {f.name for f in fields(Schedule)}
        unknown = set(changes) - parts - laws
        if unknown:
            raise TypeError(f"unknown {sorted(unknown)}; a method has {sorted(parts)}, its schedule {sorted(laws)}")
        schedule = changes.get("schedule", self.schedule)
        changed = {name: law for name, law in changes.items() if name in laws}
        whole = {name: part for name, part in changes.items() if name in parts}
        return replace(self, **whole | {"schedule": schedule.replace(**changed) if changed else schedule})

    def __repr__(self) -> str:
        rule = getattr(self.rule, "__name__", type(self.rule).__name__)
        return f"Method({self.name!r}, rule={rule}, estimator={self.estimator!r}, {self.schedule})"


sdbgd = Method("SDBGD", rules.sdbgd, PAPER["sdbgd"])
sdbpg = Method("SDBPG", rules.sdbpg, PAPER["sdbpg"])
pr_sdbpg = Method("PR-SDBPG", rules.penalized, PAPER["pr_sdbpg"])  # reconstruction: see docs/reconstruction
vr_pr_sdbpg = Method("VR-PR-SDBPG", rules.penalized, PAPER["vr_pr_sdbpg"], Storm())  # likewise
#: Deterministic: meant for exact gradients, hence batches of one.
dbgd = Method("DBGD", rules.dbgd, Schedule(step_size=Power(0.05, -1 / 4), barrier=Power(0.5, -1 / 4)))
#: Gradient descent on f + β_k g, the weight growing: the plain baseline, with the batches that its own theory asks for.
penalty = Method(
    "Penalty",
    rules.constant,
    Schedule(
        step_size=Power(0.05, -1 / 4),
        barrier=Power(0.5, 1 / 4),
        upper_batch=Power(1, 1 / 2),
        lower_batch=Power(1, 1),
    ),
)

#: Every method by its Python name.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "sdbgd": sdbgd,
        "sdbpg": sdbpg,
        "pr_sdbpg": pr_sdbpg,
        "vr_pr_sdbpg": vr_pr_sdbpg,
        "dbgd": dbgd,
        "penalty": penalty,
    }
)


def get(method: Any) -> Method:
    """The method of this name (as Python or as tables spell it), the method itself, or that of a plan."""
    method = getattr(method, "method", method)
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        wanted = method.lower().replace("-", "_")
        if wanted in METHODS:
            return METHODS[wanted]
        raise ValueError(f"method={method!r} must be a Method or one of {', '.join(map(repr, METHODS))}")
    raise TypeError(f"method={method!r} must be a Method or one of {', '.join(map(repr, METHODS))}")
