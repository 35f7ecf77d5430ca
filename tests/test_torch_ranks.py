"""Every kind of parallelism beside one process with the whole batch; the cases are in parallel.py."""

import os

import pytest

import parallel

NAMES = [(world, name) for world, cases in parallel.CASES.items() for name in cases]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each rank says of each case, from one group of processes for all cases."""
    return parallel.said(parallel.__file__, tmp_path_factory)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are made by a fork")
@pytest.mark.parametrize(("world", "name"), NAMES, ids=[name for _, name in NAMES])
def test_ranks_are_one_process(said, world, name):
    for rank in range(world):
        assert said[f"{world}-{rank}"][name] == ""
