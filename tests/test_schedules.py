"""Schedules: Corollary 1's exponents, the paper's table, exact floors, caps, bad input, copies."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak import Method, Power, Schedule, anytime, horizon, minimize, rules
from tiebreak.schedules import PAPER, Parameters, largest_step_size
from tiebreak.solver.budget import law_values

MANY = settings(max_examples=200, deadline=None)
RTOL = 1e-12  # a power of t ≤ 1e6 with exponent ≤ 4 carries a relative error of |e| ln t · u < 1e-14; four are combined

exponents = st.floats(0, 1 / 3, exclude_min=True, exclude_max=True)
steps = st.integers(0, 10**6)
constants = st.fixed_dictionaries(
    {
        "step_size": st.floats(1e-3, 0.1),
        "barrier": st.floats(1e-3, 1),
        "regularizer": st.floats(1e-3, 10),
        "upper_batch": st.floats(1e-3, 100),
        "lower_batch": st.floats(1e-3, 100),
    }
)
LAWS = ("step_size", "barrier", "regularizer", "upper_batch", "lower_batch")


def check_corollary(schedule, k, t, c):
    """η = c₁ t^−a is given; β ∝ η⁻³t⁻¹, ρ ∝ η⁻²t⁻², B_f ∝ η⁴t², B_g ∝ max(η⁻², η⁶t⁴), each with its own constant."""
    eta = schedule.step_size(k) / c["step_size"]
    expected = {
        "barrier": eta**-3 / t,
        "regularizer": eta**-2 / t**2,
        "upper_batch": eta**4 * t**2,
        "lower_batch": max(eta**-2, eta**6 * t**4),
    }
    for name, value in expected.items():
        assert getattr(schedule, name)(k) == pytest.approx(c[name] * value, rel=RTOL), (
            name
        )


# ------------------------------------------------------------------------------------------------------ Corollary 1


@MANY
@given(a=exponents, k=steps, c=constants)
def test_anytime_is_corollary_1(a, k, c):
    schedule, t = anytime(a, **c), k + 1
    assert schedule.step_size(k) == pytest.approx(c["step_size"] * t**-a, rel=RTOL)
    check_corollary(schedule, k, t, c)


@MANY
@given(a=exponents, K=st.integers(1, 10**6), k=steps, c=constants)
def test_horizon_is_corollary_1_with_t_the_horizon_and_constant(a, K, k, c):
    schedule = horizon(K, a, **c)
    assert schedule.step_size(k) == pytest.approx(c["step_size"] * K**-a, rel=RTOL)
    check_corollary(schedule, k, K, c)
    assert schedule.at(0).named() == schedule.at(k).named() | {"k": 0}


@MANY
@given(a=exponents)
def test_exponents_as_the_proof_writes_them(a):
    """Appendix A: β ∝ t^(3a−1), ρ ∝ t^(2a−2), B_f ∝ t^(2−4a), B_g ∝ t^max(2a, 4−6a) = t^(4−6a)."""
    schedule = anytime(a)
    found = [getattr(schedule, name).exponent for name in LAWS]
    assert found == pytest.approx(
        [-a, 3 * a - 1, 2 * a - 2, 2 - 4 * a, 4 - 6 * a], rel=1e-15, abs=1e-15
    )
    assert schedule.lower_batch.exponent >= 2 * a


@MANY
@given(a=exponents, k=st.integers(0, 2000))
def test_lower_batch_is_the_larger_of_both_demands(a, k):
    """B_g = ⌊max(η⁻², η⁶t⁴)⌋ with η = t^−a, and at least 1."""
    t = k + 1
    eta = t**-a
    wanted = max(eta**-2, eta**6 * t**4)
    if (
        abs(wanted - round(wanted)) > 1e-9 * wanted
    ):  # away from an integer the floor is certain
        assert anytime(a).at(k).lower_batch == math.floor(wanted)
    assert anytime(a).at(k).lower_batch >= 1


@MANY
@given(a=exponents, k=steps)
def test_hypotheses_of_theorem_1(a, k):
    """η and β are nonincreasing; β/η ∝ t^(4a−1) is nonincreasing for a ≤ 1/4 and nondecreasing for a ≥ 1/4."""
    now, after = anytime(a).at(k), anytime(a).at(k + 1)
    assert after.step_size <= now.step_size
    assert after.barrier <= now.barrier
    ratios = after.barrier / after.step_size, now.barrier / now.step_size
    if a <= 0.25:
        assert ratios[0] <= ratios[1] * (1 + 1e-14)
    if a >= 0.25:
        assert ratios[0] >= ratios[1] * (1 - 1e-14)


def test_changing_one_constant_moves_no_other_law():
    for name in LAWS:
        changed = anytime(0.2, **{name: 0.03})
        for other in LAWS:
            same = getattr(changed, other) == getattr(anytime(0.2), other)
            assert same == (other != name)


# ----------------------------------------------------------------------------------------------- the paper's table

# (η, β, ρ or γ, B_f, B_g, others) as powers (c, e) of t, from the table of the paper's appendix.
TABLE = {
    "sdbgd": ((0.05, -1 / 4), (0.5, -1 / 4), (1, -3 / 2), (1, 1), (1, 5 / 2), {}),
    "sdbpg": ((0.05, -1 / 4), (0.5, -1 / 4), (1, -1), (1, 1), (1, 2), {}),
    "pr_sdbpg": (
        (0.05, -1 / 2),
        (0.5, 1 / 4),
        (1, 0),
        (1, 1),
        (1, 3 / 2),
        {"penalty": (1, 0)},
    ),
    "vr_pr_sdbpg": (
        (0.05, -1 / 2),
        (0.5, 1 / 4),
        (1, 0),
        (1, 1 / 2),
        (1, 1),
        {"penalty": (1, 0), "momentum": (0.2, -1 / 2)},
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_parameter_table_of_the_paper(name):
    *laws, others = TABLE[name]
    wanted = {law: Power(*power) for law, power in zip(LAWS, laws, strict=True)}
    wanted |= {law: Power(*power) for law, power in others.items()}
    found = {law: getattr(PAPER[name], law) for law in (*LAWS, "penalty", "momentum")}
    assert {law: power for law, power in found.items() if power is not None} == wanted
    assert dict(PAPER[name].others) == {}


def test_paper_has_these_rows_and_no_other():
    assert PAPER.keys() == TABLE.keys()


def test_anytime_one_quarter_is_the_paper_s_row():
    assert anytime(1 / 4) == anytime() == PAPER["sdbgd"]


@pytest.mark.parametrize(
    ("name", "k", "values"),
    [
        ("sdbgd", 0, (0.05, 0.5, 1, 1, 1)),
        ("sdbgd", 15, (0.025, 0.25, 1 / 64, 16, 1024)),
        ("sdbpg", 15, (0.025, 0.25, 1 / 16, 16, 256)),
        ("pr_sdbpg", 15, (0.0125, 1.0, 1, 16, 64)),
        ("vr_pr_sdbpg", 15, (0.0125, 1.0, 1, 4, 16)),
        (
            "sdbgd",
            1,
            (0.05 * 2**-0.25, 0.5 * 2**-0.25, 2**-1.5, 2, 5),
        ),  # ⌊2^2.5⌋ = ⌊5.66⌋
        ("pr_sdbpg", 1, (0.05 * 2**-0.5, 0.5 * 2**0.25, 1, 2, 2)),  # ⌊2^1.5⌋ = ⌊2.83⌋
        ("vr_pr_sdbpg", 2, (0.05 * 3**-0.5, 0.5 * 3**0.25, 1, 1, 3)),
    ],
)
def test_table_by_numbers(name, k, values):
    at = PAPER[name].at(k)
    assert [getattr(at, law) for law in LAWS] == pytest.approx(values, rel=1e-15)
    assert at.k == k


# ------------------------------------------------------------------------------------------------------------ floors


def power_floor(t: int, p: int, q: int) -> int:
    """⌊t^(p/q)⌋ in whole numbers."""
    n = round(t ** (p / q))
    while n**q > t**p:
        n -= 1
    while (n + 1) ** q <= t**p:
        n += 1
    return n


def off_by_one(p: int, q: int, ts) -> list[tuple[int, int, int]]:
    law = Schedule(step_size=1, lower_batch=Power(1, p / q))
    found = ((t, law.at(t - 1).lower_batch, power_floor(t, p, q)) for t in ts)
    return [row for row in found if row[1] != row[2]]


@pytest.mark.parametrize(("p", "q"), [(3, 2), (1, 2), (1, 1), (2, 1)])
def test_batches_are_exact_floors(p, q):
    """⌊t^(p/q)⌋ for t up to 20 000, against whole-number arithmetic."""
    assert off_by_one(p, q, range(1, 20_001)) == []


def test_batches_of_sdbgd_are_exact_floors():
    """⌊t^{5/2}⌋ = ⌊√t⁵⌋ for t up to 20 000: no tolerance may lift a fractional part of 0.9995 (t = 15 615 has one)."""
    assert off_by_one(5, 2, range(1, 20_001)) == []


@pytest.mark.parametrize(
    ("t", "p", "q", "value"),
    [
        (32, 14, 5, 2**14),
        (243, 14, 5, 3**14),
        (1024, 14, 5, 2**28),
        (8, 8, 3, 2**8),
        (125, 8, 3, 5**8),
        (10, 3, 1, 1000),
    ],
)
def test_whole_powers_survive_an_exponent_that_is_not_a_float(t, p, q, value):
    """32^2.8 = 2¹⁴, and not 2¹⁴ − 1, although 2.8 is rounded."""
    assert (
        Schedule(step_size=1, lower_batch=Power(1, p / q)).at(t - 1).lower_batch
        == value
        == power_floor(t, p, q)
    )
    a = Fraction(4 - Fraction(p, q), 6)  # B_g ∝ t^(4−6a)
    if 0 < a < Fraction(1, 3):
        assert anytime(float(a)).at(t - 1).lower_batch == value


@pytest.mark.parametrize(
    ("value", "batch"),
    [
        (0.0, 1),
        (-3.0, 1),
        (0.999, 1),
        (1, 1),
        (1.999999, 1),
        (2, 2),
        (2.5, 2),
        (2**40 + 0.5, 2**40),
        (10**15, 10**15),
    ],
)
def test_batches_are_floored_and_at_least_one(value, batch):
    at = Schedule(step_size=1, upper_batch=value, lower_batch=lambda k: value).at(3)
    assert (at.upper_batch, at.lower_batch) == (batch, batch)
    assert isinstance(at.upper_batch, int)


# -------------------------------------------------------------------------------------------------------------- caps


@MANY
@given(L_f=st.floats(1e-3, 1e3), L_g=st.floats(1e-3, 1e3), a=exponents, k=steps)
def test_smoothness_constants_give_the_largest_legal_step_size(L_f, L_g, a, k):
    cap = 1 / (2 * (L_f + 2 * L_g))
    assert largest_step_size(L_f, L_g) == pytest.approx(
        1 / (2 * L_f + 4 * L_g), rel=1e-15
    )
    assert anytime(a, L_f=L_f, L_g=L_g).step_size(0) == cap
    assert anytime(a, L_f=L_f, L_g=L_g).step_size(k) <= cap
    assert horizon(k + 1, a, L_f=L_f, L_g=L_g).step_size(0) <= cap


def test_caps_are_checked_where_the_constants_are_known():
    """η ≤ 1/(2(L_f+2L_g)) and β ≤ 1, equality allowed as in Theorem 1; without L_f and L_g nothing can be said."""
    assert anytime(0.25, step_size=1 / 6, barrier=1.0, L_f=1, L_g=1).at(0).barrier == 1
    with pytest.raises(
        ValueError,
        match=r"step_size reaches 0\.17; the theorem allows at most .* = 0\.16666",
    ):
        anytime(0.25, step_size=0.17, L_f=1, L_g=1)
    with pytest.raises(
        ValueError,
        match=r"barrier reaches 1\.01; the theorem allows values in \(0, 1\]",
    ):
        anytime(0.25, barrier=1.01, L_f=1, L_g=1)
    assert anytime(0.25, step_size=5.0, barrier=7.0).at(0).step_size == 5
    # A horizon's laws are constant, so it is their value that counts: 0.17 · 16^(−1/4) = 0.085.
    assert horizon(16, 0.25, step_size=0.17, L_f=1, L_g=1).at(
        9
    ).step_size == pytest.approx(0.085)
    with pytest.raises(ValueError, match=r"step_size reaches 0\.2;"):
        horizon(16, 0.25, step_size=0.4, L_f=1, L_g=1)


# --------------------------------------------------------------------------------------------------------- bad input

BELOW_ZERO = (-1.0, math.nan, math.inf, -math.inf)
BAD = [
    *(
        (lambda a=a: anytime(a), ValueError, rf"a={a!r} must be in \(0, 1/3\)")
        for a in (0, 1 / 3, 0.5, -0.1, math.nan)
    ),
    *(
        (lambda a=a: horizon(10, a), ValueError, rf"a={a!r} must be in \(0, 1/3\)")
        for a in (0, 1 / 3, math.inf)
    ),
    *(
        (lambda K=K: horizon(K), ValueError, rf"K={K!r} must be a whole number ≥ 1")
        for K in (0, -3, 2.5, True, "5", math.inf, math.nan, None)
    ),
    *(
        (lambda n=n, v=v: anytime(**{n: v}), ValueError, rf"{n}={v!r}.* finite and > 0")
        for n in LAWS
        for v in (0, True, "x", *BELOW_ZERO)
    ),
    *(
        (
            lambda n=n, v=v: Schedule(**({"step_size": 1} | {n: v})),
            ValueError,
            rf"{n}={v!r} must be finite and [>≥]",
        )
        for n in ("step_size", "barrier", "regularizer", "penalty")
        for v in BELOW_ZERO
    ),
    *(
        (
            lambda v=v: Schedule(step_size=v),
            ValueError,
            rf"step_size={v!r} must be finite and > 0",
        )
        for v in (0, 0.0)
    ),
    (lambda: Schedule(1, penalty=0), ValueError, r"penalty=0 must be finite and > 0"),
    *(
        (
            lambda n=n, v=v: Schedule(1, **{n: v}),
            ValueError,
            rf"{n}={v!r} must be finite",
        )
        for n in ("upper_batch", "lower_batch")
        for v in (math.nan, math.inf)
    ),
    *(
        (
            lambda v=v: Schedule(1, momentum=v),
            ValueError,
            rf"momentum={v!r} must be in \[0, 1\]",
        )
        for v in (-0.1, 1.1, math.nan, math.inf)
    ),
    *(
        (
            lambda v=v: Schedule(1, others={"mine": v}),
            ValueError,
            rf"mine={v!r} must be a finite number",
        )
        for v in (math.nan, math.inf)
    ),
    *(
        (
            lambda n=n, v=v: Schedule(**({"step_size": 1} | {n: v})),
            TypeError,
            rf"{n}=.* must be a number or a function of",
        )
        for n in ("step_size", "barrier", "lower_batch", "momentum")
        for v in ("0.1", [1, 2], {}, 1j)
    ),
    *(
        (
            lambda n=n: Schedule(1, others={n: 1}),
            ValueError,
            rf"others=\['{n}'\] are names the solver gives itself",
        )
        for n in ("k", "fg", "gg", "lower_value", "barrier", "step_size")
    ),
    *(
        (
            lambda v=v: largest_step_size(v, 1),
            ValueError,
            rf"L_f={v!r} must be finite and > 0",
        )
        for v in (0, *BELOW_ZERO)
    ),
    *(
        (
            lambda v=v: largest_step_size(1, v),
            ValueError,
            rf"L_g={v!r} must be finite and > 0",
        )
        for v in (0, *BELOW_ZERO)
    ),
    (lambda: anytime(L_f=1), ValueError, r"L_f=1 and L_g=None must be given together"),
    (
        lambda: horizon(9, L_g=2),
        ValueError,
        r"L_f=None and L_g=2 must be given together",
    ),
    (
        lambda: anytime().replace(rho=1),
        TypeError,
        r"unknown parameters \['rho'\]; a schedule has .*'regularizer'",
    ),
]


@pytest.mark.parametrize(
    ("make", "error", "message"), BAD, ids=[message for *_, message in BAD]
)
def test_bad_input_names_the_argument_its_value_and_the_legal_range(
    make, error, message
):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("step_size", 0.0, "finite and > 0"),
        ("step_size", math.nan, "finite and > 0"),
        ("barrier", -0.5, "finite and ≥ 0"),
        ("barrier", math.inf, "finite and ≥ 0"),
        ("regularizer", -1e-9, "finite and ≥ 0"),
        ("penalty", 0.0, "finite and > 0"),
        ("momentum", 1.5, r"in \[0, 1\]"),
        ("upper_batch", math.nan, "finite"),
        ("lower_batch", math.inf, "finite"),
    ],
)
def test_an_illegal_value_at_a_step_is_named(name, value, legal):
    laws = {"step_size": 1.0} | {name: lambda k: value if k == 7 else 0.5}
    schedule = Schedule(**laws)
    assert schedule.at(6).k == 6
    with pytest.raises(
        ValueError, match=rf"{name} at step 7 is {value!r}; it must be {legal}"
    ):
        schedule.at(7)


def test_a_step_size_is_required_where_steps_are_made():
    """An optimizer around another one has that one's learning rate; the solver has none but the schedule's."""
    method = Method("no step", rules.dbgd, Schedule(barrier=1.0))
    assert method.schedule.at(3).step_size is None
    with pytest.raises(
        ValueError, match=r"the schedule of 'no step' sets no step_size: give it one"
    ):
        minimize(lambda x: x, lambda x: x, [1.0], method=method, steps=1)


def test_a_truth_value_is_no_law():
    with pytest.raises(
        TypeError, match="step_size=True must be a number or a function"
    ):
        Schedule(step_size=True)


@pytest.mark.parametrize("value", [None, "0.5", [0.5]])
def test_a_law_that_returns_no_number_is_named(value):
    with pytest.raises((TypeError, ValueError), match="barrier at step 3 is"):
        Schedule(step_size=1, barrier=lambda k: value).at(3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_illegal_value_of_another_law_is_named(value):
    schedule = Schedule(
        step_size=1, others={"mine": lambda k: value if k == 7 else 0.5}
    )
    with pytest.raises(ValueError, match=rf"mine at step 7 is {value!r}; it must be"):
        schedule.at(7)


def test_another_law_must_be_a_law():
    with pytest.raises((TypeError, ValueError), match="mine=None"):
        Schedule(step_size=1, others={"mine": None})


@pytest.mark.parametrize("number", [np.float32(0.125), np.int64(1)])
def test_numpy_scalars_are_numbers(number):
    assert anytime(0.25, step_size=number).step_size(0) == float(number)


def test_equal_schedules_have_equal_hashes():
    one, two = (
        Schedule(1, others=dict(items))
        for items in ([("p", 1), ("q", 2)], [("q", 2), ("p", 1)])
    )
    assert one == two
    assert hash(one) == hash(two)


# -------------------------------------------------------------------------------------------------- laws of one's own


@pytest.mark.parametrize(
    "law",
    [
        lambda k: 1 / (k + 1),
        lambda k: np.float32(1 / (k + 1)),
        lambda k: np.array(1 / (k + 1)),
        lambda k: Fraction(1, k + 1),
        Power(1, -1),
        np.float64(0.25),
        np.float32(0.25),
        np.array(0.25),
        Fraction(1, 4),
        0.25,
    ],
    ids=[
        "float",
        "np.float32",
        "0-d",
        "Fraction",
        "Power",
        "c float64",
        "c float32",
        "c 0-d",
        "c Fraction",
        "c float",
    ],
)
def test_a_law_is_a_number_or_any_function_of_k(law):
    at = Schedule(step_size=1, barrier=law, others={"mine": law}).at(3)
    assert (at.barrier, at.others["mine"]) == (0.25, 0.25)
    assert type(at.barrier) is type(at.others["mine"]) is float


def test_functions_see_k_not_t():
    seen = []
    Schedule(step_size=lambda k: seen.append(k) or 1.0).at(5)
    assert seen == [5]
    assert Power(3, 2)(0) == 3
    assert Power(3, 2)(1) == 12


def test_what_is_set_is_given_by_name():
    at = Schedule(step_size=0.5, barrier=0.0, others={"mine": 2}).at(4)
    assert at.named() == {
        "k": 4,
        "step_size": 0.5,
        "upper_batch": 1,
        "lower_batch": 1,
        "barrier": 0.0,
        "mine": 2.0,
    }
    assert isinstance(at, Parameters)


def test_weight_of_the_returned_iterate_is_eta_beta():
    assert Schedule(step_size=0.5, barrier=0.25).at(0).weight == 0.125
    assert Schedule(step_size=0.5).at(0).weight == 0.5
    assert PAPER["sdbgd"].at(15).weight == pytest.approx(0.025 * 0.25)


# ------------------------------------------------------------------------------------------------------------- copies

EXAMPLES = [
    *PAPER.values(),
    horizon(100, 0.2),
    Schedule(0.1, others={"p": 1, "q": Power(2, -1)}),
]


@pytest.mark.parametrize("schedule", EXAMPLES, ids=[*PAPER, "horizon", "others"])
def test_copies_are_equal_and_hash_equal(schedule):
    for other in (
        copy.copy(schedule),
        copy.deepcopy(schedule),
        pickle.loads(pickle.dumps(schedule)),
        schedule.replace(),
    ):
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert str(other) == str(schedule)
        assert other.at(17) == schedule.at(17)
    assert schedule != schedule.replace(step_size=0.123)
    assert len({*EXAMPLES, *copy.deepcopy(EXAMPLES)}) == len(EXAMPLES)


def test_deepcopy_keeps_functions_pickling_refuses_lambdas():
    schedule = Schedule(step_size=lambda k: 0.5, barrier=0.1)
    assert copy.deepcopy(schedule) == schedule
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(schedule)


def test_replace_changes_what_it_is_told_and_checks_it():
    base = Schedule(0.1, barrier=0.5, others={"p": 1})
    new = base.replace(barrier=None, others={"q": 2}, lower_batch=Power(1, 2))
    assert (new.barrier, dict(new.others), new.at(2).lower_batch) == (
        None,
        {"q": Power(2.0)},
        9,
    )
    assert base.barrier == Power(0.5)
    assert base.step_size is new.step_size
    with pytest.raises(ValueError, match="barrier=-1 must be finite and ≥ 0"):
        base.replace(barrier=-1)


def test_a_schedule_cannot_be_changed():
    schedule = Schedule(0.1, others={"p": 1})
    with pytest.raises(AttributeError):
        schedule.step_size = 1
    with pytest.raises(TypeError):
        schedule.others["p"] = 2
    with pytest.raises(TypeError):
        PAPER["sdbgd"] = schedule


def test_a_schedule_reads_like_the_table():
    assert str(PAPER["vr_pr_sdbpg"]) == (
        "step_size=0.05·t^-0.5, upper_batch=1·t^0.5, lower_batch=1·t^1, barrier=0.5·t^0.25, regularizer=1, penalty=1, "
        "momentum=0.2·t^-0.5"
    )


@pytest.mark.parametrize(
    "law",
    [
        Power(0.3, -2.5, 7.5),
        Power(2, 1.5, 4, 11),
        Power(5.0, 2, stop=6),
        Power(1, 3, 3.0, 3.0),
    ],
)
def test_a_power_with_a_start_and_a_stop_is_one_law_everywhere(law):
    """One by one, many at once, for plans and in words: c until the start, a power from there, up to the stop."""
    expected = []
    for t in range(1, 31):
        inside = min(
            max(t, law.start),
            math.inf if law.stop is None else max(law.stop, law.start),
        )
        expected.append(law.constant * (inside / law.start) ** law.exponent)
    assert [law(k) for k in range(30)] == pytest.approx(expected, rel=1e-14)
    assert law.values(0, 30) == [law(k) for k in range(30)]
    np.testing.assert_allclose(law_values(law, 30), expected, rtol=1e-14)
    np.testing.assert_allclose(law_values(law, 10, 20), expected[20:], rtol=1e-14)
    assert eval(repr(law)) == law
    assert ("max" in str(law)) == (law.start != 1)
    assert ("min" in str(law)) == (law.stop is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [((1, 1, 0.5), "start=0.5 .* must be ≥ 1"), ((1, 1, 5, 4), "stop=4 .* ≥ start=5")],
)
def test_bad_starts_and_stops(options, message):
    with pytest.raises(ValueError, match=message):
        Power(*options)
