"""Whether a user's rule or estimator keeps runs apart.

Runs are rows of one array, and run 3 is to be the same run whatever runs beside it. A norm or a mean that is taken of
all rows breaks that without a word. So before several runs begin, what is not the library's own is tried on made-up
numbers: two rows together, and the first of them alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiebreak.estimators.contract import LEVELS, Estimator
from tiebreak.methods import Method

_CLOSE = (
    1e-3  # coupled rows differ by more; another order of summation changes far less
)


def check_runs_are_independent(method: Method, dimension: int, dtype: Any) -> None:
    """Raise ValueError if what is made of one run depends on the run beside it.

    Examples
    --------
    >>> from tiebreak.methods import sdbgd
    >>> def rule(fg, gg): return gg.mean()
    >>> rule.__module__ = "mine"  # what is the library's is not tried
    >>> check_runs_are_independent(sdbgd.replace(rule=rule), 2, np.float64)
    Traceback (most recent call last):
    ...
    ValueError: the rule of 'SDBGD': λ of a run depends on the runs beside it. It sees arrays with a value for each \
run; sums, means and largest values of them must not be taken
    """
    if _own(method.estimator) and _mixes(
        lambda rows: _estimates(method, rows, dimension, dtype)
    ):
        raise ValueError(
            f"estimator={type(method.estimator).__name__}: the estimate of a run depends on the runs beside it. It "
            "sees arrays with a row for each run; sums, means and norms go along the last axis, with axis=-1, "
            "keepdims=True"
        )
    if _own(method.rule) and _mixes(lambda rows: _multipliers(method, rows)):
        raise ValueError(
            f"the rule of {method.name!r}: λ of a run depends on the runs beside it. It sees arrays with a value for "
            "each run; sums, means and largest values of them must not be taken"
        )


def _own(part: Any) -> bool:
    """Whether it is not the library's, or is made of what is not."""
    module = str(getattr(part, "__module__", ""))
    inner = (
        vars(part).values()
        if hasattr(part, "__dict__") and not isinstance(part, type)
        else ()
    )
    return not module.startswith("tiebreak.") or any(
        _own(one) for one in inner if isinstance(one, Estimator)
    )


def _mixes(made: Callable[[int], list[Any]]) -> bool:
    """Whether the first row of two is another than it is alone; not where even that changes from time to time."""
    try:
        with np.errstate(all="ignore"):
            alone, again, together = (
                [np.asarray(value)[0] for value in made(rows)] for rows in (1, 1, 2)
            )
    except Exception:  # the run itself reports such an error
        return False
    return _agree(alone, again) and not _agree(alone, together)


def _agree(first: list[Any], second: list[Any]) -> bool:
    return all(
        np.allclose(a, b, rtol=_CLOSE, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _estimates(method: Method, rows: int, dimension: int, dtype: Any) -> list[Any]:
    """Two estimates of each level, of so many rows."""
    rng = np.random.default_rng(0)
    values = []
    for level in LEVELS:
        memory = method.estimator.begin(
            level, np.zeros((rows, dimension), dtype), np.zeros((rows, 1), dtype)
        )
        for k in (0, 1):
            fresh, before = rng.normal(size=(2, 2, dimension)).astype(dtype)[:, :rows]
            once = k == 0 or method.estimator.evaluations == 1
            arguments = level, fresh, fresh if once else before, memory, method.at(k)
            estimate, memory = method.estimator.update(*arguments)
            values.append(estimate)
    return values


def _multipliers(method: Method, rows: int) -> list[Any]:
    """λ of two steps, of so many rows."""
    rng = np.random.default_rng(0)
    values = []
    memory = method.begin(np.zeros(rows))
    for k in (0, 1):
        fg = rng.normal(size=2)[:rows]
        gg = rng.uniform(1, 2, size=2)[:rows]
        measured = {name: rng.uniform(1, 2, size=2)[:rows] for name in method.measured}
        arguments = method.arguments(method.at(k)) | measured
        if method.remembers:
            multiplier, memory = method.applied(fg, gg, arguments, memory)
        else:
            multiplier = method.multiplier(fg, gg, arguments)
        values.append(multiplier)
    return values
