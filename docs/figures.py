"""Draws the pictures of the documentation: ``python docs/figures.py`` writes them into ``docs/_static``."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak import problems, rules, stationarity

INK, FAINT = "#1f2933", "#7b8794"
UPPER, LOWER, DIRECTION = (
    "#0072b2",
    "#d55e00",
    "#008060",
)  # f blue, g orange, d green: told apart by colour-blind eyes
STYLE = {
    "mathtext.fontset": "cm",
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "tiebreak",
}
STATIC = Path(__file__).parent / "_static"

UPPER_GRADIENT = np.array([1.95, -0.75])
LOWER_GRADIENT = np.array([0.0, 1.15])
BARRIER = 0.5


def direction(rule: Any, **arguments: float) -> Any:
    a, b = UPPER_GRADIENT, LOWER_GRADIENT
    return a + rule(a @ b, b @ b, BARRIER, **arguments) * b


def arrow(axes: Any, start: Any, end: Any, colour: str, width: float = 2.6) -> None:
    shape = {
        "arrowstyle": "-|>,head_width=.32,head_length=.75",
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate(
        "",
        end,
        start,
        arrowprops={**shape, "color": colour, "lw": width, "joinstyle": "miter"},
        zorder=4,
    )


def projection(axes: Any) -> None:
    """The direction is the projection of ∇f on a half-space; ρ lets it stop short of the boundary."""
    a, b = UPPER_GRADIENT, LOWER_GRADIENT
    left, right, bottom, top = -0.62, 3.83, -0.92, 1.53
    height = BARRIER * b[1]

    def write(
        x: float,
        y: float,
        text: str,
        colour: str = INK,
        size: float = 12.0,
        side: str = "center",
    ) -> None:
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
        end = (
            a
            if share == np.inf
            else direction(rules.sdbgd, regularizer=share * (b @ b))
        )
        if 0 < share < np.inf:
            axes.plot(*end, "o", ms=7.5, mfc="white", mec=DIRECTION, mew=2, zorder=5)
        write(end[0] + 0.13, end[1] + lift, text, INK, 11.5, "left")
    axes.plot(0, 0, "o", ms=6, color=INK, zorder=6)
    write(-0.17, -0.13, "$x$", INK, 15)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    axes.axis("off")
    axes.set_title(
        r"The direction $d=\nabla f+\lambda\nabla g$", color=INK, fontsize=13, pad=10
    )


def multipliers(axes: Any) -> None:
    """λ against ‖∇g‖ where the gradients oppose each other: what ρ is for."""
    norm = np.geomspace(1e-3, 3, 500)
    fg, gg = -norm, norm**2  # ‖∇f‖ = 1
    rho = 0.01
    bound = BARRIER + 1 / (2 * np.sqrt(rho))
    for level, text in (
        (bound, r"$\beta+\Vert\nabla f\Vert/2\sqrt{\rho}$"),
        (BARRIER, r"$\beta$"),
    ):
        axes.axhline(level, color=FAINT, lw=1, zorder=1)
        side = "left" if level == bound else "right"
        axes.text(
            {"left": 1.15e-3, "right": 2.8}[side],
            level * 0.93,
            text,
            color=FAINT,
            fontsize=12.5,
            ha=side,
            va="top",
        )
    curves: tuple[tuple[Any, str, Any, str, tuple[float, float]], ...] = (
        (
            rules.dbgd(fg, gg, BARRIER),
            LOWER,
            (0, (1, 1.2)),
            r"DBGD, $\rho=0$",
            (0.062, 26),
        ),
        (rules.sdbpg(fg, gg, BARRIER, rho), UPPER, (0, (5, 2)), "SDBPG", (0.0085, 2.1)),
        (rules.sdbgd(fg, gg, BARRIER, rho), DIRECTION, "-", "SDBGD", (0.0042, 0.27)),
    )
    for values, colour, dash, name, at in curves:
        axes.plot(norm, values, color=colour, ls=dash, lw=2.6, zorder=3)
        axes.text(
            *at,
            name,
            color=colour,
            fontsize=12,
            ha="left" if name != "SDBPG" else "right",
            va="center",
        )
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 3), ylim=(0.08, 60))
    axes.set_xlabel(r"$\Vert\nabla g\Vert$", color=INK, fontsize=13)
    axes.set_title(
        r"$\lambda$ where $\nabla f=-\nabla g\,/\,\Vert\nabla g\Vert$, $\rho=0.01$",
        color=INK,
        fontsize=13,
        pad=10,
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


def stationary_points(axes: Any) -> None:
    """Around (0, 0) on the paper's problem: min over λ, and the points that Definition 1 calls stationary."""
    problem, epsilon, half = problems.paper(), 0.01, 0.16
    side = np.linspace(
        -half, half, 640
    )  # an even number: (0, 0) itself is not among them
    x = np.stack(np.meshgrid(side, side), axis=-1)
    upper, lower = (
        np.asarray(oracle.exact_gradient(x))
        for oracle in (problem.upper, problem.lower)
    )
    found = stationarity.residuals(upper, lower, 0.0)
    least = found.stationarity_squared
    image = axes.imshow(
        least,
        origin="lower",
        extent=(-half, half, -half, half),
        cmap="cividis",
        vmin=0,
        vmax=1,
    )
    axes.figure.colorbar(image, ax=axes, shrink=0.82, pad=0.03)
    good = (least <= epsilon) & (found.lower_gradient_squared <= epsilon)
    axes.contour(side, side, good, levels=[0.5], colors="white", linewidths=2)
    weights = np.geomspace(
        5, 1e3, 200
    )  # where ∇f + β∇g = 0, by Newton's method: ∇²g is near the unit matrix there
    path = np.zeros((len(weights), 2))
    for _ in range(60):
        f, g = (
            np.asarray(oracle.exact_gradient(path))
            for oracle in (problem.upper, problem.lower)
        )
        path -= f / weights[:, None] + g
    axes.plot(*path.T, color=LOWER, lw=1.6, ls=(0, (4, 2)))
    axes.plot(0, 0, "o", ms=7, mfc=LOWER, mec="white", mew=1.2)
    axes.set_xlim(-half, half)
    axes.set_ylim(-half, half)
    axes.set_title(
        r"$\min_{\lambda\geq0}\Vert\nabla f+\lambda\nabla g\Vert^2$ around $(0,0)$",
        color=INK,
        fontsize=13,
        pad=10,
    )
    axes.set(xlabel="$x_1$", ylabel="$x_2$")


def approaching(axes: Any) -> None:
    """The same against the distance from (0, 0), in three directions, and the λ that it takes."""
    problem, r = problems.paper(), np.geomspace(1e-4, 0.3, 200)
    ahead = np.arctan2(1.0, 7.1)  # towards c
    for angle, colour, text in (
        (0.0, DIRECTION, "towards $c$"),
        (25.0, UPPER, "25° off"),
        (45.0, LOWER, "45° off"),
    ):
        way = ahead + np.deg2rad(angle)
        x = r[:, None] * np.array([np.cos(way), np.sin(way)])
        upper, lower = (
            np.asarray(oracle.exact_gradient(x))
            for oracle in (problem.upper, problem.lower)
        )
        found = stationarity.residuals(upper, lower, stationarity.best_multiplier)
        axes.plot(r, found.stationarity_squared, color=colour, lw=2.6)
        axes.text(
            r[-1] * 0.85,
            found.stationarity_squared[-1] + 0.03,
            text,
            color=colour,
            fontsize=12,
            ha="right",
        )
        if not angle:
            for i in (20, 80, 140):
                axes.text(
                    r[i],
                    0.09,
                    rf"$\lambda={found.multiplier[i]:,.0f}$",
                    color=FAINT,
                    fontsize=11,
                    ha="center",
                )
                axes.plot([r[i], r[i]], [0.01, 0.07], color=FAINT, lw=1)
    here = float(np.sum(np.asarray(problem.upper.exact_gradient(np.zeros(2))) ** 2))
    axes.plot(r[0], here, "o", ms=8, color=INK, clip_on=False, zorder=5)
    axes.text(
        r[0] * 1.25,
        here,
        f"at $(0,0)$: {here:.2f}",
        color=INK,
        fontsize=12,
        va="center",
    )
    axes.set(xscale="log", xlim=(r[0], r[-1]), ylim=(0, 1.08))
    axes.set_xlabel("distance from $(0,0)$", color=INK, fontsize=13)
    axes.set_title(
        "the same along three rays: it jumps at $(0,0)$", color=INK, fontsize=13, pad=10
    )
    axes.tick_params(which="minor", length=0)


def stationary() -> Any:
    """The map on the left, three ways to (0, 0) on the right."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(10.6, 4.4), facecolor="white")
    stationary_points(figure.add_axes((0.06, 0.13, 0.42, 0.765)))
    approaching(figure.add_axes((0.58, 0.13, 0.40, 0.765)))
    return figure


def front(axes: Any) -> None:
    """Two quadratics: every weighted sum's minimiser, and where two tolerances end."""
    upper, lower, centre = (
        np.diag([1.0, 0.3]),
        np.diag([0.15, 1.0]),
        np.array([2.0, 1.2]),
    )
    weights = np.geomspace(1e-3, 1e3, 600)
    points = np.array(
        [np.linalg.solve(upper + w * lower, upper @ centre) for w in weights]
    )
    f = np.einsum("ki,ij,kj->k", points - centre, upper, points - centre) / 2
    g = np.einsum("ki,ij,kj->k", points, lower, points) / 2
    axes.plot(g, f, color=FAINT, lw=2.2)
    for limit, text in ((0.06, "tolerance"), (0.2, "a larger one")):
        i = int(np.argmin(np.abs(g - limit)))
        axes.axvline(limit, color=LOWER, lw=1.2, ls=(0, (4, 3)))
        axes.plot(g[i], f[i], "o", ms=8, mfc=UPPER, mec="white", mew=1.2, zorder=5)
        axes.text(
            limit + 0.008, 1.9, text, color=LOWER, fontsize=11.5, rotation=90, va="top"
        )
        axes.text(
            g[i] + 0.02,
            f[i] + 0.05,
            f"ends here (its weight: {weights[i]:.1f})",
            color=UPPER,
            fontsize=11.5,
        )
    axes.axvspan(0, 0.06, color=LOWER, alpha=0.08, lw=0)
    axes.plot(g[-1], f[-1], "s", ms=7, color=INK, clip_on=False, zorder=5)
    axes.text(
        0.012, f[-1] + 0.06, "lower loss alone: the reference", color=INK, fontsize=11.5
    )
    axes.plot(g[0], f[0], "s", ms=7, mfc="white", mec=INK, zorder=5)
    axes.text(g[0], 0.1, "upper loss alone", color=INK, fontsize=11.5, ha="right")
    axes.set(xlim=(0, 1.08 * g[0]), ylim=(0, 1.12 * f[-1]))
    axes.set_xlabel("lower loss above its best", color=INK, fontsize=12)
    axes.set_ylabel("upper loss", color=INK, fontsize=12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def choosing() -> Any:
    """What a tolerance is."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(7.4, 4.2), facecolor="white")
    front(figure.add_axes((0.09, 0.14, 0.88, 0.82)))
    return figure


def basin(axes: Any, swapped: bool) -> None:
    """One parameter: a loss with a flat bottom, one that slopes, and where each order of the two ends."""
    x = np.linspace(0, 10, 600)
    flat = (
        0.28 * np.clip(np.abs(x - 4.6) - 2.2, 0, None) ** 2 + 0.25
    )  # least between 2.4 and 6.8
    slope = 0.06 * (x - 9.2) ** 2 + 0.25
    limit = flat.min() + 0.35
    axes.plot(x, flat, color=LOWER, lw=2.6)
    axes.plot(x, slope, color=UPPER, lw=2.6)
    axes.text(0.75, 1.9, "fit", color=LOWER, fontsize=13)
    axes.text(1.55, 4.0, "size of the weights", color=UPPER, fontsize=13)
    if swapped:
        end = float(x[np.argmin(slope)])
        axes.set_title(
            "swapped: size is lower, fit is upper", color=INK, fontsize=13, pad=10
        )
        axes.text(
            end - 0.2,
            2.6,
            "smallest weights,\nbad fit",
            color=INK,
            fontsize=11.5,
            ha="right",
        )
    else:
        inside = x[flat <= limit]
        end = float(inside[np.argmin(slope[flat <= limit])])
        axes.axvspan(inside[0], inside[-1], color=LOWER, alpha=0.10, lw=0)
        axes.axhline(limit, color=LOWER, lw=1.2, ls=(0, (4, 3)))
        axes.text(2.3, limit + 0.08, "best fit + tolerance", color=LOWER, fontsize=11)
        axes.set_title("fit is lower, size is upper", color=INK, fontsize=13, pad=10)
        axes.text(
            4.6,
            3.05,
            "all of these\nfit well enough",
            color=LOWER,
            fontsize=11.5,
            ha="center",
        )
    for values, colour in ((flat, LOWER), (slope, UPPER)):
        axes.plot(
            end,
            np.interp(end, x, values),
            "o",
            ms=9,
            mfc=colour,
            mec="white",
            mew=1.4,
            zorder=5,
        )
    axes.axvline(end, color=INK, lw=1, ls=(0, (1, 2)))
    axes.text(
        end + (0.12 if end < 8 else -0.12),
        4.35,
        "ends here",
        color=INK,
        fontsize=11.5,
        ha="left" if end < 8 else "right",
    )
    axes.set(xlim=(0, 10), ylim=(0, 4.8), xticks=[], yticks=[])
    axes.set_xlabel("models", color=INK, fontsize=12)
    axes.set_ylabel("loss", color=INK, fontsize=12)


def compared(axes: Any, kind: str) -> None:
    """The lower loss during training, the reference that it is compared with, and the tolerance above that."""
    t = np.linspace(0, 1, 400)
    alone = 0.5 + 2.2 * np.exp(-5 * t)  # training on the lower loss alone
    allowed = 0.3
    title, reference, loss = {
        "twin": (
            '"twin": a copy, trained beside it',
            alone,
            alone + allowed * (1 - 0.9 * np.exp(-6 * t)) * 0.85,
        ),
        "start": (
            '"start": the model before the first step',
            np.full_like(t, 1.2),
            1.2 + 0.24 * (1 - np.exp(-5 * t)),
        ),
        "number": (
            "a number: the end of an earlier run",
            np.full_like(t, alone[-1]),
            0.5 + 2.2 * np.exp(-5 * t) + 0.22 * t,
        ),
    }[kind]
    axes.fill_between(t, reference, reference + allowed, color=LOWER, alpha=0.15, lw=0)
    axes.plot(t, reference, color=INK, lw=1.8, ls=(0, (4, 2)))
    axes.plot(t, loss, color=LOWER, lw=2.8)
    axes.set_title(title, color=INK, fontsize=12, pad=8)
    axes.set(xlim=(0, 1), ylim=(0, 3), xticks=[], yticks=[])
    axes.set_xlabel("steps", color=INK, fontsize=12)
    if kind == "twin":
        axes.set_ylabel("lower loss", color=INK, fontsize=12)
        axes.text(0.24, 1.85, "the model", color=LOWER, fontsize=11.5)
        axes.text(0.05, 0.45, "the reference", color=INK, fontsize=11.5)
        axes.annotate(
            "tolerance",
            (0.75, 0.66),
            (0.62, 1.35),
            color=INK,
            fontsize=11.5,
            arrowprops={"arrowstyle": "-"},
        )
    if kind == "number":
        axes.text(
            0.3,
            1.75,
            "still far above it:\nnothing for $f$ yet",
            color=LOWER,
            fontsize=11.5,
        )


def panels(widths: int, draw: Any, kinds: Any, size: tuple[float, float]) -> Any:
    """The same drawing for several kinds, side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    for axes, kind in zip(
        np.atleast_1d(figure.subplots(1, widths)), kinds, strict=True
    ):
        draw(axes, kind)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    STATIC.mkdir(exist_ok=True)
    geometry().savefig(STATIC / "geometry.svg", metadata={"Date": None})
    stationary().savefig(STATIC / "stationary.svg", metadata={"Date": None})
    choosing().savefig(STATIC / "choosing.svg", metadata={"Date": None})
    panels(2, basin, (False, True), (10.6, 3.8)).savefig(
        STATIC / "roles.svg", metadata={"Date": None}
    )
    panels(3, compared, ("twin", "start", "number"), (10.6, 3.2)).savefig(
        STATIC / "references.svg", metadata={"Date": None}
    )
