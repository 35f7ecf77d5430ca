"""Plans from estimated constants on problems that neither were made on: what they expect, and what came.

python -m benchmarks.predictions    # a minute; writes docs/_tables/predictions_fresh.md
"""

from pathlib import Path

import tiebreak
from benchmarks.auto_fresh import FRESH
from tiebreak.problems import Problem
from tiebreak.problems.random import random_problem
from tiebreak.theory import estimate_constants, plan

BUDGET, RUNS = 10**7, 8
#: Of the fresh ones those that are quick: without very heavy tails and thousands of dimensions.
SLOW = ("fresh-steep", "fresh-chains")
TABLE = Path(__file__).parents[1] / "docs" / "_tables" / "predictions_fresh.md"


def problems() -> list[Problem]:
    drawn = [random_problem(50, seed) for seed in (1, 2, 3)]
    drawn += [random_problem(100, 1), random_problem(40, 5, "multiplicative")]
    return drawn + [make() for name, make in FRESH.items() if name not in SLOW]


def line(problem: Problem) -> str:
    found = estimate_constants(problem, seed=0)
    known = problem.constants
    assert known is not None
    chosen = plan(found, budget=BUDGET, method="penalty", objective="practice")
    result = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, method=chosen, budget=BUDGET, runs=RUNS, seed=0, record=None
    )
    last = result.last
    came = max(float(last.direction_squared.mean()), float(last.lower_gradient_squared.mean()))
    expected = max(chosen.prediction.pair)
    shares = f"{found.L_f / known.L_f:.2f} | {found.L_g / known.L_g:.2f}"
    return f"| {problem.name} | {shares} | {expected:.1e} | {came:.1e} | {came / expected:.2g} |"


def main() -> None:
    lines = ["| problem | L_f, share of the true one | L_g | expected | measured | ratio |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for problem in problems():
        lines.append(line(problem))
        print(lines[-1], flush=True)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
