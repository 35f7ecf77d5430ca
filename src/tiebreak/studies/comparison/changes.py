"""Changed constants of a method or a problem, as a command line writes them: ``sdbgd+step_size=0.02+a=0.3``.

After each plus sign come a name and a number. For a method the name is that of a law, whose constant changes and whose
power stays, or the `a` of Corollary 1. For a problem it is an argument of the function that makes it, such as
``paper+sigma_f=0.5+sigma_g=0.1``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tiebreak.methods import Method
from tiebreak.schedules import LEGAL, Power, Schedule, corollary_powers

Facts: TypeAlias = Mapping[str, Any]

_SEPARATOR = re.compile(r"\+(?=[A-Za-z_]\w*=)")


def split_changes(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name or place in a text, and the changes after it.

    Examples
    --------
    >>> split_changes("methods", "sdbgd+a=0.3+step_size=2e-2")
    ('sdbgd', {'a': 0.3, 'step_size': 0.02})
    """
    base, *parts = _SEPARATOR.split(text)
    changes: dict[str, Any] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name in changes:
            raise ValueError(f"{argument}={text!r} says {name} more than once")
        changes[name] = value
        if name != "noise":  # the only word among numbers
            changes[name] = _number(f"{argument}={text!r}: {name}", value)
    return base, changes


def _number(text: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise ValueError(f"{text}={value!r} must be a number")


def with_changes(name: str, changes: Facts) -> str:
    """A name with its changes, for tables; the name of a problem has its dimension and noise already."""
    visible = {
        n: value for n, value in changes.items() if n not in ("dimension", "noise")
    }
    return " ".join([name, *(f"{n}={value}" for n, value in visible.items())])


def changed(method: Method, changes: Facts) -> Method:
    """The method with the constants of some laws changed; their powers stay, unless `a` is among the changes.

    Examples
    --------
    >>> from tiebreak import methods
    >>> print(changed(methods.sdbgd, {"a": 0.2, "step_size": 0.1}).schedule)
    step_size=0.1·t^-0.2, upper_batch=1·t^1.2, lower_batch=1·t^2.8, barrier=0.5·t^-0.4, regularizer=1·t^-1.6
    """
    if not changes:
        return method
    schedule = method.schedule
    laws: dict[str, Any] = {name: getattr(schedule, name) for name in LEGAL}
    laws |= dict(schedule.others)
    powers = {n: law.exponent for n, law in laws.items() if isinstance(law, Power)}
    constants = {name: laws[name].constant for name in powers}
    names = [name for name in changes if name != "a"]
    _check_names(method, changes, powers)
    if "a" in changes:
        powers |= corollary_powers(changes["a"])
        names += [name for name in corollary_powers(0.25) if name not in names]
    laws_changed: dict[str, Any] = {
        name: replace(
            laws[name],
            constant=float(changes.get(name, constants[name])),
            exponent=powers[name],
        )
        for name in names
    }
    other_laws = {n: law for n, law in laws_changed.items() if n in schedule.others}
    options = {n: law for n, law in laws_changed.items() if n not in other_laws}
    if other_laws:
        options["others"] = {**schedule.others, **other_laws}
    words = [f"{name}={value:g}" for name, value in changes.items()]
    new = method.replace(**options, name=" ".join([method.name, *words]))
    for name, law in laws_changed.items():
        if name not in other_laws and getattr(new.schedule, name) != law:
            raise ValueError(
                f"{name}={law}: {method.name} has an estimator that sets its own"
            )
    return new


def _check_names(method: Method, changes: Facts, powers: Mapping[str, float]) -> None:
    has_a = _is_corollary(method.schedule)
    for name, value in changes.items():
        if name == "a":
            if not has_a:
                raise ValueError(
                    f"a={value!r}: only schedules of Corollary 1 have an a, and {method.name} has not"
                )
            if not 0 < value < 1 / 3:
                raise ValueError(
                    f"a={value!r} must be in (0, 1/3), where Corollary 1 holds"
                )
        elif name not in powers:
            legal = ", ".join([*powers, *["a"] * has_a])
            raise ValueError(
                f"{name}={value!r}: {method.name} has no power law of this name; it has {legal}"
            )


def _is_corollary(schedule: Schedule) -> bool:
    """Whether the powers are those of Corollary 1 for some a."""
    laws: dict[str, Any] = {n: getattr(schedule, n) for n in corollary_powers(0.25)}
    if not all(isinstance(law, Power) for law in laws.values()):
        return False
    powers = corollary_powers(-laws["step_size"].exponent)
    return all(abs(law.exponent - powers[name]) < 1e-12 for name, law in laws.items())
