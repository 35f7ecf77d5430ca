"""`auto` on the test bed against the best hand-tuned row of every problem: what docs/auto-study.md shows.

    python -m benchmarks.auto 1e6 10              # all problems, 10 runs each: minutes
    python -m benchmarks.auto 1e6 10 paper,flat-10

The references, and the rows of other problems, stay as they are in ``benchmarks/results/auto.json``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tiebreak
from tiebreak.problems import Problem, named
from tiebreak.problems.testbed import TESTBED
from tiebreak.provenance import stamp
from tiebreak.studies.comparison.units import Units

RESULTS = Path(__file__).parent / "results" / "auto.json"
TABLE = Path(__file__).parents[1] / "docs" / "_tables" / "auto.md"
CALLS = {10**6: "10⁶", 10**8: "10⁸"}


def residuals(problem: Problem, point: Any) -> np.ndarray:
    """The larger residual of every run, in the problem's units."""
    units = Units.of(problem)
    direction = point.stationarity_squared / units.direction_squared
    lower = point.lower_gradient_squared / units.lower_gradient_squared
    return np.maximum(direction, lower)


def measure(name: str, budget: int, runs: int) -> dict[str, Any]:
    problem = named(name)
    result = tiebreak.minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        budget=budget,
        runs=runs,
        seed=0,
        record=None,
    )
    values = residuals(problem, result.last)
    return {
        "problem": name,
        "budget": budget,
        "runs": runs,
        "mean": float(values.mean()),
        "largest": float(values.max()),
        "success": result.success,
        "median": float(np.median(values)),
        "made": stamp(),
        "chosen": {
            key: float(f"{np.median(value):.4g}")
            for key, value in result.chosen.items()
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | | calls | best hand-tuned row | its residual | `auto` | ratio |"
    ]
    lines.append("| --- | --- | ---: | --- | ---: | ---: | ---: |")
    for row in rows:
        reference = row["reference"]
        cells = [
            row["problem"],
            row["set"],
            CALLS[row["budget"]],
            reference["best"],
            f"{reference['residual']:.1e}",
        ]
        lines.append(
            "| "
            + " | ".join([*cells, f"{row['auto']['mean']:.1e}", f"{row['ratio']:.2g}"])
            + " |"
        )
    return "\n".join(lines) + "\n"


def main(budget: str, runs: str, names: str = ",".join(TESTBED)) -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    for row in rows:
        if row["problem"] in names.split(",") and row["budget"] == float(budget):
            row["auto"] = measure(row["problem"], row["budget"], int(runs))
            row["ratio"] = row["auto"]["mean"] / row["reference"]["residual"]
            print(table([row]), flush=True)
    RESULTS.write_text(
        json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    TABLE.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
