"""Over-parametrised least squares on real data: among all exact fits of some rows, the one that suits other rows best.

::

    g(x) = ½ mean (⟨a_i, x⟩ − y_i)²  over the training rows      f(x) = the same over the validation rows

The rows are the diabetes data of scikit-learn, each turned into random cosines: more of them than there are training
rows, so that the minimisers of g, all with g = 0, fill an affine set. f breaks the tie, and its minimum over that set
is known. Third rows, seen by neither, test the outcome.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.oracles import Array
from tiebreak.oracles.finite_sum import FiniteSum
from tiebreak.problems.problem import Problem
from tiebreak.theory.constants import Constants

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Some rows: their features, a row each, and their targets."""

    features: Values
    targets: Values

    def __len__(self) -> int:
        return len(self.targets)

    def loss(self, x: Array, rows: Any = slice(None)) -> float:
        """Half the mean squared error of these rows, all of them unless told."""
        return float(np.mean((self.features[rows] @ x - self.targets[rows]) ** 2) / 2)

    def gradient(self, x: Array, rows: Any = slice(None)) -> Values:
        """Its gradient."""
        chosen = self.features[rows]
        found: Values = chosen.T @ (chosen @ x - self.targets[rows]) / len(chosen)
        return found

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of the Hessian."""
        return float(np.linalg.norm(self.features, 2) ** 2 / len(self))

    def scatter(self, x: Array, radius: float) -> float:
        """A bound on the standard deviation of one row's gradient, over the ball of this radius around x."""
        norms = np.linalg.norm(self.features, axis=1)
        steepest = norms * np.abs(self.features @ x - self.targets) + norms**2 * radius
        return float(np.sqrt(np.mean(steepest**2)))

    def oracle(self) -> FiniteSum:
        """The loss as an objective of the solver; a sample is a row."""
        return FiniteSum(
            self._weighted_gradient,
            len(self),
            self._weighted_loss,
            weighted=True,
            vectorized=True,
        )

    def _residuals(self, x: Array, rows: Any) -> tuple[Any, Values]:
        # A product for each point, and not one for all: whoever runs beside it, a run is the same to the last bit.
        chosen = self.features[rows]
        return chosen, (chosen @ x[..., None])[..., 0] - self.targets[rows]

    def _weighted_loss(self, x: Array, rows: Any, weights: Values) -> Values:
        _, residuals = self._residuals(x, rows)
        found: Values = (weights * residuals**2).sum(axis=-1) / 2
        return found

    def _weighted_gradient(self, x: Array, rows: Any, weights: Values) -> Values:
        chosen, residuals = self._residuals(x, rows)
        found: Values = ((weights * residuals)[..., None, :] @ chosen)[..., 0, :]
        return found


@dataclass(frozen=True)
class RegressionData:
    """The rows of the lower objective, of the upper one, and those that test."""

    train: Rows
    validation: Rows
    test: Rows

    def solution(self, start: Array | None = None) -> Values:
        """The minimiser of the validation loss among those of the training loss; of several, the nearest to `start`.

        The training loss is minimal on p + range N, N an orthonormal basis of the null space of its features. On that
        set the validation loss is a least-squares problem in fewer unknowns.
        """
        first = self.train.features
        fit = np.linalg.pinv(first) @ self.train.targets
        rank = int(np.linalg.matrix_rank(first))
        free = np.linalg.svd(first)[2][rank:].T
        begin = free.T @ (
            np.zeros_like(fit) if start is None else np.asarray(start, float)
        )
        rest = self.validation.features @ free
        missing = (
            self.validation.targets - self.validation.features @ fit - rest @ begin
        )
        found: Values = fit + free @ (begin + np.linalg.pinv(rest) @ missing)
        return found


def regression_data(
    seed: int = 0, *, features: int = 132, shares: tuple[float, float] = (0.2, 0.55)
) -> RegressionData:
    """The diabetes data of scikit-learn (442 rows, 10 measurements) as random cosines, split at random.

    Parameters
    ----------
    seed : int
        Of the split and of the cosines.
    features : int
        How many cosines, √2 cos(⟨w, z⟩ + b) with normal w and uniform b, scaled so that a row has norm 1 on average.
    shares : pair of float
        Shares of the rows for training and for validation; what is left tests.

    Examples
    --------
    >>> data = regression_data(0)
    >>> data.train.features.shape, len(data.validation), len(data.test)
    ((88, 132), 244, 110)
    """
    count, (first, second) = whole("features", features), shares
    if not (first > 0 and second > 0 and first + second < 1):
        raise ValueError(
            f"shares={shares!r} must be two numbers > 0 with a sum < 1: what is left is for the test"
        )
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        raise ModuleNotFoundError(
            "the diabetes data come with scikit-learn: pip install scikit-learn"
        ) from None
    inputs, targets = load_diabetes(return_X_y=True)
    rng = default_rng(seed)
    order = rng.permutation(len(targets))
    cuts = [round(first * len(order)), round((first + second) * len(order))]
    seen = order[: cuts[1]]  # means and scales from rows that may be looked at
    inputs = (inputs - inputs[seen].mean(axis=0)) / inputs[seen].std(axis=0)
    targets = (targets - targets[seen].mean()) / targets[seen].std()
    directions = (
        rng.standard_normal((inputs.shape[1], count)) * 2 / np.sqrt(inputs.shape[1])
    )
    made = np.sqrt(2 / count) * np.cos(
        inputs @ directions + rng.uniform(0, 2 * np.pi, count)
    )
    return RegressionData(
        *(Rows(made[part], targets[part]) for part in np.split(order, cuts))
    )


def regression(data: RegressionData | int = 0) -> Problem:
    """Over-parametrised regression: the training loss is the lower objective, the validation loss the upper one.

    Parameters
    ----------
    data : RegressionData or int
        The rows, or the seed with which :func:`regression_data` draws them.

    Notes
    -----
    The start is 0. L_f and L_g are exact. Gradients of a quadratic have no bound, so G_f and the noise are bounded on
    the ball around the solution with twice the radius at which the start lies; a run that leaves it has no promise.

    Examples
    --------
    >>> import tiebreak
    >>> problem = regression()
    >>> schedule = tiebreak.Schedule(step_size=tiebreak.Power(4.0, -1 / 4), barrier=1.0)
    >>> method = tiebreak.methods.dbgd.replace(schedule=schedule)
    >>> exact = [oracle.exact_gradient for oracle in (problem.upper, problem.lower)]
    >>> result = tiebreak.minimize(*exact, problem.x0, method=method, steps=2000)
    >>> bool(problem.lower.value(result.x) < 0.03 * problem.lower.value(problem.x0))
    True
    """
    rows = regression_data(data) if isinstance(data, int) else data
    start = np.zeros(rows.train.features.shape[1])
    solution = rows.solution(start)
    radius = 2 * float(np.linalg.norm(solution - start))
    f, g = rows.validation, rows.train
    constants = Constants(
        L_f=f.smoothness,
        L_g=g.smoothness,
        G_f=float(np.linalg.norm(f.gradient(solution))) + f.smoothness * radius,
        sigma_f=f.scatter(solution, radius),
        sigma_g=g.scatter(solution, radius),
        delta_f=f.loss(start) - f.loss(np.linalg.pinv(f.features) @ f.targets),
        delta_g=g.loss(start) - g.loss(solution),
    )
    return Problem("regression", f.oracle(), g.oracle(), start, solution, constants)
