"""Pictures of the paper's problem: its landscape with the runs, and the front that fixed weights draw."""

import math
from typing import Any

import numpy as np

from tiebreak.experiments.configuration import label
from tiebreak.experiments.outcome import Outcome
from tiebreak.methods import METHODS
from tiebreak.problems.paper import CENTER, lower_gradient, lower_value, upper_gradient, upper_value
from tiebreak.report.data import spread, thinned
from tiebreak.report.section import NEUTRAL, Axis, Chart, Landscape, Path, Series

__all__ = ["front", "ground"]

_FAR = 1e3  # where no map of g can be read
_RECORDS = 200
_SOLUTION = (2 * math.pi, 0.0)
_DESCENT = 3000  # steps of exact gradient descent, enough for every weight


def ground(outcome: Outcome) -> Landscape:
    """The mean path of every method over the contours of g."""
    paths = [_path(outcome, method) for method in outcome.methods]
    reached = np.concatenate([np.stack([path.x, path.y], axis=1) for path in paths])
    start = outcome.experiment.start
    whole = _window(np.concatenate([reached, [start, CENTER, (0, 0), _SOLUTION]]), 1.0)
    close = _window(np.concatenate([reached, [start]]), 0.3)
    x, y = (np.linspace(low, high, count) for (low, high), count in zip(whole, (160, 90), strict=True))
    first = 2 * math.pi * np.arange(math.ceil(whole[0][0] / (2 * math.pi)), whole[0][1] / (2 * math.pi))
    runs = outcome.experiment.runs
    return Landscape(
        "Paths over the landscape of g",
        f"{f'The mean over {runs} runs' if runs > 1 else 'One run'} of each method over the contours of g. "
        "Circles: minimisers of g; star: the bilevel solution; cross: the minimiser of f; square: the start.",
        x, y, lower_value(np.stack(np.meshgrid(x, y), axis=-1)), paths,
        [
            ("minimisers of g", "circle", [(float(at), 0.0) for at in first]),
            ("minimiser of f", "cross", [CENTER]),
            ("bilevel solution", "star", [_SOLUTION]),
            ("start", "square", [(start[0], start[1])]),
        ],
        {"whole": whole, "closer": close},
    )  # fmt: skip


def _path(outcome: Outcome, method: str) -> Path:
    calls, _ = outcome.curve(method, "step")
    x, y, at = (spread("", outcome.curve(method, name)[1])[""] for name in ("x0", "x1", "step"))
    there = np.flatnonzero((np.abs(x) <= _FAR) & (np.abs(y) <= _FAR))
    kept = there[thinned(len(there), _RECORDS)]
    return Path(label(method), list(METHODS).index(method), x[kept], y[kept], at[kept], calls[kept])


def _window(points: Any, margin: float) -> Any:
    points = points[(np.abs(points) <= _FAR).all(axis=1)]
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    return [(float(low[i]), float(high[i])) for i in range(2)]


def front(outcome: Outcome) -> Chart:
    """Where each method ends in the plane of g and f, beside what fixed weights reach from the same start."""
    weights = np.geomspace(0.03, 300, 60)
    x = np.tile(np.asarray(outcome.experiment.start, dtype=float), (len(weights), 1))
    for _ in range(_DESCENT):  # both gradients have Lipschitz constant 1
        x = x - (upper_gradient(x) + weights[:, None] * lower_gradient(x)) / (1 + weights[:, None])
    swept = {"lower": lower_value(x), "upper": upper_value(x)}
    jumps = np.flatnonzero(np.abs(np.diff(np.rint(x[:, 0] / (2 * math.pi)))) > 0) + 1
    swept = {name: np.insert(column, jumps, np.nan) for name, column in swept.items()}
    series = [Series("f + w g, exact, w from 0.03 to 300", swept, NEUTRAL, "lines+markers", dash="solid")]
    for method in outcome.methods:
        ends = outcome.at(method, "last")
        columns = {"lower": ends["lower_value"], "upper": ends["upper_value"]}
        series.append(Series(label(method), columns, list(METHODS).index(method), "markers"))
    return Chart(
        "The last iterates beside the front of the weighted sum",
        "A point for each run. The line is what gradient descent on f + w g reaches from the same start, with exact "
        f"gradients and {_DESCENT:,} steps; it is broken where a weight leads to another minimiser of g.",
        [Axis("lower", "g at the end", "log")], [Axis("upper", "f at the end")], series,
    )  # fmt: skip
