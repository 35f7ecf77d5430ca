"""Where the barrier wins, and where its lead is gone: ``python -m benchmarks.gorge``.

Problems ``stiff-2``, ``stiff-3`` and ``stiff-6``: one, two or five walls that f leans on, and a floor along which g
falls gently and long; noise changes with x (random waves, ℓ = 1). Every method has 10⁶ calls and constants of a
horizon, tuned in hindsight, for each problem and for all methods alike: TRIALS settings, two fifths of them random in a
box, the others random steps from the best one so far, each judged by the larger residual, a mean over the tuning runs
and over the iterates of the last fifth of the budget. (The last iterate alone is so noisy a judge that what was tuned
on it was up to twenty times worse on other runs.) What is reported comes from other runs with the best setting. Rows
that are *told* know which direction is the floor, and take steps there that are longer by a tuned factor: no method,
but a bound on what one could gain that finds the walls out.

``--join a.json b.json`` joins studies of single problems. Then every method's setting for one problem is tried on the
others as well, on their tuning runs, and taken where it is better than what was found there: the searches are short.
"""

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

import tiebreak
from benchmarks.deflated import deflated
from tiebreak import Average, Method, Schedule, Spider, Storm, analogues, minimize, rules
from tiebreak.provenance import origin_of, stamp
from tiebreak.stationarity import residuals as of_gradients

BUDGET, TRIALS, TUNING, JUDGING = 10**6, 48, 16, 24
PROBLEMS = ("stiff-2-phase", "stiff-3-phase", "stiff-6-phase")
WALLS = {"2": "one wall", "3": "two walls", "6": "five walls"}
MEASURED = ("stationarity_squared", "lower_gradient_squared")
OUT = Path(__file__).with_name("results") / "gorge.json"
TABLE = Path(__file__).parents[1] / "docs" / "_tables" / "gorge.md"

#: Ranges, all searched on a logarithmic scale. `push` is ηβ for penalties, the step along ∇g in units of 1/L_g.
COMMON = {"steps": (300, 8000), "share": (0.02, 0.5)}
PENALTY = {"push": (0.1, 2.0), "barrier": (3.0, 60.0)}
BARRIER = {"step_size": (0.03, 10.0), "barrier": (0.03, 3.0), "regularizer": (1e-6, 1e-2)}
MOMENTUM = {"momentum": (1e-3, 1.0)}


def batches(point, evaluations=1.0):
    """Upper and lower batch, so that the budget lasts for about these steps."""
    each = BUDGET / point["steps"] / evaluations
    return {"upper_batch": max(1.0, point["share"] * each), "lower_batch": max(1.0, (1 - point["share"]) * each)}


def penalty(point):
    return {"step_size": point["push"] / point["barrier"], "barrier": point["barrier"]}


def heavy(point):
    """With momentum α a step may be 1/α times as long: ηβα < 4/L_g is where it is stable, about."""
    return {"step_size": point["push"] / point["barrier"] / point["momentum"], "barrier": point["barrier"]}


def barrier(point):
    return {name: point[name] for name in BARRIER}


def plain(rule, laws, estimator=None, evaluations=1.0, told=False):
    """A method of the library from a point of the box; some are told the variance of the noise in ∇g."""

    def make(point, variance):
        found = laws(point) | batches(point, evaluations)
        if "momentum" in point:
            found["momentum"] = point["momentum"]
        extra = {"rate": point["rate"]} if "rate" in point else {}
        if told:
            extra["noise"] = variance / int(found["lower_batch"])
        kind = {} if estimator is None else {"estimator": estimator}
        return Method("tried", rule, Schedule(**found, others=extra), **kind)

    return make


def spider(rule, laws):
    """SPIDER: a share `large` of all calls goes to its refreshes, the rest to the differences between them."""

    def make(point, variance):
        each = batches(point)
        period = max(2, round(point["period"]))
        found = laws(point) | {"period": period}
        for level in ("upper", "lower"):
            found[f"{level}_refresh"] = max(1.0, point["large"] * period * each[f"{level}_batch"])
            found[f"{level}_batch"] = max(1.0, (1 - point["large"]) * each[f"{level}_batch"] / 2)
        return Method("tried", rule, Schedule(**found), Spider())

    return make


REFRESH = {"period": (3, 300), "large": (0.1, 0.7)}
AVERAGED = {"rate": (3e-3, 1.0)}
TOLD = {"push": (0.03, 2.0), "stretch": (1.0, 100.0)}
DEFLATED = {"push": (0.1, 60.0), "shorten": (1.0, 60.0), "rank": (1.0, 5.99), "memory": (1e-3, 0.1)}
#: name → (the box, how a point of it becomes a method).
METHODS = {
    "SDBGD": (COMMON | BARRIER, plain(rules.sdbgd, barrier)),
    "STORM-SDBGD": (COMMON | BARRIER | MOMENTUM, plain(rules.sdbgd, barrier, Storm(), 2.0)),
    "penalty": (COMMON | PENALTY, plain(rules.constant, penalty)),
    "SPIDER-penalty": (COMMON | PENALTY | REFRESH, spider(rules.constant, penalty)),
    "STORM-penalty": (COMMON | PENALTY | MOMENTUM, plain(rules.constant, penalty, Storm(), 2.0)),
    "momentum penalty": (
        COMMON | PENALTY | {"push": (0.1, 3.0), "momentum": (0.02, 1.0)},
        plain(rules.constant, heavy, Average()),
    ),
    "averaged λ": (COMMON | BARRIER | AVERAGED, plain(analogues.Averaged(lagged=True), barrier)),
    "averaged λ less noise": (COMMON | BARRIER | AVERAGED, plain(analogues.Averaged(lagged=True), barrier, told=True)),
    "dual λ": (COMMON | BARRIER | {"rate": (1e-4, 10.0)}, plain(analogues.Dual(), barrier)),
    "deflated penalty": (COMMON | PENALTY | DEFLATED, None),
    "deflated STORM-penalty": (COMMON | PENALTY | DEFLATED | MOMENTUM, None),
    "penalty, walls told": (COMMON | PENALTY | TOLD, plain(rules.constant, penalty)),
    "SPIDER-penalty, walls told": (COMMON | PENALTY | REFRESH | TOLD, spider(rules.constant, penalty)),
    "STORM-penalty, walls told": (COMMON | PENALTY | MOMENTUM | TOLD, plain(rules.constant, penalty, Storm(), 2.0)),
}


class Stretched:
    """An oracle in other coordinates: of x ↦ h(S x), S diagonal. Descent there is descent on h along S²∇h."""

    def __init__(self, oracle, scales):
        self._oracle, self._scales = oracle, scales
        self.vectorized, self.block_size = oracle.vectorized, oracle.block_size
        self.sample, self.sample_block = oracle.sample, oracle.sample_block

    def gradient(self, x, token):
        return self._oracle.gradient(self._scales * x, token) * self._scales


def residuals(problem, name, point, runs, seed):
    """Both residuals, means over the last fifth of the budget, of every run; infinite where one is not finite."""
    with np.errstate(all="ignore"):
        found = (_of_prototype if name.startswith("deflated") else _of_method)(problem, name, point, runs, seed)
    return [np.where(np.isfinite(column), column, np.inf) for column in found]


def _of_prototype(problem, name, point, runs, seed):
    storm = {"momentum": point["momentum"]} if "momentum" in point else {}
    each = batches(point, 2.0 if storm else 1.0)
    lower = each["lower_batch"] if storm else each["lower_batch"] / 2
    sizes = {"upper_batch": int(each["upper_batch"]), "lower_batch": max(1, int(lower))}
    options = {"shorten": point["shorten"], "rank": min(int(point["rank"]), len(problem.x0) - 1)}
    options |= {"rate": point["memory"], "budget": BUDGET, "runs": runs, "seed": seed, **storm}
    try:
        return deflated(problem, **penalty(point), **sizes, **options)
    except np.linalg.LinAlgError:  # what is not finite has no eigenvectors
        return (np.full(runs, np.inf),) * 2


def _of_method(problem, name, point, runs, seed):
    method = METHODS[name][1](point, problem.constants.sigma_g**2)
    scales = np.append(np.ones(len(problem.x0) - 1), point.get("stretch", 1.0) ** 0.5)
    levels = [problem.upper, problem.lower]
    if "stretch" in point:
        levels = [Stretched(oracle, scales) for oracle in levels]
    options = {"budget": BUDGET, "runs": runs, "seed": seed, "record": 8, "keep_iterates": "stretch" in point}
    history = minimize(*levels, problem.x0 / scales, method=method, **options).history
    late = history.calls > 0.8 * BUDGET
    if not late.any():  # a refresh that did not fit ended it
        return [np.full(runs, np.inf)] * 2
    if "stretch" in point:  # measured in the problem's own coordinates
        x = history.x[late] * scales
        a, b = problem.upper.exact_gradient(x), problem.lower.exact_gradient(x)
        each = of_gradients(a, b, lambda fg, gg: 0 * fg)
        return [getattr(each, column).mean(axis=0) for column in MEASURED]
    return [history[column][late].mean(axis=0) for column in MEASURED]


def larger(both):
    return float(max(np.mean(column) for column in both))


def tuned(problem, name, trials, rng):
    """The best point and its score. The boxes end hard: a step beyond them is put back on their edge."""
    box = METHODS[name][0]
    low, high = (np.log([edge[i] for edge in box.values()]) for i in range(2))
    best, least = None, math.inf
    for trial in range(trials):
        spread = 0.25 * (1 - trial / trials) + 0.03
        fresh = best is None or trial < 2 * trials // 5
        logs = rng.uniform(low, high) if fresh else best + spread * (high - low) * rng.standard_normal(len(low))
        logs = np.clip(logs, low, high)
        point = dict(zip(box, np.exp(logs).tolist(), strict=True))
        score = larger(residuals(problem, name, point, TUNING, seed=1))
        if score < least or best is None:
            best, least, chosen = logs, score, point
    edges = [n for n, v, a, b in zip(box, best, low, high, strict=True) if min(v - a, b - v) < 0.02 * (b - a)]
    return chosen, least, edges


def studied(label, name, trials):
    """The row of a method on a problem."""
    began, problem = time.process_time(), tiebreak.problems.named(label)
    point, least, edges = tuned(problem, name, trials, np.random.default_rng(0))
    row = {"problem": label, "method": name} | judged(problem, name, point)
    row |= {"tuned": least, "setting": {key: float(f"{value:.3g}") for key, value in point.items()}}
    return row | {"at the edge of its box": edges, "cpu seconds": round(time.process_time() - began, 1)}


def judged(problem, name, point):
    """What a setting reaches on the runs that are reported."""
    both = residuals(problem, name, point, JUDGING, seed=2)
    return {
        "larger": larger(both),
        "stationarity_squared": float(np.mean(both[0])),
        "lower_gradient_squared": float(np.mean(both[1])),
        "quartiles of the larger": [float(q) for q in np.quantile(np.maximum(*both), [0.25, 0.5, 0.75])],
    }


def shared(rows):
    """Every method's settings, those found on the other problems too: the best of them on the tuning runs is judged."""
    for row in rows:
        problem, name = tiebreak.problems.named(row["problem"]), row["method"]
        others = [other for other in rows if other["method"] == name and other is not row]
        scores = {
            other["problem"]: larger(residuals(problem, name, other["setting"], TUNING, seed=1)) for other in others
        }
        best = min(scores, key=scores.get, default=None)
        if best is not None and scores[best] < row["tuned"]:
            setting = next(other["setting"] for other in others if other["problem"] == best)
            yield row | judged(problem, name, setting) | {"tuned": scores[best], "setting": setting, "from": best}
        else:
            yield row


def study(problems, names, trials, workers):
    """The rows, each as soon as it is there."""
    pairs = [(label, name) for label in problems for name in names]
    with ProcessPoolExecutor(workers) as pool:
        for made in as_completed([pool.submit(studied, *pair, trials) for pair in pairs]):
            row = made.result()
            line = f"{row['problem']:15} {row['method']:26} {row['larger']:.2e}  {row['cpu seconds']} s"
            print(line, row["at the edge of its box"], flush=True)
            yield row


def table(whole):
    """The larger residual of each method on each problem, with quartiles, as Markdown."""
    problems = list(dict.fromkeys(row["problem"] for row in whole["rows"]))
    found = {(row["problem"], row["method"]): row for row in whole["rows"]}
    walls = {name: WALLS[name.split("-")[1]] for name in problems}
    lines = ["| method | " + " | ".join(f"{walls[p]}: mean | middle half of the runs" for p in problems) + " |"]
    lines.append("|---" * (1 + 2 * len(problems)) + "|")
    for name in METHODS:
        cells = []
        for p in problems:
            low, _, high = found[p, name]["quartiles of the larger"]
            edge = "†" if "from" in found[p, name] else "*" if found[p, name]["at the edge of its box"] else ""
            cells += [f"{found[p, name]['larger']:.1e}{edge}", f"{low:.1e} … {high:.1e}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def join(paths, output):
    """One file of several."""
    studies = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if any(each["setting"] != studies[0]["setting"] for each in studies):
        raise SystemExit("the studies have different settings: they cannot be put together")
    whole = {"setting": studies[0]["setting"], "studies": [origin_of(each) for each in studies if "date" in each]}
    rows = [row for each in studies for row in each["rows"]]
    rows.sort(key=lambda row: (PROBLEMS.index(row["problem"]), list(METHODS).index(row["method"])))
    whole |= {**stamp(), "rows": list(shared(rows))}
    output.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    TABLE.write_text(table(whole), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", help="some of them, with ; between two")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--join", type=Path, nargs="*", help="studies to put together instead")
    asked = parser.parse_args()
    if asked.join:
        join(asked.join, asked.output)
        return
    problems, names = asked.problems.split(","), (asked.methods or ";".join(METHODS)).split(";")
    setting = {"budget": BUDGET, "trials": asked.trials, "tuning runs": TUNING, "judging runs": JUDGING}
    setting |= {"hindsight": "constants tuned for each problem and method on other runs of the same problem"}
    found = {"setting": setting, **stamp(), "rows": []}
    for row in study(problems, names, asked.trials, asked.workers):
        found["rows"].append(row)
        found["rows"].sort(key=lambda r: (problems.index(r["problem"]), names.index(r["method"])))
        asked.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.output == OUT:
        TABLE.write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
