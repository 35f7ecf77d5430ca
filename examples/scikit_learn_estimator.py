"""A scikit-learn estimator with a tolerance
=========================================

Run it: ``python examples/scikit_learn_estimator.py`` (needs torch and scikit-learn).

``FairLogisticRegression`` has the interface of a scikit-learn classifier. Its lower loss is that of
``LogisticRegression``, which gives the starting point. Its upper loss is the squared difference between the mean
probabilities of two groups. Among all models whose lower loss is within `tolerance` of the least, it looks for the
smallest difference. For another objective, replace ``upper``.
"""

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import tiebreak.torch


class FairLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression for two classes with a small difference between two groups.

    Parameters
    ----------
    tolerance : float or str
        How far the lower loss may lie above its minimum: a number, or a share such as "2%".
    alpha : float
        Weight of half the sum of squared coefficients in the lower loss.
    max_iter : int
        Steps of the optimizer; each uses all rows.
    """

    def __init__(self, tolerance="2%", alpha=1e-3, max_iter=300):
        self.tolerance = tolerance
        self.alpha = alpha
        self.max_iter = max_iter

    def fit(self, X, y, groups):
        """Fit to rows X with labels y; `groups` is 0 or 1 for each row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        check_consistent_length(X, groups)
        self.classes_, labels = np.unique(y, return_inverse=True)
        best = LogisticRegression(
            C=1 / (self.alpha * len(X)), tol=1e-8, max_iter=10_000
        ).fit(X, labels)
        rows = torch.tensor(X)
        targets = torch.tensor(labels, dtype=rows.dtype)
        first_group = torch.tensor(np.asarray(groups) == 0)

        model = torch.nn.Linear(X.shape[1], 1, dtype=rows.dtype)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(best.coef_))
            model.bias.copy_(torch.tensor(best.intercept_))

        def lower():
            loss = cross_entropy(model(rows).squeeze(1), targets)
            return loss + self.alpha / 2 * model.weight.square().sum()

        def upper():
            probability = model(rows).squeeze(1).sigmoid()
            return (
                probability[first_group].mean() - probability[~first_group].mean()
            ).square()

        self.lower_best_ = lower().item()
        base = torch.optim.Adam(model.parameters(), lr=0.02)
        opt = tiebreak.torch.DynamicBarrier(
            base, tolerance=self.tolerance, reference="start", model=model
        )
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.max_iter)
        for _ in range(self.max_iter):
            opt.step(lower=lower, upper=upper)
            rate.step()
        opt.finish(
            lower=lower, upper=upper
        )  # inside the tolerance, whatever the last step did
        self.lower_loss_ = lower().item()
        self.coef_ = model.weight.detach().numpy().copy()
        self.intercept_ = model.bias.detach().numpy().copy()
        return self

    def decision_function(self, X):
        """The log-odds of the second class."""
        check_is_fitted(self)
        return (
            validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_[0]
            + self.intercept_[0]
        )

    def predict_proba(self, X):
        """The probability of each class."""
        probability = 1 / (1 + np.exp(-self.decision_function(X)))
        return np.column_stack([1 - probability, probability])

    def predict(self, X):
        """The more probable class."""
        return self.classes_[(self.decision_function(X) > 0).astype(int)]


def main():
    rng = np.random.default_rng(0)
    groups = rng.integers(2, size=4000)
    X = rng.standard_normal((4000, 6))
    X[:, 0] += 0.8 * groups
    y = X[:, 0] + X[:, 2] - X[:, 3] + rng.standard_normal(4000) > 0.4
    X, X_test, y, y_test, groups, groups_test = train_test_split(
        X, y, groups, random_state=0
    )
    print(
        f"{'':<22} {'loss above the least':>20} {'test accuracy':>14} {'gap on test rows':>17}"
    )

    def show(name, model, above):
        probability = model.predict_proba(X_test)[:, 1]
        gap = (
            probability[groups_test == 1].mean() - probability[groups_test == 0].mean()
        )
        print(
            f"{name:<22} {above:>20.2%} {model.score(X_test, y_test):>14.3f} {gap:>17.3f}"
        )

    show("LogisticRegression", LogisticRegression().fit(X, y), 0.0)
    for tolerance in ("1%", "5%", "20%"):
        model = FairLogisticRegression(tolerance).fit(X, y, groups)
        show(
            f"fair, tolerance {tolerance}",
            model,
            model.lower_loss_ / model.lower_best_ - 1,
        )


if __name__ == "__main__":
    main()
