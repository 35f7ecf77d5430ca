"""Ours: DynamicBarrier with a tolerance, which has nothing to tune, and with the paper's rule, which has a barrier."""

from typing import Any

from gallery.methods.method import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Closure,
    Knobs,
    Method,
    Seen,
    Setting,
    Step,
)
from tiebreak import methods
from tiebreak.torch import DynamicBarrier

__all__ = [
    "BARRIER", "TOLERANCE_NUMBER", "TOLERANCE_START", "TOLERANCE_TRAINED", "TOLERANCE_TWIN",
]  # fmt: skip


def _step(wrapped: DynamicBarrier, unit: float, ratio: bool) -> Step:
    def step(upper: Closure, lower: Closure) -> Seen:
        info = wrapped.step(upper=lambda: upper() / unit, lower=lower)
        assert info.lower_loss is not None
        assert info.upper_loss is not None
        weight = info.ratio if ratio else info.multiplier
        return Seen(
            info.lower_loss.detach(),
            info.upper_loss.detach() * unit,
            weight,
            info.excess if ratio else None,
        )

    return step


def _tolerance(reference: Any, share: bool = True) -> Any:
    """With the tolerance as the example has it, be it a `share` of the reference; else as a number."""

    def begin(setting: Setting, knobs: Knobs) -> Step:
        number = reference is None
        given: Any = setting.reference if number else reference
        amount = setting.allowed if share and not number else setting.tolerance
        wrapped = DynamicBarrier(
            setting.optimizer, tolerance=amount, reference=given, model=setting.model
        )
        return _step(wrapped, 1.0, ratio=True)  # this law has no units

    return begin


def _barrier(setting: Setting, knobs: Knobs) -> Step:
    method = methods.sdbgd.replace(barrier=knobs["barrier"], regularizer=1e-8)
    return _step(
        DynamicBarrier(setting.optimizer, method=method), setting.unit, ratio=False
    )


TOLERANCE_TWIN = Method(
    "ours: tolerance, twin", "DynamicBarrier(tolerance=…, reference=\"twin\"): a copy trained on g beside the model.",
    _tolerance("twin"), 3 * BACKWARD, ours=True, only="twin",
)  # fmt: skip
TOLERANCE_START = Method(
    "ours: tolerance, start", "DynamicBarrier(tolerance=…, reference=\"start\"): a frozen copy, forward only.",
    _tolerance("start"), 2 * BACKWARD + FORWARD, ours=True, only="start",
)  # fmt: skip
TOLERANCE_TRAINED = Method(
    "ours: start, trained on", "reference=\"twin\": the copy of the start is trained on g, and gets worse, too, while "
    "the rate is high. A share in the tolerance is one of the start's loss.",
    _tolerance("twin", share=False), 3 * BACKWARD, ours=True, only="start",
)  # fmt: skip
TOLERANCE_NUMBER = Method(
    "ours: tolerance, number", "DynamicBarrier(tolerance=…, reference=what lower-only training reached).",
    _tolerance(None), 2 * BACKWARD, needs_reference=True, ours=True,
)  # fmt: skip
BARRIER = Method(
    "ours: barrier rule", "DynamicBarrier(method=…), the paper's rule with the weight β on each batch.", _barrier,
    2 * BACKWARD, tuple({"barrier": weight} for weight in WEIGHTS), ours=True,
)  # fmt: skip
