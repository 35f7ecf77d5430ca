"""The arguments of :class:`~tiebreak.torch.DynamicBarrier`, checked before anything is built from them."""

import math
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch

from tiebreak import rules
from tiebreak.checks import floating
from tiebreak.decision import Decision
from tiebreak.options import checked_tolerance, refuse_unused, training_method
from tiebreak.torch.buffers import modules_of
from tiebreak.torch.levels import TwoLevels
from tiebreak.torch.reference import Reference, named_reference


def check_arguments(
    base: Any, normalize: Any, max_norm: Any, fused: Any, generators: Any
) -> None:
    """Raise if one of these arguments is illegal by itself."""
    if not isinstance(base, torch.optim.Optimizer) or isinstance(
        base, (TwoLevels, torch.optim.LBFGS)
    ):
        what = "it must be a torch.optim.Optimizer that steps on gradients it is given, such as AdamW(…)"
        raise TypeError(f"base is a {type(base).__name__}; {what}")
    if fused not in (None, True, False):
        raise ValueError(f"fused={fused!r} must be None, True or False")
    if max_norm is not None and not _positive(max_norm):
        raise ValueError(f"max_norm={max_norm!r} must be a number, finite and > 0")
    if normalize not in (None, True, False):
        raise ValueError(f"normalize={normalize!r} must be True or False")
    if not isinstance(generators, Sequence) or not all(
        isinstance(g, torch.Generator) for g in generators
    ):
        raise TypeError(f"generators={generators!r} must be a list of torch.Generator")


def rule_decision(method: Any, normalize: bool | None, reference: Any) -> Decision:
    """The decision by the rule of a method; a reference would have no effect."""
    refuse_unused("without tolerance=", reference=reference)
    row = training_method(method)
    return Decision(
        row, normalize=normalize is not False, apply=partial(_shaped, row.rule)
    )


def tolerance_decision(
    base: torch.optim.Optimizer,
    tolerance: Any,
    reference: Any,
    method: Any,
    normalize: bool | None,
) -> Decision:
    """The decision by a tolerance; a method and `normalize` would have no effect."""
    refuse_unused(
        f"with tolerance={tolerance!r}: give one of them",
        method=method,
        normalize=normalize,
    )
    decision = Decision(tolerance=checked_tolerance(tolerance, reference))
    if any(group.get("maximize") for group in base.param_groups):
        raise ValueError(
            "tolerance= keeps a loss small, and the base optimizer was made with maximize=True: turn the signs"
        )
    return decision


def reference_for(
    reference: Any, modules: Sequence[torch.nn.Module], generators: Any
) -> Reference:
    """The reference; a copy of the model needs its modules, and generators have an effect on a copy alone."""
    if reference in ("start", "twin") and not modules:
        raise ValueError(
            f'reference="{reference}" needs the model whose copy is {"trained" if reference == "twin" else "kept"}: '
            f'reference="{reference}", model=model; for bare parameters model=torch.nn.ParameterList(parameters)'
        )
    lower_reference = named_reference(reference, modules)
    if generators and lower_reference.copy is None:
        raise ValueError(
            'generators=… has no effect: no closure is called twice (reference="twin", "start")'
        )
    return lower_reference


def trained_modules(
    model: Any, base: torch.optim.Optimizer
) -> tuple[torch.nn.Module, ...]:
    """Return the modules that `model` names; raise unless the base trains one of their parameters."""
    modules = modules_of(model)
    trained = {id(p) for group in base.param_groups for p in group["params"]}
    if modules and not any(
        id(p) in trained for module in modules for p in module.parameters()
    ):
        raise ValueError(
            f"model={type(modules[0]).__name__}(…) has no parameter that `base` trains: give the model that it was "
            "made for (was the model copied or re-created since?)"
        )
    return modules


def _positive(value: Any) -> bool:
    return (
        not isinstance(value, bool)
        and isinstance(value, Real)
        and 0 < floating(value) < math.inf
    )


def _shaped(rule: rules.Rule, fg: Any, gg: Any, arguments: dict[str, Any]) -> Any:
    """λ of the shape of fg, whatever the rule makes of it."""
    multiplier = rule(fg, gg, **arguments)
    shapes = [
        getattr(value, "shape", None) for value in (multiplier, fg)
    ]  # Python's numbers have none
    return multiplier if shapes[0] == shapes[1] else multiplier + 0 * fg
