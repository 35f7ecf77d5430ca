"""What a method makes of its samples: how often it evaluates them, what it remembers, what the rule then sees.

An estimator is any object with ``evaluations`` (1: samples are evaluated at x_k; 2: at x_k and at x_{k−1}, too) and two
functions, in arithmetic alone, so that the same lines serve NumPy arrays with a row per run, torch tensors and JAX
tracers::

    begin(level, zeros, zero) -> memory
    update(level, fresh, before, memory, parameters) -> (estimate, memory)

`level` is "upper" or "lower". `fresh` is this step's mini-batch gradient at x_k, `before` the same batch's at x_{k−1}
(`fresh` itself with one evaluation). `memory` is a tuple; it begins with what `begin` makes of an array of zeros like
the gradient and of a scalar zero. What else is used, where it is there:

``asks(level, parameters)``
    how many samples a step draws for a level, and at how many points each is evaluated: 0, 1 or 2. Its calls are the
    product. Called with the parameters of one step, or with arrays of many. A gradient that was not asked for is 0.
    Without it: the schedule's batches, at `evaluations` points, in the first step at one;
``cycle(parameters)``
    after how many steps its costs repeat if the laws are constant, so that any number of steps is counted at once;
``needs``
    the names of the parameters that the schedule has to set;
``later(level, fresh, before, memory, parameters)``
    the same as `update` from the second step on, where less is to be done then; :func:`tiebreak.minimize` alone asks;
``direction``
    false to keep the estimate out of the direction: then it enters the multiplier alone;
``watches``
    true where the last mini-batch gradient comes last in the memory: then a rule may ask for what
    :class:`~tiebreak.estimators.recursive.Watched` says, in :func:`tiebreak.minimize` alone.
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

#: What front ends that take names know them by. A base optimizer smooths the direction again: hence λ alone.
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
    if isinstance(estimator, str) or not all(
        hasattr(estimator, n) for n in ("evaluations", "begin", "update")
    ):
        names = ", ".join(map(repr, ESTIMATORS))
        raise ValueError(
            f"estimator={estimator!r} must be one of {names}, or an object with `evaluations`, `begin` and `update`"
        )
    if estimator.evaluations not in (1, 2):
        raise ValueError(
            f"evaluations={estimator.evaluations!r} of {estimator!r} must be 1 or 2"
        )
    return estimator  # type: ignore[no-any-return]  # it has what an estimator has
