"""Methods in words: names for tables and legends, and descriptions."""

import inspect

from tiebreak import rules
from tiebreak.methods import NAMED


def reconstructed(name: str) -> bool:
    """Whether the method's rule is our reconstruction: its authors' own is not available."""
    return NAMED[name].rule is rules.penalized


def label(name: str) -> str:
    """The name of a method in tables and legends; the dagger marks a reconstruction."""
    return NAMED[name].name + "†" * reconstructed(name)


def describe(name: str) -> dict[str, str]:
    """A method's name, rule, schedule and estimator, in words.

    >>> describe("penalty")["rule"]
    'λ = β: gradient descent on f + βg, the plain penalty baseline.'
    """
    method = NAMED[name]
    estimator = type(method.estimator)
    first_lines = [
        (inspect.getdoc(part) or "").partition("\n")[0]
        for part in (method.rule, estimator)
    ]
    return {
        "name": method.name,
        "rule": first_lines[0],
        "schedule": str(method.schedule),
        "estimator": f"{estimator.__name__}. {first_lines[1]}",
    }
