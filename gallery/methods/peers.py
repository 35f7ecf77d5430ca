"""The packages that users have today, called as their documentation has it."""

from typing import Any

import torch

from gallery.methods.method import (
    BACKWARD,
    WEIGHTS,
    Closure,
    Knobs,
    Method,
    Seen,
    Setting,
    Step,
)

__all__ = ["DUAL_ASCENT", "NUPI", "PCD", "PDU", "UPGRAD", "cooper_step", "torchjd_step"]

_SMOOTH = 0.9  # ν of νPI


def torchjd_step(
    aggregator: Any, optimizer: torch.optim.Optimizer, unit: float = 1.0
) -> Step:
    """A step of TorchJD on f/unit and g.

    Without vmap and without the joined Jacobian, its documented ways to save memory.
    """
    from torchjd.autojac import backward, jac_to_grad

    parameters = [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if p.requires_grad
    ]

    def step(upper: Closure, lower: Closure) -> Seen:
        optimizer.zero_grad()
        f, g = upper(), lower()
        backward([f / unit, g], parallel_chunk_size=1)
        jac_to_grad(parameters, aggregator, optimize_gramian_computation=True)
        optimizer.step()
        return Seen(g.detach(), f.detach())

    return step


def _pcd(setting: Setting, knobs: Knobs) -> Step:
    from torchjd.aggregation import PCD as Aggregator

    return torchjd_step(Aggregator(tau=knobs["tau"]), setting.optimizer, setting.unit)


def _upgrad(setting: Setting, knobs: Knobs) -> Step:
    from torchjd.aggregation import UPGrad as Aggregator

    device, weight = setting.parameters[0].device, knobs["weight"]
    preference = torch.tensor([1 / (1 + weight), weight / (1 + weight)], device=device)
    return torchjd_step(
        Aggregator(pref_vector=preference), setting.optimizer, setting.unit
    )


def cooper_step(
    optimizer: torch.optim.Optimizer, dual: Any, limit: float, *, unit: float = 1.0, start: float = 0.0,
    normalized: bool = False,
) -> Step:  # fmt: skip
    """Cooper: min f/unit subject to g ≤ limit, the multiplier by `dual`, an optimizer's class with its arguments.

    With `normalized` the direction is divided by 1 + λ before the base optimizer sees it.
    """
    import cooper

    device = optimizer.param_groups[0]["params"][0].device
    multiplier: Any = cooper.multipliers.DenseMultiplier(
        init=torch.full((1,), start, device=device)
    )

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]  # of a package without types
        def __init__(self) -> None:
            super().__init__()
            self.lower = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=multiplier,
            )

        def compute_cmp_state(self, upper: Closure, lower: Closure) -> Any:
            f, g = upper(), lower()
            state = cooper.ConstraintState(violation=(g - limit).reshape(1))
            seen[:] = [g.detach(), f.detach()]
            return cooper.CMPState(
                loss=f / unit, observed_constraints={self.lower: state}
            )

    seen: list[Any] = []
    problem = Problem()
    rolled = cooper.optim.SimultaneousOptimizer(
        problem, optimizer, dual(problem.dual_parameters())
    )
    if normalized:

        def shorten(base: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            factor = 1 / (1 + multiplier.weight.detach())
            for group in base.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(factor.to(p.grad.dtype))

        optimizer.register_step_pre_hook(shorten)

    def step(upper: Closure, lower: Closure) -> Seen:
        weight = multiplier.weight.detach().clone()[0]
        rolled.roll(compute_cmp_state_kwargs={"upper": upper, "lower": lower})
        return Seen(seen[0], seen[1], weight)

    return step


def _limit(setting: Setting) -> float:
    return setting.reference + setting.tolerance


def _dual_ascent(setting: Setting, knobs: Knobs) -> Step:
    def dual(parameters: Any) -> Any:
        return torch.optim.SGD(
            parameters, lr=knobs["gain"] / setting.tolerance, maximize=True
        )

    return cooper_step(
        setting.optimizer,
        dual,
        _limit(setting),
        unit=setting.unit,
        start=knobs["start"],
        normalized=True,
    )


def _nupi(setting: Setting, knobs: Knobs) -> Step:
    from cooper.optim import nuPI

    def dual(parameters: Any) -> Any:
        gains = {
            "Ki": knobs["gain"] / setting.tolerance,
            "Kp": knobs["proportional"] / setting.tolerance,
        }
        return nuPI(parameters, lr=1.0, ema_nu=_SMOOTH, maximize=True, **gains)

    return cooper_step(
        setting.optimizer,
        dual,
        _limit(setting),
        unit=setting.unit,
        start=knobs["start"],
        normalized=True,
    )


def _pdu(setting: Setting, knobs: Knobs) -> Step:
    def dual(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=knobs["gain"], maximize=True)

    return cooper_step(setting.optimizer, dual, _limit(setting))


#: τ of PCD. It normalises both gradients, so that no scale of g asks for more than 1. The first, third and fifth are
#: what three trials take.
_SHARES = (0.03, 0.1, 0.3, 0.6, 1.0, 0.8)
_GAINS = tuple(
    {"gain": gain, "start": start}
    for start in (0.0, 30.0)
    for gain in (0.001, 0.01, 0.1)
)
_LAGRANGIAN = "λ ← [λ + c e]₊, e the violation in tolerances"

DUAL_ASCENT = Method(
    "dual ascent (Cooper)",
    f"{_LAGRANGIAN}; λ from 0 or 30.",
    _dual_ascent,
    2 * BACKWARD,
    _GAINS,
    ("cooper",),
    True,
)
NUPI = Method(
    "νPI (Cooper)", f"{_LAGRANGIAN} and + K (ξ − ξ₋), ξ an average of e; ν = 0.9, K = 1.", _nupi, 2 * BACKWARD,
    tuple(knobs | {"proportional": 1.0} for knobs in _GAINS), ("cooper",), True,
)  # fmt: skip
PDU = Method(
    "PDU-style", "λ ← [λ + c (g − limit)]₊ from 0, f + λ g, both in the losses' own units.", _pdu, 2 * BACKWARD,
    tuple({"gain": gain} for gain in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)), ("cooper",), True, only="start",
)  # fmt: skip
PCD = Method(
    "PCD (TorchJD)", "The direction nearest ∇f that gives g τ ‖∇g‖², both gradients normalised; τ ≤ 1.", _pcd,
    2 * BACKWARD, tuple({"tau": share} for share in _SHARES), ("torchjd",),
)  # fmt: skip
UPGRAD = Method(
    "UPGrad (TorchJD)", "Both gradients projected so that none conflicts; preference w for g.", _upgrad, 2 * BACKWARD,
    tuple({"weight": weight} for weight in WEIGHTS), ("torchjd", "qpsolvers", "quadprog"),
)  # fmt: skip
