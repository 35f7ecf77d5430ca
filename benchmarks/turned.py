"""Continual learning from a few stored images, the question turned round: ``python -m benchmarks.turned [--quick]``.

The lower loss is that on the new classes, of which there are many images: it may end a tolerance above what training on
it alone reaches. The upper loss is that on the stored images of the old ones. Minutes on a CPU; what the page on
continual learning says of it is from here.
"""

import sys
from dataclasses import replace

import torch

from tiebreak.gallery import get
from tiebreak.gallery.example import Size, Task
from tiebreak.gallery.methods import METHODS
from tiebreak.gallery.training import Goal, train


def turned(size: Size, seed: int) -> Task:
    """The example `continual` with its two losses exchanged."""
    task: Task = get("continual").build(size, seed, "cpu")
    return replace(
        task,
        lower=task.upper,
        upper=task.lower,
        batches=lambda step: task.batches(step)[::-1],
        losses=lambda model: task.losses(model)[::-1],
    )


def main(size: Size, seeds: int, tolerances: tuple[float, ...]) -> None:
    torch.set_num_threads(1)
    for seed in range(seeds):
        alone = train(turned(size, seed), METHODS["lower-only"], {}, Goal.of(1.0, 1.0), seed=seed).lower
        for tolerance in tolerances:
            goal = Goal.of(alone, tolerance)
            done = train(turned(size, seed), METHODS["tolerance-twin"], {}, goal, seed=seed)
            told = ", ".join(f"{name} {value:.3f}" for name, value in done.metrics.items())
            print(f"seed {seed}, tolerance {tolerance}: excess {goal.excess(done.lower):.2f}, {told}", flush=True)


if __name__ == "__main__":
    if "--quick" in sys.argv:
        main("quick", 3, (0.1, 0.2, 0.4))
    else:
        main("full", 5, (0.4, 0.2))
