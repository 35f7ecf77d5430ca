"""The tables of speed in the documentation, from the committed results: ``python -m benchmarks.readme``."""

import json
from pathlib import Path

from benchmarks import report
from benchmarks.report import shown
from benchmarks.table import Table
from tiebreak.files import atomic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "benchmarks"
BEGIN, END = "<!-- written by python -m benchmarks.readme -->", "<!-- end -->"


def committed(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def stored(name):
    """Committed results: the machine, and tables by name."""
    found = committed(name)
    return found["machine"], {
        entry["name"]: Table(**entry) for entry in found["tables"]
    }


def column(table, name):
    """First cell → cell of this column."""
    place = table.columns.index(name)
    return {row[0]: row[place] for row in table.rows}


def markdown(header, rows):
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(
        "| " + " | ".join(map(str, line)) + " |" for line in (header, rule, *rows)
    )


def step(gpu):
    """One barrier step on the GPU, two sets of shapes."""
    flat, model = gpu["step_gpu_flat"], gpu["step_gpu_model"]
    columns = [
        column(table, name) for table in (flat, model) for name in ("ms", "/ floor")
    ]
    header = [
        "one barrier step",
        "5·10⁸ parameters, ms",
        "/ floor",
        "1.2·10⁹, a transformer's, ms",
        "/ floor",
    ]
    return markdown(
        header, [[name, *(shown(c.get(name)) for c in columns)] for name in columns[0]]
    )


def training(cpu, gpu):
    """A whole training step beside the peers, on both machines."""
    tables = cpu["training-mlp-10-m"], gpu["training-gpt-2-small"]
    apart = column(tables[0], "gradients apart")
    wanted = ("ratio", "memory beyond the reference MB")
    columns = [column(table, name) for table in tables for name in wanted]
    header = [
        "whole training step",
        "gradients apart",
        "CPU, MLP of 10 M: time",
        "memory",
        "GPU, GPT-2 small: time",
    ]
    rows = []
    for name, kept in apart.items():
        cells = [c.get(name) for c in columns]
        times = ["–" if v is None else f"{v:.2f}" for v in cells[::2]]
        extra = ["–" if v is None else f"{v:+.0f} MB" for v in cells[1::2]]
        rows.append([name, kept, times[0], extra[0], times[1], extra[1]])
    return markdown([*header, "memory"], rows)


def section():
    """What stands between the marks."""
    (machine, cpu), (device, gpu) = stored("cpu"), stored("gpu")
    about = f"{device['gpu']}, torch {device['torch']}, {device['date'][:10]}"
    here = f"{machine['cores']} cores, torch {machine['torch']}, {machine['date'][:10]}"
    return "\n\n".join(
        [
            BEGIN,
            step(gpu),
            f"({about}.)",
            training(cpu, gpu),
            f"(CPU: {here}. GPU: {about}.)",
            END,
        ]
    )


def renewed(text):
    """The page with the tables of the committed results."""
    return text[: text.index(BEGIN)] + section() + text[text.index(END) + len(END) :]


def main():
    path = ROOT / "docs" / "speed.md"
    text = renewed(path.read_text(encoding="utf-8"))
    with atomic(path, "w") as file:
        file.write(text)
    for name in ("cpu", "gpu"):
        report.render(committed(name), PAGES, name)


if __name__ == "__main__":
    main()
