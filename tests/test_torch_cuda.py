"""The torch optimizer on a GPU: the CPU's numbers, half precision with a scaler, and no waiting for the device."""

import copy
import math
import warnings

import pytest
import torch

from tiebreak.torch import DynamicBarrier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def setup(device, dtype=torch.float32, base=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)).to(dtype)
    batches = [(torch.randn(32, 16, dtype=dtype), torch.randn(32, 4, dtype=dtype)) for _ in range(20)]
    model = model.to(device)
    return (
        model,
        DynamicBarrier(base(model.parameters(), lr=0.01), **options),
        [tuple(t.to(device) for t in b) for b in batches],
    )


def losses(model, batch):
    return sum(p.abs().sum() for p in model.parameters()) / 100, torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def weights(model):
    return torch.cat([p.detach().double().cpu().reshape(-1) for p in model.parameters()])


def train(model, opt, batches):
    for batch in batches:
        upper, lower = losses(model, batch)
        with opt.lower(lower):
            lower.backward()
        with opt.upper(upper):
            upper.backward()
        opt.step()


@pytest.mark.parametrize(
    "options", [{}, {"estimator": "average"}, {"tolerance": "5%"}, {"normalize": True}, {"scope": "tensor"}]
)
def test_the_gpu_gives_the_cpus_numbers(options):
    found = []
    for device in ("cpu", "cuda"):
        model, opt, batches = setup(device, torch.float64, **options)
        train(model, opt, batches)
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("base", "nonfinite"), [(torch.optim.AdamW, "ignore"), (torch.optim.SGD, "skip")])
def test_no_step_waits_for_the_device(base, nonfinite):
    model, opt, batches = setup("cuda", nonfinite=nonfinite, base=base)
    train(model, opt, batches[:2])
    opt.noise.warned = True  # the look at the noise share, every fiftieth step, does wait
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        train(model, opt, batches[2:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(weights(model)).all()


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_half_precision_with_a_scaler(level):
    model, opt, batches = setup("cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    for batch in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            upper, lower = losses(model, batch)
        with opt.upper():
            scaler.scale(upper).backward()
        with opt.lower():
            scaler.scale(lower).backward()
        scaler.step(opt)
        scaler.update()
    assert torch.isfinite(weights(model)).all()
    before, scale = weights(model), scaler.get_scale()
    upper, lower = losses(model, batches[0])
    for name, loss in (("upper", upper), ("lower", lower)):
        with getattr(opt, name)():
            scaler.scale(loss * (math.inf if name == level else 1.0)).backward()
    scaler.step(opt)
    scaler.update()
    assert torch.equal(weights(model), before)
    assert scaler.get_scale() == scale / 2


def test_bfloat16_parameters_and_fused_bases():
    model, opt, batches = setup("cuda", torch.bfloat16, base=lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True))
    train(model, opt, batches)
    assert torch.isfinite(weights(model)).all()
    twin = copy.deepcopy((model, opt))
    assert twin[1].param_groups[0]["params"][0] is next(twin[0].parameters())
