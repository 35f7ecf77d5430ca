"""What goes wrong in training loops: each is noticed before a parameter moves, and said in a sentence."""

import contextlib
import copy
import math

import numpy as np
import pytest
import torch

import tiebreak
from tiebreak import Average, Method, Power, Schedule, rules
from tiebreak.torch import SDBGD, DynamicBarrier, from_method

TOLERANT = {"tolerance": 0.1, "reference": 0.5}


def point(*values):
    return torch.nn.Parameter(torch.tensor(values or (2.0, -1.0), dtype=torch.float64))


def f(x):
    return (x - 3).square().sum()


def g(x):
    return x[0].square()


def stepped(opt, x):
    return opt.step(upper=lambda: f(x), lower=lambda: g(x))


# ------------------------------------------------------------------------------------------------ numbers not finite


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_no_step(bad, first):
    """Also where the gradients are fine, and also at the first step; skipped it leaves parameters and memory alone."""
    for policy in ("raise", "skip"):
        x = point()
        opt = DynamicBarrier(torch.optim.Adam([x], lr=0.1), nonfinite=policy, **TOLERANT)
        if not first:
            stepped(opt, x)
        before, memory = x.detach().clone(), dict(opt.memory.values)
        with opt.lower(bad):
            g(x).backward()
        with opt.upper():
            f(x).backward()
        if policy == "raise":
            with pytest.raises(FloatingPointError, match="a gradient, a loss or the multiplier is not finite"):
                opt.step()
        else:
            assert opt.step().skipped
        assert torch.equal(x.detach(), before)
        assert opt.memory.values == memory
        stepped(opt, x)
        assert torch.isfinite(x).all()
        assert not torch.equal(x.detach(), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_rule_that_returns_no_number_is_no_step(bad):
    for policy in ("raise", "skip"):
        x = point()
        opt = DynamicBarrier(torch.optim.Adam([x], lr=0.1), rule=lambda fg, gg: bad * gg, nonfinite=policy)
        if policy == "raise":
            with pytest.raises(FloatingPointError):
                stepped(opt, x)
        else:
            assert stepped(opt, x).skipped
        assert torch.equal(x.detach(), point().detach())
        assert not opt.base.state


def test_where_the_upper_gradient_vanishes_after_it_was_active_the_lower_loss_descends():
    """f reaches its minimum on the way: then g goes on as in training on g alone."""
    for reference in (0.0, "told"):
        x, scale = point(2.0, 2.0), 1.0
        opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), tolerance=0.5, reference=reference)
        for k in range(120):
            scale = 1.0 if k < 20 else 0.0
            lower = x.square().sum()
            with opt.lower(lower, **({"reference": 0.0} if reference == "told" else {})):
                lower.backward()
            with opt.upper():
                (scale * (x - 3).square().sum()).backward()
            opt.step()
        assert x.square().sum().item() < 1e-6


# ------------------------------------------------------------------------------------ a level without a backward pass


def test_a_block_without_a_backward_pass():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0)
    with opt.upper():
        f(x).backward()
    with pytest.raises(RuntimeError, match=r"no gradient came out of `with opt.lower"), opt.lower():
        pass
    with pytest.raises(RuntimeError, match="no upper gradients in this step"):  # it begins anew
        opt.step()
    stepped(opt, x)


def test_an_exception_that_is_swallowed_does_not_make_half_a_step():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0)
    with opt.upper():
        f(x).backward()
    with contextlib.suppress(KeyError), opt.lower():  # a loop that catches it and goes on
        g(x).backward()
        raise KeyError
    with pytest.raises(RuntimeError, match="in this step"):
        opt.step()
    assert torch.equal(x.detach(), point().detach())


@pytest.mark.parametrize("order", [("lower", "upper"), ("upper", "lower")])
def test_gradients_that_are_gone_are_missed(order):
    """model.zero_grad() between the blocks and the step, or between the blocks."""
    for when in ("between", "after"):
        model = torch.nn.Linear(2, 1)
        opt = DynamicBarrier(torch.optim.SGD(model.parameters(), lr=0.1), barrier=1.0)
        for i, level in enumerate(order):
            with getattr(opt, level)():
                model(torch.ones(1, 2)).square().sum().backward()
            if (when == "between") == (i == 0):
                model.zero_grad()
        with pytest.raises(
            RuntimeError, match=rf"the {order[0] if when == 'between' else order[1]} gradients are gone"
        ):
            opt.step()


# ----------------------------------------------------------------------------------------- clipping and a scaler


def test_clipping_in_the_usual_place_is_noticed():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0)
    for level, loss in (("lower", g), ("upper", f)):
        with getattr(opt, level)():
            loss(x).backward()
    torch.nn.utils.clip_grad_norm_([x], 0.1)
    with pytest.raises(RuntimeError, match=r"the upper gradients were changed after .* give max_norm=…"):
        opt.step()
    opt.forget()
    with opt.lower():
        g(x).backward()
    torch.nn.utils.clip_grad_norm_([x], 0.1)
    with pytest.raises(RuntimeError, match="the lower gradients were changed after"), opt.upper():
        pass
    opt.forget()
    for level, loss in (("lower", g), ("upper", f)):  # one level by itself, inside its block
        with getattr(opt, level)():
            loss(x).backward()
            torch.nn.utils.clip_grad_norm_([x], 0.1)
    info = opt.step()
    assert info.ff.item() == pytest.approx(0.01, rel=1e-4)
    assert info.gg.item() == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("options", [{"barrier": 1.0}, {"barrier": 1.0, "scope": "tensor"}, TOLERANT])
@pytest.mark.parametrize("longest", [1e-3, 0.5, 1e3])
def test_max_norm_is_clipping_the_direction(options, longest):
    """As clip_grad_norm_ of d would: the same direction, no longer than that."""
    ends = []
    for given in (longest, None):
        x, y = point(), point(0.5)
        opt = DynamicBarrier(torch.optim.SGD([x, y], lr=1.0), max_norm=given, **options)
        opt.step(upper=lambda x=x, y=y: f(x) + y.sum(), lower=lambda x=x, y=y: g(x) + y.square().sum())
        ends.append(torch.cat([x.grad, y.grad]))
    free = ends[1].norm().item()
    torch.testing.assert_close(ends[0], ends[1] * min(1.0, longest / free), rtol=1e-12, atol=1e-15)


def test_a_hook_before_the_base_sees_the_direction():
    """The other recipe for clipping: a hook must return None."""
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=1.0), barrier=1.0)

    def clip(base, args, kwargs):
        torch.nn.utils.clip_grad_norm_([p for group in base.param_groups for p in group["params"]], 0.01)

    opt.base.register_step_pre_hook(clip)
    stepped(opt, x)
    assert (x.detach() - point().detach()).norm().item() == pytest.approx(0.01, rel=1e-4)


def test_unscaling_belongs_after_both_blocks():
    x = point()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0)
    with opt.lower():
        scaler.scale(g(x)).backward()
        with pytest.raises(RuntimeError, match="belongs after both blocks"):
            opt.unscale_(scaler)
    with pytest.raises(RuntimeError, match="belongs after both blocks"):
        opt.unscale_(scaler)
    with opt.upper():
        scaler.scale(f(x)).backward()
    opt.unscale_(scaler)
    scaler.step(opt)
    assert opt.last.gg.item() == pytest.approx(16.0)
    assert opt.last.ff.item() == pytest.approx(4 * 1 + 4 * 16)


# ------------------------------------------------------------------------------------------------- losses that add up


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("how", ["divided inside", "divided outside", "a weight", "numbers"])
def test_micro_batches_add_up_to_their_mean_however_they_are_written(how, scaled):
    """g₁ … g₄ with equal shares: the loss of the step is their mean, whatever was divided where."""
    x = point()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), tolerance=0.1, reference="told")
    for i in range(1, 5):
        loss, share = i * g(x), 0.25
        told, reference = {
            "divided inside": (loss, 1.0 * i),
            "divided outside": (share * loss, 1.0 * i * share),
            "a weight": (loss, 1.0 * i),
            "numbers": (loss.item(), 1.0 * i),
        }[how]
        weight = {"weight": share} if how == "a weight" else {}
        with opt.lower(told, reference=reference, **weight):
            scaler.scale(told if how == "divided outside" else share * loss).backward()
    with opt.upper(torch.tensor(7.0)):
        scaler.scale(f(x)).backward()
    scaler.step(opt)
    assert opt.last.lower_loss.item() == pytest.approx(2.5 * g(x).item())
    assert opt.last.reference.item() == pytest.approx(2.5)
    assert opt.last.upper_loss.item() == 7.0


def test_what_is_no_loss_and_no_weight():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0)
    for loss, error, message in (
        (x.square(), ValueError, r"the lower loss has shape \(2,\); a loss must be one number"),
        ("3", TypeError, "the lower loss is a str"),
        (True, TypeError, "the lower loss is a bool"),
        (torch.ones((), dtype=torch.complex64), TypeError, "the lower loss is complex"),
    ):
        with pytest.raises(error, match=message), opt.lower(loss):
            pass
    for weight in (0, -1, math.nan, math.inf, True, "1"):
        with pytest.raises(ValueError, match=r"weight=.* must be a number, finite and > 0"), opt.lower(weight=weight):
            pass
    with opt.lower(np.float32(1.5)):
        g(x).backward()
    with opt.upper(torch.ones(1, 1)):
        f(x).backward()
    info = opt.step()
    assert (info.lower_loss.item(), info.upper_loss.item()) == (1.5, 1.0)


# ------------------------------------------------------------------------------------------------------------- states


def test_a_state_of_another_kind_is_refused_before_anything_changes():
    made = {
        "rule": {"barrier": 1.0},
        "tolerance": TOLERANT,
        "twin": {"tolerance": 0.1, "reference": "twin"},
        "start": {"tolerance": 0.1, "reference": "start"},
        "average": {"barrier": 1.0, "estimator": "average"},
    }

    def make(name):
        x = point()
        return x, DynamicBarrier(torch.optim.Adam([x], lr=0.1), **made[name])

    for ours in made:
        for theirs in made:
            x, opt = make(ours)
            y, other = make(theirs)
            stepped(opt, x)
            stepped(other, y)
            stepped(other, y)
            before = copy.deepcopy(opt.state_dict())
            if ours == theirs:
                opt.load_state_dict(other.state_dict())
                assert opt.count == 2
                continue
            with pytest.raises(ValueError, match=r"the state was saved|cannot load a state of"):
                opt.load_state_dict(other.state_dict())
            after = opt.state_dict()
            assert after["barrier"]["count"] == before["barrier"]["count"] == 1
            assert all(torch.equal(after["state"][0][k], before["state"][0][k]) for k in before["state"][0])


def test_an_average_is_loaded_in_the_precision_it_has():
    """A bfloat16 parameter's average is float32, before and after."""
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), barrier=1.0, estimator="average")
    for k in range(3):
        opt.step(upper=lambda: x.sum(), lower=lambda k=k: (x * (k + 0.1)).sum())
    fresh = DynamicBarrier(torch.optim.SGD([x], lr=0.0), barrier=1.0, estimator="average")
    fresh.load_state_dict(opt.state_dict())
    (mean, weight), (again, weight_again) = (o.estimates.memory["lower"][x] for o in (opt, fresh))
    assert mean.dtype == again.dtype == torch.float32
    assert torch.equal(mean, again)
    assert weight == weight_again


# -------------------------------------------------------------------------------------- a method means the same here


def test_a_schedules_others_and_a_methods_rule_travel():
    """The value rule with its target in `others`: the same run as the core's, step by step."""
    schedule = Schedule(0.05, regularizer=Power(0.1, -0.5), others={"target": Power(0.3, -0.1), "rate": 2.0})
    method = Method("value", rules.by_value, schedule)
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=25).x
    for make in (
        lambda x: from_method(method, [x]),
        lambda x: SDBGD([x], schedule=schedule, rule="by_value"),
        lambda x: SDBGD([x], method=method),
    ):
        x = point()
        opt = make(x)
        for _ in range(25):
            stepped(opt, x)
        np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", tiebreak.methods.METHODS)
def test_every_method_equals_the_core(name):
    """Rule, schedule and estimator: STORM too."""
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=name, steps=30).x
    x = point()
    opt = from_method(name, [x])
    for _ in range(30):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)


def test_an_estimator_of_ones_own_is_used():
    """Twice the gradient at the lower level: in the solver and here alike; what is none is refused."""

    class Doubled:
        evaluations = 1

        def begin(self, level, zeros, zero):
            return (zero,)

        def update(self, level, fresh, before, memory, parameters):
            return (2 * fresh if level == "lower" else fresh), (memory[0] + 1,)

    method = tiebreak.methods.sdbgd.replace(estimator=Doubled())
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=20).x
    x = point()
    opt = from_method(method, [x])
    for _ in range(20):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)
    assert opt.estimates.memory["lower"][x] == (20.0,)
    with pytest.raises(ValueError, match="or an object with `evaluations`, `begin` and `update`"):
        DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0, estimator=object())


def test_the_average_may_enter_the_direction():
    """`tiebreak.Average(α)` is the core's: in λ and in d."""
    method = tiebreak.methods.sdbgd.replace(estimator=Average(0.3))
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=20).x
    x = point()
    opt = from_method(method, [x])
    for _ in range(20):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="sets no step_size: give one of them"):
        SDBGD([x], schedule=Schedule(barrier=1.0, regularizer=0.1))


# --------------------------------------------------------------------------------------------- what the tolerance says


def test_the_tolerance_can_be_changed_on_the_way():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), **TOLERANT)
    first = stepped(opt, x).excess.item()
    opt.tolerance = 0.2
    assert stepped(opt, x).excess.item() == pytest.approx(first / 2)
    opt.tolerance = "20%"
    assert stepped(opt, x).excess.item() == pytest.approx(first)
    assert opt.tolerance == "20%"
    with pytest.raises(ValueError, match=r"tolerance=-1 must be a number > 0"):
        opt.tolerance = -1
    with pytest.raises(ValueError, match="this optimizer follows a rule"):
        DynamicBarrier(torch.optim.SGD([x], lr=0.0), barrier=1.0).tolerance = 0.1


def test_a_tolerance_below_what_the_batches_can_tell_is_said_once():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), tolerance=1e-3, reference=4.0)
    generator = torch.Generator().manual_seed(0)

    def run():
        for _ in range(120):
            noise = torch.randn((), generator=generator, dtype=torch.float64)
            opt.step(upper=lambda: f(x), lower=lambda noise=noise: g(x) + noise)

    with pytest.warns(RuntimeWarning, match=r"tolerance=0.001 is below what these batches can tell") as caught:
        run()
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_log_shows_the_tolerance():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), **TOLERANT)
    stepped(opt, x)
    log = opt.log()
    assert log["average_loss"] == pytest.approx(4.0)
    assert log["reference"] == 0.5
    assert log["excess"] == pytest.approx(35.0)
    assert log["ratio"] > 0
    assert log["multiplier"] == pytest.approx(log["ratio"] * math.sqrt(log["ff"] / log["gg"]))
