"""Every example runs as its reader runs it, and says something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
OPTIONS = {"digits_jax.py": ["--steps", "60"]}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_it_runs(name, tmp_path):
    command = [sys.executable, str(EXAMPLES / name), *OPTIONS.get(name, [])]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) >= 3
