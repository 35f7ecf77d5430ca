"""Linear models and small networks as functions of one vector, with gradients: NumPy alone.

The vector holds a matrix a layer, the last row of each is the intercept. The first layer's is kept in coordinates in
which the inputs are uncorrelated and of one size, W = B Z: badly scaled features then cost no steps.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tiebreak.sklearn.descent import Values

__all__ = ["Network", "Pass", "apply"]

_WIDE = 1000  # above so many features only their sizes are made equal


class Pass(NamedTuple):
    """What a forward pass leaves: the inputs of each layer, and the scores."""

    inputs: list[Values]
    scores: Values


class Network:
    """Layers of these sizes on these rows; ReLU between them.

    Parameters
    ----------
    rows : array, n × features
    weights : array
        A weight for each row, with sum 1.
    hidden : tuple of int
        Units of each hidden layer; none for a linear model.
    outputs : int
    intercept : bool
        Whether the first layer has one; the others always do.
    ridge : float
        Added to the second moments of the inputs before these are made equal.
    """

    def __init__(
        self, rows: Values, weights: Values, hidden: tuple[int, ...], outputs: int, intercept: bool, ridge: float
    ) -> None:
        self.rows = np.hstack([rows, np.full((len(rows), 1), float(intercept))])
        self.factor = _factor(self.rows, weights, ridge)
        self.basis = 1 / self.factor if self.factor.ndim == 1 else np.linalg.inv(self.factor).T
        self.inputs = self.rows * self.basis if self.factor.ndim == 1 else self.rows @ self.basis
        sizes = [rows.shape[1], *hidden, outputs]
        self.shapes = [(before + 1, after) for before, after in pairwise(sizes)]
        self.intercept = intercept

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return sum(a * b for a, b in self.shapes)

    def layers(self, x: Values) -> list[Values]:
        """The vector as a matrix a layer, the first in its own coordinates; views of it."""
        cuts = np.cumsum([a * b for a, b in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(x, cuts), self.shapes, strict=True)]

    def matrices(self, x: Values) -> list[Values]:
        """The matrices that the rows are multiplied with, intercepts in the last rows."""
        first, *rest = self.layers(x)
        first = self.basis[:, None] * first if self.basis.ndim == 1 else self.basis @ first
        if not self.intercept:
            first = np.vstack([first[:-1], np.zeros_like(first[:1])])
        return [first, *rest]

    def vector(self, matrices: list[Values]) -> Values:
        """The vector of these matrices; undoes `matrices`."""
        first, *rest = matrices
        first = self.factor[:, None] * first if self.factor.ndim == 1 else self.factor.T @ first
        return np.concatenate([m.ravel() for m in (first, *rest)])

    def pull(self, gradients: list[Values]) -> Values:
        """The gradient for the vector, from those for the matrices."""
        first, *rest = gradients
        first = self.basis[:, None] * first if self.basis.ndim == 1 else self.basis.T @ first
        return np.concatenate([m.ravel() for m in (first, *rest)])

    def start(self, rng: np.random.RandomState) -> Values:
        """Zeros for a linear model; else uniform, in the limits of Glorot and Bengio."""
        matrices = [np.zeros(shape) for shape in self.shapes]
        if len(matrices) > 1:
            for m in matrices:
                bound = (6 / sum(m.shape)) ** 0.5
                m[:-1] = rng.uniform(-bound, bound, m[:-1].shape)
        # The first layer's limits are for inputs of size 1: the coordinates as they are.
        return np.concatenate([m.ravel() for m in matrices])

    def forward(self, x: Values) -> Pass:
        """The scores of the rows, a column an output."""
        layers, inputs = self.layers(x), [self.inputs]
        for layer in layers[:-1]:
            inputs.append(_active(inputs[-1] @ layer))
        return Pass(inputs, inputs[-1] @ layers[-1])

    def backward(self, x: Values, seen: Pass, scores: Values) -> Values:
        """The gradient for the vector, from that for the scores."""
        layers, found, gradient = self.layers(x), [], scores
        for layer, inputs in zip(reversed(layers), reversed(seen.inputs), strict=True):
            found.append(inputs.T @ gradient)
            gradient = (gradient @ layer[:-1].T) * (inputs[:, :-1] > 0) if layer is not layers[0] else gradient
        return np.concatenate([m.ravel() for m in reversed(found)])


def apply(matrices: list[Values], rows: Values) -> Values:
    """The scores of other rows."""
    for m in matrices[:-1]:
        rows = np.maximum(rows @ m[:-1] + m[-1], 0)
    return np.asarray(rows @ matrices[-1][:-1] + matrices[-1][-1])


def _active(values: Values) -> Values:
    """ReLU, and a column of ones for the next layer's intercept."""
    return np.hstack([np.maximum(values, 0), np.ones((len(values), 1))])


def _factor(rows: Values, weights: Values, ridge: float) -> Values:
    """R with R Rᵀ about Σ w x xᵀ + ridge, the second moments of the rows; of many features its diagonal."""
    sizes = weights @ rows**2
    # A ten-thousandth of each size: features may be copies of each other, or more than the rows. And a feature that is
    # always 0 has no size: any will do.
    extra = ridge + 1e-4 * sizes + (sizes <= 1e-24 * sizes.max(initial=0))
    if rows.shape[1] > _WIDE:
        return np.asarray(np.sqrt(sizes + extra))
    return np.asarray(np.linalg.cholesky(rows.T @ (weights[:, None] * rows) + np.diag(extra)), dtype=np.float64)
