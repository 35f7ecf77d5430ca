"""What variance reduction guarantees: SPIDER, PAGE and STORM, for descent on Φ = f + βg and for the SDBGD rule.

Ours, not the paper's. It needs one assumption more, the *smoothness of the noise*: for one sample ξ
E‖(∇f_ξ − ∇f)(x) − (∇f_ξ − ∇f)(x')‖² ≤ ℓ_f²‖x − x'‖², and ℓ_g for g. Additive noise has ℓ = 0, noise in proportion to
the gradient ℓ = its share times L, and a mean-squared smooth objective has ℓ ≤ its constant.

**Descent on Φ.** The error e_k = v_k − ∇ of an estimate obeys, at each level, E_0 ≤ `first` and

    E_k ≤ keep_k E_{k−1} + fresh_k + drift_k E‖x_k − x_{k−1}‖²

(:class:`Errors`). Errors of the two levels stay uncorrelated, because their batches are independent. Descent gives

    Σ (η_k/β_k) E‖∇Φ_k(x_k)‖² ≤ 2(Δ_g + Δ_f/β_0) − Σ (η_k/β_k)(1 − L_kη_k) E‖w_k‖² + Σ (η_k/β_k)(E^f_k + β_k² E^g_k),

and putting the first into the second leaves noise alone wherever what ‖w_k‖² causes later is paid for by 1 − L_kη_k.

**The SDBGD rule.** Theorem 1 asks nothing of the estimates but τ_k² ≥ E‖d_k − d̂_k‖²: its proof never uses that they
are unbiased, and holds in total expectation (Jensen at G_f τ and at √H_k). By the stability lemma

    τ_k² ≤ 2E‖e^f_k‖² + 2M²E‖e^g_k‖²,   M = 3β/2 + 2G_f/√ρ,

and a recursion's mean error over K steps is at most noise + drift · the mean of E‖x_{k+1} − x_k‖² (:class:`Means`).
With constant parameters, X the mean of E‖d_k‖² and T that of τ_k², this leaves two inequalities:

    T ≤ V + κ²(√X + √T)²     V = 2(noise_f + M² noise_g),  κ² = 2η²(drift_f + M² drift_g)
    X ≤ S + 4G_f√T + cT      S: Theorem 1 without noise,   c = 4L_fη + (8β + 1/(L_gη))(1/(2β) + L_gη)

The steps are x_{k+1} − x_k = −η d̂_k, and the first line is Minkowski's inequality for d̂ = d + (d̂ − d). It gives √T ≤
κ√X/(1−κ) + √(V/(1−κ²)); the second is then a quadratic inequality in √X, and bounds it where cκ²/(1−κ)² < 1.
"""

from typing import Any, NamedTuple

import numpy as np

from tiebreak.checks import floating
from tiebreak.estimators import Minibatch, Spider, Storm
from tiebreak.estimators.contract import of_level
from tiebreak.rules import stability
from tiebreak.theory.bounds import Laws, Residuals, first_step, theorem_1, ways_to_add
from tiebreak.theory.constants import Constants, Pair, Values
from tiebreak.theory.penalties import (
    constant_residuals,
    initial_gap,
    penalty_smoothness,
)

#: Values of y in Young's inequality, (1 + 1/y) and (1 + y), which separates STORM's fresh noise from its drift. Every
#: y > 0 gives a bound; the smallest counts.
YOUNG = np.exp(np.linspace(-7, 7, 57))


def noise_smoothness_of(value: Any) -> Pair:
    """(ℓ_f, ℓ_g) as a user gives them: a pair, or one number for both; never left out.

    Examples
    --------
    >>> noise_smoothness_of(1)
    (1.0, 1.0)
    """
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    good = len(pair) == 2 and all(
        not isinstance(one, (bool, str))
        and hasattr(one, "__float__")
        and 0 <= floating(one) < np.inf
        for one in pair
    )
    if not good:
        raise ValueError(
            f"noise_smoothness={value!r} must be ℓ ≥ 0 or a pair (ℓ_f, ℓ_g): how fast a sample's error changes with x. "
            "Variance reduction has no bound without it; it is 0 for additive noise only"
        )
    return float(pair[0]), float(pair[1])


class Errors(NamedTuple):
    """The recursion of one level's error: arrays over the steps, entry 0 of the last three unused, or constants.

    Where `mixed`, fresh noise and drift come from the same samples and Young's inequality separates them: they count
    (1 + 1/c) and (1 + c) times, for the best c > 0.
    """

    first: Any
    keep: Any
    fresh: Any
    drift: Any
    mixed: bool = False


def storm_errors(
    sigma: float, ell: float, momentum: Any, batch: Any, first_batch: Any
) -> Errors:
    """STORM: e_k = (1−α)e_{k−1} + α n_k(x_k) + (1−α)(n_k(x_k) − n_k(x_{k−1})), n the noise of the batch's mean."""
    keep = (1 - momentum) ** 2
    return Errors(
        sigma**2 / first_batch,
        keep,
        momentum**2 * sigma**2 / batch,
        keep * ell**2 / batch,
        mixed=True,
    )


def refreshed_errors(
    sigma: float, ell: float, refreshes: Any, batch: Any, refresh_batch: Any
) -> Errors:
    """SPIDER, or PAGE with its coins: `refreshes` says at which steps the large batch is drawn."""
    large = np.broadcast_to(
        np.asarray(sigma**2 / refresh_batch, dtype=float), len(refreshes)
    )
    fresh = np.where(refreshes, large, 0.0)
    return Errors(
        large[0],
        np.where(refreshes, 0.0, 1.0),
        fresh,
        np.where(refreshes, 0.0, ell**2 / batch),
    )


def recursive_gap(p: Laws, constants: Constants, upper: Errors, lower: Errors) -> float:
    """S ≥ Σ (η_k/β_k) E‖∇Φ_k(x_k)‖² for any schedule and any errors, by one pass backwards over the steps.

    With s_k = η_kβ_k the price of a unit of E^g_k is y_k = s_k/2 + keep_{k+1} y_{k+1}, that of E^f_k the same with
    s_k/β_k² in place of s_k. The condition: what ‖x_{k+1} − x_k‖² = s_k²‖w_k/β_k‖² causes, s_k Σ y_{k+1} drift_{k+1}
    over both levels, is at most (1 − L_kη_k)/2. Infinite where no c > 0 meets it.
    """
    eta = p.step_size
    beta = p.barrier
    K = len(eta)
    s = eta * beta
    slack = (1 - eta * penalty_smoothness(beta, constants)) / 2
    noise = np.zeros(2)
    caused = np.zeros(K)
    mixed = np.zeros(K)
    for errors, weight in ((upper, s / (2 * beta**2)), (lower, s / 2)):
        keep, fresh, drift = (
            np.broadcast_to(np.asarray(x, dtype=float), K) for x in errors[1:4]
        )
        price = _prices(weight, keep)
        cost = np.zeros(K)
        cost[:-1] = s[:-1] * price[1:] * drift[1:]
        (mixed if errors.mixed else caused)[:] += cost
        noise[int(errors.mixed)] += price[1:] @ fresh[1:]
        noise[0] += price[0] * float(errors.first)
    room = slack - caused
    if (room < -1e-12).any():
        return np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        young = float(np.min(np.where(mixed > 0, room / mixed, np.inf))) - 1
    if young <= 0:
        return np.inf
    return float(
        initial_gap(p, constants) + 2 * (noise[0] + (1 + 1 / young) * noise[1])
    )


def _prices(weight: Values, keep: Values) -> Values:
    """y_k = weight_k + keep_{k+1} y_{k+1}, from the end."""
    prices = weight.tolist()
    price = 0.0
    next_keep = [*keep.tolist()[1:], 0.0]
    for k in range(len(prices) - 1, -1, -1):
        prices[k] = price = prices[k] + next_keep[k] * price
    return np.array(prices)


def largest_spider_step(p: Any, constants: Constants, ell: Pair) -> Any:
    """The largest η with Lη + (q−1)Aη² ≤ 1, A = ℓ_f²/b_f + β²ℓ_g²/b_g: 2/(L + √(L² + 4(q−1)A))."""
    L = penalty_smoothness(p.barrier, constants)
    return 2 / (L + np.sqrt(L**2 + 4 * (p.period - 1) * _differences(p, ell)))


def _differences(p: Any, ell: Pair) -> Any:
    """A = ℓ_f²/b_f + β²ℓ_g²/b_g: the variance of a step's differences for ‖x_k − x_{k−1}‖ = 1."""
    return ell[0] ** 2 / p.upper_batch + p.barrier**2 * ell[1] ** 2 / p.lower_batch


def geometric(momentum: Any, steps: Any) -> Any:
    """1 + θ + … + θ^{steps−1} for θ = (1−α)², to the last digits however small α is."""
    alpha = np.asarray(momentum, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = -np.expm1(2 * np.asarray(steps, dtype=float) * np.log1p(-alpha)) / (
            alpha * (2 - alpha)
        )
    return np.where(
        np.asarray(steps) > 0, np.fmin(total, steps), 0.0
    )  # 0/0 without momentum: then the sum is `steps`


class Means(NamedTuple):
    """A level's error in the mean over K steps: at most noise + fresh + drift · the mean of E‖x_{k+1} − x_k‖².

    Where `mixed`, fresh noise and drift count (1 + 1/y) and (1 + y) times, for any y > 0: see :class:`Errors`.
    """

    noise: Any
    drift: Any
    fresh: Any = 0.0
    mixed: bool = False

    def separated(self, young: Any) -> tuple[Any, Any]:
        """Noise and drift for a y of Young's inequality."""
        if not self.mixed:
            return self.noise + self.fresh, self.drift
        return self.noise + (1 + 1 / young) * self.fresh, (1 + young) * self.drift


def means_of(
    estimator: Any, level: str, p: Any, sigma: float, ell: float, steps: Any
) -> Means | None:
    """The mean error of an estimator with constant parameters `p`; None for an estimator without a bound.

    SPIDER has noise σ²/B, and every move counts in at most q − 1 later steps of its period, with ℓ²/b. For PAGE, which
    draws large batches with probability 1/q, the same holds: (1−p)/p = q − 1. STORM, whose first batch is like all
    others, keeps θ = (1−α)² of an error; α²σ²/b is new, and a move adds θℓ²/b. With Z = (1−θ^K)/(1−θ) the noise is
    σ²Z/(bK), and the fresh noise α²σ²(K−Z)/(bK(1−θ)).
    """
    batch = getattr(p, f"{level}_batch")
    if isinstance(estimator, Minibatch):
        return Means(sigma**2 / batch, 0.0)
    if isinstance(estimator, Spider):
        # In floats: a period may be too long for 64 bits.
        period = np.asarray(p.period, dtype=float)
        drift = (
            (np.minimum(period, np.asarray(steps, dtype=float)) - 1) * ell**2 / batch
        )
        return Means(sigma**2 / getattr(p, f"{level}_refresh"), drift)
    if type(estimator) is not Storm:
        return None
    alpha = of_level(p, "momentum", level)
    forgotten = alpha * (2 - alpha)  # 1 − θ
    Z = geometric(alpha, steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        # For α → 0 the sum of all fresh noise tends to 0, and for K = 1 it is 0.
        fresh = np.where(
            forgotten > 0, alpha**2 * np.maximum(steps - Z, 0) / forgotten, 0.0
        )
    drift = (1 - alpha) ** 2 * geometric(alpha, steps - 1) * ell**2 / batch
    share = sigma**2 / batch / steps
    return Means(share * Z, drift, share * fresh, mixed=True)


def descent_residuals(
    p: Any, constants: Constants, upper: Means, lower: Means, steps: Any
) -> Residuals:
    """Bounds on E‖∇g(x_N)‖² and E‖∇Φ(x_N)‖² for constant parameters, N uniform; infinite where the condition fails.

    E = 2(Δ_f+βΔ_g)/(ηK) + noise_f + β² noise_g, and E‖∇g‖² ≤ (G_f+√E)²/β², if Lη + η²(drift_f + β² drift_g) ≤ 1. For
    STORM y is as large as this condition allows. The textbook separates noise from differences in the middle, y = 1.
    """
    eta = p.step_size
    weight = p.barrier**2
    room = 1 - eta * penalty_smoothness(p.barrier, constants)
    caused = eta**2 * (upper.drift + weight * lower.drift)
    noise = upper.noise + weight * lower.noise
    fits = caused <= room + 1e-12
    if upper.mixed:
        with np.errstate(divide="ignore", invalid="ignore"):
            young = np.where(caused > 0, room / caused, np.inf) - 1
            fresh = upper.fresh + weight * lower.fresh
            noise = noise + np.where(fresh > 0, (1 + 1 / young) * fresh, 0.0)
        fits = (young > 0) & (room >= -1e-12)
    return constant_residuals(p, constants, steps, np.where(fits, noise, np.inf))


def barrier_residuals(
    p: Any,
    constants: Constants,
    upper: Means,
    lower: Means,
    steps: Any,
    young: Any = YOUNG,
) -> Residuals:
    """Bounds on E‖∇g(x_N)‖² and E‖d_N‖² for constant parameters, N uniform; infinite where the condition fails.

    The conditions of Theorem 1 on η, β and ρ are for the caller to check.
    """
    c = constants
    p = first_step(p)
    eta = p.step_size
    beta = p.barrier
    M = stability(beta, p.regularizer, c.G_f)
    add = ways_to_add(steps, fixed=True)
    noise_f, drift_f = upper.separated(young)
    noise_g, drift_g = lower.separated(young)
    V = 2 * (noise_f + M**2 * noise_g)
    kappa = eta * np.sqrt(2 * (drift_f + M**2 * drift_g))
    start = theorem_1(p, c, add, tau_squared=0.0).falling
    linear = 4 * c.G_f
    square = 4 * c.L_f * eta + (8 * beta + 1 / (c.L_g * eta)) * (
        1 / (2 * beta) + c.L_g * eta
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        # √T ≤ slope √X + rest
        slope = kappa / (1 - kappa)
        offset = np.sqrt(V / (1 - kappa**2))
        A = 1 - square * slope**2
        B = slope * (linear + 2 * square * offset)
        C = start + linear * offset + square * offset**2
        root = (B + np.sqrt(B**2 + 4 * A * C)) / (2 * A)  # A X − B √X − C ≤ 0
    T = np.where((kappa < 1) & (A > 0), (slope * root + offset) ** 2, np.inf)
    theorem = theorem_1(p, c, add, tau_squared=T)
    return theorem.lower_gradient_squared, theorem.falling
