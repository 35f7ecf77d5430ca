"""A tolerance that falls with the learning rate, where a trained model is changed: ``python -m benchmarks.falling``.

``python -m benchmarks.falling EXAMPLE[,…] SEED[,…] FACTOR[,…] [full]``: t (1 + factor · rate) for each of the factors;
0 is the tolerance as it is, and w0.8 a weighted sum with that weight. What docs/pytorch.md says of it is from here:
0, 3, 10 and 30 on seeds 1000 and 1001 of the quick sizes of continual-all, sparsity and unlearning-subset; 0 and 10 on
seeds 0 to 4, for unlearning-subset also w0.5, w0.8, w1.2 and w2.
"""

import copy
import sys
import warnings

import torch

from tiebreak.gallery import get
from tiebreak.gallery.methods import METHODS, ours
from tiebreak.gallery.training import Goal, train


def main(names: str, seeds: str, factors: str, size: str = "quick") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names.split(","):
        example = get(name)
        metric = example.metrics[0].name
        for seed in map(int, seeds.split(",")):
            for factor in factors.split(","):
                weight = {"weight": float(factor[1:])} if factor.startswith("w") else {}
                method = METHODS["weighted-sum" if weight else "tolerance-falling"]
                ours._WIDER = 0.0 if weight else float(factor)
                task = example.build(size, seed, "cpu")
                start = copy.deepcopy(task.model.state_dict())
                goal = Goal.of(task.losses(task.model)[0], example.tolerance)
                done = train(task, method, weight, goal, seed=seed, anchor=start.copy)
                end = done.finished
                assert end is not None
                print(
                    f"{name}, seed {seed}, {factor}: excess {goal.excess(done.lower):.2f}, upper loss "
                    f"{done.upper:.4f}, {metric} {done.metrics[metric]:.4f}; finished: excess {end.excess:.2f}, upper "
                    f"loss {end.upper:.4f}, {metric} {end.metrics[metric]:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
