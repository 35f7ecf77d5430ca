"""What is made from the data of the paper's experiment, as files: the summary and both figures."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from tiebreak.experiments.folder import write
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import markdown
from tiebreak.experiments.style import (
    footnote,
    legend,
    log_grid,
    look,
    method_lines,
    save,
    style,
)
from tiebreak.problems.paper import CENTER, lower_value

_BAND = (0.1, 0.9)
_MANY_RUNS = 20  # drawn one by one: more of them only hide each other
_FAR = 1e3  # where no map of g can be read
_PERIOD = 2 * math.pi  # of g along its first coordinate


def draw(outcome: Outcome, folder: str | os.PathLike[str]) -> list[Path]:
    """Write summary.md, and both figures as PNG and PDF; the paths written. The same data give the same bytes.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> [path.name for path in draw(outcome, tempfile.mkdtemp())]
    ['summary.md', 'comparison.png', 'comparison.pdf', 'trajectories.png', 'trajectories.pdf']
    """
    place = Path(folder)
    written = write(place, {"summary.md": markdown(outcome)})
    for name, make in (("comparison", comparison), ("trajectories", trajectories)):
        written += save(make(outcome), place / name)
    return written


def comparison(outcome: Outcome) -> Figure:
    """Mean over runs of ‖d_k‖² and of ‖∇g(x_k)‖² against calls, with the middle 80 % of the runs as a band.

    Examples
    --------
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> [axes.get_xlabel() for axes in comparison(outcome).axes]
    ['stochastic oracle calls', 'stochastic oracle calls']
    """
    titles = {
        "direction_squared": r"Upper level: $\|d_k\|^2$",
        "lower_gradient_squared": r"Lower level: $\|\nabla g(x_k)\|^2$",
    }
    with style():
        figure = Figure(figsize=(7.4, 3.7), layout=ConstrainedLayoutEngine(h_pad=0.06))
        for axes, (column, title) in zip(
            figure.subplots(1, 2), titles.items(), strict=True
        ):
            axes.set(xscale="log", yscale="log", xlabel="stochastic oracle calls")
            axes.set_title(title, loc="left")
            for method in outcome.methods:
                _curve(axes, outcome, method, column)
            log_grid(axes)
        legend(
            figure,
            method_lines(outcome.methods),
            min(len(outcome.methods), 4),
            length=3,
        )
        runs = outcome.experiment.runs
        text = (
            f"Mean over {runs} runs; bands hold the middle 80 % of them."
            if runs > 1
            else "One run."
        )
        footnote(
            figure,
            f"{text} $d_k$ uses each method's own $\\lambda_k$.",
            outcome.methods,
        )
    return figure


def _curve(axes: Axes, outcome: Outcome, method: str, column: str) -> None:
    calls, values = outcome.curve(method, column)
    values = np.where(np.isfinite(values), values, np.nan)
    # The start has cost nothing, and has no place on a logarithmic axis.
    drawn = (calls > 0) & ~np.isnan(values).all(axis=1)
    calls = calls[drawn]
    values = values[drawn]
    if not len(calls):
        return
    low, high = np.nanquantile(values, _BAND, axis=1)
    line = look(method)
    axes.fill_between(calls, low, high, color=line["color"], alpha=0.18, linewidth=0)
    axes.plot(calls, np.nanmean(values, axis=1), linewidth=1.8, **line)


def trajectories(outcome: Outcome) -> Figure:
    """Runs thin and their mean thick, over the contours of g, with the minimisers and f's centre.

    Examples
    --------
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> trajectories(outcome).axes[0].get_xlabel()
    '$x_1$'
    """
    with style():
        figure = Figure(figsize=(7.4, 4.4), layout=ConstrainedLayoutEngine(h_pad=0.07))
        axes = figure.subplots()
        axes.set(aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
        start = outcome.experiment.start
        solution = (_PERIOD, 0.0)
        paths = {method: _path(outcome, method) for method in outcome.methods}
        places = [path.reshape(-1, 2) for path in paths.values()] + [
            np.array([start, CENTER, (0, 0), solution])
        ]
        _map(axes, np.concatenate(places))
        for width, method in zip(np.linspace(2.4, 1.4, len(paths)), paths, strict=True):
            _trajectory(axes, paths[method], width, look(method))
        marks = axes.plot(
            *start, "s", color="black", markersize=4.5, zorder=5, label="start"
        )
        marks += _minimisers(axes)
        star: dict[str, Any] = {
            "color": "#F0E442",
            "markeredgecolor": "black",
            "markersize": 13,
        }
        marks += axes.plot(*solution, "*", zorder=5, label="bilevel solution", **star)
        plus: dict[str, Any] = {
            "color": "black",
            "markeredgecolor": "white",
            "markersize": 8,
        }
        marks += axes.plot(*CENTER, "P", zorder=5, label="centre of $f$", **plus)
        legend(figure, method_lines(outcome.methods) + marks, 4, length=2)
        text = (
            f"{_runs_drawn(outcome.experiment.runs)} Shades and lines: contours of $g$."
        )
        footnote(figure, text, outcome.methods)
    return figure


def _runs_drawn(runs: int) -> str:
    if runs == 1:
        return "One run, ending in a dot."
    thin = (
        f"the first {_MANY_RUNS} of {runs}" if runs > _MANY_RUNS else f"each of {runs}"
    )
    return f"Thick: mean over runs, ending in a dot; thin: {thin} runs."


def _path(outcome: Outcome, method: str) -> Any:
    """Iterates (records, runs, 2), NaN where a run has ended or is off any map."""
    path = np.stack(
        [outcome.curve(method, column)[1] for column in ("x0", "x1")], axis=-1
    )
    path[(np.abs(path) > _FAR).any(axis=-1)] = np.nan
    return path[np.isfinite(path).all(axis=-1).any(axis=-1)]


def _map(axes: Axes, places: Any) -> None:
    """Contours of g around these places."""
    near = places[(np.abs(places) <= _FAR).all(axis=1)]
    low = near.min(axis=0) - 1.4
    high = near.max(axis=0) + 1.4
    first, second = np.meshgrid(*np.linspace(low, high, 400).T)
    values = lower_value(np.stack([first, second], axis=-1))
    levels = np.linspace(0, 3, 13)
    axes.contourf(
        first,
        second,
        values,
        levels,
        cmap=LinearSegmentedColormap.from_list("", ["#FFFFFF", "#C9CED6"]),
    )
    axes.contour(first, second, values, levels, colors="0.62", linewidths=0.4)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))


def _minimisers(axes: Axes) -> list[Line2D]:
    left, right = axes.get_xlim()
    places = _PERIOD * np.arange(
        math.ceil(left / _PERIOD), math.floor(right / _PERIOD) + 1
    )
    dot: dict[str, Any] = {
        "color": "white",
        "markeredgecolor": "black",
        "markersize": 5.5,
    }
    return axes.plot(
        places,
        0 * places,
        "o",
        zorder=4,
        label="minimisers of $g$",
        linestyle="",
        **dot,
    )


def _trajectory(axes: Axes, path: Any, width: float, line: dict[str, Any]) -> None:
    axes.plot(
        path[:, :_MANY_RUNS, 0],
        path[:, :_MANY_RUNS, 1],
        color=line["color"],
        linewidth=0.5,
        alpha=0.45,
    )
    mean = np.nanmean(path, axis=1)
    axes.plot(*mean.T, linewidth=width, **line)
    axes.plot(
        *mean[-1:].T,
        "o",
        color=line["color"],
        markeredgecolor="white",
        markersize=6,
        zorder=6,
    )
