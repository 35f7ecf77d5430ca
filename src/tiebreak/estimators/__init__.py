"""Estimates of gradients from mini-batches: how often samples are evaluated, and what is remembered.

An estimator is a subclass of :class:`Estimator` with two methods, in arithmetic alone, so that the same lines serve NumPy
arrays with a row per run, torch tensors and JAX tracers::

    begin(level, zeros, zero) -> memory
    update(level, fresh, before, memory, parameters) -> (estimate, memory)

`level` is "upper" or "lower". `fresh` is this step's mini-batch gradient at x_k, `before` the same batch's at x_{k−1}
(`fresh` itself with one evaluation). `memory` is a tuple, as long as `begin` made it. The other methods and properties of
the base class have defaults: :attr:`~Estimator.evaluations` (1 or 2 points), :meth:`~Estimator.asks` for estimators that
choose their batches, :meth:`~Estimator.cycle`, :attr:`~Estimator.needs`, :attr:`~Estimator.direction`.
"""

from typing import Any

from tiebreak.estimators.combined import Held, PerLevel
from tiebreak.estimators.contract import Estimator
from tiebreak.estimators.plain import Average, Minibatch
from tiebreak.estimators.recursive import Page, Spider, Storm

__all__ = [
    "Average",
    "Estimator",
    "Held",
    "Minibatch",
    "Page",
    "PerLevel",
    "Spider",
    "Storm",
]

#: Estimators by name, for front ends that take names. A base optimizer smooths the direction: hence direction=False.
ESTIMATORS: dict[str, Estimator] = {
    "minibatch": Minibatch(),
    "average": Average(direction=False),
    "storm": Storm(),
}


def named(estimator: Any) -> Estimator:
    """The estimator of this name, or the one given; anything else is refused.

    Examples
    --------
    >>> named("average")
    Average(momentum=None, direction=False)
    """
    if isinstance(estimator, str) and estimator in ESTIMATORS:
        return ESTIMATORS[estimator]
    if isinstance(estimator, type):
        raise ValueError(
            f"estimator={estimator.__name__} is a class; give one of it: {estimator.__name__}(…)"
        )
    if not isinstance(estimator, Estimator):
        names = ", ".join(map(repr, ESTIMATORS))
        raise ValueError(
            f"estimator={estimator!r} must be one of {names}, or a subclass of tiebreak.estimators.Estimator"
        )
    if estimator.evaluations not in (1, 2):
        raise ValueError(
            f"evaluations={estimator.evaluations!r} of {estimator!r} must be 1 or 2"
        )
    return estimator
