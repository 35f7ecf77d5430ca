"""How far above its reference the lower loss may lie now, with headroom: for those who tell of it."""

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tiebreak.tolerance import headroom, roomy

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier


def shown(headroom: Any) -> str:
    """As it is given."""
    return json.dumps(headroom) if isinstance(headroom, str) else f"{headroom:g}"


def rate(optimizer: "DynamicBarrier") -> Any:
    """The learning rate of this step: the highest of all groups, because one that moves is enough to lift a loss."""
    rates = optimizer._own_rates() or [group.get("lr", 1.0) for group in optimizer.param_groups if group["params"]]
    if not rates:
        return 1.0
    # Of tensors, which a device may have, the first: it is not waited for.
    return max(rates) if all(isinstance(one, (int, float)) for one in rates) else rates[0]


class Room:
    """The excess that is allowed at a step: 1, and more where there is headroom and the learning rate is high.

    It is looked at after every step, so that the highest rate is known; a device is not waited for.
    """

    def __init__(self) -> None:
        self._most: float | None = None

    def now(self, optimizer: "DynamicBarrier") -> float:
        """In tolerances."""
        if not optimizer.headroom:
            return 1.0
        most = self._headroom(optimizer)
        now = rate(optimizer)
        if isinstance(now, Tensor) and now.device.type != "cpu":
            return 1 + most
        if self._most is None:  # the optimizer may have been loaded
            self._most = float(optimizer.memory.values["rate"])
        self._most = max(self._most, float(now))
        return float(roomy(most, float(now) / self._most if self._most else 1.0))

    @staticmethod
    def _headroom(optimizer: "DynamicBarrier") -> float:
        """Tolerances more at the highest rate, as things stand; what was measured is not asked of a device."""
        given, memory = optimizer.decision.tolerance, optimizer.memory.values
        assert given is not None
        assert given.constants is not None
        lifted, reference = (
            0.0 if isinstance(value, Tensor) and value.device.type != "cpu" else float(value)
            for value in (memory["lifted"], memory["reference"])
        )
        tolerance = float(given.amount) * (abs(reference) if given.relative else 1.0) or 1.0
        return float(headroom(given.constants, optimizer.count, lifted, tolerance)) / tolerance
