"""The arguments of an optimizer, checked, as the parts that it is made of."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from tiebreak import rules
from tiebreak.decision import Decision
from tiebreak.estimators import Estimator
from tiebreak.options import chosen_method, tolerant
from tiebreak.schedules import Schedule
from tiebreak.torch.reference import Reference, chosen

__all__ = ["Settings", "settings"]


class Settings(NamedTuple):
    """How to decide, what changes with the step, what the rule sees, and what the lower loss is compared with."""

    decision: Decision
    schedule: Schedule
    estimator: Estimator
    target: Reference


def settings(given: Mapping[str, Any]) -> Settings:
    """The parts, from the arguments of :class:`DynamicBarrier` by name; what would have no effect is refused."""
    longest = given["max_norm"]
    if longest is not None and (isinstance(longest, bool) or not 0 < longest < math.inf):
        raise ValueError(f"max_norm={longest!r} must be a number, finite and > 0")
    found = _rule_mode(given) if given["tolerance"] is None else _tolerance_mode(given)
    if given["generators"] and found.estimator.evaluations == 1 and found.target.copy is None:
        raise ValueError('generators=… has no effect: no closure is called twice (reference="twin", "start", STORM)')
    return found


def _tolerance_mode(given: Mapping[str, Any]) -> Settings:
    unused = {name: given[name] for name in ("rule", "others", "method", "normalize")}
    unused |= {"correct_noise": given["correct_noise"] or None}
    unused |= {"scope": None if given["scope"] == "global" else given["scope"]}
    laws = {name: given[name] for name in _LAWS}
    tolerance, kind, schedule = tolerant(given["tolerance"], given["reference"], given["estimator"], laws, unused)
    return Settings(Decision(tolerance=tolerance), schedule, kind, chosen(given["reference"], given["model"]))


def _rule_mode(given: Mapping[str, Any]) -> Settings:
    for name in ("reference", "model"):
        if given[name] is not None:
            raise ValueError(f"{name}={given[name]!r} has no effect without tolerance=")
    laws = {name: given[name] for name in _LAWS}
    method = chosen_method(given["method"], given["rule"], laws, given["others"], given["estimator"])
    decision = Decision(method, normalize=given["normalize"] is not False, apply=partial(_shaped, method.rule))
    return Settings(decision, method.schedule, method.estimator, Reference(None))


_LAWS = ("barrier", "regularizer", "penalty", "momentum")


def _shaped(rule: rules.Rule, fg: Tensor, gg: Tensor, arguments: dict[str, Any]) -> Any:
    """λ of the shape of fg, whatever the rule makes of it."""
    multiplier = rule(fg, gg, **arguments)
    return multiplier if getattr(multiplier, "shape", None) == fg.shape else multiplier + 0 * fg
