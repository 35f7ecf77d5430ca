"""Runs of the torch optimizer on two gloo ranks: each scenario trains half of every batch on each rank.

Run as ``python rank_runs.py FOLDER``: it starts the ranks and leaves a trace of each scenario and rank in the folder.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from golden.torch_runs import (
    adam,
    batches,
    fit,
    network,
    pretrained,
    record,
    rule,
    size,
)
from golden.trace import Trace
from tiebreak.torch import DynamicBarrier

WORLD = 2


def twin_in_parallel(folder: Path) -> Trace:
    model = DistributedDataParallel(network())
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)
    return record(folder, opt, model, data=_parts())


def start_in_parallel(folder: Path) -> Trace:
    model = DistributedDataParallel(pretrained())
    opt = DynamicBarrier(
        adam(model, 0.003), tolerance=0.02, reference="start", model=model
    )
    return record(folder, opt, model, data=_parts())


def number_in_parallel(folder: Path) -> Trace:
    model = DistributedDataParallel(network())
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference=0.3, model=model)
    return record(folder, opt, model, data=_parts())


def rule_in_parallel(folder: Path) -> Trace:
    model = DistributedDataParallel(network())
    return record(
        folder,
        DynamicBarrier(adam(model), method=rule(), model=model),
        model,
        data=_parts(),
    )


def skip_in_parallel(folder: Path) -> Trace:
    """One rank's loss is not finite: every rank skips the step."""
    model = DistributedDataParallel(network())
    opt = DynamicBarrier(
        adam(model), tolerance=0.05, reference="twin", model=model, nonfinite="skip"
    )
    data = _parts()
    if dist.get_rank() == 1:
        data[40] = (data[40][0], data[40][1] * float("nan"))
    return record(folder, opt, model, data=data)


def accumulation_in_parallel(folder: Path) -> Trace:
    model = DistributedDataParallel(network())

    def step(opt: DynamicBarrier, model: Any, batch: Any) -> None:
        for cut in (slice(0, 3), slice(3, 8)):
            part = (batch[0][cut], batch[1][cut])
            loss = fit(model, part) * len(part[0]) / 8
            with opt.lower(loss):
                loss.backward()
        upper = size(model)
        with opt.upper(upper):
            upper.backward()
        opt.step()

    return record(
        folder,
        DynamicBarrier(adam(model), method=rule(), model=model),
        model,
        step,
        data=_parts(),
    )


SCENARIOS: tuple[Callable[[Path], Trace], ...] = (
    twin_in_parallel,
    start_in_parallel,
    number_in_parallel,
    rule_in_parallel,
    skip_in_parallel,
    accumulation_in_parallel,
)
NAMES = [
    f"{function.__name__}-{rank}" for function in SCENARIOS for rank in range(WORLD)
]


def _parts() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rank = dist.get_rank()
    return [(x.chunk(WORLD)[rank], y.chunk(WORLD)[rank]) for x, y in batches()]


def run_all() -> dict[str, Trace]:
    """Start the ranks, and return the trace of every scenario and rank by name."""
    with tempfile.TemporaryDirectory() as folder:
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
        paths = {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment = os.environ | loopback | paths | {"OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, folder, str(rank)], env=environment
            )
            for rank in range(WORLD)
        ]
        codes = [rank.wait(timeout=300) for rank in ranks]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        return {
            name: pickle.loads((Path(folder) / f"{name}.pkl").read_bytes())
            for name in NAMES
        }


def main(folder: Path, rank: int) -> None:
    """Run every scenario as one of the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD
    )
    for function in SCENARIOS:
        with tempfile.TemporaryDirectory() as own:
            trace = function(Path(own))
        (folder / f"{function.__name__}-{rank}.pkl").write_bytes(pickle.dumps(trace))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
