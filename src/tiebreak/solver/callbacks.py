"""What a callback is shown after a step, and what its answer means."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tiebreak.schedules import Parameters
from tiebreak.solver.checkpoint import Configuration
from tiebreak.solver.history import Measurer, Record
from tiebreak.solver.step import Now


def recorded(
    now: Now,
    parameters: Parameters,
    configuration: Configuration,
    alive: Sequence[int],
    measurer: Measurer,
) -> Record:
    """The step just made, with views that cannot be written to."""
    count = len(alive)
    single = configuration.single
    points = now.x.reshape(count, *configuration.shape)
    shown = [
        (a[0] if single else a).view() for a in (points, now.multipliers.reshape(-1, 1))
    ]
    for view in shown:
        view.flags.writeable = False
    runs = tuple(configuration.runs[r] for r in alive)
    measure = partial(measurer, memory=now.rule)
    calls = (now.upper_calls, now.lower_calls)
    return Record(
        now.k,
        *calls,
        shown[0],
        shown[1][..., 0],
        parameters,
        runs,
        measure,
        now.x,
        single,
    )


def answered(callback: Callable[[Record], Any], record: Record) -> bool:
    """Whether the callback wants the run to stop."""
    try:
        answer = callback(record)
    except StopIteration:
        return True
    if np.size(answer) != 1:
        raise ValueError(
            f"callback returned {answer!r}; it must be one truth value: True to stop"
        )
    return bool(answer)
