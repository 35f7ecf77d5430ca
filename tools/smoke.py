"""What an installed tiebreak must do, with whatever optional libraries are there: ``python smoke.py VERSION [name…]``.

Run by `tools/release.py` in an empty environment, outside of the checkout. Named libraries must be there.
"""

import importlib.metadata
import importlib.util
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiebreak


def core() -> str:
    """The solver; a run saved, loaded and gone on with."""
    place = Path(tiebreak.__file__).parent
    assert (place / "py.typed").exists(), "py.typed is missing"
    assert (
        importlib.metadata.distribution("tiebreak").read_text("licenses/LICENSE") or ""
    ).startswith("BSD")
    problem = tiebreak.problems.paper()
    whole = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, steps=20, seed=0
    )
    half = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, steps=10, seed=0, checkpoint="run.npz"
    )
    assert half.steps == 10
    resumed = tiebreak.minimize(
        problem.upper, problem.lower, resume="run.npz", steps=20
    )
    assert np.array_equal(resumed.x, whole.x), "a resumed run differs"
    plan = tiebreak.theory.plan(problem.constants, budget=10**8)
    assert math.isfinite(plan.method.schedule.at(0).step_size)
    return f"numpy {np.__version__}"


def torch() -> str:
    """The optimizer with a tolerance and a twin, and with the paper's rule."""
    import torch

    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 3), torch.randn(64, 1)
    for options in ({"tolerance": 0.05, "reference": "twin"}, {"method": "sdbgd"}):
        model = torch.nn.Linear(3, 1)
        base = torch.optim.Adam(model.parameters(), lr=0.05)
        barrier = tiebreak.torch.DynamicBarrier(base, **options)
        for _ in range(30):
            barrier.step(
                lower=lambda model=model: ((model(inputs) - targets) ** 2).mean(),
                upper=lambda model=model: sum(
                    p.square().sum() for p in model.parameters()
                ),
            )
        saved = barrier.state_dict()
        barrier.load_state_dict(saved)
        assert all(torch.isfinite(p).all() for p in model.parameters())
    return f"torch {torch.__version__}"


def jax() -> str:
    """The transformation, jitted."""
    import jax
    import jax.numpy as jnp
    import optax

    def fit(w: jax.Array) -> jax.Array:
        return (w[0] - w[1]) ** 2 + 1

    def size(w: jax.Array) -> jax.Array:
        return jnp.sum((w - jnp.array([3.0, 1.0])) ** 2)

    evaluate = tiebreak.optax.measure(size, fit)
    optimizer = tiebreak.optax.with_twin(optax.adam(0.01), tolerance=0.05)

    @jax.jit
    def step(w: jax.Array, state: object) -> tuple[jax.Array, object]:
        grads, measured = evaluate(w, state)
        updates, state = optimizer.update(grads, state, w, **measured)
        return optax.apply_updates(w, updates), state

    w = jnp.ones(2) * 4
    state = optimizer.init(w)
    for _ in range(500):
        w, state = step(w, state)
    assert float(size(w)) < float(size(jnp.ones(2) * 4)), w
    assert float(fit(w)) < 1.06, w
    return f"jax {jax.__version__}, optax {optax.__version__}"


def cli() -> str:
    """The command, the module, and completion."""
    for command in (
        ["-m", "tiebreak"],
        ["-c", "from tiebreak.cli import main; main()"],
    ):
        said = subprocess.run(
            [sys.executable, *command, "--version"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == f"tiebreak {tiebreak.__version__}", said
    said = subprocess.run(
        [sys.executable, "-m", "tiebreak", "methods"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SDBGD" in said.stdout, said
    run = [sys.executable, "-m", "tiebreak", "reproduce", "--help"]
    assert (
        "--output"
        in subprocess.run(run, capture_output=True, text=True, check=True).stdout
    )
    return f"typer {importlib.metadata.version('typer')}"


def report() -> str:
    """A result with its figures, which need the style files, and its page, which needs a program and its looks."""
    run = [
        sys.executable,
        "-m",
        "tiebreak",
        "plan",
        "--budget",
        "1e4",
        "--run",
        "--runs",
        "2",
        "--quiet",
        "--report",
    ]
    subprocess.run(
        [*run, "--output", "plan"], capture_output=True, text=True, check=True
    )
    assert Path("plan/plan.pdf").stat().st_size > 1000
    page = Path("plan/report.html").read_text(encoding="utf-8")
    for piece in ("Plotly", 'id="verdict"', "@media", "addEventListener"):
        assert piece in page, f"{piece} is not in the report"
    return f"plotly {importlib.metadata.version('plotly')}"


def data() -> str:
    """A history as a table of both libraries."""
    problem = tiebreak.problems.paper()
    history = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, steps=20, runs=2, seed=0
    ).history
    assert len(history.to_pandas()) == history.to_arrow().num_rows == len(history) * 2
    return ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("pandas", "pyarrow")
    )


def dask() -> str:
    """Two blocks of a sweep on a worker of Dask's: the numbers of this process."""
    from tiebreak.studies import solving, sweep

    options = {"budget": 1000, "runs": 2, "seed": 0, "block": 1}
    tasks = solving("two", "tiebreak.problems:paper", "sdbgd", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Dask's own libraries warn of is theirs
        there = sweep(tasks, engine="local:1").blocks
    here = sweep(tasks, engine="here").blocks
    for name, block in here.items():
        assert np.array_equal(
            block.tables["last"]["x0"], there[name].tables["last"]["x0"]
        )
    return f"distributed {importlib.metadata.version('distributed')}"


#: By the library that each needs; the core needs none.
PARTS: dict[str, Callable[[], str]] = {
    "torch": torch,
    "jax": jax,
    "typer": cli,
    "plotly": report,
    "pandas": data,
    "distributed": dask,
}


def main(version: str, *needed: str) -> None:
    """Try everything that is installed."""
    warnings.simplefilter("error")
    assert tiebreak.__version__ == importlib.metadata.version("tiebreak") == version, (
        tiebreak.__version__
    )
    found = [core()]
    for name, part in PARTS.items():
        if importlib.util.find_spec(name) is None:
            assert name not in needed, f"{name} is not installed"
            continue
        found.append(part())
    print(f"Python {sys.version.partition(' ')[0]}: {', '.join(found)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
