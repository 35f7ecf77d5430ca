"""Behaviour is what was recorded: bit for bit where versions and processor are those of the recording.

Elsewhere numbers may differ by rounding. ``python tests/golden/record.py NAME`` records a trace again.
"""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from golden import optax_runs, rank_runs, solver_runs, torch_runs
from golden.trace import FOLDER, Trace, differences, environment

EXACT = (
    json.loads((FOLDER / "environment.json").read_text(encoding="utf-8"))
    == environment()
)
NAMES = [*torch_runs.RUNS, *optax_runs.RUNS, *solver_runs.NAMES, *rank_runs.NAMES]


@pytest.fixture(scope="module")
def traces_of_ranks():
    return rank_runs.run_all()


def check(name, trace):
    assert differences(trace, Trace.load(name), EXACT) == []


@pytest.mark.parametrize("name", torch_runs.RUNS)
def test_torch(name):
    check(name, torch_runs.run(name))


@pytest.mark.parametrize("name", optax_runs.RUNS)
def test_optax(name):
    check(name, optax_runs.run(name))


@pytest.mark.parametrize("name", solver_runs.NAMES)
def test_solver(name):
    check(name, solver_runs.run(name))


@pytest.mark.long
def test_ranks(traces_of_ranks):
    for name, trace in traces_of_ranks.items():
        check(name, trace)


def test_every_trace_has_a_run():
    assert sorted(path.stem for path in FOLDER.glob("*.npz")) == sorted(NAMES)


def test_a_changed_bit_is_found():
    """The comparison can fail."""
    trace = Trace.load("twin")
    name = next(
        name
        for name in trace.arrays
        if name.startswith("model/") and trace.arrays[name].dtype.kind == "f"
    )
    changed = Trace(
        {**trace.arrays, name: trace.arrays[name] * (1 + 2**-50)}, trace.texts
    )
    assert differences(changed, trace, exact=True)
    assert not differences(changed, trace, exact=False)
    assert differences(
        Trace(trace.arrays, {**trace.texts, "warnings": ["another"]}),
        trace,
        exact=False,
    )
