"""What goes wrong in training loops: each is noticed before a parameter moves, and said in a sentence."""

import contextlib
import copy
import math
import pickle
import re
import warnings

import numpy as np
import pytest
import torch

import tiebreak
from tiebreak import Average, Method, Power, Schedule, rules
from tiebreak.torch import SDBGD, DynamicBarrier, Step
from training import simple_method

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
        opt = DynamicBarrier(
            torch.optim.Adam([x], lr=0.1), nonfinite=policy, **TOLERANT
        )
        if not first:
            stepped(opt, x)
        before, memory = x.detach().clone(), dict(opt.memory.values)
        with opt.lower(bad):
            g(x).backward()
        with opt.upper():
            f(x).backward()
        if policy == "raise":
            with pytest.raises(
                FloatingPointError,
                match="a gradient, a loss or the multiplier is not finite",
            ):
                opt.step()
        else:
            assert opt.step().skipped
        assert torch.equal(x.detach(), before)
        assert opt.memory.values == memory
        stepped(opt, x)
        assert torch.isfinite(x).all()
        assert not torch.equal(x.detach(), before)


def test_many_steps_in_a_row_that_are_skipped_are_told():
    """One in between that is made begins the count anew; the optimizer has the total."""
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), nonfinite="skip", **TOLERANT)

    def skip(times):
        for _ in range(times):
            opt.step(lower=lambda: math.nan * g(x), upper=lambda: f(x))

    skip(49)
    stepped(opt, x)
    assert opt.skipped_steps == 49
    assert list(opt.log())[:4] == ["step", "upper_loss", "lower_loss", "reference"]
    skip(49)
    with pytest.warns(RuntimeWarning, match="50 steps in a row were skipped"):
        skip(1)
    skip(49)  # warnings are errors: it is said once
    assert opt.skipped_steps == 148


def test_losses_of_other_parameters_are_told_in_the_words_of_who_wrote_closures():
    """The model was copied after the optimizer was made, or is frozen; nobody wrote a block."""
    x = point()
    other = x.detach().clone().requires_grad_()
    for reference in ("twin", "start", 4.0):
        base, model = torch.optim.SGD([x], lr=0.1), torch.nn.ParameterList([x])
        opt = DynamicBarrier(base, tolerance=0.5, reference=reference, model=model)
        for own, level in ((other, "lower"), (x, "upper")):
            with pytest.raises(
                RuntimeError,
                match=f"the {level} closure's loss does not depend on .* copied",
            ):
                opt.step(lower=lambda own=own: g(own), upper=lambda: f(other))
        stepped(opt, x)
    with pytest.raises(
        RuntimeError,
        match=r"no upper gradients .* opt\.step\(lower=lambda: …, upper=lambda: …\)",
    ):
        opt.step()
    x.requires_grad_(False)
    with pytest.raises(
        RuntimeError, match=r"not all parameters frozen \(requires_grad=False\)"
    ):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_rule_that_returns_no_number_is_no_step(bad):
    for policy in ("raise", "skip"):
        x = point()
        opt = DynamicBarrier(
            torch.optim.Adam([x], lr=0.1),
            method=simple_method(lambda fg, gg: bad * gg),
            nonfinite=policy,
        )
        if policy == "raise":
            with pytest.raises(FloatingPointError):
                stepped(opt, x)
        else:
            assert stepped(opt, x).skipped
        assert torch.equal(x.detach(), point().detach())
        assert not opt.base.state


def test_where_the_upper_gradient_vanishes_after_it_was_active_the_lower_loss_descends():
    """f reaches its minimum on the way: then g goes on as in training on g alone."""
    for reference in (0.0, "given"):
        x, scale = point(2.0, 2.0), 1.0
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1), tolerance=0.5, reference=reference
        )
        for k in range(120):
            scale = 1.0 if k < 20 else 0.0
            lower = x.square().sum()
            with opt.lower(
                lower, **({"reference": 0.0} if reference == "given" else {})
            ):
                lower.backward()
            with opt.upper():
                (scale * (x - 3).square().sum()).backward()
            opt.step()
        assert x.square().sum().item() < 1e-6


# ------------------------------------------------------------------------------------ a level without a backward pass


def test_a_block_without_a_backward_pass():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    with opt.upper():
        f(x).backward()
    with (
        pytest.raises(RuntimeError, match=r"no gradient came out of `with opt.lower"),
        opt.lower(),
    ):
        pass
    with pytest.raises(
        RuntimeError, match="no upper gradients in this step"
    ):  # it begins anew
        opt.step()
    stepped(opt, x)


def test_an_exception_that_is_swallowed_does_not_make_half_a_step():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    with opt.upper():
        f(x).backward()
    with (
        contextlib.suppress(KeyError),
        opt.lower(),
    ):  # a loop that catches it and goes on
        g(x).backward()
        raise KeyError
    with pytest.raises(RuntimeError, match="in this step"):
        opt.step()
    assert torch.equal(x.detach(), point().detach())


@pytest.mark.parametrize("when", ["between", "after"])
@pytest.mark.parametrize("order", [("lower", "upper"), ("upper", "lower")])
def test_gradients_that_are_gone_are_missed(order, when):
    """model.zero_grad() between the blocks and the step, or between the blocks."""
    model = torch.nn.Linear(2, 1)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DynamicBarrier(base, method=simple_method())

    def step():
        for i, level in enumerate(order):
            with getattr(opt, level)():
                model(torch.ones(1, 2)).square().sum().backward()
            if (when == "between") == (i == 0):
                model.zero_grad()
        opt.step()

    lost = order[0] if when == "between" else order[1]
    with pytest.raises(RuntimeError, match=f"{lost} gradients were set to None"):
        step()


# ----------------------------------------------------------------------------------------- clipping and a scaler


def test_clipping_in_the_usual_place_is_noticed():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    for level, loss in (("lower", g), ("upper", f)):
        with getattr(opt, level)():
            loss(x).backward()
    torch.nn.utils.clip_grad_norm_([x], 0.1)
    with pytest.raises(
        RuntimeError, match=r"the upper gradients were changed after .* give max_norm=…"
    ):
        opt.step()
    opt.forget()
    with opt.lower():
        g(x).backward()
    torch.nn.utils.clip_grad_norm_([x], 0.1)
    with (
        pytest.raises(RuntimeError, match="the lower gradients were changed after"),
        opt.upper(),
    ):
        pass
    opt.forget()
    for level, loss in (
        ("lower", g),
        ("upper", f),
    ):  # one level by itself, inside its block
        with getattr(opt, level)():
            loss(x).backward()
            torch.nn.utils.clip_grad_norm_([x], 0.1)
    info = opt.step()
    assert info.ff.item() == pytest.approx(0.01, rel=1e-4)
    assert info.gg.item() == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("options", [{"method": simple_method()}, TOLERANT])
@pytest.mark.parametrize("longest", [1e-3, 0.5, 1e3])
def test_max_norm_is_clipping_the_direction(options, longest):
    """As clip_grad_norm_ of d would: the same direction, no longer than that."""
    ends = []
    for given in (longest, None):
        x, y = point(), point(0.5)
        opt = DynamicBarrier(torch.optim.SGD([x, y], lr=1.0), max_norm=given, **options)
        opt.step(
            upper=lambda x=x, y=y: f(x) + y.sum(),
            lower=lambda x=x, y=y: g(x) + y.square().sum(),
        )
        ends.append(torch.cat([x.grad, y.grad]))
    free = ends[1].norm().item()
    torch.testing.assert_close(
        ends[0], ends[1] * min(1.0, longest / free), rtol=1e-12, atol=1e-15
    )


def test_a_hook_before_the_base_sees_the_direction():
    """The other recipe for clipping: a hook must return None."""
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=1.0), method=simple_method())

    def clip(base, args, kwargs):
        torch.nn.utils.clip_grad_norm_(
            [p for group in base.param_groups for p in group["params"]], 0.01
        )

    opt.base.register_step_pre_hook(clip)
    stepped(opt, x)
    assert (x.detach() - point().detach()).norm().item() == pytest.approx(
        0.01, rel=1e-4
    )


# ------------------------------------------------------------------------------------------------- losses that add up


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "how", ["divided inside", "divided outside", "a weight", "numbers"]
)
def test_micro_batches_add_up_to_their_mean_however_they_are_written(how, scaled):
    """g₁ … g₄ with equal shares: the loss of the step is their mean, whatever was divided where."""
    x = point()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), tolerance=0.1, reference="given")
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
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    for loss, error, message in (
        (
            x.square(),
            ValueError,
            r"the lower loss has shape \(2,\); a loss must be one number",
        ),
        ("3", TypeError, "the lower loss is a str"),
        (True, TypeError, "the lower loss is a bool"),
        (torch.ones((), dtype=torch.complex64), TypeError, "the lower loss is complex"),
    ):
        with pytest.raises(error, match=message), opt.lower(loss):
            pass
    for weight in (0, -1, math.nan, math.inf, True, "1"):
        with (
            pytest.raises(
                ValueError, match=r"weight=.* must be a number, finite and > 0"
            ),
            opt.lower(weight=weight),
        ):
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
        "rule": {"method": simple_method()},
        "other rule": {"method": "sdbpg"},
        "tolerance": TOLERANT,
        "twin": {"tolerance": 0.1, "reference": "twin"},
        "start": {"tolerance": 0.1, "reference": "start"},
        "average": {"method": simple_method(estimator="average")},
    }

    def make(name):
        x = point()
        return x, DynamicBarrier(
            torch.optim.Adam([x], lr=0.1),
            model=torch.nn.ParameterList([x]),
            **made[name],
        )

    refused = r"the state was saved|the (method|estimator|copy of the model) is \w+; it must be '?\w+"
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
            with pytest.raises(ValueError, match=refused):
                opt.load_state_dict(other.state_dict())
            after = opt.state_dict()
            assert opt.count == 1
            assert after["param_groups"] == before["param_groups"]
            pairs = (
                (after["state"][0][k], before["state"][0][k])
                for k in before["state"][0]
            )
            assert all(
                torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs
            )


def test_an_average_is_loaded_in_the_precision_it_has():
    """A bfloat16 parameter's average is float32, before and after."""
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=0.0), method=simple_method(estimator="average")
    )
    for k in range(3):
        opt.step(upper=lambda: x.sum(), lower=lambda k=k: (x * (k + 0.1)).sum())
    fresh = DynamicBarrier(
        torch.optim.SGD([x], lr=0.0), method=simple_method(estimator="average")
    )
    fresh.load_state_dict(opt.state_dict())
    (mean, weight), (again, weight_again) = (
        o.estimates.memory["lower"][x] for o in (opt, fresh)
    )
    assert mean.dtype == again.dtype == torch.float32
    assert torch.equal(mean, again)
    assert weight == weight_again


# -------------------------------------------------------------------------------------- a method means the same here


def test_a_schedules_others_and_a_methods_rule_travel():
    """The value rule with its target in `others`: the same run as the core's, step by step."""
    schedule = Schedule(
        0.05,
        regularizer=Power(0.1, -0.5),
        others={"target": Power(0.3, -0.1), "rate": 2.0},
    )
    method = Method("value", rules.by_value, schedule)
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(
        lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=25
    ).x
    x = point()
    opt = SDBGD([x], method=method)
    for _ in range(25):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", tiebreak.methods.METHODS)
def test_every_method_equals_the_core(name):
    """Rule, schedule and estimator. What asks for its own batches, or for two points, is refused."""
    if tiebreak.methods.METHODS[name].remembers:
        with pytest.raises(ValueError, match="has a memory"):
            SDBGD([point()], method=name)
        return
    estimator = tiebreak.methods.METHODS[name].estimator
    if not estimator.scheduled or estimator.evaluations == 2:
        with pytest.raises(
            ValueError,
            match=f"method='{name}' chooses its batches or .*use tiebreak.minimize",
        ):
            SDBGD([point()], method=name)
        return
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(
        lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=name, steps=30
    ).x
    x = point()
    opt = SDBGD([x], method=name)
    for _ in range(30):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)


def test_an_estimator_of_ones_own_is_used():
    """Twice the gradient at the lower level: in the solver and here alike; what is none is refused."""

    class Doubled(tiebreak.estimators.Estimator):
        evaluations = 1

        def begin(self, level, zeros, zero):
            return (zero,)

        def update(self, level, fresh, before, memory, parameters):
            return (2 * fresh if level == "lower" else fresh), (memory[0] + 1,)

    method = tiebreak.methods.sdbgd.replace(estimator=Doubled())
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(
        lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=20
    ).x
    x = point()
    opt = SDBGD([x], method=method)
    for _ in range(20):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)
    assert opt.estimates.memory["lower"][x] == (20.0,)
    with pytest.raises(
        ValueError, match=r"or a subclass of tiebreak\.estimators\.Estimator"
    ):
        simple_method(estimator=object())


def test_the_average_may_enter_the_direction():
    """`tiebreak.Average(α)` is the core's: in λ and in d."""
    method = tiebreak.methods.sdbgd.replace(estimator=Average(0.3))
    lower = tiebreak.Exact(lambda x: 2 * x * np.array([1.0, 0.0]), lambda x: x[0] ** 2)
    expected = tiebreak.minimize(
        lambda x: 2 * (x - 3), lower, [2.0, -1.0], method=method, steps=20
    ).x
    x = point()
    opt = SDBGD([x], method=method)
    for _ in range(20):
        stepped(opt, x)
    np.testing.assert_allclose(x.detach(), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="sets no step_size: give one of them"):
        SDBGD([x], method=simple_method())


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
        DynamicBarrier(
            torch.optim.SGD([x], lr=0.0), method=simple_method()
        ).tolerance = 0.1


def noisy(reference, deviation=1.0, tolerance=1e-3, steps=320):
    """Train with a step size of 0 and losses that have this standard deviation."""
    x = point()
    base, model = torch.optim.SGD([x], lr=0.0), torch.nn.ParameterList([x])
    opt = DynamicBarrier(base, tolerance=tolerance, reference=reference, model=model)
    generator = torch.Generator().manual_seed(0)

    def loss():
        return g(x) + deviation * torch.randn(
            (), generator=generator, dtype=torch.float64
        )

    for _ in range(steps):
        told = {"reference": 4.0} if reference == "given" else {}
        if reference in ("start", "twin"):
            with opt.reference():
                compared = loss()
                compared.backward()
            told = {"reference": compared}
        for level, value in (("lower", loss()), ("upper", f(x))):
            with getattr(opt, level)(value, **(told if level == "lower" else {})):
                value.backward()
        opt.step()


def test_a_tolerance_below_what_the_batches_can_tell_is_said_once():
    with pytest.warns(
        RuntimeWarning, match=r"tolerance=0.001 is below what these batches can measure"
    ) as caught:
        noisy(4.0)
    (told,) = caught
    assert told.filename == __file__
    assert 'reference="twin" or "start"' in str(told.message)
    # An average with weight 0.1 has the error σ √(0.1/1.9), and σ is 1000 tolerances.
    (known,) = re.findall(r"known to (\S+) tolerances", str(told.message))
    assert float(known) == pytest.approx(229, rel=0.25)


@pytest.mark.parametrize("reference", ["start", "twin", "given", 4.0])
def test_noise_below_the_tolerance_is_not_told(reference):
    noisy(
        reference, deviation=2e-3, steps=600
    )  # 0.46 or, of a difference, 0.65 tolerances; warnings are errors


@pytest.mark.parametrize("reference", ["start", "twin", "given"])
def test_a_reference_on_the_same_batch_is_not_advised_to_who_has_one(reference):
    with pytest.warns(
        RuntimeWarning, match="larger batches or a larger tolerance"
    ) as caught:
        noisy(reference)
    (told,) = caught
    assert "same batch" not in str(told.message)


def test_the_log_shows_the_tolerance():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), **TOLERANT)
    stepped(opt, x)
    log = opt.log()
    assert list(log) == ["step", *Step._fields]
    assert log["lower_loss"] == pytest.approx(4.0)
    assert log["reference"] == 0.5
    assert log["excess"] == pytest.approx(35.0)
    assert log["ratio"] > 0
    assert log["multiplier"] == pytest.approx(
        log["ratio"] * math.sqrt(log["ff"] / log["gg"])
    )


# ------------------------------------------------------------------------------------- found by those who attacked it


def test_micro_batches_must_agree_in_what_they_give():
    """Half of the losses would be half of the loss."""
    x = point()
    for first, second, message in (
        ({"loss": 1}, {}, "the lower loss was given in 1 of 2 blocks"),
        (
            {"loss": 1, "reference": 0.5},
            {"loss": 1},
            "the reference loss was given in 1 of 2 blocks",
        ),
        (
            {"loss": 1},
            {"loss": 1.0},
            "as a number in one block and as a tensor in another",
        ),
    ):
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1), tolerance=0.1, reference="given"
        )
        for given in (first, second):
            loss = g(x)
            told = {
                "loss": loss
                if given.get("loss") == 1 and type(given["loss"]) is int
                else given.get("loss")
            }
            with opt.lower(
                told["loss"], **{k: v for k, v in given.items() if k == "reference"}
            ):
                loss.backward()
        with opt.upper():
            f(x).backward()
        with pytest.raises(RuntimeError, match=message):
            opt.step()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    with opt.lower():
        g(x).backward()
    with (
        pytest.raises(RuntimeError, match="no gradient came out"),
        opt.lower(),
    ):  # the second block, too
        pass


def test_a_loss_that_enters_with_a_negative_factor():
    x = point(1.0)
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), tolerance=0.1, reference="given")
    loss = x.square().sum()
    with (
        pytest.raises(ValueError, match="the lower loss has the factor -1"),
        opt.lower(loss, reference=0.5),
    ):
        ((loss - 2).abs() + 2).backward()


def test_any_gradient_that_changes_after_its_block_is_noticed():
    """Replaced, of the second parameter, or by a backward pass outside the blocks."""

    def replaced(x, y):
        x.grad = x.grad.clamp(-1e-3, 1e-3)

    def second(x, y):
        torch.nn.utils.clip_grad_norm_([y], 1e-3)

    def outside(x, y):
        (x.sum() + y.sum()).backward()

    for change in (replaced, second, outside):
        x, y = point(), point(3.0)
        opt = DynamicBarrier(torch.optim.SGD([x, y], lr=0.1), method=simple_method())
        for level in ("lower", "upper"):
            with getattr(opt, level)():
                (x.square().sum() + y.square().sum()).backward()
        change(x, y)
        with pytest.raises(
            RuntimeError, match="the upper gradients were changed after"
        ):
            opt.step()


def test_frozen_parameters_stay_whatever_is_remembered_of_them():
    x, y = point(), point(1.0)
    opt = DynamicBarrier(
        torch.optim.SGD([x, y], lr=0.1), method=simple_method(estimator=Average(0.5))
    )
    ends = []
    for _ in range(3):
        opt.step(
            upper=lambda: f(x) + (y.sum() if y.requires_grad else 0),
            lower=lambda: g(x) + (y.square().sum() if y.requires_grad else 0),
        )
        y.requires_grad_(False)
        ends.append(y.item())
    assert ends[0] == ends[1] == ends[2] != 1.0


def test_an_estimator_may_remember_the_gradient_itself():
    """Its memory is not the memory that the step uses up."""

    class Optimistic(tiebreak.estimators.Estimator):
        evaluations = 1

        def begin(self, level, zeros, zero):
            return (zeros, zero)

        def update(self, level, fresh, before, memory, parameters):
            return fresh + memory[1] * (fresh - memory[0]), (fresh, 0 * memory[1] + 1)

    x = point(1.5, 1.5)
    given = {
        "method": simple_method("constant", estimator=Optimistic()),
        "normalize": False,
    }
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.05), **given)
    expected, last = torch.tensor([1.5, 1.5], dtype=torch.float64), None
    for _ in range(5):
        stepped(opt, x)
        grads = [2 * (expected - 3), 2 * expected * torch.tensor([1.0, 0.0])]
        seen = (
            grads
            if last is None
            else [2 * new - old for new, old in zip(grads, last, strict=True)]
        )
        expected, last = expected - 0.05 * (seen[0] + seen[1]), grads
    torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: SDBGD([x], method="pr_sdbpg", **TOLERANT),
            "method='pr_sdbpg' has no effect with tolerance=",
        ),
        (
            lambda x: DynamicBarrier(
                torch.optim.SGD([x], lr=0.1, maximize=True), **TOLERANT
            ),
            "made with maximize=True: turn the signs",
        ),
        (
            lambda x: DynamicBarrier(
                torch.optim.SGD([x], lr=0.1), method=simple_method(), normalize="no"
            ),
            "must be True or False",
        ),
        (
            lambda x: DynamicBarrier(
                torch.optim.SGD([x], lr=0.1), method=simple_method(), max_norm="1"
            ),
            "max_norm='1' must be",
        ),
    ],
)
def test_more_that_has_no_effect(make, message):
    with pytest.raises(ValueError, match=message):
        make(point())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: DynamicBarrier(torch.optim.LBFGS([x]), method=simple_method()),
            "base is a LBFGS",
        ),
        (
            lambda x: DynamicBarrier(SDBGD([x], lr=0.1), method=simple_method()),
            "base is a SDBGD",
        ),
        (
            lambda x: DynamicBarrier(
                torch.optim.SGD([x], lr=0.1),
                tolerance=1.0,
                reference="given",
                generators=torch.Generator(),
            ),
            "must be a list of torch.Generator",
        ),
        (lambda x: SDBGD([x], lr=0.1, momentum=0.9), "momentum is none of SDBGD's"),
        (
            lambda x: DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=3),
            "method=3 must be",
        ),
        (
            lambda x: DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0),
            r"give method=tiebreak.methods.sdbgd.replace\(barrier=",
        ),
        (
            lambda x: DynamicBarrier([x], lr=0.1),
            r"lr= is no argument .*AdamW\(model.parameters\(\), lr=1e-3\)",
        ),
    ],
)
def test_what_is_of_the_wrong_kind(make, message):
    with pytest.raises(TypeError, match=message):
        make(point())


def test_the_step_sizes_of_sdbgd_with_a_tolerance():
    x = point()
    opt = SDBGD([x], **TOLERANT)
    for _ in range(3):
        stepped(opt, x)
    assert opt._learning_rates()[0] == pytest.approx(0.05 * 4**-0.25)


def test_opposite_gradients_and_max_norm():
    """‖d‖² from inner products may come out slightly negative."""
    for seed in range(20):
        v = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        x = torch.nn.Parameter(torch.zeros(1000))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1),
            method=simple_method(barrier=1e-9, regularizer=0.0),
            max_norm=1.0,
        )
        info = opt.step(
            lower=lambda x=x, v=v: (v * x).sum(),
            upper=lambda x=x, v=v: -3 * (v * x).sum(),
        )
        assert not info.skipped
        assert torch.isfinite(x).all()
        assert x.grad.norm() <= 1.0 + 1e-6


def test_a_scaler_and_a_bad_reference_is_an_error_of_ours():
    """The scaler found nothing: it would never lower its scale, and every step would be skipped without a word."""
    x = point()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), tolerance=0.1, reference="given")
    lower = g(x)
    with opt.lower(lower, reference=math.nan):
        scaler.scale(lower).backward()
    with opt.upper():
        scaler.scale(f(x)).backward()
    with pytest.raises(
        FloatingPointError, match="a gradient, a loss or the multiplier is not finite"
    ):
        scaler.step(opt)


def test_optimizers_can_be_sent_elsewhere():
    for reference in (0.5, "given", "twin", "start"):
        x = point()
        base, model = torch.optim.SGD([x], lr=0.1), torch.nn.ParameterList([x])
        opt = DynamicBarrier(base, tolerance=0.1, reference=reference, model=model)
        if reference != "given":
            stepped(opt, x)
        again = pickle.loads(pickle.dumps(opt))
        assert again.count == opt.count
        assert again.memory.values == opt.memory.values


def test_a_copy_between_the_levels_has_the_losses_too():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), **TOLERANT)
    lower = g(x)
    with opt.lower(lower):
        lower.backward()
    with opt.upper():
        f(x).backward()
    twin = copy.deepcopy(opt)
    assert twin.step().excess == opt.step().excess


def test_the_noise_share_does_not_know_the_scale():
    def run(scales):
        x = torch.nn.Parameter(torch.ones(50, dtype=torch.float64))
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.0), method=simple_method(regularizer=0.1)
        )
        opt.noise.is_due = lambda count: True
        generator, found = torch.Generator().manual_seed(0), []
        for scale in scales:
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            for _ in range(3):
                noise = torch.randn(50, generator=generator, dtype=torch.float64)
                with opt.lower():
                    scaler.scale(((1 + noise) @ x) / 3).backward()
            with opt.upper():
                scaler.scale((-x).sum()).backward()
            scaler.step(opt)
            found.append(opt.noise.share())
            opt.__dict__.pop("grad_scale", None), opt.__dict__.pop("found_inf", None)
        return found

    np.testing.assert_allclose(
        run([1.0, 65536.0, 1.0, 1.0, 64.0]), run([1.0] * 5), rtol=1e-10
    )


def test_hooks_around_states_are_called():
    x, called = point(), []
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    opt.register_state_dict_pre_hook(lambda o: called.append("save"))
    opt.register_state_dict_post_hook(lambda o, state: state | {"mine": 3})
    opt.register_load_state_dict_pre_hook(
        lambda o, state: called.append(state.pop("mine"))
    )
    opt.register_load_state_dict_post_hook(lambda o: called.append("loaded"))
    opt.load_state_dict(opt.state_dict())
    assert called == ["save", 3, "loaded"]


def test_more_sentences():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), tolerance=0.01, reference=9.0)
    assert "tolerance=0.01, reference=9.0" in repr(opt)
    with pytest.raises(
        TypeError,
        match=r"give a function that returns the loss, lower=lambda: loss\(model, batch\)",
    ):
        opt.step(upper=lambda: f(x), lower=g(x))

    def eager():
        loss = g(x)
        loss.backward()
        return loss

    for lower in (eager, lambda: g(x).detach()):
        with pytest.raises(
            RuntimeError,
            match=r"lower closure .* return the loss; the optimizer calls backward",
        ):
            opt.step(upper=lambda: f(x), lower=lower)

    def run():
        for _ in range(220):
            stepped(opt, x)

    with pytest.warns(
        RuntimeWarning, match="the lower loss lies 500 tolerances below its reference"
    ):
        run()


@pytest.mark.parametrize("reference", [None, "twin", "start", 9.0])
@pytest.mark.parametrize("loss", [torch.sum, g], ids=["linear", "quadratic"])
@pytest.mark.parametrize("level", ["upper", "lower"])
def test_closures_that_call_backward_get_one_sentence(level, loss, reference):
    """A linear loss has a graph that can be gone through twice, so that its gradients would be doubled, or others'."""
    options = (
        {"method": simple_method()}
        if reference is None
        else {"tolerance": 0.1, "reference": reference}
    )

    def step(eager):
        x = point()
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.1), model=torch.nn.ParameterList([x]), **options
        )

        def closure():
            if eager:
                loss(x).backward()
            return loss(x)

        opt.step(**{"upper": lambda: f(x), "lower": lambda: g(x)} | {level: closure})
        return x.detach()

    if (
        level == "lower" and reference != "twin"
    ):  # what is in .grad then is thrown away: no harm is done
        assert torch.equal(step(True), step(False))
        return
    with pytest.raises(
        RuntimeError,
        match=rf"the {level} closure .* return the loss; the optimizer calls backward",
    ):
        step(True)


def test_a_curve_that_ends_is_said(tmp_path):
    path = tmp_path / "fit.csv"
    path.write_text("step,lower_loss\n0,3.0\n1,3.0\n")
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), tolerance=0.5, reference=path)
    stepped(opt, x)
    stepped(opt, x)
    with pytest.warns(RuntimeWarning, match="the recorded reference ends at step 1"):
        stepped(opt, x)
    stepped(opt, x)


def test_a_loss_changed_in_place_before_the_step_is_told_or_does_not_matter():
    """On the host the number is read at once; on a device the product is made at the step, and a change is an error."""
    from tiebreak.torch.backward import WeightedLoss

    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    lower = x.square().sum()
    expected = lower.item()
    with opt.lower(lower):
        lower.backward()
    with torch.no_grad():
        lower.mul_(0.0)
    with opt.upper():
        x.sum().backward()
    assert opt.step().lower_loss.item() == expected
    number = torch.tensor(2.0)
    term = WeightedLoss(number, torch.tensor(0.5))
    assert term.value().item() == 1.0
    assert math.isnan(WeightedLoss(number, torch.tensor(-0.5)).value())
    number.mul_(2.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        term.value()


def test_references_as_newcomers_give_them(tmp_path):
    """A loss as it comes is a number; a model is none, and a file that is not there is named."""
    model = torch.nn.Linear(2, 1)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DynamicBarrier(
        base, tolerance=0.1, reference=model(torch.ones(1, 2)).square().mean()
    )
    assert opt.lower_reference.number == pytest.approx(
        model(torch.ones(1, 2)).square().item()
    )
    with pytest.raises(
        ValueError,
        match=r"reference=Linear\(…\) is a model: give its loss on each batch",
    ):
        DynamicBarrier(base, tolerance=0.1, reference=model)
    with pytest.raises(
        FileNotFoundError, match=r"reference='.*none\.csv': there is no such file"
    ):
        DynamicBarrier(base, tolerance=0.1, reference=tmp_path / "none.csv")


class Stop(BaseException):
    """An interruption, such as Ctrl-C, that no handler of the library may swallow."""


def interrupted_by(place, opt, base):
    """Make step number 3 raise at a place."""
    if place == "hook":
        handle = base.register_step_pre_hook(lambda *_: raise_stop())
        return handle.remove
    target = {"base": base, "twin": opt.twin and opt.twin.optimizer}[place]
    step = target.step

    def broken(*args, **kwargs):
        if place == "twin":
            raise Stop
        step(*args, **kwargs)
        raise Stop

    target.step = broken
    return lambda: delattr(target, "step")


def raise_stop():
    raise Stop


@pytest.mark.parametrize("place", ["base", "hook"])
@pytest.mark.parametrize("reference", [0.5, "start", "twin"])
def test_an_interrupted_step_leaves_no_gradient_no_loss_and_no_average(
    place, reference
):
    """The next step sees each loss once, and the averages do not count the interrupted step."""

    def trained(interrupt):
        x = point()
        base = torch.optim.SGD([x], lr=0.1)
        model = torch.nn.ParameterList([x])
        options = {} if isinstance(reference, float) else {"model": model}
        opt = DynamicBarrier(base, tolerance=0.1, reference=reference, **options)
        for _ in range(3):
            opt.step(lower=lambda: g(x), upper=lambda: f(x))
        if interrupt:
            before = x.detach().clone()
            memory = opt.memory.state_dict()
            restore = interrupted_by(place, opt, base)
            with pytest.raises(Stop):
                opt.step(lower=lambda: g(x), upper=lambda: f(x))
            restore()
            assert opt.memory.state_dict() == memory
            assert opt.count == 3
            with torch.no_grad():
                x.copy_(before)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            info = opt.step(lower=lambda: g(x), upper=lambda: f(x))
        return info, x.detach(), [str(w.message) for w in caught]

    info, x, messages = trained(interrupt=True)
    expected, expected_x, _ = trained(interrupt=False)
    assert torch.equal(x, expected_x)
    for name in ("lower_loss", "upper_loss", "gg", "ff", "excess", "multiplier"):
        assert torch.equal(getattr(info, name), getattr(expected, name)), name
    warned = any("before the twin had made its step" in text for text in messages)
    assert warned == (reference == "twin")


def test_an_interruption_between_the_model_and_the_twin_is_told_at_the_next_step():
    x = point()
    base = torch.optim.SGD([x], lr=0.1)
    model = torch.nn.ParameterList([x])
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
    opt.step(lower=lambda: g(x), upper=lambda: f(x))
    restore = interrupted_by("twin", opt, base)
    with pytest.raises(Stop):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))
    restore()
    with pytest.warns(RuntimeWarning, match="before the twin had made its step"):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))
    opt.step(lower=lambda: g(x), upper=lambda: f(x))  # and only once


@pytest.mark.parametrize("broken", ["reference", "method"])
def test_an_exception_in_a_function_of_the_user_discards_the_step(broken):
    """A reference function and a rule run after the backward passes."""
    x = point()
    fail = [False]

    def value(*_, **__):
        if fail[0]:
            raise Stop
        return 0.5

    base = torch.optim.SGD([x], lr=0.1)
    if broken == "reference":
        opt = DynamicBarrier(base, tolerance=0.1, reference=lambda k: value())
    else:
        method = simple_method().replace(rule=lambda fg, gg: value() + 0 * fg)
        opt = DynamicBarrier(base, method=method)
    first = opt.step(lower=lambda: g(x), upper=lambda: f(x))
    before = x.detach().clone()
    fail[0] = True
    with pytest.raises(Stop):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))
    fail[0] = False
    assert torch.equal(x, before)
    with torch.no_grad():
        x.copy_(point())
    again = opt.step(lower=lambda: g(x), upper=lambda: f(x))
    assert again.gg.item() == first.gg.item()
    assert again.lower_loss.item() == first.lower_loss.item()


@pytest.mark.parametrize("reference", ["start", "twin"])
def test_a_model_that_two_optimizers_train_has_no_copy(reference):
    """Each of two wrappers would compare with a model of which the other trains a half."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    base = torch.optim.SGD(model[0].parameters(), lr=0.1)
    options = {"tolerance": 0.1, "reference": reference, "model": model}
    with pytest.raises(ValueError, match=r"2 trainable parameters .* '1.weight'"):
        DynamicBarrier(base, **options)
    model[1].requires_grad_(False)
    DynamicBarrier(base, **options)


# --------------------------------------------------------------------------------- gradients that are lost between blocks


def lower_block(opt, x, factor=1.0):
    loss = factor * g(x)
    with opt.lower(loss):
        loss.backward()


def test_a_gradient_that_is_lost_between_two_blocks_of_a_level_is_noticed():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), **TOLERANT)
    lower_block(opt, x, 0.5)
    x.grad = None  # as model.zero_grad() does
    with pytest.raises(RuntimeError, match="were set to None after"):
        lower_block(opt, x, 0.5)


def test_a_twins_gradient_that_is_lost_is_noticed():
    x = point()
    model = torch.nn.ParameterList([x])
    base = torch.optim.SGD([x], lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
    for _ in range(2):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))
    with opt.reference():
        g(x).backward()
    x.grad = None
    with pytest.raises(RuntimeError, match="were set to None after"):
        lower_block(opt, x)


def test_a_direction_that_is_lost_before_the_step_is_noticed():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), **TOLERANT)
    lower_block(opt, x)
    with opt.upper():
        f(x).backward()
    opt.combine()
    x.grad = None
    with pytest.raises(RuntimeError, match="the direction is gone"):
        opt.step()


@pytest.mark.parametrize("call", ["state_dict", "load_state_dict", "step", "finish"])
def test_nothing_is_done_to_the_reference_in_place_of_the_model(call):
    """Inside of opt.reference() the model has the values of its reference."""
    x = point()
    model = torch.nn.ParameterList([x])
    base = torch.optim.SGD([x], lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
    for _ in range(3):
        opt.step(lower=lambda: g(x), upper=lambda: f(x))
    state = copy.deepcopy(opt.state_dict())
    arguments = {
        "state_dict": lambda: opt.state_dict(),
        "load_state_dict": lambda: opt.load_state_dict(state),
        "step": lambda: opt.step(lower=lambda: g(x), upper=lambda: f(x)),
        "finish": lambda: opt.finish(lower=lambda: g(x), upper=lambda: f(x)),
    }
    before = x.detach().clone()
    with torch.no_grad(), opt.reference(), pytest.raises(RuntimeError, match="opt\\."):
        arguments[call]()
    assert torch.equal(x, before)
    opt.step(lower=lambda: g(x), upper=lambda: f(x))


def test_an_interruption_of_a_swap_leaves_the_model_whole(monkeypatch):
    from tiebreak.torch import model_copy

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.1, reference="start", model=model)
    inputs = torch.ones(3, 2)

    def step():
        return opt.step(
            lower=lambda: model(inputs).square().mean(),
            upper=lambda: model[0].weight.sum(),
        )

    for _ in range(3):
        step()
    before = [p.detach().clone() for p in model.parameters()]
    copies = [v.clone() for v in opt.model_copy.values.values()]
    exchange, count = model_copy._exchange, []

    def interrupted(p, value):
        count.append(p)
        if len(count) == 3:
            raise Stop
        exchange(p, value)

    monkeypatch.setattr(model_copy, "_exchange", interrupted)
    with pytest.raises(Stop):
        step()
    monkeypatch.undo()
    assert all(map(torch.equal, model.parameters(), before))
    assert all(map(torch.equal, opt.model_copy.values.values(), copies))


def test_a_failed_step_leaves_nothing_of_a_scaler():
    x = point()
    base = torch.optim.SGD([x], lr=0.1)
    opt = DynamicBarrier(base, **TOLERANT)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    loss = g(x)
    with opt.lower(loss):
        scaler.scale(loss).backward()
    with opt.upper():
        scaler.scale(f(x)).backward()
    handle = base.register_step_pre_hook(lambda *_: raise_stop())
    with pytest.raises(Stop):
        scaler.step(opt)
    handle.remove()
    lower = g(x).item()
    assert stepped(opt, x).lower_loss.item() == pytest.approx(lower)


def test_discarding_the_step_closes_an_interrupted_block():
    x = point()
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), **TOLERANT)
    opt.backward.active_level = (
        "lower"  # as an interruption between two lines leaves it
    )
    with pytest.raises(RuntimeError, match=r"inside opt.lower\(\)"):
        stepped(opt, x)
    opt.zero_grad()
    stepped(opt, x)
