"""`auto` against the best hand-tuned row of every problem: what docs/auto.md shows.

python -m benchmarks.auto_tuned 1e6 NAMES tuned.jsonl 3 10 2    # the references: a minute each, some much longer
python -m benchmarks.auto measured.jsonl 1e6 all 10             # `auto`: minutes
python -m benchmarks.auto tuned.jsonl measured.jsonl            # both into results/auto.json and docs/_tables/auto.md

References that are not in tuned.jsonl are kept as they are in results/auto.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tiebreak
from benchmarks.auto_fresh import FRESH
from benchmarks.auto_own import OWN
from benchmarks.auto_tuned import problem_of, residuals
from tiebreak.problems import TESTBED
from tiebreak.provenance import stamp

#: The law and its constants were chosen on the test bed and on OWN; FRESH was looked at afterwards.
NAMES = [*TESTBED, *OWN, *FRESH]
HERE = Path(__file__).parent
RESULTS = HERE / "results" / "auto.json"


def measure(path: str, budget: int, names: list[str], runs: int) -> None:
    for name in names:
        problem = problem_of(name)
        found = tiebreak.minimize(
            problem.upper, problem.lower, problem.x0, budget=budget, runs=runs, seed=0, record=None
        )
        each = residuals(problem, found.last)
        row = {
            "problem": name,
            "budget": budget,
            "runs": runs,
            "mean": float(each.mean()),
            "largest": float(each.max()),
        }
        row |= {"success": found.success, "median": float(np.median(each)), "made": stamp()}
        row["chosen"] = {key: float(f"{np.median(value):.4g}") for key, value in found.chosen.items()}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(name, f"{each.mean():.2e} {each.max():.2e} {found.elapsed:.1f}", flush=True)


def _lines(path: str) -> dict[tuple[str, int], dict[str, Any]]:
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return {(row["problem"], row["budget"]): row for row in rows}


def joined(tuned: str, measured: str) -> list[dict[str, Any]]:
    before = json.loads(RESULTS.read_text(encoding="utf-8"))
    references = {(row["problem"], row["budget"]): row["reference"] for row in before} | _lines(tuned)
    rows = []
    for (name, budget), row in _lines(measured).items():
        found = references.get((name, budget))
        kind = "judged" if name in FRESH else "tuned on"
        rows.append({"problem": name, "budget": budget, "set": kind, "auto": row, "reference": found})
        rows[-1]["ratio"] = None if found is None else row["mean"] / found["residual"]
    return sorted(rows, key=lambda r: (NAMES.index(r["problem"]), r["budget"]))


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| problem | | calls | best hand-tuned row | its residual | `auto` | ratio |"]
    lines.append("| --- | --- | ---: | --- | ---: | ---: | ---: |")
    for row in rows:
        if row["reference"] is not None:
            calls = f"10^{round(np.log10(row['budget']))}".replace("10^6", "10⁶").replace("10^8", "10⁸")
            cells = [row["problem"], row["set"], calls, row["reference"]["best"], f"{row['reference']['residual']:.1e}"]
            lines.append("| " + " | ".join([*cells, f"{row['auto']['mean']:.1e}", f"{row['ratio']:.2g}"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if len(sys.argv) == 5:
        names = NAMES if sys.argv[3] == "all" else sys.argv[3].split(",")
        measure(sys.argv[1], int(float(sys.argv[2])), names, int(sys.argv[4]))
        return
    rows = joined(sys.argv[1], sys.argv[2])
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    (HERE.parent / "docs" / "_tables" / "auto.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
