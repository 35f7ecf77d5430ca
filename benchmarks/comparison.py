"""All methods with three kinds of constants, on six problems with three kinds of noise: medians and quartiles.

    python -m benchmarks.comparison --minutes 50      # goes on where it was; some 20 minutes of one core in all
    python -m benchmarks.comparison --minutes 0       # tables and figure of what there is

`table` is the library's row as it stands, in the problem's units; `planned` is :func:`tiebreak.theory.plan` from the
problem's exact constants and the budget; `tuned` is hindsight, see :mod:`benchmarks.comparison_tuned`. Runs are those
of ``tiebreak compare``: smaller budgets are read off longer runs where a method does not depend on its budget.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import comparison_tuned as hindsight
from tiebreak import methods, theory
from tiebreak.files import atomic
from tiebreak.methods import METHODS, Method
from tiebreak.problems import named
from tiebreak.provenance import stamp
from tiebreak.solver.budget import steps_within
from tiebreak.studies import Comparison, compare
from tiebreak.studies.engines import HERE
from tiebreak.studies.tables import select
from tiebreak.theory.plans import CHOICES
from tiebreak.theory.proved import reduces

OUT = Path(__file__).with_name("results") / "comparison.json"
#: (method, objective) of every plan that there is with a horizon, or, of SDBGD in practice, without one.
PLANS = tuple(
    (method, objective)
    for method, objective, kind in CHOICES
    if kind == "horizon" or objective == "practice"
)


@dataclass(frozen=True)
class Setting:
    """What is compared."""

    problems: tuple[str, ...] = (
        *("paper", "sphere-10", "conditioned-10", "valley-20-multiplicative"),
        *("plateau-10-sampled", "stiff-2-sampled"),
    )
    table: tuple[str, ...] = ("auto", *METHODS)
    plans: tuple[tuple[str, str], ...] = PLANS
    tuned: tuple[str, ...] = tuple(name for name in METHODS if name != "dbgd")
    budgets: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7, 10**8)
    last: int = 10**10  # for the paper's problem alone
    #: The largest budgets that are tuned for, where they are not 10⁶: what is slow to draw gets less. Beyond them the
    #: constants are those of the largest, with batches to match.
    largest: tuple[tuple[str, int], ...] = (
        ("paper", 10**8),
        ("sphere-10", 10**7),
        ("stiff-2-sampled", 10**5),
    )
    runs: int = 12
    first: int = hindsight.FIRST
    later: tuple[tuple[int, float], ...] = hindsight.LATER

    def longest(self, problem: str) -> int:
        """Steps of a run that is still made."""
        return 20_000 if problem.endswith("sampled") else 200_000

    def tuned_for(self, problem: str) -> int:
        """The largest budget that is tuned for."""
        return dict(self.largest).get(problem, 10**6)

    def budgets_of(self, problem: str) -> tuple[int, ...]:
        return (*self.budgets, *([self.last] if problem == "paper" else []))


def nothing_known(constants: Any, budget: int) -> Method:
    """`auto`, as a function: so that nobody translates its units, which it finds itself."""
    return methods.auto


def planner(method: str, objective: str) -> Callable[[Any, int], Method]:
    """A plan as a function of constants and budget. ℓ = L: a sample's error changes no faster than its mean may."""

    @cache
    def made(constants: Any, budget: int) -> Method:
        ell = (
            {"noise_smoothness": (constants.L_f, constants.L_g)}
            if reduces(METHODS[method])
            else {}
        )
        return theory.plan(
            constants, budget=budget, method=method, objective=objective, **ell
        ).method

    made.__name__ = f"{method} {objective}"  # type: ignore[attr-defined]  # a function's, though cached
    return made


def units(s: Setting) -> Iterator[tuple[str, str, str]]:
    """(kind, problem, method): the cheap ones first."""
    yield from (("table", p, m) for p in s.problems for m in s.table)
    yield from (("planned", p, " ".join(plan)) for p in s.problems for plan in s.plans)
    yield from (("tuned", p, m) for p in s.problems for m in s.tuned)


def done(
    s: Setting, kind: str, problem: str, method: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a unit, a row for each budget; and what was left out of it, and why."""
    if kind == "tuned":
        return _hindsight(s, problem, method)
    given: Any = method
    if kind == "planned":
        given = planner(*method.split())
    elif method == "auto":
        given = nothing_known
    rows, left = _judged(s, problem, given, s.budgets_of(problem))
    return [{"kind": kind, "method": method} | row for row in rows], [
        {"kind": kind, "method": method} | each for each in left
    ]


def _judged(
    s: Setting, problem: str, method: Any, budgets: Sequence[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    (contender,) = Comparison([problem], [method]).compared_methods
    steps = {
        b: steps_within(contender.fitted(named(problem), b), b, s.longest(problem) + 1)[
            0
        ]
        for b in budgets
    }
    left = [
        {
            "problem": problem,
            "budget": b,
            "why": f"more than {s.longest(problem):,} steps",
        }
        for b in budgets
        if steps[b] > s.longest(problem)
    ]
    kept = [b for b in budgets if steps[b] <= s.longest(problem)]
    if not kept:
        return [], left
    began = time.process_time()
    asked = Comparison(
        [problem], [method], kept, runs=s.runs, seed=hindsight.SEEDS["judged"], trials=1
    )
    found, rows = compare(asked, engine=HERE), []
    for b in kept:
        here = select(found.runs, budget=b)
        quartiles = [
            _plain(q)
            for q in np.quantile(here["residual"], [0.25, 0.5, 0.75], method="nearest")
        ]
        row = {
            "problem": problem,
            "budget": b,
            "median": quartiles[1],
            "quartiles": [quartiles[0], quartiles[2]],
        }
        row |= {"failed": int(np.sum(~np.isfinite(here["residual"]))), "runs": s.runs}
        for name in ("stationarity_squared", "lower_gradient_squared", "upper_excess"):
            row[name] = _plain(np.median(here[name]))
        rows.append(
            row
            | {
                "steps": int(np.median(here["steps"])),
                "read_from": int(here["read_from"][0]),
            }
        )
    rows[-1]["cpu_seconds"] = round(time.process_time() - began, 1)
    return rows, left


def _plain(value: Any) -> float | None:
    """A number for JSON, with four digits; None where it is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _hindsight(
    s: Setting, problem: str, method: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, left = [], []
    for b in s.budgets_of(problem):
        began = time.process_time()
        if b > s.tuned_for(problem):  # too dear to tune for
            extra: dict[str, Any] = {"tuned_for": s.tuned_for(problem)}
        else:
            best, score = hindsight.tuned(problem, method, b, s.first, s.later)
            extra = {
                "tuned_for": b,
                "tuned_score": _plain(score),
                "at_edge": best.edges(),
            }
        found, out = _judged(s, problem, best, [b])
        setting = {
            name: float(f"{value:.3g}") for name, value in best.setting().items()
        }
        extra |= {
            "setting": setting,
            "cpu_seconds": round(time.process_time() - began, 1),
        }
        rows += [{"kind": "tuned", "method": method} | row | extra for row in found]
        left += [{"kind": "tuned", "method": method} | each for each in out]
    return rows, left


def study(
    s: Setting, output: Path, minutes: float, say: Callable[[str], Any] = print
) -> dict[str, Any]:
    """Do what is not done yet, for so many minutes of CPU time; the file is whole after every unit."""
    trials = {
        name: getattr(hindsight, name)
        for name in ("BOX", "RUNS", "RUNS_AGAIN", "AGAIN", "SEEDS")
    }
    words = json.loads(json.dumps(asdict(s) | trials))  # as it comes back from the file
    whole: dict[str, Any] = {
        "setting": words,
        "sessions": [],
        "done": [],
        "rows": [],
        "left_out": [],
    }
    if output.exists():
        whole = json.loads(output.read_text(encoding="utf-8"))
        if whole["setting"] != words:
            raise SystemExit(
                f"{output} has other settings: move it away, or take the same"
            )
    began, here = time.process_time(), stamp()
    for unit in units(s):
        if list(unit) in whole["done"]:
            continue
        if time.process_time() - began > 60 * minutes:
            break
        if here not in whole["sessions"]:
            whole["sessions"].append(here)
        rows, left = done(s, *unit)
        whole["rows"] += rows
        whole["left_out"] += left
        whole["done"].append(list(unit))
        with atomic(output, "w") as file:
            file.write(_text(whole))
        shown = " ".join(f"{row['median'] or math.inf:.1e}" for row in rows)
        say(f"{(time.process_time() - began) / 60:5.1f} min  {' '.join(unit)}: {shown}")
    return whole


def _text(whole: dict[str, Any]) -> str:
    """JSON with a line for each row: a difference can be read."""
    lists = {"done", "rows", "left_out"}
    parts = [
        f'"{key}": {json.dumps(value, ensure_ascii=False)}'
        for key, value in whole.items()
        if key not in lists
    ]
    for key in sorted(lists):
        lines = ",\n ".join(json.dumps(each, ensure_ascii=False) for each in whole[key])
        parts.append(f'"{key}": [\n {lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of CPU time, about; then it stops"
    )
    parser.add_argument("--output", type=Path, default=OUT)
    asked = parser.parse_args()
    whole = study(
        Setting(), asked.output, asked.minutes, lambda text: print(text, flush=True)
    )
    missing = len([*units(Setting())]) - len(whole["done"])
    if missing:
        print(
            f"{missing} of {len([*units(Setting())])} are missing: run it again to go on"
        )
    from benchmarks import comparison_report

    comparison_report.write(whole)


if __name__ == "__main__":
    main()
