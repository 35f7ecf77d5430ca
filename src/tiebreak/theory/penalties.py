"""What plain descent on Φ = f + β_k g guarantees: fixed or growing weights, and upper batches that are held.

Ours, not the paper's. Everything rests on two lines. Dividing Φ_k = f + β_k g by β_k makes its gap *fall* as β_k grows,
P_k = (g − inf g) + (f − inf f)/β_k, so that descent telescopes whatever β does; and ∇g = (∇Φ − ∇f)/β in mean square::

    Σ (η_k/β_k) E‖∇Φ_k(x_k)‖² ≤ S = 2(Δ_g + Δ_f/β_0) + Σ (η_k/β_k) L_k η_k V_k,      L_k = L_f + β_k L_g
    E‖∇Φ_N(x_N)‖² ≤ S / Σ(η/β),   √E‖∇g(x_N)‖² ≤ G_f √(Σ(η/β³) / Σ(η/β)) + √(S / Σ(η/β)) / β_0   for P(N = k) ∝ η_k/β_k

and similarly for other weights.
"""

from typing import Any

import numpy as np

from tiebreak.checks import whole
from tiebreak.schedules import Schedule
from tiebreak.theory.bounds import (
    Adding,
    Bounds,
    Laws,
    Residuals,
    bounds_of_pair,
    checked_steps,
    laws,
    ways_to_add,
)
from tiebreak.theory.constants import Constants


def penalty_smoothness(barrier: Any, constants: Constants) -> Any:
    """L_f + βL_g: how fast ∇Φ changes."""
    return constants.L_f + barrier * constants.L_g


def total_variance(
    barrier: Any, upper_batch: Any, lower_batch: Any, constants: Constants
) -> Any:
    """V = σ_f²/B_f + β²σ_g²/B_g: the variance of one estimate of ∇Φ."""
    return (
        constants.sigma_f**2 / upper_batch
        + barrier**2 * constants.sigma_g**2 / lower_batch
    )


def initial_gap(p: Laws, constants: Constants) -> Any:
    """2(Δ_g + Δ_f/β_0)."""
    return 2 * (constants.delta_g + constants.delta_f / p.barrier[0])


def selected_residuals(
    gap: Any, p: Laws, constants: Constants, add: Adding
) -> Residuals:
    """Bounds on E‖∇g(x_N)‖² and E‖∇Φ(x_N)‖², P(N = k) ∝ w_k, from `gap` ≥ Σ (η_k/β_k) E‖∇Φ_k(x_k)‖².

    Σ w_k r_k ≤ max(w_kβ_k/η_k) · gap. The bound on ∇g is Minkowski's inequality in L²: no factor 2. With w = η/β, as
    the penalty rows draw N, the first maximum is 1; with w = ηβ, as Algorithm 1 does, that of ∇g is, and its bound has
    no logarithm. For constant parameters both are uniform.
    """
    weight = p.weight
    beta = p.barrier
    share = weight * beta / p.step_size
    total = add.total(weight)
    lower = constants.G_f * np.sqrt(add.total(weight / beta**2) / total)
    lower = (lower + np.sqrt(add.most(share / beta**2) * gap / total)) ** 2
    return lower, add.most(share) * gap / total


def constant_residuals(
    p: Any, constants: Constants, steps: Any, noise: Any
) -> Residuals:
    """Bounds for constant parameters: E‖∇Φ‖² ≤ E = 2(Δ_f+βΔ_g)/(ηK) + `noise` and E‖∇g‖² ≤ (G_f+√E)²/β²."""
    c = constants
    beta = p.barrier
    direction = 2 * (c.delta_f + beta * c.delta_g) / (p.step_size * steps) + noise
    return (c.G_f + np.sqrt(direction)) ** 2 / beta**2, direction


def penalty_residuals(p: Laws, constants: Constants, add: Adding) -> Residuals:
    """The bounds of :func:`penalty_bounds` on ‖∇g‖² and ‖∇Φ‖², unchecked, for any way to add up (cf. `theorem_1`)."""
    eta = p.step_size
    beta = p.barrier
    noise = total_variance(beta, p.upper_batch, p.lower_batch, constants)
    gap = initial_gap(p, constants) + add.total(
        eta / beta * penalty_smoothness(beta, constants) * eta * noise
    )
    return selected_residuals(gap, p, constants, add)


def check_penalty(schedule: Schedule, p: Laws, constants: Constants) -> None:
    """Raise ValueError where descent on f + β_k g has no bound: β_k > 0 must not fall, and η_k ≤ 1/(L_f + β_kL_g)."""
    rises = np.concatenate([[True], np.diff(p.barrier) >= -1e-12 * p.barrier[:-1]]) & (
        p.barrier > 0
    )
    if not rises.all():
        k = int(np.argmin(rises))
        raise ValueError(
            f"barrier={p.barrier[k]:g} at step {k} must be > 0 and must not fall; the schedule: {schedule}"
        )
    largest = 1 / penalty_smoothness(p.barrier, constants)
    legal = (p.step_size > 0) & (p.step_size <= (1 + 1e-12) * largest)
    if not legal.all():
        k = int(np.argmin(legal))
        raise ValueError(
            f"step_size={p.step_size[k]:g} must be at most 1/(L_f + barrier·L_g) = {largest[k]:g}, at step {k}"
        )


def penalty_bounds(schedule: Schedule, constants: Constants, steps: Any) -> Bounds:
    """What gradient descent on f + β_k g guarantees for x_N as the schedule draws N; for an array of K, arrays.

    β_k > 0 constant or growing, η_k ≤ 1/(L_f+β_kL_g), any batches. For constants this is
    E‖∇Φ‖² ≤ E = 2(Δ_f+βΔ_g)/(ηK) + Lη(σ_f²/B_f + β²σ_g²/B_g) and E‖∇g‖² ≤ (G_f + √E)²/β²; with η = 1/L,
    β ~ ε^{−1/2}, K ~ ε^{−2}, B_f ~ ε^{−1}, B_g ~ ε^{−2} both are O(ε). With β_k ~ t^{1/4}, η_k = 1/L_k, B_f ~ t^{1/2},
    B_g ~ t the same up to a logarithm, at every K.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> fixed = tiebreak.Schedule(step_size=1 / 11, barrier=10, upper_batch=100, lower_batch=10_000)
    >>> print(f"{penalty_bounds(fixed, constants, 10**5).direction_squared:.4f}")
    0.0146
    >>> print(f"{penalty_bounds(tiebreak.methods.penalty.schedule, constants, 10**5).direction_squared:.2f}")  # anytime
    0.35
    """
    K = checked_steps(steps)
    fixed = schedule.constant()
    p = laws(schedule, 1 if fixed else int(K.max()), regularized=False)
    check_penalty(schedule, p, constants)
    return bounds_of_pair(steps, penalty_residuals(p, constants, ways_to_add(K, fixed)))


def lazy_residuals(p: Any, constants: Constants, steps: Any, hold: Any) -> Residuals:
    """The bounds of :func:`lazy_bounds`, for constant parameters, unchecked but for (1): infinite where that fails.

    With a = v_f − ∇f(x_k), known before the lower batch is drawn, and Young's inequality with any c > 0,
    Σ E‖a_k‖² ≤ (1 + 1/c) K σ_f²/B_f + (1 + c) Q Σ E‖w_k‖², Q = L_f²η² m(m−1)/2. The condition is Lη + (1+c)Q ≤ 1, and
    c is chosen as well as that allows.
    """
    c = constants
    beta = p.barrier
    eta = p.step_size
    L = penalty_smoothness(beta, c)
    nu_f2 = c.sigma_f**2 / p.upper_batch
    nu_g2 = beta**2 * c.sigma_g**2 / p.lower_batch
    Q = np.asarray((c.L_f * eta) ** 2 * hold * (hold - 1) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = (1 - L * eta) / Q - 1
        young = np.fmin(most, np.sqrt(nu_f2 / (Q * nu_g2)))
        noise = (
            nu_f2
            + np.where(nu_f2 > 0, nu_f2 / young, 0.0)
            + (L * eta + (1 + young) * Q) * nu_g2
        )
    noise = np.where(
        hold == 1, L * eta * (nu_f2 + nu_g2), np.where(most > 0, noise, np.inf)
    )
    return constant_residuals(p, c, steps, noise)


def lazy_bounds(
    schedule: Schedule, constants: Constants, steps: Any, hold: int
) -> Bounds:
    """Descent on f + βg where an upper batch is drawn at every `hold`-th step and held: fewer upper calls.

    Constant parameters. The condition is Lη + (1+c)L_f²η² m(m−1)/2 ≤ 1 for some c > 0, where the held gradient's error
    is bounded with Young's inequality; with η = 1/(2L) and c = 1 that allows m ≤ √2 L/L_f, and
    E‖∇Φ(x_N)‖² ≤ 4LΔ/K + 2σ_f²/B_f + β²σ_g²/B_g: upper calls ε^{−5/2} instead of ε^{−3}. The best c is used.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> fixed = tiebreak.Schedule(step_size=1 / 22, barrier=10, upper_batch=200, lower_batch=10_000)
    >>> print(f"{lazy_bounds(fixed, constants, 10**5, hold=10).direction_squared:.4f}")
    0.0168
    """
    K = checked_steps(steps).astype(np.float64)
    m = whole("hold", hold)
    if not schedule.constant():
        raise ValueError(
            f"the bound for upper batches that are held needs a constant schedule, not {schedule}"
        )
    check_penalty(schedule, laws(schedule, 1, regularized=False), constants)
    pair = lazy_residuals(schedule.at(0), constants, K, m)
    if not np.isfinite(pair[1]).all():
        raise ValueError(
            f"hold={hold!r} is too long for step_size={schedule.at(0).step_size:g}: no bound is known"
        )
    return bounds_of_pair(steps, pair)
