"""Measures what the documentation quotes: ``python docs/measure.py`` rewrites the tables in ``docs/_tables``.

Takes less than a minute. Names of tables as arguments measure only those.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tiebreak
from tiebreak import (
    Average,
    Method,
    Minibatch,
    Power,
    Result,
    Schedule,
    Storm,
    methods,
    rules,
    schedules,
)
from tiebreak.theory import estimate_constants, plan, residual_bounds
from tiebreak.theory.complexity import TABLE

TABLES = Path(__file__).parent / "_tables"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PAPER_METHODS = ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg")
RESIDUALS = ("direction_squared", "stationarity_squared", "lower_gradient_squared")


def solve(
    method: Any,
    problem: Any = None,
    *,
    runs: int = 400,
    budget: int | None = 10**8,
    **more: Any,
) -> Result:
    """The paper's problem with the paper's budget, if nothing else is said."""
    chosen = problem or tiebreak.problems.paper()
    limits = {"record": None, "seed": 0, "budget": budget} | more
    return tiebreak.minimize(
        chosen.upper, chosen.lower, chosen.x0, method=method, runs=runs, **limits
    )


def means(result: Result, names: Sequence[str] = RESIDUALS) -> list[str]:
    """Means over runs of what is known of the last iterate."""
    return [number(np.mean(getattr(result.last, name))) for name in names]


def label(method: Method) -> str:
    """The method's name, with a dagger where its rule is our reconstruction."""
    return method.name + "†" * (method.rule is rules.penalized)


def number(value: float) -> str:
    """Two digits: 1.4e-2 for a small number, 0.95 for others."""
    if value == 0 or value >= 0.095:
        return f"{value:#.2g}".rstrip(".")
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def comparison() -> Iterable[Sequence[str]]:
    """The paper's experiment, 10 runs, and the plain baseline beside it."""
    yield (
        "method",
        "steps",
        "upper calls",
        "lower calls",
        "‖d‖², own λ",
        "min over λ",
        "‖∇g‖²",
    )
    for name in (*PAPER_METHODS, "penalty"):
        result = solve(name, runs=10)
        counts = (result.steps[0], result.upper_calls[0], result.lower_calls[0])
        yield (
            label(methods.get(name)),
            *(f"{count:,}" for count in counts),
            *means(result),
        )


def many_runs() -> Iterable[Sequence[str]]:
    """The same with 400 runs, beside the figures of an independent program."""
    independent = {
        "sdbgd": ("1.43e-2", "0.95"),
        "sdbpg": ("6.0e-3", "0.65"),
        "pr_sdbpg": ("8.4e-4", "7.6e-2"),
    }
    independent["vr_pr_sdbpg"] = ("9.3e-5", "3.7e-2")
    yield (
        "method",
        "‖d‖²",
        "‖d‖², independent program",
        "‖∇g‖²",
        "‖∇g‖², independent program",
        "min over λ",
    )
    for name in PAPER_METHODS:
        own, least, lower = means(solve(name))
        yield (
            label(methods.get(name)),
            own,
            independent[name][0],
            lower,
            independent[name][1],
            least,
        )


def constants() -> Iterable[Sequence[str]]:
    """The same exponents with other constants: what the choice of two numbers does."""
    yield "method", "constants", "steps", "‖d‖², own λ", "min over λ", "‖∇g‖²"

    def row(method: Method, text: str) -> Sequence[str]:
        result = solve(method)
        return label(method), text, f"{result.steps[0]:,}", *means(result)

    for step_size, barrier, text in (
        (0.05, 0.5, "η₀ = 0.05, β₀ = 0.5 (the paper's)"),
        (1 / 6, 1, "η₀ = 1/6, β₀ = 1"),
    ):
        for name in PAPER_METHODS:
            method = methods.get(name)
            eta, beta = (
                Power(c, getattr(method.schedule, n).exponent)
                for c, n in ((step_size, "step_size"), (barrier, "barrier"))
            )
            yield row(
                method.replace(
                    schedule=method.schedule.replace(step_size=eta, barrier=beta)
                ),
                text,
            )
    smaller = schedules.anytime(1 / 4, L_f=1, L_g=1, barrier=1, lower_batch=0.01)
    yield row(
        methods.sdbgd.replace(schedule=smaller), "η₀ = 1/6, β₀ = 1, B_g = 0.01 t^(5/2)"
    )
    storm = Schedule(
        step_size=Power(1 / 6, -1 / 4),
        barrier=Power(1, -1 / 4),
        regularizer=Power(1, -1),
        momentum=Power(1, -1 / 2),
        upper_batch=Power(1, 1 / 2),
        lower_batch=Power(1, 1),
    )
    yield row(
        Method("SDBGD + STORM", rules.sdbgd, storm, Storm()),
        "η₀ = 1/6, β₀ = 1, ρ = 1/t, α = t^(−1/2), B_f = √t, B_g = t",
    )


def add_to_direction(
    fg: Any, gg: Any, barrier: Any, regularizer: Any, penalty: Any
) -> Any:
    """d = ∇f + (λ + μ)∇g, λ the SDBPG multiplier."""
    return penalty + rules.sdbpg(fg, gg, barrier, regularizer)


def add_to_upper(fg: Any, gg: Any, barrier: Any, regularizer: Any, penalty: Any) -> Any:
    """∇f + μ∇g in the place of ∇f, in the multiplier too."""
    return penalty + rules.sdbpg(fg + penalty * gg, gg, barrier, regularizer)


def sensitivity() -> Iterable[Sequence[str]]:
    """Four readings of the PR rule, each with mini-batches and with STORM."""
    readings = (
        (
            "adopted: [β(gg+γ) − fg]₊ / (gg + 1/μ)",
            rules.penalized,
            "8.4e-4 / 7.6e-2",
            "9.3e-5 / 3.7e-2",
        ),
        ("add μ∇g to d", add_to_direction, "3.1e-4 / 4.7e-2", "4.9e-5 / 2.6e-2"),
        ("replace ∇f by ∇f + μ∇g", add_to_upper, "3.4e-4 / 4.8e-2", "5.1e-5 / 2.7e-2"),
        ("λ = β", rules.constant, "1.4e-3 / 8.9e-2", "1.2e-4 / 4.0e-2"),
    )
    yield "reading", "PR", "PR, independent program", "VR", "VR, independent program"
    for text, rule, *independent in readings:
        row = [text]
        for base, other in zip(
            (methods.pr_sdbpg, methods.vr_pr_sdbpg), independent, strict=True
        ):
            row += [
                " / ".join(
                    means(
                        solve(base.replace(rule=rule)),
                        ("direction_squared", "lower_gradient_squared"),
                    )
                ),
                other,
            ]
        yield row


CAPPED_STEP, CAPPED_BARRIER, CAPPED_REGULARIZER = Power(0.05, -1 / 4), 0.5, 1e-3
SIZES = (2, 16, 256)


def capped() -> Iterable[Sequence[str]]:
    """Constant batches: mean ‖∇g‖² over the last fifth of 6000 steps."""
    rows: tuple[tuple[str, Any, Any, Any], ...] = (
        ("SDBGD, mini-batch", rules.sdbgd, CAPPED_BARRIER, Minibatch()),
        ("fixed weight 0.5", rules.constant, CAPPED_BARRIER, Minibatch()),
        ("growing weight 0.5 t^(1/4)", rules.constant, Power(0.5, 1 / 4), Minibatch()),
        ("SDBGD, Average(0.02)", rules.sdbgd, CAPPED_BARRIER, Average(0.02)),
        (
            "SDBGD, Storm(0.02), two calls a sample",
            rules.sdbgd,
            CAPPED_BARRIER,
            Storm(0.02),
        ),
    )
    yield "method", *(f"batch {size}" for size in SIZES)
    for text, rule, barrier, estimator in rows:
        yield (
            text,
            *(
                number(
                    last_fifth(rule, barrier, estimator, size)[
                        "lower_gradient_squared"
                    ].mean()
                )
                for size in SIZES
            ),
        )
    yield (
        "mini-batch, predicted by the equation above",
        *(number(stall(size)) for size in SIZES),
    )


def scatter() -> Iterable[Sequence[str]]:
    """The multipliers that were used in these runs: mean, and standard deviation over mean."""
    yield "method", *(f"batch {size}" for size in SIZES)
    for text, estimator in (
        ("SDBGD, mini-batch", Minibatch()),
        ("SDBGD, Average(0.02)", Average(0.02)),
    ):
        used = [
            last_fifth(rules.sdbgd, CAPPED_BARRIER, estimator, size)["multiplier"]
            for size in SIZES
        ]
        yield (
            text,
            *(
                f"{values.mean():.1f}, {values.std() / values.mean():.0%}"
                for values in used
            ),
        )


def last_fifth(rule: Any, barrier: Any, estimator: Any, size: int) -> dict[str, Any]:
    """The history of 6000 steps with constant batches, 100 runs, but for its first four fifths."""
    schedule = Schedule(
        CAPPED_STEP, barrier, CAPPED_REGULARIZER, upper_batch=size, lower_batch=size
    )
    method = Method("capped", rule, schedule, estimator)
    history = solve(method, runs=100, budget=None, steps=6000, record=10).history
    late = (history.step >= 4800) & (history.step < 6000)
    return {
        name: history[name][late] for name in ("lower_gradient_squared", "multiplier")
    }


def stall(size: int) -> float:
    """‖∇g‖² where β‖∇g‖(‖∇g‖² + ν²) = (ν² + ρ)‖∇f‖, with ‖∇f‖ = 1."""
    noise = 2 * 0.5**2 / size
    roots = np.roots(
        [CAPPED_BARRIER, 0, CAPPED_BARRIER * noise, -(noise + CAPPED_REGULARIZER)]
    )
    return float(next(root.real for root in roots if abs(root.imag) < 1e-12)) ** 2


class Multiplicative:
    """Noise that scales with the gradient: every sample is ∇(x) · (1 + ε), ε ~ N(0, σ² I)."""

    vectorized = True

    def __init__(self, exact: Any, sigma: float) -> None:
        self.exact, self.sigma = exact, sigma

    def sample(self, rng: np.random.Generator, size: int) -> Any:
        return self.sigma * rng.standard_normal(2) / np.sqrt(size)

    def gradient(self, x: Any, token: Any) -> Any:
        return self.exact.exact_gradient(x) * (1 + token)

    def exact_gradient(self, x: Any) -> Any:
        return self.exact.exact_gradient(x)


def noise() -> Iterable[Sequence[str]]:
    """Additive noise makes the differences of STORM noise-free; here is the other kind."""
    problem = tiebreak.problems.paper()
    scaled = tiebreak.problems.Problem(
        "multiplicative",
        Multiplicative(problem.upper, 1.0),
        Multiplicative(problem.lower, 1.0),
        problem.x0,
    )
    yield (
        "method",
        "additive, σ = 0.5: ‖d‖² / min over λ / ‖∇g‖²",
        "multiplicative, σ = 1: ‖d‖² / min over λ / ‖∇g‖²",
    )
    for name in PAPER_METHODS:
        yield (
            label(methods.get(name)),
            *(" / ".join(means(solve(name, p, runs=100))) for p in (problem, scaled)),
        )


def bounds() -> Iterable[Sequence[str]]:
    """Theorem 1 at the steps that the budget allows, beside what was measured."""
    result, problem = solve("sdbgd"), tiebreak.problems.paper()
    steps = int(result.steps[0])
    proved = residual_bounds(methods.sdbgd.schedule, problem.constants, steps)
    largest = 1 + np.exp(-1)  # of sin² x₁ + x₂² exp(−x₂²)
    yield (
        "K = " + str(steps),
        "Theorem 1",
        "measured at x_{N_K}",
        "largest possible value",
    )
    yield (
        "E ‖∇g‖²",
        number(proved.lower_gradient_squared),
        number(result.selected.lower_gradient_squared.mean()),
        f"{largest:.2f}",
    )
    yield (
        "E ‖d‖²",
        number(proved.direction_squared),
        number(result.selected.direction_squared.mean()),
        "–",
    )


def plans() -> Iterable[Sequence[str]]:
    """The paper's rows and the plain baseline beside plans, 100 runs."""
    known = tiebreak.problems.paper().constants
    yield (
        "method",
        "steps",
        "‖d‖², own λ",
        "min over λ",
        "‖∇g‖²",
        "proved: E ‖d‖²",
        "proved: E ‖∇g‖²",
    )
    for name in (*PAPER_METHODS, "penalty"):
        result = solve(name, runs=100)
        yield label(methods.get(name)), f"{result.steps[0]:,}", *means(result), "", ""
    for text, method, objective, smooth, runs in (
        ("SDBGD, plan for the bound", "sdbgd", "bound", None, 100),
        ("SDBGD, plan for practice", "sdbgd", "practice", None, 100),
        ("Penalty, plan for the bound", "penalty", "bound", None, 100),
        (
            "SPIDER-Penalty, plan for the bound, ℓ = 1 (4 runs)",
            "spider_penalty",
            "bound",
            1.0,
            4,
        ),
        (
            "STORM-Penalty, plan for the bound, ℓ = 1 (4 runs)",
            "storm_penalty",
            "bound",
            1.0,
            4,
        ),
        ("Penalty, plan for practice", "penalty", "practice", None, 100),
    ):
        chosen = plan(
            known,
            budget=10**8,
            method=method,
            objective=objective,
            noise_smoothness=smooth,
        )
        result = solve(chosen, runs=runs, steps=chosen.steps)
        proved = (
            number(chosen.bounds.direction_squared),
            number(chosen.bounds.lower_gradient_squared),
        )
        yield text, f"{chosen.steps:,}", *means(result), *proved


def predictions() -> Iterable[Sequence[str]]:
    """What plans for practice expect of the larger residual, from exact and from estimated constants, and what came."""
    seen = (
        "paper",
        "valley-2",
        "flat-10",
        "conditioned-10",
        "random-10",
        "random-20-multiplicative",
    )
    unseen = (
        "islands-100",
        "valley-20-multiplicative",
        "sphere-100",
        "plateau-100",
        "saddle-100-multiplicative",
    )
    unseen += ("conditioned-50", "random-30-multiplicative", "random-50")
    yield (
        "problem",
        "plan",
        "expected",
        "at worst",
        "measured",
        "smallest … largest of 8 runs",
        "ratio",
    )
    for name in (*seen, *unseen):
        problem = tiebreak.problems.named(name)
        guessed = estimate_constants(problem, seed=0)
        for text, method, known in (
            ("penalty", "penalty", problem.constants),
            ("penalty, estimates", "penalty", guessed),
            ("SDBGD", "sdbgd", problem.constants),
        ):
            chosen = plan(known, budget=10**7, method=method, objective="practice")
            result = tiebreak.minimize(
                problem.upper,
                problem.lower,
                problem.x0,
                method=chosen,
                budget=10**7,
                runs=8,
                seed=0,
                record=None,
            )
            found = np.maximum(
                result.last.direction_squared, result.last.lower_gradient_squared
            )
            larger = max(
                result.last.direction_squared.mean(),
                result.last.lower_gradient_squared.mean(),
            )
            expected = chosen.prediction.larger
            star = "" if name in seen else " *"
            spread = f"{number(found.min())} … {number(found.max())}"
            worst = number(max(expected, chosen.prediction.at_worst))
            yield (
                name + star,
                text,
                number(expected),
                worst,
                number(larger),
                spread,
                f"{larger / expected:.2g}",
            )


def guarantees() -> Iterable[Sequence[str]]:
    """Rule, assumptions and cost of each method, from the rules' docstrings and the table of complexities."""
    yield (
        "method",
        "λ",
        "estimator",
        "assumption",
        "steps",
        "upper calls",
        "lower calls",
    )
    proved = {row.key: row for row in TABLE}
    for key, method in methods.NAMED.items():
        summary = (getattr(method.rule, "__doc__", None) or "").partition("\n")[0]
        formula = re.split("[,:;]", summary)[0]
        row = proved.get(key)
        if row is None:
            cells = ["no theorem", "–", "–", "–"]
        else:
            orders = (row.iterations, row.upper, row.lower)
            assumption = row.assumption.partition(" (")[0].replace("none", "")
            if row.setting == "deterministic":
                assumption = "exact gradients"
            cells = [assumption, *(rf"$\varepsilon^{{-{n:g}}}$" for n in orders)]
        yield f"`{key}`", formula, type(method.estimator).__name__, *cells


def rates() -> Iterable[Sequence[str]]:
    """Powers of 1/ε near the worst case, and the shares of the bounds that were reached, from benchmarks/results."""
    names = ("direction_squared", "lower_gradient_squared")
    yield (
        "method",
        "steps",
        "upper calls",
        "lower calls",
        "‖∇Φ‖² / bound",
        "‖∇g‖² / bound",
    )
    record = json.loads((RESULTS / "rates.json").read_text(encoding="utf-8"))
    for key, exponents in record["exponents"].items():
        rows = [row for row in record["rows"] if row["method"] == key]
        cells = [f"{exponent:.2f}" for exponent in exponents.values()]
        for name in names:
            shares = [row[name] / row[f"{name}_bound"] for row in rows]
            cells.append(f"{min(shares):.2f} to {max(shares):.2f}")
        yield f"`{key}`", *cells


def waiting() -> Iterable[Sequence[str]]:
    """What a step on a GPU takes over two backward passes and the base's step, from benchmarks/results."""
    record = json.loads((RESULTS / "waiting.json").read_text(encoding="utf-8"))
    by_case: dict[tuple[str, str], dict[str, str]] = {}
    for model, base, method, _, waited, _, grouped in record["tables"][0]["rows"]:
        share = grouped if waited is None else waited
        by_case.setdefault((model, method), {})[base] = f"{share:.1%}"
    yield "model", "step", "SGD", "AdamW"
    for (model, method), shares in by_case.items():
        if "two backward" not in method and "ignore" not in method:
            yield model, method, shares.get("SGD", "–"), shares.get("AdamW", "–")


def write(name: str, rows: Iterable[Sequence[str]]) -> None:
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"{name}\n{text}", flush=True)


MEASUREMENTS: dict[str, Callable[[], Iterable[Sequence[str]]]] = {
    f.__name__: f
    for f in (
        comparison,
        many_runs,
        constants,
        sensitivity,
        capped,
        scatter,
        noise,
        bounds,
        plans,
        predictions,
        guarantees,
        rates,
        waiting,
    )
}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or MEASUREMENTS:
        write(chosen, MEASUREMENTS[chosen]())
