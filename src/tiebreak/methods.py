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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak import penalty_schedules, rules, stateful_rules
from tiebreak.auto import Balance
from tiebreak.checks import nearest
from tiebreak.estimators import (
    Estimator,
    Held,
    Minibatch,
    PerLevel,
    Spider,
    Storm,
    named,
)
from tiebreak.estimators.contract import LEVELS, WATCHED, Memory
from tiebreak.estimators.recursive import Watched
from tiebreak.powers import Capped
from tiebreak.schedules import LEGAL, PAPER, Parameters, Power, Schedule
from tiebreak.stateful_rules import StatefulRule


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
    first = 3 if isinstance(rule, StatefulRule) else 2
    if not callable(rule):
        raise TypeError(
            f"rule={rule!r} must be a function of fg, gg and what it needs by name"
        )
    parameters = list(inspect.signature(rule).parameters.values())
    if len(parameters) < first:
        leading = "fg, gg and its memory" if first == 3 else "fg and gg"
        raise TypeError(
            f"rule={rule!r} must take {leading} first, and then what it needs by name"
        )
    names = [p.name for p in parameters]
    for place, name in enumerate(("fg", "gg")):
        if name in names and names.index(name) != place:
            raise TypeError(
                f"rule={rule!r} takes ({', '.join(names)}); it must take fg = ⟨∇f, ∇g⟩ first and gg = ‖∇g‖² second: "
                "they come by place, not by name"
            )
    return {p.name: p for p in parameters[first:] if p.kind in by_name}


def _there(name: str, given: set[str]) -> bool:
    """Whether a parameter is set, for both levels at once or for each of them."""
    return name in given or {f"{level}_{name}" for level in LEVELS} <= given


def _array(
    returned: Any, shape: tuple[int, ...], least: float = 0.0
) -> NDArray[np.float64]:
    """What a rule returned, as an array of real numbers of this shape, none below `least`."""
    values = np.asarray(returned)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"it returned {values!r}")
    values = values.astype(np.float64, copy=False)
    if (
        values.size and values.min() < least
    ):  # False for NaN, which the solver knows how to tell
        raise ValueError(
            f"it returned λ = {values.min():g}; it must be ≥ 0: with λ < 0 the direction ∇f + λ∇g climbs on g"
        )
    if values.shape == shape:
        return values
    return np.broadcast_to(values, shape)


@dataclass(frozen=True, repr=False)
class Method:
    """How to choose λ, with which parameters, from which estimates.

    Parameters
    ----------
    name : str
        What tables and legends call it.
    rule : callable
        ``rule(fg, gg, …)`` ↦ λ ≥ 0, on arrays with a value per run. fg and gg come by place, in this order. Its further
        arguments are found by their names: any parameter that the schedule sets, its `others`, the step ``k``,
        ``ff`` = ‖∇f‖², and ``lower_value``, the lower objective on this step's mini-batch at x_k. A rule with a memory
        is an object: see :mod:`tiebreak.rules`.
    schedule : Schedule, optional
        The parameters that the rule and the estimator ask for; :func:`tiebreak.minimize` needs a `step_size`.
    estimator : Estimator, optional

    Examples
    --------
    >>> import tiebreak
    >>> method = Method("Half", lambda fg, gg: 0.5, tiebreak.Schedule(0.1))
    >>> problem = tiebreak.problems.paper()
    >>> tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=method, steps=3, seed=0).method
    'Half'
    """

    name: str
    rule: rules.Rule
    schedule: Schedule = field(default_factory=Schedule)
    estimator: Estimator = field(default_factory=Minibatch)

    def __post_init__(self) -> None:
        for name, right in (
            ("rule", callable(self.rule)),
            ("schedule", isinstance(self.schedule, Schedule)),
        ):
            if not right:
                raise TypeError(
                    f"{name}={getattr(self, name)!r} of method {self.name!r} must be a {name}"
                )
        try:
            object.__setattr__(self, "estimator", named(self.estimator))
        except ValueError as error:
            raise TypeError(f"{error}, in method {self.name!r}") from None
        momentum = self.estimator.momentum
        if momentum is not None:  # the schedule is the one place of all laws
            object.__setattr__(
                self, "schedule", self.schedule.replace(momentum=momentum)
            )
        available = {"k", "ff", "lower_value", *self.schedule.others}
        if self.estimator.watches:
            available |= set(WATCHED)
        available |= {
            name for name in LEGAL if getattr(self.schedule, name) is not None
        }
        wanting = [name for name in self.estimator.needs if not _there(name, available)]
        if wanting:
            kind = type(self.estimator).__name__
            raise ValueError(
                f"{kind} needs {wanting}: give {kind}({wanting[0]}=…), or set it in the schedule"
            )
        missing = [
            n
            for n, p in self._arguments.items()
            if p.default is p.empty and n not in available
        ]
        if missing:
            raise ValueError(
                f"the rule of {self.name!r} needs {missing}, which its schedule does not set; it sets {sorted(available)}. "
                f"Set it as in Method({self.name!r}, rule, Schedule(barrier=0.5, others={{'mine': 1.0}}))"
            )

    @cached_property
    def _arguments(self) -> Mapping[str, inspect.Parameter]:
        return _named_arguments(self.rule)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The names that the rule asks for, after fg and gg."""
        return tuple(self._arguments)

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """Those of them that only the step knows, because it measures them."""
        return tuple(
            name for name in self.needs if name in ("ff", "lower_value", *WATCHED)
        )

    @cached_property
    def _plain(self) -> bool:
        """Whether the rule is one of the library's: sums, products, quotients and comparisons, which round alike for
        floats and for arrays. Of others nobody knows: NumPy's roots and powers are not Python's.
        """
        return self.rule in rules.RULES.values()

    def arguments(self, parameters: Parameters) -> dict[str, float]:
        """The arguments of the rule at a step, but for ``ff`` and ``lower_value``, which the step measures."""
        named = {}
        for name in self._scheduled:
            value = getattr(parameters, name)
            if value is not None:
                named[name] = value
        if parameters.others:
            for name in self._arguments:
                if name in parameters.others:
                    named[name] = parameters.others[name]
        return named

    @cached_property
    def _scheduled(self) -> tuple[str, ...]:
        """The arguments of the rule that are fields of :class:`~tiebreak.Parameters`."""
        return tuple(name for name in self._arguments if name in Parameters._fields)

    def at(self, k: int) -> Parameters:
        """The parameters of step k as it is made: with the batches that the estimator asks for, and at how many points.

        >>> spider_penalty.at(0).lower_points, spider_penalty.at(3).lower_points
        (1, 2)
        """
        parameters = self.schedule.at(k)
        batches: dict[str, Any] = {}
        for level in LEVELS:
            batch, points = self.estimator.asks(level, parameters)
            if points not in (0, 1, 2) or batch != int(batch) or batch < 1:
                raise ValueError(
                    f"{type(self.estimator).__name__} asks for {batch!r} samples at {points!r} points in step {k}, at the "
                    f"{level} level; it must be a whole number ≥ 1, at 0, 1 or 2 points"
                )
            batches[f"{level}_batch"] = int(batch)
            batches[f"{level}_points"] = int(points)
        return parameters._replace(**batches)

    @cached_property
    def remembers(self) -> bool:
        """Whether the rule has a memory."""
        return isinstance(self.rule, StatefulRule)

    def begin(self, zero: Any) -> Memory:
        """The rule's memory before the first step, as numbers like `zero`."""
        if isinstance(self.rule, StatefulRule):
            return tuple(self.rule.begin(zero))
        return ()

    def chosen(self, memory: Memory) -> dict[str, NDArray[np.float64]]:
        """The numbers that a rule with a memory chose, by name."""
        if not isinstance(self.rule, StatefulRule):
            return {}
        numbers = self.rule.chosen(memory)
        return {name: np.asarray(value, np.float64) for name, value in numbers.items()}

    def multiplier(
        self, fg: Any, gg: Any, arguments: Mapping[str, Any], memory: Any = ()
    ) -> Any:
        """The rule on arrays, as an array of their shape; of floats, which are quicker, as a float or such an array.

        What a rule remembers is looked at, and not changed.
        """
        if self.remembers:
            return self.applied(fg, gg, arguments, memory)[0]
        try:
            if type(fg) is float:
                if self._plain:
                    value = self.rule(fg, gg, **arguments)
                    if type(value) is float:
                        return value
                    return _array(value, (1,))
                fg = np.array([fg])
                gg = np.array([gg])
            return _array(self.rule(fg, gg, **arguments), fg.shape)
        except (TypeError, ValueError) as error:
            raise self._failed(error) from error

    def applied(
        self, fg: Any, gg: Any, arguments: Mapping[str, Any], memory: Any
    ) -> tuple[NDArray[np.float64], Memory]:
        """A rule with a memory on arrays: λ as an array of their shape, and what it remembers, as such arrays."""
        if type(fg) is float:
            fg = np.array([fg])
            gg = np.array([gg])
        try:
            returned = self.rule(fg, gg, memory, **arguments)
            if not (
                isinstance(returned, tuple)
                and len(returned) == 2
                and len(returned[1]) == len(memory)
            ):
                raise TypeError(
                    f"it has a memory of {len(memory)}, must return (λ, memory) and returned {returned!r}"
                )
            return _array(returned[0], fg.shape), tuple(
                _array(m, fg.shape, -np.inf) for m in returned[1]
            )
        except (TypeError, ValueError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        return type(error)(
            f"the rule of method {self.name!r} failed: {error}. A rule sees arrays, a value for each run and "
            "record, and returns as many: np.maximum and np.where instead of max and if."
        )

    def replace(self, **changes: Any) -> "Method":
        """This method with another rule, schedule, estimator or name, or with some laws of its schedule changed.

        >>> sdbgd.replace(barrier=0.3).schedule.at(99).barrier
        0.3
        """
        parts = {f.name for f in fields(self)}
        laws = {f.name for f in fields(Schedule)}
        unknown = set(changes) - parts - laws
        if unknown:
            raise TypeError(
                f"unknown {sorted(unknown)}; a method has {sorted(parts)}, its schedule {sorted(laws)}"
            )
        schedule = changes.get("schedule", self.schedule)
        changed = {name: law for name, law in changes.items() if name in laws}
        replaced = {name: part for name, part in changes.items() if name in parts}
        return replace(
            self,
            **replaced
            | {"schedule": schedule.replace(**changed) if changed else schedule},
        )

    def __repr__(self) -> str:
        rule = getattr(self.rule, "__name__", type(self.rule).__name__)
        return f"Method({self.name!r}, rule={rule}, estimator={self.estimator!r}, {self.schedule})"


sdbgd = Method("SDBGD", rules.sdbgd, PAPER["sdbgd"])
sdbpg = Method("SDBPG", rules.sdbpg, PAPER["sdbpg"])
pr_sdbpg = Method(
    "PR-SDBPG", rules.penalized, PAPER["pr_sdbpg"]
)  # reconstruction: see docs/reconstruction
vr_pr_sdbpg = Method(
    "VR-PR-SDBPG", rules.penalized, PAPER["vr_pr_sdbpg"], Storm(first_points=2)
)  # likewise
#: Deterministic: for exact gradients, hence batches of 1.
dbgd = Method(
    "DBGD",
    rules.dbgd,
    Schedule(step_size=Power(0.05, -1 / 4), barrier=Power(0.5, -1 / 4)),
)
#: Gradient descent on f + β_k g with a growing weight, and the batches of the penalty theory.
penalty = Method("Penalty", rules.constant, penalty_schedules.schedule("penalty"))
#: Penalty with upper batches that are held: fewer upper calls under the same assumptions.
lazy_penalty = Method(
    "Lazy penalty",
    rules.constant,
    penalty_schedules.schedule("lazy_penalty"),
    PerLevel(upper=Held(), lower=Minibatch()),
)
#: Penalty on SPIDER estimates: the laws of the horizon form with t in place of K.
spider_penalty = Method(
    "SPIDER-Penalty",
    rules.constant,
    penalty_schedules.schedule("spider_penalty"),
    Spider(),
)
#: Penalty on STORM estimates: no large batches, no horizon.
storm_penalty = Method(
    "STORM-Penalty",
    rules.constant,
    penalty_schedules.schedule("storm_penalty"),
    Storm(),
)
storm_sdbgd = Method(
    "STORM-SDBGD", rules.sdbgd, penalty_schedules.schedule("storm_sdbgd"), Storm()
)
spider_sdbgd = Method(
    "SPIDER-SDBGD", rules.sdbgd, penalty_schedules.schedule("spider_sdbgd"), Spider()
)
#: Two answers to the open question of the paper: the paper's schedule with other multipliers; see docs/beyond.
sdbgd_averaged = Method(
    "SDBGD averaged λ",
    stateful_rules.Averaged(lagged=True),
    PAPER["sdbgd"].replace(others={"rate": Power(1, -1 / 2)}),
)
sdbgd_dual = Method(
    "SDBGD dual λ",
    stateful_rules.Dual(),
    PAPER["sdbgd"].replace(others={"rate": Power(1, -1)}),
)

#: Nothing known: step size and weight are chosen on the run, for each run by itself; batches are laws, for all alike.
auto = Method(
    "auto",
    Balance(),
    Schedule(
        step_size=1,
        upper_batch=Power(1 / 320**2, 2),
        lower_batch=Power(1 / 160**2, 2),
        momentum=Capped(Power(3, -1), 1),  # weights batches that grow like t² by size
        selection=Power(1, 2),
    ),
    Watched(),
)

#: Every method by its Python name except `auto`, which is no row of a comparison of rules.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "sdbgd": sdbgd,
        "sdbpg": sdbpg,
        "pr_sdbpg": pr_sdbpg,
        "vr_pr_sdbpg": vr_pr_sdbpg,
        "dbgd": dbgd,
        "penalty": penalty,
        "lazy_penalty": lazy_penalty,
        "spider_penalty": spider_penalty,
        "storm_penalty": storm_penalty,
        "storm_sdbgd": storm_sdbgd,
        "spider_sdbgd": spider_sdbgd,
        "sdbgd_averaged": sdbgd_averaged,
        "sdbgd_dual": sdbgd_dual,
    }
)

#: Every method by its Python name, `auto` included.
NAMED: Mapping[str, Method] = MappingProxyType({"auto": auto, **METHODS})


def get(method: Any, offered: Collection[str] = NAMED) -> Method:
    """The method of this name (as Python or as tables spell it), the method itself, or that of a plan.

    An error about another value names the methods in `offered`.
    """
    method = getattr(method, "method", method)
    if isinstance(method, Method):
        return method
    problem = (
        f"method={method!r} must be a Method or one of {', '.join(map(repr, offered))}"
    )
    if callable(method):
        raise TypeError(
            f"{problem}; of a rule make tiebreak.Method('mine', rule, tiebreak.methods.sdbgd.schedule)"
        )
    if not isinstance(method, str):
        raise TypeError(problem)
    name = method.lower().replace("-", "_")
    if name in NAMED:
        return NAMED[name]
    raise ValueError(problem + nearest(name, offered))
