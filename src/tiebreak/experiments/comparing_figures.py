"""A comparison on disk: tidy tables, configuration, summary, and the profiles as a figure."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from tiebreak.experiments.compared import Compared
from tiebreak.experiments.comparing_report import calls, report
from tiebreak.experiments.folder import write
from tiebreak.experiments.own import copies
from tiebreak.experiments.profiles import grid, profile
from tiebreak.experiments.style import footnote, legend, look_of, save, style
from tiebreak.experiments.tables import Table, joined

__all__ = ["profiles_figure", "profiles_table", "save_comparison"]

_LARGEST = 1e3  # the τ at which the figure ends


def save_comparison(found: Compared, folder: str | os.PathLike[str]) -> list[Path]:
    """Write tables (CSV and Parquet), configuration.json, summary.md, the profiles (PNG and PDF), own files' copies.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Comparison, compare
    >>> found = compare(Comparison(problems="paper", methods="sdbgd", budgets=[1000], runs=2, trials=1))
    >>> sorted({path.suffix for path in save_comparison(found, tempfile.mkdtemp())})
    ['.csv', '.json', '.md', '.parquet', '.pdf', '.png']
    """
    tables = {"runs": found.runs, "results": found.results, "profiles": profiles_table(found)}
    tables |= {"curves": found.curves} if found.curves else {}
    contents: dict[str, Any] = {f"{n}.{kind}": t for n, t in tables.items() for kind in ("csv", "parquet")}
    contents |= copies(found.references)
    written = write(folder, contents | {"configuration.json": found.configuration(), "summary.md": report(found)})
    return written + save(profiles_figure(found), Path(folder) / "profiles")


def profiles_table(found: Compared) -> Table:
    """Tidy: the corners of every profile, a row for each method, budget and τ."""
    parts = []
    for budget, (i, contender) in product(found.comparison.budgets, enumerate(found.comparison.contenders)):
        ratios = found.ratios(budget)
        taus = grid(ratios)
        words = {"method": contender.label, "budget": budget}
        named = {name: np.full(len(taus), value) for name, value in words.items()}
        parts.append(named | {"tau": taus, "share": profile(ratios, taus)[:, i]})
    return joined(parts)


def profiles_figure(found: Compared) -> Figure:
    """The profiles, a panel for each budget: the share of problems on which a method is within τ of the best."""
    c = found.comparison
    with style():
        width = min(max(7.4, 2.6 * len(c.budgets)), 14.0)
        figure = Figure(figsize=(width, 4.2), layout=ConstrainedLayoutEngine(h_pad=0.06))
        panels = np.atleast_1d(figure.subplots(1, len(c.budgets), sharey=True))
        for axes, budget in zip(panels, c.budgets, strict=True):
            ratios = found.ratios(budget)
            taus = grid(ratios, _LARGEST)
            for i, shares in enumerate(profile(ratios, taus).T):
                axes.step(taus, shares, where="post", linewidth=1.7, clip_on=False, **look_of(i))
            axes.set(xscale="log", xlim=(1, _LARGEST), ylim=(0, 1.02))
            axes.set_xlabel(r"factor $\tau$")
            axes.set_title(calls(budget, math=True), loc="left")
            axes.grid(which="major", color="0.9", linewidth=0.6)
        panels[0].set_ylabel(r"share of problems within $\tau$ of the best")
        lines = [Line2D([], [], linewidth=1.8, label=m.label, **look_of(i)) for i, m in enumerate(c.contenders)]
        legend(figure, lines, 3, length=3)
        many = f"{len(c.entrants)} problems, " if len(c.entrants) > 1 else "One problem, "
        text = f"{many}mean over {c.runs} runs." if c.runs > 1 else f"{many}one run."
        note = "  † Our reconstruction of the rule." * any("†" in each.label for each in c.contenders)
        footnote(figure, f"{text} Left end: best; right end: does not fail. Higher is better.{note}")
    return figure
