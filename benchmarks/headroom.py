"""Headroom where a trained model is changed, on the gallery's examples: ``python -m benchmarks.headroom``.

``python -m benchmarks.headroom EXAMPLE[,…] SEED[,…] HEADROOM[,…] [full]``; a headroom is a number or auto, and w0.8
in its place a weighted sum with that weight. A row for each training goes to
``benchmarks/results/headroom-gallery.json``, in the place of one of the same example, size, seed and headroom; without
arguments the means of what is there are printed.
What docs/pytorch.md says of examples is from there; on the data and schedules of the study of the tolerance:
``python -m benchmarks.tolerance.headroom``.
"""

import copy
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gallery import get
from gallery.methods import METHODS, ours
from gallery.training import Goal, train
from tiebreak.provenance import stamp

FILE = Path(__file__).parent / "results" / "headroom-gallery.json"
_KEYS = ("example", "size", "headroom", "seed")


def trained(name: str, size: str, headroom: str, seed: int) -> dict[str, Any]:
    """One training and its end, as a row."""
    example = get(name)
    weight = {"weight": float(headroom[1:])} if headroom.startswith("w") else {}
    method = METHODS["weighted-sum"]
    if not weight:
        begin = ours._tolerance("start", headroom=headroom if headroom == "auto" else float(headroom))
        method = replace(METHODS["tolerance-headroom"], begin=begin)
    task = example.build(size, seed, "cpu")
    start = copy.deepcopy(task.model.state_dict())
    goal = Goal.of(task.losses(task.model)[0], example.tolerance)
    done = train(task, method, weight, goal, seed=seed, anchor=start.copy)
    end, metric = done.finished, example.metrics[0].name
    assert end is not None
    return {
        **dict(zip(_KEYS, (name, size, headroom, seed), strict=True)),
        "metric": metric,
        "excess": goal.excess(done.lower),
        "upper": done.upper,
        "value": done.metrics[metric],
        "finished excess": end.excess,
        "finished upper": end.upper,
        "finished value": end.metrics[metric],
        "made": stamp(),
    }


def main(arguments: Sequence[str]) -> None:
    rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    if arguments:
        names, seeds, headrooms, *size = arguments
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        for name, seed, headroom in product(names.split(","), map(int, seeds.split(",")), headrooms.split(",")):
            row = trained(name, *(size or ["quick"]), headroom, seed)
            rows = [old for old in rows if any(old[key] != row[key] for key in _KEYS)] + [row]
            FILE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
            print(row, flush=True)
    for example, size, headroom in dict.fromkeys(tuple(row[key] for key in _KEYS[:3]) for row in rows):
        some = [row for row in rows if tuple(row[key] for key in _KEYS[:3]) == (example, size, headroom)]
        inside = [sum(row[key] <= 1 for row in some) for key in ("excess", "finished excess")]
        told = [f"{fmean(row[key] for row in some):.4f}" for key in ("value", "finished value")]
        of = f"{example}, {size}, {headroom}: {some[0]['metric']}"
        print(f"{of} {told[0]}, finished {told[1]}; inside {inside[0]} and {inside[1]} of {len(some)}")


if __name__ == "__main__":
    main(sys.argv[1:])
