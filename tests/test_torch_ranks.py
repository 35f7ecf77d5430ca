"""Every kind of parallelism beside one process with the whole batch; the cases are in parallel.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import parallel


@pytest.fixture(scope="module", params=sorted(parallel.CASES))
def told(request, tmp_path_factory):
    """What each rank says of each case, from one group of processes for all cases."""
    world, folder = request.param, tmp_path_factory.mktemp("ranks")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}  # a machine may have no other network
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, parallel.__file__]
    ranks = [
        subprocess.Popen([*command, str(r), str(world), str(folder)], env=os.environ | loopback | path, stdout=-3)
        for r in range(world)
    ]
    try:
        codes = [rank.wait(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * world
    return world, [torch.load(Path(folder) / f"{r}.pt") for r in range(world)]


@pytest.mark.parametrize("name", [name for cases in parallel.CASES.values() for name in cases])
def test_ranks_are_one_process(told, name):
    world, said = told
    if name not in parallel.CASES[world]:
        pytest.skip(f"not with {world} ranks")
    assert [found[name] for found in said] == [""] * world
