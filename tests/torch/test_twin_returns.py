"""What a user finds when the model was set to its twin, and what of the twin goes with the model."""

import copy

import pytest

import torch
from tiebreak.torch import DynamicBarrier
from training import simple_method


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def made(x, base=None, **options):
    base = torch.optim.SGD([x], lr=0.1, momentum=0.9) if base is None else base
    return DynamicBarrier(
        base,
        **{"tolerance": 0.1, "reference": "twin", "model": torch.nn.ParameterList([x])}
        | options,
    )


def step(opt, x, lower=1.0):
    """The lower loss is flat far from 0, so that no step on it leads back from there."""
    return opt.step(
        lower=lambda: lower * x.square().clamp(max=100.0).sum(),
        upper=lambda: (x - 1).square().sum(),
    )


def train_until(returns, opt, x):
    for _ in range(200):
        step(opt, x)
        if opt.twin_returns == returns:
            return
    pytest.fail("the model was not set to its twin")


def brought_back(opt, x):
    """Move the model to where the lower loss is flat, and train until it is set to its twin."""
    with torch.no_grad():
        x.fill_(1000.0)
    with pytest.warns(RuntimeWarning, match="the model was set to its twin") as told:
        train_until(opt.twin_returns + 1, opt, x)
    return told


def test_a_warning_points_to_the_line_that_called_the_step():
    """A scheduler wraps the step in a function of torch's: that is not where a user would look."""
    x = parameter(1.0, 2.0)
    opt = made(x)
    step(opt, x)
    assert [told.filename for told in brought_back(opt, x)] == [__file__]
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    step(opt, x)
    rate.step()
    assert [told.filename for told in brought_back(opt, x)] == [__file__]
    number = made(x, tolerance=2.0, reference=0.0)
    with torch.no_grad():
        x.fill_(0.1)
    with pytest.warns(RuntimeWarning, match="of that loss, which is") as told:
        step(number, x)
    assert told[0].filename == __file__
    with pytest.warns(
        RuntimeWarning, match=r"tolerance='200%' is more than all of the reference"
    ):
        step(made(x, tolerance="200%", reference=1.0), x)


def test_returns_are_counted_and_saved():
    """The optimizer has the count; it is no part of a step, nor of what is logged."""
    x = parameter(1.0, 2.0)
    opt = made(x)
    step(opt, x)
    assert opt.twin_returns == 0
    for count in (1, 2):
        brought_back(opt, x)
        assert opt.twin_returns == count
    step(opt, x)
    assert opt.twin_returns == 2
    assert not any("return" in name for name in opt.log())
    y = parameter(0.0, 0.0)
    again = made(y)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert again.twin_returns == 2
    assert made(parameter(1.0), reference="start").twin_returns == 0
    base = torch.optim.SGD([x], lr=0.1)
    assert DynamicBarrier(base, method=simple_method()).twin_returns == 0


@pytest.mark.filterwarnings("ignore:the learning rate does not fall")
def test_a_model_that_comes_back_by_itself_is_not_set_to_its_twin():
    """From far above, by steps on g alone; other warnings are errors."""
    x = parameter(1.0, 2.0)
    opt = made(x, torch.optim.SGD([x], lr=0.02))
    excess = []
    for k in range(600):
        if k == 200:
            with torch.no_grad():
                x.fill_(7.0)
        excess.append(step(opt, x).excess.item())
    assert max(excess[:200]) < 1
    assert max(excess[200:]) > 50
    assert max(excess[500:]) < 1
    assert opt.twin_returns == 0


def test_a_rate_set_between_combining_and_stepping_reaches_the_twin():
    """x moves along d with the new rate, and the twin along ∇g with the same."""
    x = parameter(1.0, 2.0)
    opt = made(x, torch.optim.SGD([x], lr=0.1))
    with opt.reference():
        loss = x.square().sum()
        loss.backward()
    for level, other in (
        ("lower", x.square().sum()),
        ("upper", (x - 1).square().sum()),
    ):
        with getattr(opt, level)(
            other, **({"reference": loss} if level == "lower" else {})
        ):
            other.backward()
    opt.combine()
    opt.param_groups[0]["lr"] = 0.25
    opt.step()
    torch.testing.assert_close(
        opt.model_copy.values[x], torch.tensor([0.5, 1.0], dtype=torch.float64)
    )


class Counting(torch.optim.Optimizer):
    """Keeps a sum over all parameters in its state, and a number that its user sets in an attribute."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.factor = 1.0
        self.state["all"] = {"sum": torch.zeros((), dtype=torch.float64)}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state["all"]["sum"] += p.grad.sum()
                p.sub_(self.factor * group["lr"] * p.grad)


class Slow(torch.optim.Optimizer):
    """Another optimizer's step, with an optimizer inside."""

    def __init__(self, inner):
        super().__init__(
            [p for group in inner.param_groups for p in group["params"]], {"lr": 0.1}
        )
        self.inner = inner

    def step(self):
        self.inner.step()


def test_state_that_belongs_to_no_parameter_goes_back_with_the_model():
    """What the optimizer keeps outside of its state and its groups stays."""
    x = parameter(1.0, 2.0)
    base = Counting([x], 0.1)
    opt = made(x, base)
    for _ in range(3):
        step(opt, x)
    base.factor = 0.5
    twin = opt.twin.optimizer
    assert not torch.equal(base.state["all"]["sum"], twin.state["all"]["sum"])
    brought_back(opt, x)
    assert base.factor == 0.5
    assert torch.equal(base.state["all"]["sum"], twin.state["all"]["sum"])
    assert base.state["all"]["sum"] is not twin.state["all"]["sum"]
    assert torch.equal(x, opt.model_copy.values[x])


def test_an_optimizer_inside_an_optimizer_goes_back_with_the_model():
    x = parameter(1.0, 2.0)
    inner = torch.optim.SGD([x], lr=0.1, momentum=0.9)
    opt = made(x, Slow(inner))
    for _ in range(3):
        step(opt, x)
    brought_back(opt, x)
    twin = opt.model_copy
    assert torch.equal(
        inner.state[x]["momentum_buffer"],
        twin.optimizer.inner.state[twin.values[x]]["momentum_buffer"],
    )
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
    for name in ("reference", "excess", "ratio"):
        assert after[name] == before[name]


def test_a_base_without_state_has_none_after_a_return():
    """torch's SGD keeps nothing without momentum, and its state stays empty."""
    x = parameter(1.0, 2.0)
    opt = made(x, torch.optim.SGD([x], lr=0.1))
    step(opt, x)
    brought_back(opt, x)
    assert opt.twin_returns == 1
    assert opt.base.state_dict()["state"] == {}
