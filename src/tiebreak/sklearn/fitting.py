"""The fit of a model with two losses: the lower one first, then the upper one within a tolerance of the least."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from tiebreak.sklearn import uppers
from tiebreak.sklearn.descent import Objective, Values, descend
from tiebreak.sklearn.losses import Loss, probabilities, slopes
from tiebreak.sklearn.networks import Network, Pass

__all__ = ["Data", "Fit", "fit"]

#: Widths of the rounded corner of |w|, in shares of the largest weight: one after the other, each from the last.
_WIDTHS = (1e-1, 1e-2, 1e-3)
#: What of the tolerance is left for setting small weights to 0.
_FOR_ZEROS = 0.05


class Data(NamedTuple):
    """What a model is fitted to. `given` is what an upper objective may ask for by name."""

    rows: Values
    loss: Loss
    weights: Values
    outputs: int
    classes: int
    given: Mapping[str, Any]


class Fit(NamedTuple):
    """The matrices of the layers, intercepts in their last rows, and what is to be told of both losses."""

    matrices: list[Values]
    best: float
    limit: float
    lower: float
    before: float
    upper: float
    multiplier: float
    steps: tuple[int, int]
    converged: tuple[bool, bool]
    slope: bool = True  # whether the upper objective falls where its gradient says so


def fit(
    data: Data,
    upper: Any,
    tolerance: tuple[float, bool],
    *,
    alpha: float,
    hidden: tuple[int, ...],
    intercept: bool,
    steps: int,
    accuracy: float,
    rng: np.random.RandomState,
) -> Fit:
    """Minimise the lower loss, then the upper one as far as the tolerance allows."""
    middle = data.weights @ data.rows if intercept else np.zeros(data.rows.shape[1])
    network = Network(data.rows - middle, data.weights, hidden, data.outputs, intercept, alpha)
    lower = _lower(network, data, alpha)
    start = network.start(rng)
    first = minimize(
        lower, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 1e-15, "gtol": 1e-8, "maxls": 50}
    )
    best, x = float(first.fun), np.asarray(first.x, dtype=np.float64)
    amount, relative = tolerance
    # A share of a loss that can be brought to 0 is 0: a millionth of where it began stands in for it.
    room = amount * max(abs(best), 1e-6 * abs(lower(start)[0])) if relative else amount
    limit = best + room
    names = uppers.asks(upper, labels=data.classes > 0)
    value = _upper(network, data, upper, names)
    before = value(x, 0.0)[0]
    if not np.isfinite(before):
        raise ValueError(f"upper={upper!r} is {before!r} for the model of least lower loss; it must be finite")
    made, multiplier, converged, begun = 0, 0.0, True, x
    sparse = isinstance(upper, str) and upper == "l1"
    scale = max(float(np.abs(m[:-1]).max(initial=0)) for m in network.matrices(x))
    for width in [share * scale for share in _WIDTHS] if sparse and scale > 0 else [0.0]:
        within = limit - room * _FOR_ZEROS if sparse else limit
        objective: Objective = lambda x, width=width: value(x, width)  # type: ignore[misc]  # noqa: E731
        found = descend(objective, lower, x, within, steps=steps - made if made < steps else 1, accuracy=accuracy)
        x, multiplier, made, converged = found.x, found.multiplier, made + found.steps, found.converged
    matrices = _with_zeros(network, lower, x, limit) if sparse else network.matrices(x)
    x = network.vector(matrices)
    matrices[0][-1] -= middle @ matrices[0][:-1]
    # scipy also stops where rounding lets the loss fall no further: that is an end as good as another.
    return Fit(
        matrices,
        best,
        limit,
        lower(x)[0],
        before,
        value(x, 0.0)[0],
        multiplier,
        (int(first.nit), made),
        (first.nit < steps, converged),
        made > 0 or not callable(upper) or _falls(lambda x: value(x, 0.0), begun),
    )


def _falls(objective: Objective, x: Values) -> bool:
    """Whether a short step against the gradient lowers a function by about as much as the gradient says.

    A change that is lost in rounding says nothing.
    """
    value, gradient = objective(x)
    norm = float(np.linalg.norm(gradient))
    if norm == 0:
        return True
    length = 1e-6 * (1 + float(np.linalg.norm(x)))
    expected, fell = length * norm, value - objective(x - length / norm * gradient)[0]
    return expected < 1e-10 * abs(value) or fell > 0.5 * expected


def _lower(network: Network, data: Data, alpha: float) -> Objective:
    """The weighted mean loss, and α/2 times the squared weights."""

    def lower(x: Values) -> tuple[float, Values]:
        seen = network.forward(x)
        each, gradient = data.loss(seen.scores)
        matrices = network.matrices(x)
        decay = [np.vstack([m[:-1], np.zeros_like(m[:1])]) for m in matrices]
        value = float(data.weights @ each) + alpha * uppers.l2(decay)[0]
        found = network.backward(x, seen, data.weights[:, None] * gradient)
        return value, found + alpha * network.pull(decay)

    return lower


def _upper(
    network: Network, data: Data, upper: Any, names: tuple[str, ...]
) -> Callable[[Values, float], tuple[float, Values]]:
    """The upper objective as a function of the vector, and of the width of |w|'s corner."""
    given = {name: data.given[name] for name in names if name in data.given}

    def of_weights(x: Values, width: float) -> tuple[float, Values]:
        weights = [m[:-1] for m in network.matrices(x)]
        value, found = uppers.l2(weights) if upper == "l2" else uppers.l1(weights, width)
        return value, network.pull([np.vstack([w, np.zeros_like(w[:1])]) for w in found])

    def of_groups(x: Values, _: float) -> tuple[float, Values]:
        seen = network.forward(x)
        value, found = _gap(_outputs(seen, data.classes), given, data.weights)
        return value, network.backward(x, seen, _for_scores(seen, data.classes, found))

    def own(x: Values, _: float) -> tuple[float, Values]:
        if "coef" in names:
            matrices = network.matrices(x)
            coef = matrices[0][:-1]
            value, found = uppers.checked(upper, coef, {**given, "coef": coef.copy()})
            rest = [np.zeros_like(m) for m in matrices[1:]]
            return value, network.pull([np.vstack([found, np.zeros_like(found[:1])]), *rest])
        seen = network.forward(x)
        name = "scores" if "scores" in names else "probabilities"
        at = seen.scores if name == "scores" else probabilities(seen.scores)
        value, found = uppers.checked(upper, at, {**given, name: at.copy()})
        return value, network.backward(x, seen, found if name == "scores" else slopes(at, found))

    if callable(upper):
        return own
    return of_weights if upper in ("l1", "l2") else of_groups


def _outputs(seen: Pass, classes: int) -> Values:
    """What fairness is asked of: probabilities, without the first class's where there are two; or predictions."""
    if not classes:
        return seen.scores
    chances = probabilities(seen.scores)
    return chances[:, 1:] if classes == 2 else chances


def _for_scores(seen: Pass, classes: int, gradient: Values) -> Values:
    if not classes:
        return gradient
    chances = probabilities(seen.scores)
    return slopes(chances, np.hstack([np.zeros_like(gradient), gradient]) if classes == 2 else gradient)


def _gap(outputs: Values, given: Mapping[str, Any], weights: Values) -> tuple[float, Values]:
    """The variance between groups of the mean output; with labels, within each label, and their weighted mean."""
    groups, labels = given["groups"], given.get("y")
    if labels is None:
        return uppers.between(outputs, groups, weights)
    value, gradient = 0.0, np.zeros_like(outputs)
    for label in np.unique(labels):
        rows = labels == label
        share = float(weights[rows].sum())
        part, gradient[rows] = uppers.between(outputs[rows], groups[rows], weights[rows])
        value, gradient[rows] = value + share * part, share * gradient[rows]
    return value, gradient


def _with_zeros(network: Network, lower: Objective, x: Values, limit: float) -> list[Values]:
    """The matrices with as many weights set to 0, the smallest first, as the limit allows."""
    matrices = network.matrices(x)
    sizes = np.concatenate([np.abs(m[:-1]).ravel() for m in matrices])
    order = np.sort(sizes)

    def cut(count: int) -> list[Values]:
        bound = order[count - 1] if count else -1.0
        return [np.vstack([np.where(np.abs(m[:-1]) <= bound, 0, m[:-1]), m[-1:]]) for m in matrices]

    low, high = 0, len(order)  # so many can go for certain; no more than so many
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if lower(network.vector(cut(middle)))[0] <= limit else (low, middle - 1)
    return cut(low)
