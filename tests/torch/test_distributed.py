"""Every kind of parallelism beside one process with the whole batch; the cases are in parallel.py."""

import os

import parallel
import pytest

LONG = {
    "finished",
    "flat_parameters",
    "flat_parameters_in_micro_batches",
    "sharded_in_micro_batches",
}
NAMES = [
    pytest.param(
        world,
        name,
        id=name,
        marks=[pytest.mark.long] if world == 4 or name in LONG else [],
    )
    for world, cases in parallel.CASES.items()
    for name in cases
]


@pytest.fixture(scope="module")
def said(request):
    """What each rank says of each case, from one group of processes for all cases."""
    return parallel.said(parallel.__file__, request)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are made by a fork")
@pytest.mark.parametrize(("world", "name"), NAMES)
def test_ranks_are_one_process(said, world, name):
    for rank in range(world):
        assert said[f"{world}-{rank}"][name] == ""
