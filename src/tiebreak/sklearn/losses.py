"""Losses of scores: what has to stay small."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.sklearn.descent import Values

#: scores ↦ the loss of each row, and its derivatives for the scores.
Loss = Callable[[Values], tuple[Values, Values]]

__all__ = ["Loss", "cross_entropy", "probabilities", "slopes", "squares"]


def probabilities(scores: Values) -> Values:
    """A column a class: sigmoid of one column of scores, softmax of several."""
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def slopes(chances: Values, gradient: Values) -> Values:
    """The gradient for the scores, from that for the probabilities."""
    full: Values = chances * (gradient - (chances * gradient).sum(axis=1, keepdims=True))
    return full[:, 1:] if chances.shape[1] == 2 else full


def cross_entropy(labels: NDArray[np.integer[Any]]) -> Loss:
    """The logistic loss of labels 0, 1, …"""
    row = np.arange(len(labels))

    def loss(scores: Values) -> tuple[Values, Values]:
        chances = probabilities(scores)
        full = scores if scores.shape[1] > 1 else np.hstack([np.zeros_like(scores), scores])
        top = full.max(axis=1)
        each = np.log(np.exp(full - top[:, None]).sum(axis=1)) + top - full[row, labels]
        chances[row, labels] -= 1
        return each, chances[:, 1:] if scores.shape[1] == 1 else chances

    return loss


def squares(targets: Values) -> Loss:
    """Half the squared error, summed over outputs."""

    def loss(scores: Values) -> tuple[Values, Values]:
        error = scores - targets
        return (error**2).sum(axis=1) / 2, error

    return loss
