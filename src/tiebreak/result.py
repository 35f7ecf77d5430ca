"""What a run gives back: iterates, residuals, counts, reasons, and the history as arrays and tidy tables."""

import csv
import importlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebreak.checks import install
from tiebreak.files import FilePath, atomic
from tiebreak.oracles import Array
from tiebreak.provenance import stamp
from tiebreak.schedules import Schedule

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Values = NDArray[np.float64]


class Status(Enum):
    """Why a run ended.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, budget=10**5, seed=0)
    >>> result.status.name, result.message
    ('BUDGET', 'the next step did not fit in the budget')
    """

    STEPS = "all steps were made"
    BUDGET = "the next step did not fit in the budget"
    CALLBACK = "the callback asked to stop"
    INTERRUPTED = "interrupted from the keyboard, or terminated"
    NON_FINITE = "a gradient or an iterate was not finite"
    RUNNING = "saved in the middle of a run"

    @property
    def success(self) -> bool:
        """Whether the run went as far as it was asked to."""
        return self in (Status.STEPS, Status.BUDGET, Status.CALLBACK)


_ROUNDING = 1e-6  # of the values: no less is a difference

#: The measures of a point, in the order of tables.
MEASURES = (
    "direction_squared",
    "lower_gradient_squared",
    "stationarity_squared",
    "exact_multiplier",
    "upper_value",
    "lower_value",
)


@dataclass(frozen=True)
class Point:
    """An iterate and what is known of it; a leading axis for runs, where runs were asked for.

    All but the first two are None where the oracles cannot tell.

    Attributes
    ----------
    x : array
        The iterate.
    step : int
        How many steps led to it.
    direction_squared : float
        ‖∇f + λ_k∇g‖² with exact gradients and the method's own multiplier.
    lower_gradient_squared : float
        ‖∇g‖².
    stationarity_squared : float
        The least ‖∇f + λ∇g‖² over λ ≥ 0: the residual that compares methods.
    exact_multiplier : float
        The method's own λ_k: its rule with exact gradients in place of sampled ones. Not the best λ.
    upper_value, lower_value : float
        f and g.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, budget=10**5, seed=0)
    >>> result.last.step, result.last.x.shape
    (1461, (2,))
    >>> result.last.stationarity_squared <= result.last.direction_squared
    True
    """

    x: Array
    step: Any
    direction_squared: Any = None
    lower_gradient_squared: Any = None
    stationarity_squared: Any = None
    exact_multiplier: Any = None
    upper_value: Any = None
    lower_value: Any = None


@dataclass(frozen=True, repr=False)
class History:
    """Recorded steps: row i is the iterate x_k, k = ``step[i]``, from which step k was made; the last row the last one.

    ``history["lower_gradient_squared"]`` or ``history.lower_gradient_squared`` is an array (records, runs), or
    (records,) for a single run; NaN after a run has ended. `step`, `upper_calls`, `lower_calls` and `calls` (the cost
    of x_k) are (records,).

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, budget=10**5, seed=0)
    >>> len(result.history), int(result.history.step[-1]), int(result.history.calls[-1])
    (114, 1461, 99870)
    >>> result.history.lower_gradient_squared.shape
    (114,)
    """

    step: NDArray[np.int64]
    upper_calls: NDArray[np.int64]
    lower_calls: NDArray[np.int64]
    columns: Mapping[str, Values]
    runs: tuple[int, ...]
    last_step: NDArray[np.int64]
    x: Array | None = None
    single: bool = False

    @property
    def calls(self) -> NDArray[np.int64]:
        """Calls of both levels."""
        return self.upper_calls + self.lower_calls

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"<History of {len(self)} records × {len(self.runs)} runs: {', '.join(['step', 'calls', *self.columns])}>"

    def __getitem__(self, name: str) -> Any:
        if name in ("step", "upper_calls", "lower_calls", "calls", "x"):
            return getattr(self, name)
        if name not in self.columns:
            raise KeyError(
                f"{name!r} was not recorded; recorded are {['step', 'calls', *self.columns]}"
            )
        if self.single:
            return self.columns[name][:, 0]
        return self.columns[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "columns":
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def weighted_mean(self, name: str, weight: Any = None) -> Any:
        """Σ w_k m_k / Σ w_k over the steps of each run: E m(x_N) for N drawn in proportion to the weights.

        It is exact if every step was recorded (``record=1``). In a thinned history each row stands for the steps up to
        the next one, with the sum of their weights, and a warning says so.

        Parameters
        ----------
        name : str
            A column.
        weight : Schedule, Method or callable, optional
            w_k: the selection weights of a schedule, η_kβ_k unless it sets others, or a function of the step. Without
            it all steps weigh the same.

        Examples
        --------
        >>> import tiebreak
        >>> problem = tiebreak.problems.paper()
        >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, method="sdbgd", steps=99, seed=0, record=1)
        >>> mean = result.history.weighted_mean("lower_gradient_squared", tiebreak.methods.sdbgd)
        >>> mean > result.last.lower_gradient_squared
        True
        """
        if not len(self) or not self.step[-1]:
            raise ValueError(
                "the history has no steps: minimize(…, record=1) records all of them"
            )
        names = ("step", "upper_calls", "lower_calls", "calls", *self.columns)
        if name not in names:
            raise ValueError(
                f"name={name!r} must be a column of the history: {', '.join(names)}"
            )
        if isinstance(weight, str) or not (
            weight is None
            or callable(weight)
            or hasattr(weight, "step_size")
            or hasattr(weight, "schedule")
        ):
            raise TypeError(
                f"weight={weight!r} must be a schedule, a method such as tiebreak.methods.sdbgd, or a function of the step"
            )
        self.warn_if_thinned(stacklevel=3)
        schedule = getattr(weight, "schedule", weight)
        steps = range(int(self.step[-1]))
        if weight is None:
            weights = np.ones(len(steps))
        elif isinstance(schedule, Schedule):
            weights = np.array([schedule.at(k).weight for k in steps])
        else:
            weights = np.array([float(weight(k)) for k in steps])
        before = np.concatenate([[0.0], np.cumsum(weights)])
        values = np.asarray(self[name]).reshape(len(self), -1)[:-1]
        # The sum of the weights from each row to the next, or to the end of the run.
        ends = np.minimum(self.step[1:, None], self.last_step)
        starts = np.minimum(self.step[:-1, None], self.last_step)
        sums = before[ends] - before[starts]
        mean = np.sum(np.where(sums > 0, sums * values, 0.0), axis=0) / sums.sum(axis=0)
        if self.single:
            return float(mean[0])
        return mean

    def warn_if_thinned(self, stacklevel: int = 2) -> None:
        """Warn that a mean over the rows is not one over the steps, unless every step was recorded."""
        if np.any(np.diff(self.step) != 1):
            warnings.warn(
                "the history is thinned: each row stands for the steps up to the next one. record=1 makes means exact",
                RuntimeWarning,
                stacklevel=stacklevel,
            )

    def tidy(self) -> dict[str, NDArray[Any]]:
        """Columns of equal length, a row for each run and recorded step, runs one after another."""
        runs, rows = np.nonzero(self.step <= self.last_step[:, None])
        table: dict[str, NDArray[Any]] = {
            "run": np.asarray(self.runs, dtype=np.int64)[runs]
        }
        for name in ("step", "upper_calls", "lower_calls", "calls"):
            table[name] = self[name][rows]
        table |= {name: column[rows, runs] for name, column in self.columns.items()}
        if self.x is not None:
            flat = (self.x[:, None] if self.single else self.x).reshape(
                len(self), len(self.runs), -1
            )
            table |= {f"x{i}": flat[rows, runs, i] for i in range(flat.shape[-1])}
        return table

    def to_pandas(self) -> "pd.DataFrame":
        """The tidy table as a data frame."""
        pd = _extra("pandas")
        return pd.DataFrame(self.tidy())  # type: ignore[no-any-return]  # pandas is imported by name

    def to_arrow(self) -> "pa.Table":
        """The tidy table as an Arrow table."""
        pa = _extra("pyarrow")
        return pa.table(self.tidy())

    def to_csv(self, path: FilePath) -> None:
        """Write the tidy table as CSV, every digit of it."""
        with atomic(path, "w") as file:
            write_csv(self.tidy(), file)

    def to_parquet(self, path: FilePath) -> None:
        """Write the tidy table as Parquet, with date, commit and versions."""
        pq = _extra("pyarrow.parquet")
        with atomic(path) as file:
            pq.write_table(
                self.to_arrow().replace_schema_metadata(
                    {"tiebreak": json.dumps(stamp())}
                ),
                file,
            )


def _extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"this needs {name.split('.')[0]}: {install('data')}"
        ) from error


def write_csv(table: Mapping[str, Any], file: IO[str]) -> None:
    """Write columns of equal length as CSV, every digit of them."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(
        zip(*(np.asarray(column).tolist() for column in table.values()), strict=True)
    )


@dataclass(frozen=True, repr=False)
class Result:
    """What :func:`tiebreak.minimize` returns.

    Arrays have a leading axis for runs if runs were asked for, and the shape of x0 if not.

    Attributes
    ----------
    last, selected : Point
        The last iterate, and x_{N_K}, the one that the theory speaks of, drawn with P(N_K = k) ∝ η_k β_k.
    status : Status, or a list of one per run
        Why it ended; `message` says it in words.
    steps, upper_calls, lower_calls, calls :
        What was done, per run.
    history : History
    method : str
    seed : int, sequence of int or SeedSequence
        What `seed=` reproduces this result.
    elapsed : float
        Seconds, of this call.
    start : Point
        Where it began: x0, with f and g there and nothing else.
    chosen : mapping
        What the method had chosen at the end, and the estimates behind it, by name; empty where nothing was to choose.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, budget=10**5, seed=0)
    >>> result.status, result.steps, result.calls
    (<Status.BUDGET: 'the next step did not fit in the budget'>, 1461, 99870)
    >>> result.selected.step <= result.last.step
    True
    """

    last: Point
    selected: Point
    status: Any
    steps: Any
    upper_calls: Any
    lower_calls: Any
    history: History
    method: str
    seed: Any
    elapsed: float
    faults: Mapping[int, str] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)
    start: Point | None = None
    state: Any = field(default=None, repr=False)

    @property
    def x(self) -> Array:
        """The last iterate."""
        return self.last.x

    @property
    def calls(self) -> Any:
        """Calls of both levels, per run."""
        return self.upper_calls + self.lower_calls

    @property
    def success(self) -> bool:
        """Whether every run went as far as it was asked to."""
        return all(status.success for status in self._statuses)

    @property
    def message(self) -> str:
        """Why the runs ended, in words."""
        counts = {
            status: self._statuses.count(status)
            for status in dict.fromkeys(self._statuses)
        }
        if len(self._statuses) == 1:
            text = next(iter(counts)).value
        else:
            text = "; ".join(
                f"{count} of {len(self._statuses)} runs: {status.value}"
                for status, count in counts.items()
            )
        return "; ".join([text, *self.faults.values()])

    @property
    def rise(self) -> Values | None:
        """By how much g ended above where it began, a number for each run; None where the oracle has no value of g.

        Examples
        --------
        >>> import tiebreak
        >>> problem = tiebreak.problems.paper()
        >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, budget=10**5, seed=0)
        >>> bool(result.rise < 0)
        True
        """
        before, after = (
            getattr(point, "lower_value", None) for point in (self.start, self.last)
        )
        if before is None or after is None:
            return None
        with np.errstate(invalid="ignore"):
            rise: Values = np.atleast_1d(np.asarray(after, np.float64) - before)
            size = np.atleast_1d(np.abs(after) + np.abs(before))
        return np.where(np.abs(rise) > _ROUNDING * size, rise, 0.0)

    @property
    def rise_in_words(self) -> str:
        """What :attr:`rise` says, with means over the runs of which g rose; empty if there is none."""
        rise = self.rise
        if rise is None or self.start is None or not (rise > 0).any():
            return ""
        risen = int(np.sum(rise > 0))
        before, after = (
            np.mean(np.atleast_1d(p.lower_value)[rise > 0])
            for p in (self.start, self.last)
        )
        runs = ""
        if len(rise) > 1:
            runs = f" in {risen} of {len(rise)} runs" + " (means)" * (risen > 1)
        return f"g ended at {after:.4g}, above {before:.2g} where it began{runs}"

    @property
    def _statuses(self) -> Sequence[Status]:
        return [self.status] if isinstance(self.status, Status) else self.status

    def save(self, path: FilePath) -> None:
        """Write everything to one file, atomically.

        :func:`tiebreak.load` reads it, and ``minimize(…, resume=path)`` goes on from it.
        """
        self.state.save(path)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        single = isinstance(self.status, Status)
        runs = "" if single else f", {len(self.status)} runs"
        steps, upper_calls, lower_calls = map(
            _span, (self.steps, self.upper_calls, self.lower_calls)
        )
        lines = [
            f"{self.method}{runs}: {self.message}",
            f"  steps {steps}, upper calls {upper_calls}, lower calls {lower_calls}",
        ]
        for name in MEASURES:
            value = getattr(self.last, name)
            if value is not None:
                lines.append(
                    f"  {name:<24} {np.mean(value):.4g}"
                    + " (mean over runs)" * (not single)
                )
        if self.rise_in_words:
            lines.append(f"  {self.rise_in_words}")
        if self.chosen:
            medians = [
                f"{name} {np.median(value):.3g}" for name, value in self.chosen.items()
            ]
            lines.append(
                f"  at the end{' (medians)' * (not single)}: {', '.join(medians)}"
            )
        return "\n".join(lines)


def _span(values: Any) -> str:
    low = np.min(values)
    high = np.max(values)
    if low == high:
        return f"{low:,}"
    return f"{low:,} to {high:,}"
