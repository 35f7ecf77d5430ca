"""The summary of an experiment: numbers first, then the same tables and notes for the screen and for Markdown."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tiebreak.experiments.configuration import label, reconstructed
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.tables import (
    Estimate,
    Sheet,
    document,
    estimate,
    scientific,
    short,
    with_error,
)
from tiebreak.provenance import sentence
from tiebreak.result import MEASURES


@dataclass(frozen=True)
class Row:
    """A method's summary: estimates of every measure of a :class:`tiebreak.Point`, at the last and the selected one."""

    method: str
    steps: tuple[int, int]
    calls: tuple[int, int]
    last: Mapping[str, Estimate]
    selected: Mapping[str, Estimate]
    seconds: float


def summarize(outcome: Outcome) -> tuple[Row, ...]:
    """Means over runs and their standard errors, a row for each method.

    >>> from tiebreak.experiments import Experiment, run
    >>> row, = summarize(run(Experiment(methods=["sdbgd"], budget=10**6)))
    >>> row.steps, row.calls
    ((73, 73), (975208, 975208))
    """
    rows = []
    for name in outcome.methods:
        last = outcome.at(name, "last")
        selected = outcome.at(name, "selected")
        at_last, at_selected = (
            {m: estimate(points[m]) for m in MEASURES} for points in (last, selected)
        )
        steps, calls = (
            (int(last[c].min()), int(last[c].max())) for c in ("steps", "calls")
        )
        rows.append(
            Row(name, steps, calls, at_last, at_selected, outcome.seconds[name])
        )
    return tuple(rows)


def sheets(outcome: Outcome) -> tuple[Sheet, Sheet]:
    """The summary as two tables: residuals, and effort and values."""
    rows = summarize(outcome)
    residuals = [
        [
            label(row.method),
            iterate,
            *(
                _scientific(points[m])
                for m in (
                    "direction_squared",
                    "lower_gradient_squared",
                    "stationarity_squared",
                )
            ),
        ]
        for row in rows
        for iterate, points in (("last", row.last), ("selected", row.selected))
    ]
    effort = [
        [
            label(row.method),
            _span(row.steps),
            _span(row.calls),
            *(_plain(row.last[m]) for m in ("upper_value", "lower_value")),
            f"{row.seconds:.2f}",
        ]
        for row in rows
    ]
    runs = outcome.experiment.runs
    over = f"mean ± standard error over {runs} runs" if runs > 1 else "one run"
    return (
        Sheet(
            f"Residuals, {over}",
            ("method", "iterate", "‖d‖²", "‖∇g‖²", "min ‖∇f+λ∇g‖²"),
            residuals,
        ),
        Sheet(
            f"Effort, and values at the last iterate, {over}",
            ("method", "steps", "calls", "f", "g", "seconds"),
            effort,
        ),
    )


def notes(outcome: Outcome) -> list[str]:
    """What a reader must know to read the tables."""
    texts = [
        "‖d‖² is ‖∇f+λ∇g‖² with each method's own λ, so it does not compare methods; the least over all λ ≥ 0, in the "
        "last column, does. Residuals use exact gradients, which are never charged.",
        "The selected iterate is x_{N_K}, drawn with P(N_K = k) ∝ η_k β_k: the one that the theory speaks of. Rare "
        "early ones with large residuals make up much of its mean: few runs may hold none and err by more than shown.",
        _where(outcome),
    ]
    if any(map(reconstructed, outcome.methods)):
        texts.append(
            "† Our reconstruction: the authors' rule for PR-SDBPG and VR-PR-SDBPG is not available to us. It is "
            "pinned down by their complexities and parameters but for where μ enters; among the rules that fit, the "
            "residuals differ from ours by up to a factor of three, and the order of the methods in ‖d‖² and ‖∇g‖² "
            "is the same."
        )
    if outcome.interrupted:
        missing = [
            label(m) for m in outcome.experiment.methods if m not in outcome.methods
        ]
        cut = [
            label(m)
            for m in outcome.methods
            if "interrupted" in outcome.at(m, "last")["status"]
        ]
        parts = [f"; cut short: {', '.join(cut)}"] * bool(cut) + [
            f"; not run: {', '.join(missing)}"
        ] * bool(missing)
        texts.append(f"Interrupted from the keyboard{''.join(parts)}.")
    if outcome.faults:
        more = (
            f" (and {len(outcome.faults) - 3} more)" if len(outcome.faults) > 3 else ""
        )
        texts.append(
            f"Runs that could not go on: {'; '.join(outcome.faults[:3])}{more}."
        )
    return texts


def _where(outcome: Outcome) -> str:
    """Which minimiser of g the runs end nearest to."""
    firsts = np.concatenate([outcome.at(m, "last")["x0"] for m in outcome.methods])
    with np.errstate(all="ignore"):
        periods = np.rint(firsts / (2 * math.pi))
    counts = Counter(int(m) for m in periods if math.isfinite(m))
    names = {m: f"({f'{2 * m}π' if m else '0'}, 0)".replace("-", "−") for m in counts}
    ends = ", ".join(f"{names[m]} in {count}" for m, count in counts.most_common(3))
    return (
        f"Of g's minimisers (2πm, 0), the nearest to the last iterate is {ends} of {len(firsts)} runs. The bilevel "
        "solution is (2π, 0); stationarity is what the methods promise, not the solution."
    )


def markdown(outcome: Outcome) -> str:
    """The whole summary as a Markdown document.

    Examples
    --------
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> markdown(outcome).splitlines()[0]
    '# Summary'
    """
    e = outcome.experiment
    opening = (
        f"The paper's problem, {e.budget:,} calls a run, {e.runs} runs, start ({e.start[0]:g}, {e.start[1]:g}), noise "
        f"{' and '.join(f'{sigma:g}' for sigma in dict.fromkeys(e.noises))} per coordinate, seed {e.seed}:",
        "",
        f"    {e.command}",
        "",
        sentence(outcome.origin),
    )
    return document("Summary", opening, sheets(outcome), notes(outcome))


def _scientific(estimate: Estimate) -> str:
    return with_error(scientific(estimate.mean, 2), estimate.error)


def _plain(estimate: Estimate) -> str:
    return with_error(short(f"{estimate.mean:.5g}"), estimate.error)


def _span(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
