"""JAX: the dynamic barrier as an optax transformation, and whole experiments in one compiled call."""

from tiebreak.optax.aliases import dbgd, from_method, penalty, pr_sdbpg, sdbgd, sdbpg
from tiebreak.optax.estimates import StormState, storm
from tiebreak.optax.oracles import Exact, Gaussian
from tiebreak.optax.solve import solve
from tiebreak.optax.transform import BarrierState, dynamic_barrier, value_and_grads

__all__ = [
    "BarrierState",
    "Exact",
    "Gaussian",
    "StormState",
    "dbgd",
    "dynamic_barrier",
    "from_method",
    "penalty",
    "pr_sdbpg",
    "sdbgd",
    "sdbpg",
    "solve",
    "storm",
    "value_and_grads",
]
