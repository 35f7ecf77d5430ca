"""Estimators for scikit-learn: fit the loss first and, within a tolerance, a second objective."""

import math
import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from tiebreak.checks import floating, whole
from tiebreak.options import allowed
from tiebreak.sklearn import uppers
from tiebreak.sklearn.descent import Values
from tiebreak.sklearn.fitting import Data, Fit, fit
from tiebreak.sklearn.losses import cross_entropy, probabilities, squares
from tiebreak.sklearn.networks import apply

__all__ = ["TiebreakClassifier", "TiebreakRegressor"]

_PARAMETERS = """
    Parameters
    ----------
    upper : {{"l2", "l1", {names}}} or callable
        What to minimise among models whose loss is within the tolerance. "l2" is half the sum of squared weights;
        "l1" the sum of their sizes, and weights that the tolerance can do without are exactly 0; {words}
        A callable gets what it asks for by name: one of ``scores`` (rows × outputs), {more}``coef`` (features ×
        outputs, or × units of the first layer), and whatever it needs of ``X``, ``y``, ``groups`` and
        ``sample_weight``. It returns a value and the gradient for the first of these.
    tolerance : float or str
        How far the lower loss may lie above the least one, as a loss or as a share of it ("2%").
    alpha : float
        Weight of half the sum of squared weights in the lower loss. 0 leaves the mean loss alone.
    hidden_layer_sizes : tuple of int
        Units of the hidden layers (ReLU); empty for a linear model. Every step uses all rows: for small networks.
    fit_intercept : bool
        Whether the first layer has an intercept; hidden layers always have one.
    max_iter : int
        At most so many steps for the lower loss, and as many again for the upper one.
    tol : float
        The second part ends where ten steps gain no more than this share of what was gained.
    random_state : int, RandomState or None
        For the start of hidden layers.

    Attributes
    ----------
    lower_best_, lower_limit_, lower_loss_ : float
        The least lower loss that was reached, with the tolerance, and the loss of the model. For a network it is the
        least that descent found.
    upper_before_, upper_loss_ : float
        The upper objective at the model of least lower loss, and at the model.
    multiplier_ : float
        The weight λ of the lower loss at the end: what a unit of tolerance more would lower the upper objective by.
    coef_, intercept_ : array
        Of a linear model, as in scikit-learn.
    coefs_, intercepts_ : list of array
        Of every layer.
    n_iter_ : int
        Steps of the second part.{classes}
    n_features_in_ : int
    feature_names_in_ : array of str
        Where the columns of X have names.
"""
_FAIR = '"parity" the variance between `groups` of the mean {output}{odds}. Both need\n        ``fit(X, y, groups=…)``.'


class _Tiebreak(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    def __init__(
        self,
        upper: Any = "l2",
        *,
        tolerance: float | str = "2%",
        alpha: float = 1e-4,
        hidden_layer_sizes: tuple[int, ...] = (),
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.upper = upper
        self.tolerance = tolerance
        self.alpha = alpha
        self.hidden_layer_sizes = hidden_layer_sizes
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    __init__.__qualname__ = "TiebreakClassifier or TiebreakRegressor"  # in what Python says of wrong arguments

    def _number(self, name: str, least: float = 0.0) -> float:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real) or not least <= floating(value) < math.inf:
            raise ValueError(f"{name}={value!r} must be a number ≥ {least:g}")
        return float(value)

    def _hidden(self) -> tuple[int, ...]:
        sizes: Any = self.hidden_layer_sizes
        sizes = (sizes,) if isinstance(sizes, Integral) else sizes
        return tuple(whole("hidden_layer_sizes", size) for size in sizes)

    def _fit(self, X: Values, y: Any, groups: Any, sample_weight: Any, **kind: Any) -> None:
        """Check what is left to check, fit, and keep what came of it."""
        classes = kind["classes"]
        asked = uppers.asks(self.upper, labels=classes > 0)
        given: dict[str, Any] = {"X": X, "y": y}
        given["sample_weight"] = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not given["sample_weight"].any():  # older versions of scikit-learn let it pass
            raise ValueError("sample_weight must have at least one non-zero number")
        if "groups" in asked:
            given["groups"] = _groups(groups, len(X))
        elif groups is not None:
            raise ValueError(f"groups has no effect with upper={self.upper!r}, which does not ask for it")
        given = _taken(given, merge=not callable(self.upper))
        weights = given["sample_weight"]
        data = Data(given["X"], kind["loss"](given["y"]), weights / weights.sum(), kind["outputs"], classes, given)
        found = fit(
            data,
            self.upper,
            allowed(self.tolerance),
            alpha=self._number("alpha"),
            hidden=self._hidden(),
            intercept=bool(self.fit_intercept),
            steps=whole("max_iter", self.max_iter),
            accuracy=self._number("tol"),
            rng=check_random_state(self.random_state),
        )
        self._keep(found)

    def _keep(self, found: Fit) -> None:
        for done, what in zip(found.converged, ("lower loss", "upper objective"), strict=True):
            if not done:
                warnings.warn(
                    f"the {what} was still falling after max_iter={self.max_iter} steps: increase max_iter, or tol",
                    ConvergenceWarning,
                    stacklevel=4,
                )
        if not found.slope:
            warnings.warn(
                f"no step along the gradient of upper={getattr(self.upper, '__name__', self.upper)!r} lowers it, and "
                "the model is the one of least lower loss: is the gradient right, also its sign?",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.lower_best_, self.lower_limit_, self.lower_loss_ = found.best, found.limit, found.lower
        self.upper_before_, self.upper_loss_, self.multiplier_ = found.before, found.upper, found.multiplier
        self.n_iter_ = found.steps[1]
        self._matrices = found.matrices
        self.coefs_ = [m[:-1] for m in found.matrices]
        self.intercepts_ = [m[-1] for m in found.matrices]

    def _scores(self, X: Any) -> Values:
        check_is_fitted(self)
        return apply(self._matrices, validate_data(self, X, dtype=np.float64, reset=False))


def _taken(given: dict[str, Any], merge: bool) -> dict[str, Any]:
    """The rows of weight > 0; equal ones merged, in one order: a row of weight 2 is two rows, to the last bit.

    Not where a function of the user's sees the rows: it need not ask for their weights.
    """
    there = given["sample_weight"] > 0
    given = {name: value[there] for name, value in given.items()}
    if not merge:
        return given
    parts = [
        np.asarray(value, dtype=np.float64).reshape(len(value), -1)
        for name, value in given.items()
        if name != "sample_weight"
    ]
    table = np.ascontiguousarray(np.hstack(parts) + 0.0)  # which makes 0 of -0
    rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, first, place = np.unique(rows, return_index=True, return_inverse=True)
    found = {name: value[first] for name, value in given.items()}
    return found | {"sample_weight": np.bincount(place.ravel(), given["sample_weight"])}


def _groups(groups: Any, rows: int) -> NDArray[np.int64]:
    """Any labels of groups as 0, 1, …"""
    if groups is None:
        raise ValueError(
            "groups=None: this upper objective compares groups of rows; give fit(X, y, groups=…). In a Pipeline or a "
            "search: sklearn.set_config(enable_metadata_routing=True) and estimator.set_fit_request(groups=True)"
        )
    found = column_or_1d(groups)
    if len(found) != rows:
        raise ValueError(f"groups has {len(found)} entries; it must have one for each of the {rows} rows")
    names, numbers = np.unique(found, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"groups are all {names[0]!r}; there must be two or more")
    return np.asarray(numbers, dtype=np.int64)


class TiebreakClassifier(ClassifierMixin, _Tiebreak):  # type: ignore[misc]  # likewise
    __doc__ = (
        """A classifier: the logistic loss first and, within a tolerance of its minimum, another objective.

    Linear unless there are hidden layers. The lower loss is the mean cross-entropy plus α/2 times the squared weights;
    it is minimised first. The upper objective is minimised after that, with every step within the tolerance.
"""
        + _PARAMETERS.format(
            names='"parity", "odds"',
            words=_FAIR.format(output="probability", odds=', and\n        "odds" the same within each class'),
            more="``probabilities`` (rows ×\n        classes), ",
            classes="\n    classes_ : array",
        )
        + """
    Examples
    --------
    Of all models that are at most 5 % worse than the best, one with few weights:

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = TiebreakClassifier("l1", tolerance="5%", alpha=0.01).fit(scale(X), y)
    >>> model.lower_loss_ <= 1.05 * model.lower_best_
    True
    >>> int((model.coef_ != 0).sum()) < 30
    True
    """
    )

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> "TiebreakClassifier":
        """Fit to rows X with labels y; `groups` has the group of each row, where the upper objective compares them."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        classes = len(self.classes_)
        if classes < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; there must be two or more")
        outputs = 1 if classes == 2 else classes
        self._fit(X, labels, groups, sample_weight, loss=cross_entropy, outputs=outputs, classes=classes)
        return self

    @property
    def coef_(self) -> Values:
        """The weights of a linear model, a row for each class; one row for two classes."""
        return _linear(self, "coef_", self.coefs_).T

    @property
    def intercept_(self) -> Values:
        """The intercepts of a linear model."""
        return _linear(self, "intercept_", self.intercepts_)

    def decision_function(self, X: Any) -> Values:
        """The scores: a column for each class, or one number a row for two classes."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Values:
        """The probability of each class."""
        return probabilities(self._scores(X))

    def predict_log_proba(self, X: Any) -> Values:
        """Its logarithm."""
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: Any) -> Any:
        """The most probable class."""
        scores = self._scores(X)
        chosen = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]


class TiebreakRegressor(RegressorMixin, _Tiebreak):  # type: ignore[misc]  # likewise
    __doc__ = (
        """A regressor: the squared loss first and, within a tolerance of its minimum, another objective.

    Linear unless there are hidden layers. The lower loss is half the mean squared error plus α/2 times the squared
    weights; it is minimised first. The upper objective is minimised after that, with every step within the tolerance.
"""
        + _PARAMETERS.format(
            names='"parity"',
            words=_FAIR.format(output="prediction", odds="").replace("Both need", "It needs"),
            more="",
            classes="",
        )
        + """
    Examples
    --------
    More weights than rows: many models fit exactly. The one of least norm is the pseudo-inverse's.

    >>> X, y = np.eye(3, 5) + 1.0, np.array([1.0, 2.0, 4.0])
    >>> model = TiebreakRegressor("l2", alpha=0, fit_intercept=False, tol=1e-9).fit(X, y)
    >>> bool(np.allclose(model.coef_, np.linalg.pinv(X) @ y, atol=2e-3))
    True
    """
    )

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> "TiebreakRegressor":
        """Fit to rows X with targets y; `groups` has the group of each row, where the upper objective compares them."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = np.asarray(y, dtype=np.float64)
        self._flat = targets.ndim == 1
        targets = targets.reshape(len(X), -1)
        self._fit(X, targets, groups, sample_weight, loss=squares, outputs=targets.shape[1], classes=0)
        return self

    @property
    def coef_(self) -> Values:
        """The weights of a linear model; a row for each target where there are several."""
        weights = _linear(self, "coef_", self.coefs_)
        return weights[:, 0] if self._flat else weights.T

    @property
    def intercept_(self) -> Any:
        """The intercept of a linear model; one for each target where there are several."""
        found = _linear(self, "intercept_", self.intercepts_)
        return float(found[0]) if self._flat else found

    def predict(self, X: Any) -> Values:
        """The prediction for each row."""
        scores = self._scores(X)
        return scores[:, 0] if self._flat else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _linear(model: Any, name: str, layers: list[Values]) -> Values:
    if len(layers) > 1:
        raise AttributeError(f"{name} is for linear models; this one has hidden layers: see {name[:-1]}s_")
    return layers[0]
