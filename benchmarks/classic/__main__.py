"""``python -m benchmarks.classic [regression] [dictionary]``: about six minutes and half an hour on one free core.

Writes ``benchmarks/results/classic_NAME.json``, and table and picture of the documentation.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.classic.report import report
from benchmarks.classic.study import STUDIES, measure
from tiebreak.provenance import stamp

RECORD = Path(__file__).parent.parent / "results"


def rounded(part: Any) -> Any:
    """Numbers with four digits: the file is kept in the repository."""
    if isinstance(part, dict):
        return {key: rounded(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [rounded(value) for value in part]
    return float(f"{part:.4g}") if isinstance(part, float) else part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{' or '.join(STUDIES)}; both, if none is named",
    )
    names = parser.parse_args().names or [*STUDIES]
    for name in names:  # before the first begins
        if name not in STUDIES:
            parser.error(f"{name!r} must be one of {', '.join(STUDIES)}")
    for name in names:
        start = time.perf_counter()

        def said(line: str, start: float = start) -> None:
            print(f"{time.perf_counter() - start:6.0f} s  {line}", flush=True)

        study = STUDIES[name]
        found = list(measure(study, range(5), said))
        path = RECORD / f"classic_{name}.json"
        record = {
            "name": name,
            "budget": study.budget,
            "tolerance": study.tolerance,
            "methods": found,
        }
        record |= stamp()
        path.write_text(json.dumps(rounded(record), separators=(",", ":")) + "\n")
        report(path)


if __name__ == "__main__":
    main()
