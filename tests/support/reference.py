"""A slow, obvious reference: Python floats, lists and loops, each formula as the paper writes it.

The rules that the paper leaves open are written as docs/method.md and docs/reconstruction.md derive them.
Nothing of `tiebreak` is imported, and of NumPy only the random generators, whose streams are part of what the solver
promises. t = k + 1 throughout, as in the paper's table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from numpy.random import Generator, SeedSequence, default_rng

Vector = list[float]

# --------------------------------------------------------------------------------------------------- vectors


def inner(u: Vector, v: Vector) -> float:
    total = 0.0
    for ui, vi in zip(u, v, strict=True):
        total += ui * vi
    return total


def plus(u: Vector, factor: float, v: Vector) -> Vector:
    """u + factor · v."""
    return [ui + factor * vi for ui, vi in zip(u, v, strict=True)]


# ----------------------------------------------------------------------------------------------------- rules


def positive_part(value: float) -> float:
    return value if value > 0 else 0.0


def dbgd(fg: float, gg: float, beta: float) -> float:
    """Paper, section 3: [β‖∇g‖² − ⟨∇f,∇g⟩]₊ / ‖∇g‖², and 0 where ∇g = 0."""
    return 0.0 if gg == 0 else positive_part(beta * gg - fg) / gg


def sdbgd(fg: float, gg: float, beta: float, rho: float) -> float:
    """Paper, eq. (mult): [β‖∇g‖² − ⟨∇f,∇g⟩]₊ / (‖∇g‖² + ρ)."""
    return positive_part(beta * gg - fg) / (gg + rho)


def sdbpg(fg: float, gg: float, beta: float, rho: float) -> float:
    """Paper, section 1: ρ in the numerator, too."""
    return positive_part(beta * (gg + rho) - fg) / (gg + rho)


def penalized(fg: float, gg: float, beta: float, gamma: float, mu: float) -> float:
    """Our reconstruction (docs/reconstruction.md): [β(gg + γ) − fg]₊ / (gg + 1/μ)."""
    return positive_part(beta * (gg + gamma) - fg) / (gg + 1 / mu)


def by_value(
    fg: float, gg: float, value: float, target: float, alpha: float, rho: float
) -> float:
    """A barrier by value: φ = α (g − target)."""
    return positive_part(alpha * (value - target) - fg) / (gg + rho)


def least(
    fg: float,
    gg: float,
    beta: float,
    value: float,
    target: float,
    alpha: float,
    rho: float,
) -> float:
    """The least of both barriers: φ = min{α (g − target), β gg} (Gong and Liu 2021)."""
    return positive_part(min(alpha * (value - target), beta * gg) - fg) / (gg + rho)


def constant(fg: float, gg: float, beta: float) -> float:
    """Gradient descent on f + βg."""
    return beta


# -------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """Gradients and values as functions of a flat list; σ of the noise per coordinate, for each level."""

    grad_f: Callable[[Vector], Vector]
    grad_g: Callable[[Vector], Vector]
    f: Callable[[Vector], float]
    g: Callable[[Vector], float]
    sigma_f: Vector
    sigma_g: Vector
    x0: Vector


def paper_problem() -> Problem:
    """Appendix B: f = √(1+‖x−c‖²), g = 2 − cos x₁ − exp(−x₂²/2), c = (7.1, 1), x₀ = (1.5, 1.5), σ = 0.5."""

    def f(x: Vector) -> float:
        return math.sqrt(1 + (x[0] - 7.1) ** 2 + (x[1] - 1) ** 2)

    def grad_f(x: Vector) -> Vector:
        return [(x[0] - 7.1) / f(x), (x[1] - 1) / f(x)]

    def g(x: Vector) -> float:
        return 2 - math.cos(x[0]) - math.exp(-(x[1] ** 2) / 2)

    def grad_g(x: Vector) -> Vector:
        return [math.sin(x[0]), x[1] * math.exp(-(x[1] ** 2) / 2)]

    return Problem(grad_f, grad_g, f, g, [0.5, 0.5], [0.5, 0.5], [1.5, 1.5])


def random_problem(
    matrix: list[Vector], centre: Vector, sigma_f: Vector, sigma_g: Vector, x0: Vector
) -> Problem:
    """f = Σᵢ √(1+(xᵢ−cᵢ)²), nonlinear and with bounded gradient; g = ½‖Mx‖², a null space of ties."""

    def f(x: Vector) -> float:
        return sum(
            math.sqrt(1 + (xi - ci) ** 2) for xi, ci in zip(x, centre, strict=True)
        )

    def grad_f(x: Vector) -> Vector:
        return [
            (xi - ci) / math.sqrt(1 + (xi - ci) ** 2)
            for xi, ci in zip(x, centre, strict=True)
        ]

    def g(x: Vector) -> float:
        return sum(inner(row, x) ** 2 for row in matrix) / 2

    def grad_g(x: Vector) -> Vector:
        gradient = [0.0] * len(x)
        for row in matrix:
            gradient = plus(gradient, inner(row, x), row)
        return gradient

    return Problem(grad_f, grad_g, f, g, sigma_f, sigma_g, x0)


# -------------------------------------------------------------------------------------------------- schedules


@dataclass(frozen=True)
class Row:
    """A method: parameters as functions of t = k + 1, a rule, and how gradients are estimated.

    `rule(fg, gg, t, g_value)` returns λ. `average` is α_t of the exponential average, `storm` the α_t of STORM for
    the upper and the lower level; `charge_first` is how often the samples of the first step are charged. `refresh(k)`
    says whether SPIDER or PAGE refreshes, then with `upper_large` and `lower_large` samples. `hold` is for how many
    steps the upper estimate is held. `remember(fg, gg, t, notes)` is a rule that keeps numbers in a list.
    """

    eta: Callable[[int], float]
    rule: Callable[[float, float, int, float], float]
    upper_batch: Callable[[int], int]
    lower_batch: Callable[[int], int]
    weight: Callable[[int], float]
    storm: tuple[Callable[[int], float], Callable[[int], float]] | None = None
    charge_first: int = 1
    average: float | None = None
    refresh: Callable[[int], bool] | None = None
    upper_large: Callable[[int], int] | None = None
    lower_large: Callable[[int], int] | None = None
    hold: Callable[[int], int] = lambda t: 1
    remember: Callable[[float, float, int, list[float]], float] | None = None


def _quarter(t: int) -> float:
    return t ** (-1 / 4)


#: The paper's parameter table, with exact floors (⌊t^{5/2}⌋ = ⌊√t⁵⌋), and the two rows that are ours: DBGD and penalty.
METHODS: dict[str, Row] = {
    "sdbgd": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: sdbgd(fg, gg, 0.5 * _quarter(t), t ** (-3 / 2)),
        upper_batch=lambda t: t,
        lower_batch=lambda t: math.isqrt(t**5),
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
    ),
    "sdbpg": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: sdbpg(fg, gg, 0.5 * _quarter(t), 1 / t),
        upper_batch=lambda t: t,
        lower_batch=lambda t: t**2,
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
    ),
    "pr_sdbpg": Row(
        eta=lambda t: 0.05 / math.sqrt(t),
        rule=lambda fg, gg, t, value: penalized(fg, gg, 0.5 * t ** (1 / 4), 1, 1),
        upper_batch=lambda t: t,
        lower_batch=lambda t: math.isqrt(t**3),
        weight=lambda t: 0.05 / math.sqrt(t) * 0.5 * t ** (1 / 4),
    ),
    "vr_pr_sdbpg": Row(
        eta=lambda t: 0.05 / math.sqrt(t),
        rule=lambda fg, gg, t, value: penalized(fg, gg, 0.5 * t ** (1 / 4), 1, 1),
        upper_batch=lambda t: math.isqrt(t),
        lower_batch=lambda t: t,
        weight=lambda t: 0.05 / math.sqrt(t) * 0.5 * t ** (1 / 4),
        storm=(lambda t: 0.2 / math.sqrt(t), lambda t: 0.2 / math.sqrt(t)),
        charge_first=2,
    ),
    "dbgd": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: dbgd(fg, gg, 0.5 * _quarter(t)),
        upper_batch=lambda t: 1,
        lower_batch=lambda t: 1,
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
    ),
    "penalty": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: constant(fg, gg, 0.5 * t ** (1 / 4)),
        upper_batch=lambda t: math.isqrt(t),
        lower_batch=lambda t: t,
        weight=lambda t: 1 / math.sqrt(t),
    ),
    "lazy_penalty": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: constant(fg, gg, 0.5 * t ** (1 / 4)),
        upper_batch=lambda t: math.isqrt(t),
        lower_batch=lambda t: t,
        weight=lambda t: 1 / math.sqrt(t),
        hold=lambda t: math.isqrt(math.isqrt(t)),
    ),
    "spider_penalty": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: constant(fg, gg, 0.5 * t ** (1 / 4)),
        upper_batch=lambda t: 1,
        lower_batch=math.isqrt,
        weight=lambda t: 1 / math.sqrt(t),
        refresh=lambda k: k % math.isqrt(k + 1) == 0,
        upper_large=math.isqrt,
        lower_large=lambda t: t,
    ),
    "storm_penalty": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: constant(fg, gg, 0.5 * t ** (1 / 4)),
        upper_batch=lambda t: 1,
        lower_batch=math.isqrt,
        weight=lambda t: 1 / math.sqrt(t),
        storm=(lambda t: 1 / math.sqrt(t), lambda t: 1 / math.sqrt(t)),
    ),
    "storm_sdbgd": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: sdbgd(fg, gg, 0.5 * _quarter(t), t ** (-3 / 2)),
        upper_batch=math.isqrt,
        lower_batch=lambda t: t**2,
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
        storm=(lambda t: 1 / math.sqrt(t), lambda t: 1 / math.sqrt(t)),
    ),
    "spider_sdbgd": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: sdbgd(fg, gg, 0.5 * _quarter(t), t ** (-3 / 2)),
        upper_batch=math.isqrt,
        lower_batch=lambda t: t**2,
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
        refresh=lambda k: k % math.isqrt(k + 1) == 0,
        upper_large=lambda t: t,
        lower_large=lambda t: math.isqrt(t**5),
    ),
    "sdbgd_averaged": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: math.nan,
        remember=lambda fg, gg, t, notes: _averaged(fg, gg, t, notes),
        upper_batch=lambda t: t,
        lower_batch=lambda t: math.isqrt(t**5),
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
    ),
    "sdbgd_dual": Row(
        eta=lambda t: 0.05 * _quarter(t),
        rule=lambda fg, gg, t, value: math.nan,
        remember=lambda fg, gg, t, notes: _dual(fg, gg, t, notes),
        upper_batch=lambda t: t,
        lower_batch=lambda t: math.isqrt(t**5),
        weight=lambda t: 0.05 * _quarter(t) * 0.5 * _quarter(t),
    ),
}


def _averaged(fg: float, gg: float, t: int, notes: list[float]) -> float:
    """SDBGD's λ from the averages of all steps before, Σ wᵢ (fg)ᵢ / Σ wᵢ; in the first step from its own products."""
    notes[:] = notes or [0.0, 0.0, 0.0]
    before, alpha = list(notes), 1 / math.sqrt(t)
    for i, new in enumerate((fg, gg, 1.0)):
        notes[i] = (1 - alpha) * notes[i] + alpha * new
    total_fg, total_gg, total = before if before[2] > 0 else notes
    return sdbgd(total_fg / total, total_gg / total, 0.5 * _quarter(t), t ** (-3 / 2))


def _dual(fg: float, gg: float, t: int, notes: list[float]) -> float:
    """λ from before; the next one maximises μ(β gg − fg) − μ²(gg + ρ)/2 − (ρ/τ)(μ − λ)²/2 over μ ≥ 0, τ = 1/t."""
    notes[:] = notes or [0.0]
    now = notes[0]
    rho = t ** (-3 / 2)
    notes[0] = positive_part(0.5 * _quarter(t) * gg - fg + rho * t * now) / (
        gg + rho + rho * t
    )
    return now


# --------------------------------------------------------------------------------------------------- the loop


@dataclass
class Trajectory:
    """x[k] for k = 0 … K; the rest for every step k = 0 … K−1 but calls and notes, which are those before step k."""

    x: list[Vector] = field(default_factory=list)
    multiplier: list[float] = field(default_factory=list)
    upper_calls: list[int] = field(default_factory=list)
    lower_calls: list[int] = field(default_factory=list)
    selected: int = 0
    why: str = ""
    notes: list[list[float]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.multiplier)


def streams(seed: int, run: int) -> tuple[Generator, Generator, Generator]:
    """Upper samples, lower samples, selection: the solver's own, three children of the seed for each run."""
    return tuple(
        default_rng(SeedSequence(seed, spawn_key=(run, purpose)))
        for purpose in range(3)
    )


def batch_noise(rng: Generator, sigma: Vector, batch: int) -> Vector:
    """The mean of `batch` draws of N(0, diag σ²), from its law N(0, diag σ²/batch)."""
    return [s * float(rng.standard_normal()) / math.sqrt(batch) for s in sigma]


def solve(
    problem: Problem,
    row: Row,
    seed: int,
    run: int = 0,
    steps: int | None = None,
    budget: int | None = None,
) -> Trajectory:
    """Algorithm 1, with the estimates of the row; a step is made only if its whole cost fits."""
    upper_stream, lower_stream, selection_stream = streams(seed, run)
    x = list(problem.x0)
    upper_calls = lower_calls = 0
    path = Trajectory(x=[x], upper_calls=[0], lower_calls=[0], notes=[[]])
    v_f: Vector = []  # STORM's estimates of the previous step, and where they were made
    v_g: Vector = []
    x_previous: Vector = []
    total: Vector = [0.0] * len(x)  # Σᵢ wᵢ G(xᵢ) and Σᵢ wᵢ of the exponential average
    total_weight = 0.0
    sum_of_weights = 0.0
    notes: list[float] = []
    k = 0
    while True:
        t = k + 1
        if steps is not None and k == steps:
            path.why = "steps"
            return path
        # How many samples, and at how many points: two where a difference is taken, none where an estimate is held.
        batch_f, batch_g, points_f, points_g = (
            row.upper_batch(t),
            row.lower_batch(t),
            1,
            1,
        )
        if row.storm is not None and k > 0:
            points_f = points_g = 2
        if row.refresh is not None:
            if row.refresh(k):
                batch_f, batch_g = row.upper_large(t), row.lower_large(t)
            else:
                points_f = points_g = 2
        if k % row.hold(k + 1) != 0:
            points_f = 0
        times = row.charge_first if k == 0 else 1
        cost_f, cost_g = times * batch_f * points_f, times * batch_g * points_g
        if budget is not None and upper_calls + lower_calls + cost_f + cost_g > budget:
            path.why = "budget"
            return path

        # Draw the independent mini-batches; additive noise, so a mini-batch is ∇ + its mean noise at every x.
        if points_f > 0:
            xi = batch_noise(upper_stream, problem.sigma_f, batch_f)
            a = plus(problem.grad_f(x), 1, xi)
        else:
            a = v_f
        zeta = batch_noise(lower_stream, problem.sigma_g, batch_g)
        b = plus(problem.grad_g(x), 1, zeta)
        # v_k = ∇_B(x_k) + c (v_{k−1} − ∇_B(x_{k−1})): c = 1 − α_k in STORM, 1 in SPIDER but at its refreshes.
        keep_f, keep_g = (
            (1 - row.storm[0](t), 1 - row.storm[1](t))
            if row.storm is not None
            else (1, 1)
        )
        if points_f == 2:
            a = plus(a, keep_f, plus(v_f, -1, plus(problem.grad_f(x_previous), 1, xi)))
        if points_g == 2:
            b = plus(
                b, keep_g, plus(v_g, -1, plus(problem.grad_g(x_previous), 1, zeta))
            )
        v_f, v_g, x_previous = a, b, x
        if row.average is not None:  # weights α(1−α)^{k−i}, normalised by their sum
            total = plus([(1 - row.average) * ti for ti in total], row.average, b)
            total_weight = (1 - row.average) * total_weight + row.average
            b = [ti / total_weight for ti in total]

        # λ, d, x_{k+1}.
        if row.remember is None:
            multiplier = row.rule(inner(a, b), inner(b, b), t, problem.g(x))
        else:
            multiplier = row.remember(inner(a, b), inner(b, b), t, notes)
        d = plus(a, multiplier, b)
        x_next = plus(x, -row.eta(t), d)

        # N_K: x_k is kept with probability w_k / (w_0 + … + w_k).
        sum_of_weights += row.weight(t)
        if float(selection_stream.random()) < row.weight(t) / sum_of_weights:
            path.selected = k

        upper_calls, lower_calls = upper_calls + cost_f, lower_calls + cost_g
        path.notes.append(list(notes))
        path.multiplier.append(multiplier)
        path.x.append(x_next)
        path.upper_calls.append(upper_calls)
        path.lower_calls.append(lower_calls)
        x, k = x_next, k + 1


# ------------------------------------------------------------------------------------------------- residuals


def residuals(
    problem: Problem, row: Row, x: Vector, t: int, notes: list[float] | None = None
) -> dict[str, float]:
    """From exact gradients, with the rule's own parameters at t and a copy of its notes: the columns of the history."""
    a, b = problem.grad_f(x), problem.grad_g(x)
    if row.remember is None:
        own = row.rule(inner(a, b), inner(b, b), t, problem.g(x))
    else:
        own = row.remember(inner(a, b), inner(b, b), t, list(notes or []))
    d = plus(a, own, b)
    # min over λ ≥ 0 of ‖a + λb‖² is attained at [−⟨a,b⟩]₊ / ‖b‖².
    best = 0.0 if inner(b, b) == 0 else positive_part(-inner(a, b)) / inner(b, b)
    closest = plus(a, best, b)
    return {
        "direction_squared": inner(d, d),
        "lower_gradient_squared": inner(b, b),
        "stationarity_squared": inner(closest, closest),
        "exact_multiplier": own,
        "upper_value": problem.f(x),
        "lower_value": problem.g(x),
    }
