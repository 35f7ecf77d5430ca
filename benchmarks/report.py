"""From tables to files: JSON with the machine, one Markdown file, a picture for every table that has one.

``python -m benchmarks.report FILE.json --output FOLDER`` writes Markdown and pictures again from stored JSON.
"""

import argparse
import importlib.metadata
import json
import math
import numbers
import os
import platform
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import tiebreak
from benchmarks.table import Table
from tiebreak.files import atomic
from tiebreak.provenance import commit

NAME = "benchmarks"
#: Okabe and Ito's colours, told apart by colour-blind readers; dashes and marks, told apart without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = (
    "-",
    (0, (5, 1.6)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    "-",
)
MARKS = "osD^vPX"
OURS, OTHERS = COLOURS[0], "0.62"


def machine():
    """What the numbers depend on, but for the program itself."""
    found = {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    }
    found["cpu"] = _cpu()
    torch = sys.modules.get("torch")  # asked only if a benchmark has loaded it
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    found |= {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in ("numpy", "torch", "jax"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return found | {"tiebreak": tiebreak.__version__, "commit": commit(), "date": now}


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip()
            for line in lines
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or None


def record(tables, left_out=None, quick=False):
    """All that is stored, ready for JSON."""
    plain = [
        asdict(table) | {"rows": [[_plain(cell) for cell in row] for row in table.rows]}
        for table in tables
    ]
    return {
        "machine": machine(),
        "quick": quick,
        "left_out": left_out or {},
        "tables": plain,
    }


def _plain(cell):
    """Python's own types; JSON has no word for what is not finite."""
    if cell is None or isinstance(cell, (str, bool)):
        return cell
    if isinstance(cell, numbers.Integral):
        return int(cell)
    if isinstance(cell, numbers.Real):
        return float(cell) if math.isfinite(cell) else str(float(cell))
    return str(cell)


def number(cell):
    """Whether a cell can be drawn."""
    return isinstance(cell, numbers.Real) and not isinstance(cell, bool)


def shown(cell):
    """A cell as text: counts in full, measured numbers to three digits, a dash for nothing.

    >>> [shown(v) for v in (10_000, 1234.5, 0.012345, 1.5e-7, None, "peer")]
    ['10,000', '1,230', '0.0123', '1.5e-7', '–', 'peer']
    """
    if cell is None:
        return "–"
    if not number(cell):
        return str(cell)
    if isinstance(cell, numbers.Integral):
        return f"{cell:,}"
    if cell == 0 or not math.isfinite(cell):
        return f"{cell:g}"
    rounded = float(f"{cell:.3g}")
    if 1e-3 <= abs(rounded) < 1e6:
        return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    mantissa, exponent = f"{rounded:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def grid(table):
    """Header and rows as text, and for every column whether it is to be aligned right."""
    right = [
        any(number(row[j]) for row in table.rows) for j in range(len(table.columns))
    ]
    return [
        [str(name) for name in table.columns],
        *([shown(cell) for cell in row] for row in table.rows),
    ], right


def aligned(table):
    """Lines of cells, padded to the width of their columns."""
    lines, right = grid(table)
    widths = [max(3, *(len(line[j]) for line in lines)) for j in range(len(right))]
    return [
        [
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(line, widths, right, strict=True)
        ]
        for line in lines
    ], list(zip(widths, right, strict=True))


def text(table):
    """A table for the terminal."""
    lines = (
        ["  ".join(line).rstrip() for line in aligned(table)[0]]
        if table.columns
        else []
    )
    notes = [
        line
        for note in table.notes
        for line in textwrap.wrap(
            note, 110, initial_indent="  ", subsequent_indent="  "
        )
    ]
    return "\n".join([table.title, *lines, *notes, ""])


def markdown(stored, pictures=()):
    """All tables with their notes, and the pictures that there are."""
    known = stored.get("machine", {})
    lines = [f"# Benchmarks on a {'GPU' if known.get('gpu') else 'CPU'}", ""]
    if known:
        about = [f"{known['cores']} cores"] if known.get("cores") else []
        about += [
            str(known[name]) for name in ("cpu", "gpu", "platform") if known.get(name)
        ]
        about += [
            f"{n} {known[n]}"
            for n in ("python", "numpy", "torch", "jax", "tiebreak")
            if known.get(n)
        ]
        when = "; ".join(
            str(known[name]) for name in ("date", "note") if known.get(name)
        )
        lines += [f"{', '.join(about)}. {when}".strip(), ""]
    lines += [
        "Ratios within a table were measured in one run; times of different tables or machines do not compare.",
        "",
    ]
    if stored.get("quick"):
        lines += [
            "**A quick run: smaller problems and few repetitions, to see that everything works.**",
            "",
        ]
    for part, reason in stored.get("left_out", {}).items():
        lines += [f"**Left out: {part}.** {reason}", ""]
    for table in (Table(**entry) for entry in stored["tables"]):
        lines += [f"## {table.title}", ""]
        if table.columns:
            escaped = Table(table.name, table.title, *_escaped(table))
            (header, *rows), columns = aligned(escaped)
            rule = ["-" * (width - right) + ":" * right for width, right in columns]
            lines += [
                "| " + " | ".join(line) + " |" for line in (header, rule, *rows)
            ] + [""]
        lines += [f"- {note}" for note in table.notes] + [""] * bool(table.notes)
        if table.name in pictures:
            lines += [f"![{table.title}]({table.name}.png)", ""]
    return "\n".join(lines)


def _escaped(table):
    def escape(cell):
        return (
            cell.replace("|", "\\|").replace("\n", " ")
            if isinstance(cell, str)
            else cell
        )

    return [escape(name) for name in table.columns], [
        [escape(cell) for cell in row] for row in table.rows
    ]


@contextmanager
def look():
    """The repository's figures, with a second font for what the first has no sign for (superscripts)."""
    import matplotlib

    from tiebreak.studies.figures import style

    with style():
        matplotlib.rcParams["font.family"] = [
            *matplotlib.rcParams["font.family"],
            "DejaVu Sans",
        ]
        yield


def picture(table):
    """The table's figure, or None: no plot asked for, or nothing to draw."""
    if not table.plot:
        return None
    from matplotlib.figure import Figure

    plot = {"log": ""} | table.plot
    place = {name: j for j, name in enumerate(table.columns)}
    rows = [row for row in table.rows if any(number(row[place[y]]) for y in plot["y"])]
    if not rows:
        return None
    names = [row[place[plot["x"]]] for row in rows]
    series = {
        y: [row[place[y]] if number(row[place[y]]) else math.nan for row in rows]
        for y in plot["y"]
    }
    with look():
        draw = bars if plot["kind"] == "bars" else curves
        height = (
            1.2 + 0.3 * len(names) * (0.4 + 0.6 * len(series))
            if plot["kind"] == "bars"
            else 4.2
        )
        figure = Figure(figsize=(7.4, height), layout="constrained")
        axes = figure.subplots()
        draw(axes, plot, names, series)
        axes.set_axisbelow(True)
        figure.suptitle(textwrap.fill(table.title, 90), fontsize=11, x=0.02, ha="left")
        if len(series) > 1:
            figure.legend(
                loc="outside lower center", ncols=2, frameon=False, handlelength=3.5
            )
    return figure


def bars(axes, plot, names, series):
    """Horizontal, so that long names have room; ours in colour where one number is compared."""
    width = 0.8 / len(series)
    logarithmic = "y" in plot["log"]
    every = [v for values in series.values() for v in values if v > 0]
    for i, (label, values) in enumerate(series.items()):
        places = [j + (i - (len(series) - 1) / 2) * width for j in range(len(names))]
        single = [
            OURS if str(name).startswith("ours") or "tiebreak" in str(name) else OTHERS
            for name in names
        ]
        colour = single if len(series) == 1 else COLOURS[i % len(COLOURS)]
        drawn = axes.barh(places, values, width * 0.92, color=colour, label=label)
        told = ["" if math.isnan(v) else shown(float(v)) for v in values]
        axes.bar_label(drawn, told, padding=3, fontsize=8.5)
    axes.set_yticks(
        range(len(names)), [textwrap.fill(shown(name), 44) for name in names]
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    if logarithmic and every:
        axes.set_xscale("log")
        axes.set_xlim(
            min(every) / 2, max(every) * 2.5
        )  # room for the number behind the longest bar
    else:
        axes.margins(x=0.12)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_xlabel(_unit(list(series)))


def curves(axes, plot, names, series):
    """Lines with marks; a place on the axis for each name where they are no numbers."""
    counted = all(number(name) for name in names)
    x = names if counted else range(len(names))
    for i, (label, values) in enumerate(series.items()):
        look = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i % len(DASHES)],
            "marker": MARKS[i % len(MARKS)],
        }
        axes.plot(x, values, linewidth=1.6, markersize=4.5, label=label, **look)
    if not counted:
        axes.set_xticks(
            range(len(names)), [textwrap.fill(shown(name), 16) for name in names]
        )
    if "x" in plot["log"] and counted:
        axes.set_xscale("log")
    if "y" in plot["log"]:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_xlabel(plot["x"])
    axes.set_ylabel(_unit(list(series)))


def _unit(columns):
    """What the axis shows: the column, or what several columns have in common after their last comma."""
    if len(columns) == 1:
        return columns[0]
    ends = {name.rsplit(", ", 1)[-1] for name in columns if ", " in name}
    return (
        ends.pop() if len(ends) == 1 and all(", " in name for name in columns) else ""
    )


def store(stored, folder, name=NAME):
    """Write the JSON; the path."""
    path = Path(folder) / f"{name}.json"
    with atomic(path, "w") as file:
        json.dump(stored, file, indent=1, ensure_ascii=False, allow_nan=False)
        file.write("\n")
    return path


def render(stored, folder, name=NAME):
    """Write Markdown and pictures; the paths, and a line on what is missing, if anything is."""
    folder, written, pictures, missing = Path(folder), [], [], None
    for table in (Table(**entry) for entry in stored["tables"]):
        try:
            figure = picture(table)
        except ModuleNotFoundError as error:
            missing = f"No pictures: {error}. pip install '.[cli]' in a clone brings matplotlib."
            break
        if figure is not None:
            written.append(folder / f"{table.name}.png")
            with (
                look(),
                atomic(written[-1]) as file,
            ):  # ticks are made when the figure is drawn
                figure.savefig(file, format="png", dpi=160)
            pictures.append(table.name)
    written.insert(0, folder / f"{name}.md")
    with atomic(written[0], "w") as file:
        file.write(markdown(stored, pictures))
    return written, missing


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks.report", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", type=Path, help="JSON that the benchmarks wrote")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for Markdown and pictures; that of the file if not given",
    )
    options = parser.parse_args()
    stored = json.loads(options.file.read_text(encoding="utf-8"))
    stored = (
        {"tables": stored} if isinstance(stored, list) else stored
    )  # a part alone writes its tables only
    written, missing = render(
        stored, options.output or options.file.parent, options.file.stem
    )
    print("\n".join([*map(str, written), *([missing] if missing else [])]))


if __name__ == "__main__":
    main()
