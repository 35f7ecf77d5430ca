"""Two ranks under DistributedDataParallel: equal to each other, and to one process with the whole batch."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tiebreak.torch import SDBGD, DynamicBarrier
from training import simple_method

RANK = """
    import sys

    import torch
    import torch.distributed as dist

    sys.path.insert(0, sys.argv[3])
    import test_torch_ddp as here

    rank, folder, kind = int(sys.argv[1]), sys.argv[2], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(here.network())
    found = here.train(model, kind, [(x[8 * rank :][:8], y[8 * rank :][:8]) for x, y in here.batches()])
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
"""


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(16, n, generator=generator).double() for n in (6, 2)] for _ in range(5)]


def train(model, kind, data):
    params = model.parameters()
    estimator = "average" if kind == "average" else "minibatch"
    method = simple_method(barrier=2.0, regularizer=1e-3, estimator=estimator)
    if kind == "sdbgd":
        opt = SDBGD(params, lr=0.1, method=method, model=model)
    else:
        opt = DynamicBarrier(torch.optim.AdamW(params, lr=0.01), method=method, model=model)
    for x, y in data:
        opt.step(lower=lambda x=x, y=y: (model(x) - y).square().mean(), upper=lambda x=x: model(x).abs().mean())
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), opt.last.multiplier


@pytest.mark.parametrize("kind", ["sdbgd", "adamw", "average"])
def test_ranks_stay_equal(kind, tmp_path):
    code, folder = textwrap.dedent(RANK), str(tmp_path)
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}  # a machine may have no other network
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(r), folder, str(Path(__file__).parent), kind], env=os.environ | loopback
        )
        for r in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    (first, multiplier), (second, other) = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    assert torch.equal(first, second)
    assert torch.equal(multiplier, other)
    assert multiplier > 0
    alone, its = train(network(), kind, batches())
    torch.testing.assert_close(first, alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(multiplier, its, rtol=1e-8, atol=0)
