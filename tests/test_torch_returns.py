"""What a user hears and finds when the model was set to its twin, where a last iterate is uncertain, or f waits."""

import csv
import io
import warnings

import pytest
import torch

from tiebreak.tolerance import Reading
from tiebreak.torch import SDBGD, CSVLog, DynamicBarrier, Progress
from tiebreak.torch.progress import _place
from tiebreak.torch.room import Room, rate
from training import simple_method


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def made(x, base=None, **options):
    base = torch.optim.SGD([x], lr=0.1, momentum=0.9) if base is None else base
    return DynamicBarrier(
        base, **{"tolerance": 0.1, "reference": "twin", "model": torch.nn.ParameterList([x])} | options
    )


def step(opt, x, lower=1.0):
    return opt.step(lower=lambda: lower * x.square().sum(), upper=lambda: (x - 1).square().sum())


def brought_back(opt, x, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(opt.memory, "beyond", lambda: True)
        with pytest.warns(RuntimeWarning, match="the model was set to its twin") as told:
            step(opt, x)
    return told


def test_a_warning_points_to_the_line_that_called_the_step(monkeypatch):
    """A scheduler wraps the step in a function of torch's: that is not where a user would look."""
    x = parameter(1.0, 2.0)
    opt = made(x)
    assert [told.filename for told in brought_back(opt, x, monkeypatch)] == [__file__]
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    step(opt, x)
    rate.step()
    assert [told.filename for told in brought_back(opt, x, monkeypatch)] == [__file__]
    number = made(x, tolerance=2.0, reference=0.0)
    with torch.no_grad():
        x.fill_(0.1)
    with pytest.warns(RuntimeWarning, match="more than all of that loss") as told:
        step(number, x)
    assert told[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=r"tolerance='200%' is more than all of the reference"):
        step(made(x, tolerance="200%", reference=1.0), x)


def test_returns_are_in_the_log_the_file_and_the_line(monkeypatch, tmp_path):
    x, stream, path = parameter(1.0, 2.0), io.StringIO(), tmp_path / "run.csv"
    opt = made(x)
    shown, log = Progress(steps=4, every=1, stream=stream), CSVLog(path)
    opt.register_step_post_hook(shown)
    opt.register_step_post_hook(log)
    step(opt, x)
    brought_back(opt, x, monkeypatch)
    brought_back(opt, x, monkeypatch)
    info = step(opt, x)
    log.close()
    shown.close()
    with path.open(newline="") as file:
        assert [row["returns"] for row in csv.DictReader(file)] == ["0", "1", "2", "2"]
    assert opt.log()["returns"] == info.returns.item() == 2
    assert "set to its twin 2 times" in stream.getvalue()
    assert "returns" not in made(x, reference="start").log()


def test_the_page_tells_of_returns(tmp_path):
    from tiebreak.report.log import page

    path = tmp_path / "run.csv"
    for returns, words in (
        ([0, 0, 0], None),
        ([0, 1, 1], "once, at step 1:"),
        ([0, 1, 3], "3 times, the last time at"),
    ):
        path.unlink(missing_ok=True)
        with CSVLog(path) as log:
            for k, count in enumerate(returns):
                log.add(k, multiplier=1.0, excess=0.5, noise=0.1, returns=count)
        said = [text for text in page(path).verdict.findings if "set to its twin" in text]
        assert [words in text for text in said] == [True] * (words is not None)


def test_a_rate_set_between_combining_and_stepping_reaches_the_twin():
    """x moves along d with the new rate, and the twin along ∇g with the same."""
    x = parameter(1.0, 2.0)
    opt = made(x, torch.optim.SGD([x], lr=0.1))
    with opt.reference():
        loss = x.square().sum()
        loss.backward()
    for level, other in (("lower", x.square().sum()), ("upper", (x - 1).square().sum())):
        with getattr(opt, level)(other, **({"reference": loss} if level == "lower" else {})):
            other.backward()
    opt.combine()
    opt.param_groups[0]["lr"] = 0.25
    opt.step()
    torch.testing.assert_close(opt.target.copy.values[x], torch.tensor([0.5, 1.0], dtype=torch.float64))


class Counting(torch.optim.Optimizer):
    """Keeps its memory everywhere but where torch's optimizers keep it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.steps, self.lengths, self.factor, self.friend = 0, [], 1.0, object()
        self.state["all"] = {"sum": torch.zeros((), dtype=torch.float64)}

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                self.lengths.append(p.grad.norm().item())
                self.state["all"]["sum"] += p.grad.sum()
                p.sub_(self.factor * group["lr"] * p.grad)


class Slow(torch.optim.Optimizer):
    """Another optimizer's step, with an optimizer inside."""

    def __init__(self, inner):
        super().__init__([p for group in inner.param_groups for p in group["params"]], {"lr": 0.1})
        self.inner = inner

    def step(self):
        self.inner.step()


def test_what_an_optimizer_of_ones_own_keeps_elsewhere_goes_back_with_the_model(monkeypatch):
    x = parameter(1.0, 2.0)
    base = Counting([x], 0.1)
    friend = base.friend
    opt = made(x, base)
    for _ in range(3):
        step(opt, x)
    base.factor = 0.5  # set by hand: it stays
    base.steps += 10
    twin = opt.target.copy.base
    assert base.lengths != twin.lengths
    brought_back(opt, x, monkeypatch)
    assert (base.steps, base.factor, base.friend) == (4, 0.5, friend)
    assert base.lengths == twin.lengths
    assert base.lengths is not twin.lengths
    assert torch.equal(base.state["all"]["sum"], twin.state["all"]["sum"])
    assert torch.equal(x, opt.target.copy.values[x])


def test_an_optimizer_inside_an_optimizer_goes_back_with_the_model(monkeypatch):
    x = parameter(1.0, 2.0)
    inner = torch.optim.SGD([x], lr=0.1, momentum=0.9)
    opt = made(x, Slow(inner))
    for _ in range(3):
        step(opt, x)
    brought_back(opt, x, monkeypatch)
    twin = opt.target.copy
    assert torch.equal(inner.state[x]["momentum_buffer"], twin.base.inner.state[twin.values[x]]["momentum_buffer"])
    assert list(inner.state) == [x]


def test_a_step_that_is_skipped_leaves_the_averages():
    x = parameter(1.0, 2.0)
    opt = made(x, nonfinite="skip")
    for _ in range(3):
        step(opt, x)
    before = opt.log()
    step(opt, x, lower=float("nan"))
    after = opt.log()
    assert after["skipped"]
    assert {name: after[name] for name in ("excess", "noise", "average_loss")} == {
        name: before[name] for name in ("excess", "noise", "average_loss")
    }


def heard(opt, swing, excess=0.5, steps=400, ratio=1.0):
    """What a run hears in which every step reads the same."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for opt.count in range(steps):
            opt.concerns.heard(opt, Reading(ratio, 1.0, 1.0, 1.0, excess, 0.1, swing=swing))
    return [str(one.message) for one in told]


def test_a_swing_at_a_rate_that_does_not_fall_is_told_once():
    """The averaged excess and twice its swing are above 1, so that the last iterate may be: for a while, not once."""
    (text,) = heard(made(parameter(1.0)), 0.3)
    assert "swings by about 0.3 tolerances around an averaged excess of 0.5" in text
    assert not heard(made(parameter(1.0)), 0.3, steps=150)
    assert not heard(made(parameter(1.0)), 0.2)
    assert not heard(made(parameter(1.0)), 0.0, excess=1.1)  # outside, as the log says, but no swing


@pytest.mark.parametrize("reference", ["start", 0.0])
def test_no_swing_is_told_where_it_is_another_thing(reference):
    """Of a number noise is told, and a fall below the start is none."""
    assert not heard(made(parameter(1.0), reference=reference), 0.6)


def test_no_swing_is_told_where_the_rate_falls():
    x = parameter(1.0)
    opt = made(x)
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    assert not heard(opt, 0.6)
    by_hand = made(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for by_hand.count in range(500):
            by_hand.param_groups[0]["lr"] *= 0.99
            by_hand.concerns.heard(by_hand, Reading(1.0, 1.0, 1.0, 1.0, 0.5, 0.1, swing=0.6))


def test_where_f_waits_headroom_is_named_once():
    """A frozen copy is the reference, g lies above it, and next to all weight has been on g."""
    (text,) = heard(made(parameter(1.0), reference="start"), 0.0, ratio=200.0)
    assert "in 100 of 100 steps next to all weight was on the lower loss, which lies 0.5 tolerances above" in text
    assert 'headroom="auto"' in text
    assert not heard(made(parameter(1.0), reference="start"), 0.0, ratio=50.0)
    assert not heard(made(parameter(1.0), reference="start"), 0.0, ratio=200.0, excess=-0.5)
    assert not heard(made(parameter(1.0), reference="start"), 0.0, ratio=200.0, steps=99)
    for reference in ("twin", 0.0):
        assert not any(
            "headroom" in text for text in heard(made(parameter(1.0), reference=reference), 0.0, ratio=200.0)
        )
    for headroom in (0.5, "auto"):
        assert not heard(made(parameter(1.0), reference="start", headroom=headroom), 0.0, ratio=200.0, steps=150)


def test_in_a_short_training_the_falling_rate_says_when_to_look():
    """Else one of fifty steps would be over before anybody said why f had waited."""
    for share, expected in ((0.5, 20), (0.9, None)):
        opt, told = made(parameter(1.0), reference="start"), []
        full = opt.param_groups[0]["lr"]
        for opt.count in range(50):
            opt.param_groups[0]["lr"] = full if opt.count < 10 else share * full
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                opt.concerns.heard(opt, Reading(200.0, 1.0, 1.0, 1.0, 0.5, 0.1))
            told += [opt.count + 1] * len(caught)
        assert told == ([] if expected is None else [expected])


def test_headroom_that_does_not_go_is_told():
    (text,) = heard(made(parameter(1.0), reference="start", headroom=10), 0.0)
    assert "has been the same for 200 steps: the lower loss may lie 11 tolerances above its reference" in text
    (text,) = heard(made(parameter(1.0), reference=0.0, headroom=10), 0.0)  # whatever the reference is
    assert "headroom=10 goes as" in text
    resumed = made(parameter(1.0), reference="start", headroom=10)
    resumed.memory.values["rate"] = 1.0  # at a tenth of its height, where it stays
    assert not heard(resumed, 0.0)
    scheduled = made(parameter(1.0), reference="start", headroom=10)
    torch.optim.lr_scheduler.CosineAnnealingLR(scheduled, 10)
    assert not heard(scheduled, 0.0)
    by_hand = made(parameter(1.0), reference="start", headroom=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for by_hand.count in range(500):
            by_hand.param_groups[0]["lr"] *= 0.999
            by_hand.concerns.heard(by_hand, Reading(1.0, 1.0, 1.0, 1.0, 0.5, 0.1))


def test_with_headroom_noise_and_rest_are_judged_by_what_is_allowed_now():
    """At the full rate by 11 tolerances, when it has fallen by one."""
    opt = made(parameter(1.0), reference=0.0, headroom=10)
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for opt.count in range(900):
            opt.concerns.heard(opt, Reading(1.0, 1.0, 1.0, 1.0, 9.0, 3.0))
    opt.param_groups[0]["lr"] = 0.0
    with pytest.warns(RuntimeWarning, match=r"known to 3\.0 tolerances only"):
        opt.concerns.heard(opt, Reading(1.0, 1.0, 1.0, 1.0, 0.5, 3.0))


def test_progress_says_what_is_allowed_now():
    x, stream = parameter(1.0), io.StringIO()
    opt = made(x, reference="start", headroom=10)
    with Progress(steps=3, every=1, stream=stream) as shown:
        handle = opt.register_step_post_hook(shown)
        for offset, rate in ((0.0, 0.02), (0.3, 0.01), (0.3, 0.0)):
            opt.param_groups[0]["lr"] = rate
            losses = iter((1.0, 1.0 + offset))  # the first call of a step is that of the frozen copy
            opt.step(lower=lambda losses=losses: 0 * x.sum() + next(losses), upper=lambda: (x - 1).square().sum())
        handle.remove()
    assert shown._allowed == [1.0]
    assert "(outside)" in stream.getvalue().splitlines()[-1]
    assert [_place(excess, 3.5) for excess in (0.5, 1.5, 4.0)] == ["", " (of 3.5 now)", " (outside)"]


def test_the_rate_is_the_highest_of_the_groups_and_what_a_schedule_makes_of_it():
    """A frozen group must not hold headroom up, nor a step size that the optimizer has of its own."""
    x, y = parameter(1.0), parameter(1.0)
    base = torch.optim.SGD([{"params": [y], "lr": 0.0}, {"params": [x]}], lr=0.05)
    assert rate(made(x, base, reference="start")) == 0.05
    own = SDBGD([x], tolerance=0.1, reference="start", model=torch.nn.ParameterList([x]), headroom=10)
    for k in range(3):
        assert rate(own) == pytest.approx(0.05 * (k + 1) ** -0.25)
        step(own, x)
    assert rate(made(x, torch.optim.SGD([x], lr=torch.tensor(0.5)), reference="start")) == 0.5


def test_another_headroom_than_the_state_has_is_told():
    x = parameter(1.0)
    opt = made(x, reference="start", headroom=10)
    step(opt, x)
    state = opt.state_dict()
    with pytest.warns(RuntimeWarning, match=r"saved with headroom=10; the run goes on with 0"):
        made(x, reference="start").load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(x, reference="start", headroom=10).load_state_dict(state)


def test_headroom_is_what_setting_the_tolerance_by_hand_does():
    """The same iterates; but the excess is told in the tolerance that was given, and that is still there at the end."""
    x, y = parameter(1.0, 2.0), parameter(1.0, 2.0)
    roomy, by_hand = made(x, reference="start", headroom=10), made(y, reference="start")
    for k in range(60):
        share = 1 - k / 60
        for opt in (roomy, by_hand):
            opt.param_groups[0]["lr"] = 0.01 * share
        by_hand.tolerance = 0.1 * (1 + 10 * share**2)
        told, seen = step(roomy, x), step(by_hand, y)
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(told.excess, seen.excess * (1 + 10 * share**2))
    assert roomy.tolerance == 0.1
    assert "headroom=10" in repr(roomy)
    assert "headroom" not in repr(by_hand)


def test_headroom_that_is_measured_is_saved_told_and_refused_elsewhere():
    """What was measured is part of the state; the room that is told is made of it."""
    x = parameter(1.0)
    opt = made(x, reference="start", headroom="auto")
    assert opt.headroom == "auto"
    assert 'headroom="auto"' in repr(opt)
    step(opt, x)
    assert opt.log()["allowed"] == Room().now(opt) == pytest.approx(1 + 10 / 1.02)
    assert "allowed" not in made(x, reference="start").log()
    opt.memory.values["lifted"] = 20 * opt.tolerance
    state = opt.state_dict()
    again = made(x, reference="start", headroom="auto")
    again.load_state_dict(state)
    assert Room().now(again) == pytest.approx(31)
    assert again.memory.values["lifted"] == 20 * opt.tolerance
    with pytest.warns(RuntimeWarning, match=r'saved with headroom="auto"; the run goes on with 10$'):
        made(x, reference="start", headroom=10).load_state_dict(state)
    for reference in ("twin", 0.0, "given"):
        with pytest.raises(ValueError, match=r'headroom="auto" measures .* it must come with reference="start", not'):
            made(x, reference=reference, headroom="auto")
    heard_of = made(x, reference="start", headroom="auto")
    heard_of.memory.values["lifted"] = 20 * heard_of.tolerance
    (text,) = heard(heard_of, 0.0)
    assert 'headroom="auto" goes as the learning rate falls' in text
    assert "may lie 31 tolerances above" in text


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "10", "measured", None])
def test_headroom_is_a_number_of_tolerances(wrong):
    with pytest.raises(ValueError, match=r"^headroom=.* must be a number of tolerances, finite and at least 0"):
        made(parameter(1.0), headroom=wrong)


def test_headroom_without_a_tolerance_has_no_effect_and_says_so():
    with pytest.raises(ValueError, match=r"^headroom=10 has no effect without tolerance="):
        DynamicBarrier(torch.optim.SGD([parameter(1.0)], lr=0.1), method=simple_method(), headroom=10)
