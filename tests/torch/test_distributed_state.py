"""Twins, frozen copies, checkpoints and growing batches over ranks; the cases are in parallel_state.py."""

import os

import parallel
import parallel_state
import pytest

LONG = {"more_references", "checkpoints"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
    for name in parallel_state.CASES
]


@pytest.fixture(scope="module")
def said(request):
    """What each rank says of each case, from one group of processes for all cases."""
    return parallel.said(parallel_state.__file__, request)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are made by a fork")
@pytest.mark.parametrize("name", NAMES)
def test_state_over_ranks(said, name):
    for rank in range(parallel_state.WORLD):
        assert said[f"{parallel_state.WORLD}-{rank}"][name] == ""
