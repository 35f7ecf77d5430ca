"""Problems that are not in the test bed: other geometry, other noise, no curvature of f.

They judged earlier laws of `auto`, which two of them failed; the present one was made with all of them in view.
:mod:`benchmarks.auto_fresh` has those that judge it. Residuals are compared as they are: L_f is 1 or less, L_g from 0.3
to 3.7.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from tiebreak import Gaussian
from tiebreak.problems import Problem
from tiebreak.problems.noises import Phase, Student


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


class Margins(Rows):
    """½ mean_i max(0, 1 − a_iᵀx)², rows sampled as above: where every margin is kept there is no noise, either."""

    def gradient(self, x: Any, token: Any) -> Any:
        return (token * np.minimum(0, x @ self.rows.T - self.targets)) @ self.rows


class Squares(Rows):
    """¼ mean_i ((a_iᵀx)² − y_i)², rows sampled as above."""

    def gradient(self, x: Any, token: Any) -> Any:
        seen = x @ self.rows.T
        return (token * (seen * seen - self.targets) * seen) @ self.rows


def _cone(center: Any) -> Callable[[Any], Any]:
    """∇√(1 + ‖x − c‖²)."""
    return lambda x: (x - center) / np.sqrt(1 + np.sum((x - center) ** 2, axis=-1, keepdims=True))


def margins() -> Problem:
    """The least norm with all margins kept: argmin g is a polyhedron, and the solution a corner of it. f has noise."""
    rng = default_rng(11)
    truth = rng.standard_normal(10)
    rows = rng.standard_normal((60, 10)) / 10**0.5
    rows *= np.sign(rows @ truth)[:, None]
    rows += 0.3 * truth / np.linalg.norm(truth)
    upper = Gaussian(lambda x: x, 0.3, shape=(10,), vectorized=True)
    return Problem("own-margins", upper, Margins(rows, np.ones(60)), np.full(10, -0.5))


def squares() -> Problem:
    """Eight squares of products in twelve dimensions: a curved argmin, nonconvex, with noise that vanishes on it."""
    rng = default_rng(12)
    rows = rng.standard_normal((8, 12)) / 12**0.5 * 1.5
    center = rng.standard_normal(12)
    return Problem(
        "own-squares",
        Gaussian(_cone(center), 0.3, shape=(12,), vectorized=True),
        Squares(rows, (rows @ rng.standard_normal(12)) ** 2),
        np.full(12, 0.3),
    )


def waves() -> Problem:
    """A trough of curvatures 1 to 1/30 in half of the dimensions; both levels' noise is waves, which change with x."""
    rng = default_rng(13)
    basis = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    matrix = basis[:, :4] * np.geomspace(1, 1 / 30, 4) @ basis[:, :4].T
    center = 2 * rng.standard_normal(8)
    noisy = [Phase(h, 0.4, shape=(8,), vectorized=True) for h in (_cone(center), lambda x: x @ matrix)]
    return Problem("own-waves", noisy[0], noisy[1], np.full(8, 1.0))


def unequal() -> Problem:
    """An ellipse with axes 1 and 2 in a plane; f, with heavy tails, has thirty times the noise of g."""

    def lower(x: Any) -> Any:
        along = x[..., :1] ** 2 + x[..., 1:2] ** 2 / 4 - 1
        return np.concatenate([along * x[..., :1], along * x[..., 1:2] / 4, 0 * x[..., 2:]], axis=-1)

    upper = Student(lambda x: x - np.array([1.0, 2.0, 1.0, -1.0]), 1.5, shape=(4,), vectorized=True)
    return Problem(
        "own-unequal", upper, Gaussian(lower, 0.05, shape=(4,), vectorized=True), np.array([-0.5, -1.0, 0.0, 0.0])
    )


#: By name.
OWN: Mapping[str, Callable[[], Problem]] = {
    f"own-{make.__name__}": make for make in (factors, rows, linear, margins, squares, waves, unequal)
}
