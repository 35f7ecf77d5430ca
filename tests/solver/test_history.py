"""The history of a run, as a user reads it."""

import pytest

import tiebreak
from tiebreak import methods, minimize

PAPER = tiebreak.problems.paper()


def run(**options):
    options = {"steps": 20, "seed": 0, "record": 1} | options
    return minimize(PAPER.upper, PAPER.lower, PAPER.x0, method="sdbgd", **options)


@pytest.mark.parametrize(
    ("options", "arguments", "error", "message"),
    [
        (
            {"record": None},
            ("lower_gradient_squared",),
            ValueError,
            r"record=1\) records",
        ),
        ({}, ("x",), ValueError, "must be a column of the history"),
        ({}, ("lower_gradient_squared", "sdbgd"), TypeError, "tiebreak.methods.sdbgd"),
    ],
)
def test_a_weighted_mean_names_what_is_wrong(options, arguments, error, message):
    with pytest.raises(error, match=message):
        run(**options).history.weighted_mean(*arguments)


def test_a_weighted_mean_takes_a_schedule_and_a_method():
    history = run().history
    name = "lower_gradient_squared"
    expected = history.weighted_mean(name, methods.sdbgd)
    assert history.weighted_mean(name, methods.sdbgd.schedule) == expected


def test_bounds_of_a_method_are_asked_for_by_its_schedule():
    with pytest.raises(TypeError, match=r"must be a Schedule, such as .*\.schedule"):
        tiebreak.theory.bounds.residual_bounds(methods.sdbgd, PAPER.constants, 10)


def test_a_certificate_of_a_finite_sum_names_the_terms_that_were_not_drawn():
    import numpy as np

    rows = np.random.default_rng(0).standard_normal((1000, 2))
    oracle = tiebreak.FiniteSum(lambda x, i: rows[i].mean(axis=0) + x, n=1000)
    found = tiebreak.certify(oracle, oracle, np.zeros(2), samples=256)
    assert "at least 744 of 1,000 terms, which were not drawn" in str(found)
