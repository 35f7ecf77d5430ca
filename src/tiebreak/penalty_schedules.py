"""Schedules of the penalty methods and of variance reduction: with their horizon K, or anytime, t = k + 1 in its place.

The powers are those that the theory asks for (see the documentation's page on theory); the constants are factors of
them. Their defaults are ones that do well on the paper's problem, and no more than that: `tiebreak.theory.plan` chooses
them from a problem's own constants.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tiebreak.checks import floating, one_of, whole
from tiebreak.schedules import Power, Schedule

_PENALTY = {
    "step_size": -1 / 4,
    "barrier": 1 / 4,
    "selection": -1 / 2,
}  # selection ∝ η/β
_SDBGD = {"step_size": -1 / 4, "barrier": -1 / 4, "regularizer": -3 / 2}

#: The powers of t in the laws, by method and parameter: the ε-orders of the theory at ε = t^(−1/2).
POWERS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "penalty": {**_PENALTY, "upper_batch": 1 / 2, "lower_batch": 1.0},
        "lazy_penalty": {
            **_PENALTY,
            "upper_hold": 1 / 4,
            "upper_batch": 1 / 2,
            "lower_batch": 1.0,
        },
        "spider_penalty": {
            **_PENALTY,
            "period": 1 / 2,
            "upper_refresh": 1 / 2,
            "lower_refresh": 1.0,
            "upper_batch": 0.0,
            "lower_batch": 1 / 2,
        },
        "storm_penalty": {
            **_PENALTY,
            "momentum": -1 / 2,
            "upper_batch": 0.0,
            "lower_batch": 1 / 2,
        },
        "storm_sdbgd": {
            **_SDBGD,
            "momentum": -1 / 2,
            "upper_batch": 1 / 2,
            "lower_batch": 2.0,
        },
        "spider_sdbgd": {
            **_SDBGD,
            "period": 1 / 2,
            "upper_refresh": 1.0,
            "lower_refresh": 5 / 2,
            "upper_batch": 1 / 2,
            "lower_batch": 2.0,
        },
    }
)


#: The factors of the powers that differ from 1.
CONSTANTS: Mapping[str, float] = MappingProxyType({"step_size": 0.05, "barrier": 0.5})


def schedule(name: str, K: int | None = None, **constants: float) -> Schedule:
    """The laws of a method: each a constant times the power of t that :data:`POWERS` has for it.

    Parameters
    ----------
    name : str
        A key of :data:`POWERS`.
    K : int, optional
        The horizon: then t = K throughout. Without it the schedule is anytime, good at every K, up to logarithms;
        SPIDER's and that of held batches are proved with a horizon only.
    **constants : float
        By parameter, finite and > 0; without one, that of :data:`CONSTANTS`, or 1. For penalties the theory asks for
        η_k ≤ 1/(L_f + β_k L_g), with variance reduction for half of it.

    Examples
    --------
    >>> print(schedule("penalty", K=16))
    step_size=0.025, upper_batch=4, lower_batch=16, barrier=1, selection=0.25
    >>> print(schedule("storm_penalty", barrier=2.0))
    step_size=0.05·t^-0.25, upper_batch=1, lower_batch=1·t^0.5, barrier=2·t^0.25, momentum=1·t^-0.5, selection=1·t^-0.5
    """
    one_of("name", name, tuple(POWERS))
    powers = POWERS[name]
    last = None if K is None else whole("K", K) - 1
    law: Callable[[float, float], Power] = (
        Power if last is None else lambda c, e: Power(Power(c, e)(last))
    )
    unknown = [parameter for parameter in constants if parameter not in powers]
    if unknown:
        raise TypeError(
            f"{unknown[0]}={constants[unknown[0]]!r} has no effect: {name} has {', '.join(powers)}"
        )
    laws: dict[str, Any] = {}
    for parameter, exponent in powers.items():
        constant = constants.get(parameter, CONSTANTS.get(parameter, 1.0))
        if isinstance(constant, (bool, str)) or not 0 < floating(constant) < math.inf:
            raise ValueError(
                f"{parameter}={constant!r}: a proportionality constant must be a number, finite and > 0"
            )
        laws[parameter] = law(float(constant), exponent)
    return Schedule(**laws)
