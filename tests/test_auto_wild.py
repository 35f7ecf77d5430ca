"""`auto` on random problems with wild scales: it never diverges, whatever the units and the noise."""

import numpy as np
import pytest

from tiebreak import Gaussian, minimize
from tiebreak.problems.noises import Proportional, Student

KINDS = ("quadratic", "cone", "log cosh", "quartic")


def _level(rng, kind, d, value, length):
    """A gradient, and L: of value · h(Ax/length − b) with ‖A‖ = 1, of random rank; of a quartic, L at distance 1."""
    rank = rng.integers(1, d + 1)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (rank, d))
    matrix = left * 10 ** rng.uniform(-2, 0, rank) @ right[:, :rank].T
    matrix /= np.linalg.norm(matrix, 2)
    offset = rng.standard_normal(rank) * rng.choice([0, 1, 10])

    def outer(y):
        if kind == "quadratic":
            return y
        if kind == "cone":
            return y / np.sqrt(1 + np.sum(y * y, axis=-1, keepdims=True))
        return np.tanh(y) if kind == "log cosh" else y**3 / 3

    return (
        lambda x: value / length * outer(x / length @ matrix.T - offset) @ matrix,
        value / length**2,
    )


def _wild(seed):
    """Both levels, the start, and a function that gives the larger residual as a length squared."""
    rng = np.random.default_rng([seed, 1])
    d, length = int(rng.integers(1, 16)), 10 ** rng.uniform(-3, 3)
    start = length * 10 ** rng.uniform(-1, 2) * rng.standard_normal(d)
    levels, curvatures, floor = [], [], 0.0
    for _ in range(2):
        gradient, curvature = _level(
            rng, rng.choice(KINDS), d, 10 ** rng.uniform(-6, 6), length
        )
        noise = rng.choice([Gaussian, Student, Proportional])
        relative = min(
            rng.choice([0.0, 0.1, 1.0, 10.0]), 1.0 if noise is Proportional else 10.0
        )
        sigma = relative if noise is Proportional else relative * curvature * length
        levels.append(noise(gradient, sigma, shape=(d,), vectorized=True))
        curvatures.append(curvature)
        floor += 0.0 if noise is Proportional else d * (sigma / curvature) ** 2
    return levels, start, curvatures, floor


@pytest.mark.parametrize(
    "seed",
    [
        *range(10),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 30)),
    ],
)
def test_it_never_diverges(seed):
    """f and g between 10⁻⁶ and 10⁶, lengths between 10⁻³ and 10³, starts up to a hundred lengths away, every noise.

    Residuals as lengths, ‖·‖/L, end no larger than they began, but for a tenth of the noise of one sample.
    """
    (upper, lower), start, (L_f, L_g), floor = _wild(seed)
    result = minimize(upper, lower, start, budget=20_000, runs=3, seed=seed)
    assert result.success
    assert np.isfinite(result.x).all()
    larger = np.maximum(
        result.history.stationarity_squared / L_f**2,
        result.history.lower_gradient_squared / L_g**2,
    )
    assert (larger[-1] <= larger[0] + 0.1 * floor).all(), (larger[0], larger[-1], floor)
