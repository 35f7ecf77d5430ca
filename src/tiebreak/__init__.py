"""Minimise one objective among the minimisers of another, min f(x) s.t. x ∈ argmin g, from stochastic gradients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebreak import methods, problems, rules, theory
from tiebreak import penalty_schedules as penalty_schedules
from tiebreak import schedules as schedules
from tiebreak import stateful_rules as stateful_rules
from tiebreak import stationarity as stationarity
from tiebreak.certificates import certify
from tiebreak.estimators import Average, Held, Minibatch, Page, PerLevel, Spider, Storm
from tiebreak.methods import Method
from tiebreak.oracles import Exact, Gaussian, Oracle
from tiebreak.oracles.check_oracle import check_oracle
from tiebreak.oracles.finite_sum import FiniteSum
from tiebreak.progress import Progress
from tiebreak.result import Point, Result, Status
from tiebreak.schedules import Capped, Parameters, Power, Schedule, anytime, horizon
from tiebreak.solver.callbacks import Record
from tiebreak.solver.checkpoint import load
from tiebreak.solver.minimize import minimize

if TYPE_CHECKING:
    from tiebreak import optax as optax
    from tiebreak import torch as torch

__version__ = "0.1.0"

__all__ = [
    "Average",
    "Capped",
    "Exact",
    "FiniteSum",
    "Gaussian",
    "Held",
    "Method",
    "Minibatch",
    "Oracle",
    "Page",
    "Parameters",
    "PerLevel",
    "Point",
    "Power",
    "Progress",
    "Record",
    "Result",
    "Schedule",
    "Spider",
    "Status",
    "Storm",
    "anytime",
    "certify",
    "check_oracle",
    "horizon",
    "load",
    "methods",
    "minimize",
    "problems",
    "rules",
    "theory",
]

# Imported when they are first asked for: the core needs none of their libraries, and importing those takes seconds.
# They are not in `__all__`, so that `from tiebreak import *` does not ask. The extra, and what it installs:
_LATER = {"torch": ("torch", "PyTorch"), "optax": ("jax", "JAX and optax")}

if (
    not TYPE_CHECKING
):  # a type checker has the imports above, and would take any other name for good

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in (
                "torch",
                "jax",
                "jaxlib",
                "optax",
            ):
                raise
            from tiebreak.checks import install

            extra, needed = _LATER[name]
            raise ImportError(
                f"tiebreak.{name} needs {needed}: {install(extra)}"
            ) from error

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})
