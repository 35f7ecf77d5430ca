"""A method or a problem with something changed, as one says it on a command line: ``sdbgd+step_size=0.02+a=0.3``.

What follows a plus sign is a name and a number. Of a method it is the constant of a law, whose power stays, or the `a`
of Corollary 1; of a problem, what the function that makes it takes, such as ``paper+sigma_f=0.5+sigma_g=0.1``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiebreak.methods import Method
from tiebreak.schedules import LEGAL, Power, Schedule, corollary_powers

Changes = Mapping[str, Any]

_SETS = re.compile(r"\+(?=[A-Za-z_]\w*=)")


def split_changes(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name or place in a text, and what is changed there.

    Examples
    --------
    >>> split_changes("methods", "sdbgd+a=0.3+step_size=2e-2")
    ('sdbgd', {'a': 0.3, 'step_size': 0.02})
    """
    base, *parts = _SETS.split(text)
    found: dict[str, Any] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name in found:
            raise ValueError(f"{argument}={text!r} says {name} more than once")
        found[name] = _value(argument, text, name, value)
    return base, found


def _value(argument: str, text: str, name: str, value: str) -> Any:
    if name == "noise":  # the one word among numbers
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise ValueError(f"{argument}={text!r}: {name}={value!r} must be a number")


def varied(method: Method, changes: Changes) -> Method:
    """The method with the constants of some laws changed; their powers stay, unless `a` is among what is changed.

    Examples
    --------
    >>> from tiebreak import methods
    >>> print(varied(methods.sdbgd, {"a": 0.2, "step_size": 0.1}).schedule)
    step_size=0.1·t^-0.2, upper_batch=1·t^1.2, lower_batch=1·t^2.8, barrier=0.5·t^-0.4, regularizer=1·t^-1.6
    """
    if not changes:
        return method
    schedule = method.schedule
    laws: dict[str, Any] = {name: getattr(schedule, name) for name in LEGAL} | dict(
        schedule.others
    )
    powers = {
        name: law.exponent for name, law in laws.items() if isinstance(law, Power)
    }
    numbers = {name: value for name, value in changes.items() if name != "a"}
    for name in numbers:
        if name not in powers:
            has = ", ".join([*powers, *(["a"] if _of_corollary(schedule) else [])])
            raise ValueError(
                f"{name}={changes[name]!r}: {method.name} has no power law of this name; it has {has}"
            )
    if "a" in changes:
        if not _of_corollary(schedule):
            raise ValueError(
                f"a={changes['a']!r}: only schedules of Corollary 1 have an a, and {method.name} has not"
            )
        if not 0 < changes["a"] < 1 / 3:
            raise ValueError(
                f"a={changes['a']!r} must be in (0, 1/3), where Corollary 1 holds"
            )
        powers |= corollary_powers(changes["a"])
        numbers = {
            name: laws[name].constant for name in corollary_powers(0.25)
        } | numbers
    new: dict[str, Any] = {
        name: replace(laws[name], constant=float(value), exponent=powers[name])
        for name, value in numbers.items()
    }
    others = {name: new.pop(name) for name in [*new] if name in schedule.others}
    new |= {"others": {**schedule.others, **others}} if others else {}
    made = method.replace(
        **new, name=" ".join([method.name, *(f"{n}={v:g}" for n, v in changes.items())])
    )
    ignored = [
        name
        for name, law in new.items()
        if name != "others" and getattr(made.schedule, name) != law
    ]
    if ignored:
        raise ValueError(
            f"{ignored[0]}={changes[ignored[0]]!r}: {method.name} has an estimator that sets its own"
        )
    return made


def _of_corollary(schedule: Schedule) -> bool:
    """Whether the powers are those of Corollary 1 for some a."""
    laws: dict[str, Any] = {
        name: getattr(schedule, name) for name in corollary_powers(0.25)
    }
    if not all(isinstance(law, Power) for law in laws.values()):
        return False
    powers = corollary_powers(-laws["step_size"].exponent)
    return all(abs(law.exponent - powers[name]) < 1e-12 for name, law in laws.items())
