"""The torch optimizer on a GPU: the CPU's numbers, half precision with a scaler, and no waiting for the device."""

import contextlib
import copy
import math
import warnings

import pytest

import torch
from tiebreak.torch import SDBGD, CSVLog, DynamicBarrier
from training import simple_method

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


# Another library's threads in this process (JAX's) may use the device meanwhile.
MODE = "thread_local"


AVERAGED = simple_method(estimator="average")


def _said(options):
    return options if "tolerance" in options else {"method": simple_method()} | options


def setup(device, dtype=torch.float32, base=torch.optim.SGD, model=None, **options):
    """A model, an optimizer around `base` or SDBGD for None, and batches."""
    torch.manual_seed(0)
    small = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)
    ).to(dtype)
    batches = [
        (torch.randn(32, 16, dtype=dtype), torch.randn(32, 4, dtype=dtype))
        for _ in range(20)
    ]
    model = small.to(device) if model is None else model
    params = model.parameters()
    opt = (
        SDBGD(params, lr=0.01, **options)
        if base is None
        else DynamicBarrier(base(params, lr=0.01), **_said(options))
    )
    return model, opt, [tuple(t.to(device) for t in b) for b in batches]


def losses(model, batch):
    return sum(
        p.abs().sum() for p in model.parameters()
    ) / 100, torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def weights(model):
    return torch.cat(
        [p.detach().double().cpu().reshape(-1) for p in model.parameters()]
    )


def train(model, opt, batches):
    for batch in batches:
        upper, lower = losses(model, batch)
        with opt.lower(lower):
            lower.backward()
        with opt.upper(upper):
            upper.backward()
        opt.step()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": AVERAGED},
        {"tolerance": "5%", "reference": 1.0},
        {"normalize": True},
    ],
)
@pytest.mark.parametrize("base", [torch.optim.SGD, None])
@pytest.mark.parametrize("fused", [True, False])
def test_the_gpu_gives_the_cpus_numbers(options, base, fused):
    found = []
    for device in ("cpu", "cuda"):
        model, opt, batches = setup(
            device,
            torch.float64,
            base=base,
            fused=fused if device == "cuda" else None,
            **options,
        )
        train(model, opt, batches)
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def fused_adamw(params, lr):
    return torch.optim.AdamW(params, lr=lr, fused=True, weight_decay=0.1)


def momentum(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


@contextlib.contextmanager
def waiting_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    ("base", "nonfinite"),
    [
        (torch.optim.AdamW, "ignore"),
        (torch.optim.AdamW, "raise"),
        (torch.optim.SGD, "raise"),
        (momentum, "raise"),
        (torch.optim.SGD, "skip"),
        (fused_adamw, "skip"),
        (None, "skip"),
        (None, "raise"),
    ],
)
@pytest.mark.parametrize(
    "options", [{}, {"tolerance": 0.1, "reference": 0.5}, {"max_norm": 0.1}]
)
def test_no_step_waits_for_the_device(base, nonfinite, fused, options):
    model, opt, batches = setup(
        "cuda", nonfinite=nonfinite, base=base, fused=fused, **options
    )
    train(model, opt, batches[:2])
    opt.noise.warned = (
        True  # the look at the noise share, every fiftieth step, does wait
    )
    with waiting_is_an_error():
        train(model, opt, batches[2:])
    assert torch.isfinite(weights(model)).all()


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    "base", [torch.optim.SGD, fused_adamw, momentum, torch.optim.AdamW, None]
)
@pytest.mark.parametrize("level", ["upper", "lower"])
def test_a_step_that_is_skipped_leaves_everything(base, level, fused):
    """Parameters, and the base's state, its count of steps too: known on the device or asked for."""
    model, opt, batches = setup("cuda", nonfinite="skip", base=base, fused=fused)
    train(model, opt, batches[:3])
    state = copy.deepcopy(opt.base.state_dict())
    before = weights(model)
    upper, lower = losses(model, batches[3])
    for name, loss in (("upper", upper), ("lower", lower)):
        with getattr(opt, name)():
            (loss * (math.nan if name == level else 1.0)).backward()
    info = opt.step()
    assert bool(info.skipped)
    assert torch.isnan(info.multiplier)
    assert torch.equal(weights(model), before)
    for key, kept in opt.base.state_dict()["state"].items():
        for name, value in kept.items():
            assert value is None or torch.equal(value, state["state"][key][name]), name
    train(model, opt, batches[3:])
    assert torch.isfinite(weights(model)).all()
    assert not bool(opt.last.skipped)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    "base", [torch.optim.SGD, momentum, torch.optim.AdamW, torch.optim.RMSprop, None]
)
@pytest.mark.parametrize("options", [{}, {"tolerance": 0.1, "reference": 0.5}])
def test_a_bad_step_is_not_made_and_raised_at_once_or_one_step_later(
    base, options, fused
):
    """At once where the base cannot be told on the device, as RMSprop; parameters and states stay in any case."""
    model, opt, batches = setup("cuda", base=base, fused=fused, **options)
    train(model, opt, batches[:3])
    opt.check()
    before, state = weights(model), copy.deepcopy(opt.base.state_dict()["state"])
    bad = (batches[3][0] * math.inf, batches[3][1])
    with pytest.raises(FloatingPointError, match="step 3 "):
        train(model, opt, [bad, batches[4]])
    assert opt.count == (3 if base is torch.optim.RMSprop else 4)
    assert torch.equal(weights(model), before)
    for key, kept in opt.base.state_dict()["state"].items():
        for name, value in kept.items():
            assert value is None or torch.equal(value, state[key][name]), name
    train(model, opt, batches[4:])
    opt.check()
    assert torch.isfinite(weights(model)).all()


def test_logs_do_not_wait(tmp_path):
    model, opt, batches = setup(
        "cuda", base=torch.optim.AdamW, tolerance=0.1, reference=0.5
    )
    with CSVLog(tmp_path / "log.csv") as log:
        opt.register_step_post_hook(log)
        train(model, opt, batches[:2])
        with waiting_is_an_error():
            train(model, opt, batches[2:])
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert len(rows) == 1 + len(batches)
    assert float(rows[-1].split(",")[1]) == opt.last.multiplier.item()


def capturable(params, lr):
    return torch.optim.AdamW(params, lr=lr, capturable=True, fused=True)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    ("base", "nonfinite"),
    [(None, "skip"), (torch.optim.SGD, "ignore"), (capturable, "skip")],
)
@pytest.mark.parametrize("options", [{}, {"tolerance": 0.1, "reference": 0.5}])
def test_a_captured_step_is_the_same_step(base, nonfinite, options, fused):
    """Three steps to warm up, one captured, seven replays on new data: as ten steps one by one."""

    def one(model, opt, batch):
        train(model, opt, [batch])

    laws = (
        {}
        if "tolerance" in options
        else {"method": simple_method(barrier=0.5, regularizer=0.1)}
    )
    options = {"nonfinite": nonfinite, "fused": fused} | laws | options
    model, opt, batches = setup("cuda", base=base, **options)
    twin, other, _ = setup("cuda", base=base, **options)
    train(twin, other, batches[:10])
    static = [t.clone() for t in batches[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in batches[:3]:
            for place, values in zip(static, batch, strict=True):
                place.copy_(values)
            one(model, opt, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=MODE):
        one(model, opt, static)
    for batch in batches[3:10]:
        for place, values in zip(static, batch, strict=True):
            place.copy_(values)
        graph.replay()
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(opt.last.gg, other.last.gg, rtol=1e-4, atol=1e-9)
    train(
        model, opt, batches[10:12]
    )  # and after the replays steps can be made as before
    train(twin, other, batches[10:12])
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nonfinite": "raise"}, "nonfinite='raise'"),
        (
            {
                "nonfinite": "ignore",
                "method": simple_method(barrier=lambda k: 1 / (k + 1)),
            },
            "must be constants",
        ),
        (
            {"nonfinite": "ignore", "method": AVERAGED},
            "the estimator of the method remembers",
        ),
    ],
)
def test_what_cannot_be_captured_says_so(options, says):
    model, opt, batches = setup("cuda", **options)
    train(model, opt, batches[:2])
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match=says),
        torch.cuda.graph(graph, capture_error_mode=MODE),
    ):
        train(model, opt, batches[:1])


@pytest.mark.parametrize("base", [torch.optim.SGD, fused_adamw, None])
def test_a_step_needs_no_memory_of_parameter_size(base):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    opt = setup("cuda", base=base, nonfinite="ignore", model=model)[1]
    for _ in range(2):
        torch.cuda.synchronize()
        for level in (opt.lower, opt.upper):
            with level():
                sum(p.square().sum() for p in model.parameters()).backward()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        opt.step()
    assert torch.cuda.max_memory_allocated() - before < 2**20


def test_the_same_gradients_give_the_same_bits():
    found = []
    for _ in range(3):
        model, opt, batches = setup("cuda", base=None)
        torch.empty(len(found) * 1000 + 1, device="cuda")  # other addresses
        train(model, opt, batches)
        found.append(opt.last.fg.item())
    assert len(set(found)) == 1


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
    model, opt, batches = setup(
        "cuda",
        torch.bfloat16,
        base=lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
    )
    train(model, opt, batches)
    assert torch.isfinite(weights(model)).all()
    twin = copy.deepcopy((model, opt))
    assert twin[1].param_groups[0]["params"][0] is next(twin[0].parameters())
