"""JAX: the dynamic barrier as an optax transformation."""

from tiebreak.optax.axes import state_specs
from tiebreak.optax.barrier import BarrierState, Reading
from tiebreak.optax.finishing import finish
from tiebreak.optax.losses import log, measure
from tiebreak.optax.transform import dynamic_barrier, from_method
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
