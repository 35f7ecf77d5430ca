"""The command line in another process, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

# A warning in the command is an error, as in every other test; the width keeps tables from being folded.
ENVIRONMENT = os.environ | {"PYTHONWARNINGS": "error", "COLUMNS": "100", "PYTHONUTF8": "1"}


def call(*words: str | Path, code: int = 0, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command, after the Python statements `before`; it must end with this code, and without a traceback."""
    start = ["-m", "tiebreak"] if not before else ["-c", f"{before}\nfrom tiebreak.cli import main; main()"]
    done = subprocess.run(
        [sys.executable, *start, *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
