"""Methods for the tests of optimizers: a rule with constant numbers."""

from typing import Any

from tiebreak import Method, Schedule, methods, rules
from tiebreak.estimators import named

_DEFAULTS = {"barrier": 1.0, "regularizer": 1e-8, "momentum": 0.1}


def simple_method(
    rule: Any = "sdbgd", estimator: Any = "minibatch", others: Any = None, **laws: Any
) -> Method:
    """A method of this rule, by name or as a function, with default numbers for what it needs."""
    rule = rules.RULES.get(rule, rule)
    estimator = named(estimator)
    needs = {*methods.asked(rule), *getattr(estimator, "needs", ())}
    laws = {name: number for name, number in _DEFAULTS.items() if name in needs} | laws
    return Method("simple", rule, Schedule(**laws, others=others or {}), estimator)
