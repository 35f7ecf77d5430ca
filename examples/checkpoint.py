"""A run that is cut short and resumed
===================================

Run it: ``python examples/checkpoint.py``.

The resumed run equals one that never stopped, bit for bit.
"""

import tempfile
from pathlib import Path

import numpy as np

import tiebreak


class PowerCut(Exception):
    pass


def cut(record):
    """A callback is called after every step; an error in it ends the run, as any other error would."""
    if record.step == 1234:
        raise PowerCut


def main() -> None:
    problem = tiebreak.problems.paper()
    levels = (problem.upper, problem.lower)
    same = {
        "x0": problem.x0,
        "method": "vr_pr_sdbpg",
        "steps": 3000,
        "runs": 10,
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        try:
            tiebreak.minimize(
                *levels, **same, checkpoint=path, checkpoint_every=500, callback=cut
            )
        except PowerCut:
            saved = tiebreak.load(path)
            print(
                f"cut short; {path.name} holds step {saved.steps[0]} ({path.stat().st_size / 1024:.0f} KiB)"
            )
        resumed = tiebreak.minimize(*levels, resume=path)
    whole = tiebreak.minimize(*levels, **same)
    print(f"resumed to step {resumed.steps[0]}: {resumed.message}")
    print("last iterates equal, bit for bit:    ", np.array_equal(resumed.x, whole.x))
    print(
        "selected iterates equal, bit for bit:",
        np.array_equal(resumed.selected.x, whole.selected.x),
    )
    print(
        "histories equal, bit for bit:        ",
        np.array_equal(
            resumed.history.lower_gradient_squared, whole.history.lower_gradient_squared
        ),
    )


if __name__ == "__main__":
    main()
