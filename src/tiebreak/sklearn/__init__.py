"""Estimators for scikit-learn: the loss first and, within a tolerance, a second objective."""

from tiebreak.sklearn.estimators import TiebreakClassifier, TiebreakRegressor

__all__ = ["TiebreakClassifier", "TiebreakRegressor"]
