"""What a result must not leave unsaid: runs that could not go on, and a g that ended above its start."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tiebreak.result import Result, Status
from tiebreak.stationarity import dot

_CLEAR = 0.1  # of g: a run that has only begun may rise a little, say across a ridge
_MANY = 10.0  # times the linear bound: negative curvature allows a few


class Remark(RuntimeWarning):
    """A run ended, and not well."""


def remarks(result: Result, resumed_at: int | None = None) -> list[str]:
    """Sentences for a warning; none where all went well. `resumed_at`: how many steps were made before.

    Where g is convex between start and end, g(end) − g(start) ≤ ‖∇g(end)‖ ‖end − start‖. So a rise of many times that
    is not one of a run which is still on its way down: ∇g is small there, and the residuals with it, but it is no
    minimum of g.
    """
    sentences = []
    if lost := list(result.faults.values()):
        count = len(result._statuses)
        runs = (
            ""
            if count == 1
            else f"{sum(s is Status.NON_FINITE for s in result._statuses)} of {count} runs: "
        )
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        sentences.append(f"{result.method}: {runs}{lost[0]}{more}")
    if resumed_at is not None:
        limits = result.state.configuration
        spent = int(np.max(result.calls))
        limits_and_progress = {
            "steps": (limits.steps, resumed_at),
            "budget": (limits.budget, spent),
        }
        for name, (most, reached) in limits_and_progress.items():
            if most is not None and reached > most:
                sentences.append(
                    f"{result.method}: resumed with {name}={most}, and {reached:,} are made already: nothing was done"
                )
    rise = result.rise
    slope = result.last.lower_gradient_squared
    if (
        rise is not None
        and slope is not None
        and (rise > 0).any()
        and result.start is not None
    ):
        ends, begun = (
            np.asarray(point.x).reshape(len(rise), -1)
            for point in (result.last, result.start)
        )
        way = ends - begun
        with np.errstate(all="ignore"):
            which = rise > _MANY * np.sqrt(np.atleast_1d(slope) * dot(way, way))
            which &= rise > _CLEAR * np.abs(np.atleast_1d(result.last.lower_value))
        if which.any():
            sentences.append(
                f"{result.method}: {result.rise_in_words}, and hardly any slope of g leads back: at best a local "
                "minimum of g, however small the residuals are (the documentation's page on caveats: where both "
                "gradients vanish)"
            )
    return sentences


def warn_of_faults(result: Result, resumed_at: int | None = None) -> Result:
    """The result, after a warning for each, at whoever called the solver."""
    for text in remarks(result, resumed_at):
        warnings.warn(text, Remark, stacklevel=3)
    return result


@contextmanager
def unsaid() -> Iterator[None]:
    """Without such warnings: for whoever says the same in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        yield
