"""The paper's figure: residuals against calls."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.style import footnote, legend, log_grid, look, method_lines, panels, style

_BAND = (0.1, 0.9)


def comparison(outcome: Outcome) -> Figure:
    """Mean over runs of ‖d_k‖² and of ‖∇g(x_k)‖² against calls, with the middle 80 % of the runs as a band.

    Examples
    --------
    >>> from tiebreak.experiments import Experiment, run
    >>> outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> [axes.get_xlabel() for axes in comparison(outcome).axes]
    ['stochastic oracle calls', 'stochastic oracle calls']
    """
    with style():
        titles = {
            "direction_squared": r"Upper level: $\|d_k\|^2$",
            "lower_gradient_squared": r"Lower level: $\|\nabla g(x_k)\|^2$",
        }
        figure, both = panels(titles.values(), ["stochastic oracle calls"] * 2)
        for axes, column in zip(both, titles, strict=True):
            for method in outcome.methods:
                _curve(axes, outcome, method, column)
            log_grid(axes)
        legend(figure, method_lines(outcome.methods), min(len(outcome.methods), 4), length=3)
        runs = outcome.experiment.runs
        text = f"Mean over {runs} runs; bands hold the middle 80 % of them." if runs > 1 else "One run."
        footnote(figure, f"{text} $d_k$ uses each method's own $\\lambda_k$.", outcome.methods)
    return figure


def _curve(axes: Axes, outcome: Outcome, method: str, column: str) -> None:
    calls, values = outcome.curve(method, column)
    values = np.where(np.isfinite(values), values, np.nan)
    # The start has cost nothing, and has no place on a logarithmic axis.
    shown = (calls > 0) & ~np.isnan(values).all(axis=1)
    calls, values = calls[shown], values[shown]
    if not len(calls):
        return
    low, high = np.nanquantile(values, _BAND, axis=1)
    own = look(method)
    axes.fill_between(calls, low, high, color=own["color"], alpha=0.18, linewidth=0)
    axes.plot(calls, np.nanmean(values, axis=1), linewidth=1.8, **own)
