"""Simulation against theorems: means with standard errors beside the bounds that they must not exceed.

A mean is compared with its bound at six standard errors, so that a thousand comparisons raise no false alarm: PASS if
it is below the bound by so much, FAIL if it is above by so much, "open" in between.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from tiebreak import theory
from tiebreak.methods import Method
from tiebreak.problems import Problem
from tiebreak.progress import Share
from tiebreak.result import Result, Status
from tiebreak.schedules import Parameters
from tiebreak.solver.minimize import minimize
from tiebreak.solver.objective import Level
from tiebreak.solver.result_warnings import unsaid
from tiebreak.stationarity import dot
from tiebreak.studies.tables import Columns, joined, labelled
from tiebreak.theory import Constants

Values: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]
Progress: TypeAlias = Callable[[float], Any]

#: The two residuals of the theorem, by the names of :class:`tiebreak.Point`.
RESIDUALS = ("direction_squared", "lower_gradient_squared")
ERRORS = 6  # standard errors
_LEMMA_RUNS = 8  # runs at whose iterates the lemma is looked at


class Case(NamedTuple):
    """A method with a proved bound, on a problem whose constants are known, for so many steps."""

    group: str
    problem: Problem
    label: str
    method: Method
    steps: int
    noise_smoothness: Any = None  # ℓ, if the bound needs ℓ

    @property
    def constants(self) -> Constants:
        """The constants of the problem."""
        assert self.problem.constants is not None
        return self.problem.constants


def step_grid(steps: int, per_decade: int = 6, start: int = 10) -> Steps:
    """Numbers of steps from `start` on, evenly in the logarithm, with every power of ten and the last.

    >>> step_grid(250, per_decade=2).tolist()
    [10, 32, 100, 250]
    """
    powers = np.arange(0, max(0.0, np.log10(steps / start)), 1 / per_decade)
    return np.unique(np.append(np.rint(start * 10**powers), steps)).astype(np.int64)


def bounds_of(
    method: Method, constants: Constants, K: Steps, noise_smoothness: Any = None
) -> dict[str, Values]:
    """The proved bounds of both residuals after K steps, for an array of K."""
    bounds = theory.proved(method, constants, K, noise_smoothness)
    return {name: getattr(bounds, name) for name in RESIDUALS}


def simulate(
    case: Case,
    runs: int,
    seed: int,
    progress: Progress = lambda share: None,
    **options: Any,
) -> Result:
    """Run the case; `steps`, `record` and so on as :func:`tiebreak.minimize` takes them. Ctrl-C is passed on."""
    with unsaid():  # the tables report faults
        result = minimize(
            case.problem.upper,
            case.problem.lower,
            case.problem.x0,
            method=case.method,
            runs=runs,
            seed=seed,
            progress=lambda now: progress(Share(now.fraction, now)),
            **{"steps": case.steps} | options,
        )
    if Status.INTERRUPTED in result.status:
        raise KeyboardInterrupt
    return result


def theorem(case: Case, result: Result) -> Columns:
    """Both residuals at x_{N_K}, against the proved bounds of the method. `result` has ``record=1``.

    A row for each K and residual. The expectation over N_K is exact, Σ w_k r_k / Σ w_k, a value for every run.
    """
    K = step_grid(case.steps)
    bounds = bounds_of(case.method, case.constants, K, case.noise_smoothness)
    tables = []
    for name, bound in bounds.items():
        mean, error = _mean(weighted(case, result, name, K), axis=1)
        columns = {
            "K": K,
            "mean": mean,
            "error": error,
            "bound": bound,
            "ratio": mean / bound,
            "verdict": verdicts(mean, error, bound),
        }
        tables.append(labelled(columns, residual=name))
    return _named(case, joined(tables))


def weighted(case: Case, result: Result, name: str, K: Steps) -> Values:
    """Σ_{k<K} w_k r_k / Σ w_k for every K and run; w_k is the weight with which the iterate k is returned."""
    weight = np.array([case.method.schedule.at(k).weight for k in range(case.steps)])
    total = np.cumsum(weight[:, None] * result.history[name][: case.steps], axis=0)
    return np.asarray(total[K - 1] / np.cumsum(weight)[K - 1, None])


def verdicts(mean: Any, error: Any, bound: Any) -> NDArray[np.str_]:
    """PASS, FAIL or open.

    >>> verdicts(np.array([1.0, 1.0, 1.0]), np.array([0.1, 0.2, 0.1]), np.array([2.0, 2.0, 0.1])).tolist()
    ['PASS', 'open', 'FAIL']
    """
    refuted = ~(mean - ERRORS * error <= bound)  # NaN is refuted
    below = mean + ERRORS * error <= bound
    return np.where(refuted, "FAIL", np.where(below, "PASS", "open"))


def deviations(case: Case, result: Result, seed: int, draws: int) -> Columns:
    """The stability lemma, E‖d − d̂‖² ≤ τ², by simulation at iterates that were visited; `result` has them all.

    A row for each step; `ratio` and `limit` are those of the worst of its iterates.
    """
    assert result.history.x is not None
    rows: list[dict[str, Any]] = []
    for k in step_grid(case.steps, per_decade=3, start=1) - 1:
        parameters = case.method.schedule.at(int(k))
        points = result.history.x[k, :_LEMMA_RUNS]
        mean, error = _mean(_deviation(case, points, parameters, seed, draws), axis=0)
        tau2 = float(theory.terms(parameters, case.constants).tau) ** 2
        rows.append(
            {
                "step": k,
                "tau2": tau2,
                "mean": mean.mean(),
                "limit": (mean + ERRORS * error).max(),
                "ratio": (mean / tau2).max(),
                "verdict": worst(verdicts(mean, error, tau2)),
            }
        )
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return _named(case, columns)


def worst(words: Iterable[str]) -> str:
    """The worst verdict of some."""
    words = set(words)
    return next((word for word in ("FAIL", "open") if word in words), "PASS")


def _deviation(
    case: Case, points: Any, parameters: Parameters, seed: int, draws: int
) -> Values:
    """‖d − d̂‖² for many mini-batches at each point: (draws, points)."""
    shape = np.shape(case.problem.x0)
    x = np.ascontiguousarray(points).reshape(len(points), -1)
    arguments = case.method.arguments(parameters)
    rngs = default_rng([seed, parameters.k]).spawn(2 * len(x))
    upper = Level("upper", case.problem.upper, shape, x.dtype)
    lower = Level("lower", case.problem.lower, shape, x.dtype)

    def direction(a: Any, b: Any) -> Any:
        multiplier = case.method.multiplier(dot(a, b), dot(b, b), arguments)
        return a + multiplier[..., None] * b

    sampled = direction(
        _estimates(upper, x, parameters.upper_batch, draws, rngs[: len(x)]),
        _estimates(lower, x, parameters.lower_batch, draws, rngs[len(x) :]),
    )
    difference = sampled - direction(upper.exact(x), lower.exact(x))
    return dot(difference, difference)


def _estimates(level: Level, x: Any, batch: Any, draws: int, rngs: Any) -> Any:
    """Gradients of many mini-batches at each point: (draws, points, dimension)."""
    tokens = level.draw(rngs, [batch] * draws)
    of_library = type(level.oracle).__module__.startswith("tiebreak.")
    if level.vectorized and of_library and hasattr(tokens, "ndim"):
        # All draws at once, which only oracles of the library must accept.
        return level.oracle.gradient(np.broadcast_to(x, (draws, *x.shape)), tokens)
    return np.stack([level.gradient(x, token) for token in tokens])


def rates(case: Case, result: Result) -> tuple[Columns, Columns]:
    """Corollary 1: both residuals against K, and how fast they fall over the last decade; `result` has ``record=1``."""
    K = step_grid(case.steps, per_decade=20)
    late = case.steps / 10 <= K
    bounds = bounds_of(case.method, case.constants, K, case.noise_smoothness)
    curves = []
    slopes = []
    for name in RESIDUALS:
        means = weighted(case, result, name, K)
        last = result.history[name][K]
        table = {
            "K": K,
            "weighted": means.mean(axis=1),
            "last": last.mean(axis=1),
            "bound": np.asarray(bounds[name]),
        }
        curves.append(labelled(table, schedule=case.label, residual=name))
        slope = {"bound": _slopes(K[late], bounds[name][late, None])}
        for estimate, values in (("weighted", means), ("last", last)):
            mean, error = _mean(_slopes(K[late], values[late]), axis=0)
            slope |= {
                estimate: np.array([mean]),
                f"{estimate}_error": np.array([error]),
            }
        slopes.append(labelled(slope, schedule=case.label, residual=name))
    return joined(curves), joined(slopes)


def _slopes(K: Steps, values: Values) -> Values:
    """−d log r / d log K by least squares, for every run."""
    return np.asarray(-np.polyfit(np.log(K), np.log(values), 1)[0])


def _mean(values: Values, axis: int) -> tuple[Any, Any]:
    """The mean along an axis, and its standard error."""
    return values.mean(axis=axis), values.std(axis=axis, ddof=1) / np.sqrt(
        values.shape[axis]
    )


def _named(case: Case, columns: Columns) -> Columns:
    """The columns with the case's names in front."""
    return labelled(
        columns,
        group=case.group,
        problem=case.problem.name,
        dimension=len(case.problem.x0),
        schedule=case.label,
    )
