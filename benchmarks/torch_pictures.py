"""The table and the picture of the study, from its record."""

import itertools
from collections import defaultdict

import numpy as np

from tiebreak.files import atomic

INK, FAINT = "#1f2933", "#7b8794"
#: Method → colour, marker. Ours are filled, peers are hollow; the colours are told apart by colour-blind eyes.
LOOKS = {
    "lower only": (INK, "*"),
    "sum 10, plain steps": (FAINT, "X"),
    "PCD 0.5": ("#cc79a7", "v"),
    "PCD 1.0": ("#cc79a7", "^"),
    "BLUR-style": ("#a6761d", "P"),
    "Cooper 0.1": ("#56b4e9", "s"),
    "Cooper 1.0": ("#56b4e9", "D"),
    "SDBGD": ("#0072b2", "o"),
    "SDBGD, average": ("#0072b2", "<"),
    "SDBGD, STORM": ("#0072b2", ">"),
    "SDBGD, plain steps": ("#0072b2", "X"),
    "tolerance": ("#d55e00", "o"),
    "tolerance, no reference": ("#d55e00", "s"),
}
HOLLOW = ("PCD", "BLUR", "Cooper")
STARTS = {"scratch": "from scratch", "trained": "from a trained model"}
AXES = {"sparsity": "smoothed ℓ1 of the weights", "forgetting": "divergence from uniform, forgotten class"}


def gather(record):
    """(task, optimizer, start) → method → array of (lower, upper), a row per seed."""
    found = defaultdict(lambda: defaultdict(list))
    for run in record["runs"]:
        for method, point in run["points"].items():
            found[run["task"], run["optimizer"], run["start"]][method].append(point)
    return {key: {m: np.array(rows) for m, rows in methods.items()} for key, methods in found.items()}


def diverged(rows):
    """Worse than predicting nothing (ln 10) by a margin, or not finite."""
    return ~np.isfinite(rows).all(1) | (rows[:, 0] > 3)


def against_curve(methods, method):
    """f over the f of the weighted sum at the same g, a value per seed; NaN beyond the ends of the curve."""
    ratios = []
    for seed, (lower, upper) in enumerate(methods[method]):
        curve = np.array([rows[seed] for m, rows in methods.items() if m.startswith("weight ") or m == "lower only"])
        curve = np.log(curve[np.argsort(curve[:, 0])])
        best = np.minimum.accumulate(curve[:, 1])  # what some weight reaches with no more g
        with np.errstate(all="ignore"):
            expected = np.interp(np.log(lower), curve[:, 0], best, left=np.nan, right=np.nan)
            ratios.append(np.exp(np.log(upper) - expected))
    return np.array(ratios)


def number(value):
    """Three digits, short."""
    if not np.isfinite(value) or value > 1e4:
        return "∞"
    return f"{value:.3g}" if value >= 1e-3 else f"{value:.0e}"


def cell(methods, method):
    rows = methods[method]
    lost = diverged(rows)
    if lost.all():
        return "diverges"
    lower, upper = rows[~lost].mean(0)
    spread = rows[~lost, 0].std(ddof=1) if (~lost).sum() > 1 else 0.0
    text = f"{number(lower)} ± {number(spread)}, {number(upper)}"
    return text + (f" ({lost.sum()} of {len(rows)} diverge)" if lost.any() else "")


def markdown(record):
    """A table for each task: lower loss ± standard deviation over seeds, upper loss."""
    found, lines = gather(record), []
    for task in AXES:
        keys = [key for key in found if key[0] == task]
        lines += [f"**{task.capitalize()}** (upper: {AXES[task]})", ""]
        lines += ["| method | " + " | ".join(f"{o}, {s}" for _, o, s in keys) + " |", "|---|" + "---|" * len(keys)]
        for method in found[keys[0]]:
            lines.append(f"| {method} | " + " | ".join(cell(found[k], method) for k in keys) + " |")
        lines.append("")
    lines += ["**Excess of the lower loss over lower-only training, in tolerances** (at most 1 is the promise)", ""]
    lines += ["| method | " + " | ".join(" ".join(k) for k in found) + " |", "|---|" + "---|" * len(found)]
    for method in (m for m in next(iter(found.values())) if m.startswith(("tolerance", "Cooper"))):
        cells = []
        for methods in found.values():
            excess = (methods[method] - methods["lower only"])[:, 0] / record["tolerance"]
            cells.append(f"{np.median(excess):.2g} ({excess.min():.2g} … {excess.max():.2g})".replace("nan", "∞"))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines += ["", "**Upper loss over that of the weighted sum at the same lower loss** (below 1: better)", ""]
    lines += ["| method | " + " | ".join(" ".join(k) for k in found) + " |", "|---|" + "---|" * len(found)]
    for method in (m for m in LOOKS if m in next(iter(found.values())) and m != "lower only"):
        cells = []
        for methods in found.values():
            ratio = against_curve(methods, method)
            ratio = ratio[np.isfinite(ratio)]
            cells.append(f"{np.exp(np.log(ratio).mean()):.2f}" if len(ratio) else "–")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines += ["", "**Noise share of ‖∇g‖² along lower-only training**, Σν²/Σgg by thirds of it", ""]
    lines += ["| | first | second | third |", "|---|---|---|---|"]
    for key in found:
        runs = [run for run in record["runs"] if (run["task"], run["optimizer"], run["start"]) == key]
        sums = [np.sum([np.array_split(run["noise"], 3)[i].sum(0) for run in runs], 0) for i in range(3)]
        lines.append(f"| {' '.join(key)} | " + " | ".join(f"{noise / gg:.2f}" for noise, gg in sums) + " |")
    seeds = len({run["seed"] for run in record["runs"]})
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines += ["", f"Batch {record['batch']}, {record['steps']} steps, {seeds} seeds; {versions}.", ""]
    return "\n".join(lines)


def picture(record):
    """Rows: tasks. Columns: optimizers and starts. Error bars: the range over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = gather(record)
    columns = list(itertools.product(("SGD", "AdamW"), STARTS))
    style = {"font.family": "DejaVu Sans", "font.size": 9, "axes.edgecolor": FAINT, "axes.linewidth": 0.8}
    with plt.rc_context(style):
        figure, axes = plt.subplots(len(AXES), len(columns), figsize=(14, 7.6), layout="constrained")
        handles = {}
        for (i, task), (j, (optimizer, start)) in itertools.product(enumerate(AXES), enumerate(columns)):
            if (task, optimizer, start) in found:
                panel(axes[i, j], found[task, optimizer, start], record["tolerance"], handles)
            axes[i, j].set_title(f"{task}, {optimizer}, {STARTS[start]}", color=INK, fontsize=9.5)
            axes[i, j].set_xlabel("lower loss g, full training set" if i else "")
            axes[i, j].set_ylabel("" if j else f"upper loss f:\n{AXES[task]}")
        order = [name for name in handles if name not in LOOKS] + [name for name in LOOKS if name in handles]
        figure.legend([handles[name] for name in order], order, loc="outside lower center", ncols=6, frameon=False)
    return figure


def panel(axes, methods, tolerance, handles):
    """The weighted sum's curve, the band that the tolerance promises, and a mark per method."""
    from matplotlib import ticker

    curve = np.array([rows.mean(0) for m, rows in methods.items() if m.startswith("weight ")])
    (line,) = axes.loglog(*curve.T, "-", color=FAINT, lw=1.6, marker=".", ms=6, zorder=1)
    handles["weighted sum, weights 1 … 1000"] = line
    reference = methods["lower only"][:, 0].mean()
    # Plain weights (1, 3, 10, …) say where on the curve one is; every second one, to leave room.
    for (lower, upper), name in list(zip(curve, [m for m in methods if m.startswith("weight ")], strict=True))[:5:2]:
        axes.annotate(
            name.split()[1],
            (lower, upper),
            (-3, -3),
            textcoords="offset points",
            color=FAINT,
            fontsize=7,
            ha="right",
            va="top",
        )
    band = axes.axvspan(reference, reference + tolerance, color="#009e73", alpha=0.15, lw=0)
    handles["within the tolerance"] = band
    shown = []
    for method, (colour, marker) in LOOKS.items():
        rows = methods.get(method)
        if rows is None or diverged(rows).any():  # said in the table; a point off the chart says nothing
            continue
        rows = np.maximum(rows, 1e-9)  # an upper loss may be 0 to rounding
        middle = np.exp(np.log(rows).mean(0))
        bars = np.abs(np.stack([rows.min(0), rows.max(0)]) - middle)
        fill = "white" if method.startswith(HOLLOW) else colour
        size = 11 if marker == "*" else 6.5
        shown.append(middle)
        edges = {"mec": colour, "mew": 1.3} if fill == "white" else {"mec": "white", "mew": 0.6}
        mark = axes.errorbar(
            *middle,
            xerr=bars[:, :1],
            yerr=bars[:, 1:],
            elinewidth=0.8,
            capsize=0,
            zorder=3,
            **{"fmt": marker, "color": colour, "mfc": fill, "ms": size} | edges,
        )
        handles.setdefault(method, mark)
    every = np.concatenate([curve, np.array(shown)])
    axes.set_xlim(every[:, 0].min() / 1.6, every[:, 0].max() * 1.6)
    # A method that gives up g altogether has no f to speak of: it is left below the panel, and in the table.
    axes.set_ylim(max(every[:, 1].min() / 1.6, curve[:, 1].min() / 60), every[:, 1].max() * 1.6)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        wide = limits[1] > 20 * limits[0]
        axis.set_major_locator(ticker.LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(which="major", color="#e4e7eb", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, which="both", labelsize=8)


def draw(record, folder):
    """Writes ``docs/_tables/torch_study.md`` and ``docs/_static/torch_study.png``."""
    with atomic(folder / "docs/_tables/torch_study.md", "w") as file:
        file.write(markdown(record))
    (folder / "docs/_static").mkdir(parents=True, exist_ok=True)
    with atomic(folder / "docs/_static/torch_study.png") as file:
        picture(record).savefig(file, format="png", dpi=130)
