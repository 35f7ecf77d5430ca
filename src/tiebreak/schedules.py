"""What changes from step to step: η_k, β_k, ρ_k, B_f,k, B_g,k and the rest, as laws of the step number k = 0, 1, ….

A law is any function of k. The theory's laws are powers of t = k + 1 (:class:`Power`); :func:`anytime` and
:func:`horizon` build the paper's Corollary 1 for every a in (0, 1/3), and :data:`PAPER` is its parameter table.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from tiebreak.checks import floating, whole
from tiebreak.powers import Capped as Capped
from tiebreak.powers import Law as Law
from tiebreak.powers import Power as Power


class Parameters(NamedTuple):
    """The schedule at one step, checked; what a rule or an estimator asks for is found here by name.

    A tuple, because one is made for every step: a frozen class of so many fields takes eight times as long.

    Examples
    --------
    >>> import tiebreak
    >>> at = tiebreak.methods.sdbgd.at(99)
    >>> at.k, at.lower_batch, round(at.step_size, 4)
    (99, 100000, 0.0158)
    """

    k: Any  # a number, or a tracer under JAX; None for a parameter that the schedule does not set
    step_size: Any = None
    upper_batch: Any = 1
    lower_batch: Any = 1
    barrier: Any = None
    regularizer: Any = None
    penalty: Any = None
    momentum: Any = None
    upper_momentum: Any = None
    lower_momentum: Any = None
    period: Any = None
    probability: Any = None
    upper_refresh: Any = None
    lower_refresh: Any = None
    upper_hold: Any = None
    lower_hold: Any = None
    selection: Any = None
    others: Mapping[str, Any] = MappingProxyType({})
    upper_points: Any = (
        None  # at how many points samples are evaluated; set by a method
    )
    lower_points: Any = None

    @property
    def weight(self) -> float:
        """The chance (up to a factor) that x_k is the returned iterate: `selection`; or η_k β_k; or η_k."""
        if self.selection is not None:
            return float(self.selection)
        return float(self.step_size) * (
            1.0 if self.barrier is None else float(self.barrier)
        )

    def named(self) -> dict[str, float]:
        """Every parameter that is set, and k, by name."""
        numbers = {name: getattr(self, name) for name in ("k", *LEGAL)}
        return {
            name: value
            for name, value in {**numbers, **self.others}.items()
            if value is not None
        }


_WHOLE: tuple[str, Callable[[float], bool]] = (
    "finite (it is floored, and at least 1)",
    math.isfinite,
)
_POSITIVE: tuple[str, Callable[[float], bool]] = (
    "finite and > 0",
    lambda v: 0 < v < math.inf,
)
_NONNEGATIVE: tuple[str, Callable[[float], bool]] = (
    "finite and ≥ 0",
    lambda v: 0 <= v < math.inf,
)
_SHARE: tuple[str, Callable[[float], bool]] = ("in [0, 1]", lambda v: 0 <= v <= 1)

#: name → (the legal range in words, the test), for every parameter.
LEGAL: Mapping[str, tuple[str, Callable[[float], bool]]] = MappingProxyType(
    {
        "step_size": _POSITIVE,
        "upper_batch": _WHOLE,
        "lower_batch": _WHOLE,
        "barrier": _NONNEGATIVE,
        "regularizer": _NONNEGATIVE,
        "penalty": _POSITIVE,
        "momentum": _SHARE,
        "upper_momentum": _SHARE,
        "lower_momentum": _SHARE,
        "period": _WHOLE,
        "probability": _SHARE,
        "upper_refresh": _WHOLE,
        "lower_refresh": _WHOLE,
        "upper_hold": _WHOLE,
        "lower_hold": _WHOLE,
        "selection": _NONNEGATIVE,
    }
)
#: The parameters that are floored, and at least 1.
WHOLE = frozenset(name for name, legal in LEGAL.items() if legal is _WHOLE)


@dataclass(frozen=True)
class Schedule:
    """A law for each parameter; numbers stand for constant laws, and any function of k will do.

    Parameters
    ----------
    step_size : law, optional
        η_k, finite and > 0. Optimizers around another one leave it to that one's learning rate.
    barrier : law, optional
        β_k ≥ 0. Also weighs the returned iterate: P(N_K = k) ∝ η_k β_k.
    regularizer : law, optional
        ρ_k ≥ 0 (γ_k for `penalized`).
    upper_batch, lower_batch : law
        B_f,k and B_g,k; floored, and at least 1.
    penalty : law, optional
        μ_k > 0.
    momentum : law, optional
        α_k in [0, 1], for the estimators `Storm` and `Average`.
    upper_momentum, lower_momentum : law, optional
        The same of one level, where the levels differ.
    period, probability : law, optional
        When `Spider` refreshes: at the steps that q_k divides; and the chance p_k in [0, 1] with which `Page` does.
    upper_refresh, lower_refresh : law, optional
        The large batches of a refresh; then `upper_batch` and `lower_batch` are those of all other steps.
    upper_hold, lower_hold : law, optional
        For how many steps `Held` keeps an estimate: it makes a new one at the steps that m_k divides.
    selection : law, optional
        Weighs the returned iterate, P(N_K = k) ∝ w_k ≥ 0, where that is not to be η_k β_k.
    others : mapping of name to law
        What a rule of your own asks for beyond these.

    Examples
    --------
    >>> schedule = Schedule(step_size=0.1, barrier=lambda k: 1 / (k + 1), regularizer=Power(1, -1), lower_batch=2.9)
    >>> schedule.at(3).barrier, schedule.at(3).lower_batch
    (0.25, 2)
    """

    step_size: Law | float | None = None
    barrier: Law | float | None = None
    regularizer: Law | float | None = None
    upper_batch: Law | float = 1
    lower_batch: Law | float = 1
    penalty: Law | float | None = None
    momentum: Law | float | None = None
    upper_momentum: Law | float | None = None
    lower_momentum: Law | float | None = None
    period: Law | float | None = None
    probability: Law | float | None = None
    upper_refresh: Law | float | None = None
    lower_refresh: Law | float | None = None
    upper_hold: Law | float | None = None
    lower_hold: Law | float | None = None
    selection: Law | float | None = None
    others: Mapping[str, Law | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in LEGAL:
            object.__setattr__(self, name, _as_law(name, getattr(self, name)))
        reserved = {"k", "fg", "gg", "ff", "lower_value", *LEGAL} & set(self.others)
        if reserved:
            raise ValueError(
                f"others={sorted(reserved)!r} are names the solver gives itself; choose different ones"
            )
        laws = {name: _as_law(name, law) for name, law in self.others.items()}
        object.__setattr__(self, "others", MappingProxyType(laws))

    def __hash__(self) -> int:
        return hash(
            (*(getattr(self, name) for name in LEGAL), frozenset(self.others.items()))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled or deep-copied; a dict can.
        return (
            Schedule,
            (*(getattr(self, f.name) for f in fields(self)[:-1]), dict(self.others)),
        )

    def __str__(self) -> str:
        laws = {name: getattr(self, name) for name in LEGAL} | dict(self.others)
        return ", ".join(
            f"{name}={law}" for name, law in laws.items() if law is not None
        )

    def at(self, k: int) -> Parameters:
        """The parameters of step k; an error names an illegal value."""
        if self._fixed is not None:
            return Parameters(k, **self._fixed)
        return Parameters(k, **self._values(k))

    @cached_property
    def _fixed(self) -> dict[str, Any] | None:
        """The values, where they are the same at every step: most training runs have it so, and every step asks."""
        if self.constant():
            return self._values(0)
        return None

    def _values(self, k: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, law in self._set:
            value = _number(name, law, k)
            legal, holds = LEGAL[name]
            if not holds(value):
                raise ValueError(f"{name} at step {k} is {value!r}; it must be {legal}")
            values[name] = max(1, math.floor(value)) if name in WHOLE else value
        others = {}
        for name, other in self.others.items():
            others[name] = _number(name, other, k)
            if not math.isfinite(others[name]):
                raise ValueError(
                    f"{name} at step {k} is {others[name]!r}; it must be finite"
                )
        return values | {"others": others}

    @cached_property
    def _set(self) -> tuple[tuple[str, Law], ...]:
        """The laws that are set; kept, because every step asks for them."""
        return tuple(
            (name, getattr(self, name))
            for name in LEGAL
            if getattr(self, name) is not None
        )

    def constant(self, *names: str) -> bool:
        """Whether the named laws, or all that are set, are known not to change from step to step."""
        laws = dict(self._set) | dict(self.others)
        chosen = [laws[name] for name in names or laws if name in laws]
        return all(isinstance(law, Power) and law.exponent == 0 for law in chosen)

    def replace(self, **changes: Any) -> "Schedule":
        """This schedule with some of its laws changed."""
        unknown = set(changes) - {f.name for f in fields(self)}
        if unknown:
            raise TypeError(
                f"unknown parameters {sorted(unknown)}; a schedule has {[f.name for f in fields(self)]}"
            )
        return replace(self, **changes)


def _as_law(name: str, value: Any) -> Law | None:
    if callable(value):
        return value  # type: ignore[no-any-return]  # values are checked at every step
    if value is None and name in LEGAL and name not in ("upper_batch", "lower_batch"):
        return None
    legal, holds = LEGAL.get(name, ("a finite number", math.isfinite))
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{name}={value!r} must be a number or a function of the step k; values are {legal}"
        )
    if not holds(floating(value)):
        raise ValueError(f"{name}={value!r} must be {legal}")
    return Power(float(value))


def _number(name: str, law: Any, k: int) -> float:
    """The law at a step, as a float; whatever is no number is named."""
    try:
        value = law(k)
    except OverflowError:  # a power beyond floats
        value = math.inf
    try:
        if isinstance(value, str):
            raise TypeError
        return floating(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} at step {k} is {value!r}; it must be a number"
        ) from None


def largest_step_size(L_f: float, L_g: float) -> float:
    """1 / (2(L_f + 2L_g)), the largest step size that the theorem allows.

    Examples
    --------
    >>> largest_step_size(L_f=1.0, L_g=1.0) == 1 / 6
    True
    """
    for name, value in (("L_f", L_f), ("L_g", L_g)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be finite and > 0")
    return 1 / (2 * (L_f + 2 * L_g))


def anytime(
    a: float = 0.25,
    *,
    step_size: float | None = None,
    barrier: float = 0.5,
    regularizer: float = 1.0,
    upper_batch: float = 1.0,
    lower_batch: float = 1.0,
    L_f: float | None = None,
    L_g: float | None = None,
) -> Schedule:
    """The anytime schedule of Corollary 1: good at every K, no horizon needed.

    η ∝ t^−a, β ∝ t^(3a−1), ρ ∝ t^(2a−2), B_f ∝ t^(2−4a), B_g ∝ max(η^−2, η^6 t^4) = t^max(2a, 4−6a), t = k + 1.

    Parameters
    ----------
    a : float
        In (0, 1/3). Large a favours ‖∇g‖², small a favours ‖d‖²; 1/4 balances them.
    step_size, barrier, regularizer, upper_batch, lower_batch : float
        The proportionality constants, each the factor of its own power of t, so that changing one moves no other. The
        defaults are the paper's: `anytime(1/4)` is its SDBGD row. With L_f and L_g given, `step_size` defaults to the
        largest legal one.
    L_f, L_g : float, optional
        Smoothness constants. Where given, the theorem's caps η ≤ 1/(2(L_f+2L_g)) and β ≤ 1 are checked.

    Examples
    --------
    >>> print(anytime(0.25))
    step_size=0.05·t^-0.25, upper_batch=1·t^1, lower_batch=1·t^2.5, barrier=0.5·t^-0.25, regularizer=1·t^-1.5
    """
    if not 0 < a < 1 / 3:
        raise ValueError(f"a={a!r} must be in (0, 1/3), where Corollary 1 holds")
    cap = _cap(L_f, L_g)
    if step_size is None:  # the law is largest at t = 1 for every a
        step_size = 0.05 if cap is None else cap
    constants = {
        "step_size": step_size,
        "barrier": barrier,
        "regularizer": regularizer,
        "upper_batch": upper_batch,
        "lower_batch": lower_batch,
    }
    for name, value in constants.items():
        if (
            isinstance(value, (bool, str))
            or not hasattr(value, "__float__")
            or not 0 < value < math.inf
        ):
            raise ValueError(
                f"{name}={value!r}: a proportionality constant must be a number, finite and > 0"
            )
    powers = corollary_powers(a)
    return _capped(
        {name: Power(float(value), powers[name]) for name, value in constants.items()},
        cap,
    )


def horizon(
    K: int,
    a: float = 0.25,
    *,
    L_f: float | None = None,
    L_g: float | None = None,
    **constants: Any,
) -> Schedule:
    """The horizon schedule of Corollary 1: the laws of :func:`anytime` with t = K throughout, so constant in k.

    Parameters
    ----------
    K : int
        The number of steps.
    a, L_f, L_g, **constants :
        As :func:`anytime` takes them.

    Examples
    --------
    >>> print(horizon(16, 0.25))
    step_size=0.025, upper_batch=16, lower_batch=1024, barrier=0.25, regularizer=0.015625
    """
    last = whole("K", K) - 1
    cap = _cap(L_f, L_g)
    if constants.get("step_size") is None:
        constants["step_size"] = cap
    growing = anytime(a, **constants)
    return _capped(
        {name: Power(getattr(growing, name)(last)) for name in corollary_powers(a)}, cap
    )


def corollary_powers(a: Any) -> dict[str, Any]:
    """The powers of t in the laws of Corollary 1, by parameter; for an array of a, arrays.

    Examples
    --------
    >>> corollary_powers(0.25)
    {'step_size': -0.25, 'barrier': -0.25, 'regularizer': -1.5, 'upper_batch': 1.0, 'lower_batch': 2.5}
    """
    return {
        "step_size": -a,
        "barrier": 3 * a - 1,
        "regularizer": 2 * a - 2,
        "upper_batch": 2 - 4 * a,
        "lower_batch": 4
        - 6 * a,  # the larger of η^−2 and η^6 t^4: 4 − 6a > 2a for every a below 1/2
    }


def _cap(L_f: float | None, L_g: float | None) -> float | None:
    """The largest step size for these constants; None without them."""
    if (L_f is None) != (L_g is None):
        raise ValueError(
            f"L_f={L_f!r} and L_g={L_g!r} must be given together: the step-size cap needs both"
        )
    if L_f is None or L_g is None:
        return None
    return largest_step_size(L_f, L_g)


def _capped(laws: dict[str, Any], cap: float | None) -> Schedule:
    """The schedule of these laws; ValueError if its largest step size or barrier exceeds what the theorem allows."""
    if cap is not None:
        largest = laws["step_size"](0)
        top = laws["barrier"](0)
        if largest > cap:
            raise ValueError(
                f"step_size reaches {largest!r}; the theorem allows at most 1/(2(L_f+2L_g)) = {cap!r}"
            )
        if top > 1:
            raise ValueError(
                f"barrier reaches {top!r}; the theorem allows values in (0, 1]"
            )
    return Schedule(**laws)


#: The paper's parameter table, a row per method, exactly.
PAPER: Mapping[str, Schedule] = MappingProxyType(
    {
        "sdbgd": anytime(1 / 4),
        "sdbpg": anytime(1 / 4).replace(
            regularizer=Power(1, -1), lower_batch=Power(1, 2)
        ),
        "pr_sdbpg": Schedule(
            step_size=Power(0.05, -1 / 2),
            barrier=Power(0.5, 1 / 4),
            regularizer=1,
            upper_batch=Power(1, 1),
            lower_batch=Power(1, 3 / 2),
            penalty=1,
        ),
        "vr_pr_sdbpg": Schedule(
            step_size=Power(0.05, -1 / 2),
            barrier=Power(0.5, 1 / 4),
            regularizer=1,
            upper_batch=Power(1, 1 / 2),
            lower_batch=Power(1, 1),
            penalty=1,
            momentum=Power(0.2, -1 / 2),
        ),
    }
)
