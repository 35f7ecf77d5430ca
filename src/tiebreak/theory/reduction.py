"""What variance reduction guarantees for descent on Φ = f + βg: SPIDER, PAGE and STORM, from one recursion.

Ours, not the paper's. It needs one assumption more, the *smoothness of the noise*: for one sample ξ
E‖(∇f_ξ − ∇f)(x) − (∇f_ξ − ∇f)(x')‖² ≤ ℓ_f²‖x − x'‖², and ℓ_g likewise. Additive noise has ℓ = 0, noise in proportion to
the gradient ℓ = its share times L, and a mean-squared smooth objective has ℓ ≤ its constant.

The error e_k = v_k − ∇ of an estimate obeys, at each level, E_0 ≤ `first` and

    E_k ≤ keep_k E_{k−1} + fresh_k + drift_k E‖x_k − x_{k−1}‖²

(:class:`Errors`). Errors of the two levels stay uncorrelated, because their batches are independent. Descent gives

    Σ (η_k/β_k) E‖∇Φ_k(x_k)‖² ≤ 2(Δ_g + Δ_f/β_0) − Σ (η_k/β_k)(1 − L_kη_k) E‖w_k‖² + Σ (η_k/β_k)(E^f_k + β_k² E^g_k),

and putting the first into the second leaves noise alone wherever what ‖w_k‖² causes later is paid for by 1 − L_kη_k.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.checks import floating
from tiebreak.theory.bounds import Laws
from tiebreak.theory.constants import Constants
from tiebreak.theory.penalties import penalty_smoothness

Values = NDArray[np.float64]

__all__ = [
    "Errors",
    "geometric",
    "largest_spider_step",
    "noise_smoothness_of",
    "page_errors",
    "recursive_gap",
    "refreshed_errors",
    "spider_residuals",
    "storm_errors",
    "storm_residuals",
]


def noise_smoothness_of(value: Any) -> tuple[float, float]:
    """(ℓ_f, ℓ_g) as a user gives them: a pair, or one number for both; never left out.

    Examples
    --------
    >>> noise_smoothness_of(1)
    (1.0, 1.0)
    """
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    good = len(pair) == 2 and all(
        not isinstance(one, (bool, str)) and hasattr(one, "__float__") and 0 <= floating(one) < np.inf for one in pair
    )
    if not good:
        raise ValueError(
            f"noise_smoothness={value!r} must be ℓ ≥ 0 or a pair (ℓ_f, ℓ_g): how fast a sample's error changes with x. "
            "Variance reduction has no bound without it; it is 0 for additive noise only"
        )
    return float(pair[0]), float(pair[1])


class Errors(NamedTuple):
    """The recursion of one level's error: arrays over the steps, entry 0 of the last three unused, or constants.

    Where `mixed`, fresh noise and drift come from the same samples and Young's inequality parts them: they count
    (1 + 1/c) and (1 + c) times, for the best c > 0.
    """

    first: Any
    keep: Any
    fresh: Any
    drift: Any
    mixed: bool = False


def storm_errors(sigma: float, ell: float, momentum: Any, batch: Any, first_batch: Any) -> Errors:
    """STORM: e_k = (1−α)e_{k−1} + α n_k(x_k) + (1−α)(n_k(x_k) − n_k(x_{k−1})), n the noise of the batch's mean."""
    keep = (1 - momentum) ** 2
    return Errors(sigma**2 / first_batch, keep, momentum**2 * sigma**2 / batch, keep * ell**2 / batch, mixed=True)


def page_errors(sigma: float, ell: float, probability: Any, batch: Any, refresh_batch: Any) -> Errors:
    """PAGE: anew from a large batch with this probability, else e_k = e_{k−1} + the noise of a difference."""
    large, keep = sigma**2 / refresh_batch, 1 - probability
    return Errors(large, keep, probability * large, keep * ell**2 / batch)


def refreshed_errors(sigma: float, ell: float, anew: Any, batch: Any, refresh_batch: Any) -> Errors:
    """SPIDER, or PAGE once its coins have fallen: `anew` says at which steps the large batch is drawn."""
    large = np.broadcast_to(np.asarray(sigma**2 / refresh_batch, dtype=float), len(anew))
    return Errors(large[0], np.where(anew, 0.0, 1.0), np.where(anew, large, 0.0), np.where(anew, 0.0, ell**2 / batch))


def recursive_gap(p: Laws, constants: Constants, upper: Errors, lower: Errors) -> float:
    """S ≥ Σ (η_k/β_k) E‖∇Φ_k(x_k)‖² for any schedule and any errors, by one pass backwards over the steps.

    With s_k = η_kβ_k the price of a unit of E^g_k is y_k = s_k/2 + keep_{k+1} y_{k+1}, that of E^f_k the same with
    s_k/β_k² in place of s_k. The condition: what ‖x_{k+1} − x_k‖² = s_k²‖w_k/β_k‖² causes, s_k Σ y_{k+1} drift_{k+1}
    over both levels, is at most (1 − L_kη_k)/2. Infinite where no c > 0 meets it.
    """
    eta, beta = p.step_size, p.barrier
    K, s = len(eta), eta * beta
    slack = (1 - eta * penalty_smoothness(beta, constants)) / 2
    noise, caused, mixed = np.zeros(2), np.zeros(K), np.zeros(K)
    for errors, weight in ((upper, s / (2 * beta**2)), (lower, s / 2)):
        keep, fresh, drift = (np.broadcast_to(np.asarray(x, dtype=float), K) for x in errors[1:4])
        price = _prices(weight, keep)
        cost = np.zeros(K)
        cost[:-1] = s[:-1] * price[1:] * drift[1:]
        (mixed if errors.mixed else caused)[:] += cost
        noise[int(errors.mixed)] += price[1:] @ fresh[1:]
        noise[0] += price[0] * float(errors.first)
    start = 2 * (constants.delta_g + constants.delta_f / beta[0])
    room = slack - caused
    if (room < -1e-12).any():
        return np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        young = float(np.min(np.where(mixed > 0, room / mixed, np.inf))) - 1
    if young <= 0:
        return np.inf
    return float(start + 2 * (noise[0] + (1 + 1 / young) * noise[1]))


def _prices(weight: Values, keep: Values) -> Values:
    """y_k = weight_k + keep_{k+1} y_{k+1}, from the end."""
    found, price = weight.tolist(), 0.0
    kept = [*keep.tolist()[1:], 0.0]
    for k in range(len(found) - 1, -1, -1):
        found[k] = price = found[k] + kept[k] * price
    return np.array(found)


def largest_spider_step(constants: Constants, ell: tuple[float, float], p: Any, period: Any) -> Any:
    """The largest η with Lη + (q−1)Aη² ≤ 1, A = ℓ_f²/b_f + β²ℓ_g²/b_g: 2/(L + √(L² + 4(q−1)A))."""
    L = penalty_smoothness(p.barrier, constants)
    return 2 / (L + np.sqrt(L**2 + 4 * (period - 1) * _differences(p, ell)))


def _differences(p: Any, ell: tuple[float, float]) -> Any:
    """A = ℓ_f²/b_f + β²ℓ_g²/b_g: the variance of a step's differences for ‖x_k − x_{k−1}‖ = 1."""
    return ell[0] ** 2 / p.upper_batch + p.barrier**2 * ell[1] ** 2 / p.lower_batch


def spider_residuals(
    p: Any, constants: Constants, ell: tuple[float, float], steps: Any, period: Any, refresh: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Bounds on E‖∇g(x_N)‖² and E‖∇Φ(x_N)‖² for constant parameters, N uniform; infinite where (1) fails.

    E = 2(Δ_f+βΔ_g)/(ηK) + V_0 with V_0 = σ_f²/B_f + β²σ_g²/B_g if (1) Lη + (q−1)Aη² ≤ 1, any K ≥ 1; E‖∇g‖² ≤
    (G_f+√E)²/β². `p` holds η, β and the small batches b, `refresh` the large ones B. For PAGE, which draws large
    batches with probability 1/`period`, the same holds: (1−p)/p = q − 1.
    """
    c, beta = constants, p.barrier
    large = c.sigma_f**2 / refresh[0] + beta**2 * c.sigma_g**2 / refresh[1]
    direction = 2 * (c.delta_f + beta * c.delta_g) / (p.step_size * steps) + large
    spent = p.step_size * penalty_smoothness(beta, c)
    spent = spent + (np.minimum(period, steps) - 1) * _differences(p, ell) * p.step_size**2
    direction = np.where(spent <= 1 + 1e-12, direction, np.inf)
    return (c.G_f + np.sqrt(direction)) ** 2 / beta**2, direction


def storm_residuals(
    p: Any, constants: Constants, ell: tuple[float, float], steps: Any, momentum: Any, first: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Bounds on E‖∇g(x_N)‖² and E‖∇Φ(x_N)‖² for constant parameters, N uniform; infinite where the condition fails.

    With θ = (1−α)², Z = (1−θ^K)/(1−θ) and c the largest with Lη + (1+c)η²Aθ(1−θ^{K−1})/(1−θ) ≤ 1,

    E = 2(Δ_f+βΔ_g)/(ηK) + V_B Z/K + (1 + 1/c) α²V_b (K−Z)/(K(1−θ)),  V_b = σ_f²/b_f + β²σ_g²/b_g and V_B likewise.

    For small α the last term is near (1 + 1/c) αV_b/2. The textbook's form has 2αV_b there and 2 for 1 + c: it parts
    noise from differences in the middle, and gives (1−α)² away for 1−α.
    """
    c, beta, eta = constants, p.barrier, p.step_size
    theta, forgotten = (1 - momentum) ** 2, momentum * (2 - momentum)  # θ and 1 − θ
    Z, Z_less = geometric(momentum, steps), geometric(momentum, steps - 1)
    first_noise = c.sigma_f**2 / first[0] + beta**2 * c.sigma_g**2 / first[1]
    noise = c.sigma_f**2 / p.upper_batch + beta**2 * c.sigma_g**2 / p.lower_batch
    room = 1 - eta * penalty_smoothness(beta, c)
    with np.errstate(divide="ignore", invalid="ignore"):
        caused = eta**2 * _differences(p, ell) * theta * Z_less
        young = np.where(caused > 0, room / caused, np.inf) - 1
        factor = np.where(young > 0, 1 + 1 / young, np.inf)
        rest = np.where(steps > 1, factor * momentum**2 * noise * np.maximum(steps - Z, 0) / forgotten, 0.0)
    direction = 2 * (c.delta_f + beta * c.delta_g) / (eta * steps) + (first_noise * Z + rest) / steps
    direction = np.where((young > 0) & (room >= -1e-12), direction, np.inf)
    return (c.G_f + np.sqrt(direction)) ** 2 / beta**2, direction


def geometric(momentum: Any, steps: Any) -> Any:
    """1 + θ + … + θ^{steps−1} for θ = (1−α)², to the last digits however small α is."""
    alpha = np.asarray(momentum, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = -np.expm1(2 * np.asarray(steps, dtype=float) * np.log1p(-alpha)) / (alpha * (2 - alpha))
    return np.where(np.asarray(steps) > 0, np.fmin(total, steps), 0.0)  # of no momentum it is 0/0: so many steps
