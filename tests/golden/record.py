"""Record the golden traces again: ``python tests/golden/record.py [NAME …]``; without names, all of them.

Record a trace only in a commit that changes behaviour on purpose, and say there why it changes.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent)]

from golden import optax_runs, rank_runs, solver_runs, torch_runs
from golden.trace import FOLDER, environment

ENVIRONMENT = FOLDER / "environment.json"


def main(names: list[str]) -> None:
    """Write the traces of these names."""
    FOLDER.mkdir(exist_ok=True)
    for module, known in (
        (torch_runs, torch_runs.RUNS),
        (optax_runs, optax_runs.RUNS),
        (solver_runs, solver_runs.NAMES),
    ):
        for name in known:
            if not names or name in names:
                module.run(name).save(name)
                print(name)
    if not names or set(names) & set(rank_runs.NAMES):
        for name, trace in rank_runs.run_all().items():
            trace.save(name)
            print(name)
    ENVIRONMENT.write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
