"""The arguments of :class:`~tiebreak.torch.DynamicBarrier`, checked before anything is built from them."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebreak import rules
from tiebreak.checks import floating
from tiebreak.decision import Decision
from tiebreak.methods import Method
from tiebreak.options import (
    GIVEN,
    START,
    TWIN,
    checked_tolerance,
    refuse_unused,
    training_method,
)
from tiebreak.rules import Scalar
from tiebreak.schedules import LEGAL
from tiebreak.torch.model_copy import ModelCopy
from tiebreak.torch.reference import (
    CurveReference,
    FunctionReference,
    GivenReference,
    NumberReference,
    Reference,
)
from tiebreak.torch.twin import Twin

#: A number, a word, the path of a CSV log, or a function of the step.
ReferenceArgument: TypeAlias = (
    Real | float | str | os.PathLike[str] | Callable[[int], Any] | None
)
#: The references that have a word, each made from the model's modules. A new kind gets a line here.
REFERENCE_KINDS: dict[str, Callable[[Sequence[nn.Module]], Reference]] = {
    GIVEN: lambda modules: GivenReference(),
    START: ModelCopy,
    TWIN: Twin,
}


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise TypeError if there is such an argument, with the line to write."""
    for name in names:
        if name in LEGAL:
            raise TypeError(
                f"{name} is a number of the method: give method=tiebreak.methods.sdbgd.replace({name}=…)"
            )
        raise TypeError(
            f"{name}= is no argument of this optimizer. Options of the base optimizer belong to the base, as in "
            "DynamicBarrier(torch.optim.AdamW(model.parameters(), lr=1e-3), tolerance=…, reference=…)"
        )


def check_arguments(
    base: object,
    normalize: object,
    max_norm: object,
    fused: object,
    generators: object,
) -> None:
    """Raise if one of these arguments is illegal by itself."""
    # A wrapper of this library has `model_copy`.
    is_wrapper = hasattr(base, "model_copy") or isinstance(base, torch.optim.LBFGS)
    if not isinstance(base, Optimizer) or is_wrapper:
        raise TypeError(
            f"base is a {type(base).__name__}; it must be a torch.optim.Optimizer that steps on gradients it is given, "
            "such as AdamW(…)"
        )
    if fused not in (None, True, False):
        raise ValueError(f"fused={fused!r} must be None, True or False")
    if max_norm is not None and not _is_positive(max_norm):
        raise ValueError(f"max_norm={max_norm!r} must be a number, finite and > 0")
    if normalize not in (None, True, False):
        raise ValueError(f"normalize={normalize!r} must be True or False")
    if not isinstance(generators, Sequence) or not all(
        isinstance(g, torch.Generator) for g in generators
    ):
        raise TypeError(f"generators={generators!r} must be a list of torch.Generator")


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < floating(value) < math.inf


def rule_decision(
    method: Method | str | None, normalize: bool | None, reference: object
) -> Decision:
    """Return the decision by the rule of a method; a reference would have no effect."""
    refuse_unused("without tolerance=", reference=reference)
    row = training_method(method)
    apply = partial(_apply_rule, row.rule)
    return Decision(row, normalize=normalize is not False, apply=apply)


def _apply_rule(
    rule: rules.Rule, fg: Scalar, gg: Scalar, arguments: dict[str, Any]
) -> Scalar:
    """λ with the shape of fg, whatever the rule returns."""
    multiplier = rule(fg, gg, **arguments)
    # Python numbers have no shape.
    if getattr(multiplier, "shape", None) == getattr(fg, "shape", None):
        return multiplier
    return multiplier + 0 * fg


def tolerance_decision(
    base: Optimizer,
    tolerance: float | str,
    reference: ReferenceArgument,
    method: Method | str | None,
    normalize: bool | None,
) -> Decision:
    """Return the decision by a tolerance; a method and `normalize` would have no effect."""
    refuse_unused(
        f"with tolerance={tolerance!r}: give one of them",
        method=method,
        normalize=normalize,
    )
    allowance = checked_tolerance(tolerance, reference, tuple(REFERENCE_KINDS))
    if any(group.get("maximize") for group in base.param_groups):
        raise ValueError(
            "tolerance= keeps a loss small, and the base optimizer was made with maximize=True: turn the signs"
        )
    return Decision(tolerance=allowance)


def make_reference(
    reference: ReferenceArgument,
    modules: Sequence[nn.Module],
    base: Optimizer,
) -> Reference:
    """Return the reference by its word, number, file or function."""
    trained = {id(p) for group in base.param_groups for p in group["params"]}
    source = _make_reference(GIVEN if reference is None else reference, modules)
    if source.needs_model and not modules:
        if reference == TWIN:
            role = "trained"
        else:
            role = "kept"
        raise ValueError(
            f'reference="{reference}" needs the model whose copy is {role}: '
            f'reference="{reference}", model=model; for bare parameters model=torch.nn.ParameterList(parameters)'
        )
    if source.needs_model:
        _check_trained(str(source), modules, trained)
    return source


def _check_trained(
    reference: str, modules: Sequence[nn.Module], trained: set[int]
) -> None:
    """Raise if another optimizer may train a part of the model: the copy would be half of the model's."""
    names = []
    for module in modules:
        for name, p in module.named_parameters():
            if p.requires_grad and id(p) not in trained:
                names.append(name)
    if names:
        raise ValueError(
            f"reference={reference} needs a base that trains the whole model, and {len(names)} trainable parameters are not "
            f"in it, such as {names[0]!r}. Freeze them, p.requires_grad_(False); or, if another optimizer trains them, make "
            "one optimizer of both whose step() calls both steps (examples/two_base_optimizers.py)"
        )


def _make_reference(reference: Any, modules: Sequence[nn.Module]) -> Reference:
    if isinstance(reference, str) and reference in REFERENCE_KINDS:
        return REFERENCE_KINDS[reference](modules)
    if isinstance(reference, Real):
        return NumberReference(float(reference))
    if callable(reference):
        return FunctionReference(reference)
    return CurveReference(reference)


def scalar_reference(reference: ReferenceArgument | Tensor) -> Any:
    """Return a loss, which is a tensor of one element, as a number; anything else as it is."""
    if isinstance(reference, Tensor) and reference.numel() == 1:
        return float(reference.detach())
    return reference


def modules_of(model: nn.Module | Sequence[nn.Module] | None) -> tuple[nn.Module, ...]:
    """Return the modules of a `model=` argument: one module, or several in a list or tuple."""
    if model is None:
        return ()
    if isinstance(model, (list, tuple)):
        modules = tuple(model)
    else:
        modules = (model,)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"model has a {type(module).__name__}; it must be a torch.nn.Module, or several in a list"
            )
    return modules


def trained_modules(
    model: nn.Module | Sequence[nn.Module] | None, base: Optimizer
) -> tuple[nn.Module, ...]:
    """Return the modules that `model` names; raise unless the base trains one of their parameters."""
    modules = modules_of(model)
    trained = {id(p) for group in base.param_groups for p in group["params"]}
    ids = {id(p) for module in modules for p in module.parameters()}
    if modules and not trained & ids:
        raise ValueError(
            f"model={type(modules[0]).__name__}(…) has no parameter that `base` trains: give the model that it was "
            "made for (was the model copied or re-created since?)"
        )
    return modules
