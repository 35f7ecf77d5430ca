"""Every method of the comparison, with the 15 settings it is tuned over: three steps by five values of one constant.

Steps are in units of `Units.step`; weights and barriers are plain, f and g having like scales here. The barrier goes
beyond 1, where the theory ends. The regularizer is `Units.slack`, in the unit of ‖∇g‖², and is not tuned.
"""

from collections.abc import Callable
from typing import NamedTuple

from tiebreak import Average, Method, Power, Schedule, Storm, methods, rules

__all__ = ["Candidate", "Units", "candidates", "defaults"]


class Units(NamedTuple):
    """What a problem's lengths are measured in, its rows, and the batches of the sampling methods (upper, lower)."""

    step: float
    slack: float
    rows: tuple[int, int]
    batches: tuple[int, int]


class Candidate(NamedTuple):
    """A method with its grid; `exact` ones see all rows at every step and are charged for them."""

    name: str
    exact: bool
    make: Callable[[float, float], Method]  # (step, the other constant) → the method
    steps: tuple[float, ...]
    others: tuple[float, ...]


def candidates(units: Units) -> list[Candidate]:
    """All methods, with exact gradients and with sampled ones."""
    return [*_all(units, exact=True), *_all(units, exact=False)]


def _all(units: Units, *, exact: bool) -> list[Candidate]:
    upper, lower = units.rows if exact else units.batches
    even, few, many = (0.1, 0.4, 1.5), (0.5, 2, 8), (1, 4, 16)
    barriers = (0.3, 1, 3, 10, 30)

    def make(name, rule, laws, steps, others, *estimator):
        def build(step: float, other: float) -> Method:
            schedule = Schedule(
                upper_batch=upper, lower_batch=lower, **laws(step * units.step, other)
            )
            return Method(name, rule, schedule, *estimator)

        return Candidate(
            name if exact else f"{name}, sampled", exact, build, steps, others
        )

    def barrier(name, rule, laws, steps, *estimator):
        return make(
            name,
            rule,
            lambda s, c: laws(s, c, units.slack),
            steps,
            barriers,
            *estimator,
        )

    weighted = make("weighted sum", rules.constant, weight, even, (3, 10, 30, 100, 300))
    penalty = make(
        "growing penalty", rules.constant, growing, even, (0.3, 1, 3, 10, 30)
    )
    plain, reconstructed = (
        barrier("SDBGD", rules.sdbgd, sdbgd, few),
        barrier("PR-SDBPG†", rules.penalized, pr, many),
    )
    if exact:
        iterated = make("a-IRG", rules.constant, a_irg, many, (0.01, 0.03, 0.1, 0.3, 1))
        sam = make("BiG-SAM", rules.constant, big_sam, even, (1, 3, 10, 30, 100))
        dynamic = make("DBGD", rules.dbgd, dbgd, few, barriers)
        both = barrier("SDBPG", rules.sdbpg, sdbpg, few)
        return [weighted, penalty, iterated, sam, dynamic, plain, both, reconstructed]
    averaged = barrier("SDBGD averaged", rules.sdbgd, sdbgd, few, Average(0.1))
    reduced = barrier("VR-PR-SDBPG†", rules.penalized, vr_pr, many, Storm())
    # Sampled, SDBPG and SDBGD are as good as the same: what they differ by, ρβ, is small beside the noise.
    return [weighted, penalty, plain, reconstructed, averaged, reduced]


def defaults() -> list[Candidate]:
    """Our methods as a user gets them by name: the paper's schedules with their growing batches, nothing tuned."""
    return [
        Candidate(
            f"{method.name}, published constants",
            False,
            lambda step, other, method=method: method,
            (1,),
            (1,),
        )
        for name, method in methods.METHODS.items()
        if name != "dbgd"  # meant for exact gradients
    ]


def weight(step: float, weight: float) -> dict:
    """Gradient descent on f + weight · g, a step that suits the sum."""
    return {"step_size": 2 * step / (1 + weight), "barrier": weight}


def growing(step: float, weight: float) -> dict:
    """The same with a weight that grows as √t."""
    return {
        "step_size": lambda k: 2 * step / (1 + weight * (k + 1) ** 0.5),
        "barrier": Power(weight, 1 / 2),
    }


def a_irg(step: float, share: float) -> dict:
    """x ← x − γ_k (∇g + η_k ∇f), γ = γ₀ t^−1/2, η = η₀ t^−1/4 (Kaushik and Yousefian 2021)."""
    return {
        "step_size": Power(step * share, -3 / 4),
        "barrier": Power(1 / share, 1 / 4),
    }


def big_sam(step: float, gamma: float) -> dict:
    """x ← α_k (x − s∇f) + (1 − α_k)(x − s∇g), α_k = min(2γ/k, 1) (Sabach and Shtern 2017), one s for both."""
    alpha = lambda k: min(2 * gamma / (k + 1), 1.0)  # noqa: E731
    return {
        "step_size": lambda k: 2 * step * alpha(k),
        "barrier": lambda k: (1 - alpha(k)) / alpha(k),
    }


def dbgd(step: float, barrier: float) -> dict:
    """The dynamic barrier with φ = β‖∇g‖² (Gong, Liu and Liu 2021)."""
    return {"step_size": Power(step, -1 / 4), "barrier": barrier}


def sdbgd(step: float, barrier: float, slack: float) -> dict:
    """The paper's powers of t; the regularizer in the problem's own unit."""
    return {
        "step_size": Power(step, -1 / 4),
        "barrier": Power(barrier, -1 / 4),
        "regularizer": Power(slack, -3 / 2),
    }


def sdbpg(step: float, barrier: float, slack: float) -> dict:
    """Likewise."""
    return {
        "step_size": Power(step, -1 / 4),
        "barrier": Power(barrier, -1 / 4),
        "regularizer": Power(slack, -1),
    }


def pr(step: float, barrier: float, slack: float) -> dict:
    """Likewise; γ = 1/μ."""
    return {
        "step_size": Power(step, -1 / 2),
        "barrier": Power(barrier, 1 / 4),
        "regularizer": slack,
        "penalty": 1 / slack,
    }


def vr_pr(step: float, barrier: float, slack: float) -> dict:
    """Likewise, with STORM's weight for the newest sample."""
    return pr(step, barrier, slack) | {"momentum": Power(0.5, -1 / 4)}
