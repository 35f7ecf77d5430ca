"""The verdict, the tables and the notes of a comparison."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tiebreak.studies.comparison.methods import OF_CONSTANTS, scales
from tiebreak.studies.comparison.profiles import FLOOR, profile
from tiebreak.studies.comparison.result import ComparisonResult
from tiebreak.studies.findings import Verdict
from tiebreak.studies.reproduction import fault_notes
from tiebreak.studies.tables import (
    SUPERSCRIPTS,
    Columns,
    Estimate,
    Table,
    counted,
    scientific,
    select,
    short,
)

#: The τ at which tables show the profiles.
FACTORS = (1.0, 2.0, 10.0)
_APART = 0.1  # of the largest g among the start and all ends
_ROUNDING = 1e-6


def calls(budget: int) -> str:
    """A budget in few letters.

    >>> calls(10**6), calls(2500)
    ('10⁶ calls', '2,500 calls')
    """
    power = len(str(budget)) - 1
    if budget != 10**power or power < 3:
        return f"{budget:,} calls"
    return f"10{str(power).translate(SUPERSCRIPTS)} calls"


def tables(result: ComparisonResult) -> list[Table]:
    """The profiles at a few factors, the best on each problem for every budget, all residuals, and f and g."""
    c = result.comparison
    last = c.budgets[-1]
    first = _ratio_table(result)
    if len(c.compared_problems) > 1:
        first = _profile_table(result)
    best = [_best_table(result, budget) for budget in c.budgets]
    return [first, *best, _residual_table(result, last), *_value_table(result, last)]


def _ratio_table(result: ComparisonResult) -> Table:
    """The ratios on a single problem: a share of one problem is 0 or 100 %, and says less."""
    c = result.comparison
    rows = []
    for i, method in enumerate(c.compared_methods):
        ratios = [result.ratios(budget)[0, i] for budget in c.budgets]
        cells = [f"{r:.3g}" if np.isfinite(r) else "failed" for r in ratios]
        rows.append([method.label, *cells])
    title = f"How many times the best residual a method ends at, on {c.compared_problems[0].label}"
    return Table(title, ("method", *map(calls, c.budgets)), rows)


def _profile_table(result: ComparisonResult) -> Table:
    c = result.comparison
    ratios = [result.ratios(budget) for budget in c.budgets]
    shares = [100 * profile(each, FACTORS) for each in ratios]
    failed = np.sum([np.isinf(each).sum(axis=0) for each in ratios], axis=0)
    rows = []
    for i, method in enumerate(c.compared_methods):
        cells = [" / ".join(f"{s:.0f}" for s in part[:, i]) for part in shares]
        rows.append([method.label, *cells, str(failed[i])])
    within = " / ".join(f"{factor:g}×" for factor in FACTORS[1:])
    title = (
        f"Profiles: on how many of the {len(c.compared_problems)} problems, in percent, a method is best / within "
        f"{within}"
    )
    return Table(title, ("method", *map(calls, c.budgets), "failed"), rows)


def _best_table(result: ComparisonResult, budget: int) -> Table:
    rows = []
    for problem in result.comparison.compared_problems:
        ends = select(result.results, problem=problem.label, budget=budget)
        first = int(np.argmin(ends["ratio"]))
        if not np.isfinite(ends["ratio"][first]):
            rows.append([problem.label, "none: all failed", "–", "–", "–"])
            continue
        best = str(ends["method"][first])
        tied = [str(name) for name in ends["method"][ends["tied"]] if name != best]
        mean = Estimate(ends["residual"][first], ends["error"][first]).text()
        second = np.sort(ends["ratio"])[1:2]
        runner_up = "–"
        if len(second) and np.isfinite(second[0]):
            if second[0] < 1e4:
                digits = ".1f"
            else:
                digits = ".1e"
            runner_up = format(second[0], digits)
        names = ", or ".join([best, *tied])
        steps = f"{ends['steps'][first]:,}"
        rows.append([problem.label, names, mean, steps, runner_up])
    header = ("problem", "best", "residual", "steps", "second / best")
    return Table(f"The best at {calls(budget)}", header, rows, words=("best",))


def _residual_table(result: ComparisonResult, budget: int) -> Table:
    c = result.comparison
    rows = []
    for problem in c.compared_problems:
        ends = select(result.results, problem=problem.label, budget=budget)["residual"]
        cells = [scientific(r) if np.isfinite(r) else "failed" for r in ends]
        rows.append([problem.label, *cells])
    header = ("problem", *(method.label for method in c.compared_methods))
    return Table(f"All residuals at {calls(budget)}", header, rows)


def _value_table(result: ComparisonResult, budget: int) -> list[Table]:
    """f and g at the start and at the last iterates: one table, or none if no value is known."""
    labels = [method.label for method in result.comparison.compared_methods]
    rows = []
    for problem, start in result.starts.items():
        ends = select(result.results, problem=problem, budget=budget)
        if np.isfinite([*ends["upper_value"], *ends["lower_value"]]).any():
            pairs = [start, *zip(ends["upper_value"], ends["lower_value"], strict=True)]
            rows.append([problem, *(" / ".join(map(_value, pair)) for pair in pairs)])
    title = f"f / g at the last iterate, at {calls(budget)}"
    if rows:
        return [Table(title, ("problem", "start", *labels), rows)]
    return []


def _value(value: float) -> str:
    if np.isfinite(value):
        return short(f"{value:.3g}")
    return "–"


def verdict(result: ComparisonResult) -> Verdict:
    """The best method at each budget, and whether all runs went as far as their budget."""
    c = result.comparison
    problems = counted(len(c.compared_problems), "problem")
    answers = []
    for budget in c.budgets:
        ratios = result.ratios(budget)
        best = int(np.argmax((ratios == 1).sum(axis=0)))
        answers.append(
            f"{calls(budget)}: {c.compared_methods[best].label} is best on {np.sum(ratios[:, best] == 1)} of {problems}, "
            f"and within a factor of 2 of the best on {np.sum(ratios[:, best] <= 2)}."
        )
    failed = int(result.results["failed"].sum())
    answers.append(
        f"{failed} runs could not go on."
        if failed
        else "Every run went as far as its budget."
    )
    # A small residual at a saddle of g wins a comparison and is worth nothing: the verdict must say so.
    answers += [
        text for text in _value_notes(result) if text.startswith("g ended above")
    ]
    question = (
        f"Which of {counted(len(c.compared_methods), 'method')} has the smallest residual on {problems} at "
        f"{counted(len(c.budgets), 'budget')}, {c.runs} runs each?"
    )
    if failed:
        return Verdict("Complete, with runs that failed", None, question, answers)
    return Verdict("Complete", True, question, answers)


def notes(result: ComparisonResult) -> list[str]:
    """What a reader must know to read the tables."""
    return [*_how_compared(result), *_value_notes(result), *_exceptions(result)]


def _how_compared(result: ComparisonResult) -> Iterator[str]:
    c = result.comparison
    have_constants = [
        each.problem.constants is not None for each in c.compared_problems
    ]
    if any(have_constants):
        units = ", in the problem's units, where L_f = L_g = G_f = 1"
    else:
        units = ""
    if c.runs > 1:
        over = f"a mean over {c.runs} runs"
    else:
        over = "one run"
    yield (
        "The residual is the larger of min over λ ≥ 0 of ‖∇f+λ∇g‖² and ‖∇g‖², exact at the last iterate"
        f"{units}; {over}. A method of which a run failed counts as never."
    )
    schedules = "the published ones"
    if c.as_is:
        schedules = "as they are, as `minimize` runs them"
    elif any(have_constants):
        schedules += " in the problem's units, or plans made of its constants"
    tuning = "no other was tried"
    if c.trials > 1:
        sizes = ", ".join(f"{scale:g}" for scale in scales(c.trials))
        tuning = (
            f"of {c.trials} multiples of it ({sizes}) the best on other random numbers was taken, for each method, problem "
            "and budget alike"
        )
    yield f"Schedules are {schedules}. Step sizes: {tuning}."
    yield (
        "“A, or B”: A has the least mean, and B is within two standard errors of it, run by run, and at most ten "
        f"times as large. “second / best” is how much larger the next method's mean is. Residuals below {FLOOR:g} are "
        "rounding, and count as equal."
    )
    yield "A ratio depends on who else is compared: without the best method all profiles are others."
    yield (
        "A small residual is stationarity. Whether that is near the solution is another question"
        f"{_where_values_are(result.results)}."
    )


def _where_values_are(results: Columns) -> str:
    """Where to read f and g above their values at the solution, if any problem has these."""
    excesses = np.isfinite([results["upper_excess"], results["lower_excess"]])
    if excesses.any():
        partly = ", where these are known and the run did not fail"
        return f": results.csv has f and g minus their values there{partly * (not excesses.all())}"
    if np.isfinite([results["upper_value"], results["lower_value"]]).any():
        return ": no solution is known here, but f and g where the runs ended are in the table"
    return ", which the results do not answer: no value of f or g is known"


def _value_notes(result: ComparisonResult) -> list[str]:
    """On which problems g ended above its start, and where methods end at different g."""
    budget = result.comparison.budgets[-1]
    risen = []
    apart = []
    for problem, (_, start) in result.starts.items():
        rows = select(result.results, problem=problem, budget=budget)
        finite = np.isfinite(rows["lower_value"])
        if not finite.any():
            continue
        ends = rows["lower_value"][finite]
        size = np.nanmax(np.abs([*ends, start]))
        above = [
            f"{name} ({_value(end)})"
            for name, end in zip(rows["method"][finite], ends, strict=True)
            if end - start > _ROUNDING * size
        ]
        if above:
            risen.append(f"{problem}, from {_value(start)}: {', '.join(above)}")
        if ends.max() - ends.min() > _APART * size:
            apart.append(f"{problem} ({_value(ends.min())} to {_value(ends.max())})")
    texts = []
    if risen:
        texts.append(
            f"g ended above where it began on {'; on '.join(risen)}. There a small residual may be a saddle of g, or a "
            "weight that is still too small: look at g before the ratios."
        )
    if apart:
        texts.append(
            f"Methods end at different g, whatever their residuals are, on {', '.join(apart)}."
        )
    return texts


def _exceptions(result: ComparisonResult) -> Iterator[str]:
    c = result.comparison
    sizes = scales(c.trials)
    if c.trials > 1:
        picked = Counter(result.results["scale"].tolist())
        ends = picked[min(sizes)] + picked[max(sizes)]
        yield f"In {ends} of {picked.total()} cases the best step size is at an end of the range that was tried."
    if result.fallen:
        yield (
            "The step size that was best in the trials failed when it was judged, and the best smaller one was taken, "
            f"for {'; '.join(result.fallen)}."
        )
    yield from _read_off(result)
    if c.steps is not None:
        ended = int(np.sum(result.runs["status"] == "steps"))
        yield f"A run ends after {c.steps:,} steps at the latest, which {ended:,} of {len(result.runs['run']):,} did."
    if c.contradictions:
        yield (
            "Where a problem contradicts itself, what follows from it means nothing: "
            f"{'; '.join(c.contradictions)}."
        )
    unknown = [p.label for p in c.compared_problems if p.problem.constants is None]
    if unknown:
        yield f"Constants unknown, so schedules and residuals are as they are: {', '.join(unknown)}."
    if len(c.compared_problems) == 1:
        yield (
            "One problem has no profile: that is a share of problems. Ratios say how methods compare on this one, for "
            "these runs; how they do elsewhere takes other problems."
        )
    unequal = _unequal(result)
    if unequal:
        yield (
            "Plans minimise the residuals as they are; the tables weigh ‖∇g‖² with (L_f/L_g)² against the other one. "
            f"So plans are judged by another measure than they were made for on {', '.join(unequal)}."
        )
    if c.left_out:
        yield f"Without the plans, which need the constants of every problem: {', '.join(c.left_out)}."
    if any("†" in method.label for method in c.compared_methods):
        yield "† Our reconstruction of the rule."
    yield from fault_notes(result.faults)


def _read_off(result: ComparisonResult) -> Iterator[str]:
    c = result.comparison
    read = result.read_off
    if len(c.budgets) == 1 or not any(read.values()):
        return
    apart = [label for label, is_read in read.items() if not is_read]
    which = "methods that depend on the budget"
    if c.trials > 1:
        which = "those that depend on it, or whose step size does,"
    if apart:
        apart_text = f"; {which} were run for each: {', '.join(apart)}"
    else:
        apart_text = ""
    yield (
        "Smaller budgets are read off the run with the largest, which passes through the very same iterates"
        f"{apart_text}."
    )


def _unequal(result: ComparisonResult) -> list[str]:
    """The problems with L_g/L_f far from 1, if plans of the library are compared there."""
    c = result.comparison
    if not any(method.source in OF_CONSTANTS for method in c.compared_methods):
        return []
    texts = []
    for each in c.compared_problems:
        constants = each.problem.constants
        if constants is None:
            ratio = 1.0
        else:
            ratio = constants.L_g / constants.L_f
        if not 0.7 < ratio < 1.4:
            texts.append(f"{each.label} (L_g/L_f = {ratio:.3g})")
    return texts
