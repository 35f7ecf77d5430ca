"""What a user is told of a training with a tolerance: each thing once, and nothing of a run that goes well."""

import copy
import math
import random

import pytest

import torch
from tiebreak.tolerance import Reading
from tiebreak.torch import DynamicBarrier
from tiebreak.torch.diagnostics import Diagnostics

RATE = 0.1
SHARE = 0.1  # of the newest step in the averages of the rule


def told(excesses, number=False, same_batch=True, rate=RATE, first=0):
    """The steps at which something is said, with what is said, of a run with these averaged excesses."""
    diagnostics, found = Diagnostics(number, same_batch), []
    for k, excess in enumerate(excesses, first):
        reading = Reading(1.0, 1.0, 1.0, 1.0, excess)
        text = diagnostics.observe(
            k, reading, 0.01, rate(k) if callable(rate) else rate
        )
        if text:
            found.append((k, text))
    return found


def averaged(values):
    """Values as the rule averages them."""
    mean = 0.0
    for k, value in enumerate(values, 1):
        mean += max(1 / k, SHARE) * (value - mean)
        yield mean


def noisy(level, deviation, steps=1000, seed=0):
    """Averages of independent values."""
    draw = random.Random(seed)
    return list(averaged(level + deviation * draw.gauss(0, 1) for _ in range(steps)))


def swinging(level, amplitude, steps=1000, period=100):
    """A model that swings slowly."""
    return [
        level + amplitude * math.sin(2 * math.pi * k / period) for k in range(steps)
    ]


def only(found):
    ((step, text),) = found
    return step, text


# ------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("level", [0.5, -4.0])
def test_noise_above_the_tolerance_is_told_once(level):
    """σ of a batch is 10 tolerances, and so the standard error of the average 2.3."""
    step, text = only(told(noisy(level, 10.0)))
    assert 200 <= step < 250
    known = float(text.split("known to ")[1].split()[0])
    assert known == pytest.approx(2.3, rel=0.25)
    assert "larger batches or a larger tolerance." in text
    _, text = only(told(noisy(level, 10.0), number=True, same_batch=False))
    assert 'a reference on the same batch: reference="twin" or "start"' in text


@pytest.mark.parametrize("deviation", [0.0, 1.0, 3.0])
def test_noise_below_the_tolerance_is_not_told(deviation):
    for seed in range(5):
        assert not told(noisy(0.3, deviation, seed=seed), rate=None)


def test_what_is_far_away_is_known_well_enough():
    """An error of 2.3 tolerances matters near the tolerance, to which a loss that falls from scratch comes late."""
    falling = [
        value + noise
        for value, noise in zip(range(1000, 0, -1), noisy(0.0, 10.0), strict=True)
    ]
    step, text = only(told(falling))
    assert "known to" in text
    assert step > 900


@pytest.mark.parametrize("pace", [0.5, 20.0])
def test_a_loss_that_falls_is_no_noise(pace):
    """However fast: exponentially, too, as trainings from scratch begin."""
    assert not told([pace * (1000 - k) for k in range(1000)], rate=None)
    assert not told([2000 * pace * math.exp(-k / 50) for k in range(1000)], rate=None)


@pytest.mark.parametrize("jump", [-20.0, 20.0, 1000.0])
def test_a_jump_is_no_noise(jump):
    """A return to the twin, a new tolerance, one bad batch."""
    quiet = noisy(0.5, 0.5, 300)
    assert not told([*quiet, *(value + jump for value in quiet)], rate=None)
    spike = [0.5] * 300 + [0.5 + jump * 0.9**k for k in range(300)]
    assert not told(spike, rate=None)


def test_a_run_that_is_resumed_is_judged_by_what_it_does_now():
    """What was observed is not saved: a first excess of 100 tolerances is no noise, nor is it a swing."""
    assert not told([100 - 0.1 * k for k in range(900)], first=5000)
    assert not told(noisy(0.3, 0.5), first=5000)


def test_numbers_of_any_size_are_no_error():
    """nonfinite="ignore" lets such steps be made; what is said of them does not matter."""
    for big in (1e200, 1e308):
        for sign in (1, -1):
            found = told(
                [big, sign * big] * 300 + [math.nan, math.inf, -math.inf] + [0.5] * 600,
                number=True,
            )
            assert len(found) <= 2
            assert not any("nan" in text or "inf" in text for _, text in found)


# ------------------------------------------------------------------------------------------------- a rate that is high


def test_a_swing_at_a_rate_that_does_not_fall_is_told_once():
    """Slow, so that it is the model's and not the batches'."""
    step, text = only(told(swinging(0.5, 0.9)))
    assert step < 600
    assert (
        "swings by about 0.6 tolerances" in text
        or "swings by about 0.7 tolerances" in text
    )
    assert "opt.finish()" in text


def test_no_swing_is_told_where_there_is_none():
    assert not told(swinging(0.5, 0.2))  # inside all the time
    assert not told(swinging(-5.0, 2.0))
    assert not told(swinging(5.0, 1.0))  # outside, as the log says
    assert not told([0.95] * 1000)
    for seed in range(5):
        assert not told(
            noisy(0.5, 1.5, seed=seed)
        )  # batches differ so much, and not the model


def test_no_swing_is_told_where_the_rate_falls():
    wide = swinging(0.5, 0.9)
    assert not told(wide, rate=None)  # a scheduler
    assert not told(wide, rate=lambda k: 0.999**k)  # or by hand
    assert told(wide, rate=lambda k: 0.1 if k < 300 else 0.05)


@pytest.mark.parametrize("steps", [60, 300])
def test_a_return_is_no_swing(steps):
    """Far outside, then set to the twin; the rest of the run is calm."""
    assert not told([0.5] * 300 + [20.0] * steps + [0.0] * 10 + [0.5] * 600)


def test_a_scheduler_is_seen():
    """The rate that `observe` gets is None with one, whatever it makes of it."""
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.01), tolerance=0.1, reference=0.0)
    rates, observe = [], opt.diagnostics.observe
    opt.diagnostics.observe = lambda *given: rates.append(given[-1]) or observe(*given)
    for _ in range(2):
        opt.step(lower=lambda: x[0].square(), upper=lambda: (x - 1).square().sum())
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    assert rates == [0.01, None]


# --------------------------------------------------------------------------------------------------------- references


def test_a_loss_at_rest_far_above_a_number_is_told_once():
    step, text = only(told([8.0] * 3000, number=True))
    assert step == pytest.approx(700, abs=10)
    assert "at rest 8 tolerances above its reference" in text
    assert not told([8.0] * 3000)  # a measured reference may be ahead for a while
    assert not told([2.5] * 3000, number=True)
    assert not told([100 * 0.999**k for k in range(3000)], number=True)  # it falls


def test_a_number_that_nobody_means_is_told_sooner():
    step, text = only(told([300.0] * 1000, number=True))
    assert step == pytest.approx(400, abs=10)
    assert "out of reach" in text
    step, text = only(told([-300.0] * 1000, number=True))
    assert step == pytest.approx(200, abs=10)
    assert "lies 300 tolerances below its reference" in text
    assert not told([-20.0] * 1000, number=True)


# --------------------------------------------------------------------------------------------------------- whole runs


TRUTH = torch.tensor([1.0, -1.0, 0.5, 0.1], dtype=torch.float64)


def regression(start, **options):
    """A linear model at this multiple of the truth, and its optimizer."""
    model = torch.nn.Linear(4, 1, bias=False).double()
    model.weight.data.copy_(start * TRUTH)
    rate = options.pop("rate", 0.02)
    return model, DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=rate), model=model, **options
    )


def train(model, opt, steps, fall=False):
    """On batches of 32 rows with noise, of variance 0.09; f wants all weights to be 0. Warnings are errors."""
    generator = torch.Generator().manual_seed(opt.count)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps) if fall else None
    for _ in range(steps):
        rows = torch.randn(32, 4, generator=generator, dtype=torch.float64)
        noise = 0.3 * torch.randn(32, generator=generator, dtype=torch.float64)

        def lower(rows=rows, noise=noise):
            return (model(rows)[:, 0] - rows @ TRUTH - noise).square().mean()

        opt.step(lower=lower, upper=lambda: model.weight.abs().sum())
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize("fall", [False, True])
@pytest.mark.parametrize(
    ("reference", "tolerance"),
    [
        ("twin", 0.02),
        ("twin", "10%"),
        ("start", 0.02),
        (0.09, 0.03),
        (lambda k: 0.09, 0.03),
    ],
)
def test_a_plain_training_hears_nothing(reference, tolerance, fall):
    """From 0 with a twin or a number, from a trained model with a frozen copy."""
    model, opt = regression(
        float(reference == "start"), tolerance=tolerance, reference=reference
    )
    train(model, opt, 700, fall)
    assert opt.log()["excess"] < 1.2


def test_a_resumed_training_hears_nothing():
    """With the loss still far above its number, so that the first excess that is seen is large."""
    (model, opt), (fresh, again) = (
        regression(0.0, tolerance=0.01, reference=0.09, rate=0.002) for _ in range(2)
    )
    train(model, opt, 250)
    fresh.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    train(fresh, again, 60)
    assert again.count == 310
    assert again.log()["excess"] > 10


# ------------------------------------------------------------------------------------------------- the multiplier's limit


def readings_of(ratios, excess=0.5):
    diagnostics = Diagnostics(False, True)
    texts = []
    for k, ratio in enumerate(ratios):
        reading = Reading(ratio, 1.0, 1.0, 1.0, excess)
        text = diagnostics.observe(k, reading, 0.01, None)
        if text:
            texts.append((k, text))
    return texts


def test_a_multiplier_that_stays_at_its_limit_is_told_once():
    step, text = only(readings_of([1000.0] * 2000))
    assert 200 <= step <= 500
    assert "the upper loss waits" in text


def test_a_multiplier_below_its_limit_in_many_steps_is_not_told():
    assert readings_of([999.0] * 2000) == []
    assert readings_of([1000.0, 30.0] * 1000) == []
    assert readings_of([1000.0] * 150 + [30.0] * 2000) == []


@pytest.mark.parametrize(
    ("tolerance", "loss", "is_told"),
    [(2, 2.3, True), (2, 0.3, True), (2, 5.0, False), (0.5, 0.01, False)],
)
def test_a_tolerance_that_seems_to_be_a_share_is_told_with_the_line_to_write(
    tolerance, loss, is_told
):
    """The cross-entropy of ten classes begins at 2.3: 2 of it is nearly everything."""
    diagnostics = Diagnostics(False, True)
    reading = Reading(1.0, 1.0, loss, loss, 0.0)
    text = diagnostics.observe(0, reading, tolerance, None)
    assert ('write tolerance="2%"' in text) == is_told


def test_a_start_from_scratch_is_told_what_to_take():
    texts = [text for _, text in told([-60.0] * 300)]
    assert len(texts) == 1
    assert 'needs reference="twin"' in texts[0]
