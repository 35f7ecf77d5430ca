"""Charts of the paper's experiment: residuals, paths over the landscape, multiplier and batches, and the front."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebreak.methods import METHODS
from tiebreak.problems.paper import (
    CENTER,
    lower_gradient,
    lower_value,
    upper_gradient,
    upper_value,
)
from tiebreak.studies.charts import (
    NEUTRAL,
    Axis,
    Chart,
    Landscape,
    Path,
    Series,
    spread,
    thinned,
)
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
)
_DURING = (
    Axis("multiplier", "λ as sampled"),
    Axis("exact_multiplier", "λ at exact gradients"),
    Axis("lower_batch", "lower batch size", "log"),
    Axis("upper_batch", "upper batch size", "log"),
    Axis("noise", "share of noise in ‖∇g‖² as sampled"),
)
_ALONG = (
    Axis("calls", "calls", "log"),
    Axis("step", "steps", "log"),
    Axis("seconds", "seconds (spread evenly)", "log"),
)
_FAR = 1e3  # iterates beyond are outside every map
_POINTS = 200  # of a path
_RUNS = 20  # drawn one by one: more of them only hide each other
_PERIOD = 2 * math.pi  # of g along its first coordinate
_SOLUTION = (_PERIOD, 0.0)
_DESCENT = 3000  # steps of exact gradient descent, enough for every weight


def reproduction_charts(
    experiment: "Experiment", data: Mapping[str, Columns], seconds: Mapping[str, float]
) -> dict[str, Chart | Landscape]:
    """The charts by the names of their figures."""
    runs = experiment.runs
    over = "one run"
    if runs > 1:
        over = f"means over {runs} runs, bands hold the middle 80 % of them"
    curves = {name: select(data["curves"], method=name) for name in seconds}
    series = [_series(experiment, n, curves[n], seconds[n]) for n in seconds]
    return {
        "comparison": Chart(
            "Residuals",
            f"Exact gradients, {over}. ‖d‖² uses each method's own λ; the least over λ ≥ 0 compares methods.",
            _ALONG,
            _CURVES,
            series,
        ),
        "trajectories": _landscape(experiment, curves),
        "multiplier": Chart(
            "Multiplier, batches, noise",
            "The share of noise is σ²/B over ‖∇g‖² + σ²/B, for methods whose estimate is the mean of one mini-batch.",
            _ALONG,
            _DURING,
            series,
            panels=0,
        ),
        "front": _front(experiment, data["points"], list(seconds)),
    }


def _look(name: str) -> int:
    return list(METHODS).index(name)


def _series(
    experiment: "Experiment", name: str, curves: Columns, seconds: float
) -> Series:
    names = [axis.key for axis in (*_CURVES, *_DURING[:2])]
    names += ["calls", "upper_calls", "lower_calls"]
    steps, *arrays = by_step(curves, *names)
    values = dict(zip(names, arrays, strict=True))
    rows = thinned(len(steps))
    calls = np.nanmax(values["calls"], axis=1)
    columns: dict[str, Any] = {"calls": calls[rows], "step": steps[rows]}
    columns["seconds"] = seconds * steps[rows] / max(steps[-1], 1)
    for axis in (*_CURVES, *_DURING[:2]):
        columns |= spread(axis.key, values[axis.key][rows])
    estimator = METHODS[name].estimator
    for level in ("upper", "lower"):
        charged = np.nanmax(values[f"{level}_calls"], axis=1)
        calls_of_step = np.append(np.diff(charged) / np.diff(steps), np.nan)
        columns[f"{level}_batch"] = (calls_of_step / estimator.evaluations)[rows]
    if type(estimator).__name__ == "Minibatch":
        variance = 2 * experiment.noises[1] ** 2 / columns["lower_batch"]
        with np.errstate(all="ignore"):
            columns["noise"] = variance / (columns["lower_gradient_squared"] + variance)
    return Series(label(name), columns, _look(name))


def _landscape(experiment: "Experiment", curves: Mapping[str, Columns]) -> Landscape:
    """The mean path of every method over the contours of g."""
    paths = [_path(name, columns) for name, columns in curves.items()]
    reached = np.concatenate([np.stack([path.x, path.y], axis=1) for path in paths])
    start = (experiment.start[0], experiment.start[1])
    view = _window(np.concatenate([reached, [start, CENTER, (0, 0), _SOLUTION]]), 1.0)
    (left, right), (bottom, top) = view
    x = np.linspace(left, right, 160)
    y = np.linspace(bottom, top, 90)
    minimisers = _PERIOD * np.arange(math.ceil(left / _PERIOD), right / _PERIOD)
    runs = experiment.runs
    over = f"The mean over {runs} runs" if runs > 1 else "One run"
    return Landscape(
        "Paths over the landscape of g",
        f"{over} of each method over the contours of g. "
        "Circles: minimisers of g; star: the bilevel solution; cross: the minimiser of f; square: the start.",
        x,
        y,
        lower_value(np.stack(np.meshgrid(x, y), axis=-1)),
        paths,
        [
            ("minimisers of g", "circle", [(float(m), 0.0) for m in minimisers]),
            ("minimiser of f", "cross", [CENTER]),
            ("bilevel solution", "star", [_SOLUTION]),
            ("start", "square", [start]),
        ],
        {"whole": view, "closer": _window(np.concatenate([reached, [start]]), 0.3)},
    )


def _path(name: str, curves: Columns) -> Path:
    steps, x, y, calls = by_step(curves, "x0", "x1", "calls")
    mean_x = spread("", x, None)[""]
    mean_y = spread("", y, None)[""]
    on_map = np.flatnonzero((np.abs(mean_x) <= _FAR) & (np.abs(mean_y) <= _FAR))
    rows = on_map[thinned(len(on_map), _POINTS)]
    single = np.stack([x[rows], y[rows]])[:, :, :_RUNS]
    single = np.where((np.abs(single) > _FAR).any(axis=0), np.nan, single)
    return Path(
        label(name),
        _look(name),
        mean_x[rows],
        mean_y[rows],
        steps[rows],
        np.nanmax(calls, axis=1)[rows],
        list(single.transpose(2, 0, 1)),
    )


def _window(points: Any, margin: float) -> Any:
    """Limits ((left, right), (bottom, top)) around the points on the map."""
    points = points[(np.abs(points) <= _FAR).all(axis=1)]
    low = points.min(axis=0) - margin
    high = points.max(axis=0) + margin
    return np.stack([low, high], axis=1).tolist()


def _front(experiment: "Experiment", points: Columns, names: list[str]) -> Chart:
    """Where each method ends in the plane of g and f, beside the points that fixed weights reach."""
    weights = np.geomspace(0.03, 300, 60)[:, None]
    x = np.tile(np.asarray(experiment.start, dtype=float), (len(weights), 1))
    for _ in range(_DESCENT):  # both gradients have Lipschitz constant 1
        gradient = upper_gradient(x) + weights * lower_gradient(x)
        x = x - gradient / (1 + weights)
    jumps = np.flatnonzero(np.diff(np.rint(x[:, 0] / _PERIOD))) + 1
    line = {
        "lower": np.insert(lower_value(x), jumps, np.nan),
        "upper": np.insert(upper_value(x), jumps, np.nan),
    }
    title = "f + w g, exact, w from 0.03 to 300"
    series = [Series(title, line, NEUTRAL, "lines+markers", dash="solid")]
    for name in names:
        ends = select(points, method=name, iterate="last")
        columns = {"lower": ends["lower_value"], "upper": ends["upper_value"]}
        series.append(Series(label(name), columns, _look(name), "markers"))
    return Chart(
        "The last iterates beside the front of the weighted sum",
        "A point for each run. The line is what gradient descent on f + w g reaches from the same start, with exact "
        f"gradients and {_DESCENT:,} steps; it is broken where a weight leads to another minimiser of g.",
        [Axis("lower", "g at the end", "log")],
        [Axis("upper", "f at the end")],
        series,
        panels=0,
    )
