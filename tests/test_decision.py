"""The decision: two weights from what a step measured, the same in every array library."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak import Average, Method, Schedule, rules, tolerance
from tiebreak.decision import (
    Decision,
    Measurement,
    Tolerance,
    WeightChoice,
    arguments,
    limited,
)
from tiebreak.options import (
    allowed,
    checked_tolerance,
    recorded,
    refuse_unused,
    training_method,
)

SDBGD = Method("SDBGD", rules.sdbgd, Schedule(barrier=0.5, regularizer=0.1))
positive = st.floats(1e-6, 1e6)


@given(st.floats(-1e3, 1e3), positive, st.booleans())
def test_rule_mode_is_the_rule_and_its_scale(fg, gg, normalize):
    """a = 1 and b = λ, or both divided by 1 + λ."""
    choice = Decision(SDBGD, normalize=normalize)(
        SDBGD.schedule.at(0), Measurement(fg, gg), ()
    )
    multiplier = rules.sdbgd(fg, gg, 0.5, 0.1)
    assert choice.multiplier == multiplier
    assert choice.memory == ()
    assert choice.reading is None
    scale = 1 / (1 + multiplier) if normalize else 1.0
    assert (choice.upper_weight, choice.lower_weight) == (scale, scale * multiplier)


def test_a_rule_gets_what_it_names_and_nothing_else():
    """The schedule's numbers, the step, and what only the step knows."""

    def rule(fg, gg, k, barrier, ff, lower_value, mine):
        return k + barrier + ff + lower_value + mine

    method = Method(
        "all",
        rule,
        Schedule(barrier=0.5, penalty=7.0, others={"mine": lambda k: 100.0 * k}),
    )
    seen = Measurement(0.0, 1.0, ff=10.0, lower_value=1000.0, reference=5.0)
    assert arguments(method, method.schedule.at(3), seen) == {
        "k": 3,
        "barrier": 0.5,
        "ff": 10.0,
        "lower_value": 1000.0,
        "mine": 300.0,
    }
    assert (
        Decision(method)(method.schedule.at(3), seen, ()).multiplier
        == 3 + 0.5 + 10 + 1000 + 300
    )


def play(decision, kind, steps=30):
    """The weights along thirty steps of noisy losses, in one of the libraries."""
    rng = np.random.default_rng(0)
    make = {
        "python": float,
        "numpy": lambda v: np.full(2, v),
        "torch": lambda v: torch.tensor(v, dtype=torch.float64),
        "jax": lambda v: jnp.asarray(v, dtype=jnp.float64),
    }[kind]
    memory, found = decision.begin(), []
    for k in range(steps):
        loss, upper, lower = (
            1 + 0.01 * k + 0.02 * rng.normal(),
            2 + rng.random(),
            3 + rng.random(),
        )
        values = [make(v) for v in (upper, lower, loss, 1.0)]
        seen = Measurement(make(0.0), make(lower**2), make(upper**2), *values)
        choice = decision(None, seen, memory)
        memory = choice.memory
        found.append(
            [float(np.asarray(w).ravel()[0]) for w in (choice.multiplier, *choice[1:3])]
        )
    return np.array(found)


@pytest.mark.parametrize("relative", [True, False])
def test_tolerance_mode_is_the_same_in_every_library(relative):
    decision = Decision(tolerance=Tolerance(0.05, relative, True))
    with jax.enable_x64(True):
        expected = play(decision, "python")
        for kind in ("numpy", "torch", "jax"):
            np.testing.assert_allclose(play(decision, kind), expected, rtol=1e-10)
    multiplier, upper, lower = expected.T
    np.testing.assert_allclose(
        lower / upper, multiplier, rtol=1e-12
    )  # λ is the ratio of the weights
    assert ((lower > 0) & (lower <= 1)).all()


def test_a_share_of_the_reference_is_that_many_of_it():
    """2 % of an averaged reference of 3 is a tolerance of 0.06, whatever the sign."""
    for sign in (1.0, -1.0):
        share, amount = (
            Decision(tolerance=Tolerance(*t))
            for t in ((0.02, True, True), (0.06, False, True))
        )
        seen = Measurement(0.0, 1.0, 1.0, 1.0, 1.0, 3.1 * sign, 3.0 * sign)
        one, two = (d(None, seen, d.begin()) for d in (share, amount))
        assert one.reading.excess == pytest.approx(two.reading.excess)
        assert one.upper_weight == pytest.approx(two.upper_weight)


def test_the_weights_leave_g_its_rate_and_f_at_most_as_much():
    """b = 1 where w ≥ 1 and w below; ‖a∇f‖ ≤ ‖∇g‖, where both norms are steady, whatever f's unit is."""
    decision = Decision(tolerance=Tolerance(0.1, False, True))
    memory = decision.begin()
    for k in range(50):
        choice = decision(
            None, Measurement(0.0, 9.0, 1e12, 1e6, 3.0, 1.0 + 0.002 * k, 1.0), memory
        )
        memory = choice.memory
        ratio = choice.reading.ratio
        assert choice.lower_weight == pytest.approx(min(1.0, ratio), rel=1e-9)
        assert choice.upper_weight * 1e6 == pytest.approx(
            3.0 / max(1.0, ratio), rel=1e-9
        )


@pytest.mark.parametrize(
    "make", [float, np.float64, lambda v: torch.tensor(v, dtype=torch.float64)]
)
@settings(max_examples=50)
@given(square=st.floats(0, 1e12), longest=st.floats(1e-3, 1e3))
def test_a_direction_is_no_longer_than_asked(make, square, longest):
    choice = limited(
        WeightChoice(2.0, make(1.0), make(2.0), (), None), make(square), longest
    )
    factor = min(1.0, longest / math.sqrt(square)) if square else 1.0
    assert float(choice.upper_weight) == pytest.approx(factor, rel=1e-12)
    assert float(choice.lower_weight) == pytest.approx(2 * factor, rel=1e-12)


# ------------------------------------------------------------------------------------------------------------ the words


@pytest.mark.parametrize(
    ("text", "expected"),
    [(0.01, (0.01, False)), ("2%", (0.02, True)), (" 1.5 % ", (0.015, True))],
)
def test_tolerances(text, expected):
    assert allowed(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong", [0, -1, "2", "0%", "-3%", "%", "lots", math.nan, math.inf, True, None, [1]]
)
def test_what_is_no_tolerance(wrong):
    with pytest.raises(
        ValueError,
        match=r"tolerance=.* must be a number > 0, or a share such as \"2%\"",
    ):
        allowed(wrong)


@pytest.mark.parametrize("wrong", [True, math.nan, "begin", [1.0], object()])
def test_what_is_no_reference(wrong):
    with pytest.raises(ValueError, match=r"reference=.* must be"):
        checked_tolerance(0.1, wrong)


def test_a_reference_is_a_number_a_word_a_file_or_a_function(tmp_path):
    assert checked_tolerance(0.1, 0) == Tolerance(0.1, False, False)
    for reference in ("start", "twin", "given"):
        assert checked_tolerance("1%", reference) == Tolerance(
            0.01, True, same_batch=True
        )
    for reference in (3, "fit.csv", tmp_path / "fit", lambda k: 1.0):
        assert checked_tolerance("1%", reference) == Tolerance(
            0.01, True, same_batch=False
        )
    with pytest.raises(
        ValueError,
        match=r"tolerance=0.1 needs reference=: a number .*\"start\".*\"twin\".*\"given\".*CSV",
    ):
        checked_tolerance(0.1, None)


def test_a_method_beside_a_tolerance_is_refused():
    with pytest.raises(
        ValueError, match=r"method='sdbgd' has no effect with tolerance=0.1"
    ):
        refuse_unused("with tolerance=0.1", reference=None, method="sdbgd")


def test_an_optimizer_follows_some_methods():
    with pytest.raises(ValueError, match="nothing says how to choose the multiplier"):
        training_method(None)
    with pytest.raises(
        ValueError,
        match=r"'storm_sdbgd' .*two points \(Storm\(.*: use tiebreak.minimize",
    ):
        training_method("storm_sdbgd")
    with pytest.raises(
        ValueError,
        match=r"the rule of .* has a memory: use tiebreak.minimize, which keeps it",
    ):
        training_method("sdbgd_dual")
    with pytest.raises(
        ValueError,
        match=r"'sdbgd', 'sdbpg', 'pr_sdbpg', 'dbgd', 'penalty'; did you mean 'sdbgd'\?$",
    ):
        training_method("sdbg")
    averaged = SDBGD.replace(estimator=Average(0.1, direction=False))
    assert training_method(averaged) is averaged


def test_a_log_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "fit.csv"
    path.write_text("step,lower_loss\n0,2.0\n1,nan\n2,\n3,1.5\n5")  # gaps, cut short
    assert recorded(path) == ([0, 3], [2.0, 1.5])
    path.write_text(
        "step,lower_loss\n0,2.0\n2,1.8\n3,1.5\n2,1.7\n"
    )  # resumed from step 2
    assert recorded(path) == ([0, 2], [2.0, 1.7])
    path.write_text(
        "step,lower_loss\n3,1.5\n0,2.0\n"
    )  # a new run: what stood from its first step on does not count
    assert recorded(path) == ([0], [2.0])
    for end in ("1,nan\n", "1,inf\n2,nan\n"):  # lower-only training that diverged
        path.write_text(f"step,lower_loss\n0,2.0\n{end}")
        with pytest.raises(
            ValueError, match="not finite at the end, after step 0; that run diverged"
        ):
            recorded(path)


def test_the_memory_is_what_is_saved():
    """Scalars in a NamedTuple: what every front end stores."""
    memory = Decision(tolerance=Tolerance(0.1, False, True)).begin()
    assert isinstance(memory, tolerance.Memory)
    assert all(isinstance(value, float) for value in memory)
    assert Decision(SDBGD).begin() == ()
