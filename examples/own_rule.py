"""A rule of your own in ten lines
===============================

Run it: ``python examples/own_rule.py``.

It is compared with SDBGD on the paper's problem. A rule gets fg = ⟨∇f, ∇g⟩ and gg = ‖∇g‖², a value for each run, and
returns the multipliers λ. Its further arguments are found by name: parameters of the schedule, or its `others`. Write
np.maximum and np.where, not max and if: the arguments are arrays. On the test bed:
``tiebreak compare --methods sdbgd,examples/own_rule.py:method``.
"""

import numpy as np

import tiebreak
from tiebreak import Method, rules


def by_norm(fg, gg, barrier, regularizer, cap):
    """Ask for descent in proportion to ‖∇g‖, not ‖∇g‖²; and never let λ exceed a cap."""
    asked = barrier * np.sqrt(gg)
    return np.minimum(rules.multiplier(fg, gg, asked, regularizer), cap)


schedule = tiebreak.anytime(
    0.25, L_f=1, L_g=1, barrier=1
)  # the theory's exponents, its largest constants
method = Method("by norm, λ ≤ 50", by_norm, schedule.replace(others={"cap": 50}))


def main() -> None:
    problem = tiebreak.problems.paper()
    rows = (
        Method("SDBGD", rules.sdbgd, schedule),
        method,
        method.replace(name="by norm, λ ≤ 5", others={"cap": 5}),
    )
    print("budget 10⁸, means of 10 runs at the last iterate")
    print(
        f"{'method':<16} {'steps':>5} {'min over λ':>11} {'‖∇g‖²':>9} {'largest λ':>10}"
    )
    for row in rows:
        result = tiebreak.minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=row,
            budget=10**8,
            runs=10,
            seed=0,
        )
        last, largest = result.last, np.nanmax(result.history.multiplier)
        print(
            f"{row.name:<16} {result.steps[0]:>5} {last.stationarity_squared.mean():>11.1e} "
            f"{last.lower_gradient_squared.mean():>9.1e} {largest:>10.1f}"
        )
    print(
        "\nThe norm barrier gets ∇g down further and pays in the other residual. No theorem covers it."
    )


if __name__ == "__main__":
    main()
