"""JAX on eight devices, and in two processes: one run, with the numbers of one device."""

import os
import socket
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("optax")
import eight_devices as here

TESTS = Path(__file__).parents[1] / "support"
# The tests compile much and compute little.
FAST = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PLATFORMS": "cpu"}

PROCESS = """
    import sys
    from functools import partial

    import jax
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    sys.path.insert(0, sys.argv[4])
    import eight_devices as here

    rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    # "model" lies across the processes: the NaN is in a shard of the second.
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, here.BOTH, axis_types=(AxisType.Auto,) * 2)

    def place(value, spec):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    placed = jax.tree.map(place, here.problem(), (here.SPECS, here.BATCHES))
    bad = [np.isnan(shard.data).any() for shard in placed[1][2]["second"].addressable_shards]
    assert any(bad) == (rank == 1)
    run = partial(here.whole, here.OPTIMIZERS["twin"], model="model", **here.NAMED)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=(here.SPECS, here.BATCHES), out_specs=(here.SPECS, P()))
    params, seen = jax.jit(mapped)(*placed)
    found = jax.tree.leaves((process_allgather(params, tiled=True), seen))
    np.savez(f"{folder}/{rank}.npz", *[np.asarray(value) for value in found])
    jax.distributed.shutdown()
"""


@pytest.mark.parametrize(
    "marker", ["not long", pytest.param("long", marks=pytest.mark.long)]
)
def test_on_eight_devices(marker):
    """The tests of tests/eight_devices.py."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    program = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_files=eight_devices.py",
    ]
    program += ["-m", marker]
    done = subprocess.run(
        [*program, str(TESTS / "eight_devices.py")],
        env=os.environ | FAST | flags,
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.long
def test_in_two_processes(tmp_path):
    """A NaN in one process alone: both hold that step, and both end where one process would."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONHASHSEED": "random",
    }
    arguments = [str(port), str(tmp_path), str(TESTS)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROCESS), str(rank), *arguments],
            env=os.environ | FAST | flags,
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    found = []
    for rank in range(2):
        with np.load(tmp_path / f"{rank}.npz") as file:
            found.append(list(file.values()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    with jax.enable_x64(True):
        expected = jax.tree.leaves(
            jax.jit(partial(here.whole, here.OPTIMIZERS["twin"]))(*here.problem())
        )
    here.assert_equal(found[0], expected)
    assert np.flatnonzero(found[0][-2]).tolist() == [2, 4]
