"""What a verification says, as tables and notes for the screen and for Markdown."""

from collections.abc import Iterable

import numpy as np

from tiebreak.experiments.evidence import ERRORS, RESIDUALS
from tiebreak.experiments.tables import (
    SYMBOLS,
    Sheet,
    chosen,
    document,
    scientific,
    with_error,
)
from tiebreak.experiments.verification import Findings
from tiebreak.provenance import sentence

PROSE = ("schedule", "residual")  # columns of words


def sheets(findings: Findings) -> tuple[Sheet, ...]:
    """Theorem 1 in detail, all bounds at a glance, the rates."""
    if not findings.slopes:  # one case of the user's
        return _theorem(findings, "own"), _shares(findings)
    return _theorem(findings, "paper"), _shares(findings), _rates(findings)


def _theorem(findings: Findings, group: str) -> Sheet:
    table = chosen(findings.bounds, group=group)
    rows = []
    for schedule in dict.fromkeys(table["schedule"]):
        for K in chosen(
            table, schedule=schedule, estimate="sampled", residual="direction_squared"
        )["K"]:
            row = [str(schedule), f"{K:,}"]
            here = chosen(table, schedule=schedule, K=K)
            for name in RESIDUALS:
                means = [
                    chosen(here, residual=name, estimate=e)["mean"][0]
                    for e in ("weighted", "sampled")
                ]
                row += map(
                    scientific, [*means, chosen(here, residual=name)["bound"][0]]
                )
            rows.append([*row, _worst(here["verdict"])])
    header = (
        "schedule",
        "K",
        "E‖d‖²",
        "at x_N",
        "bound",
        "E‖∇g‖²",
        "at x_N",
        "bound",
        "verdict",
    )
    where = "the paper's problem" if group == "paper" else str(table["problem"][0])
    return Sheet(f"What is proved, on {where}", header, rows)


def _shares(findings: Findings) -> Sheet:
    bounds = findings.bounds
    lemma = findings.deviations
    rows = []
    keys = zip(
        *(bounds[name].tolist() for name in ("group", "dimension", "schedule")),
        strict=True,
    )
    for group, dimension, schedule in dict.fromkeys(keys):
        key = {"group": group, "dimension": dimension, "schedule": schedule}
        here = chosen(bounds, **key)
        there = (
            chosen(lemma, **key)
            if lemma
            else {"ratio": np.zeros(0), "verdict": np.zeros(0, dtype=str)}
        )
        own = str(here["problem"][0])
        name = (
            own
            if group == "own"
            else group
            if group in ("paper", "worst case")
            else f"random, {group} noise"
        )
        largest = [
            chosen(here, residual=r, estimate="weighted")["ratio"].max()
            for r in RESIDUALS
        ]
        deviation = f"{there['ratio'].max():.1%}" if len(there["ratio"]) else "–"
        words = np.concatenate([here["verdict"], there["verdict"]])
        counts = [
            str(dimension),
            schedule,
            str(len(set(here["problem"]))),
            f"{len(words):,}",
        ]
        rows.append(
            [
                name,
                *counts,
                *(f"{share:.1%}" for share in largest),
                deviation,
                _worst(words),
            ]
        )
    header = (
        "problem",
        "dim",
        "schedule",
        "count",
        "checks",
        "‖d‖²",
        "‖∇g‖²",
        "‖d−d̂‖²",
        "verdict",
    )
    return Sheet("The largest share of each bound that was measured", header, rows)


def _rates(findings: Findings) -> Sheet:
    t = findings.slopes
    rows = []
    for i, name in enumerate(t["residual"].tolist()):
        log = " (log)" if t["log"][i] else ""
        measured = [
            with_error(f"{t[e][i]:.3f}", t[f"{e}_error"][i])
            for e in ("weighted", "last")
        ]
        rows.append(
            [
                f"{t['a'][i]:g}",
                SYMBOLS[name],
                f"{t['corollary'][i]:g}{log}",
                f"{t['bound'][i]:.3f}",
                *measured,
            ]
        )
    steps = findings.verification.sizes.rate_steps
    title = f"Rates: the power of 1/K, over K from {steps // 10:,} to {steps:,}"
    return Sheet(
        title,
        (
            "a",
            "residual",
            "Corollary 1",
            "the bound's own",
            "measured at x_N",
            "measured at x_K",
        ),
        rows,
    )


def _worst(words: Iterable[str]) -> str:
    return next((word for word in ("FAIL", "open") if word in set(words)), "PASS")


def notes(findings: Findings) -> list[str]:
    """What a reader must know to read the tables."""
    counts = findings.verdicts
    v = findings.verification
    steeper = (
        [
            f"{SYMBOLS[name]} at a = {a:g}"
            for a, name, measured, promised in zip(
                *(
                    findings.slopes[c].tolist()
                    for c in ("a", "residual", "weighted", "corollary")
                ),
                strict=True,
            )
            if measured > promised + 0.05
        ]
        if findings.slopes
        else []
    )
    texts = [
        f"{counts['PASS']:,} comparisons passed, {counts['FAIL']} failed, {counts['open']} are open. A mean passes if "
        f"it is below its bound by {ERRORS} standard errors or more, and fails if it is above by as many.",
        f"E is the mean over {v.runs} runs of Σ w_k r_k / Σ w_k, the expectation over N_K taken exactly. x_N is "
        "the iterate that the solver drew, one a run: rare early iterates make up much of its mean, so it can refute "
        "a bound, and not do much more.",
        "Bounds hold for the worst problem with these constants, and these problems are not the worst."
        + (
            " On the paper's, ‖∇g‖² never exceeds 1.37: a bound above that says nothing there. It is true all the same."
            if v.problem is None
            else ""
        ),
        f"‖d−d̂‖² is the stability lemma, E‖d−d̂‖² ≤ τ², from {v.sizes.draws:,} mini-batches at each of eight iterates "
        "of a step; the share is that of the worst iterate.",
        "The corollary's powers are promises for the worst case, so measured ones may be steeper"
        + (f"; here {', '.join(steeper)}" if steeper else "")
        + ". At x_N they cannot be much more than 2a: the start stays in the mean, with a weight that falls as "
        "1/Σ η_kβ_k ~ K^−2a. The last iterate, of which the theorem does not speak, is much better. (log): times log "
        "K.",
    ]
    if not findings.deviations:
        texts = [text for text in texts if not text.startswith("‖d−d̂‖²")]
    if not findings.slopes:
        texts = [
            text for text in texts if not text.startswith("The corollary's powers")
        ]
    if v.constants is not None:
        texts.append(
            f"The constants are those of --constants {v.constants}, not the problem's own: a FAIL may be theirs."
        )
    return texts


def report(findings: Findings) -> str:
    """All of it as a Markdown document."""
    opening = (
        "**PASS**" if findings.passed else "**FAIL**: a bound is violated.",
        "",
        f"    {findings.verification.command}",
        "",
        sentence(findings.origin),
    )
    return document("Verification", opening, sheets(findings), notes(findings), PROSE)
