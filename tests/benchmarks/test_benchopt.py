"""The benchmark for benchopt, run by benchopt itself, offline."""

import importlib.util
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiebreak

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_benchopt_runs_it(tmp_path: Path) -> None:
    """Two solvers on the paper's problem; the residuals at the start are those of the library."""
    if importlib.util.find_spec("benchopt") is None:
        pytest.skip("benchopt is not installed: pip install '.[benchopt]'")
    pandas = pytest.importorskip("pandas")
    folder = shutil.copytree(
        ROOT / "benchmarks" / "benchopt", tmp_path / "bilevel"
    )  # it writes beside what it runs
    output = tmp_path / "out" / "found.parquet"
    command = [
        *(
            sys.executable,
            "-m",
            "benchopt",
            "run",
            str(folder),
            "--output",
            str(output),
            "--seed",
            "3",
        ),
        *(
            "-d",
            "Testbed[problem=paper]",
            "-s",
            "tiebreak[method=[sdbgd,penalty]]",
            "-s",
            "weighted sum[weight=10.0]",
        ),
        *("-n", "6", "-r", "1", "--no-plot", "--no-cache"),
    ]
    paths = [
        str(Path(tiebreak.__file__).parent.parent),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert output.exists(), done.stdout + done.stderr
    table = pandas.read_parquet(output)
    assert set(table["solver_name"].str.partition("[")[0]) == {
        "tiebreak",
        "weighted sum",
    }
    assert table["solver_name"].nunique() == 3
    assert table["objective_value"].map(math.isfinite).all()
    start = table[table["stop_val"] == 0]["objective_value"]
    assert start.nunique() == 1  # all begin at x0
    problem = tiebreak.problems.paper()
    upper, lower = (
        oracle.exact_gradient(problem.x0) for oracle in (problem.upper, problem.lower)
    )
    found = tiebreak.stationarity.residuals(upper, lower, 0.0)
    assert start.iloc[0] == pytest.approx(
        float(found.stationarity_squared + found.lower_gradient_squared)
    )
    ours = table[table["solver_name"].str.contains("sdbgd")]
    assert ours["stop_val"].max() >= 1600
    assert ours["objective_value"].nunique() == len(ours)  # each budget leads elsewhere
