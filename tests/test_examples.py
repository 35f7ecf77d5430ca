"""Every example runs as its reader runs it, and says something."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
OPTIONS = {
    "digits_jax.py": ["--steps", "60"],
    "digits_torch.py": ["--steps", "60", "--seeds", "1"],
    "fairness.py": ["--quick"],
}
NEEDS = {
    "with_lightning.py": "pytorch_lightning",
    "with_accelerate.py": "accelerate",
    "with_trainer.py": "transformers",
    "unlearning_language.py": "transformers",
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_it_runs(name, tmp_path):
    command = [sys.executable, str(EXAMPLES / name), *OPTIONS.get(name, [])]
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed: pip install '.[frameworks]'")
    environment = os.environ | {"MPLBACKEND": "Agg"}
    found = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if found.returncode == 1 and " is not installed; get it with: " in found.stderr:
        pytest.skip(found.stderr.strip())  # data that no package of ours brings
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) >= 3
    assert "bit for bit: False" not in found.stdout
