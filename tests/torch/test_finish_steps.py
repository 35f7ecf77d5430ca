"""`finish(steps=…)`: steps on the lower loss alone before the search, where the line to the reference has a barrier."""

import math

import jax
import jax.numpy as jnp
import pytest

import torch
from tiebreak import line_search
from tiebreak import optax as tiebreak_optax
from tiebreak.torch import DynamicBarrier

TOLERANCE = 1.0


def lower_loss(x, sin):
    """A valley along each whole x₀, with a barrier of height 5 between two of them."""
    return 4 * x[1] ** 2 + 5 * sin(math.pi * x[0]) ** 2


def trained(value=(1.0, 0.6)):
    """An optimizer whose number 0 was reached at the origin, and whose model ended in the next valley, outside."""
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.tensor(value, dtype=torch.float64))]
    )
    base = torch.optim.SGD(model.parameters(), lr=0.02)
    return model, DynamicBarrier(base, tolerance=TOLERANCE, reference=0.0, model=model)


def finished(model, opt, **options):
    anchor = {"0": torch.zeros(2, dtype=torch.float64)}
    return opt.finish(
        lower=lambda: lower_loss(model[0], torch.sin),
        upper=lambda: -model[0][0],
        anchor=anchor,
        **options,
    )


def batches(model, count):
    return (lower_loss(model[0], torch.sin) for _ in range(count))


def test_the_line_alone_gives_the_gain_up_and_steps_keep_it():
    model, opt = trained()
    line = finished(model, opt)
    assert line.excess <= 1
    assert line.upper_loss > -0.3
    assert not line.repaired

    model, opt = trained()
    found = finished(model, opt, steps=batches(model, 20))
    assert found.excess <= 1
    assert found.upper_loss < -0.95
    assert found.repaired
    assert found.excess_before == pytest.approx(1.44)
    assert found.upper_loss_before == -1.0
    assert model[0].grad is None
    assert "to where steps on the lower loss ended" in str(found)
    assert found.upper_loss == pytest.approx(-model[0][0].item())


def test_a_model_inside_takes_no_steps():
    model, opt = trained((1.0, 0.1))
    losses = batches(model, 5)
    found = finished(model, opt, steps=losses)
    assert not found.repaired
    assert len(list(losses)) == 5


def test_a_loss_that_is_not_finite_leaves_the_model_as_training_did():
    model, opt = trained()
    before = model[0].detach().clone()
    losses = (
        loss * factor
        for loss, factor in zip(batches(model, 3), (1.0, math.nan, 1.0), strict=True)
    )
    with pytest.raises(FloatingPointError, match="the lower loss of step 1 is nan"):
        finished(model, opt, steps=losses)
    assert torch.equal(model[0], before)


@pytest.mark.parametrize(
    "steps", [20, lambda: 1.0, [torch.tensor(1.0)], torch.tensor(1.0)]
)
def test_steps_must_be_an_iterable(steps):
    model, opt = trained()
    with pytest.raises(
        TypeError, match=r"finish\(steps=.*an iterable that makes the lower loss"
    ):
        finished(model, opt, steps=steps)


def test_a_loss_without_a_gradient_is_refused():
    model, opt = trained()
    with pytest.raises(TypeError, match="loss 0 has no gradient"):
        finished(model, opt, steps=iter([torch.tensor(1.0)]))


def test_buffers_of_the_steps_stay_with_the_end_of_the_line():
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    ).double()
    inputs = torch.randn(
        64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )

    def fit():
        return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()

    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.05),
        tolerance=1e-6,
        reference=0.0,
        model=model,
    )
    anchor = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(RuntimeWarning, match="above 1 everywhere"):
        found = opt.finish(lower=fit, anchor=anchor, steps=(fit() for _ in range(10)))
    assert found.place == 1
    assert int(model[1].num_batches_tracked) > 5
    assert model.training


def test_jax_takes_a_function_of_the_parameters():
    def lower(x):
        return lower_loss(x, jnp.sin)

    def steps(x):
        for _ in range(20):
            x = x - 0.02 * jax.grad(lower)(x)
        return x

    start, anchor = jnp.array([1.0, 0.6]), jnp.zeros(2)
    options = {
        "lower": lower,
        "upper": lambda x: -x[0],
        "tolerance": TOLERANCE,
        "reference": 0.0,
    }
    _, line = tiebreak_optax.finish(start, anchor, **options)
    x, found = tiebreak_optax.finish(start, anchor, steps=steps, **options)
    assert line.upper_loss > -0.3
    assert found.repaired
    assert found.upper_loss < -0.95
    assert lower(x) <= TOLERANCE
    with pytest.raises(TypeError, match="must be a function that takes parameters"):
        tiebreak_optax.finish(start, anchor, steps=20, **options)


def test_the_search_itself_is_told_of_the_new_end():
    place = {"end": 2.0}

    def measure(at):
        return at * place["end"], -at

    def repair():
        place["end"] = 0.5

    found = line_search.finish(measure, (1.0, False), 0.0, repair=repair)
    assert found.repaired
    assert found.excess_before == 2.0
    assert found.place > 1
