"""Work for the tests of sweeps, named by this file: workers get it as text."""

import os
import signal
import time
from pathlib import Path

import numpy as np

import tiebreak
from tiebreak.studies.task import Block


def note(log, line):
    """A line in a file that many processes write."""
    with open(log, "a") as file:
        file.write(f"{line}\n")


def draw(hear, *, runs, seed, log=None, seconds=0.0):
    """Numbers of some runs, each from a stream of its own."""
    if log is not None:
        note(log, f"{runs[0]} {os.getpid()}")
    time.sleep(seconds)
    hear(0.5)
    streams = [np.random.default_rng([seed, run]) for run in range(*runs)]
    table = {
        "run": np.arange(*runs),
        "x": np.array([rng.standard_normal() for rng in streams]),
    }
    return Block(
        {"numbers": table, "words": {"word": np.array(["a", "bc"])}},
        {"runs": runs, "pair": (1, 2.5)},
    )


def die(hear, *, log, times, runs, seed):
    """Kill the worker, so many times."""
    note(log, os.getpid())
    if len(Path(log).read_text().split()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(hear, runs=runs, seed=seed)


def mute(hear):
    """Work that cannot tell how far it is."""
    return Block({}, {})


def fail(hear, *, number):
    raise ValueError(f"number={number} must be another one")


def nothing(hear):
    return {"x": 1}


def threads(hear):
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    return Block({}, {"threads": [pool["num_threads"] for pool in threadpool_info()]})


def problem(shift):
    """A problem of one's own: the origin among the points with x₁ = x₂."""
    upper = tiebreak.Gaussian(lambda x: x, 0.1, shape=(2,), vectorized=True)
    flip = np.array([1.0, -1.0])
    lower = tiebreak.Gaussian(
        lambda x: (x[..., :1] - x[..., 1:]) * flip, 0.1, shape=(2,), vectorized=True
    )
    return tiebreak.problems.Problem("own", upper, lower, np.array([shift, 0.0]))


def noticed(log):
    """The paper's problem, and a note when it is taken."""
    note(log, os.getpid())
    return tiebreak.problems.paper()


method = tiebreak.methods.sdbgd.replace(
    name="mine", schedule=tiebreak.methods.sdbpg.schedule
)
