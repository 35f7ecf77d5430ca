"""The table and the figure of the study, from its records."""

import itertools
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tiebreak.provenance import stamp

DOCS = Path(__file__).parents[2] / "docs"


def gather(records, row, measure, keep=lambda record, setting: True):
    """All runs of a row as one array; None, what was not finite, becomes NaN."""
    found = []
    for record in records:
        for setting, values in zip(record["settings"], record["rows"][row][measure], strict=True):
            found += values if keep(record, setting) else []
    return np.array(found, float)


def figures(records, row, keep, own="excess", lost="lost"):
    """The share inside, the worst excess, and the lost share in the median."""
    excess, lost = gather(records, row, own, keep), gather(records, row, lost, keep)
    return np.mean(excess <= 1), np.nanmax(excess), np.nanmedian(lost)


def _share(values):
    return f"{100 * np.mean(values):.1f} %"


def _line(name, records, row, keep, own="excess"):
    excess, lost = gather(records, row, own, keep), gather(records, row, "lost", keep)
    averaged = gather(records, row, "averaged excess", keep)
    swing, calm = (np.nanmean(gather(records, row, name, keep)) for name in ("swing", "averaged swing"))
    worst = np.nanmax(excess)
    ended, left = (gather(records, row, f"finished {what}", keep) for what in ("excess", "lost"))
    return (
        f"| {name} | {len(excess)} | {_share(excess <= 1)} | {worst:.2f} | {np.nanquantile(excess, 0.99):.2f} | "
        f"{_quartiles(lost)} | {_share(ended <= 1)} | {np.nanmax(ended):.2f} | {_quartiles(left)} | "
        f"{int(gather(records, row, 'diverged', keep).sum())} | {swing:.2f} | {_share(averaged <= 1)} | {calm:.2f} |"
    )


def _quartiles(lost):
    lost = lost[np.isfinite(lost)]
    low, middle, high = 100 * np.quantile(lost, (0.25, 0.5, 0.75)) if len(lost) else (np.nan,) * 3
    return f"{middle:.0f} % ({low:.0f}, {high:.0f})"


def swept(records, many):
    """What a sweep gives on another seed: figures of the five stored weights, each chosen on `many` seeds.

    Every seed is left out in turn, and every set of `many` others chosen by: of the weights that end inside on all of
    these that which loses least there, or the largest where none does.
    """
    weights = [row for row in records[0]["rows"] if row.startswith("weight")]
    excess, lost = [], []
    for record in records:
        e, f = (np.array([record["rows"][w][m] for w in weights], float) for m in ("excess", "lost"))
        seeds = range(e.shape[2])
        for i, seed in itertools.product(range(e.shape[1]), seeds):
            for others in itertools.combinations([s for s in seeds if s != seed], many):
                there = f[:, i, others].mean(1)  # NaN where nothing can be gained
                inside = [k for k in range(len(weights)) if (e[k, i, others] <= 1).all()] or [len(weights) - 1]
                best = min(inside, key=lambda k, there=there: (np.nan_to_num(there[k], nan=np.inf), k))
                excess.append(e[best, i, seed])
                lost.append(f[best, i, seed])
    return np.mean(np.array(excess) <= 1), np.nanmax(excess), np.nanmedian(lost)


HEAD = (
    "| law, reference | runs | inside | worst excess | 99 % below | lost share: median (quartiles) | "
    "finished: inside | worst | lost share | diverged | swing | averaged weights: inside | their swing |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def everything(record, setting):
    return True


def fine(record, setting):
    return setting[2] == "fine-tuning"


def shared(record, setting):
    """Whether the tolerance is at most all of the lower-only loss: else nobody would write it as a share of it."""
    tolerance = record["tolerance"]
    if isinstance(tolerance, str):  # a share in percent
        return True
    return tolerance <= record["lower"][record["settings"].index(setting)]


def _names(records):
    """Rows in the order in which they are shown; the start is a reference for fine-tuning alone."""
    return [name for name in records[0]["rows"] if name != "ours, start"]


def table(records, about):
    """Markdown: all runs, the parts of them, and every group."""
    parts = [
        about,
        "",
        HEAD,
        *(_line(name, records, name, shared if "share" in name else everything) for name in _names(records)),
    ]
    idle = [r["task"] for r in records if np.isnan(gather([r], "ours, twin", "lost")).all()]
    if idle:
        parts += ["", f"Without {', '.join(idle)}, where no fixed weight that ends inside gains 2 % in f:", "", HEAD]
        parts += [_line(name, records, name, lambda r, _: r["task"] not in idle) for name in _names(records)]
    if any(fine(None, s) for record in records for s in record["settings"]):
        parts += [
            "",
            "Fine-tuning alone. The start is kept to in the last line; lower-only training goes below it:",
            "",
            HEAD,
        ]
        parts += [_line(name, records, name, fine) for name in ("ours, twin", "ours, start")]
        parts += [_line("ours, start, counted from the start", records, "ours, start", fine, "over the start")]
    parts += ["", "Ours by schedule, by start and by optimizer:", "", HEAD]
    for row in ("ours, twin", "ours, number"):
        for place in (1, 2, 0):
            for kind in sorted({s[place] for record in records for s in record["settings"]}):
                parts.append(_line(f"{row}: {kind}", records, row, lambda _, s, p=place, k=kind: s[p] == k))
    parts += ["", "By group: inside, worst excess, lost share in the median; and the last two when finished.", ""]
    shown = [row for row in ("ours, twin", "ours, number", "PID, twin", "νPI, twin") if row in records[0]["rows"]]
    parts += [f"| task | batch | steps | tolerance | {' | '.join(shown)} |", "|---|---|---|---|" + "---|" * len(shown)]
    for record in records:
        about_group = (record["task"], record["batch"], record["steps"], record["tolerance"])
        cells = [*map(str, about_group), *(_cell(record, row) for row in shown)]
        parts.append(f"| {' | '.join(cells)} |")
    lost = gather(records, "ours, twin", "lost")
    nothing = int(np.isnan(lost).sum())
    parts += ["", f"Runs in which f can gain less than 2 %, and which have no lost share: {nothing} of {len(lost)}."]
    weights = [gather(records, row, "excess") for row in ("weight 32", "weight 178", "weight 1000")]
    never = ~(np.array(weights) <= 1).any(0)
    ours = gather(records, "ours, twin", "excess")
    parts += [
        f"Runs in which the fixed weights 32, 178 and 1000 all end outside, so that perhaps no law can do better: "
        f"{int(never.sum())}; ours with a twin is outside in {int((~(ours <= 1) & never).sum())} of them and in "
        f"{int((~(ours <= 1) & ~never).sum())} others."
    ]
    return "\n".join(parts) + "\n"


def _cell(record, row):
    def pair(before):
        excess, lost = (gather([record], row, f"{before}{what}") for what in ("excess", "lost"))
        lost = f"{100 * np.nanmedian(lost):.0f} %" if np.isfinite(lost).any() else "–"
        return excess, f"{np.nanmax(excess):.2f}, {lost}"

    excess, now = pair("")
    return f"{int((excess <= 1).sum())}/{len(excess)}, {now}; {pair('finished ')[1]}"


def figure(records, path):
    """Excess against lost share, a point per run: ours beside the others, with the same reference, before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    laws = {
        "ours": "ours",
        "PID": "PID Lagrangian",
        "νPI": "νPI",
        "dual ascent": "dual ascent",
        "switching": "switching",
    }
    lines = {"a twin": ("twin", ""), "a twin, finished": ("twin", "finished ")}
    lines |= {"a number": ("number", ""), "a number, finished": ("number", "finished ")}
    pictures, axes = plt.subplots(4, 5, figsize=(13, 10.6), sharex=True, sharey=True, constrained_layout=True)
    for (kind, before), line_axes in zip(lines.values(), axes, strict=True):
        for (law, title), axis in zip(laws.items(), line_axes, strict=True):
            excess, lost = (gather(records, f"{law}, {kind}", f"{before}{what}") for what in ("excess", "lost"))
            some = np.isfinite(excess) & np.isfinite(lost)
            x, y = np.clip(excess[some], -0.5, 3), np.clip(lost[some], -0.5, 1.2)
            inside = x <= 1
            axis.axvspan(1, 3.1, color="0.93", zorder=0)
            axis.axhline(0, color="0.7", lw=0.8, zorder=1)
            axis.scatter(x[inside], y[inside], s=7, color="tab:blue", alpha=0.5, lw=0)
            axis.scatter(x[~inside], y[~inside], s=10, color="tab:red", alpha=0.7, lw=0)
            share, middle = 100 * np.mean(excess <= 1), 100 * np.nanmedian(lost)
            axis.set_title(f"{title}: {share:.0f} % inside, {middle:.0f} % lost", fontsize=9)
    for axis, line in zip(axes[:, 0], lines, strict=True):
        axis.set_ylabel(f"lost share of f's gain\n(reference: {line})")
    for axis in axes[-1]:
        axis.set_xlabel("excess of g, in tolerances")
    axes[0, 0].set_xlim(-0.55, 3.1)
    pictures.savefig(path, dpi=110)


def write(records, about, results, constants, since):
    """Results and table in their places, and the figure where Matplotlib is installed.

    `constants` are ours as judged, and `since` those that were changed after the judging.
    """
    record = {"about": about, "ours": constants, "since": since, **stamp(), "judging": records}
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    (results / "tolerance.json").write_text(text + "\n")
    (DOCS / "_tables" / "tolerance.md").write_text(table(records, about))
    if find_spec("matplotlib") is None:
        print("no figure without Matplotlib: --draw makes it from the results")
        return
    figure(records, DOCS / "_static" / "tolerance.png")
