"""Charts in the plane of the paper's problem: paths over its landscape, and the front of the weighted sum."""

import math
from typing import Any

import numpy as np

from tiebreak.experiments.charts import NEUTRAL, Axis, Chart, Series, spread, thinned
from tiebreak.experiments.configuration import label
from tiebreak.experiments.outcome import Outcome
from tiebreak.methods import METHODS
from tiebreak.problems.paper import (
    CENTER,
    lower_gradient,
    lower_value,
    upper_gradient,
    upper_value,
)
from tiebreak.report.section import Landscape, Path

_FAR = 1e3  # iterates beyond are outside every map
_POINTS = 200  # of a path
_SOLUTION = (2 * math.pi, 0.0)
_DESCENT = 3000  # steps of exact gradient descent, enough for every weight


def landscape(outcome: Outcome) -> Landscape:
    """The mean path of every method over the contours of g."""
    paths = [_path(outcome, method) for method in outcome.methods]
    reached = np.concatenate([np.stack([path.x, path.y], axis=1) for path in paths])
    start = outcome.experiment.start
    view = _window(np.concatenate([reached, [start, CENTER, (0, 0), _SOLUTION]]), 1.0)
    (left, right), (bottom, top) = view
    x = np.linspace(left, right, 160)
    y = np.linspace(bottom, top, 90)
    period = 2 * math.pi
    minimisers = period * np.arange(math.ceil(left / period), right / period)
    runs = outcome.experiment.runs
    return Landscape(
        "Paths over the landscape of g",
        f"{f'The mean over {runs} runs' if runs > 1 else 'One run'} of each method over the contours of g. "
        "Circles: minimisers of g; star: the bilevel solution; cross: the minimiser of f; square: the start.",
        x,
        y,
        lower_value(np.stack(np.meshgrid(x, y), axis=-1)),
        paths,
        [
            (
                "minimisers of g",
                "circle",
                [(float(first), 0.0) for first in minimisers],
            ),
            ("minimiser of f", "cross", [CENTER]),
            ("bilevel solution", "star", [_SOLUTION]),
            ("start", "square", [(start[0], start[1])]),
        ],
        {"whole": view, "closer": _window(np.concatenate([reached, [start]]), 0.3)},
    )


def _path(outcome: Outcome, method: str) -> Path:
    calls, _ = outcome.curve(method, "step")
    x, y, step = (
        spread("", outcome.curve(method, name)[1], None)[""]
        for name in ("x0", "x1", "step")
    )
    on_map = np.flatnonzero((np.abs(x) <= _FAR) & (np.abs(y) <= _FAR))
    rows = on_map[thinned(len(on_map), _POINTS)]
    return Path(
        label(method),
        list(METHODS).index(method),
        x[rows],
        y[rows],
        step[rows],
        calls[rows],
    )


def _window(points: Any, margin: float) -> Any:
    """Limits ((left, right), (bottom, top)) around the points on the map."""
    points = points[(np.abs(points) <= _FAR).all(axis=1)]
    limits = np.stack(
        [points.min(axis=0) - margin, points.max(axis=0) + margin], axis=1
    )
    return limits.tolist()


def front(outcome: Outcome) -> Chart:
    """Where each method ends in the plane of g and f, beside the points that fixed weights reach."""
    weights = np.geomspace(0.03, 300, 60)
    x = np.tile(np.asarray(outcome.experiment.start, dtype=float), (len(weights), 1))
    for _ in range(_DESCENT):  # both gradients have Lipschitz constant 1
        x = x - (upper_gradient(x) + weights[:, None] * lower_gradient(x)) / (
            1 + weights[:, None]
        )
    jumps = np.flatnonzero(np.diff(np.rint(x[:, 0] / (2 * math.pi)))) + 1
    swept = {
        "lower": np.insert(lower_value(x), jumps, np.nan),
        "upper": np.insert(upper_value(x), jumps, np.nan),
    }
    series = [
        Series(
            "f + w g, exact, w from 0.03 to 300",
            swept,
            NEUTRAL,
            "lines+markers",
            dash="solid",
        )
    ]
    for method in outcome.methods:
        ends = outcome.at(method, "last")
        columns = {"lower": ends["lower_value"], "upper": ends["upper_value"]}
        series.append(
            Series(label(method), columns, list(METHODS).index(method), "markers")
        )
    about = (
        "A point for each run. The line is what gradient descent on f + w g reaches from the same start, with exact "
        f"gradients and {_DESCENT:,} steps; it is broken where a weight leads to another minimiser of g."
    )
    return Chart(
        "The last iterates beside the front of the weighted sum",
        about,
        [Axis("lower", "g at the end", "log")],
        [Axis("upper", "f at the end")],
        series,
    )
