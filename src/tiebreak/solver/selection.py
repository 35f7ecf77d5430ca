"""The returned iterate x_{N_K}, P(N_K = k) ∝ w_k, drawn online: the memory of one iterate, valid at every K.

Weighted reservoir sampling: at step k the current iterate replaces the kept one with probability w_k / (w_0 + … + w_k).
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


def replacements(
    rngs: Sequence[Generator], weights: Sequence[float], total: float
) -> NDArray[np.bool_]:
    """Whether the iterate of each step replaces the kept one, (steps, runs).

    Parameters
    ----------
    rngs : sequence of Generator
        One for each run; a uniform number is drawn from each for every step.
    weights : sequence of float
        w_k ≥ 0 of the steps.
    total : float
        The weight of all earlier steps.

    Examples
    --------
    >>> replacements([np.random.default_rng(0)], [1.0, 0.0], total=0.0)  # the first is always kept, weight 0 never
    array([[ True],
           [False]])
    """
    # Added singly, so that the total at a step does not depend on how steps are grouped into calls.
    totals = np.add.accumulate(np.concatenate([[total], weights]))[1:, None]
    uniforms = np.empty((len(rngs), len(weights)))
    for row, rng in zip(uniforms, rngs, strict=True):
        row[:] = rng.random(len(weights))
    return (
        np.ascontiguousarray(uniforms.T) * totals
        < np.asarray(weights, dtype=float)[:, None]
    )
