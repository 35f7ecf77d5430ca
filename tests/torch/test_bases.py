"""Base optimizers that are no AdamW: Muon, Prodigy, which counts in its groups, and schedule-free ones.

A schedule-free optimizer steps at a point of training, and evaluates at an average. ``train()`` and ``eval()`` move the
parameters from one to the other, so a twin must be moved together with its model.
"""

import copy
import warnings

import pytest
from examples import two_base_optimizers
from torch.nn import functional as F

import torch
from tiebreak.torch import DynamicBarrier
from training import simple_method

SCHEDULE_FREE = ("schedule-free SGD", "schedule-free AdamW", "schedule-free RAdam")
NAMES = ("Muon", "Prodigy", "Muon and AdamW", *SCHEDULE_FREE)
KINDS = {
    "rule": {"method": simple_method(regularizer=1e-3)},
    "number": {"tolerance": 0.05, "reference": 0.3},
    "start": {"tolerance": 0.05, "reference": "start"},
    "twin": {"tolerance": 0.05, "reference": "twin"},
}


def base_optimizer(name, params):
    """Ready to step."""
    if name == "Muon":
        return torch.optim.Muon(params, lr=0.02)
    if name == "Muon and AdamW":
        params = list(params)
        first = torch.optim.Muon(params[:1], lr=0.02)
        return two_base_optimizers.Both(first, torch.optim.AdamW(params[1:], lr=0.01))
    if name == "Prodigy":
        return pytest.importorskip("prodigyopt").Prodigy(params, lr=1.0, d0=1e-3)
    package = pytest.importorskip("schedulefree")
    if name == "schedule-free SGD":
        base = package.SGDScheduleFree(params, lr=0.3, warmup_steps=3)
    elif name == "schedule-free AdamW":
        base = package.AdamWScheduleFree(params, lr=0.02, weight_decay=0.01)
    else:
        base = package.RAdamScheduleFree(params, lr=0.05)
    base.train()
    return base


def network(seed=0):
    """Of matrices alone, because Muon takes nothing else."""
    torch.manual_seed(seed)
    layers = (
        torch.nn.Linear(3, 8, bias=False),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 2, bias=False),
    )
    return torch.nn.Sequential(*layers).double()


def data(count=40):
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, 16, 3, generator=generator, dtype=torch.float64)
    return [(x, (x[:, 0] > 0.3 * x[:, 1]).long()) for x in inputs]


ALL = tuple(torch.cat(parts) for parts in zip(*data(), strict=True))


def fit(model, batch=ALL):
    return F.cross_entropy(model(batch[0]), batch[1])


def size(model):
    return sum(p.square().sum() for p in model.parameters())


def made(name, seed=0, kind="twin", **options):
    model = network(seed)
    base = base_optimizer(name, list(model.parameters()))
    return model, DynamicBarrier(base, model=model, **KINDS[kind] | options)


def train(model, opt, batches):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # advice about so short a run
        for batch in batches:
            opt.step(
                lower=lambda b=batch: fit(model, b), upper=lambda: 0.1 * size(model)
            )


def values(parameters):
    return [p.detach().clone() for p in parameters]


def reference_values(model, opt):
    with torch.no_grad(), opt.reference():
        return values(model.parameters())


def reference_loss(model, opt):
    with torch.no_grad(), opt.reference():
        return fit(model).item()


def equal(one, other):
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def near(one, other):
    return all(
        torch.allclose(x, y, atol=1e-12) for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_lower_only_training_bit_for_bit(name):
    """At the point of training, and after an evaluation in the middle."""
    alone = network()
    plain = base_optimizer(name, list(alone.parameters()))
    model, opt = made(name)
    for batches in (data()[:20], data()[20:]):
        for batch in batches:
            plain.zero_grad()
            fit(alone, batch).backward()
            plain.step()
        train(model, opt, batches)
        assert equal(reference_values(model, opt), values(alone.parameters()))
        if name in SCHEDULE_FREE:
            plain.eval()
            opt.eval()
            assert equal(reference_values(model, opt), values(alone.parameters()))
            plain.train()
            opt.train()
    assert not equal(values(model.parameters()), values(alone.parameters()))


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_the_uninterrupted_one(name, kind, evaluates):
    """Bit for bit, saved at the point of training or at the point of evaluation."""
    model, opt = made(name, kind=kind)
    train(model, opt, data()[:20])
    if evaluates:
        opt.eval()
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    other, again = made(name, seed=1, kind=kind)
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    for one, its in ((model, opt), (other, again)):
        its.train()
        train(one, its, data()[20:])
    assert equal(values(model.parameters()), values(other.parameters()))
    if kind == "twin":
        assert equal(reference_values(model, opt), reference_values(other, again))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "Muon and AdamW"])
def test_a_model_set_to_its_twin_has_its_optimizer_state(name):
    """The lower loss is flat far from 0, so that no step on it leads back from there."""
    x = torch.nn.Parameter(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    base = base_optimizer(name, [x])
    model = torch.nn.ParameterList([x])
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)

    def step():
        lower = lambda: x.square().clamp(max=100.0).sum()  # noqa: E731  # called at once
        return opt.step(lower=lower, upper=lambda: (x - 1).square().sum())

    def train_until_returned():
        while not opt.twin_returns and opt.count < 70:
            step()

    for _ in range(3):
        step()
    with torch.no_grad():
        x.fill_(1000.0)
        if "z" in base.state[x]:
            base.state[x]["z"].fill_(1000.0)
    with pytest.warns(RuntimeWarning, match="the model was set to its twin"):
        train_until_returned()
    assert opt.twin_returns == 1
    assert equal(reference_values(model, opt), values([x]))
    opt.eval()
    assert equal(reference_values(model, opt), values([x]))
    opt.train()
    twin = opt.twin.optimizer
    assert {k: v for k, v in base.param_groups[0].items() if k != "params"} == {
        k: v for k, v in twin.param_groups[0].items() if k != "params"
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(20):
            step()
    assert opt.twin_returns == 1
    assert abs(x.detach()).max() < 10


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_a_schedule_free_model_and_its_twin_are_evaluated_at_the_same_point(name):
    """Both move, and both come back."""
    model, opt = made(name)
    train(model, opt, data())
    training = values(model.parameters()), reference_values(model, opt)
    opt.eval()
    average = values(model.parameters()), reference_values(model, opt)
    opt.eval()  # a second call has no effect
    assert equal(average[0], values(model.parameters()))
    for one, other in zip(training, average, strict=True):
        assert not near(one, other)
    opt.train()
    opt.train()
    assert near(training[0], values(model.parameters()))
    assert near(training[1], reference_values(model, opt))


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_finish_compares_the_points_of_evaluation(name, evaluates):
    """The promise is for the model that is used, and holds for it after `train` and `eval`."""
    tolerance = 0.01
    model, opt = made(name, tolerance=tolerance)
    train(model, opt, data())
    opt.eval()
    reference = reference_loss(model, opt)
    before = (fit(model).item() - reference) / tolerance
    if not evaluates:
        opt.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = opt.finish(lower=lambda: fit(model), upper=lambda: size(model))
    assert result.excess_before == pytest.approx(before, abs=1e-9)
    assert result.excess <= 1
    after = (fit(model).item() - reference) / tolerance
    assert after == pytest.approx(result.excess, abs=1e-9)
    opt.eval()  # the model is at that point already
    assert fit(model).item() == pytest.approx(reference + after * tolerance)
    opt.train()
    train(model, opt, data()[:3])  # and training goes on
    opt.train()
    opt.eval()
    assert reference_loss(model, opt) != reference


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_finish_makes_its_steps_at_the_point_of_training(name):
    """A model outside its tolerance; the twin stays where it was."""
    model, opt = made(name, kind="number", tolerance=1e-3, reference=0.1)
    train(model, opt, data())
    opt.eval()
    anchor = copy.deepcopy(model)
    before = fit(model).item()
    opt.tolerance = before - 0.1 - 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = opt.finish(
            lower=lambda: fit(model),
            steps=(fit(model, batch) for batch in data()[:10]),
            anchor=anchor,
        )
    assert result.repaired
    assert fit(model).item() < before
    with pytest.raises(Exception, match="train mode"):
        train(model, opt, data()[:1])  # finish leaves the point of evaluation


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_a_twin_survives_a_call_of_the_base_past_the_optimizer(name):
    """`base.eval()` does not move the twin, so that a state saved there must not say that it did."""
    model, opt = made(name)
    other, straight = made(name)
    train(model, opt, data()[:10])
    opt.base.eval()
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    model, opt = made(name, seed=1)
    model.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    opt.train()
    train(model, opt, data()[10:])
    train(other, straight, data())
    assert near(values(model.parameters()), values(other.parameters()))
    assert near(reference_values(model, opt), reference_values(other, straight))


@pytest.mark.parametrize("name", ["Muon", "Prodigy"])
def test_train_and_eval_change_nothing_without_two_points(name):
    """So a training loop may call them for any base."""
    model, opt = made(name)
    train(model, opt, data()[:5])
    before = values(model.parameters()), reference_values(model, opt)
    opt.eval()
    opt.train()
    assert equal(before[0], values(model.parameters()))
    assert equal(before[1], reference_values(model, opt))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_point_does_not_change_within_a_step(mode):
    """The gradients of the first block belong to another point than those of the second."""
    model, opt = made("Muon", kind="rule")
    with opt.lower():
        fit(model).backward()
    with pytest.raises(RuntimeError, match=rf"opt\.{mode}\(\) comes after a step"):
        getattr(opt, mode)()
    opt.zero_grad()
    getattr(opt, mode)()
