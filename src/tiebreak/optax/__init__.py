"""JAX: the dynamic barrier as an optax transformation."""

from tiebreak.optax.aliases import dbgd, from_method, penalty, pr_sdbpg, sdbgd, sdbpg
from tiebreak.optax.axes import state_specs
from tiebreak.optax.barrier import BarrierState, Reading
from tiebreak.optax.finishing import finish
from tiebreak.optax.losses import log, measure
from tiebreak.optax.transform import dynamic_barrier
from tiebreak.optax.twin import TwinState, with_twin

__all__ = [
    "BarrierState",
    "Reading",
    "TwinState",
    "dbgd",
    "dynamic_barrier",
    "finish",
    "from_method",
    "log",
    "measure",
    "penalty",
    "pr_sdbpg",
    "sdbgd",
    "sdbpg",
    "state_specs",
    "with_twin",
]
