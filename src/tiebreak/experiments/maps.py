"""The second figure: where the iterates go."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.style import footnote, legend, look, method_lines, style
from tiebreak.problems.paper import CENTER, lower_value

_WIDE = 2.2  # width by height of the whole view
_THIN = 20  # runs drawn one by one: more of them only hide each other
_FAR = 1e3  # where no map of g can be read


def trajectories(outcome: Outcome) -> Figure:
    """Runs thin and their mean thick, over the contours of g: with the minimisers and f's centre, and closer.

    Examples
    --------
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> len(trajectories(outcome).axes)
    2
    """
    with style():
        figure = Figure(figsize=(7.4, 3.5), layout=ConstrainedLayoutEngine(h_pad=0.07, compress=True))
        whole, close = figure.subplots(1, 2, width_ratios=(_WIDE, 1))
        paths = {method: _path(outcome, method) for method in outcome.methods}
        reached = np.concatenate([path.reshape(-1, 2) for path in paths.values()])
        start, solution = outcome.experiment.start, (2 * math.pi, 0.0)
        wide = _window(np.concatenate([reached, [start, CENTER, (0, 0), solution]]), 1.4, _WIDE)
        near = _window(np.concatenate([reached, [start], _ends(paths)]), 0.15, 1.0)
        for axes, window in ((whole, wide), (close, near)):
            _contours(axes, window)
            _minimisers(axes, window)
            for width, method in zip(np.linspace(2.4, 1.4, len(paths)), paths, strict=True):
                _trajectory(axes, paths[method], width, look(method))
            axes.plot(*start, "s", color="black", markersize=4.5, zorder=5)
            axes.plot(*CENTER, "P", color="black", markeredgecolor="white", markersize=8, zorder=5)
            axes.plot(*solution, "*", color="#F0E442", markeredgecolor="black", markersize=13, zorder=5)
            axes.set(
                aspect="equal",
            )
            axes.set_xlabel("$x_1$", labelpad=2)
        whole.set_ylabel("$x_2$")
        whole.set_title("Whole view", loc="left")
        close.set_title("Closer", loc="left")
        (left, right), (bottom, top) = near
        frame = Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor="0.25", linewidth=0.8)
        whole.add_patch(frame)
        legend(figure, method_lines(outcome.methods) + _marks(), 4, length=2)
        text = f"{_legible(outcome.experiment.runs)} Shades and lines: contours of $g$."
        footnote(figure, text, outcome.methods)
    return figure


def _legible(runs: int) -> str:
    if runs == 1:
        return "One run, ending in a dot."
    thin = f"the first {_THIN} of {runs}" if runs > _THIN else f"each of {runs}"
    return f"Thick: mean over runs, ending in a dot; thin: {thin} runs."


def _path(outcome: Outcome, method: str) -> Any:
    """Iterates (records, runs, 2), NaN where a run has ended or is off any map."""
    path = np.stack([outcome.curve(method, column)[1] for column in ("x0", "x1")], axis=-1)
    path[(np.abs(path) > _FAR).any(axis=-1)] = np.nan
    return path[np.isfinite(path).all(axis=-1).any(axis=-1)]


def _ends(paths: dict[str, Any]) -> Any:
    """The minimisers of g nearest to where the methods end."""
    firsts = [np.nanmean(path[-1, :, 0]) for path in paths.values() if len(path)] or [0.0]
    return [(2 * math.pi * np.rint(first / (2 * math.pi)), 0.0) for first in firsts]


def _window(points: Any, margin: float, ratio: float) -> Any:
    """Limits ((left, right), (bottom, top)) around the points, widened to a ratio of width to height."""
    points = points[(np.abs(points) <= _FAR).all(axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    width, height = high - low + 2 * margin
    half = np.array([max(width, height * ratio), max(height, width / ratio)]) / 2
    return np.stack([(low + high) / 2 - half, (low + high) / 2 + half], axis=1)


def _contours(axes: Axes, window: Any) -> None:
    first, second = np.meshgrid(*(np.linspace(low, high, 400) for low, high in window))
    values = lower_value(np.stack([first, second], axis=-1))
    levels = np.linspace(0, 3, 13)
    shades = LinearSegmentedColormap.from_list("shades", ["#FFFFFF", "#C9CED6"])
    axes.contourf(first, second, values, levels, cmap=shades)
    axes.contour(first, second, values, levels, colors="0.62", linewidths=0.4)
    axes.set(xlim=window[0], ylim=window[1])


def _minimisers(axes: Axes, window: Any) -> None:
    first, last = np.ceil(window[0, 0] / (2 * math.pi)), np.floor(window[0, 1] / (2 * math.pi))
    places = 2 * math.pi * np.arange(first, last + 1)
    axes.plot(places, 0 * places, "o", color="white", markeredgecolor="black", markersize=5.5, zorder=4)


def _trajectory(axes: Axes, path: Any, width: float, own: dict[str, Any]) -> None:
    axes.plot(path[:, :_THIN, 0], path[:, :_THIN, 1], color=own["color"], linewidth=0.5, alpha=0.45)
    mean = np.nanmean(path, axis=1)
    axes.plot(*mean.T, linewidth=width, **own)
    axes.plot(*mean[-1:].T, "o", color=own["color"], markeredgecolor="white", markersize=6, zorder=6)


def _marks() -> list[Line2D]:
    looks = {
        "start": ("s", 4.5, "black", "black"),
        "minimisers of $g$": ("o", 5.5, "white", "black"),
        "bilevel solution": ("*", 11, "#F0E442", "black"),
        "centre of $f$": ("P", 7, "black", "white"),
    }
    return [
        Line2D([], [], linestyle="", marker=m, markersize=size, color=face, markeredgecolor=edge, label=text)
        for text, (m, size, face, edge) in looks.items()
    ]
