"""Bad input: the message names the argument, the value and what is legal, before anything is changed."""

import re

import numpy as np
import pytest

import tiebreak
from tiebreak import (
    Exact,
    FiniteSum,
    Gaussian,
    Method,
    Schedule,
    Storm,
    methods,
    minimize,
    rules,
)
from tiebreak.studies import Comparison, Experiment

PAPER = tiebreak.problems.paper()
MATRIX = np.eye(3)
SCHEDULE = Schedule(step_size=0.1, barrier=0.5)


def identity(x, *_):
    return x


def call(**changes):
    arguments = {
        "upper": PAPER.upper,
        "lower": PAPER.lower,
        "x0": [1.0, 1.0],
        "steps": 3,
        "seed": 0,
    } | changes
    return minimize(**arguments)


# what is wrong → (the arguments, the error, what the message must say)
TABLE = {
    "no limit": (
        {"steps": None},
        ValueError,
        "budget=None and steps=None: give at least one of them",
    ),
    "steps 0": ({"steps": 0}, ValueError, "steps=0 must be a whole number ≥ 1"),
    "steps half": ({"steps": 2.5}, ValueError, "steps=2.5 must be a whole number ≥ 1"),
    "steps bool": (
        {"steps": True},
        ValueError,
        "steps=True must be a whole number ≥ 1",
    ),
    "steps text": (
        {"steps": "10"},
        ValueError,
        "steps='10' must be a whole number ≥ 1",
    ),
    "budget negative": (
        {"budget": -1},
        ValueError,
        "budget=-1 must be a whole number ≥ 1",
    ),
    "budget nan": (
        {"budget": np.nan},
        ValueError,
        "budget=nan must be a whole number ≥ 1",
    ),
    "budget infinite": (
        {"budget": np.inf},
        ValueError,
        "budget=inf must be a whole number ≥ 1",
    ),
    "budget for no step": (
        {"budget": 1},
        ValueError,
        "budget=1 must be at least 2, the cost of the first step of auto",
    ),
    "budget for no storm step": (
        {"budget": 2, "method": "vr_pr_sdbpg"},
        ValueError,
        "budget=2 must be at least 4",
    ),
    "no x0": ({"x0": None}, ValueError, "x0=None: give the point to start from"),
    "x0 not finite": (
        {"x0": [1.0, np.inf]},
        ValueError,
        "x0 must be finite; number 1 of it is inf",
    ),
    "x0 empty": (
        {"x0": []},
        ValueError,
        r"x0 has shape \(0,\); it must hold at least one number",
    ),
    "x0 complex": (
        {"x0": [1j, 1.0]},
        TypeError,
        "x0 has dtype complex128; it must be float32 or float64",
    ),
    "x0 half": (
        {"x0": np.ones(2, np.float16)},
        TypeError,
        "x0 has dtype float16; it must be float32 or float64",
    ),
    "x0 text": (
        {"x0": "start"},
        TypeError,
        "x0 has dtype .*; it must be float32 or float64",
    ),
    "x0 shape": (
        {"x0": [1.0, 1.0, 1.0]},
        ValueError,
        r"shape=\(2,\) of the Gaussian oracle must be x0's shape, \(3,\)",
    ),
    "method unknown": (
        {"method": "adam"},
        ValueError,
        "method='adam' must be a Method or one of 'auto', 'sdbgd', 'sdbpg'",
    ),
    "method object": ({"method": 3}, TypeError, "method=3 must be a Method or one of"),
    "method rule": (
        {"method": rules.dbgd},
        TypeError,
        r"of a rule make tiebreak.Method\('mine', rule, ",
    ),
    "runs 0": ({"runs": 0}, ValueError, "runs=0 must be a whole number ≥ 1"),
    "runs text": ({"runs": "3"}, TypeError, "runs='3' must be a whole number ≥ 1"),
    "runs float": ({"runs": 2.0}, TypeError, "runs=2.0 must be a whole number ≥ 1"),
    "runs twice": (
        {"runs": [1, 1]},
        ValueError,
        r"runs=\[1, 1\] must be different whole numbers ≥ 0",
    ),
    "runs none": (
        {"runs": []},
        ValueError,
        r"runs=\[\] must be different whole numbers ≥ 0, at least one",
    ),
    "seed negative": ({"seed": -1}, ValueError, "seed=-1 must be a whole number ≥ 0"),
    "seed text": (
        {"seed": "zero"},
        ValueError,
        "seed='zero' must be a whole number ≥ 0",
    ),
    "record word": (
        {"record": "all"},
        ValueError,
        "record='all' must be 'log', a whole number n ≥ 1",
    ),
    "record 0": (
        {"record": 0},
        ValueError,
        "record=0 must be 'log', a whole number n ≥ 1",
    ),
    "checkpoint_every": (
        {"checkpoint": "c", "checkpoint_every": 0},
        ValueError,
        "checkpoint_every=0 must be a whole",
    ),
    "callback": ({"callback": 3}, TypeError, "callback=3 must be a function"),
    "progress": (
        {"progress": "yes"},
        TypeError,
        "progress='yes' must be True, False or a function",
    ),
    "upper": (
        {"upper": 3},
        TypeError,
        r"upper=3 must be an oracle \(with `sample\(rng, size\)`",
    ),
    "lower": ({"lower": None}, TypeError, "lower=None must be an oracle"),
    "gradient shape": (
        {"upper": lambda x: np.ones(3)},
        ValueError,
        r"upper.gradient returned shape \(3,\); it must be \(2,\)",
    ),
    "gradient per example": (
        {"lower": FiniteSum(lambda x, i: np.ones((len(i), 2)), n=5)},
        ValueError,
        r"lower.gradient returned shape \(1, 2\); it must be \(2,\)",
    ),
    "gradient None": (
        {"lower": lambda x: None},
        TypeError,
        "lower.gradient returned None; it must be an array of real",
    ),
    "gradient text": (
        {"lower": lambda x: "up"},
        TypeError,
        "lower.gradient returned 'up'; it must be an array of real",
    ),
    "gradient ragged": (
        {"lower": lambda x: ([1.0], 2.0)},
        ValueError,
        "lower.gradient returned no array, but",
    ),
    "callback array": (
        {"callback": lambda record: record.lower_gradient_squared > 0, "runs": 3},
        ValueError,
        "callback returned .*; it must be one truth value",
    ),
    "resume result": (
        {"resume": 3},
        TypeError,
        "resume=3 must be a result, or the path of a saved one",
    ),
    "gradient complex": (
        {"lower": lambda x: x * 1j},
        TypeError,
        "lower.gradient returned dtype complex128; it must be an array of real numbers",
    ),
    "vectorized shape": (
        {"lower": Exact(lambda x: x.sum(axis=0), vectorized=True), "runs": 3},
        ValueError,
        r"lower.gradient returned shape \(2,\); it must be \(3, 2\) \(a vectorized function keeps all axes",
    ),
    "value shape": (
        {"lower": Exact(identity, identity)},
        ValueError,
        r"lower.value returned shape \(2,\); it must be \(\)",
    ),
    "value needed": (
        {
            "method": Method(
                "v", rules.by_value, SCHEDULE.replace(others={"target": 0.0})
            ),
            "lower": Exact(identity),
        },
        ValueError,
        "the rule of 'v' needs the lower objective's value: give the lower oracle `value=`",
    ),
    "storm momentum": (
        {"method": methods.sdbgd.replace(estimator=Storm(momentum=lambda k: 1.5))},
        ValueError,
        r"momentum at step 0 is 1.5; it must be in \[0, 1\]",
    ),
    "schedule later": (
        {
            "method": methods.dbgd.replace(
                schedule=SCHEDULE.replace(step_size=lambda k: 1 - k)
            )
        },
        ValueError,
        "step_size at step 1 is 0.0; it must be finite and > 0",
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_minimize(row):
    arguments, error, message = TABLE[row]
    with pytest.raises(error, match=message):
        call(**arguments)


CONSTRUCTIONS = {
    "sigma": (
        lambda: Gaussian(identity, -1.0),
        ValueError,
        "sigma=-1.0 must be finite and ≥ 0",
    ),
    "sigma nan": (
        lambda: Gaussian(identity, np.nan),
        ValueError,
        "sigma=nan must be finite and ≥ 0",
    ),
    "gradient": (lambda: Gaussian(3, 1.0), TypeError, "gradient=3 must be a function"),
    "value": (lambda: Exact(identity, 3), TypeError, "value=3 must be a function"),
    "unshaped": (
        lambda: Gaussian(identity, 1.0).sample(np.random.default_rng(), 1),
        ValueError,
        "shape=None: to sample outside of minimize, give the Gaussian oracle the shape of x",
    ),
    "sigma shape": (
        lambda: Gaussian(identity, np.ones(3)).bind((2,)),
        ValueError,
        r"sigma of shape \(3,\) must broadcast to x0's shape, \(2,\)",
    ),
    "n": (
        lambda: FiniteSum(identity, n=0),
        ValueError,
        "n=0 must be a whole number ≥ 1",
    ),
    "chunk": (
        lambda: FiniteSum(identity, n=2, chunk=0),
        ValueError,
        "chunk=0 must be a whole number ≥ 1",
    ),
    "unknown value": (
        lambda: Exact(identity).value(1.0),
        ValueError,
        "value=None: this oracle was given no function",
    ),
    "rule": (
        lambda: Method("m", 3, SCHEDULE),
        TypeError,
        "rule=3 of method 'm' must be",
    ),
    "schedule": (
        lambda: Method("m", rules.dbgd, 0.1),
        TypeError,
        "schedule=0.1 of method 'm' must be",
    ),
    "estimator": (
        lambda: Method("m", rules.dbgd, SCHEDULE, 3),
        TypeError,
        "estimator=3 must be one of",
    ),
    "rule without fg": (
        lambda: Method("m", lambda fg: fg, SCHEDULE),
        TypeError,
        "must take fg and gg first",
    ),
    "rule's needs": (
        lambda: Method("m", rules.penalized, SCHEDULE),
        ValueError,
        r"the rule of 'm' needs \['regularizer'\], which its schedule does not set; it sets \['barrier'",
    ),
    "no schedule": (
        lambda: Method("m", rules.dbgd),
        ValueError,
        r"as in Method\('m', rule, Schedule\(barrier=0.5, ",
    ),
    "storm without momentum": (
        lambda: methods.sdbgd.replace(estimator=Storm()),
        ValueError,
        r"Storm needs \['momentum'\]: give Storm\(momentum=…\), or set it in the schedule",
    ),
    "parts": (
        lambda: methods.sdbgd.replace(step=3),
        TypeError,
        r"unknown \['step'\]; a method has \['estimator', 'name', 'rule'",
    ),
    "start": (
        lambda: tiebreak.problems.paper(x0=(1.0,)),
        ValueError,
        r"x0=\(1.0,\) must be two numbers",
    ),
}


@pytest.mark.parametrize("row", CONSTRUCTIONS)
def test_constructions(row):
    construct, error, message = CONSTRUCTIONS[row]
    with pytest.raises(error, match=message):
        construct()


def test_whole_numbers_may_be_floats_and_starts_may_be_lists():
    assert call(steps=None, budget=1e4).calls <= 1e4
    assert call(x0=[1, 2]).x.dtype == np.float64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tiebreak.methods.get("sdgbd"), "did you mean 'sdbgd'?"),
        (lambda: tiebreak.methods.get("sdbg"), "did you mean 'sdbgd'?"),
        (lambda: tiebreak.methods.get("VR-PR-SDPBG"), "did you mean 'vr_pr_sdbpg'?"),
        (lambda: tiebreak.problems.named("valey-100"), "did you mean 'valley'?"),
        (
            lambda: Comparison("paper+sgima=1", "sdbgd"),
            "sgima must be one of sigma, sigma_f, sigma_g, dimension, noise",
        ),
        (
            lambda: Comparison("paper", "penalty_practise"),
            "did you mean 'penalty_practice'?",
        ),
        (lambda: Experiment(methods="sdbgd,pealty"), "did you mean 'penalty'?"),
        (lambda: Experiment(methods="auto"), "`auto` go to `tiebreak compare --as-is`"),
    ],
)
def test_a_name_that_is_spelt_alike_is_asked_for(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_a_name_that_is_nothing_like_it_is_not():
    with pytest.raises(ValueError, match="must be a Method") as told:
        tiebreak.methods.get("newton")
    assert "did you mean" not in str(told.value)


def test_steps_are_counted_of_a_name_as_of_a_method():
    assert tiebreak.theory.steps_within("sdbgd", 10**6) == tiebreak.theory.steps_within(
        tiebreak.methods.sdbgd, 10**6
    )


# ------------------------------------------------------------------- what a function of one's own cannot be called with


def test_a_value_of_a_finite_sum_takes_indices():
    """A plain g(x) is refused when the oracle is made, not by a bare TypeError inside a run."""
    with pytest.raises(
        TypeError, match=r"value=.* must be a function of \(x, indices\)"
    ):
        tiebreak.FiniteSum(lambda x, i: x, n=3, value=lambda x: 0.0)
    with pytest.raises(TypeError, match=r"value=.* must be a function of \(x, i\)"):
        tiebreak.FiniteSum(identity, n=3, value=lambda x: 0.0, per_example=True)
    tiebreak.FiniteSum(identity, n=3, value=lambda x, *rest: 0.0, weighted=True)


@pytest.mark.parametrize("value", [None, lambda x: float(x @ MATRIX @ x)])
def test_x0_of_a_wrong_length_is_named(value):
    with pytest.raises(
        ValueError,
        match=r"upper\.\w+ failed at a point of shape \(2,\), the shape of x0",
    ):
        tiebreak.minimize(
            tiebreak.Exact(lambda x: MATRIX @ x, value=value),
            lambda x: MATRIX @ x,
            np.zeros(2),
            steps=2,
        )
