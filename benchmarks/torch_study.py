"""How `DynamicBarrier` behaves at ordinary batch sizes: ``python -m benchmarks.torch_study [--quick]``.

Every method is a point (lower loss, upper loss) on the full training set after a short training of a small network on
scikit-learn's digits, beside the curve of the weighted sum. Two tasks, two optimizers, from scratch and from a trained
model; the mean and spread over seeds go to ``benchmarks/results``, ``docs/_tables`` and ``docs/_static``.
"""

import argparse
import copy
import functools
import itertools
import json
import math
import platform
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import tiebreak
from benchmarks import torch_peers, torch_pictures
from tiebreak.files import atomic

BATCH, STEPS, TOLERANCE, FORGET = 128, 400, 0.01, 9


@functools.cache
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def cnn():
    """1 898 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def mlp():
    """4 810 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def epochs(count, generator):
    """Batches of an epoch after another, each in a new order; the last, smaller batch is left out."""
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count // BATCH * BATCH].split(BATCH)


class Sparsity:
    """Upper: a smoothed ℓ1 norm of the weights. Lower: cross-entropy."""

    model = staticmethod(cnn)

    def __init__(self):
        self.images, self.labels = digits()

    def upper(self, model, _=None):
        return sum((p.square() + 1e-6).sqrt().sum() for p in model.parameters()) / 100

    def lower(self, model, batch=slice(None)):
        return F.cross_entropy(model(self.images[batch]), self.labels[batch])

    def batches(self, generator):
        for batch in epochs(len(self.labels), generator):
            yield batch, batch


class Forgetting:
    """Upper: the divergence from uniform predictions on a forgotten class. Lower: cross-entropy on the rest."""

    model = staticmethod(mlp)

    def __init__(self):
        images, labels = digits()
        gone = labels == FORGET
        self.gone, self.images, self.labels = images[gone], images[~gone], labels[~gone]

    def upper(self, model, batch=slice(None)):
        return -F.log_softmax(model(self.gone[batch]), 1).mean() - math.log(10)  # ≥ 0, and 0 at uniform predictions

    def lower(self, model, batch=slice(None)):
        return F.cross_entropy(model(self.images[batch]), self.labels[batch])

    def batches(self, generator):
        for batch in epochs(len(self.labels), generator):
            yield torch.randint(len(self.gone), (BATCH // 2,), generator=generator), batch


TASKS = {"sparsity": Sparsity, "forgetting": Forgetting}
OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=3e-3),
}


@functools.cache
def trained(name, seed):
    """A model that knows all classes, the one to be forgotten too."""
    torch.manual_seed(seed)
    model, data = TASKS[name].model(), Sparsity()
    optimizer, batches = torch.optim.AdamW(model.parameters(), lr=3e-3), data.batches(None)
    for _ in range(STEPS):
        optimizer.zero_grad()
        data.lower(model, next(batches)[1]).backward()
        optimizer.step()
    return model


def beginning(name, start, seed):
    if start == "trained":
        return copy.deepcopy(trained(name, seed))
    torch.manual_seed(seed)
    return TASKS[name].model()


def train(name, optimizer, start, seed, build, reference=None, watch=None, steps=STEPS):
    """Both losses on the full training set at the end; NaN where the method gave up on a gradient."""
    task, model = TASKS[name](), beginning(name, start, seed)
    step = build(OPTIMIZERS[optimizer](list(model.parameters())), reference, TOLERANCE)
    batches = task.batches(torch.Generator().manual_seed(seed))
    for k in range(steps):
        mine, theirs = next(batches)
        if watch is not None:
            watch(k, task, model, theirs)
        try:
            step(lambda mine=mine: task.upper(model, mine), lambda theirs=theirs: task.lower(model, theirs))
        except FloatingPointError:
            return math.nan, math.nan
    with torch.no_grad():
        return float(task.lower(model)), float(task.upper(model))


def noise_share(k, task, model, batch, found, every=10, parts=4):
    """ν² and gg of this batch: the variance of the mean of micro-batch gradients, and its squared norm."""
    if k % every == 0:
        micro = [
            torch.cat([v.reshape(-1) for v in torch.autograd.grad(task.lower(model, part), list(model.parameters()))])
            for part in batch.chunk(parts)
        ]
        each = torch.stack(micro)
        mean = each.mean(0)
        noise = (each - mean).square().sum() / (parts * (parts - 1))
        found.append((float(noise), float(mean.square().sum())))


def setting(name, optimizer, start, seed, steps=STEPS, known=None):
    """Every method in one setting but those `known`, and ν², gg along lower-only training."""
    torch.set_num_threads(1)
    run = known or {"points": {}, "noise": [], "seconds": {}}
    points = run["points"]
    for method, build in torch_peers.table().items():
        if method in points:
            continue
        begun, extra = time.perf_counter(), {}
        if method == "lower only":  # the others' reference
            extra["watch"] = functools.partial(noise_share, found=run["noise"])
        else:
            extra["reference"] = points["lower only"][0]
        points[method] = train(name, optimizer, start, seed, build, steps=steps, **extra)
        run["seconds"][method] = time.perf_counter() - begun
    run["points"] = {method: points[method] for method in torch_peers.table()}
    return run


def main():
    parser = argparse.ArgumentParser(prog="torch_study", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 60 steps: does it run?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("."), help="the repository, or a folder to try things in")
    parser.add_argument("--redraw", action="store_true", help="table and picture from the stored results")
    options = parser.parse_args()
    seeds, steps = (1, 60) if options.quick else (options.seeds, STEPS)
    path = options.output / "benchmarks/results/torch_study.json"
    if options.redraw:
        torch_pictures.draw(json.loads(path.read_text()), options.output)
        return
    peers = torch_peers.installed()
    for missing in set(torch_peers.PEERS.values()) - set(peers):
        print(f"{missing} is not installed: left out")
    versions = {"python": platform.python_version(), "torch": torch.__version__, "tiebreak": tiebreak.__version__}
    record = {
        "versions": versions | peers,
        "batch": BATCH,
        "steps": steps,
        "tolerance": TOLERANCE,
        "runs": [],
    }
    if path.exists():  # goes on with what is there; a peer that is installed now is added
        stored = json.loads(path.read_text())
        if all(stored[name] == record[name] for name in ("batch", "steps", "tolerance")):
            record["runs"] = stored["runs"]
    names = ("task", "optimizer", "start", "seed")
    done = {tuple(run.pop(name) for name in names): run for run in record["runs"]}
    # Seeds outermost: whenever it is stopped, what is there is a whole study with fewer seeds.
    keys = [(*k, seed) for seed in range(seeds) for k in itertools.product(TASKS, OPTIMIZERS, ("scratch", "trained"))]
    with ProcessPoolExecutor(options.processes) as pool:
        futures = {pool.submit(setting, *key, steps, done.get(key)): key for key in keys}
        for count, future in enumerate(as_completed(futures), 1):
            done[futures[future]] = future.result()
            record["runs"] = [dict(zip(names, key, strict=True)) | done[key] for key in keys if key in done]
            print(f"{count}/{len(keys)}", *futures[future], flush=True)
            with atomic(path, "w") as file:
                json.dump(record, file, indent=1, ensure_ascii=False)
    torch_pictures.draw(record, options.output)


if __name__ == "__main__":
    main()
