"""Every kind of parallelism beside one process with the whole batch; the cases are in parallel.py."""

import os
import subprocess
import sys

import pytest
import torch

import parallel

NAMES = [(world, name) for world, cases in parallel.CASES.items() for name in cases]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each rank says of each case, from one group of processes for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}  # a machine may have no other network
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, parallel.__file__, str(folder)], env=os.environ | loopback | path, timeout=600)
    return {file.stem: torch.load(file) for file in folder.glob("*.pt")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are made by a fork")
@pytest.mark.parametrize(("world", "name"), NAMES, ids=[name for _, name in NAMES])
def test_ranks_are_one_process(said, world, name):
    for rank in range(world):
        assert said[f"{world}-{rank}"][name] == ""
