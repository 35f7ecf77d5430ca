"""What anybody can write in three lines: one loss alone, the weighted sum, a penalty."""

from gallery.methods.method import (
    BACKWARD,
    WEIGHTS,
    Closure,
    Knobs,
    Method,
    Seen,
    Setting,
    Step,
    mixed,
)

__all__ = ["FIXED_PENALTY", "LOWER_ONLY", "UPPER_ONLY", "WEIGHTED_SUM"]


def _lower_only(setting: Setting, knobs: Knobs) -> Step:
    def step(upper: Closure, lower: Closure) -> Seen:
        setting.optimizer.zero_grad()
        loss = lower()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        setting.optimizer.step()
        return Seen(loss.detach(), None)

    return step


def _upper_only(setting: Setting, knobs: Knobs) -> Step:
    def step(upper: Closure, lower: Closure) -> Seen:
        setting.optimizer.zero_grad()
        loss = upper()
        (loss / setting.unit).backward()  # type: ignore[no-untyped-call]  # torch
        setting.optimizer.step()
        return Seen(None, loss.detach(), 0.0)

    return step


def _weighted_sum(setting: Setting, knobs: Knobs) -> Step:
    weight = knobs["weight"]

    def step(upper: Closure, lower: Closure) -> Seen:
        setting.optimizer.zero_grad()
        f, g = upper(), lower()
        mixed(f, g, weight, setting.unit).backward()  # type: ignore[no-untyped-call]  # torch
        setting.optimizer.step()
        return Seen(g.detach(), f.detach(), weight)

    return step


def _fixed_penalty(setting: Setting, knobs: Knobs) -> Step:
    weight = knobs["weight"]

    def step(upper: Closure, lower: Closure) -> Seen:
        setting.optimizer.zero_grad()
        f, g = upper(), lower()
        # The exact penalty: with a square, SGD diverges from any start that is many tolerances away. Divided by a
        # constant: dividing by what the batch makes of it would leave f all of every batch that is inside.
        violation = (g - setting.reference - setting.tolerance).clamp(min=0)
        mixed(f, violation, weight, setting.unit).backward()  # type: ignore[no-untyped-call]  # torch
        setting.optimizer.step()
        return Seen(g.detach(), f.detach(), weight * (violation.detach() > 0))

    return step


_GRID = tuple({"weight": weight} for weight in WEIGHTS)

LOWER_ONLY = Method("lower only", "Training on g alone.", _lower_only, BACKWARD)
UPPER_ONLY = Method("upper only", "Training on f alone.", _upper_only, BACKWARD)
WEIGHTED_SUM = Method(
    "weighted sum",
    "f + w g, w swept over four and a half decades.",
    _weighted_sum,
    2 * BACKWARD,
    _GRID,
)
FIXED_PENALTY = Method(
    "fixed penalty",
    "f + w [g − reference − tolerance]₊, on each batch.",
    _fixed_penalty,
    2 * BACKWARD,
    _GRID,
    needs_reference=True,
)
