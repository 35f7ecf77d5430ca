"""The previous tolerance rule, read from the history of the repository, to compare with.

``python -m benchmarks.tolerance.landed`` writes its two modules to the data folder; a machine without the repository's
history then finds them there.
"""

import subprocess
import sys
import types
from pathlib import Path

from benchmarks.tolerance.data import folder

COMMIT = "9ba8fc8"
MODULES = ("tolerance_constants", "tolerance")


def export():
    """Write the modules as they were to the data folder."""
    target = folder() / "landed"
    target.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        command = ["git", "show", f"{COMMIT}:src/tiebreak/{name}.py"]
        source = subprocess.run(
            command, check=True, capture_output=True, cwd=Path(__file__).parent
        ).stdout
        (target / f"{name}.py").write_bytes(source)


def _load():
    if not (folder() / "landed" / "tolerance.py").exists():
        export()
    for name in MODULES:
        source = (folder() / "landed" / f"{name}.py").read_text(encoding="utf-8")
        source = source.replace(
            "tiebreak.tolerance_constants", "landed_tolerance_constants"
        )
        module = types.ModuleType(f"landed_{name}")
        sys.modules[module.__name__] = module
        exec(compile(source, f"landed/{name}.py", "exec"), module.__dict__)
    return sys.modules["landed_tolerance"]


rule = _load()

if __name__ == "__main__":
    export()
