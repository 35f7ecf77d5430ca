"""Every symbol of the appendix, the combined-descent inequalities and the three bounds of Theorem 1, as functions.

The constants of step k, for any schedule::

    ν_f² = σ_f²/B_f      ν_g² = σ_g²/B_g
    τ²   = 2ν_f² + 2(3β/2 + 2G_f/√ρ)² ν_g²
    C_f  = G_f τ + L_f η τ²
    C_g  = βρ + (G_f/2)√ρ + τ²/(2β) + L_g η τ²
    R    = 4C_f + 8β C_g + C_g/(L_g η) + 8β L_g η G_f²
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiebreak.rules import stability
from tiebreak.schedules import Parameters, Schedule
from tiebreak.solver.budget import Many, law_values
from tiebreak.theory.constants import Constants, Values

#: Bounds on E‖∇g(x_N)‖² and on E‖d_N‖².
Residuals: TypeAlias = tuple[Any, Any]


class Terms(NamedTuple):
    """The appendix's symbols at one step or many.

    Examples
    --------
    >>> import tiebreak
    >>> symbols = terms(tiebreak.methods.sdbgd.schedule.at(99), tiebreak.problems.paper().constants)
    >>> symbols.tau > 0, round(float(symbols.C_g), 3)
    (True, 0.176)
    """

    nu_f: Any
    nu_g: Any
    tau: Any
    C_f: Any
    C_g: Any
    R: Any


def terms(parameters: Any, constants: Constants, tau_squared: Any = None) -> Terms:
    """ν, τ, C_f, C_g and R at the given parameters: a step's :class:`~tiebreak.Parameters`, or arrays of them by name.

    `tau_squared` replaces τ² for estimates that are no mini-batch means: E‖d − d̂‖².

    Examples
    --------
    >>> import tiebreak
    >>> symbols = terms(tiebreak.methods.sdbgd.schedule.at(99), tiebreak.problems.paper().constants)
    >>> round(float(symbols.tau), 4)
    0.2243
    """
    p = parameters
    c = constants
    eta = p.step_size
    beta = p.barrier
    rho = p.regularizer
    nu_f2 = c.sigma_f**2 / p.upper_batch
    nu_g2 = c.sigma_g**2 / p.lower_batch
    tau2 = tau_squared
    if tau2 is None:
        tau2 = 2 * nu_f2 + 2 * stability(beta, rho, c.G_f) ** 2 * nu_g2
    tau = tau2**0.5
    C_f = c.G_f * tau + c.L_f * eta * tau2
    C_g = beta * rho + 0.5 * c.G_f * rho**0.5 + tau2 / (2 * beta) + c.L_g * eta * tau2
    R = (
        4 * C_f
        + 8 * beta * C_g
        + C_g / (c.L_g * eta)
        + 8 * beta * c.L_g * eta * c.G_f**2
    )
    return Terms(nu_f2**0.5, nu_g2**0.5, tau, C_f, C_g, R)


def upper_descent(
    parameters: Any, constants: Constants, decrease_f: Any, lower_gradient: Any
) -> Any:
    """The upper-level descent lemma: (1 − L_fη)‖d_k‖² ≤ δ_f/η + β²‖∇g‖² + βG_f‖∇g‖ + C_f; its right-hand side.

    Parameters
    ----------
    parameters : Parameters
    constants : Constants
    decrease_f : float or array
        δ_f,k = f(x_k) − E_k f(x_{k+1}).
    lower_gradient : float or array
        ‖∇g(x_k)‖, not squared.

    Examples
    --------
    >>> import tiebreak
    >>> step = tiebreak.methods.sdbgd.schedule.at(0)
    >>> bool(upper_descent(step, tiebreak.problems.paper().constants, 0.0, 1.0) > 0.75)  # β² + βG_f, β = 1/2
    True
    """
    p = parameters
    c = constants
    size = lower_gradient
    return (
        decrease_f / p.step_size
        + (p.barrier * size) ** 2
        + p.barrier * c.G_f * size
        + terms(p, c).C_f
    )


def lower_descent(
    parameters: Any, constants: Constants, decrease_g: Any, direction_squared: Any
) -> Any:
    """The lower-level descent lemma: (β/2)‖∇g(x_k)‖² ≤ δ_g/η + L_gη‖d_k‖² + C_g; its right-hand side.

    Parameters
    ----------
    parameters : Parameters
    constants : Constants
    decrease_g : float or array
        δ_g,k = g(x_k) − E_k g(x_{k+1}).
    direction_squared : float or array
        ‖d_k‖².

    Examples
    --------
    >>> import tiebreak
    >>> step = tiebreak.methods.sdbgd.schedule.at(0)
    >>> bool(lower_descent(step, tiebreak.problems.paper().constants, 0.0, 1.0) > 0.05)  # L_gη and C_g
    True
    """
    p = parameters
    c = constants
    return (
        decrease_g / p.step_size
        + c.L_g * p.step_size * direction_squared
        + terms(p, c).C_g
    )


class Descent(NamedTuple):
    """Right-hand sides of the combined-descent lemma, for ‖d_k‖² and for (β_k/2)‖∇g(x_k)‖²."""

    direction_squared: Any
    lower_gradient_squared: Any


def combined_descent(
    parameters: Parameters, constants: Constants, decrease_f: Any, decrease_g: Any
) -> Descent:
    """The two inequalities of the combined-descent lemma, given δ_f,k = f(x_k) − E_k f(x_{k+1}) and δ_g,k.

    ‖d_k‖² ≤ (4/η)δ_f + (8βηL_g+1)/(η²L_g) δ_g + R and (β/2)‖∇g‖² ≤ 4L_g δ_f + (8L_gβη+2)/η δ_g + ηL_gR + C_g.

    Examples
    --------
    >>> import tiebreak
    >>> step = tiebreak.methods.sdbgd.schedule.at(0)
    >>> bound = combined_descent(step, tiebreak.problems.paper().constants, 0.0, 0.0)
    >>> bound.direction_squared > 0
    True
    """
    p = parameters
    c = constants
    t = terms(parameters, constants)
    assert p.barrier is not None
    eta = p.step_size
    beta = p.barrier
    direction = (
        4 / eta * decrease_f
        + (8 * beta * eta * c.L_g + 1) / (eta**2 * c.L_g) * decrease_g
        + t.R
    )
    lower = (
        4 * c.L_g * decrease_f
        + (8 * c.L_g * beta * eta + 2) / eta * decrease_g
        + eta * c.L_g * t.R
        + t.C_g
    )
    return Descent(direction, lower)


@dataclass(frozen=True)
class Laws:
    """Parameters of many steps, or of many schedules, as arrays by the names of :class:`~tiebreak.Parameters`."""

    step_size: Values
    barrier: Values
    regularizer: Values
    upper_batch: Values
    lower_batch: Values
    selection: Values | None = None  # weights of the returned iterate; by default ηβ

    @property
    def weight(self) -> Values:
        """P(N = k), up to a factor."""
        if self.selection is None:
            return self.step_size * self.barrier
        return self.selection


def laws(
    schedule: Schedule, steps: int, start: int = 0, regularized: bool = True
) -> Laws:
    """The parameters of steps `start`, …, `start` + `steps` − 1; power laws without a Python loop.

    A method without a regularizer (`regularized` false) has zeros in its place.
    """

    def values(name: str) -> Values:
        law: Any = getattr(schedule, name)
        if law is None:
            raise ValueError(
                f"{name} is not set by the schedule, and the bound needs it"
            )
        return law_values(law, steps, start)

    eta = values("step_size")
    beta = values("barrier")
    rho = values("regularizer") if regularized else np.zeros(steps)
    selection = None if schedule.selection is None else values("selection")
    many = Many(schedule, steps, start)
    return Laws(eta, beta, rho, many.upper_batch, many.lower_batch, selection)


def first_step(parameters: Any) -> Laws:
    """Constant parameters, of one schedule or of many, as laws with a first axis of one step."""
    p = parameters
    rho = 0 * p.barrier if p.regularizer is None else p.regularizer
    values = (p.step_size, p.barrier, rho, p.upper_batch, p.lower_batch)
    return Laws(*(np.atleast_1d(value)[None] for value in values))


def checked_steps(steps: Any) -> NDArray[Any]:
    """A number of steps, or an array of them, checked."""
    checked = np.asarray(steps)
    if checked.dtype.kind not in "iuO" or checked.size == 0 or checked.min() < 1:
        raise ValueError(f"steps={steps!r} must be whole numbers ≥ 1")
    return checked


class Adding(NamedTuple):
    """Over the first K steps, for an array of K: the sum, the last value, and the largest one."""

    total: Callable[[Values], Any]
    last: Callable[[Values], Any]
    most: Callable[[Values], Any]


def ways_to_add(steps: Any, fixed: bool) -> Adding:
    """How to add up over K steps; `fixed`: all are equal, and values hold the first alone."""
    if fixed:
        count = np.asarray(steps).astype(np.float64)
        return Adding(
            lambda values: values[0] * count,
            lambda values: values[0],
            lambda values: values[0],
        )
    return Adding(
        lambda values: np.cumsum(values)[steps - 1],
        lambda values: values[steps - 1],
        lambda values: np.maximum.accumulate(values)[steps - 1],
    )


class Theorem(NamedTuple):
    """The three bounds of Theorem 1: on E‖∇g‖², and on E‖d‖² for a falling and for a rising (β_k/η_k)."""

    lower_gradient_squared: Any
    falling: Any
    rising: Any


def theorem_1(
    parameters: Laws, constants: Constants, add: Adding, tau_squared: Any = None
) -> Theorem:
    """Theorem 1, for any way to add up: its conditions are for the caller to check.

    Parameters
    ----------
    parameters : Laws
        With the steps along the first axis; further axes hold schedules to be compared.
    constants : Constants
    add : Adding
        How a quantity is added up over all K steps.
    tau_squared : array, optional
        E‖d − d̂‖² of estimates that are no mini-batch means. The theorem asks nothing else of them.
    """
    p = parameters
    c = constants
    t = terms(parameters, constants, tau_squared)
    eta = p.step_size
    beta = p.barrier
    L_g = c.L_g
    eta0 = eta[0]
    beta0 = beta[0]
    weight = add.total(eta * beta)
    lower = 8 * eta0 * L_g * c.delta_f + (16 * eta0 * beta0 * L_g + 4) * c.delta_g
    lower = (lower + 2 * add.total(eta**2 * L_g * t.R + eta * t.C_g)) / weight
    falling = (
        4 * beta0 * c.delta_f + (8 * beta0**2 * L_g + beta0 / eta0) / L_g * c.delta_g
    )
    falling = (falling + add.total(eta * beta * t.R)) / weight
    rising = 4 * eta0 * c.delta_f + (8 * L_g * beta0 * eta0 + 1) / L_g * c.delta_g
    rising = add.last(beta / eta) * (rising + add.total(eta**2 * t.R)) / weight
    return Theorem(lower, falling, rising)


@dataclass(frozen=True)
class Bounds:
    """What a theorem says of x_{N_K}.

    Attributes
    ----------
    steps : K.
    lower_gradient_squared : bound on E‖∇g(x_{N_K})‖².
    direction_squared : bound on E‖d_{N_K}‖²; infinite where (β_k/η_k) is not monotone, and `note` says so.
    note : which condition of the theorem is not met, or "".

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> bounds = tiebreak.theory.residual_bounds(tiebreak.methods.sdbgd.schedule, problem.constants, 1000)
    >>> bounds.steps, round(float(bounds.lower_gradient_squared), 2), bounds.note
    (1000, 12.63, '')
    """

    steps: Any
    lower_gradient_squared: Any
    direction_squared: Any
    note: str = ""

    @property
    def larger(self) -> Any:
        """The larger of both residuals."""
        return np.maximum(self.lower_gradient_squared, self.direction_squared)


def bounds_of_pair(steps: Any, pair: Residuals, note: str = "") -> Bounds:
    """Bounds from those on ‖∇g‖² and on ‖d‖²: floats for one K, arrays for an array."""
    lower, direction = pair
    if np.ndim(steps) == 0:
        return Bounds(steps, float(lower), float(direction), note)
    zeros = np.zeros(np.shape(steps))
    return Bounds(steps, lower + zeros, direction + zeros, note)


def residual_bounds(schedule: Schedule, constants: Constants, steps: Any) -> Bounds:
    """The bounds of Theorem 1 after K steps of SDBGD; for an array of K, arrays.

    Raises a ValueError that names the condition where one is violated: η_k ≤ 1/(2(L_f+2L_g)), 0 < β_k ≤ 1, ρ_k > 0,
    (η_k) and (β_k) nonincreasing. The bound on the direction needs (β_k/η_k) to be monotone besides; where it is
    constant, the smaller of the theorem's two is given.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> bounds = residual_bounds(tiebreak.methods.sdbgd.schedule, problem.constants, 275)
    >>> print(f"{bounds.lower_gradient_squared:.1f} {bounds.direction_squared:.0f}")  # above 1.37: vacuous, and true
    22.7 67
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule={schedule!r} must be a Schedule, such as tiebreak.methods.sdbgd.schedule"
        )
    K = checked_steps(steps)
    fixed = schedule.constant()  # then sums are products, and K may be astronomical
    p = laws(schedule, 1 if fixed else int(K.max()))
    check_theorem_1(p, constants)
    theorem = theorem_1(p, constants, ways_to_add(K, fixed))
    ratio = p.barrier / p.step_size
    slack = 1e-12 * ratio[:-1]
    falls = np.all(np.diff(ratio) <= slack)
    rises = np.all(np.diff(ratio) >= -slack)
    falling = np.where(falls, theorem.falling, np.inf)
    rising = np.where(rises, theorem.rising, np.inf)
    direction = np.minimum(falling, rising)
    note = ""
    if not (falls or rises):
        note = "(barrier/step_size) is not monotone: no bound on the direction"
    return bounds_of_pair(steps, (theorem.lower_gradient_squared, direction), note)


def check_theorem_1(p: Laws, constants: Constants) -> None:
    """A ValueError that names the condition of Theorem 1 that fails, and the step."""
    for text, holds in _conditions(p, constants).items():
        if not holds.all():
            k = int(np.argmin(holds))
            values = f"step_size={p.step_size[k]:g}, barrier={p.barrier[k]:g}, regularizer={p.regularizer[k]:g}"
            raise ValueError(
                f"Theorem 1 needs {text}; at step {k} the schedule has {values}"
            )


def _conditions(p: Laws, c: Constants) -> dict[str, NDArray[np.bool_]]:
    def falls(values: Values) -> NDArray[np.bool_]:
        return np.concatenate([[True], np.diff(values) <= 1e-12 * values[:-1]])

    cap = c.largest_step_size
    with np.errstate(divide="ignore", invalid="ignore"):  # a barrier of 0 is refused
        ratio = p.weight / (p.step_size * p.barrier)
        proportional = np.abs(ratio - ratio[0]) <= 1e-9 * ratio[0]
    return {
        f"0 < step_size ≤ 1/(2(L_f+2L_g)) = {cap:g}": (p.step_size > 0)
        & (p.step_size <= cap * (1 + 1e-12)),
        "0 < barrier ≤ 1": (p.barrier > 0) & (p.barrier <= 1),
        "regularizer > 0": p.regularizer > 0,
        "a nonincreasing step_size": falls(p.step_size),
        "a nonincreasing barrier": falls(p.barrier),
        "a selection in proportion to step_size·barrier": proportional,
    }
