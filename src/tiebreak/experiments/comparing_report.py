"""What a comparison says, as tables and notes for the screen and for Markdown."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tiebreak.experiments.compared import Compared
from tiebreak.experiments.comparing_values import value_notes, values
from tiebreak.experiments.contenders import PLANNED, scales
from tiebreak.experiments.profiles import FLOOR, profile
from tiebreak.experiments.tables import (
    SUPERSCRIPTS,
    Sheet,
    chosen,
    document,
    scientific,
    with_error,
)
from tiebreak.provenance import sentence

PROSE = ("best",)  # a column of words
#: The τ at which tables show the profiles.
FACTORS = (1.0, 2.0, 10.0)


def sheets(found: Compared) -> tuple[Sheet, ...]:
    """The profiles at a few places, then for every budget the best on each problem and all residuals."""
    budgets = found.comparison.budgets
    shown = values(
        found, f"f / g at the last iterate, at {calls(budgets[-1])}", budgets[-1]
    )
    return (
        _profiles(found),
        *(_best(found, budget) for budget in budgets),
        _residuals(found, budgets[-1]),
        *shown,
    )


def calls(budget: int) -> str:
    """A budget in few letters.

    >>> calls(10**6), calls(2500)
    ('10⁶ calls', '2,500 calls')
    """
    power = len(str(budget)) - 1
    if budget != 10**power or power < 3:
        return f"{budget:,} calls"
    return f"10{str(power).translate(SUPERSCRIPTS)} calls"


def _profiles(found: Compared) -> Sheet:
    c = found.comparison
    every = [found.ratios(budget) for budget in c.budgets]
    if (
        len(c.entrants) == 1
    ):  # a share of one problem is 0 or 100 %, and says less than the ratio itself
        rows = [
            [
                m.label,
                *(
                    f"{here[0, i]:.3g}" if np.isfinite(here[0, i]) else "failed"
                    for here in every
                ),
            ]
            for i, m in enumerate(c.contenders)
        ]
        title = f"How many times the best residual a method ends at, on {c.entrants[0].label}"
        return Sheet(title, ("method", *map(calls, c.budgets)), rows)
    shares = [100 * profile(here, FACTORS) for here in every]
    failed = np.sum([np.isinf(here).sum(axis=0) for here in every], axis=0)
    rows = [
        [
            m.label,
            *(" / ".join(f"{share:.0f}" for share in part[:, i]) for part in shares),
            str(failed[i]),
        ]
        for i, m in enumerate(c.contenders)
    ]
    within = " / ".join(f"{factor:g}×" for factor in FACTORS[1:])
    title = f"Profiles: on how many of the {len(c.entrants)} problems, in percent, a method is best / within {within}"
    return Sheet(title, ("method", *map(calls, c.budgets), "failed"), rows)


def _best(found: Compared, budget: int) -> Sheet:
    rows = []
    for entrant in found.comparison.entrants:
        here = chosen(found.results, problem=entrant.label, budget=budget)
        first = int(np.argmin(here["ratio"]))
        if not np.isfinite(here["ratio"][first]):
            rows.append([entrant.label, "none: all failed", "–", "–", "–"])
            continue
        others = [
            str(m) for m, tied in zip(here["method"], here["tied"], strict=True) if tied
        ]
        names = [
            str(here["method"][first]),
            *(m for m in others if m != here["method"][first]),
        ]
        mean = with_error(scientific(here["residual"][first]), here["error"][first])
        second = np.sort(here["ratio"])[1:2]
        known = len(second) and np.isfinite(second[0])
        runner = (
            "–"
            if not known
            else f"{second[0]:.1f}"
            if second[0] < 1e4
            else f"{second[0]:.1e}"
        )
        rows.append(
            [
                entrant.label,
                ", or ".join(names),
                mean,
                f"{here['steps'][first]:,}",
                runner,
            ]
        )
    return Sheet(
        f"The best at {calls(budget)}",
        ("problem", "best", "residual", "steps", "second / best"),
        rows,
    )


def _residuals(found: Compared, budget: int) -> Sheet:
    rows = []
    for entrant in found.comparison.entrants:
        here = chosen(found.results, problem=entrant.label, budget=budget)
        rows.append(
            [
                entrant.label,
                *(
                    scientific(r) if np.isfinite(r) else "failed"
                    for r in here["residual"]
                ),
            ]
        )
    return Sheet(
        f"All residuals at {calls(budget)}", ("problem", *_labels(found)), rows
    )


def _labels(found: Compared) -> Sequence[str]:
    return [each.label for each in found.comparison.contenders]


def notes(found: Compared) -> list[str]:
    """What a reader must know to read the tables."""
    c = found.comparison
    sizes = ", ".join(f"{scale:g}" for scale in scales(c.trials))
    how = (
        f"of {c.trials} multiples of it ({sizes}) the best on other random numbers was taken, for each method, problem "
        "and budget alike"
        if c.trials > 1
        else "no other was tried"
    )
    unknown = [e.label for e in c.entrants if e.problem.constants is None]
    scaled = len(unknown) < len(c.entrants)
    units = ", in the problem's units, where L_f = L_g = G_f = 1" if scaled else ""
    fitted = (
        " in the problem's units, or plans made of its constants"
        if scaled and not c.as_is
        else ""
    )
    given = (
        "as they are, as `minimize` runs them"
        if c.as_is
        else f"the published ones{fitted}"
    )
    texts = [
        "The residual is the larger of min over λ ≥ 0 of ‖∇f+λ∇g‖² and ‖∇g‖², exact at the last iterate"
        f"{units}; {f'a mean over {c.runs} runs' if c.runs > 1 else 'one run'}. "
        "A method of which a run failed counts as never.",
        f"Schedules are {given}. Step sizes: {how}.",
        "“A, or B”: A has the least mean, and B is within two standard errors of it, run by run, and at most ten "
        f"times as large. “second / best” is how much larger the next method's mean is. Residuals below {FLOOR:g} are "
        "rounding, and count as equal.",
        "A ratio depends on who else is compared: without the best method all profiles are others.",
        f"A small residual is stationarity. Whether that is near the solution is another question{_excesses(found)}.",
    ]
    texts += value_notes(found, c.budgets[-1])
    picked = Counter(found.results["scale"].tolist())
    if c.trials > 1:
        ends = sum(
            picked[scale] for scale in (min(scales(c.trials)), max(scales(c.trials)))
        )
        texts.append(
            f"In {ends} of {sum(picked.values())} cases the best step size is at an end of the range that was tried."
        )
    if found.fallen:
        texts.append(
            "The step size that was best in the trials failed when it was judged, and the best smaller one was taken, "
            f"for {'; '.join(found.fallen)}."
        )
    read = found.read_off
    several = len(c.budgets) > 1
    if several and any(read.values()):
        apart = [label for label, once in read.items() if not once]
        why = (
            "methods that depend on the budget"
            if c.trials == 1
            else "those that depend on it, or whose step size does,"
        )
        texts.append(
            "Smaller budgets are read off the run with the largest, which passes through the very same iterates"
            + (f"; {why} were run for each: {', '.join(apart)}." if apart else ".")
        )
    if c.steps is not None:
        ended = int(np.sum(found.runs["status"] == "steps"))
        texts.append(
            f"A run ends after {c.steps:,} steps at the latest, which {ended:,} of {len(found.runs['run']):,} did."
        )
    doubts = [doubt for entrant in c.entrants for doubt in entrant.doubts]
    if doubts:
        texts.append(
            f"Where a problem contradicts itself, what follows from it means nothing: {'; '.join(doubts)}."
        )
    if unknown:
        texts.append(
            f"Constants unknown, so schedules and residuals are as they are: {', '.join(unknown)}."
        )
    if len(c.entrants) == 1:
        texts.append(
            "One problem has no profile: that is a share of problems. Ratios say how methods compare on this one, for "
            "these runs; how they do elsewhere takes other problems."
        )
    unequal = _unequal(found)
    if unequal:
        texts.append(
            "Plans minimise the residuals as they are; the tables weigh ‖∇g‖² with (L_f/L_g)² against the other one. "
            f"So plans are judged by another measure than they were made for on {', '.join(unequal)}."
        )
    if c.left_out:
        texts.append(
            f"Without the plans, which need the constants of every problem: {', '.join(c.left_out)}."
        )
    if any("†" in label for label in _labels(found)):
        texts.append("† Our reconstruction of the rule.")
    if found.faults:
        more = f" (and {len(found.faults) - 3} more)" if len(found.faults) > 3 else ""
        texts.append(f"Runs that could not go on: {'; '.join(found.faults[:3])}{more}.")
    return texts


def _unequal(found: Compared) -> list[str]:
    """Where L_g/L_f is far from 1, if plans of the library are compared there."""
    c = found.comparison
    planned = [
        m
        for m in c.contenders
        if isinstance(m.method, str)
        and m.method in PLANNED
        and m.method != "dbgd_batched"
    ]
    known = [
        (e.label, e.problem.constants)
        for e in c.entrants
        if e.problem.constants is not None
    ]
    ratios = [(label, k.L_g / k.L_f) for label, k in known]
    return (
        [f"{label} (L_g/L_f = {r:.3g})" for label, r in ratios if not 0.7 < r < 1.4]
        if planned
        else []
    )


def _excesses(found: Compared) -> str:
    """Where to read f and g above their values at the solution, if any problem has these."""
    known = [
        np.isfinite(found.results[name]) for name in ("upper_excess", "lower_excess")
    ]
    if not any(each.any() for each in known):
        return (
            ": no solution is known here, but f and g where the runs ended are in the table"
            * _valued(found)
            or (", which the results do not answer: no value of f or g is known")
        )
    partly = (
        ""
        if all(each.all() for each in known)
        else ", where these are known and the run did not fail"
    )
    return f": results.csv has f and g minus their values there{partly}"


def _valued(found: Compared) -> bool:
    return bool(
        np.isfinite(
            [*found.results["upper_value"], *found.results["lower_value"]]
        ).any()
    )


def report(found: Compared) -> str:
    """All of it as a Markdown document."""
    command = ("", f"    {found.comparison.command}", "")
    opening = (
        f"Seed {found.comparison.seed}, {found.seconds:.0f} s:",
        *command,
        sentence(found.origin),
    )
    return document("Comparison", opening, sheets(found), notes(found), PROSE)
