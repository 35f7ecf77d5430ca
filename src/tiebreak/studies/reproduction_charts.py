"""Charts of the paper's experiment: residuals, and paths over the contours of g."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebreak.methods import METHODS
from tiebreak.problems.paper import CENTER
from tiebreak.studies.charts import NEUTRAL, Axis, Chart, Series, spread, thinned
from tiebreak.studies.method_names import label
from tiebreak.studies.tables import Columns, by_step, select

if TYPE_CHECKING:
    from tiebreak.studies.reproduction import Experiment

_CURVES = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("lower_gradient_squared", "‖∇g‖²", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("upper_value", "f"),
    Axis("lower_value", "g", "log"),
    Axis("multiplier", "λ as sampled"),
    Axis("exact_multiplier", "λ at exact gradients"),
)
_ALONG = (
    Axis("calls", "calls", "log"),
    Axis("step", "steps", "log"),
    Axis("seconds", "seconds (spread evenly)", "log"),
)
_FAR = 1e3  # iterates beyond are outside every map
_POINTS = 200  # of a path
_RUNS = 20  # drawn one by one: more runs hide each other
_PERIOD = 2 * math.pi  # of g along the first coordinate


def reproduction_charts(
    experiment: "Experiment", curves: Columns, seconds: Mapping[str, float]
) -> dict[str, Chart]:
    """The charts by the names of their figures."""
    runs = experiment.runs
    bands = f"means over {runs} runs, bands hold the middle 80 % of them"
    over = bands if runs > 1 else "one run"
    parts = {name: select(curves, method=name) for name in seconds}
    comparison = Chart(
        "Residuals",
        f"Exact gradients, {over}. ‖d‖² uses each method's own λ; the least over λ ≥ 0 compares methods.",
        _ALONG,
        _CURVES,
        [_means(name, part, seconds[name]) for name, part in parts.items()],
    )
    paths = [path for name, part in parts.items() for path in _paths(name, part)]
    start = (experiment.start[0], experiment.start[1])
    trajectories = Chart(
        "Paths over the contours of g",
        "The mean over the runs of each method, and thin lines for single runs.",
        [Axis("x", "x_1")],
        [Axis("y", "x_2")],
        [*paths, *_map(paths, start)],
        panels=1,
        equal=True,
    )
    return {"comparison": comparison, "trajectories": trajectories}


def _look(name: str) -> int:
    return list(METHODS).index(name)


def _means(name: str, curves: Columns, seconds: float) -> Series:
    """The mean of every measure over the runs of a method, with bands."""
    keys = [axis.key for axis in _CURVES]
    steps, calls, *arrays = by_step(curves, "calls", *keys)
    rows = thinned(len(steps))
    columns: dict[str, Any] = {
        "calls": np.nanmax(calls, axis=1)[rows],
        "step": steps[rows],
        "seconds": seconds * steps[rows] / max(steps[-1], 1),
    }
    for key, values in zip(keys, arrays, strict=True):
        columns |= spread(key, values[rows])
    return Series(label(name), columns, _look(name))


def _paths(name: str, curves: Columns) -> list[Series]:
    """The mean path of a method, and those of some runs."""
    _, *xy = by_step(curves, "x0", "x1")
    runs = np.where(np.abs(xy).max(axis=0) <= _FAR, xy, np.nan)
    means = [spread("x", each, None)["x"] for each in runs]
    on_map = np.flatnonzero(np.isfinite(means).all(axis=0))
    rows = on_map[thinned(len(on_map), _POINTS)]
    lines = [means, *runs.transpose(2, 0, 1)[:_RUNS]]
    series = [
        Series(label(name), {"x": x[rows], "y": y[rows]}, _look(name), faint=i > 0)
        for i, (x, y) in enumerate(lines)
    ]
    end = {"x": means[0][rows[-1:]], "y": means[1][rows[-1:]]}
    return [*series, Series(label(name), end, _look(name), "markers")]


def _map(paths: list[Series], start: tuple[float, float]) -> list[Series]:
    """Contours of g around the paths, and the places of interest, all black with marks of their own."""
    points = [np.stack([p.columns["x"], p.columns["y"]], axis=1) for p in paths]
    points.append(np.array([start, CENTER, (_PERIOD, 0.0), (0.0, 0.0)]))
    low = np.nanmin(np.concatenate(points), axis=0)
    high = np.nanmax(np.concatenate(points), axis=0)
    numbers = range(round(low[0] / _PERIOD), round(high[0] / _PERIOD) + 1)
    places = {
        "bilevel solution": [(_PERIOD, 0.0)],
        "start": [start],
        "minimiser of f": [CENTER],
        "minimisers of g": [(_PERIOD * m, 0.0) for m in numbers if m != 1],
    }
    y = np.linspace(low[1] - 1, high[1] + 1, 160)
    contours = [line for m in numbers for line in _contours(_PERIOD * m, y)]
    marks = []
    for i, (name, each) in enumerate(places.items()):
        columns = dict(zip("xy", np.array(each).reshape(-1, 2).T, strict=True))
        marks.append(Series(name, columns, 6 + 7 * i, "markers"))
    return contours + marks


def _contours(center: float, y: Any) -> list[Series]:
    """Where g(x) = 2 − cos x₁ − exp(−x₂²/2) has one of some values, within half a period of a minimiser."""
    series = []
    for level in np.arange(0.25, 3, 0.25):
        with np.errstate(invalid="ignore"):  # NaN where g does not have the value
            half = np.arccos(2 - np.exp(-(y**2) / 2) - level)
        for x in (center - half, center + half):
            columns = {"x": x, "y": y}
            series.append(Series("contours of g", columns, NEUTRAL, faint=True))
    return series
