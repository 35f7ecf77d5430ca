"""Minimise one objective among the minimisers of another, min f(x) s.t. x ∈ argmin g, from stochastic gradients."""

from tiebreak import methods, problems, rules, schedules, stationarity, theory
from tiebreak.certificates import Certificate, certify
from tiebreak.console import Progress
from tiebreak.estimators import Average, Minibatch, Storm
from tiebreak.methods import Method
from tiebreak.oracles import Exact, FiniteSum, Gaussian, Oracle
from tiebreak.recording import Record
from tiebreak.result import History, Point, Result, Status
from tiebreak.schedules import Power, Schedule, anytime, horizon
from tiebreak.solve import minimize
from tiebreak.state import load

__version__ = "0.1.0"

__all__ = [
    "Average",
    "Certificate",
    "Exact",
    "FiniteSum",
    "Gaussian",
    "History",
    "Method",
    "Minibatch",
    "Oracle",
    "Point",
    "Power",
    "Progress",
    "Record",
    "Result",
    "Schedule",
    "Status",
    "Storm",
    "anytime",
    "certify",
    "horizon",
    "load",
    "methods",
    "minimize",
    "problems",
    "rules",
    "schedules",
    "stationarity",
    "theory",
]
