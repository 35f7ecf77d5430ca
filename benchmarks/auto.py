"""`auto` against the best hand-tuned row of every problem: what docs/auto.md shows.

python -m benchmarks.auto_tuned 1e6 all tuned.jsonl 3 10      # the references: hours
python -m benchmarks.auto measured.jsonl 1e6 all 10           # `auto`: minutes
python -m benchmarks.auto tuned.jsonl measured.jsonl          # both into results/auto.json and docs/_tables/auto.md
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tiebreak
from benchmarks.auto_own import LATER, OWN
from benchmarks.auto_tuned import problem_of, residuals
from tiebreak.problems import TESTBED
from tiebreak.provenance import stamp

#: On these the constants of `Balance` were chosen, the present ones also on random-20-multiplicative and the gorges
#: `stiff-2-phase` and `stiff-3-phase`; all others were looked at afterwards.
TUNED_ON = (
    *("paper", "islands-2", "valley-20-multiplicative", "sphere-10", "plateau-100-heavy", "flat-10", "saddle-2"),
    *("saddle-10-heavy", "conditioned-10", "random-10"),
)
#: References that the grid of this benchmark was too slow for: the best of nine rows at seven step sizes each, at 10⁶
#: calls, from docs/_tables/compare_residuals.md.
COMPARED = {
    "valley-1000": ("SDBGD practice", 1.1e-3),
    "conditioned-1000": ("VR-PR-SDBPG", 1.2e-4),
    "sphere-10000": ("DBGD batched", 1.7e-3),
}
HERE = Path(__file__).parent


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
    references, rows = _lines(tuned), []
    for (name, budget), row in _lines(measured).items():
        found = references.get((name, budget))
        if found is None and budget == 10**6 and name in COMPARED:
            best, value = COMPARED[name]
            found = {"best": f"{best} (compare)", "residual": value}
        kind = "new" if name in LATER else "own" if name in OWN else "tuned on" if name in TUNED_ON else "judged"
        rows.append({"problem": name, "budget": budget, "set": kind, "auto": row, "reference": found})
        rows[-1]["ratio"] = None if found is None else row["mean"] / found["residual"]
    order = [*TESTBED, *OWN]
    sets = ("tuned on", "judged", "own", "new")
    return sorted(rows, key=lambda r: (sets.index(r["set"]), order.index(r["problem"]), r["budget"]))


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
        names = [*TESTBED, *OWN] if sys.argv[3] == "all" else sys.argv[3].split(",")
        measure(sys.argv[1], int(float(sys.argv[2])), names, int(sys.argv[4]))
        return
    rows = joined(sys.argv[1], sys.argv[2])
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "auto.json").write_text(text, encoding="utf-8")
    (HERE.parent / "docs" / "_tables" / "auto.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
