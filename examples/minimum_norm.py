"""The least-norm fit of an over-parametrised problem
==================================================

Run it: ``python examples/minimum_norm.py``.

Lower objective: the mean squared error of 20 equations in 60 unknowns; every exact fit is a minimiser. Upper objective:
half the squared norm. The answer is known, the pseudo-inverse, so the distance to it can be seen.
"""

import numpy as np

import tiebreak

rng = np.random.default_rng(0)
A, y = rng.standard_normal((20, 60)), rng.standard_normal(20)


def gradient(x, rows):
    return A[rows].T @ (A[rows] @ x - y[rows]) / len(rows)


def value(x, rows):
    return np.mean((A[rows] @ x - y[rows]) ** 2) / 2


def main() -> None:
    lower = tiebreak.FiniteSum(gradient, n=len(y), value=value)
    upper = tiebreak.Exact(lambda x: x, lambda x: x @ x / 2)
    best = np.linalg.pinv(A) @ y
    x0 = rng.standard_normal(60)

    def show(name, x, calls):
        distance = np.linalg.norm(x - best) / np.linalg.norm(best)
        print(
            f"{name:<40} {distance:>10.1e} {np.linalg.norm(x):>8.4f} {lower.value(x):>10.1e} {calls:>15,}"
        )

    print(f"{'':<40} {'distance':>10} {'norm':>8} {'lower':>10} {'calls':>15}")
    show("start", x0, 0)
    # Gradient descent on g alone finds the exact fit nearest to the start, not the one of least norm.
    show("nearest exact fit", x0 + np.linalg.pinv(A) @ (y - A @ x0), 0)
    L_g = np.linalg.norm(A, 2) ** 2 / len(y)
    growing = tiebreak.anytime(0.3, L_f=1, L_g=L_g, barrier=1, regularizer=0.01)
    capped = growing.replace(lower_batch=10, upper_batch=1)
    for name, schedule, estimator in (
        ("SDBGD, growing batches", growing, tiebreak.Minibatch()),
        ("SDBGD, batch 10", capped, tiebreak.Minibatch()),
        ("SDBGD, batch 10, Average(0.05)", capped, tiebreak.Average(0.05)),
    ):
        method = tiebreak.methods.sdbgd.replace(schedule=schedule, estimator=estimator)
        result = tiebreak.minimize(upper, lower, x0, method=method, steps=4000, seed=0)
        show(name, result.x, result.calls)
    show("pseudo-inverse", best, 0)
    print(
        "\nDistance: relative, to the pseudo-inverse solution. Calls: samples, as charged; where a batch is larger"
    )
    print("than the data, every term is evaluated once and weighted.")


if __name__ == "__main__":
    main()
