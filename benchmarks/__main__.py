"""`python -m benchmarks [--budget N] [--output FOLDER]`: prints the table, and keeps it as JSON and Markdown."""

import argparse
import json
import os
import platform
from pathlib import Path

import numpy as np

import tiebreak
from benchmarks import solver
from tiebreak.files import atomic


def main():
    parser = argparse.ArgumentParser(prog="benchmarks", description="Benchmarks of tiebreak, as ratios in one run.")
    parser.add_argument("--budget", type=lambda text: int(float(text)), default=10**8, help="oracle calls per run")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="where to keep the table")
    options = parser.parse_args()
    print(f"The paper's experiment, budget {options.budget:.0e} per run; about a minute.")
    rows = solver.measure(options.budget)
    width = max(len(what) for what, _, _ in rows)
    for what, value, unit in rows:
        print(f"  {what:<{width}}  {value:10.3g} {unit}")
    machine = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tiebreak": tiebreak.__version__,
    }
    table = [{"what": what, "value": value, "unit": unit} for what, value, unit in rows]
    with atomic(options.output / "solver.json", "w") as file:
        json.dump({"budget": options.budget, "machine": machine, "rows": table}, file, indent=1, ensure_ascii=False)
    with atomic(options.output / "solver.md", "w") as file:
        file.write("| | | |\n|---|---|---|\n")
        file.writelines(f"| {what} | {value:.3g} | {unit} |\n" for what, value, unit in rows)
    print(f"Written to {options.output}/solver.json and solver.md")


if __name__ == "__main__":
    main()
