"""JAX: the dynamic barrier as an optax transformation."""

from tiebreak.optax.distributed import state_specs
from tiebreak.optax.finish import finish
from tiebreak.optax.losses import measure
from tiebreak.optax.optimizer import dynamic_barrier, from_method
from tiebreak.optax.step_info import BarrierState, Reading, TwinState, log
from tiebreak.optax.twin import with_twin

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
