"""Minimise one objective among the minimisers of another, min f(x) s.t. x ∈ argmin g, from stochastic gradients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from tiebreak import optax as optax
    from tiebreak import torch as torch

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

# Imported when they are first asked for: the core needs neither PyTorch nor JAX, and importing them takes seconds. They
# are not in `__all__`, so that `from tiebreak import *` does not ask.
_LATER = {"torch": ("torch", "PyTorch"), "optax": ("jax", "JAX and optax")}  # the extra, and what it installs

if not TYPE_CHECKING:  # a type checker has the imports above, and would take any other name for good

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("torch", "jax", "jaxlib", "optax"):
                raise
            extra, needed = _LATER[name]
            raise ImportError(f"tiebreak.{name} needs {needed}: pip install 'tiebreak[{extra}]'") from error

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})
