"""The JAX driver beside the NumPy solver: the same problem, method and number of steps."""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import solver
from benchmarks.table import Table
from tiebreak.optax import Gaussian, solve


def losses(dimension):
    """The values whose gradients are those of `solver.quadratics`."""
    rng = np.random.default_rng(0)
    center, weights = rng.normal(size=dimension), rng.uniform(0.5, 1.5, dimension)
    weights[dimension // 2 :] = 0
    center, weights = jnp.asarray(center, dtype=jnp.float32), jnp.asarray(weights, dtype=jnp.float32)
    return lambda x: jnp.sum((x - center) ** 2) / 2, lambda x: jnp.sum(weights * x**2) / 2


def table(quick=False):
    """Rows for one run and for 256, in 2 and in 10⁴ dimensions."""
    cases = [(2, 1, 2000), (2, 256, 2000), (10**4, 1, 500), (10**4, 256, 20)]
    rows = []
    for dimension, runs, steps in cases:
        steps = steps // 10 if quick else steps
        problem = [Gaussian(loss, 0.5) for loss in losses(dimension)]
        peers, start = solver.quadratics(dimension, sigma=0.5), jnp.zeros(dimension)
        again = (
            lambda peers=peers, dimension=dimension, steps=steps, runs=runs: solver.minimize(
                *peers, np.zeros(dimension), steps=steps, runs=runs
            ),
            lambda problem=problem, start=start, steps=steps, runs=runs: solve(
                *problem, start, "sdbgd", steps=steps, runs=runs
            ),
        )
        first = solver.seconds(again[1])
        numpy_, jax_ = in_turns(again, 1 if quick else 3)
        rows.append([dimension, runs, steps, numpy_, jax_, jax_ / numpy_, first - jax_])
    return Table(
        "solver_jax",
        f"The JAX driver beside NumPy: SDBGD on quadratics, Gaussian noise, on {jax.default_backend()}",
        ["dimension", "runs", "steps", "NumPy, s", "JAX, s", "JAX / NumPy", "first call, compiling, s"],
        rows,
        [
            "NumPy in float64, JAX in float32, as each does by default; both with their history. JAX compiles once "
            "for each set of objectives, method, steps and runs: the last column is what the first call took more.",
        ],
    )


def in_turns(functions, rounds):
    """Medians in turns, like `side_by_side` without warming up: these calls are long, and JAX is warm already."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]
