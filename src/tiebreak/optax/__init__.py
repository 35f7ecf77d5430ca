"""JAX: the dynamic barrier as an optax transformation."""

from tiebreak.optax.arguments import dynamic_barrier, from_method
from tiebreak.optax.distributed import state_specs
from tiebreak.optax.finish import finish
from tiebreak.optax.losses import log, measure
from tiebreak.optax.optimizer import BarrierState, Reading
from tiebreak.optax.twin import TwinState, with_twin

__all__ = [
    "BarrierState",
    "Reading",
    "TwinState",
    "dynamic_barrier",
    "finish",
    "from_method",
    "log",
    "measure",
    "state_specs",
    "with_twin",
]
