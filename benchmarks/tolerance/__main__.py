"""The study of the tolerance rule: ``python -m benchmarks.tolerance [--quick | --tune | --tables]``.

Without an option every rule runs on the judging groups and on those of the headroom study. ``data.py`` says where the
data comes from. On an H200 that takes some eight minutes. The records go to ``benchmarks/results/tolerance.json``, and
the tables that the documentation includes to ``docs/_tables/``. The committed records have two parts more, `number`
and `ablation`, which were made on two cores; they say so themselves.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.tolerance import judge, report, settings, tasks, tune
from benchmarks.tolerance.tune import RESULTS
from tiebreak.provenance import stamp
from tiebreak.tolerance import DEFAULT

SEEDS = (900, 901, 902)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a look on scikit-learn's data; prints only",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="choose the constants of the peers by random trials",
    )
    parser.add_argument(
        "--tables", action="store_true", help="write the tables again, from the records"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS / "tolerance.json",
        help="where the records go",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=np.inf,
        help="begin no group and no ablation after that",
    )
    options = parser.parse_args()
    if options.tables:
        report.write(json.loads(options.output.read_text(encoding="utf-8")))
        return
    jax.config.update(
        "jax_default_matmul_precision", "float32"
    )  # the excess is a small difference
    began = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    if options.tune:
        tune.run(say)
        return
    if options.quick:
        found = judge.run(
            {"judge": (settings.QUICK, [judge.core_rows])}, SEEDS[:1], say
        )
        print(report.rules_table(found["judge"]))
        return

    def keep(records):
        text = json.dumps(
            {"constants": DEFAULT._asdict(), "seeds": SEEDS, **stamp(), **records},
            ensure_ascii=False,
        )
        options.output.write_text(text + "\n", encoding="utf-8")

    parts = {
        "judge": (settings.JUDGE, [judge.core_rows, judge.ablation_rows]),
        "headroom": (settings.HEADROOM, [judge.headroom_rows]),
    }
    for groups, _ in parts.values():
        for group in groups:
            tasks.named(group.task)  # reports missing data before anything runs
    found = judge.run(parts, SEEDS, say, options.seconds, keep)
    print(report.rules_table(found["judge"]))


if __name__ == "__main__":
    main()
