"""All benchmarks, then the report: ``python -m benchmarks [--quick] [--only PART,PART] [--output FOLDER]``."""

import argparse
import importlib
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from benchmarks import report

PARTS = {
    "solver": "the NumPy solver",
    "step": "the barrier step of the PyTorch optimizer against its memory floor",
    "training": "whole training steps, ours and the peers",
}


def sections(part, device, quick):
    """Name → function that returns a table or a list of tables; raises ImportError where something is missing."""
    module = importlib.import_module(f"benchmarks.{part}")
    if hasattr(module, "SECTIONS"):  # finer steps: more to see, and less lost by Ctrl-C
        return {
            f"{part}, {section.__name__}": partial(section, quick)
            for section in module.SECTIONS
        }
    return {part: partial(module.measure, device=device, quick=quick)}


def options():
    parser = argparse.ArgumentParser(
        prog="benchmarks", description="Benchmarks of tiebreak, as ratios in one run."
    )
    parser.add_argument(
        "--quick", action="store_true", help="small and rough: does everything run?"
    )
    parser.add_argument(
        "--only",
        default=",".join(PARTS),
        help="parts, with commas: " + ", ".join(PARTS),
    )
    parser.add_argument(
        "--device", default="cpu", help="of step and training: cpu or cuda"
    )
    help_ = "folder for JSON, Markdown and pictures; what is there is replaced"
    parser.add_argument(
        "--output",
        type=Path,
        help=help_ + "; results/bench, or results/bench-quick with --quick",
    )
    chosen = parser.parse_args()
    chosen.output = chosen.output or Path(
        "results/bench-quick" if chosen.quick else "results/bench"
    )
    chosen.only = [name.strip() for name in chosen.only.split(",") if name.strip()]
    if chosen.device not in ("cpu", "cuda"):
        parser.error(f"--device: {chosen.device!r} is neither cpu nor cuda")
    if (
        chosen.device == "cuda"
        and not importlib.import_module("torch").cuda.is_available()
    ):
        parser.error("--device cuda: no CUDA device here")
    unknown = [name for name in chosen.only if name not in PARTS]
    if unknown or not chosen.only:
        parser.error(
            f"--only: {', '.join(unknown) or 'nothing'} is no part; parts are {', '.join(PARTS)}"
        )
    return chosen


class Benchmarks:
    """What is finished so far; stored after every section."""

    def __init__(self, chosen):
        self.chosen, self.tables, self.left_out, self.failed = chosen, [], {}, False

    def run(self):
        begun = time.perf_counter()
        for part in self.chosen.only:
            print(f"{part}: {PARTS[part]}", flush=True)
            try:
                found = sections(part, self.chosen.device, self.chosen.quick)
            except ImportError as error:
                self.leave_out(part, error)
                continue
            for name, function in found.items():
                self.section(name, function)
        print(f"All in {time.perf_counter() - begun:.0f} s.")

    def section(self, name, function):
        print(f"  {name} …", end="", flush=True)
        start = time.perf_counter()
        try:
            found = function()
        except ImportError as error:
            print()
            self.leave_out(name, error)
            return
        except Exception as error:  # one part's failure must not cost the others
            print()
            traceback.print_exc()
            self.left_out[name] = f"It failed: {type(error).__name__}: {error}"
            self.failed = True
            return
        print(f" {time.perf_counter() - start:.0f} s\n", flush=True)
        found = found if isinstance(found, list) else [found]
        self.tables += found
        for table in found:
            print(report.text(table), flush=True)
        report.store(self.record(), self.chosen.output)

    def leave_out(self, name, error):
        missing = (getattr(error, "name", None) or "").split(".")[0]
        if missing in (
            "benchmarks",
            "tiebreak",
        ):  # not an optional dependency: something is wrong here
            self.failed = True
        self.left_out[name] = (
            f"{error}. `make bench` installs what the benchmarks need."
        )
        print(f"  LEFT OUT: {name}: {self.left_out[name]}\n", flush=True)

    def record(self):
        return report.record(self.tables, self.left_out, self.chosen.quick)

    def write(self):
        if not self.tables:
            print("Nothing was measured, and nothing is written.")
            return
        stored = self.record()
        path = report.store(stored, self.chosen.output)
        written, missing = report.render(stored, self.chosen.output)
        for name, reason in self.left_out.items():
            print(f"Left out: {name}: {reason}")
        if missing:
            print(missing)
        print(f"Written: {path}, {written[0]} and pictures, {len(written) - 1} in all")


def main():
    benchmarks = Benchmarks(options())
    code = 0
    try:
        benchmarks.run()
    except KeyboardInterrupt:
        print(f"\nInterrupted; {len(benchmarks.tables)} finished table(s) kept.")
        benchmarks.left_out["the rest"] = "The run was interrupted."
        code = 130
    if (
        benchmarks.tables or not code
    ):  # an interrupt before the first table leaves an older report as it was
        benchmarks.write()
    sys.exit(code or int(benchmarks.failed))


if __name__ == "__main__":
    main()
