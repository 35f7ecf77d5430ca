"""Dictionary learning that must not forget: the example of Jiang, Abolfazli, Mokhtari and Hamedani (2023).

Old samples A = D*X + noise use the atoms 1 … 40 of a true dictionary D*, new samples B the atoms 30 … 50. A first stage
learns 40 atoms D̂ and coefficients X̂ from the old samples alone. Then a dictionary D of 50 atoms, and coefficients X of
the new samples, are sought::

    g(D) = 1/2n  ‖A − D X̂‖²        lower: the old samples, with their old coefficients; convex in D
    f(D, X) = 1/2n' ‖B − D X‖²     upper: the new samples; not convex
    every atom in the unit ball, every sample's coefficients in the 1-norm ball of radius δ

Ten rows of X̂ are zero, so g leaves ten atoms free and fixes nothing of X: f breaks the tie.

The solver knows no constraints. So both sets are the images of smooth functions of free variables, onto which they are
mapped whole: b(u) = 2u/(1 + ‖u‖²) maps all of space onto the closed unit ball (and every inner point twice). An atom is
b(u), a sample's coefficients are δ(s₊² − s₋²) with (s₊, s₋) = b(v). What changes by this: g, convex in D, is not
convex in u. Points with ‖u‖ = 1 are stationary along u itself, and v = 0 in both halves is stationary: neither holds a
method up that does not begin there. No feasible point is lost, and the values of f and g are the constrained problem's.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.oracles import Array
from tiebreak.oracles.finite_sum import FiniteSum
from tiebreak.problems.problem import Problem

Values = NDArray[np.float64]

#: Steps on coefficients are ten times as long as those on atoms: a sample's coefficients weigh 1/n' in the mean.
STRETCH = 10**0.5


def ball(u: Values, axis: Any = 0) -> Values:
    """2u / (1 + ‖u‖²): all of space onto the closed unit ball, along these axes."""
    found: Values = 2 * u / (1 + np.sum(u * u, axis=axis, keepdims=True))
    return found


def ball_pullback(u: Values, gradient: Values, axis: Any = 0) -> Values:
    """The gradient with respect to u, from the one with respect to :func:`ball` of u."""
    total = 1 + np.sum(u * u, axis=axis, keepdims=True)
    found: Values = (
        2
        / total
        * (gradient - 2 / total * u * np.sum(u * gradient, axis=axis, keepdims=True))
    )
    return found


def unball(point: Values) -> Values:
    """The u of least norm whose :func:`ball` is this point (columns)."""
    squared = np.sum(point * point, axis=0)
    found: Values = point / (1 + np.sqrt(np.maximum(0, 1 - squared)))
    return found


def recovery(atoms: Values, truth: Values, threshold: float = 0.9) -> float:
    """The share of the true atoms that some learnt atom matches: an absolute cosine of at least `threshold`.

    Examples
    --------
    >>> recovery(np.array([[0.0, -3.0], [0.0, 0.1]]), np.eye(2))
    0.5
    """
    norms = np.linalg.norm(atoms, axis=0)
    units = atoms / np.where(norms > 0, norms, 1)
    return float(np.mean(np.abs(units.T @ truth).max(axis=0) >= threshold))


@dataclass(frozen=True)
class DictionaryData:
    """Samples (columns), the first stage's coefficients and dictionary, and what is to be found."""

    truth: Values  # the true dictionary, unit atoms
    old: Values
    new: Values
    fresh: Values  # further samples of the new kind, which nothing is fitted to
    coefficients: (
        Values  # X̂, with a row of zeros for every atom that the old samples do not have
    )
    atoms: Values  # a minimiser of g: what the first stage learnt, and zeros
    start: Values  # where to begin with the coefficients of the new samples
    radius: float  # δ

    @property
    def lower_optimum(self) -> float:
        """g at `atoms`: its minimum over atoms in the unit ball."""
        return self.lower(self.atoms)

    def lower(self, atoms: Values, samples: Any = slice(None)) -> float:
        """g, of these old samples."""
        rest = atoms @ self.coefficients[:, samples] - self.old[:, samples]
        return float(np.sum(rest**2) / rest.shape[1] / 2)

    def upper(
        self, atoms: Values, coefficients: Values, samples: Any = slice(None)
    ) -> float:
        """f, of these new samples."""
        rest = atoms @ coefficients[:, samples] - self.new[:, samples]
        return float(np.sum(rest**2) / rest.shape[1] / 2)

    @cached_property
    def x0(self) -> Values:
        """The start as one vector of free variables: (u, v)."""
        return np.concatenate([unball(self.atoms).ravel(), self.start.ravel()])

    def decode(self, x: Array) -> tuple[Values, Values]:
        """The atoms and the coefficients that free variables stand for."""
        u, v = self.split(x)
        squares = ball(STRETCH * v, (0, 1)) ** 2
        return ball(u), self.radius * (squares[0] - squares[1])

    def encode(self, atoms: Values, coefficients: Values) -> Values:
        """Free variables that stand for these atoms and coefficients; both must be feasible."""
        signed = np.sqrt(
            np.maximum(0, np.stack([coefficients, -coefficients])) / self.radius
        )
        v = (
            unball(signed.reshape(-1, coefficients.shape[1])).reshape(signed.shape)
            / STRETCH
        )
        return np.concatenate([unball(atoms).ravel(), v.ravel()])

    def split(self, x: Array) -> tuple[Any, Any]:
        """u and v, an atom or a sample to a column; v has two halves."""
        size = self.truth.size
        return x[:size].reshape(self.truth.shape), x[size:].reshape(
            2, self.truth.shape[1], self.new.shape[1]
        )

    def lower_gradient(self, x: Array, samples: Any = slice(None)) -> Values:
        """∇g with respect to the free variables."""
        u, _ = self.split(x)
        known = self.coefficients[:, samples]
        slope = (ball(u) @ known - self.old[:, samples]) @ known.T / known.shape[1]
        return np.concatenate(
            [ball_pullback(u, slope).ravel(), np.zeros(x.size - u.size)]
        )

    def upper_gradient(self, x: Array, samples: Any = slice(None)) -> Values:
        """∇f with respect to the free variables; a sample that occurs twice counts twice."""
        u, v = self.split(x)
        weights: Any = 1.0
        if isinstance(samples, slice):
            columns = np.arange(v.shape[2])[samples]
        else:
            columns, counts = np.unique(samples, return_counts=True)
            weights = counts / len(samples) * len(columns)
        atoms, chosen = ball(u), STRETCH * v[..., columns]
        signed = ball(chosen, (0, 1))
        coefficients = self.radius * (signed[0] ** 2 - signed[1] ** 2)
        rest = weights * (atoms @ coefficients - self.new[:, columns]) / len(columns)
        slope = 2 * self.radius * (atoms.T @ rest)
        total = np.zeros_like(v)
        pulled = ball_pullback(
            chosen, np.stack([signed[0] * slope, -signed[1] * slope]), (0, 1)
        )
        total[..., columns] = STRETCH * pulled
        return np.concatenate(
            [ball_pullback(u, rest @ coefficients.T).ravel(), total.ravel()]
        )


def dictionary_data(
    seed: int = 0, *, samples: tuple[int, int] = (250, 200), first_stage: int = 10_000
) -> DictionaryData:
    """Samples as in the literature, and the first stage.

    25 dimensions, 50 true atoms (normal, scaled to norm 1), 5 coefficients a sample, ± U(0.2, 1), noise of standard
    deviation 0.01; δ = 3.

    Parameters
    ----------
    seed : int
    samples : pair of int
        How many old and new samples.
    first_stage : int
        Conditional-gradient steps with which atoms and coefficients of the old samples are learnt. Then, with these
        coefficients, g is minimised over the atoms, so that `atoms` is as good as exact.

    Examples
    --------
    >>> data = dictionary_data(0, first_stage=100)
    >>> data.atoms.shape, data.coefficients.shape, data.new.shape
    ((25, 50), (50, 250), (25, 200))
    """
    dimension, total, known, radius = 25, 50, 40, 3.0
    counts = [whole("samples", n) for n in samples]
    rng = default_rng(seed)
    truth = rng.standard_normal((dimension, total))
    truth /= np.linalg.norm(truth, axis=0)
    old = _samples(rng, truth, np.arange(known), counts[0])
    new, fresh = (
        _samples(rng, truth, np.arange(29, total), counts[1]) for _ in range(2)
    )
    atoms, coefficients = _first_stage(
        rng, old, known, radius, whole("first_stage", first_stage)
    )
    padded = np.vstack([coefficients, np.zeros((total - known, counts[0]))])
    best = _least(np.hstack([atoms, np.zeros((dimension, total - known))]), old, padded)
    start = rng.standard_normal((2, total, counts[1]))
    start *= (
        0.7 / STRETCH / np.sqrt(np.sum(start**2, axis=(0, 1)))
    )  # well inside the ball
    return DictionaryData(truth, old, new, fresh, padded, best, start, radius)


def dictionary(data: DictionaryData | int = 0) -> Problem:
    """Dictionary learning that must not forget; variables are free, see the module.

    Parameters
    ----------
    data : DictionaryData or int
        The samples, or the seed with which :func:`dictionary_data` draws them.

    Notes
    -----
    Neither the solution nor tight constants are known: f is not convex. ``data.lower_optimum`` is the minimum of g.

    Examples
    --------
    >>> import tiebreak
    >>> data = dictionary_data(0, first_stage=500)
    >>> problem = dictionary(data)
    >>> schedule = tiebreak.Schedule(step_size=2.0, barrier=1.0, regularizer=1e-6, upper_batch=20, lower_batch=25)
    >>> method = tiebreak.methods.sdbgd.replace(schedule=schedule)
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=method, steps=50, seed=0)
    >>> bool(problem.upper.value(result.x) < 0.5 * problem.upper.value(problem.x0))
    True
    """
    known = dictionary_data(data) if isinstance(data, int) else data

    def upper_value(x: Array, samples: Any) -> float:
        return known.upper(*known.decode(x), samples)

    def lower_value(x: Array, samples: Any) -> float:
        return known.lower(ball(known.split(x)[0]), samples)

    upper = FiniteSum(known.upper_gradient, known.new.shape[1], upper_value)
    lower = FiniteSum(known.lower_gradient, known.old.shape[1], lower_value)
    return Problem("dictionary", upper, lower, known.x0)


def _samples(
    rng: Generator, truth: Values, atoms: NDArray[np.int64], count: int
) -> Values:
    coefficients = np.zeros((truth.shape[1], count))
    for column in coefficients.T:
        column[rng.choice(atoms, 5, replace=False)] = rng.uniform(
            0.2, 1, 5
        ) * rng.choice([-1, 1], 5)
    return truth @ coefficients + 0.01 * rng.standard_normal((len(truth), count))


def _first_stage(
    rng: Generator, old: Values, atoms: int, radius: float, steps: int
) -> tuple[Values, Values]:
    """Conditional gradients on ½‖A − DX‖² over both constraint sets, steps 1/√t, as the paper has it."""
    found = rng.standard_normal((len(old), atoms))
    found /= np.linalg.norm(found, axis=0)
    coefficients, columns = np.zeros((atoms, old.shape[1])), np.arange(old.shape[1])
    for t in range(1, steps + 1):
        rest = found @ coefficients - old
        outward, slope = rest @ coefficients.T, found.T @ rest
        share = 1 / np.sqrt(t)
        norms = np.linalg.norm(outward, axis=0)
        found = (1 - share) * found - share * outward / np.where(norms > 0, norms, 1)
        largest = np.abs(slope).argmax(axis=0)
        coefficients *= 1 - share
        coefficients[largest, columns] -= (
            share * radius * np.sign(slope[largest, columns])
        )
    return found, coefficients


def _least(
    atoms: Values, old: Values, coefficients: Values, steps: int = 5000
) -> Values:
    """The minimiser of g over atoms in the unit ball: accelerated projected gradients with restarts."""
    step = 1 / np.linalg.norm(coefficients, 2) ** 2
    ahead, momentum = atoms, 1.0
    for _ in range(steps):
        moved = ahead - step * (ahead @ coefficients - old) @ coefficients.T
        moved /= np.maximum(1, np.linalg.norm(moved, axis=0))
        if np.sum((ahead - moved) * (moved - atoms)) > 0:
            momentum = 1.0
        if np.abs(moved - ahead).max() < 1e-13:
            return moved
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, atoms, momentum = (
            moved + (momentum - 1) / following * (moved - atoms),
            moved,
            following,
        )
    return atoms
