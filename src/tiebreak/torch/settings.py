"""The arguments of an optimizer, checked, as the parts that it is made of."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import torch

from tiebreak import rules
from tiebreak.checks import floating
from tiebreak.decision import Decision
from tiebreak.estimators import Estimator
from tiebreak.options import chosen_method, tolerant
from tiebreak.schedules import Schedule
from tiebreak.torch.buffers import modules_of
from tiebreak.torch.levels import TwoLevels
from tiebreak.torch.reference import Reference, chosen

__all__ = ["Settings", "settings"]


class Settings(NamedTuple):
    """How to decide, what changes with the step, what the rule sees, and what the lower loss is compared with."""

    decision: Decision
    schedule: Schedule
    estimator: Estimator
    target: Reference
    modules: tuple[torch.nn.Module, ...] = ()


def settings(given: Mapping[str, Any]) -> Settings:
    """The parts, from the arguments of :class:`DynamicBarrier` by name; what would have no effect is refused."""
    base, longest = given["base"], given["max_norm"]
    if not isinstance(base, torch.optim.Optimizer) or isinstance(base, (TwoLevels, torch.optim.LBFGS)):
        what = "it must be a torch.optim.Optimizer that steps on gradients it is given, such as AdamW(…)"
        raise TypeError(f"base is a {type(base).__name__}; {what}")
    if given["fused"] not in (None, True, False):
        raise ValueError(f"fused={given['fused']!r} must be None, True or False")
    if longest is not None and not _positive(longest):
        raise ValueError(f"max_norm={longest!r} must be a number, finite and > 0")
    if given["normalize"] not in (None, True, False):
        raise ValueError(f"normalize={given['normalize']!r} must be True or False")
    generators = given["generators"]
    if not isinstance(generators, Sequence) or not all(isinstance(g, torch.Generator) for g in generators):
        raise TypeError(f"generators={generators!r} must be a list of torch.Generator")
    modules = _modules(given["model"], base)
    found = _rule_mode(given) if given["tolerance"] is None else _tolerance_mode(given, modules)
    if generators and found.target.copy is None:
        raise ValueError('generators=… has no effect: no closure is called twice (reference="twin", "start")')
    return found._replace(modules=modules)


def _modules(model: Any, base: torch.optim.Optimizer) -> tuple[torch.nn.Module, ...]:
    """Return the modules that `model` names; raise unless the base trains one of their parameters."""
    modules = modules_of(model)
    trained = {id(p) for group in base.param_groups for p in group["params"]}
    if modules and not any(id(p) in trained for module in modules for p in module.parameters()):
        raise ValueError(
            f"model={type(modules[0]).__name__}(…) has no parameter that `base` trains: give the model that it was "
            "made for (was the model copied or re-created since?)"
        )
    return modules


def _tolerance_mode(given: Mapping[str, Any], modules: Sequence[torch.nn.Module]) -> Settings:
    unused = {name: given[name] for name in ("rule", "others", "method", "normalize")}
    laws = {name: given[name] for name in _LAWS}
    if isinstance(given["reference"], torch.Tensor) and given["reference"].numel() == 1:  # a loss as it comes
        given = {**given, "reference": float(given["reference"].detach())}
    # What divides by the size of its gradients guards the quotient with an eps; Adam, RMSprop and their kin do.
    rescales = any("eps" in group for group in given["base"].param_groups)
    tolerance, kind, schedule = tolerant(
        given["tolerance"], given["reference"], given["estimator"], laws, unused, rescales, given["headroom"]
    )
    if any(group.get("maximize") for group in given["base"].param_groups):
        raise ValueError(
            "tolerance= keeps a loss small, and the base optimizer was made with maximize=True: turn the signs"
        )
    if given["reference"] in ("start", "twin") and not modules:
        reference = given["reference"]
        raise ValueError(
            f'reference="{reference}" needs the model whose copy is {"trained" if reference == "twin" else "kept"}: '
            f'DynamicBarrier(base, tolerance={given["tolerance"]!r}, reference="{reference}", model=model); for bare '
            "parameters model=torch.nn.ParameterList(parameters)"
        )
    return Settings(Decision(tolerance=tolerance), schedule, kind, chosen(given["reference"], modules))


def _rule_mode(given: Mapping[str, Any]) -> Settings:
    for name, value in (("reference", given["reference"]), ("headroom", given["headroom"] or None)):
        if value is not None:
            raise ValueError(f"{name}={value!r} has no effect without tolerance=")
    laws = {name: given[name] for name in _LAWS}
    method = chosen_method(given["method"], given["rule"], laws, given["others"], given["estimator"])
    decision = Decision(method, normalize=given["normalize"] is not False, apply=partial(_shaped, method.rule))
    return Settings(decision, method.schedule, method.estimator, Reference(None))


def _positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < floating(value) < math.inf


_LAWS = ("barrier", "regularizer", "penalty", "momentum")


def _shaped(rule: rules.Rule, fg: Any, gg: Any, arguments: dict[str, Any]) -> Any:
    """λ of the shape of fg, whatever the rule makes of it."""
    multiplier = rule(fg, gg, **arguments)
    shapes = [getattr(value, "shape", None) for value in (multiplier, fg)]  # Python's numbers have none
    return multiplier if shapes[0] == shapes[1] else multiplier + 0 * fg
