"""A verification on disk: tidy tables, configuration, summary, and three figures."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tiebreak.experiments.evidence import RESIDUALS
from tiebreak.experiments.folder import write
from tiebreak.experiments.own import copies
from tiebreak.experiments.style import COLOURS, TITLES, footnote, legend, log_grid, panels, save, style
from tiebreak.experiments.tables import chosen
from tiebreak.experiments.verification import Findings
from tiebreak.experiments.verification_report import report

__all__ = ["bounds_figure", "family_figure", "rates_figure", "save_verification"]

_TABLES = ("bounds", "deviations", "rates", "slopes")


def save_verification(findings: Findings, folder: str | os.PathLike[str]) -> list[Path]:
    """Write tables (CSV and Parquet), configuration.json, summary.md, the figures (PNG and PDF), own files' copies.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Verification, verify
    >>> findings = verify(Verification(problem="paper", method="penalty", steps=50, runs=4))
    >>> sorted({path.suffix for path in save_verification(findings, tempfile.mkdtemp())})
    ['.csv', '.json', '.md', '.parquet', '.pdf', '.png']
    """
    contents: dict[str, Any] = {
        f"{name}.{kind}": getattr(findings, name)
        for name in _TABLES
        for kind in ("csv", "parquet")
        if getattr(findings, name)
    }
    contents |= copies(findings.verification.files.values())
    written = write(folder, contents | {"configuration.json": findings.configuration(), "summary.md": report(findings)})
    drawn = (("bounds", bounds_figure), ("rates", rates_figure), ("family", family_figure))
    for name, make in drawn if findings.slopes else drawn[:1]:  # a case of the user's has no rates
        written += save(make(findings), Path(folder) / name)
    return written


def bounds_figure(findings: Findings) -> Figure:
    """On the paper's problem, or the user's: what is proved and what is measured, against K."""
    table = chosen(findings.bounds, group="paper" if findings.slopes else "own")
    schedules = list(dict.fromkeys(table["schedule"]))
    with style():
        figure, both = panels((f"{TITLES[name]} at $x_{{N_K}}$" for name in RESIDUALS), ["steps $K$"] * 2)
        for axes, name in zip(both, RESIDUALS, strict=True):
            for colour, schedule in zip(COLOURS, schedules, strict=False):
                here = chosen(table, residual=name, schedule=schedule)
                exact, drawn = (chosen(here, estimate=e) for e in ("weighted", "sampled"))
                axes.plot(exact["K"], exact["bound"], color=colour, linewidth=1.3, linestyle=(0, (4, 2)))
                axes.plot(exact["K"], exact["mean"], color=colour, linewidth=1.8)
                axes.plot(drawn["K"], drawn["mean"], "o", color=colour, markerfacecolor="white", markersize=4.5)
            log_grid(axes)
        kinds = [
            Line2D([], [], color="0.3", linewidth=1.3, linestyle=(0, (4, 2)), label="proved"),
            Line2D([], [], color="0.3", linewidth=1.8, label="measured"),
            Line2D([], [], color="0.3", linestyle="", marker="o", markerfacecolor="white", label="sampled $x_{N_K}$"),
        ]
        names = [Line2D([], [], color=c, linewidth=4, label=s) for c, s in zip(COLOURS, schedules, strict=False)]
        lines = [line for pair in zip(names, kinds, strict=False) for line in pair]
        legend(figure, lines, 3)
        where, runs = "The paper's problem" if findings.slopes else table["problem"][0], findings.verification.runs
        text = f"{where}, {runs} runs; one draw of $N_K$ a run, which mostly misses the rare early iterates."
        footnote(figure, text)
    return figure


def rates_figure(findings: Findings) -> Figure:
    """Corollary 1: residuals at x_{N_K} against K, with the promised slopes."""
    with style():
        figure, both = panels((f"{TITLES[name]} at $x_{{N_K}}$" for name in RESIDUALS), ["steps $K$"] * 2)
        every = dict(zip(sorted(set(findings.rates["a"].tolist())), COLOURS, strict=False))
        for axes, name in zip(both, RESIDUALS, strict=True):
            for a, colour in every.items():
                curve, slope = (chosen(t, a=a, residual=name) for t in (findings.rates, findings.slopes))
                K, mean = curve["K"], curve["weighted"]
                axes.plot(K, mean, color=colour, linewidth=1.8)
                late = K[-1] / 30 <= K
                promised = mean[late][0] * (K[late] / K[late][0]) ** -float(slope["corollary"][0])
                axes.plot(K[late], 1.1 * promised, color=colour, linewidth=1.2, linestyle=(0, (1.2, 1.2)))
            log_grid(axes)
        lines = [Line2D([], [], color=colour, linewidth=4, label=f"$a = {a:g}$") for a, colour in every.items()]
        lines += [
            Line2D([], [], color="0.3", linewidth=1.8, label="measured"),
            Line2D([], [], color="0.3", linewidth=1.2, linestyle=(0, (1.2, 1.2)), label="slope of Corollary 1"),
        ]
        legend(figure, lines, 3)
        text = (
            "The paper's problem, anytime schedules with the largest legal step size. A measured slope may be steeper."
        )
        footnote(figure, text)
    return figure


def family_figure(findings: Findings) -> Figure:
    """The share of every bound that was measured, on all problems; 1 is the bound."""
    groups = {"paper": COLOURS[0], "additive": COLOURS[1], "multiplicative": COLOURS[2]}
    labels = {"paper": "the paper's problem", "additive": "random, additive noise"}
    labels["multiplicative"] = "random, multiplicative noise"
    exact = chosen(findings.bounds, estimate="weighted")
    looks: dict[str, Any] = {"direction_squared": "-", "lower_gradient_squared": (0, (4, 1.6))}
    with style():
        titles = ("Theorem 1: measured / proved", r"Stability: $\mathbb{E}\|d_k-\hat d_k\|^2\,/\,\tau_k^2$")
        figure, both = panels(titles, ("steps $K$", "step $k+1$"))
        for group, colour in groups.items():
            width = {"color": colour, "linewidth": 1.6 if group == "paper" else 0.7}
            for problem, schedule in _cases(exact, group):
                for name, dashes in looks.items():
                    here = chosen(exact, problem=problem, schedule=schedule, residual=name)
                    both[0].plot(here["K"], here["ratio"], linestyle=dashes, **width)
            for problem, schedule in _cases(findings.deviations, group):
                here = chosen(findings.deviations, problem=problem, schedule=schedule)
                both[1].plot(here["step"] + 1, here["ratio"], **width)
        for K, ratio in _first(exact, schedule="Penalty, planned", residual="direction_squared"):
            both[0].annotate("penalty", (K, ratio), (2, 3), textcoords="offset points", color=COLOURS[0], fontsize=9)
        for axes in both:
            _one(axes)
            log_grid(axes)
        kinds = [Line2D([], [], color="0.3", linestyle=dashes, label=TITLES[name]) for name, dashes in looks.items()]
        names = [Line2D([], [], color=colour, linewidth=4, label=labels[group]) for group, colour in groups.items()]
        lines = [names[0], kinds[0], names[1], kinds[1], names[2]]  # column by column
        legend(figure, lines, 3)
        count = len(set(exact["problem"][~np.isin(exact["group"], ("paper", "worst case"))]))
        text = f"{count} random problems and the paper's; a line each. Nothing may be above 1."
        footnote(figure, text)
    return figure


def _cases(table: Any, group: str) -> list[tuple[str, str]]:
    here = chosen(table, group=group)
    return list(dict.fromkeys(zip(here["problem"].tolist(), here["schedule"].tolist(), strict=True)))


def _first(table: Any, **wanted: Any) -> list[tuple[int, float]]:
    """Where the curve of these rows begins, if there is one."""
    here = chosen(table, **wanted)
    return list(zip(here["K"].tolist(), here["ratio"].tolist(), strict=True))[:1]


def _one(axes: Axes) -> None:
    """A line where the bound is."""
    axes.axhline(1, color="black", linewidth=1)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 4))
    axes.annotate(
        "the bound",
        (1, 1),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
    )
