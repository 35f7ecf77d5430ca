"""The torch optimizer: the core's numbers, and the manners of any torch optimizer."""

import contextlib
import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak import rules
from tiebreak.torch import SDBGD, DynamicBarrier, Step
from training import simple_method

PAPER = tiebreak.problems.paper(sigma=0)
CENTER = torch.tensor([7.1, 1.0], dtype=torch.float64)


def f(x):
    return (1 + (x - CENTER).square().sum()).sqrt()


def g(x):
    return 2 - x[0].cos() - (-x[1].square() / 2).exp()


def start():
    return torch.nn.Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))


def core(method, steps):
    return tiebreak.minimize(
        PAPER.upper,
        PAPER.lower,
        PAPER.x0,
        method=method,
        steps=steps,
        record=1,
        keep_iterates=True,
    )


@pytest.mark.parametrize("name", ["sdbgd", "sdbpg", "pr_sdbpg", "dbgd"])
def test_equals_the_core_step_by_step(name):
    method = tiebreak.methods.get(name)
    expected = core(method, 60)
    x = start()
    opt = SDBGD([x], method=name)
    for k in range(60):
        np.testing.assert_allclose(x.detach(), expected.history.x[k], rtol=1e-10)
        info = opt.step(upper=lambda: f(x), lower=lambda: g(x))
        assert info.multiplier.item() == pytest.approx(
            expected.history.multiplier[k], rel=1e-9, abs=1e-12
        )
        assert info.direction_squared.item() == pytest.approx(
            expected.history.direction_squared[k], rel=1e-8, abs=1e-12
        )
        assert info.gg.item() == pytest.approx(
            expected.history.lower_gradient_squared[k], rel=1e-10
        )
        assert info.stationarity_squared.item() == pytest.approx(
            expected.history.stationarity_squared[k], rel=1e-6, abs=1e-12
        )


def test_the_average_enters_the_multiplier_alone():
    """λ from the average of ∇g, its weights adding up to 1; d with the fresh gradient."""
    x = start()
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=0.1),
        method=simple_method(estimator="average", barrier=0.5, regularizer=0.1),
        normalize=False,
    )
    total, weight = torch.zeros(2, dtype=torch.float64), 0.0
    for _ in range(20):
        a, b = (torch.autograd.grad(loss(x), x)[0] for loss in (f, g))
        total, weight = 0.9 * total + 0.1 * b, 0.9 * weight + 0.1
        mean = total / weight
        factor = rules.sdbgd(float(a @ mean), float(mean @ mean), 0.5, 0.1)
        expected = x.detach() - 0.1 * (a + factor * b)
        opt.step(upper=lambda: f(x), lower=lambda: g(x))
        torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=1e-12)


def losses(model, batch):
    inputs, targets = batch
    lower = torch.nn.functional.mse_loss(model(inputs), targets)
    upper = sum(p.abs().sum() for p in model.parameters()) / 10
    return upper, lower


def setup(seed=0, dtype=torch.float32, base=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).to(dtype)
    batches = [
        (torch.randn(16, 4, dtype=dtype), torch.randn(16, 2, dtype=dtype))
        for _ in range(10)
    ]
    if options.get("tolerance") is None:
        options = {"normalize": False, "method": simple_method()} | options
    return model, DynamicBarrier(base(model.parameters(), lr=0.01), **options), batches


def train(model, opt, batches, scheduler=None):
    for batch in batches:
        opt.zero_grad()
        upper, lower = losses(model, batch)
        with opt.lower(lower):
            lower.backward()
        with opt.upper(upper):
            upper.backward()
        opt.step()
        if scheduler is not None:
            scheduler.step()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_hand(model, batches, rule, lr=0.01, **parameters):
    """d = ∇f + λ∇g with a rule of the core, spelled out."""
    for batch in batches:
        upper, lower = losses(model, batch)
        a = torch.cat(
            [
                v.reshape(-1)
                for v in torch.autograd.grad(upper, list(model.parameters()))
            ]
        ).double()
        b = torch.cat(
            [
                v.reshape(-1)
                for v in torch.autograd.grad(lower, list(model.parameters()))
            ]
        ).double()
        d = a + rule(float(a @ b), float(b @ b), **parameters) * b
        offset = 0
        for p in model.parameters():
            p.data -= lr * d[offset : offset + p.numel()].reshape(p.shape).to(p.dtype)
            offset += p.numel()


@pytest.mark.parametrize("name", ["dbgd", "sdbpg", "sdbgd", "penalized", "constant"])
def test_every_rule_equals_its_formula(name):
    needed = {"dbgd": 1, "constant": 1, "sdbpg": 2, "sdbgd": 2, "penalized": 3}[name]
    parameters = dict(
        [("barrier", 0.7), ("regularizer", 0.01), ("penalty", 2.0)][:needed]
    )
    model, opt, batches = setup(
        dtype=torch.float64, method=simple_method(name, **parameters)
    )
    twin = copy.deepcopy(model)
    train(model, opt, batches)
    by_hand(twin, batches, rules.RULES[name], **parameters)
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-10, atol=1e-12)


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_any_shapes_and_dtypes(shapes, dtype, seed):
    """Parameters of any shape, empty ones too: the direction in float64 by hand, to the dtype's precision."""
    generator = torch.Generator().manual_seed(seed)
    params = [
        torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype))
        for s in shapes
    ]
    grads = [
        [torch.randn(p.shape, generator=generator).to(dtype) for p in params]
        for _ in range(2)
    ]
    opt = DynamicBarrier(
        torch.optim.SGD(params, lr=0.0),
        method=simple_method(barrier=0.5, regularizer=0.1),
        normalize=False,
    )
    for level, gs in zip((opt.upper, opt.lower), grads, strict=True):
        with level():
            for p, v in zip(params, gs, strict=True):
                p.grad = v.clone()
    info = opt.step()
    a, b = (
        torch.cat([v.double().reshape(-1) for v in gs]) if gs else torch.zeros(0)
        for gs in grads
    )
    multiplier = rules.sdbgd(float(a @ b), float(b @ b), 0.5, 0.1)
    assert info.multiplier.item() == pytest.approx(multiplier, rel=1e-4, abs=1e-5)
    expected = a + multiplier * b
    found = torch.cat([p.grad.double().reshape(-1) for p in params])
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        found,
        expected,
        rtol=tolerance,
        atol=tolerance * float(1 + expected.abs().max()) if len(expected) else 0,
    )


def test_is_an_optimizer_in_every_respect():
    model, opt, batches = setup(base=torch.optim.AdamW)
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is opt.base.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.1)
    seen = []
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    train(model, opt, batches[:4], scheduler)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.001)
    assert seen == ["before", "after"] * 4
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.5})
    assert len(opt.base.param_groups) == 2
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": simple_method(estimator="average")},
        {"method": simple_method(estimator=tiebreak.Average(0.2))},
        {"tolerance": 0.01, "reference": 0.5},
        {"tolerance": "3%", "reference": 0.5},
    ],
    ids=["rule", "average", "average in the direction", "tolerance", "share"],
)
@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
def test_resumed_training_equals_uninterrupted(options, base):
    options = options | {"base": base}
    model, opt, batches = setup(**options)
    train(model, opt, batches)
    half, first, _ = setup(**options)
    train(half, first, batches[:5])
    file = io.BytesIO()
    torch.save({"model": half.state_dict(), "opt": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh, second, _ = setup(seed=99, **options)
    fresh.load_state_dict(saved["model"])
    second.load_state_dict(saved["opt"])
    train(fresh, second, batches[5:])
    assert torch.equal(weights(fresh), weights(model))


def test_a_saved_state_stays_what_it_was():
    """What goes on does not change it, and two optimizers that load it do not share it."""
    options = {"tolerance": 0.01, "reference": 0.1}
    model, opt, batches = setup(**options)
    train(model, opt, batches[:3])
    saved = opt.state_dict()
    text = saved["param_groups"][0]["tiebreak"]
    copied = copy.deepcopy(opt.memory.values)
    train(model, opt, batches[3:])
    assert saved["param_groups"][0]["tiebreak"] == text
    assert opt.memory.values != copied
    others = [setup(**options) for _ in range(2)]
    for _, other, _ in others:
        other.load_state_dict(saved)
    train(others[0][0], others[0][1], batches[3:])
    assert others[1][1].memory.values == copied
    assert others[1][1].state_dict()["param_groups"][0]["tiebreak"] == text
    assert saved["param_groups"][0]["tiebreak"] == text


def test_deepcopy_goes_its_own_way():
    model, opt, batches = setup(method=simple_method(estimator="average"))
    torch.optim.lr_scheduler.StepLR(opt, step_size=3)
    train(model, opt, batches[:3])
    twin_model, twin = copy.deepcopy((model, opt))
    train(model, opt, batches[3:])
    train(twin_model, twin, batches[3:])
    assert torch.equal(weights(model), weights(twin_model))
    assert twin.param_groups is twin.base.param_groups
    assert twin.param_groups[0]["params"][0] is next(twin_model.parameters())


def test_micro_batches_equal_one_batch():
    model, opt, batches = setup(dtype=torch.float64)
    twin, other, _ = setup(dtype=torch.float64)
    train(model, opt, batches)
    for inputs, targets in batches:
        for part in range(4):
            rows = slice(4 * part, 4 * part + 4)
            with other.lower():
                (
                    torch.nn.functional.mse_loss(twin(inputs[rows]), targets[rows]) / 4
                ).backward()
            with other.upper():
                (sum(p.abs().sum() for p in twin.parameters()) / 40).backward()
        other.step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-10, atol=1e-12)


def test_order_of_levels_does_not_matter():
    model, opt, batches = setup(dtype=torch.float64)
    twin, other, _ = setup(dtype=torch.float64)
    train(model, opt, batches)
    for batch in batches:
        upper, lower = losses(twin, batch)
        with other.upper():
            upper.backward()
        with other.lower():
            lower.backward()
        other.step()
    assert torch.equal(weights(model), weights(twin))


MISUSE = {
    "forgot lower": (["upper"], "no lower gradients in this step"),
    "forgot upper": (["lower"], "no upper gradients in this step"),
    "forgot both": ([], "no upper gradients in this step"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_forgetting_a_level(case):
    levels, message = MISUSE[case]
    model, opt, batches = setup()
    for level in levels:
        with getattr(opt, level)():
            losses(model, batches[0])[level == "lower"].backward()
    with pytest.raises(RuntimeError, match=message):
        opt.step()


def test_other_misuse_is_explained():
    model, opt, batches = setup()
    with opt.upper():
        losses(model, batches[0])[0].backward()
        with (
            pytest.raises(
                RuntimeError, match=r"opt.lower\(\) was entered inside opt.upper\(\)"
            ),
            opt.lower(),
        ):
            pass
    with pytest.raises(TypeError, match=r"step\(closure\) knows one loss"):
        opt.step(lambda: 1.0)
    with pytest.raises(
        TypeError, match=r"Give them by name: opt.step\(lower=…, upper=…\)"
    ):
        opt.step(lambda: None, lambda: None)
    with pytest.raises(TypeError, match="needs both closures"):
        opt.step(upper=lambda: 1.0)
    with pytest.raises(TypeError, match="the lower closure returned float"):
        opt.step(upper=lambda: 1.0, lower=lambda: 1.0)
    with pytest.raises(TypeError, match="params is an optimizer"):
        SDBGD(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        TypeError,
        match=r"weight_decay is none of SDBGD's: use DynamicBarrier\(torch.optim.SGD",
    ):
        SDBGD(model.parameters(), lr=0.1, weight_decay=0.1)
    with pytest.raises(
        TypeError,
        match=r"barrier is a number of the method: give method=.*replace\(barrier=…\)",
    ):
        SDBGD(model.parameters(), barrier=0.5)
    with pytest.raises(
        TypeError, match=r"base is a int; it must be a torch.optim.Optimizer"
    ):
        DynamicBarrier(3)
    with pytest.raises(
        ValueError,
        match=r"nothing says how .* tolerance=… with reference=.* method=….*barrier=",
    ):
        DynamicBarrier(torch.optim.SGD(model.parameters(), lr=0.1))
    for change, message in (
        ({"method": "magic"}, "method='magic' must be a Method"),
        (
            {"method": "storm_sdbgd"},
            "'storm_sdbgd' .*two points .*use tiebreak.minimize",
        ),
        ({"nonfinite": "pray"}, "nonfinite='pray' must be one of"),
        ({"tolerance": -0.1, "reference": 1.0}, "tolerance=-0.1 must be a number > 0"),
        ({"tolerance": 0.0, "reference": 1.0}, "tolerance=0.0 must be a number > 0"),
        (
            {"tolerance": "2", "reference": 1.0},
            "tolerance='2' must be a number > 0, or a share such as \"2%\"",
        ),
        ({"tolerance": "2%", "reference": 0.0}, "tolerance='2%' of reference=0.0 is 0"),
        (
            {"tolerance": 0.1, "reference": 1.0, "method": "dbgd"},
            "method='dbgd' has no effect with tolerance=0.1",
        ),
        (
            {"tolerance": 0.1, "method": "dbgd"},
            "method='dbgd' has no effect with tolerance=0.1",
        ),
        (
            {"tolerance": 0.1, "reference": 1.0, "normalize": False},
            "normalize=False has no effect with tolerance=0.1",
        ),
        (
            {"tolerance": 0.1},
            'needs reference=: a number .*"start".*"twin".*"given".*CSV',
        ),
        (
            {"tolerance": 0.1, "reference": "begin"},
            "reference='begin' must be a number",
        ),
        (
            {"tolerance": "lots", "reference": 1.0},
            "tolerance='lots' must be a number > 0",
        ),
        ({"reference": 0.1}, "reference=0.1 has no effect without tolerance="),
        ({"max_norm": 0.0}, "max_norm=0.0 must be a number, finite and > 0"),
        ({"tolerance": 0.1, "reference": math.inf}, "reference=inf must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            setup(**change)
    other, value, _ = setup(tolerance=0.01, reference=0.1)
    for level in ("lower", "upper"):
        with getattr(value, level)():
            losses(other, batches[0])[level == "lower"].backward()
    with pytest.raises(RuntimeError, match="the lower loss is needed"):
        value.step()
    with pytest.raises(ValueError, match="saved by another optimizer"):
        opt.load_state_dict(opt.base.state_dict())


def test_sparse_gradients_are_refused_by_name():
    table = torch.nn.Embedding(10, 3, sparse=True)
    opt = DynamicBarrier(
        torch.optim.SGD(table.parameters(), lr=0.1), method=simple_method()
    )
    for level in (opt.upper, opt.lower):
        with level():
            table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match=r"shape \(10, 3\) has a sparse gradient"):
        opt.step()


def test_parameters_that_one_loss_does_not_reach():
    x, y, frozen = (
        torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3)
    )
    frozen.requires_grad_(False)
    opt = DynamicBarrier(
        torch.optim.SGD([x, y, frozen], lr=0.1),
        method=simple_method(regularizer=0.0),
        normalize=False,
    )
    with opt.upper():
        (3 * x).sum().backward()
    with opt.lower():
        y.square().sum().backward()
    info = opt.step()
    assert info.fg.item() == 0
    assert info.multiplier.item() == 1.0
    assert torch.equal(x.grad, torch.full((2,), 3.0, dtype=torch.float64))
    assert torch.equal(y.grad, torch.full((2,), 2.0, dtype=torch.float64))
    assert torch.equal(frozen, torch.ones(2, dtype=torch.float64))


def test_where_the_upper_gradient_vanishes_the_lower_loss_still_descends():
    for options in (
        {"method": simple_method()},
        {"tolerance": 1.0, "reference": 0.0},
        {"tolerance": 1.0, "reference": "twin"},
    ):
        x = torch.nn.Parameter(torch.tensor([2.0]))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1), model=torch.nn.ParameterList([x]), **options
        )
        for _ in range(60):
            opt.step(upper=lambda x=x: 0 * x.sum(), lower=lambda x=x: x.square().sum())
        assert abs(x.item()) < 0.1


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_non_finite_policies(level, bad):
    def stepped(policy, estimator="minibatch"):
        x = torch.nn.Parameter(torch.ones(3))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1),
            method=simple_method(estimator=estimator),
            nonfinite=policy,
        )
        for name in ("upper", "lower"):
            with getattr(opt, name)():
                (x.sum() * (bad if name == level else 1.0)).backward()
        return x, opt, opt.step()

    with pytest.raises(FloatingPointError, match="not finite"):
        stepped("raise")
    x, opt, info = stepped("skip", "average")
    assert torch.equal(x, torch.ones(3))
    assert info.skipped
    assert opt.count == 1  # a step that is tried counts
    opt.step(
        upper=lambda: x.sum(), lower=lambda: x.square().sum()
    )  # the average took nothing bad in
    assert torch.isfinite(x).all()
    assert not opt.last.skipped
    assert not torch.isfinite(stepped("ignore")[0]).all()


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_plain_steps_are_skipped_without_asking(level):
    """SDBGD: both gradients become zero, which is no step, and the record says so on the device."""
    x = start()
    opt = SDBGD([x], nonfinite="skip")
    pair = {"upper": lambda: f(x), "lower": lambda: g(x)}
    opt.step(**pair)
    before = x.detach().clone()
    good = pair[level]
    opt.step(**pair | {level: lambda: good() * math.nan})
    assert torch.equal(x.detach(), before)
    assert opt.last.skipped
    opt.step(**pair)
    assert not opt.last.skipped
    assert not torch.equal(x.detach(), before)


@pytest.mark.parametrize("level", ["upper", "lower", None])
@pytest.mark.parametrize("order", [("upper", "lower"), ("lower", "upper")])
def test_the_four_lines_of_a_gradient_scaler(level, order):
    """A finite step equals the unscaled one; an overflow at either level skips the step and lowers the scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, opt, batches = setup(
        dtype=torch.float64, method=simple_method(regularizer=0.01)
    )
    twin, plain, _ = setup(dtype=torch.float64, method=simple_method(regularizer=0.01))
    before = weights(model).clone()
    pair = dict(zip(("upper", "lower"), losses(model, batches[0]), strict=True))
    for name in order:
        with getattr(opt, name)():
            scaler.scale(pair[name] * (math.inf if name == level else 1.0)).backward()
    scaler.step(opt)
    scaler.update()
    if level is None:
        train(twin, plain, batches[:1])
        torch.testing.assert_close(
            weights(model), weights(twin), rtol=1e-10, atol=1e-12
        )
        assert scaler.get_scale() == 2.0**10
        assert opt.last.gg.item() == pytest.approx(plain.last.gg.item(), rel=1e-10)
    else:
        assert torch.equal(weights(model), before)
        assert scaler.get_scale() == 2.0**9
        assert opt.last.skipped
    opt.zero_grad()
    train(model, opt, batches[:1])  # nothing of the scaler sticks
    assert not torch.equal(weights(model), before)


def test_unscaling_one_level_is_refused():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, opt, batches = setup(dtype=torch.float64)
    upper, lower = losses(model, batches[4])
    with opt.upper():
        scaler.scale(upper).backward()
    with opt.lower():
        scaler.scale(lower).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"call opt.combine\(scaler\) before"):
        scaler.step(opt)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_train(dtype):
    model, opt, batches = setup(dtype=dtype, base=torch.optim.SGD)
    train(model, opt, batches)
    assert torch.isfinite(weights(model)).all()
    assert opt.last.gg.dtype in (torch.float32, torch.float64)


def test_autocast():
    model, opt, batches = setup()
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            upper, lower = losses(model, batch)
        with opt.upper():
            upper.backward()
        with opt.lower():
            lower.backward()
        opt.step()
    assert torch.isfinite(weights(model)).all()


def test_compiled_models():
    model, opt, batches = setup()
    twin, other, _ = setup()
    compiled = torch.compile(twin, backend="eager")
    train(model, opt, batches)
    for inputs, targets in batches:
        other.step(
            upper=lambda: sum(p.abs().sum() for p in twin.parameters()) / 10,
            lower=lambda inputs=inputs, targets=targets: torch.nn.functional.mse_loss(
                compiled(inputs), targets
            ),
        )
    torch.testing.assert_close(weights(model), weights(twin))


def test_all_groups_have_one_multiplier():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[2].parameters())},
    ]
    opt = DynamicBarrier(
        torch.optim.SGD(groups, lr=0.0),
        method=simple_method(barrier=0.5),
        normalize=False,
    )
    batch = (
        torch.randn(8, 3, dtype=torch.float64),
        torch.randn(8, 1, dtype=torch.float64),
    )
    upper, lower = losses(model, batch)
    parameters = list(model.parameters())
    a, b = (
        torch.autograd.grad(loss, parameters, retain_graph=True)
        for loss in (upper, lower)
    )
    with opt.lower():
        lower.backward(retain_graph=True)
    with opt.upper():
        upper.backward()
    info = opt.step()
    fg = sum(float((u * v).sum()) for u, v in zip(a, b, strict=True))
    gg = sum(float(v.square().sum()) for v in b)
    factor = rules.sdbgd(fg, gg, 0.5, 1e-8)
    assert info.multiplier.item() == pytest.approx(factor)
    for p, u, v in zip(parameters, a, b, strict=True):
        torch.testing.assert_close(p.grad, u + factor * v)


def test_normalized_steps_are_not_lengthened_by_the_multiplier():
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=1.0),
        method=simple_method(barrier=1e6, regularizer=0.0),
        normalize=True,
    )
    info = opt.step(upper=lambda: 0 * x.sum(), lower=lambda: x.square().sum() / 2)
    assert info.multiplier.item() == pytest.approx(1e6)
    assert abs(x.item()) < 1e-5  # λ/(1+λ) ∇g, not λ∇g


def test_tolerance_keeps_the_lower_loss_near_its_reference():
    """Least squares and an ℓ2 pull: the lower loss ends within the tolerance, and the pull is obeyed."""
    torch.manual_seed(0)
    data = torch.randn(200, 5, dtype=torch.float64)
    truth = torch.tensor([1.0, -2.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    noise = 0.1 * torch.randn(200, dtype=torch.float64)
    best = float((noise**2).mean())
    for tolerance in (0.01, 0.1):
        w = torch.nn.Parameter(truth.clone())
        opt = DynamicBarrier(
            torch.optim.SGD([w], lr=0.02), tolerance=tolerance, reference=best
        )
        for _ in range(1500):
            opt.step(
                upper=lambda w=w: w.square().sum(),
                lower=lambda w=w: (data @ (w - truth) - noise).square().mean(),
            )
        final = float((data @ (w.detach() - truth) - noise).square().mean())
        assert final <= best + 1.5 * tolerance
        assert (
            final >= best + 0.1 * tolerance
        )  # and some of what the tolerance allows is spent on the upper loss


def test_a_tolerance_does_not_know_the_units_of_either_loss():
    """f and g (with tolerance and reference) multiplied by constants: the same iterates."""
    found = []
    for scale_f, scale_g in (
        (1.0, 1.0),
        (1e20, 1.0),
        (1.0, 1e-5),
        (1e-30, 1e25),
        (1e25, 1e-30),
    ):
        x = start()
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1 / scale_g),
            tolerance=0.1 * scale_g,
            reference=0.3 * scale_g,
        )
        for _ in range(100):
            opt.step(
                upper=lambda s=scale_f, x=x: s * f(x),
                lower=lambda s=scale_g, x=x: s * g(x),
            )
        found.append(x.detach().clone())
    assert not torch.equal(found[0], start().detach())
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-9, atol=1e-9)


def test_a_loss_that_is_not_finite_leaves_the_averages_as_they_were():
    """nonfinite="ignore" and a NaN first loss: neither the average nor the unit may keep it."""
    x = start()
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=0.0), tolerance=0.1, reference=1.0, nonfinite="ignore"
    )
    with opt.lower(torch.tensor(math.nan)):
        (g(x) * math.nan).backward()
    with opt.upper():
        f(x).backward()
    opt.step()
    x.data = start().data
    for _ in range(3):
        opt.step(upper=lambda: f(x), lower=lambda: g(x))
    assert opt.last.excess.item() == pytest.approx((g(x).item() - 1.0) / 0.1)
    assert torch.isfinite(opt.last.multiplier)


def test_the_log_is_numbers():
    model, opt, batches = setup()
    assert opt.log() == {}
    train(model, opt, batches[:1])
    log = opt.log()
    assert list(log) == ["step", *Step._fields]
    absent = [name for name, value in log.items() if math.isnan(value)]
    assert absent == ["reference", "excess", "ratio"]  # of a tolerance
    assert (log["step"], log["skipped"]) == (0, False)
    assert all(
        isinstance(log[name], float) for name in ("multiplier", "gg", "lower_loss")
    )


def test_memory_beyond_parameters_is_two_gradients():
    """After a step nothing of parameter size is held but .grad (and the average, where asked for)."""
    model, opt, batches = setup()
    train(model, opt, batches[:2])
    assert opt.gradients.stored() == []
    assert opt.estimates.memory == {"upper": {}, "lower": {}}


def noisy_steps(opt, x, micro, generator, scale=3.0, steps=60):
    """A mean lower gradient of 1 in each coordinate under noise, `micro` micro-batches a step."""
    seen = []
    for _ in range(steps):
        for _ in range(micro):
            with opt.lower():
                (
                    (
                        1
                        + scale
                        * torch.randn(x.shape, generator=generator, dtype=x.dtype)
                    )
                    @ x
                    / micro
                ).backward()
        with opt.upper():
            (0 * x.sum()).backward()
        seen.append(opt.step())
    return seen


def test_the_noise_share_is_told_by_micro_batches():
    """ν² = 9d/m beside ‖μ‖² = d: with m = 4 the share is 9/13."""
    x = torch.nn.Parameter(torch.zeros(2000, dtype=torch.float64))
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=simple_method())
    opt.noise.is_due = lambda count: True
    with pytest.warns(RuntimeWarning, match="noise makes up"):
        last = noisy_steps(opt, x, 4, torch.Generator().manual_seed(0))[-1]
    assert opt.noise.share() == pytest.approx(9 / 13, abs=0.05)
    assert 1 - 2000 / last.gg.item() == pytest.approx(9 / 13, abs=0.05)


def test_high_noise_warns_once_and_names_the_remedy():
    def run(estimator):
        x = torch.nn.Parameter(torch.zeros(200, dtype=torch.float64))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.0), method=simple_method(estimator=estimator)
        )
        noisy_steps(opt, x, 2, torch.Generator().manual_seed(0), steps=120)

    with pytest.warns(
        RuntimeWarning, match=r"noise makes up \d+% .*tolerance=….*estimator='average'"
    ) as caught:
        run("minibatch")
    assert len(caught) == 1
    run("average")  # warnings are errors here: silence is what is tested


@pytest.mark.long
@pytest.mark.skipif(
    tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13),
    reason="torch 2.11's compiler cannot follow a step",
)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, while it compiles
def test_the_compiled_step_is_the_same_step():
    model, opt, batches = setup(nonfinite="ignore")
    twin, other, _ = setup(nonfinite="ignore")
    train(model, opt, batches)
    step = torch.compile(other.step, backend="eager")
    for batch in batches:
        upper, lower = losses(twin, batch)
        with other.lower(lower):
            lower.backward()
        with other.upper(upper):
            upper.backward()
        step()
    torch.testing.assert_close(weights(model), weights(twin))


def test_unequal_micro_batches_tell_the_noise_by_their_weights():
    """64 + 1 samples: without weights the small one would pass for noise."""
    x = torch.nn.Parameter(torch.zeros(500, dtype=torch.float64))
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=simple_method())
    opt.noise.is_due = lambda count: True
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        for size in (64, 1):
            mean = 1 + 3 * torch.randn(
                500, generator=generator, dtype=torch.float64
            ) / math.sqrt(size)
            with opt.lower(weight=size):
                (size / 65 * (mean @ x)).backward()
        with opt.upper():
            (0 * x.sum()).backward()
        opt.step()
    assert opt.noise.share() == pytest.approx(9 / 65 / (1 + 9 / 65), abs=0.06)


@pytest.mark.parametrize("fails", ["upper", "lower", "base"])
def test_a_step_that_failed_is_over(fails):
    """A closure raises, or the base before it steps: the parameters stay, and the next step is as ever."""
    model, opt, batches = setup(dtype=torch.float64)
    twin, other, _ = setup(dtype=torch.float64)
    pairs = [
        [
            {
                "upper": lambda m=m, b=b: losses(m, b)[0],
                "lower": lambda m=m, b=b: losses(m, b)[1],
            }
            for b in batches
        ]
        for m in (model, twin)
    ]
    opt.step(**pairs[0][0])
    other.step(**pairs[1][0])
    before = weights(model).clone()

    def broken(*_):
        raise KeyError("the user's own")

    hook = opt.base.register_step_pre_hook(broken) if fails == "base" else None
    with pytest.raises(KeyError):
        opt.step(**pairs[0][1] | ({} if hook else {fails: broken}))
    assert torch.equal(weights(model), before)
    if hook:
        hook.remove()
    opt.step(**pairs[0][2])
    other.step(**pairs[1][2])
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", ["minibatch", "average"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_after_a_bad_batch_training_goes_on(estimator, policy):
    options = {"method": simple_method(estimator=estimator), "nonfinite": policy}
    model, opt, batches = setup(dtype=torch.float64, **options)
    twin, other, _ = setup(dtype=torch.float64, **options)
    bad = {
        "upper": lambda: losses(model, batches[0])[0] * math.nan,
        "lower": lambda: losses(model, batches[0])[1],
    }
    with (
        pytest.raises(FloatingPointError, match="begins anew")
        if policy == "raise"
        else contextlib.nullcontext()
    ):
        opt.step(**bad)
    for m, o in ((model, opt), (twin, other)):
        for batch in batches[:4]:
            o.step(
                upper=lambda m=m, b=batch: losses(m, b)[0],
                lower=lambda m=m, b=batch: losses(m, b)[1],
            )
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-12, atol=1e-14)


def test_a_copy_between_the_levels_has_both_gradients():
    x = torch.nn.Parameter(torch.ones(2))
    opt = SDBGD([x], lr=0.1)
    with opt.lower():
        (3 * x.sum()).backward()
    with opt.upper():
        x.sum().backward()
    twin = copy.deepcopy(opt)
    mine, copied = opt.step(), twin.step()
    assert mine.gg.item() == copied.gg.item() == 18
    assert mine.fg.item() == copied.fg.item() == 6


def test_an_average_does_not_know_the_scale():
    """The scale moves from step to step; the average is that of the gradients."""

    def trained(scales):
        x = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1),
            method=simple_method(estimator="average", regularizer=0.1),
        )
        for scale in scales:
            scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
            for level, loss in (
                (opt.lower, x.square().sum()),
                (opt.upper, (x - 3).square().sum()),
            ):
                with level():
                    (scaler.scale(loss) if scaler else loss).backward()
            scaler.step(opt) if scaler else opt.step()
            opt.__dict__.pop("grad_scale", None), opt.__dict__.pop("found_inf", None)
        return x.detach()

    torch.testing.assert_close(
        trained([1024.0, 512.0, 2.0, 64.0]), trained([None] * 4), rtol=1e-10, atol=0
    )


def test_a_first_look_at_the_noise_that_is_not_finite_is_forgotten():
    from tiebreak.torch.diagnostics import GradientNoise

    noise = GradientNoise()
    for squares in ((math.inf, math.nan), (2.0, 6.0), (2.0, 6.0)):
        for square in squares:
            noise.add(torch.tensor(square, dtype=torch.float64), 1.0)
        share = noise.share()
    assert 0 <= share <= 1


def test_a_discarded_accumulation_leaves_nothing():
    model, opt, batches = setup(dtype=torch.float64)
    twin, other, _ = setup(dtype=torch.float64)
    with opt.lower():
        losses(model, batches[3])[1].backward()
    opt.zero_grad()
    train(model, opt, batches)
    train(twin, other, batches)
    assert torch.equal(weights(model), weights(twin))


def test_a_skipped_step_knows_nothing():
    model, opt, batches = setup(nonfinite="skip")
    train(model, opt, batches[:1])
    shape = opt.last.gg.shape
    opt.step(
        upper=lambda: weights_sum(model) * math.inf,
        lower=lambda: losses(model, batches[0])[1],
    )
    assert opt.last.skipped
    assert opt.last.gg.shape == shape
    assert torch.isnan(opt.last.multiplier)


def weights_sum(model):
    return sum(p.sum() for p in model.parameters())


def test_a_scheduler_multiplies_the_schedules_step_size():
    x = start()
    laws = {"step_size": tiebreak.Power(0.1, -0.5), "barrier": 0.5, "regularizer": 0.1}
    opt = SDBGD([x], method=tiebreak.methods.sdbgd.replace(**laws))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    for k in range(3):
        before = x.detach().clone()
        info = opt.step(upper=lambda: f(x), lower=lambda: g(x))
        length = (x.detach() - before).norm().item()
        assert length == pytest.approx(
            0.1 * (k + 1) ** -0.5 * 0.5**k * math.sqrt(info.direction_squared.item()),
            rel=1e-6,
        )
        scheduler.step()


def test_groups_that_join_late_are_averaged_without_bias():
    x, y = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=0.0),
        method=simple_method(estimator="average", momentum=0.1),
    )
    for _ in range(10):
        opt.step(upper=lambda: 0 * x.sum(), lower=lambda: x.sum())
    opt.add_param_group({"params": [y], "lr": 0.0})
    info = opt.step(upper=lambda: 0 * (x + y).sum(), lower=lambda: (x + y).sum())
    assert info.gg.item() == pytest.approx(4.0)
