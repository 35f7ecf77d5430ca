"""The end of a training: whatever the losses look like, the model ends inside if its anchor is, and f is no worse."""

import copy
import math
import random
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_reference import data, fit, network, size

from tiebreak import line_search
from tiebreak.line_search import FARTHEST, KEPT_LIMIT, LEAST_MARGIN, Finish, search
from tiebreak.optax import dynamic_barrier, finish, with_twin
from tiebreak.torch import DynamicBarrier
from tiebreak.torch.finish import _between
from training import simple_method

numbers = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(
    st.dictionaries(st.integers(0, 8000), st.tuples(numbers, numbers)),
    st.tuples(numbers, numbers),
)
def test_any_losses(known, elsewhere):
    """Inside where the anchor is; never worse in f where training ended inside; no more than 25 evaluations."""
    known = known | {0: (0.0, 1.0)}
    asked = []

    def measure(place):
        asked.append(place)
        return known.get(round(1000 * place), elsewhere)

    found = search(measure)
    assert len(asked) == len(set(asked)) == found.evaluations <= 25
    assert 0 <= found.place <= FARTHEST
    assert found.excess <= KEPT_LIMIT
    assert (found.excess_before, found.upper_loss_before) == pytest.approx(
        measure(1.0), nan_ok=True
    )
    if found.excess_before <= KEPT_LIMIT:
        assert found.place == 1 or (
            found.upper_loss < found.upper_loss_before
            and found.excess <= 1 - LEAST_MARGIN
        )
    else:
        assert found.place < 1
    assert not found.upper_loss > known[0][1]  # the anchor is inside, and was looked at


@given(st.floats(0.05, 5), st.floats(1, 3))
def test_the_tolerance_is_used(cost, power):
    """Where e = cost · place^power and f falls along the line, the excess ends near its limit, from either side."""
    found = search(lambda place: (cost * place**power, -place))
    assert 0.7 < found.excess <= KEPT_LIMIT or found.place > FARTHEST - 1
    assert found.place != 1 or cost > 0.9


def test_an_upper_loss_that_has_risen_in_training():
    """Where it is smaller towards the anchor the model goes there, to its minimum or to the anchor itself."""
    assert search(lambda place: (0.1 * place, place)).place == 0
    assert search(
        lambda place: (0.1 * place, (place - 0.5) ** 2)
    ).place == pytest.approx(0.5, abs=0.1)
    assert search(lambda place: (0.1 * place, abs(place - 1))).place == 1
    assert search(lambda place: (0.1 * place, math.nan)).place == 1


def test_what_must_not_be_left_unsaid():
    """A loss of another model, an upper loss that is nowhere smaller than at the reference, one that is not finite."""
    same = (0.1, False)
    with pytest.warns(
        RuntimeWarning,
        match="lower loss is the same number for the reference and for the model, 0.3",
    ):
        line_search.finish(lambda place: (0.3, -place), same)
    with pytest.warns(RuntimeWarning, match="upper loss is the same number"):
        line_search.finish(lambda place: (0.3 + 0.01 * place, 2.0), same)
    with pytest.warns(RuntimeWarning, match="swapped"):
        assert (
            line_search.finish(lambda place: (0.3 + 0.5 * place, place), same).place
            == 0
        )
    with pytest.raises(
        ValueError, match="the upper loss is nan where training left the model"
    ):
        line_search.finish(lambda place: (0.3 + 0.01 * place, math.nan), same)
    line_search.finish(lambda place: (0.0, math.nan), same, has_upper=False)


def test_no_place_inside_is_told():
    with pytest.warns(RuntimeWarning, match=r"is 3.01 tolerances above its reference"):
        found = line_search.finish(
            lambda place: (1.3 + 0.001 * place, -place), (0.1, False), reference=1.0
        )
    assert found.place == 1


@pytest.mark.parametrize(("reference", "tolerance", "match"), [
    (math.nan, (0.1, False), "must be finite"),
    (0.0, (0.1, True), "of a reference of 0"),
])  # fmt: skip
def test_references_that_say_nothing(reference, tolerance, match):
    with pytest.raises(ValueError, match=match):
        line_search.finish(lambda place: (reference, 0.0), tolerance)


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))
def test_units(lower, upper):
    """Either loss times a constant, the tolerance with it: the same place."""

    def at(g, f):
        return line_search.finish(
            lambda place: (g * (1 + 0.3 * place**2), f * -place), (0.4 * g, False)
        ).place

    assert at(lower, upper) == at(1.0, 1.0)


# --- torch -----------------------------------------------------------------------------------------------------------


def trained(reference="twin", tolerance=0.05, steps=40, **options):
    model, batches = network(), data(8)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DynamicBarrier(
        base, tolerance=tolerance, reference=reference, model=model, **options
    )
    for k in range(steps):
        opt.step(
            lower=lambda b=batches[k % 8]: fit(model, b), upper=lambda: size(model)
        )
    return model, opt, batches


def everything(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("reference", "tolerance"),
    [("twin", 0.05), ("start", 0.05), ("twin", "3%"), ("twin", 1e-6)],
)
def test_what_is_measured_is_what_is_left(reference, tolerance, mode):
    """The model is at the place that was found: parameters and buffers between the ends, and the losses as told."""
    model, opt, batches = trained(reference, tolerance)
    getattr(model, mode)()
    before = everything(model)
    with torch.no_grad(), opt.reference():
        there = everything(model)
    torch.manual_seed(3)
    found = opt.finish(
        lower=lambda: (fit(model, b) for b in batches), upper=lambda: size(model)
    )
    assert isinstance(found, Finish)
    assert found.excess <= KEPT_LIMIT
    for name, value in everything(model).items():
        if value.is_floating_point():
            expected = there[name] + found.place * (before[name] - there[name])
            if name.endswith("running_var") and found.place > 1:  # which stays positive
                shrunk = before[name] * (before[name] / there[name]) ** (
                    found.place - 1
                )
                expected = torch.where(before[name] < there[name], shrunk, expected)
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    after = everything(model)
    with torch.no_grad():
        upper = size(model)
        torch.manual_seed(3)
        lower = sum(fit(model, b) for b in batches) / 8
        with opt.reference():
            torch.manual_seed(3)
            its = sum(fit(model, b) for b in batches) / 8
    assert found.upper_loss == pytest.approx(float(upper))
    allowed = 0.03 * float(its) if tolerance == "3%" else tolerance
    assert found.excess == pytest.approx(float((lower - its) / allowed), abs=1e-6)
    assert after.keys() == before.keys()


def test_a_model_that_stays_is_not_touched():
    """Without an upper loss there is no way on, and all bits stay, random numbers too."""
    model, opt, batches = trained(tolerance=0.7)
    before, random = everything(model), torch.get_rng_state()
    found = opt.finish(lower=lambda: [fit(model, b) for b in batches])
    assert (found.place, found.evaluations) == (1.0, 2)
    assert math.isnan(found.upper_loss)
    assert same(everything(model), before)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("when", [1, 2, 5])
def test_a_loss_that_raises_leaves_the_model_as_it_was(when):
    model, opt, batches = trained()
    before, calls = everything(model), []

    def lower():
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return fit(model, batches[0])

    with pytest.raises(KeyboardInterrupt):
        opt.finish(lower=lower, upper=lambda: size(model))
    assert same(everything(model), before)
    model.train()
    opt.step(
        lower=lambda: fit(model, batches[0]), upper=lambda: size(model)
    )  # and training goes on


def test_a_number_needs_the_model_that_reached_it():
    model, opt, batches = trained(reference=0.3, tolerance=0.1)
    losses = {
        "lower": lambda: (fit(model, b) for b in batches),
        "upper": lambda: size(model),
    }
    with pytest.raises(
        TypeError, match=r"reference=0.3 has no copy of the model.*anchor="
    ):
        opt.finish(**losses)
    fitted = network()
    base = torch.optim.Adam(fitted.parameters(), lr=0.05)
    for k in range(300):
        base.zero_grad()
        fit(fitted, batches[k % 8]).backward()
        base.step()
    model.eval()
    fitted.eval()
    with torch.no_grad():
        reached = float(sum(fit(fitted, b) for b in batches) / 8)
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.1), tolerance=0.02, reference=reached
    )
    with pytest.raises(
        TypeError,
        match=r"^anchor=… needs the trained model: opt.finish\(…, anchor=…, model=",
    ):
        opt.finish(**losses, anchor=fitted)
    with pytest.raises(
        ValueError, match="the length of anchor= is 1; it must be that of model=, 2"
    ):
        opt.finish(**losses, anchor=fitted, model=[model, fitted])
    found = opt.finish(**losses, anchor=fitted, model=model)
    assert found.excess_before > 1 >= found.excess
    assert found.place < 1
    wrong = everything(fitted)
    wrong["0.weight"] = wrong["0.weight"][:2]
    for anchor, match in (
        ({}, "no value for '0.weight'"),
        (wrong, r"'0.weight'\] has shape \(2, 3\)"),
        (3, "a int"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            opt.finish(**losses, anchor=anchor, model=model)
    with pytest.raises(ValueError, match="not all parameters"):
        opt.finish(**losses, anchor=fitted, model=fitted)
    with pytest.raises(ValueError, match="have no effect with reference='twin'"):
        trained(steps=1)[1].finish(**losses, anchor=fitted, model=model)


def test_what_the_lower_loss_does_not_reach_stays():
    """A head of the upper loss's own is trained by it alone, and the twin has it as it was at first."""
    x, head = (torch.nn.Parameter(torch.tensor([3.0, 1.0]).double()) for _ in range(2))
    base, model = torch.optim.SGD([x, head], lr=0.05), torch.nn.ParameterList([x, head])
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)

    def lower():
        return (x[0] - x[1]).square()

    def upper():
        return x.square().sum() + (head - 1).square().sum()

    for _ in range(100):
        opt.step(lower=lower, upper=upper)
    kept = head.detach().clone()
    found = opt.finish(lower=lower, upper=upper)
    assert found.place > 1
    assert torch.equal(head, kept)


def test_warnings_point_to_the_line_that_called():
    model, opt, _ = trained(steps=2)

    def mine():
        return opt.finish(
            lower=lambda: 0.3, upper=lambda: size(model)
        )  # not of this model

    with pytest.warns(
        RuntimeWarning, match="does its function evaluate the model that is moved"
    ) as said:
        mine()
    assert {(one.filename, one.lineno) for one in said} == {
        (__file__, mine.__code__.co_firstlineno + 1)
    }


def test_after_a_checkpoint_the_same(tmp_path):
    """The twin is in the state: a run that was saved and loaded finishes at the same place."""
    model, opt, batches = trained()
    torch.save(
        {"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "run.pt"
    )
    saved = torch.load(tmp_path / "run.pt")
    again = network()
    other = DynamicBarrier(
        torch.optim.SGD(again.parameters(), lr=0.1),
        tolerance=0.05,
        reference="twin",
        model=again,
    )
    with pytest.raises(RuntimeError, match="no step was made yet"):
        other.finish(lower=lambda: 1.0)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    for net in (model, again):
        net.eval()
    one = opt.finish(
        lower=lambda: [fit(model, b) for b in batches], upper=lambda: size(model)
    )
    two = other.finish(
        lower=lambda: [fit(again, b) for b in batches], upper=lambda: size(again)
    )
    assert one == two
    assert same(everything(model), everything(again))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision(dtype):
    """Places are worked out in float32, and what stays keeps its bits."""
    x = torch.nn.Parameter(torch.tensor([3.0, 1.0], dtype=dtype))
    base, model = torch.optim.SGD([x], lr=0.05), torch.nn.ParameterList([x])
    opt = DynamicBarrier(base, tolerance=0.5, reference="start", model=model)
    losses = {
        "lower": lambda: (x[0] - x[1]).float().square(),
        "upper": lambda: x.float().square().sum(),
    }
    for _ in range(20):
        opt.step(**losses)
    found = opt.finish(**losses)
    assert found.excess <= KEPT_LIMIT
    assert x.dtype == dtype


def test_wrong_uses():
    model, opt, batches = trained(steps=2)
    batch = batches[0]
    with pytest.raises(TypeError, match=r"finish\(lower=Tensor\): give a function"):
        opt.finish(lower=fit(model, batch))
    with pytest.raises(ValueError, match="returned no loss"):
        opt.finish(lower=list)
    with pytest.raises(TypeError, match="the lower loss is a NoneType"):
        opt.finish(lower=lambda: None)
    with pytest.raises(ValueError, match=r"the lower loss of a batch has shape \(2,\)"):
        opt.finish(lower=lambda: [torch.ones(2)])
    with opt.lower():
        fit(model, batch).backward()
    with pytest.raises(RuntimeError, match="not within one"):
        opt.finish(lower=lambda: fit(model, batch))
    rule = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.1), method=simple_method()
    )
    with pytest.raises(RuntimeError, match="with tolerance="):
        rule.finish(lower=lambda: 1.0)


# --- torch: what a pass leaves behind, and what has no place between two values ------------------------------------


def told(net, opt, batches, **more):
    return opt.finish(
        lower=lambda: [fit(net, b) for b in batches], upper=lambda: size(net), **more
    )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_beyond_the_end(mode):
    """A scale before batch norm is free, so f takes it far beyond: the running variance must not become negative."""
    torch.manual_seed(0)
    model, batches = (
        torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
        ),
        data(),
    )
    model.double()
    for _ in range(20):
        model(batches[0][0])
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.02),
        tolerance=0.1,
        reference="start",
        model=model,
    )
    for k in range(30):
        opt.step(
            lower=lambda b=batches[k % 8]: fit(model, b),
            upper=lambda: model[0].weight.square().sum(),
        )
    getattr(model, mode)()
    found = opt.finish(
        lower=lambda: [fit(model, b) for b in batches],
        upper=lambda: model[0].weight.square().sum(),
    )
    assert found.place > 1
    assert model[1].running_var.min() > 0
    model.eval()
    with torch.no_grad():
        mine = float(sum(fit(model, b) for b in batches) / len(batches))
        with opt.reference():
            its = float(sum(fit(model, b) for b in batches) / len(batches))
    assert mine <= its + 0.1 if mode == "eval" else math.isfinite(mine)


def test_places_of_buffers():
    """Between: masks and counters are the model's, variances positive, directions as long as they were."""
    one, two = torch.tensor([0.6, -0.8]), torch.tensor([1.0, 0.0])
    assert _between(one, two, 7.0, is_buffer=True).norm().item() == pytest.approx(1)
    mask = torch.tensor([1.0, 0.0, 1.0])
    assert torch.equal(_between(torch.ones(3), mask, 2.0, is_buffer=True), mask)
    assert torch.equal(
        _between(torch.tensor(3), torch.tensor(8), 0.5, is_buffer=True),
        torch.tensor(8),
    )
    variance = _between(
        torch.tensor([4.0, 0.0, 4.0]),
        torch.tensor([1.0, 2.0, 0.0]),
        3.0,
        is_buffer=True,
    )
    assert torch.equal(variance, torch.tensor([1 / 16, 6.0, 0.0]))
    assert _between(torch.empty(0), torch.empty(0), 3.0, is_buffer=True).numel() == 0


@pytest.mark.parametrize("place", [0.5, 1.5])
@pytest.mark.parametrize("is_buffer", [False, True])
def test_equal_entries_stay_equal_on_the_line(place, is_buffer):
    """A causal mask has −inf in the reference and in the model."""
    mask = torch.full((3, 3), float("-inf")).triu(1)
    begin = mask + torch.tensor([1.0, 2.0, 3.0]).diag()
    end = mask + torch.tensor([1.0, 4.0, 3.0]).diag()
    between = _between(begin, end, place, is_buffer)
    assert torch.equal(between.isinf(), mask.isinf())
    assert between[1, 1].item() == pytest.approx(2 + 2 * place)


class Own(torch.nn.Module):
    """Puts new buffers in the place of others or of none, makes one longer, and has a hash that changes."""

    def __hash__(self):
        return hash(int(self.count)) if "count" in getattr(self, "_buffers", ()) else 0

    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(3, 2).double()
        self.register_buffer("mean", torch.zeros(3).double())
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("cache", None)
        self.register_buffer("queue", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.queue.data = torch.cat([self.queue[-3:], torch.ones(1)])
            self.mean, self.count = (
                0.9 * self.mean + 0.1 * x.mean(0).detach(),
                self.count + 1,
            )
            self.cache = self.mean
        return self.inside(x - self.mean)


@pytest.mark.parametrize("reference", ["twin", "number"])
def test_nothing_of_a_pass_stays(reference):
    """Buffers that a module replaces, and those of a head that is no part of the line: it begins where it ends."""
    torch.manual_seed(0)
    model, head, batches = Own(), torch.nn.BatchNorm1d(2).double(), data()
    start, base = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1)
    if reference == "number":
        opt = DynamicBarrier(base, tolerance=0.3, reference=0.7, model=[model, head])
    else:
        opt = DynamicBarrier(base, tolerance=0.3, reference="twin", model=model)

    def upper(batch):
        return (head(model(batch[0])) - 1).square().mean() + size(model)

    for k in range(20):
        opt.step(
            lower=lambda b=batches[k % 8]: fit(model, b),
            upper=lambda b=batches[k % 8]: upper(b),
        )
    model.cache, model.queue = None, torch.zeros(1)
    head.train(reference == "number")
    before, outside = everything(model), everything(head)
    found = opt.finish(
        lower=lambda: [fit(model, b) for b in batches],
        upper=lambda: [upper(b) for b in batches],
        **({"anchor": [start, copy.deepcopy(head)]} if reference == "number" else {}),
    )
    assert found.place > 1
    assert same(everything(head), outside)
    assert model.cache is None
    assert model.queue.tolist() == [0]
    assert model.count == before["count"]
    if reference == "number":
        assert torch.equal(model.mean, found.place * before["mean"])  # which was 0


def test_finishing_after_a_checkpoint_leaves_the_twin_as_it_is():
    model, opt, batches = trained()
    again = network()
    other = DynamicBarrier(
        torch.optim.SGD(again.parameters(), lr=0.1),
        tolerance=0.05,
        reference="twin",
        model=again,
    )
    again.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(opt.state_dict()))

    def twin(net, optimizer):
        with torch.no_grad(), optimizer.reference():
            return everything(net)

    kept = twin(model, opt)
    random = torch.get_rng_state()
    one = told(model, opt, batches)
    assert torch.equal(torch.get_rng_state(), random)
    assert one == told(again, other, batches)
    assert same(everything(model), everything(again))
    assert torch.equal(torch.get_rng_state(), random)
    assert same(twin(model, opt), kept)
    assert same(twin(again, other), kept)


def test_one_mode_at_all_places():
    """An upper loss that evaluates, and leaves the mode so, does not make the lower loss another function."""
    model, opt, batches = trained()
    seen = []

    def lower():
        seen.append(model.training)
        return [fit(model, b) for b in batches]

    def upper():
        model.eval()
        return size(model)

    opt.finish(lower=lower, upper=upper)
    assert len(seen) > 2
    assert all(seen)


def test_complex_parameters_move():
    w = torch.nn.Parameter(torch.tensor([3 + 1j, 1 - 1j]))
    base, model = torch.optim.SGD([w], lr=0.05), torch.nn.ParameterList([w])
    opt = DynamicBarrier(base, tolerance=0.5, reference="start", model=model)
    losses = {
        "lower": lambda: (w[0] - w[1]).abs().square(),
        "upper": lambda: w.abs().square().sum(),
    }
    for _ in range(5):
        opt.step(**losses)
    before = w.detach().clone()
    found = opt.finish(**losses)
    assert found.place > 1
    assert found.excess_before < -1
    start = torch.tensor([3 + 1j, 1 - 1j])
    torch.testing.assert_close(w.detach(), start + found.place * (before - start))


def test_anchors():
    """Wrapped, or no copy at all; the frozen layer is the same in the anchor and in the model."""
    model, batches = network(), data(8)
    model.eval()
    model[0].requires_grad_(False)
    fitted = copy.deepcopy(model)
    base = torch.optim.Adam(fitted[1:].parameters(), lr=0.05)
    for k in range(100):
        base.zero_grad()
        fit(fitted, batches[k % 8]).backward()
        base.step()
    with torch.no_grad():
        reached = float(sum(fit(fitted, b) for b in batches) / 8)
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.1), tolerance=0.02, reference=reached
    )
    own = model.state_dict()
    with pytest.raises(
        ValueError, match=r"anchor\['1.weight'\] is the model's own.*deepcopy"
    ):
        told(model, opt, batches, anchor=own, model=model)
    before = everything(model)
    compiled = torch.compile(model, backend="eager")
    found = told(model, opt, batches, anchor=fitted, model=compiled)
    assert found.excess <= 1 < found.excess_before
    model.load_state_dict(before)
    parallel = {f"module.{name}": value for name, value in fitted.state_dict().items()}
    assert told(model, opt, batches, anchor=parallel, model=model) == found


def test_losses_of_all_kinds():
    model, opt, batches = trained()
    model.eval()
    before, expected = everything(model), None
    for kind in (
        float,
        torch.Tensor.numpy,
        lambda loss: loss.reshape(1),
        lambda loss: [loss.item()],
    ):
        model.load_state_dict(before)
        found = opt.finish(
            lower=lambda kind=kind: kind(fit(model, batches[0])),
            upper=lambda: size(model),
        )
        assert expected in (None, found)
        expected = found


def test_losses_that_change():
    model, opt, batches = trained(steps=3)
    before, once = everything(model), iter(batches)
    with pytest.raises(ValueError, match="returned 8 losses at first, and none now"):
        opt.finish(
            lower=lambda: (fit(model, b) for b in once), upper=lambda: size(model)
        )
    inputs = batches[0][0].requires_grad_()
    with pytest.raises(RuntimeError, match="require grad") as error:
        opt.finish(
            lower=lambda: (
                torch.autograd.grad(model(inputs).sum(), inputs)[0].square().sum()
            )
        )
    assert "torch.enable_grad()" in error.value.__notes__[0]
    assert same(everything(model), before)


# --- JAX -------------------------------------------------------------------------------------------------------------


def test_jax_and_torch_find_the_same():
    x = torch.nn.Parameter(torch.tensor([3.0, 1.0]).double())
    base, model = torch.optim.SGD([x], lr=0.1), torch.nn.ParameterList([x])
    opt = DynamicBarrier(base, tolerance=0.1, reference="start", model=model)
    opt.step(lower=lambda: (x[0] - x[1]).square(), upper=lambda: x.square().sum())
    end = copy.deepcopy(x).detach()
    torch_found = opt.finish(
        lower=lambda: (x[0] - x[1]).square(), upper=lambda: x.square().sum()
    )
    params, found = finish(
        {"x": jnp.asarray(end.numpy()), "count": jnp.array(3)},
        {"x": jnp.array([3.0, 1.0]), "count": jnp.array(0)},
        lower=lambda p: (p["x"][0] - p["x"][1]) ** 2,
        upper=lambda p: jnp.sum(p["x"] ** 2),
        tolerance=0.1,
    )
    assert found.place == torch_found.place
    assert found.excess == pytest.approx(torch_found.excess, abs=1e-4)
    assert params["x"].tolist() == pytest.approx(x.tolist(), rel=1e-5)
    assert int(params["count"]) == 3


def test_jax_wrong_uses():
    x = jnp.ones(2)
    with pytest.raises(ValueError, match=r"anchor.* has shape \(3,\)"):
        finish(x, jnp.ones(3), lower=lambda x: x[0], tolerance=0.1)
    with pytest.raises(ValueError, match="one real number"):
        finish(x, x, lower=lambda x: [x], tolerance=0.1)
    with pytest.raises(TypeError, match="lower=3 must be a function"):
        finish(x, x, lower=3, tolerance=0.1)
    with pytest.raises(ValueError, match="tolerance=0 must be"):
        finish(x, x, lower=lambda x: x[0], tolerance=0)


def test_jax_leaves_of_all_kinds():
    """Complex ones move; the others stay, but at the anchor are its own; a loss may have half precision."""
    params = {
        "x": jnp.array([2.9, 2.8]),
        "c": jnp.array(1 + 1j),
        "i": jnp.array(3),
        "none": None,
        "f": 2.0,
    }
    anchor = {
        "x": jnp.array([3.0, 3.0]),
        "c": jnp.array(2 + 2j),
        "i": jnp.array(1),
        "none": None,
        "f": 1.0,
    }

    def lower(p):
        return ((p["x"][0] - p["x"][1]) ** 2).astype(jnp.bfloat16)

    there, found = finish(
        params, anchor, lower=lower, upper=lambda p: jnp.sum(p["x"] ** 2), tolerance=0.1
    )
    assert found.place > 1
    assert complex(there["c"]) == pytest.approx(2 + 2j - found.place * (1 + 1j))
    assert (int(there["i"]), there["none"], float(there["f"])) == (
        3,
        None,
        pytest.approx(1 + found.place),
    )
    half = {
        name: leaf.astype(jnp.bfloat16) if name == "x" else leaf
        for name, leaf in params.items()
    }
    there, found = finish(
        half, anchor, lower=lambda p: 0.0 if int(p["i"]) == 1 else 1.0, tolerance=1e-6
    )
    assert found.place == 0
    assert there["x"].dtype == jnp.bfloat16
    assert int(there["i"]) == 1
    with pytest.raises(
        TypeError, match=r"params\['act'\] is a .*; leaves must be arrays"
    ):
        finish(
            params | {"act": jax.nn.relu},
            anchor | {"act": jax.nn.relu},
            lower=lower,
            tolerance=0.1,
        )


def test_jax_a_twin_wherever_it_is():
    x = jnp.array([2.9, 2.8])
    state = optax.MultiSteps(with_twin(optax.sgd(0.1), tolerance=0.1), 2).init(
        jnp.array([3.0, 3.0])
    )
    _, found = finish(
        x,
        state,
        lower=lambda x: (x[0] - x[1]) ** 2,
        upper=lambda x: jnp.sum(x**2),
        tolerance=0.1,
    )
    assert found.place > 1
    with pytest.raises(ValueError, match="has 2 twins"):
        finish(x, (state, state), lower=lambda x: x[0], tolerance=0.1)


def test_jax_the_start_that_a_state_keeps():
    """The state of the whole optimizer does; one that keeps no parameters is refused in words."""
    x, start = jnp.array([2.9, 2.8]), jnp.array([3.0, 3.0])
    losses = {"lower": lambda x: (x[0] - x[1]) ** 2, "upper": lambda x: jnp.sum(x**2)}
    state = optax.chain(
        dynamic_barrier(tolerance=0.1, reference="start"), optax.sgd(0.1)
    ).init(start)
    there, found = finish(x, state, **losses, tolerance=0.1)
    same, expected = finish(x, start, **losses, tolerance=0.1)
    assert found == expected
    assert there.tolist() == same.tolist()
    with pytest.raises(ValueError, match="has 2 starts"):
        finish(x, (state, state), **losses, tolerance=0.1)
    number = optax.chain(
        dynamic_barrier(tolerance=0.1, reference=0.0), optax.sgd(0.1)
    ).init(start)
    with pytest.raises(ValueError, match="is a state that keeps no parameters"):
        finish(x, number, **losses, tolerance=0.1)


def test_a_twin_that_made_no_step_can_be_looked_at_and_finished():
    """A look at the reference makes the twin; the line to it is a point."""
    x = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    model = torch.nn.ParameterList([x])
    base = torch.optim.SGD([x], lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.1, reference="twin", model=model)
    with torch.no_grad(), opt.reference():
        assert x.square().sum() == 5
    with pytest.warns(RuntimeWarning, match="is the same number"):
        result = opt.finish(lower=lambda: x.square().sum(), upper=lambda: x.sum())
    assert result.excess == 0
    assert x.tolist() == [1.0, 2.0]


# --- places that are not finite, and data that are a sample ------------------------


@pytest.mark.parametrize("seed", range(100))
def test_the_model_never_ends_where_a_loss_is_not_finite(seed):
    """Random losses along the line, NaN and infinite at random places; the ends are finite."""
    draw = random.Random(seed)
    bad = [math.nan, math.inf, -math.inf]
    losses = {0.0: (0.0, draw.gauss(0, 1)), 1.0: (draw.expovariate(1), 0.0)}

    def measure(place):
        if place not in losses:
            lower = draw.choice([*bad, draw.expovariate(1), draw.expovariate(3)])
            losses[place] = lower, draw.choice([*bad, draw.gauss(0, 1)])
        return losses[place]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = line_search.finish(measure, (1.0, False))
    assert math.isfinite(found.excess)
    assert math.isfinite(found.upper_loss)
    nonfinite = {p for p, pair in losses.items() if not all(map(math.isfinite, pair))}
    assert set(found.nonfinite_places) == nonfinite
    told = any("was not finite at the places" in str(w.message) for w in caught)
    assert told == bool(nonfinite)


def test_the_margin_grows_with_the_spread_over_the_batches():
    """The excess on new data is a mean of as many batches: it is at most 1 as often as the confidence says."""
    draw = random.Random(0)
    inside = {0.6: 0, 0.95: 0}
    for confidence in inside:
        for _ in range(300):
            # The lower loss rises by slope · place, and each batch has a slope of its own.
            slopes = [draw.gauss(1.0, 2.0) for _ in range(50)]
            total = line_search.Totals(lambda name, x: x)

            def measure(place, slopes=slopes, total=total):
                lower = total("lower", [slope * place for slope in slopes])
                error = line_search.standard_error(total.differences("lower"))
                return lower, -place, error

            found = line_search.finish(measure, (1.0, False), confidence=confidence)
            inside[confidence] += 1.0 * found.place <= 1.0  # the mean over all data
    assert inside[0.95] >= 0.93 * 300
    assert inside[0.6] < 0.8 * 300


@pytest.mark.parametrize("confidence", [0.4, 1.0, float("nan")])
def test_an_illegal_confidence_is_refused(confidence):
    with pytest.raises(ValueError, match=r"must be at least 0\.5 and below 1"):
        line_search.finish(
            lambda place: (place, place), (1.0, False), confidence=confidence
        )


def test_data_that_change_from_call_to_call_are_refused():
    model, opt, batches = trained(steps=3)
    before = everything(model)
    generator = torch.Generator().manual_seed(0)

    def lower():
        inputs, targets = batches[0]
        noise = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)
        return fit(model, (inputs + noise, targets))

    with pytest.raises(RuntimeError, match="for the same model"):
        opt.finish(lower=lower, upper=lambda: size(model))
    assert all(map(torch.equal, before.values(), everything(model).values()))


def test_a_parameter_that_was_frozen_after_training_stays():
    model, opt, batches = trained(steps=3)
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    before = frozen.detach().clone()
    with torch.no_grad():
        for p in model.parameters():
            if p is not frozen:
                p.add_(10.0)  # far outside
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = opt.finish(lower=lambda: fit(model, batches[0]))
    assert found.place < 1
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("reference", ["start", "twin", 0.5])
def test_parameters_that_share_memory_are_refused(reference):
    """Tied by storage they would part in a copy, and the losses would be those of another model."""
    x = torch.nn.Parameter(torch.ones(3))
    y = torch.nn.Parameter(x.data)
    model = torch.nn.ParameterList([x, y])
    opt = DynamicBarrier(
        torch.optim.SGD([x, y], lr=0.1), tolerance=0.1, reference=reference, model=model
    )
    if reference == 0.5:
        anchor = {"0": torch.zeros(3), "1": torch.zeros(3)}
        use = partial(opt.finish, lower=lambda: x.sum(), anchor=anchor)
    else:
        use = partial(opt.step, lower=lambda: x.sum(), upper=lambda: y.sum())
    with pytest.raises(ValueError, match="share their memory"):
        use()


@pytest.mark.parametrize("helps", [True, False])
def test_places_of_a_line_that_was_left_are_not_named(helps):
    """Only the model before, or after, the steps on the lower loss has a loss that is not finite."""
    stage = ["trained"]

    def measure(place):
        bad = "trained" if helps else "repaired"
        if place == 1 and stage[0] == bad:
            return math.nan, 0.0
        far = 3.0 if stage[0] == "trained" else 0.5
        return place * far, -place

    def repair():
        stage[0] = "repaired"
        return lambda: stage.__setitem__(0, "trained")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = line_search.finish(measure, (1.0, False), repair=repair)
    assert found.nonfinite_places == ()
    assert not any("not finite" in str(w.message) for w in caught)
    assert found.repaired == helps


@pytest.mark.parametrize("reference", ["start", "twin"])
def test_the_reference_of_a_model_with_frozen_parameters_is_that_of_training(reference):
    """The excess that finish reports is the one against the whole reference, whose frozen part differs from the model's."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    targets = inputs[:, :1] * inputs[:, 1:2]
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    base = torch.optim.Adam(model.parameters(), lr=0.01)
    opt = DynamicBarrier(base, tolerance=0.05, reference=reference, model=model)

    def lower():
        return (model(inputs) - targets).square().mean()

    def upper():
        return sum(p.abs().sum() for p in model.parameters())

    for k in range(60):
        if k == 40:
            model[0].requires_grad_(False)
        opt.step(lower=lower, upper=upper)
    with torch.no_grad(), opt.reference():
        whole = lower().item()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = opt.finish(lower=lower, upper=upper)
    assert found.excess == pytest.approx((lower().item() - whole) / 0.05, abs=1e-4)
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="all parameters are frozen"):
        opt.finish(lower=lower, upper=upper)


def test_an_upper_loss_of_other_data_at_each_call_is_refused():
    model, opt, batches = trained(steps=3)
    generator = torch.Generator().manual_seed(0)

    def upper():
        return size(model) * (1 + torch.rand((), generator=generator).item())

    with pytest.raises(RuntimeError, match=r"finish\(upper=…\) gave"):
        opt.finish(lower=lambda: fit(model, batches[0]), upper=upper)


def test_batches_in_another_order_at_each_call_are_refused():
    """Their mean is the same, but the spread of the differences would mean nothing."""
    model, opt, batches = trained(steps=3)
    draw = random.Random(0)

    def lower():
        order = draw.sample(range(8), 8)
        return [fit(model, batches[i]) for i in order]

    with pytest.raises(RuntimeError, match=r"finish\(lower=…\) gave"):
        opt.finish(lower=lower, upper=lambda: size(model))


@pytest.mark.filterwarnings("ignore:the upper loss is smallest at the reference")
def test_a_loss_that_fails_in_training_mode_does_not_end_finish():
    """Batch norm needs more than one row in training mode, in which the user did not ask for losses."""
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
    )
    anchor = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.mul_(1.5)
    base = torch.optim.SGD(model.parameters(), lr=0.01)
    opt = DynamicBarrier(base, tolerance=10.0, reference=1.0, model=model)
    model.eval()
    found = opt.finish(
        lower=lambda: [model(inputs[i : i + 1]).square().mean() for i in range(6)],
        upper=lambda: model[0].weight.abs().sum(),
        anchor=anchor,
    )
    assert math.isfinite(found.excess)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_loader_that_shuffles_is_refused_unless_its_generator_is_named(is_named):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(torch.tensor([0.5]))
    model = torch.nn.ParameterList([x])
    rows = torch.arange(20.0)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=4, shuffle=True, generator=generator
    )
    generators = [generator] if is_named else []
    opt = DynamicBarrier(
        torch.optim.SGD([x], lr=0.1),
        tolerance=50.0,
        reference=1.0,
        model=model,
        generators=generators,
    )
    call = partial(
        opt.finish,
        lower=lambda: [(x * batch).square().mean() for batch in loader],
        upper=lambda: -x.sum(),
        anchor={"0": torch.tensor([0.1])},
    )
    if is_named:
        assert call().place > 1
    else:
        with pytest.raises(RuntimeError, match="generators="):
            call()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_number_of_training_mode_is_told_in_evaluation_mode(mode):
    """Dropout makes the loss of training mode larger; the number is the one that the anchor has there."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
        model[1].bias.zero_()

    def lower():
        return (model(inputs) - targets).square().mean()

    number = lower().item()
    anchor = copy.deepcopy(model)
    with torch.no_grad():
        model[1].weight.mul_(0.9)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.5, reference=number, model=model)
    getattr(model, mode)()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.finish(
            lower=lower, upper=lambda: model[1].weight.abs().sum(), anchor=anchor
        )
    texts = [str(w.message) for w in caught]
    told = any("seems to be a loss of training mode" in text for text in texts)
    assert told == (mode == "eval")
