"""The NumPy solver: against a naive program and bare draws, in the number of runs, in the dimension, in the batch."""

import time
from functools import partial

import numpy as np

import tiebreak
from benchmarks import naive
from benchmarks.table import Table, side_by_side
from tiebreak.result import Status

BUDGET = 10**8  # the paper's


def minimize(*problem, **options):
    """`tiebreak.minimize`. It ends in good order at Ctrl-C, but then the time says nothing: the benchmark ends too."""
    result = tiebreak.minimize(*problem, seed=0, **options)
    if Status.INTERRUPTED in np.atleast_1d(np.asarray(result.status, dtype=object)):
        raise KeyboardInterrupt
    return result


def seconds(function, repeat=1):
    """The least of a few timings, for what takes too long to be taken in turns."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def experiment(runs, budget, per_sample=False):
    """All four methods of the paper on its problem; the results by name."""
    problem = tiebreak.problems.paper(per_sample=per_sample)
    options = {"budget": budget, "runs": runs}
    return {
        name: minimize(problem.upper, problem.lower, problem.x0, method=name, **options)
        for name in naive.METHODS
    }


def draw(count, rng=None):
    """`count` standard normals and nothing else, into a buffer that stays in the cache: the fastest way NumPy has."""
    rng, buffer = rng or np.random.default_rng(0), np.empty(2**14)
    for _ in range(count // len(buffer)):
        rng.standard_normal(out=buffer)
    rng.standard_normal(count % len(buffer))


def normals(results):
    """How many normals every sample of these runs takes: two coordinates each; STORM uses each sample twice."""
    evaluations = {
        name: tiebreak.methods.get(name).estimator.evaluations for name in results
    }
    return sum(
        2 * int(result.calls) // evaluations[name] for name, result in results.items()
    )


def paper(quick=False):
    """The experiment of the paper against the program that one would write first."""
    budget = 10**6 if quick else BUDGET
    drawn = experiment(None, budget)
    assert naive.experiment(budget, naive.exact_law) == {
        name: result.steps for name, result in drawn.items()
    }
    count = normals(drawn)
    light = {
        "exact law": partial(experiment, 1, budget),
        "10 runs": partial(experiment, 10, budget),
        "loop": partial(naive.experiment, budget, naive.exact_law),
    }
    times = side_by_side(light, seconds=3)
    before = seconds(lambda: draw(count // 2))
    times["per sample"] = seconds(lambda: experiment(1, budget, per_sample=True))
    # Half before and half after, so that a drift of the machine's speed cancels.
    times["draws"] = before + seconds(lambda: draw(count - count // 2))
    times["naive"] = seconds(lambda: naive.experiment(budget))
    programs = (
        ("tiebreak, exact law, 10 runs", "10 runs", 10),
        ("tiebreak, exact law", "exact law", 1),
        ("naive loop given the exact law", "loop", 1),
        (f"bare draws of {count / 1e6:.0f} million normals", "draws", 1),
        ("tiebreak, per sample", "per sample", 1),
        ("naive program, every sample", "naive", 1),
    )
    rows = [
        [
            name,
            runs,
            times[key],
            times[key] / runs,
            times["naive"] * runs / times[key],
            times[key] / times["draws"],
        ]
        for name, key, runs in programs
    ]
    for row in rows[:3]:
        row[-1] = None  # these draw two normals a batch
    steps = sum(result.steps for result in drawn.values())
    return Table(
        "solver_paper",
        f"The paper's experiment: four methods, {budget:,} calls each, {steps:,} steps in all",
        [
            "program",
            "runs",
            "time, s",
            "time per run, s",
            "naive / this, per run",
            "this / bare draws",
        ],
        rows,
        [
            "The exact law draws a batch mean from its law, two normals whatever the batch; per sample draws them all.",
            "The naive loop given the exact law makes the same steps without a history, residuals, checks or "
            "checkpoints: what it is faster by is the price of these.",
        ],
        {"kind": "bars", "x": "program", "y": ["time per run, s"], "log": "y"},
    )


def against_loop(count, seconds, rounds=200):
    """Method → µs per step of one run, of the bare loop that makes the same steps, and their ratio; `count` steps."""
    problem, found = tiebreak.problems.paper(), {}
    for name, loop in naive.METHODS.items():
        solve = partial(
            minimize, problem.upper, problem.lower, problem.x0, method=name, steps=count
        )
        budget = int(solve().calls)
        made = loop(budget, np.random.default_rng(0), naive.exact_law)[1]
        bare = partial(
            lambda loop, budget: loop(
                budget, np.random.default_rng(0), naive.exact_law
            ),
            loop,
            budget,
        )
        times = side_by_side({"ours": solve, "bare": bare}, seconds, rounds)
        ours, theirs = 1e6 * times["ours"] / count, 1e6 * times["bare"] / made
        found[name] = ours, theirs, ours / theirs
    return found


def steps(quick=False):
    """A step of one run against the same step of a loop that does nothing else."""
    count = 1000 if quick else 4000
    return Table(
        "solver_steps",
        f"A step of one run on the paper's problem against a bare loop, {count:,} steps, exact law",
        ["method", "tiebreak, µs", "bare loop, µs", "tiebreak / bare loop"],
        [
            [name, *row]
            for name, row in against_loop(count, seconds=0.5 if quick else 3).items()
        ],
        [
            "As many steps by the same laws, and as many normals for them, from the law of the batch mean. The loop "
            "selects no iterate, keeps no history, and looks neither at shapes nor for numbers that are not finite.",
            "STORM's loop evaluates both gradients at both points; the solver remembers those of the point before.",
        ],
    )


def runs(quick=False):
    """Independent runs side by side: the whole experiment, exact law."""
    budget, largest = (10**6, 10**3) if quick else (BUDGET, 10**4)
    counts = [n for n in (1, 10, 100, 1000, 10**4) if n <= largest]
    few = [n for n in counts if n <= 100]
    times = side_by_side(
        {n: partial(experiment, n, budget) for n in few}, seconds=3, rounds=5
    )
    times |= {
        n: seconds(partial(experiment, n, budget)) for n in counts if n not in few
    }
    steps = sum(result.steps for result in experiment(None, budget).values())
    return Table(
        "solver_runs",
        f"Independent runs side by side: the paper's experiment, {budget:,} calls a run and method",
        [
            "runs",
            "time, s",
            "time per run, s",
            "time per run and step, µs",
            "time / 1 run",
        ],
        [[n, t, t / n, 1e6 * t / n / steps, t / times[1]] for n, t in times.items()],
        [
            f"Run by run, bit for bit what each would be alone. {steps:,} steps a run. 1,000 runs / 1 run is to be < 10."
        ],
        {
            "kind": "lines",
            "x": "runs",
            "y": ["time, s", "time per run, s"],
            "log": "xy",
        },
    )


def quadratics(dimension, sigma=0.0, per_sample=False):
    """f = ½‖x − c‖² and g = ½ Σ w x² with w = 0 on half of the coordinates: nothing cheaper has two gradients."""
    rng = np.random.default_rng(0)
    center, weights = rng.normal(size=dimension), rng.uniform(0.5, 1.5, dimension)
    weights[dimension // 2 :] = 0

    def upper(x):
        return x - center

    def lower(x):
        return weights * x

    if not sigma:
        return [
            tiebreak.Exact(gradient, vectorized=True) for gradient in (upper, lower)
        ]
    options = {"vectorized": True, "per_sample": per_sample}
    return [
        tiebreak.Gaussian(gradient, sigma, **options) for gradient in (upper, lower)
    ]


def floor(dimension, draws=False):
    """What a step cannot do without, as functions: both gradients, six arrays of traffic, and the noise of both.

    The two inner products read two arrays, the step reads three and writes one; two additions move as many bytes.
    """
    upper, lower = quadratics(dimension)
    rng, x = np.random.default_rng(0), np.zeros((1, dimension))
    a, b, out = (
        np.ones((1, dimension)),
        np.ones((1, dimension)),
        np.empty((1, dimension)),
    )

    def gradients():
        upper.gradient(x)
        lower.gradient(x)

    def traffic():
        np.add(a, b, out=out)
        np.add(x, a, out=out)

    def noise():
        rng.standard_normal(out=a)
        rng.standard_normal(out=b)

    return (gradients, traffic, noise) if draws else (gradients, traffic)


def per_step(solves, floors, steps, seconds):
    """µs per step of each: the solver's beyond its first, so that starting and the last measurement stay apart.

    Parameters
    ----------
    solves : dict
        Name → function of the number of steps.
    floors : dict
        Name → functions that stand for one step.
    """

    def repeated(functions):
        for _ in range(steps):
            for function in functions:
                function()

    timed = {
        (name, n): partial(solve, n)
        for name, solve in solves.items()
        for n in (1, steps + 1)
    }
    timed |= {
        (name, None): partial(repeated, functions) for name, functions in floors.items()
    }
    times = side_by_side(timed, seconds)
    found = {name: times[name, steps + 1] - times[name, 1] for name in solves}
    found |= {name: times[name, None] for name in floors}
    return {name: 1e6 * t / steps for name, t in found.items()}


def dimensions(quick=False):
    """One run in dimension 2 … 10⁶: exact gradients, and Gaussian noise from its law."""
    rows = []
    for power in range(5 if quick else 7):
        dimension = 10**power if power else 2
        steps = max(30, min(1000, 10**7 // dimension)) // (4 if quick else 1)
        exact, noisy, x0 = (
            quadratics(dimension),
            quadratics(dimension, sigma=0.5),
            np.zeros(dimension),
        )
        found = per_step(
            {
                "exact": lambda n, problem=exact, x0=x0: minimize(
                    *problem, x0, method="sdbgd", steps=n, record=None
                ),
                "noisy": lambda n, problem=noisy, x0=x0: minimize(
                    *problem, x0, method="sdbgd", steps=n, record=None
                ),
            },
            {
                "exact floor": floor(dimension),
                "noisy floor": floor(dimension, draws=True),
            },
            steps,
            seconds=0.1 if quick else 0.3,
        )
        for name in ("exact", "noisy"):
            found[f"{name} ratio"] = found[name] / found[f"{name} floor"]
        rows.append(
            [
                dimension,
                *(
                    found[f"{name}{what}"]
                    for name in ("exact", "noisy")
                    for what in COLUMNS
                ),
            ]
        )
    return Table(
        "solver_dimension",
        "A step of one run against its dimension",
        [
            "dimension",
            "exact gradients, µs",
            "floor, exact, µs",
            "exact / floor",
            "Gaussian noise, µs",
            "floor, Gaussian, µs",
            "Gaussian / floor",
        ],
        rows,
        [
            "Floor: both gradients once, and two additions of arrays of this size, which move the six arrays that two "
            "inner products and a step must read or write; with noise, also the bare draws of both levels.",
            "Quadratics, whose gradients cost one pass each; no history. Steps beyond the first: the start and the "
            "final measurement are left out.",
        ],
        {
            "kind": "lines",
            "x": "dimension",
            "y": [
                "Gaussian noise, µs",
                "floor, Gaussian, µs",
                "exact gradients, µs",
                "floor, exact, µs",
            ],
            "log": "xy",
        },
    )


COLUMNS = ("", " floor", " ratio")


class Unmeasured(tiebreak.FiniteSum):
    """A sum whose exact gradient is not to be had: the final measurement of 10⁶ terms would drown the steps."""

    @property
    def exact_gradient(self):
        raise AttributeError("exact_gradient")


def finite_sum(terms, weighted=False):
    """g = ½ mean ‖x − data_i‖², by means or by weights, and what a plain loop would do for one batch of it."""
    data, rng = (
        np.random.default_rng(0).normal(size=(terms, 2)),
        np.random.default_rng(0),
    )

    def gradient(x, rows):
        return x - data[rows].mean(axis=0)

    def batch(size):
        if size <= terms:
            gradient(0.0, rng.integers(terms, size=size))
        else:  # how often each term is drawn; then every term once, with its weight
            rng.multinomial(size, np.full(terms, 1 / terms)) @ data / size

    def by_weights(x, rows, weights):
        return (
            weights.sum(axis=-1)[..., None] * x
            - (weights[..., None, :] @ data[rows])[..., 0, :]
        )

    if weighted:
        return Unmeasured(by_weights, terms, weighted=True, vectorized=True), batch
    return Unmeasured(gradient, terms), batch


def batches(quick=False):
    """The cost of a step against the lower batch: the upper level is exact, so that one level alone is seen."""
    rows, upper, rng = [], quadratics(2)[0], np.random.default_rng(0)
    (many, draw_many), (few, draw_few) = finite_sum(10**6), finite_sum(10**3)
    law, sampled = (
        quadratics(2, sigma=0.5)[1],
        quadratics(2, sigma=0.5, per_sample=True)[1],
    )

    def solve(lower, method, steps):
        minimize(upper, lower, [0.0, 0.0], method=method, steps=steps, record=None)

    for power in range(5 if quick else 9):
        size, seconds = 10**power, 0.1 if quick else 0.2
        method = tiebreak.methods.sdbgd.replace(upper_batch=1, lower_batch=size)
        solves = {
            "law": partial(solve, law, method),
            "few": partial(solve, few, method),
        }
        found = per_step(
            solves,
            {"few floor": [partial(draw_few, size)]},
            100 if quick else 300,
            seconds,
        )
        if size <= 10**6:  # what grows with the batch makes fewer steps
            solves = {
                "sampled": partial(solve, sampled, method),
                "many": partial(solve, many, method),
            }
            floors = {
                "sampled floor": [partial(draw, 2 * size, rng)],
                "many floor": [partial(draw_many, size)],
            }
            found |= per_step(solves, floors, max(3, min(300, 10**6 // size)), seconds)
        order = (
            "law",
            "sampled",
            "sampled floor",
            "many",
            "many floor",
            "few",
            "few floor",
        )
        rows.append(
            [
                size,
                *(found.get(name) for name in order),
                1e3 * found["law"] / (size + 1),
            ]
        )
    columns = [
        "lower batch",
        "Gaussian, exact law, µs",
        "Gaussian, per sample, µs",
        "bare draws of it, µs",
        "sum of 10⁶ terms, µs",
        "plain loop of 10⁶, µs",
        "sum of 10³ terms, µs",
        "plain loop of 10³, µs",
        "exact law, ns per call",
    ]
    return Table(
        "solver_batch",
        "A step of one run against the lower batch",
        columns,
        rows,
        [
            "Two dimensions, the upper level exact. The exact law is to be flat, the others are to be at the cost of "
            "their draws (and, for sums, gradients) plus that of a small step.",
            "A batch larger than the sum is drawn as counts, at a cost that no longer grows. A function of indices "
            "alone must then be called for several groups of terms; the plain loop weighs all terms in one call.",
        ],
        {"kind": "lines", "x": columns[0], "y": columns[1:8], "log": "xy"},
    )


SECTIONS = (paper, steps, runs, dimensions, batches)


def measure(quick=False):
    """All tables."""
    return [section(quick) for section in SECTIONS]
