"""Draws the pictures of the documentation: ``python docs/figures.py`` writes ``docs/_static/geometry.svg``."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak import rules

INK, FAINT = "#1f2933", "#7b8794"
UPPER, LOWER, DIRECTION = "#0072b2", "#d55e00", "#008060"  # f blue, g orange, d green: told apart by colour-blind eyes
STYLE = {"mathtext.fontset": "cm", "font.family": "DejaVu Sans", "svg.hashsalt": "tiebreak"}
STATIC = Path(__file__).parent / "_static"

UPPER_GRADIENT = np.array([1.95, -0.75])
LOWER_GRADIENT = np.array([0.0, 1.15])
BARRIER = 0.5


def direction(rule: Any, **arguments: float) -> Any:
    a, b = UPPER_GRADIENT, LOWER_GRADIENT
    return a + rule(a @ b, b @ b, BARRIER, **arguments) * b


def arrow(axes: Any, start: Any, end: Any, colour: str, width: float = 2.6) -> None:
    shape = {"arrowstyle": "-|>,head_width=.32,head_length=.75", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**shape, "color": colour, "lw": width, "joinstyle": "miter"}, zorder=4)


def projection(axes: Any) -> None:
    """The direction is the projection of ∇f on a half-space; ρ lets it stop short of the boundary."""
    a, b = UPPER_GRADIENT, LOWER_GRADIENT
    left, right, bottom, top = -0.62, 3.83, -0.92, 1.53
    height = BARRIER * b[1]

    def write(x: float, y: float, text: str, colour: str = INK, size: float = 12.0, side: str = "center") -> None:
        axes.text(x, y, text, color=colour, fontsize=size, ha=side, va="center")

    axes.fill_between([left, right], height, top, color=DIRECTION, alpha=0.10, lw=0)
    axes.plot([left, right], [height, height], color=DIRECTION, lw=1.4)
    write(right - 0.12, top - 0.2, "enough descent on $g$", DIRECTION, 11.5, "right")
    write(
        right - 0.12,
        top - 0.46,
        r"$\langle\nabla g,\,d\rangle\;\geq\;\beta\,\Vert\nabla g\Vert^2$",
        DIRECTION,
        14,
        "right",
    )

    exact = direction(rules.dbgd)
    axes.plot(*np.array([a, exact]).T, color=INK, lw=1.2, ls=(0, (4, 3)), zorder=3)
    arrow(axes, (0, 0), b, LOWER)
    arrow(axes, (0, 0), a, UPPER)
    arrow(axes, (0, 0), exact, DIRECTION)
    write(-0.24, 0.92, r"$\nabla g$", LOWER, 16)
    write(0.85, -0.54, r"$\nabla f$", UPPER, 16)
    write(1.0, 0.13, "$d$", DIRECTION, 17)
    write(a[0] - 0.26, -0.1, r"$\lambda\nabla g$", INK, 13.5)
    notes = (
        (0.0, r"$\rho=0$: on the boundary", 0.15),
        (0.25, r"$\rho=\frac{1}{4}\Vert\nabla g\Vert^2$", 0),
        (1.0, r"$\rho=\Vert\nabla g\Vert^2$", 0),
        (np.inf, r"$\rho\to\infty$: only $f$ counts", 0),
    )
    for share, text, lift in notes:
        end = a if share == np.inf else direction(rules.sdbgd, regularizer=share * (b @ b))
        if 0 < share < np.inf:
            axes.plot(*end, "o", ms=7.5, mfc="white", mec=DIRECTION, mew=2, zorder=5)
        write(end[0] + 0.13, end[1] + lift, text, INK, 11.5, "left")
    axes.plot(0, 0, "o", ms=6, color=INK, zorder=6)
    write(-0.17, -0.13, "$x$", INK, 15)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    axes.axis("off")
    axes.set_title(r"The direction $d=\nabla f+\lambda\nabla g$", color=INK, fontsize=13, pad=10)


def multipliers(axes: Any) -> None:
    """λ against ‖∇g‖ where the gradients oppose each other: what ρ is for."""
    norm = np.geomspace(1e-3, 3, 500)
    fg, gg = -norm, norm**2  # ‖∇f‖ = 1
    rho = 0.01
    bound = BARRIER + 1 / (2 * np.sqrt(rho))
    for level, text in ((bound, r"$\beta+\Vert\nabla f\Vert/2\sqrt{\rho}$"), (BARRIER, r"$\beta$")):
        axes.axhline(level, color=FAINT, lw=1, zorder=1)
        side = "left" if level == bound else "right"
        axes.text(
            {"left": 1.15e-3, "right": 2.8}[side], level * 0.93, text, color=FAINT, fontsize=12.5, ha=side, va="top"
        )
    curves: tuple[tuple[Any, str, Any, str, tuple[float, float]], ...] = (
        (rules.dbgd(fg, gg, BARRIER), LOWER, (0, (1, 1.2)), r"DBGD, $\rho=0$", (0.062, 26)),
        (rules.sdbpg(fg, gg, BARRIER, rho), UPPER, (0, (5, 2)), "SDBPG", (0.0085, 2.1)),
        (rules.sdbgd(fg, gg, BARRIER, rho), DIRECTION, "-", "SDBGD", (0.0042, 0.27)),
    )
    for values, colour, dash, name, at in curves:
        axes.plot(norm, values, color=colour, ls=dash, lw=2.6, zorder=3)
        axes.text(*at, name, color=colour, fontsize=12, ha="left" if name != "SDBPG" else "right", va="center")
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 3), ylim=(0.08, 60))
    axes.set_xlabel(r"$\Vert\nabla g\Vert$", color=INK, fontsize=13)
    axes.set_title(
        r"$\lambda$ where $\nabla f=-\nabla g\,/\,\Vert\nabla g\Vert$, $\rho=0.01$", color=INK, fontsize=13, pad=10
    )
    axes.tick_params(colors=FAINT, labelsize=10.5)
    axes.tick_params(which="minor", length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)


def geometry() -> Any:
    """The half-space and the projection on the left, the multiplier on the right."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(10.6, 3.9), facecolor="white")
    left = figure.add_axes((0.01, 0.13, 0.555, 0.765))
    right = figure.add_axes((0.625, 0.13, 0.36, 0.765))
    projection(left)
    multipliers(right)
    return figure


if __name__ == "__main__":
    STATIC.mkdir(exist_ok=True)
    geometry().savefig(STATIC / "geometry.svg", metadata={"Date": None})
