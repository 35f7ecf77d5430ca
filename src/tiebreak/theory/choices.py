"""The constants that a plan leaves free, chosen for a budget by what is proved.

Every plan has a box of coordinates and a function from a point in it to the parameters of a schedule. A smooth search
over logarithms comes first. Where batches and periods are small, the bound is then improved coordinate by coordinate
with whole numbers, the steps that the exact charge leaves, and the bound of just that schedule.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tiebreak import methods
from tiebreak.estimators import Spider
from tiebreak.methods import Method
from tiebreak.penalty_schedules import schedule as penalty_schedule
from tiebreak.rules import stability
from tiebreak.schedules import WHOLE, Parameters, Schedule, anytime, corollary_powers
from tiebreak.solver.budget import steps_within
from tiebreak.theory.bounds import Adding, Laws, theorem_1
from tiebreak.theory.constants import Constants, Pair, Values
from tiebreak.theory.penalties import penalty_residuals, penalty_smoothness
from tiebreak.theory.proved import proved, residuals_of
from tiebreak.theory.reduction import YOUNG, largest_spider_step

#: The lower and the upper edge of each coordinate.
Box: TypeAlias = Mapping[str, Pair]
#: A planned method, and the coordinates in which the search ended at an edge of the box.
Choice: TypeAlias = tuple[Method, tuple[str, ...]]


class Goal(NamedTuple):
    """What a plan is for."""

    constants: Constants
    budget: float
    noise_smoothness: Any = None  # (ℓ_f, ℓ_g), for variance reduction
    epsilon: float | None = None


BATCHES = ("upper_batch", "lower_batch")
CAPPED = ("step_size", "barrier")  # under the SDBGD rule, by Theorem 1
_EDGE = 1 - 1e-9  # of the largest legal step: rounding must not exceed the limit
_LONGEST_HOLD = 2**20  # steps; whose costs are counted cycle by cycle

# --------------------------------------------------------------------------------------------------- the search


def search(
    function: Callable[..., Values],
    box: Box,
    natural: Sequence[str] = (),
    capped: Sequence[str] = (),
    rounds: int = 80,
    restarts: int = 1,
    spread: float = 1.1,
) -> tuple[list[float], tuple[str, ...]]:
    """Minimise over a box by the cross-entropy method: sample, keep the best, sample from their normal law.

    Returns the best point, and the names of the coordinates in which it lies at an edge of the box.

    `function` takes an array per coordinate and looks at all points at once. The seed is fixed: a plan is a function of
    its arguments. The valleys are long and skew; the covariance follows them, a search by coordinates does not.

    Parameters
    ----------
    function : callable
    box : mapping
    natural, capped : sequence of str
        Coordinates whose edges, or whose upper edge, are the end of the legal range: they are not reported.
    rounds : int
        Of 500 points each.
    restarts : int
        From so many first draws, for functions with several valleys; the best end counts.
    spread : float
        How much wider than the best points the next ones are: more where the valley is long and bends.
    """
    low, high = (np.array(edge) for edge in zip(*box.values(), strict=True))
    ends = [
        _descended(function, low, high, rounds, seed, spread)
        for seed in range(restarts)
    ]
    best = min(ends, key=lambda end: end[1])[0]
    margin = 1e-3 * (high - low)
    at_high = (high - best <= margin) & [name not in capped for name in box]
    at_edge = zip(box, at_high | (best - low <= margin), strict=True)
    return best.tolist(), tuple(
        name for name, reported in at_edge if reported and name not in natural
    )


def _descended(
    function: Callable[..., Values],
    low: Values,
    high: Values,
    rounds: int,
    seed: int,
    spread: float,
) -> tuple[Values, float]:
    """One run of the method: the best point, and the value there."""
    floor = low[:, None]
    ceiling = high[:, None]
    rng = np.random.default_rng(seed)
    points = rng.uniform(floor, ceiling, (len(low), 4000))
    best = points[:, 0]
    least = math.inf
    for _ in range(rounds):
        with np.errstate(all="ignore"):
            values = function(*points)
        values = np.where(np.isfinite(values), values, np.inf)
        order = np.argsort(values)
        if values[order[0]] < least:
            best = points[:, order[0]]
            least = float(values[order[0]])
        elite = points[:, order[:50]]
        root = np.linalg.cholesky(np.cov(elite) + 1e-12 * np.eye(len(low)))
        moves = spread * root @ rng.standard_normal((len(low), 500))
        points = np.clip(elite.mean(axis=1, keepdims=True) + moves, floor, ceiling)
        points[:, 0] = best
    return best, least


def improved(function: Callable[..., float], point: Sequence[float]) -> list[float]:
    """A point near this one with a smaller value: one coordinate at a time, by factors that shrink.

    For functions with steps in them, of whole numbers, where the smooth search has led close. Coordinates are positive.

    Examples
    --------
    >>> [round(x) for x in improved(lambda x, y: (x - 3) ** 2 + (y - x) ** 2, [2.0, 5.0])]
    [3, 3]
    """
    best = list(point)
    least = function(*point)
    for step in (0.3, 0.1, 0.03, 0.01, 0.003):
        for _ in range(8):
            before = least
            for i in range(len(best)):
                for factor in (1 + step, 1 / (1 + step)):
                    trial = list(best)
                    trial[i] = _moved(best[i], factor)
                    value = function(*trial)
                    if value < least:
                        best = trial
                        least = value
            if least >= before * (1 - 1e-6):
                break
    return best


def _moved(value: float, factor: float) -> float:
    # The factor may be too small to reach the next whole number.
    small = value >= 1 and abs(value * factor - value) < 1
    neighbour = value + (1 if factor > 1 else -1)
    if small and neighbour >= 1 and abs(value - round(value)) < 1e-9:
        return neighbour
    return value * factor


# ------------------------------------------------------------------------------------------- constant schedules


def _constant(
    method: Method,
    parameters: Callable[..., Parameters],
    box: Box,
    goal: Goal,
    natural: Sequence[str],
    rounding: Callable[[Any], Any] = np.rint,
    polished: bool = True,
    **effort: Any,
) -> Choice:
    """The constant schedule with the smallest bound: `parameters` of a point in the box, by its logarithms."""
    c = goal.constants
    ell = goal.noise_smoothness

    def bound(*logs: Values) -> Values:
        point = [np.exp(log) for log in logs]
        p = _completed(parameters(*point), lambda size: size, goal)
        steps = _steps(p, goal.budget)
        young = dict(zip(box, point, strict=True)).get("young", YOUNG)
        return np.where(
            steps >= 1,
            np.maximum(*residuals_of(method, p, c, ell, steps, young)),
            np.inf,
        )

    def planned(*point: float) -> Method:
        p = _completed(parameters(*map(np.float64, point)), rounding, goal)
        if p.regularizer is not None:
            p = p._replace(step_size=min(p.step_size, c.largest_step_size))
        elif p.period is not None:
            p = p._replace(step_size=_EDGE * p.step_size)
        elif p.momentum is not None:
            p = p._replace(
                step_size=min(p.step_size, _EDGE / penalty_smoothness(p.barrier, c))
            )
        laws: dict[str, Any] = p.named()
        del laws["k"]
        return method.replace(schedule=Schedule(**laws))

    logs, edges = search(
        bound, box, natural, CAPPED if "regularizer" in box else (), **effort
    )
    point = [math.exp(log) for log in logs]
    if polished:
        point = improved(lambda *trial: worst(planned(*trial), goal), point)
    return planned(*point), edges


def _completed(p: Parameters, rounding: Callable[[Any], Any], goal: Goal) -> Parameters:
    """With batches and periods of at least 1, and the largest step size that SPIDER's allow, if none is set."""
    sizes = {name: getattr(p, name) for name in WHOLE}
    p = p._replace(
        **{
            name: np.maximum(1, rounding(size))
            for name, size in sizes.items()
            if size is not None
        }
    )
    if p.step_size is not None:
        return p
    return p._replace(
        step_size=largest_spider_step(p, goal.constants, goal.noise_smoothness)
    )


def _steps(p: Parameters, budget: float) -> Any:
    """How many steps a budget allows, if fractions of calls and periods count; 0 if it is too small for the first."""
    batches = p.upper_batch + p.lower_batch
    if p.momentum is not None:  # every sample at two points, but for the first step
        return budget / (2 * batches) + 0.5
    if p.period is not None:
        refresh = p.upper_refresh + p.lower_refresh
        return np.where(
            refresh <= budget,
            budget / (refresh / p.period + 2 * (1 - 1 / p.period) * batches),
            0.0,
        )
    if p.upper_hold is not None:
        return np.where(
            batches <= budget,
            budget / (p.upper_batch / p.upper_hold + p.lower_batch),
            0.0,
        )
    return budget / batches


def worst(method: Method, goal: Goal) -> float:
    """The larger of the two residuals that are proved for a budget; infinite where nothing is."""
    steps = steps_of_plan(method, int(goal.budget))[0]
    if steps < 1:
        return math.inf
    try:
        return float(
            proved(method, goal.constants, steps, goal.noise_smoothness).larger
        )
    except ValueError:
        return math.inf


def steps_of_plan(method: Method, budget: int) -> tuple[int, int, int]:
    """As :func:`steps_within`; SPIDER's constant costs without going through a period that may be astronomical."""
    p = method.schedule.at(0)
    if not isinstance(method.estimator, Spider) or not method.schedule.constant():
        return steps_within(method, budget)
    refresh = p.upper_refresh + p.lower_refresh
    small = 2 * (p.upper_batch + p.lower_batch)
    refreshes, budget_left = divmod(budget, refresh + (p.period - 1) * small)
    small_steps = refreshes * (p.period - 1)
    if budget_left >= refresh:
        refreshes += 1
        small_steps += min(p.period - 1, (budget_left - refresh) // small)
    upper = refreshes * p.upper_refresh + small_steps * 2 * p.upper_batch
    return (
        refreshes + small_steps,
        upper,
        refreshes * p.lower_refresh + small_steps * 2 * p.lower_batch,
    )


def fixed_sdbgd(goal: Goal) -> Choice:
    """All five constants, by Theorem 1."""

    def parameters(eta: Any, beta: Any, rho: Any, upper: Any, lower: Any) -> Parameters:
        return Parameters(0, eta, upper, lower, np.minimum(beta, 1.0), rho)

    box = _theorem_box(goal) | dict.fromkeys(BATCHES, (0.0, largest_batch(goal)))
    return _constant(
        methods.sdbgd, parameters, box, goal, BATCHES, rounding=np.floor, polished=False
    )


def fixed_penalty(goal: Goal) -> Choice:
    """β and both batches, by the bound of plain penalty descent; η as large as it may be."""

    def parameters(beta: Any, upper: Any, lower: Any) -> Parameters:
        return Parameters(
            0,
            1 / penalty_smoothness(beta, goal.constants),
            upper,
            lower,
            beta,
            selection=1,
        )

    box = {"barrier": (-25.0, 60.0)} | dict.fromkeys(
        BATCHES, (0.0, largest_batch(goal))
    )
    return _constant(
        methods.penalty,
        parameters,
        box,
        goal,
        BATCHES,
        rounding=np.floor,
        polished=False,
    )


def fixed_lazy(goal: Goal) -> Choice:
    """β and the batches, for few upper calls: η = 1/(2L), and a batch is held for √2 L/L_f steps, which is allowed.

    For the least total nothing would be held: upper calls are few anyway, and a held batch is an older one. So the
    share of upper calls is not searched for: both levels have half of the variance, 2σ_f²/B_f = β²σ_g²/B_g.
    """
    c = goal.constants

    def parameters(beta: Any, variance: Any) -> Parameters:
        L = penalty_smoothness(beta, c)
        upper = 4 * c.sigma_f**2 / variance
        lower = 2 * (beta * c.sigma_g) ** 2 / variance
        hold = np.minimum(_LONGEST_HOLD, np.sqrt(2) * L / c.L_f)
        return Parameters(0, 0.5 / L, upper, lower, beta, upper_hold=hold, selection=1)

    box = {"barrier": _barriers(goal), "batches": (-80.0, 20.0)}
    return _constant(
        methods.lazy_penalty, parameters, box, goal, ("batches",), rounding=np.floor
    )


def fixed_spider(goal: Goal) -> Choice:
    """β, the period and all four batches of SPIDER; η as large as they allow."""

    def parameters(
        beta: Any, q: Any, b_f: Any, b_g: Any, B_f: Any, B_g: Any
    ) -> Parameters:
        return Parameters(
            0,
            None,
            b_f,
            b_g,
            beta,
            period=q,
            upper_refresh=B_f,
            lower_refresh=B_g,
            selection=1,
        )

    sizes = ("period", *BATCHES, "upper_refresh", "lower_refresh")
    box = {"barrier": _barriers(goal)} | dict.fromkeys(
        sizes, (0.0, math.log(goal.budget / 2))
    )
    return _constant(methods.spider_penalty, parameters, box, goal, sizes)


def fixed_storm(goal: Goal) -> Choice:
    """β, η, α and both batches of STORM, all of them constant."""

    def parameters(beta: Any, share: Any, alpha: Any, b_f: Any, b_g: Any) -> Parameters:
        eta = share / penalty_smoothness(beta, goal.constants)
        return Parameters(
            0, eta, b_f, b_g, beta, momentum=np.minimum(alpha, 1.0), selection=1
        )

    size = math.log(goal.budget / 2)
    box = {
        "barrier": _barriers(goal),
        "step_size": (-14.0, 0.0),
        "momentum": (-size, 0.0),
    }
    return _constant(
        methods.storm_penalty,
        parameters,
        box | dict.fromkeys(BATCHES, (0.0, size)),
        goal,
        BATCHES,
    )


def fixed_storm_barrier(goal: Goal) -> Choice:
    """STORM's estimates under the SDBGD rule: the better of two plans, for σ_f as it is and as if it were σ_g.

    What is proved with more noise holds with less. The proportion of the batches follows σ_f, and is not best where σ_f
    is small: the plan would get worse as noise gets less.
    """
    c = goal.constants
    plans = [_storm_barrier(goal)]
    if c.sigma_f < c.sigma_g:
        plans.append(
            _storm_barrier(goal._replace(constants=c.replace(sigma_f=c.sigma_g)))
        )
    return min(plans, key=lambda choice: worst(choice[0], goal))


def _storm_barrier(goal: Goal) -> Choice:
    """η, β, ρ, α and the scale of both batches."""
    c = goal.constants

    def parameters(
        eta: Any, beta: Any, rho: Any, alpha: Any, scale: Any, young: Any
    ) -> Parameters:
        beta = np.minimum(beta, 1.0)
        b_f, b_g = _proportioned(scale, (c.sigma_f, c.sigma_g), beta, rho, c)
        return Parameters(0, eta, b_f, b_g, beta, rho, momentum=np.minimum(alpha, 1.0))

    size = math.log(goal.budget)
    box = {"momentum": (-size, 0.0), "batches": (-80.0, size), "young": (-7.0, 7.0)}
    effort: dict[str, Any] = {"rounds": 120, "restarts": 2, "spread": 1.3}
    return _constant(
        methods.storm_sdbgd,
        parameters,
        _theorem_box(goal) | box,
        goal,
        tuple(box),
        **effort,
    )


def fixed_spider_barrier(goal: Goal) -> Choice:
    """η, β, ρ, the period, and the scales of SPIDER's small and large batches under the SDBGD rule."""
    c = goal.constants

    def parameters(
        eta: Any, beta: Any, rho: Any, q: Any, little: Any, large: Any
    ) -> Parameters:
        beta = np.minimum(beta, 1.0)
        b_f, b_g = _proportioned(little, goal.noise_smoothness, beta, rho, c)
        B_f, B_g = _proportioned(large, (c.sigma_f, c.sigma_g), beta, rho, c)
        return Parameters(
            0, eta, b_f, b_g, beta, rho, period=q, upper_refresh=B_f, lower_refresh=B_g
        )

    size = math.log(goal.budget)
    box = {
        "period": (math.log(2), max(1.0, size)),
        "batches": (-80.0, size),
        "refreshes": (-80.0, size),
    }
    effort: dict[str, Any] = {"rounds": 120, "restarts": 4, "spread": 1.3}
    reduced = _constant(
        methods.spider_sdbgd,
        parameters,
        _theorem_box(goal) | box,
        goal,
        tuple(box),
        **effort,
    )
    # A period of 1 is plain SDBGD, in a separate valley: at small budgets differences do not pay.
    method, edges = fixed_sdbgd(goal._replace(noise_smoothness=None))
    p = method.schedule.at(0)
    every_step = method.schedule.replace(
        period=1, upper_refresh=p.upper_batch, lower_refresh=p.lower_batch
    )
    plain = methods.spider_sdbgd.replace(schedule=every_step)
    return min((reduced, (plain, edges)), key=lambda choice: worst(choice[0], goal))


def _proportioned(
    scale: Any, each: Pair, barrier: Any, regularizer: Any, c: Constants
) -> tuple[Any, Any]:
    """Both levels' batches, scale · (each_f, M each_g): in the proportion in which they buy the most.

    An error of ∇g counts M = 3β/2 + 2G_f/√ρ times. So `each` is σ for noise, and ℓ for differences.
    """
    return scale * each[0], scale * stability(barrier, regularizer, c.G_f) * each[1]


def _theorem_box(goal: Goal) -> dict[str, Pair]:
    """η, β and ρ, below the caps of Theorem 1."""
    cap = math.log(goal.constants.largest_step_size)
    return {
        "step_size": (cap - 18, cap),
        "barrier": (-18.0, 0.0),
        "regularizer": (-60.0, 10.0),
    }


def _barriers(goal: Goal) -> Pair:
    """Where to look for log β: around that of plain descent, which variance reduction takes further."""
    plain = plain_barrier(goal)
    return plain - 4, plain + 10


def plain_barrier(goal: Goal) -> float:
    """log β of plain descent."""
    return math.log(
        fixed_penalty(goal._replace(noise_smoothness=None))[0].schedule.at(0).barrier
    )


def largest_batch(goal: Goal) -> float:
    """The logarithm of half the budget."""
    return math.log(goal.budget / 2) + 1e-9


# -------------------------------------------------------------------------------------------- anytime schedules

NODES = np.linspace(0, 1, 60)[:, None]  # of log t / log K


def anytime_penalty(goal: Goal) -> Choice:
    """β_0 and both batches' factors of the anytime penalty, β ~ t^1/4, B_f ~ t^1/2, B_g ~ t."""
    c = goal.constants
    budget = goal.budget

    def bound(*logs: Values) -> Values:
        beta, upper, lower = (np.exp(log) for log in logs)
        steps = steps_of(
            budget, ((upper, np.full_like(upper, 0.5)), (lower, np.ones_like(lower)))
        )
        t = np.exp(NODES * np.log(steps))
        eta = t**-0.25 / penalty_smoothness(beta, c)
        sizes = np.maximum(1, upper * np.sqrt(t)), np.maximum(1, lower * t)
        p = Laws(eta, beta * t**0.25, 0 * t, *sizes, selection=t**-0.5)
        return np.asarray(np.maximum(*penalty_residuals(p, c, _integrated(steps))))

    size = largest_batch(goal)
    box = {"barrier": (-15.0, 40.0)} | dict.fromkeys(BATCHES, (-25.0, size))
    logs, edges = search(bound, box, BATCHES)
    beta, upper, lower = map(math.exp, logs)
    # η_k ≤ 1/L_k at every step: t^−1/4 (L_f + β_0 t^1/4 L_g) is largest at t = 1.
    eta = (1 - 1e-12) / penalty_smoothness(beta, c)
    schedule = penalty_schedule(
        "penalty", step_size=eta, barrier=beta, upper_batch=upper, lower_batch=lower
    )
    return methods.penalty.replace(schedule=schedule), edges


def anytime_sdbgd(goal: Goal) -> Choice:
    """a and the constants of the anytime laws, by Theorem 1."""
    c = goal.constants
    budget = goal.budget

    def bound(a: Values, *logs: Values) -> Values:
        constants = [np.exp(log) for log in logs]
        powers = corollary_powers(a)
        steps = corollary_steps(budget, constants, powers)
        theorem = theorem_1(
            corollary_laws(NODES * np.log(steps), constants, powers),
            c,
            _integrated(steps),
        )
        direction = np.where(
            powers["barrier"] <= powers["step_size"], theorem.falling, theorem.rising
        )
        return np.asarray(np.maximum(theorem.lower_gradient_squared, direction))

    cap = math.log(c.largest_step_size)
    size = largest_batch(goal)
    box = {
        "a": (0.01, 0.33),
        "step_size": (cap - 12, cap),
        "barrier": (-12.0, 0.0),
        "regularizer": (-40.0, 20.0),
    }
    box |= {"upper_batch": (-25.0, size), "lower_batch": (-40.0, size)}
    (a, *logs), edges = search(bound, box, BATCHES, CAPPED)
    eta, beta, *further = map(math.exp, logs)
    return corollary_method(
        a, min(eta, c.largest_step_size), min(beta, 1.0), *further
    ), edges


def corollary_laws(
    log_t: Values, constants: Sequence[Any], powers: Mapping[str, Values]
) -> Laws:
    """The laws of Corollary 1 at any t; batches are at least 1 but not floored, for smoothness."""
    eta, beta, rho, upper, lower = (
        c * np.exp(e * log_t) for c, e in zip(constants, powers.values(), strict=True)
    )
    return Laws(eta, beta, rho, np.maximum(1, upper), np.maximum(1, lower))


def corollary_steps(
    budget: float, constants: Sequence[Any], powers: Mapping[str, Values]
) -> Values:
    """K for a budget, under the laws of Corollary 1."""
    return steps_of(
        budget, zip(constants[-2:], (powers[name] for name in BATCHES), strict=True)
    )


def corollary_method(
    a: float, eta: float, beta: float, rho: float, upper: float, lower: float
) -> Method:
    """SDBGD with the laws of Corollary 1."""
    schedule = anytime(
        a,
        step_size=eta,
        barrier=beta,
        regularizer=rho,
        upper_batch=upper,
        lower_batch=lower,
    )
    return methods.sdbgd.replace(schedule=schedule)


def steps_of(budget: float, laws: Iterable[tuple[Any, Any]]) -> Values:
    """K with Σ_{t≤K} max(1, c t^e), summed over both levels' (c, e), ≈ budget: by bisection on log K."""
    laws = list(laws)
    low = np.zeros_like(laws[0][0])
    high = np.full_like(laws[0][0], math.log(budget / 2 + 1))
    for _ in range(40):
        middle = (low + high) / 2
        steps = np.exp(middle)
        cost = sum(
            np.maximum(steps, c * np.exp(e * middle) * (steps / (e + 1) + 0.5))
            for c, e in laws
        )
        low = np.where(cost <= budget, middle, low)
        high = np.where(cost <= budget, high, middle)
    return np.asarray(np.exp(low))


def _integrated(steps: Values) -> Adding:
    """How to add up over K steps from values at the nodes t = K^NODES: sums over steps become integrals over log t."""
    t = np.exp(NODES * np.log(steps))

    def total(values: Values) -> Values:
        areas = (values * t)[1:] + (values * t)[:-1]
        inner = areas.sum(axis=0) / 2 * np.log(steps) / (len(NODES) - 1)
        return np.asarray(inner + (values[0] + values[-1]) / 2)

    return Adding(total, lambda values: values[-1], lambda values: values.max(axis=0))


#: By (method, kind): the plans by a proved bound.
PROVED: Mapping[tuple[str, str], Callable[[Goal], Choice]] = MappingProxyType(
    {
        ("sdbgd", "horizon"): fixed_sdbgd,
        ("sdbgd", "anytime"): anytime_sdbgd,
        ("penalty", "horizon"): fixed_penalty,
        ("penalty", "anytime"): anytime_penalty,
        ("lazy_penalty", "horizon"): fixed_lazy,
        ("spider_penalty", "horizon"): fixed_spider,
        ("storm_penalty", "horizon"): fixed_storm,
        ("storm_sdbgd", "horizon"): fixed_storm_barrier,
        ("spider_sdbgd", "horizon"): fixed_spider_barrier,
    }
)
