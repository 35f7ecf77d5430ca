"""A prototype, outside the library: penalty descent whose steps are shortened along the directions where ∇g is stiff.

    d = (I − (1 − 1/κ) U Uᵀ)(a + β b)

U spans the m leading eigenvectors of an average of y yᵀ/‖s‖², s = x_k − x_{k−1} and y the difference of ∇g along s, of
one batch at both points: stiff directions, because along the floor of a gorge ∇g hardly changes. (Noise that changes
with x is in these differences, too, and along the step; the documentation says what that does.) It is linear in the
estimates, so noise adds no bias, and its fixed points are the penalty's; these are mini-batches, or STORM's.
"""

import numpy as np

from tiebreak.levels import Level, generators
from tiebreak.stationarity import residuals

__all__ = ["deflated"]


def deflated(
    problem, *, budget, runs, seed, step_size, barrier, upper_batch, lower_batch, shorten, rank, rate=0.05, momentum=1.0
):
    """‖∇f + λ∇g‖² with the best λ, and ‖∇g‖², of every run: means over the last fifth of the budget.

    With `momentum` 1 the estimates are mini-batches, and the upper ones are not evaluated at the point before.
    """
    upper, lower = (
        Level(name, oracle, problem.x0.shape, np.dtype(float))
        for name, oracle in (("upper", problem.upper), ("lower", problem.lower))
    )
    streams = generators(np.random.SeedSequence(seed), range(runs))
    x = np.repeat(problem.x0[None], runs, axis=0)
    dimension = x.shape[1]
    curvature = np.zeros((runs, dimension, dimension))
    first, later = upper_batch + lower_batch, (1 if momentum == 1 else 2) * upper_batch + 2 * lower_batch
    previous, spent, k, found = None, 0, 0, []
    while (spent := spent + (first if previous is None else later)) <= budget:
        tokens = [
            level.draw(rngs, [size])[0]
            for level, rngs, size in _batches(upper, lower, streams, upper_batch, lower_batch)
        ]
        fresh, other = upper.gradient(x, tokens[0]), lower.gradient(x, tokens[1])
        if previous is None:
            a, b = fresh, other
            d = a + barrier * b
        else:
            s, before = x - previous, lower.gradient(previous, tokens[1])
            if momentum == 1:
                a, b = fresh, other
            else:
                a = fresh + (1 - momentum) * (a - upper.gradient(previous, tokens[0]))
                b = other + (1 - momentum) * (b - before)
            d = a + barrier * b
            y = (other - before) / np.maximum(np.linalg.norm(s, axis=1, keepdims=True), 1e-300)
            curvature = (1 - rate) * curvature + rate * y[:, :, None] * y[:, None, :]
            U = np.linalg.eigh(curvature)[1][:, :, -rank:]
            d = d - (1 - 1 / shorten) * np.einsum("rim,rm->ri", U, np.einsum("rim,ri->rm", U, d))
        previous, x, k = x, x - step_size * d, k + 1
        if spent > 0.8 * budget and k % 8 == 0:
            exact = lower.exact(x)
            least = residuals(upper.exact(x), exact, lambda fg, gg: 0 * fg).stationarity_squared
            found.append((least, (exact**2).sum(axis=1)))
    return np.mean(found, axis=0) if found else np.full((2, runs), np.inf)


def _batches(upper, lower, streams, upper_batch, lower_batch):
    return (upper, streams[0], upper_batch), (lower, streams[1], lower_batch)
