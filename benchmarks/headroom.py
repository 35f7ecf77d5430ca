"""Headroom where a trained model is changed, on the gallery's examples: ``python -m benchmarks.headroom``.

``python -m benchmarks.headroom EXAMPLE[,…] SEED[,…] HEADROOM[,…] [full]``; w0.8 in the place of a headroom is a
weighted sum with that weight. What docs/pytorch.md says of examples is from here; on the data and schedules of the
study of the tolerance: ``python -m benchmarks.tolerance.headroom``.
"""

import copy
import sys
import warnings
from dataclasses import replace

import torch

from tiebreak.gallery import get
from tiebreak.gallery.methods import METHODS, ours
from tiebreak.gallery.training import Goal, train


def main(names: str, seeds: str, headrooms: str, size: str = "quick") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names.split(","):
        example = get(name)
        metric = example.metrics[0].name
        for seed in map(int, seeds.split(",")):
            for headroom in headrooms.split(","):
                weight = {"weight": float(headroom[1:])} if headroom.startswith("w") else {}
                method = METHODS["weighted-sum"]
                if not weight:
                    begin = ours._tolerance("start", headroom=float(headroom))
                    method = replace(METHODS["tolerance-headroom"], begin=begin)
                task = example.build(size, seed, "cpu")
                start = copy.deepcopy(task.model.state_dict())
                goal = Goal.of(task.losses(task.model)[0], example.tolerance)
                done = train(task, method, weight, goal, seed=seed, anchor=start.copy)
                end = done.finished
                assert end is not None
                print(
                    f"{name}, seed {seed}, {headroom}: excess {goal.excess(done.lower):.2f}, upper loss "
                    f"{done.upper:.4f}, {metric} {done.metrics[metric]:.4f}; finished: excess {end.excess:.2f}, upper "
                    f"loss {end.upper:.4f}, {metric} {end.metrics[metric]:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
