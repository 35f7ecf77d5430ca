"""Measured rates near the worst case: ``python -m benchmarks.rates [--quick]`` writes benchmarks/results/rates.json.

For a falling ε each penalty method is planned by its bound, for the least budget; the problem's slope is chosen so that
its K steps just use up Δ_g. Measured is the mean of both residuals over the path, which is what the theorems bound.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from tiebreak import minimize
from tiebreak.problems import worst_case
from tiebreak.provenance import stamp
from tiebreak.theory import plan

RESULTS = Path(__file__).parent / "results" / "rates.json"
METHODS = {
    "penalty": None,
    "lazy_penalty": None,
    "spider_penalty": 1.0,
    "storm_penalty": 1.0,
}
ACCURACIES = tuple(0.4 / 2**i for i in range(6))
QUICK = (0.4, 0.1)


def measured(method, epsilon, runs=16, seed=0):
    """One plan and what came of it."""
    known = worst_case(0.1).constants
    chosen = plan(
        known, epsilon=epsilon, method=method, noise_smoothness=METHODS[method]
    )
    p = chosen.schedule.at(0)
    slope = math.sqrt(known.delta_g / (p.step_size * p.barrier * chosen.steps))
    problem = worst_case(min(slope, 0.9))
    every = max(1, chosen.steps // 4000)
    result = minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method=chosen,
        steps=chosen.steps,
        runs=runs,
        seed=seed,
        record=every,
    )
    row = {
        "method": method,
        "epsilon": epsilon,
        "steps": chosen.steps,
        "slope": slope,
        "runs": runs,
        "seed": seed,
    }
    row |= {"upper_calls": chosen.upper_calls, "lower_calls": chosen.lower_calls}
    for name in ("direction_squared", "lower_gradient_squared"):
        each = result.history[name][:-1].mean(axis=0)
        row |= {
            name: float(each.mean()),
            f"{name}_error": float(each.std(ddof=1) / math.sqrt(runs)),
        }
        row[f"{name}_bound"] = getattr(chosen.bounds, name)
    return row


def exponents(rows):
    """How calls and steps grow as powers of 1/residual, the larger of the two, by least squares."""
    larger = np.log(
        [max(row["direction_squared"], row["lower_gradient_squared"]) for row in rows]
    )
    names = ("steps", "upper_calls", "lower_calls")
    return {
        name: float(-np.polyfit(larger, np.log([row[name] for row in rows]), 1)[0])
        for name in names
    }


def study(quick=False):
    """All rows, and the exponents of each method."""
    made = stamp()  # before: it may take a while, and files may change
    rows = [
        measured(m, e, runs=8 if quick else 16)
        for m in METHODS
        for e in (QUICK if quick else ACCURACIES)
    ]
    powers = {
        m: exponents([row for row in rows if row["method"] == m]) for m in METHODS
    }
    return {
        **made,
        "problem": "worst_case, σ = ℓ = Δ_g = 1",
        "rows": rows,
        "exponents": powers,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="two accuracies, nothing is written"
    )
    found = study(parser.parse_args().quick)
    for row in found["rows"]:
        shares = [
            f"{row[n] / row[f'{n}_bound']:.2f}"
            for n in ("direction_squared", "lower_gradient_squared")
        ]
        print(
            row["method"],
            row["epsilon"],
            f"{row['steps']:.2e}",
            f"{row['lower_calls']:.2e}",
            "of the bounds:",
            *shares,
        )
    print(json.dumps(found["exponents"], indent=1))
    if not parser.parse_args().quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
