"""The same gorges without noise: ``python -m benchmarks.gorge_exact`` writes a table and a picture, in half a minute.

Exact gradients, constants that do not change, and for every number of steps the best of a grid of them, in hindsight:
what a barrier and a penalty can do at all, apart from samples. Grids: the step size from 0.01 to 30 and β from 0.01 to
10 for the barrier; from 0.001 to 30 and a weight from 1 to 1000 for the penalty, up to a little beyond where its steps
are stable.
"""

from pathlib import Path

import numpy as np

from benchmarks.gorge import WALLS
from tiebreak import problems, rules, stationarity

DOCS = Path(__file__).parents[1] / "docs"
STEPS = 3000
REGULARIZER = 1e-12  # of the barrier: without noise it needs none
COLOURS = {"barrier": "#0072b2", "penalty": "#d55e00"}
GRIDS = {
    "barrier": (np.geomspace(0.01, 30, 41), np.geomspace(0.01, 10, 31)),
    "penalty": (np.geomspace(0.001, 30, 46), np.geomspace(1, 1000, 37)),
}


def least(walls, kind, marks):
    """Number of steps → the least larger residual on the grid there."""
    problem = problems.named(f"stiff-{walls}")
    step, barrier = (axis.ravel() for axis in np.meshgrid(*GRIDS[kind]))
    if kind == "penalty":
        step, barrier = (axis[step * barrier < 2.2] for axis in (step, barrier))
    x, found = np.repeat(problem.x0[None], len(step), axis=0), {}
    with np.errstate(all="ignore"):
        for k in range(max(marks) + 1):
            f, g = problem.upper.exact_gradient(x), problem.lower.exact_gradient(x)
            fg, gg = stationarity.dot(f, g), stationarity.dot(g, g)
            weight = barrier if kind == "penalty" else rules.sdbgd(fg, gg, barrier, REGULARIZER)
            if k in marks:
                there = stationarity.residuals(f, g, weight)
                larger = np.maximum(there.stationarity_squared, there.lower_gradient_squared)
                found[k] = float(np.min(larger, where=np.isfinite(larger), initial=np.inf))
            x = x - step[:, None] * (f + weight[:, None] * g)
    return found


def table(found, marks):
    lines = ["| walls | method | " + " | ".join(f"{k:,} steps" for k in marks) + " |"]
    lines.append("|---|---|" + "---:|" * len(marks))
    for (walls, kind), curve in found.items():
        lines.append(f"| {WALLS[walls]} | {kind} | " + " | ".join(f"{curve[k]:.1e}" for k in marks) + " |")
    return "\n".join(lines) + "\n"


def picture(found):
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.family": "DejaVu Sans", "svg.hashsalt": "tiebreak"})
    figure = Figure(figsize=(10.6, 3.4), facecolor="white", layout="constrained")
    for axes, (walls, words) in zip(figure.subplots(1, len(WALLS), sharey=True), WALLS.items(), strict=True):
        for kind, colour in COLOURS.items():
            curve = found[walls, kind]
            axes.loglog(list(curve), list(curve.values()), color=colour, lw=2.4, label=kind)
        axes.set_title(words, fontsize=12)
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.axes[0].set_ylabel("larger residual, best constants")
    return figure


def main():
    shown = (100, 300, 1000, STEPS)
    marks = sorted({*shown, *np.unique(np.geomspace(10, STEPS, 60).astype(int)).tolist()})
    found = {(walls, kind): least(walls, kind, marks) for walls in WALLS for kind in GRIDS}
    (DOCS / "_tables" / "gorge_exact.md").write_text(table(found, shown), encoding="utf-8")
    picture(found).savefig(DOCS / "_static" / "gorge.svg", metadata={"Date": None})
    print(table(found, shown))


if __name__ == "__main__":
    main()
