"""The part of the benchmarks that needs a CUDA device: ``python -m benchmarks.gpu``, some five minutes.

Writes ``benchmarks/results/gpu.json``, which is committed with machine, versions and date, because the tests' machines
have no GPU. ``python -m benchmarks.report benchmarks/results/gpu.json --output FOLDER`` makes tables and pictures.
"""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks import report, step, training, waiting


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "results",
        help="folder for gpu.json",
    )
    parser.add_argument(
        "--quick", action="store_true", help="short and rough: does everything run?"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here")
    tables = []
    for part in (step, training, waiting):
        found = part.measure("cuda", options.quick)
        tables += found
        for table in found:
            print(report.text(table), flush=True)
        # After every part: what is finished is kept, whatever becomes of the rest.
        report.store(report.record(tables, quick=options.quick), options.output, "gpu")


if __name__ == "__main__":
    main()
