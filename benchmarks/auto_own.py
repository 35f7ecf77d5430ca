"""Three problems that are not in the test bed, to judge `auto` on: other geometry, other noise, no curvature of f.

All have gradients and curvatures of order one, so that residuals are compared as they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from tiebreak import Gaussian
from tiebreak.problems import Problem


class Rows:
    """½ mean_i (a_iᵀx − y_i)², rows sampled with replacement: a token holds how often each is there, as a share."""

    vectorized = True

    def __init__(self, rows: Any, targets: Any) -> None:
        self.rows, self.targets = rows, targets

    def sample(self, rng: Generator, size: int) -> Any:
        return rng.multinomial(size, np.full(len(self.rows), 1 / len(self.rows))) / size

    def gradient(self, x: Any, token: Any) -> Any:
        return (token * (x @ self.rows.T - self.targets)) @ self.rows

    def exact_gradient(self, x: Any) -> Any:
        return self.gradient(x, 1 / len(self.rows))


def factors() -> Problem:
    """g = ½ Σ (u_i v_i − 1)², of fourth order; f pulls to a point off its hyperbolas. Gaussian noise."""
    m = 5
    center = np.concatenate([np.full(m, 2.0), np.full(m, 1.0)]) / m**0.5

    def lower(x: Any) -> Any:
        u, v = x[..., :m], x[..., m:]
        gap = u * v - 1
        return np.concatenate([gap * v, gap * u], axis=-1)

    def upper(x: Any) -> Any:
        return x - center

    noisy = [Gaussian(h, 0.3, shape=(2 * m,), vectorized=True) for h in (upper, lower)]
    start = np.concatenate([np.full(m, 0.2), np.full(m, 1.5)])
    return Problem("own-factors", noisy[0], noisy[1], start)


def rows() -> Problem:
    """Least squares with ten of twenty directions seen, by sampled rows; f: least squares with rows of its own."""
    rng = default_rng(7)
    d, n = 20, 200
    seen = rng.standard_normal((n, 10)) @ rng.standard_normal((10, d)) / (10 * d) ** 0.5
    own = rng.standard_normal((n, d)) / d**0.5 * 2
    truth = rng.standard_normal(d)
    lower = Rows(seen, seen @ truth)
    upper = Rows(own, own @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n))
    return Problem("own-rows", upper, lower, np.zeros(d))


def linear() -> Problem:
    """f linear; g flat in the unit ball, where the start is. Gaussian noise."""

    def upper(x: Any) -> Any:
        return np.broadcast_to(np.array([0.6, 0.8, 0.0, 0.0]), x.shape).copy()

    def lower(x: Any) -> Any:
        return x * (1 - 1 / np.maximum(1, np.sqrt(np.sum(x * x, axis=-1, keepdims=True))))

    noisy = [Gaussian(h, 0.5, shape=(4,), vectorized=True) for h in (upper, lower)]
    return Problem("own-linear", noisy[0], noisy[1], np.array([0.3, 0.0, 0.3, 0.0]))


OWN: Mapping[str, Callable[[], Problem]] = {"own-factors": factors, "own-rows": rows, "own-linear": linear}
