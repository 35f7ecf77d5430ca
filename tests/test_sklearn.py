"""Estimators for scikit-learn: its own checks, a slow reference for what is found, and what its users expect."""

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install '.[sklearn]'")

import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import check_estimator

from tiebreak.sklearn import TiebreakClassifier, TiebreakRegressor, fitting
from tiebreak.sklearn.descent import descend
from tiebreak.sklearn.losses import cross_entropy, squares
from tiebreak.sklearn.networks import Network

RNG = np.random.default_rng(0)
CANCER = scale(load_breast_cancer(return_X_y=True)[0])[:, :12]
SICK = load_breast_cancer(return_X_y=True)[1]
IRIS, KIND = load_iris(return_X_y=True)
DIABETES, PROGRESS = load_diabetes(return_X_y=True)
PROGRESS = scale(PROGRESS)


def split(X: Any) -> Any:
    """Groups that go with a feature, so that a fit of the labels is not fair by itself."""
    return np.where(
        X[:, 0] + np.random.default_rng(1).standard_normal(len(X)) * X[:, 0].std() > X[:, 0].mean(), "a", "b"
    )


def calm(scores: Any) -> Any:
    """An upper objective of a user's: small scores."""
    return (scores**2).mean(), 2 * scores / scores.size


def dear(coef: Any) -> Any:
    """Another: the first features cost more."""
    price = 1 / np.arange(1, len(coef) + 1)[:, None]
    return float((price * coef**2).sum()), 2 * price * coef


def sure(probabilities: Any, sample_weight: Any) -> Any:
    """A third: no probability far from 1/2."""
    weights = sample_weight[:, None] / sample_weight.sum()
    return float((weights * (probabilities - 0.5) ** 2).sum()), 2 * weights * (probabilities - 0.5)


@pytest.mark.parametrize(
    "estimator",
    [
        TiebreakClassifier(),
        TiebreakRegressor("l1"),
        TiebreakClassifier(hidden_layer_sizes=(4,), alpha=1e-2, max_iter=60, random_state=0),
        TiebreakRegressor(hidden_layer_sizes=(4,), alpha=1e-2, max_iter=60, random_state=0),
    ],
    ids=repr,
)
def test_scikit_learns_own_checks(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some ask for fits that need more steps
        found = check_estimator(estimator, on_fail=None)
    assert len(found) > 50
    assert [f"{row['check_name']}: {row['exception']}" for row in found if row["status"] == "failed"] == []


@pytest.mark.parametrize("upper", ["l2", "l1", "parity", "odds", calm, dear, sure])
@pytest.mark.parametrize(("X", "y"), [(CANCER, SICK), (IRIS, KIND)], ids=["cancer", "iris"])
def test_a_classifier_finds_what_a_solver_for_constraints_finds(X: Any, y: Any, upper: Any, monkeypatch: Any) -> None:
    """min f s.t. g ≤ limit by SLSQP, an independent method with dense matrices, from the same start."""
    _against_slsqp(TiebreakClassifier(upper, alpha=1e-2), X, y, monkeypatch)


@pytest.mark.parametrize("upper", ["l2", "l1", "parity", calm, dear])
def test_a_regressor_finds_what_a_solver_for_constraints_finds(upper: Any, monkeypatch: Any) -> None:
    _against_slsqp(TiebreakRegressor(upper, alpha=1e-3), DIABETES, PROGRESS, monkeypatch)


def _against_slsqp(model: Any, X: Any, y: Any, monkeypatch: Any) -> None:
    seen: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append((*arguments, descend(*arguments, **options)))
        return seen[-1][-1]

    monkeypatch.setattr(fitting, "descend", watched)
    model.fit(X, y, **({"groups": split(X)} if model.upper in ("parity", "odds") else {}))
    upper, lower, _, limit, found = seen[-1]
    inside = {"type": "ineq", "fun": lambda x: limit - lower(x)[0], "jac": lambda x: -lower(x)[1]}
    options = {"maxiter": 500, "ftol": 1e-12}
    best = minimize(upper, seen[0][2], jac=True, method="SLSQP", constraints=[inside], options=options)
    assert best.success
    assert lower(found.x)[0] <= limit
    gain = upper(seen[0][2])[0] - best.fun
    assert upper(found.x)[0] <= best.fun + 2e-3 * gain
    assert found.converged
    assert model.lower_best_ <= model.lower_loss_ <= model.lower_limit_ * (1 + 1e-12)
    assert model.upper_loss_ < model.upper_before_


@pytest.mark.parametrize("hidden", [(), (4, 3)], ids=["linear", "network"])
@pytest.mark.parametrize("upper", ["l2", "l1", "parity", "odds", calm, dear, sure])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_gradients_are_those_of_the_values(hidden: tuple[int, ...], upper: Any, classes: int) -> None:
    if classes == 0 and upper in ("odds", sure):
        pytest.skip("for classifiers alone")
    rng = np.random.default_rng(2)
    X, groups = rng.standard_normal((30, 3)) * [1, 5, 0.2], rng.integers(3, size=30)
    y = rng.integers(classes, size=30) if classes else rng.standard_normal((30, 2))
    weights = rng.uniform(0.5, 1.5, 30) / 30
    outputs = {0: 2, 2: 1, 3: 3}[classes]
    network = Network(X, weights, hidden, outputs, True, 0.1)
    loss = cross_entropy(y) if classes else squares(y)
    data = fitting.Data(X, loss, weights, outputs, classes, {"y": y, "groups": groups, "sample_weight": weights})
    names = fitting.uppers.asks(upper, labels=classes > 0)
    functions = [fitting._lower(network, data, 0.3)]
    value = fitting._upper(network, data, upper, names)
    functions.append(lambda x: value(x, 0.05))
    x, direction = rng.standard_normal((2, network.size))
    for function in functions:
        ahead, behind = (function(x + sign * 1e-6 * direction)[0] for sign in (1, -1))
        slope = function(x)[1] @ direction
        assert (ahead - behind) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_of_many_exact_fits_the_one_of_least_norm() -> None:
    X, y = RNG.standard_normal((8, 20)) * np.logspace(0, 1, 20), RNG.standard_normal(8)
    model = TiebreakRegressor(alpha=0, fit_intercept=False, tol=1e-9).fit(X, y)
    least = np.linalg.pinv(X) @ y
    assert model.coef_ == pytest.approx(least, abs=1e-2 * np.abs(least).max())
    assert 0.98 < np.linalg.norm(model.coef_) / np.linalg.norm(least) <= 1


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_units_of_the_upper_objective_do_not_matter(factor: float) -> None:
    plain = TiebreakClassifier(calm, alpha=1e-2).fit(CANCER, SICK)
    scaled = TiebreakClassifier(lambda scores: [factor * part for part in calm(scores)], alpha=1e-2).fit(CANCER, SICK)
    assert scaled.coef_ == pytest.approx(plain.coef_, rel=1e-2)
    assert scaled.multiplier_ == pytest.approx(factor * plain.multiplier_, rel=1e-2)


def test_weights_that_the_tolerance_can_do_without_are_zero() -> None:
    X = np.hstack([CANCER, np.random.default_rng(3).standard_normal((len(CANCER), 10))])
    model = TiebreakClassifier("l1", tolerance="5%", alpha=1e-2).fit(X, SICK)
    assert (model.coef_[0, 12:] == 0).sum() >= 7  # of ten that say nothing
    assert model.lower_loss_ <= 1.05 * model.lower_best_
    # and what is told of the model is so
    scores = model.decision_function(X)
    loss = np.log1p(np.exp(-scores * (2 * SICK - 1))).mean() + 0.005 * (model.coef_**2).sum()
    assert loss == pytest.approx(model.lower_loss_, rel=1e-9)
    assert np.abs(model.coef_).sum() == pytest.approx(model.upper_loss_, rel=1e-9)


@pytest.mark.parametrize("hidden", [(), (8,)], ids=["linear", "network"])
def test_groups_are_treated_more_alike_and_the_loss_stays(hidden: tuple[int, ...]) -> None:
    groups = split(CANCER)
    # More steps than usual: on some processors the network's rounding takes it another way, of 1,200 steps.
    model = TiebreakClassifier(
        "odds", tolerance="10%", alpha=1e-2, hidden_layer_sizes=hidden, max_iter=3000, random_state=0
    )
    model.fit(CANCER, SICK, groups=groups)
    chances = model.predict_proba(CANCER)[:, 1]
    gap = 0.0
    for label in (0, 1):  # the variance between groups once more, by its definition
        rows = label == SICK
        means = [chances[rows & (groups == name)].mean() for name in "ab"]
        share = (groups[rows] == "a").mean()
        gap += rows.mean() * share * (1 - share) * (means[0] - means[1]) ** 2
    assert gap == pytest.approx(model.upper_loss_, rel=1e-6)
    assert model.upper_loss_ < 0.75 * model.upper_before_
    assert model.lower_loss_ <= 1.1 * model.lower_best_ * (1 + 1e-12)
    assert model.score(CANCER, SICK) > 0.9
    assert hasattr(model, "coef_") is (hidden == ())
    assert [w.shape for w in model.coefs_] == ([(12, 8), (8, 1)] if hidden else [(12, 1)])


def test_weights_count_as_rows_and_the_order_of_rows_does_not_matter() -> None:
    counts, order = np.random.default_rng(4).integers(0, 3, len(IRIS)), np.random.default_rng(5).permutation(len(IRIS))
    groups = split(IRIS)
    fits = [
        TiebreakClassifier("parity").fit(IRIS, KIND, sample_weight=counts, groups=groups),
        TiebreakClassifier("parity").fit(
            *(np.repeat(v, counts, axis=0) for v in (IRIS, KIND)), groups=groups.repeat(counts)
        ),
        TiebreakClassifier("parity").fit(IRIS[order], KIND[order], sample_weight=counts[order], groups=groups[order]),
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.coef_, fits[0].coef_)


def test_in_a_pipeline_and_in_a_search() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(IRIS, columns=["a", "b", "c", "d"])
    names = np.array(["setosa", "versicolor", "virginica"])[KIND]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), TiebreakClassifier(alpha=1e-2)),
        {"tiebreakclassifier__upper": ["l2", "l1"], "tiebreakclassifier__tolerance": ["1%", 0.1]},
        cv=3,
    ).fit(table, names)
    assert search.best_score_ > 0.9
    assert set(search.predict(table)) <= set(names)
    assert cross_val_score(TiebreakRegressor("l1", alpha=1e-3), DIABETES, PROGRESS, cv=3).mean() > 0.4


def test_groups_reach_the_estimator_through_a_search() -> None:
    groups = split(CANCER)
    model = TiebreakClassifier("parity", alpha=1e-2)
    with pytest.raises(
        ValueError, match="set_fit_request"
    ):  # without routing, scikit-learn keeps them for the splitter
        GridSearchCV(model, {"alpha": [1e-2]}, cv=GroupKFold(2), error_score="raise").fit(CANCER, SICK, groups=groups)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = make_pipeline(StandardScaler(), clone(model).set_fit_request(groups=True))
        search = GridSearchCV(asking, {"tiebreakclassifier__tolerance": ["1%", "20%"]}, cv=2).fit(
            CANCER, SICK, groups=groups
        )
    found = search.best_estimator_[-1]
    assert found.upper_loss_ < found.upper_before_


def test_a_seed_gives_the_same_network() -> None:
    first, second, other = (
        TiebreakRegressor(hidden_layer_sizes=(5,), max_iter=20, random_state=seed) for seed in (0, 0, 1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = [model.fit(DIABETES, PROGRESS).predict(DIABETES) for model in (first, second, other)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_too_few_steps_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="after max_iter=3 steps") as told:
        TiebreakClassifier(max_iter=3).fit(CANCER, SICK)
    assert len(told) == 2  # both parts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"upper": "l3"}, "upper='l3' must be one of 'l2', 'l1', 'parity', 'odds'"),
        ({"upper": lambda weights: 0}, "it must have scores or probabilities or coef"),
        ({"upper": lambda scores, coef: 0}, "it must have scores or probabilities or coef"),
        ({"upper": lambda scores: 1.0}, "must return a value and its gradient"),
        ({"upper": lambda scores: (1.0, scores.T)}, r"gradient of shape \(1, 569\); it must be \(569, 1\)"),
        ({"upper": lambda coef: (np.nan, coef)}, "it must be finite"),
        ({"tolerance": 0}, "tolerance=0 must be a number > 0"),
        ({"tolerance": "2"}, "tolerance='2' must be a number > 0"),
        ({"alpha": -1.0}, "alpha=-1.0 must be a number ≥ 0"),
        ({"tol": "much"}, "tol='much' must be a number ≥ 0"),
        ({"max_iter": 0}, "max_iter=0 must be a whole number ≥ 1"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes=0 must be a whole number ≥ 1"),
        ({"upper": "parity"}, "groups=None"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        TiebreakClassifier(**options).fit(CANCER, SICK)


def test_groups_are_checked() -> None:
    model = TiebreakRegressor("parity")
    with pytest.raises(ValueError, match="one for each of the 442 rows"):
        model.fit(DIABETES, PROGRESS, groups=[1, 2])
    with pytest.raises(ValueError, match="two or more"):
        model.fit(DIABETES, PROGRESS, groups=np.zeros(442))
    with pytest.raises(ValueError, match="groups has no effect with upper='l2'"):
        TiebreakRegressor().fit(DIABETES, PROGRESS, groups=split(DIABETES))
    with pytest.raises(ValueError, match=r"must be one of 'l2', 'l1', 'parity'$"):
        TiebreakRegressor("odds").fit(DIABETES, PROGRESS)
    with pytest.raises(ValueError, match="at least one non-zero"):
        TiebreakRegressor().fit(DIABETES, PROGRESS, sample_weight=np.zeros(442))
    with pytest.raises(ValueError, match="one class"):
        TiebreakClassifier().fit(DIABETES, np.zeros(442))


def test_a_start_outside_of_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"limit=1\.0 must be no less"):
        descend(lambda x: (x[0], np.ones(1)), lambda x: (x @ x, 2 * x), np.array([2.0]), 1.0, steps=1, accuracy=0.1)


def test_a_gradient_of_the_wrong_sign_is_told() -> None:
    """No step lowers f: the model stays that of least lower loss. A function that cannot fall is no such case."""
    X, y = DIABETES, PROGRESS
    with pytest.warns(ConvergenceWarning, match=r"lowers it, .* is the gradient right, also its sign\?"):
        wrong = TiebreakRegressor(lambda coef: (float((coef**2).sum()), -2 * coef)).fit(X, y)
    assert wrong.n_iter_ == 0
    TiebreakRegressor(lambda coef: (1.0, 0 * coef)).fit(X, y)  # warnings are errors
    right = TiebreakRegressor(lambda coef: (float((coef**2).sum()), 2 * coef)).fit(X, y)
    assert right.upper_loss_ < wrong.upper_loss_


def test_positional_arguments_are_told_by_the_name_that_was_typed() -> None:
    with pytest.raises(TypeError, match=r"^TiebreakClassifier or TiebreakRegressor"):
        TiebreakClassifier("l1", "5%")  # type: ignore[misc]
