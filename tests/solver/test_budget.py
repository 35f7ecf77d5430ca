"""What a step costs and which steps fit: one count for the solver, for plans and for experiments."""

import itertools
import math

import numpy as np
import pytest

import tiebreak
from tiebreak import Power, Schedule, Status, methods
from tiebreak.solver.budget import (
    Many,
    Steps,
    calls,
    first_cost,
    law_values,
    steps_within,
)

PAPER = tiebreak.problems.paper()


@pytest.mark.parametrize("name", methods.METHODS)
@pytest.mark.parametrize("budget", [4, 99, 12_345])
def test_the_solver_charges_what_this_module_says(name, budget):
    """Samples times points over the steps that fit, level by level, however it is counted."""
    method = methods.get(name)
    fitting = Steps(method, budget=budget)
    charged = [calls(method, parameters) for parameters in fitting]
    upper, lower = (sum(level) for level in zip(*charged, strict=True))
    assert fitting.ended is Status.BUDGET
    assert (fitting.k, fitting.spent) == (len(charged), upper + lower)
    assert (
        upper + lower
        <= budget
        < upper + lower + sum(calls(method, method.schedule.at(len(charged))))
    )
    assert steps_within(method, budget) == (len(charged), upper, lower)
    result = tiebreak.minimize(
        PAPER.upper, PAPER.lower, PAPER.x0, method=name, budget=budget, seed=0
    )
    assert (result.steps, result.upper_calls, result.lower_calls) == (
        len(charged),
        upper,
        lower,
    )
    assert charged[0] == calls(method, method.schedule.at(0))
    assert sum(charged[0]) == first_cost(method)


@pytest.mark.parametrize("name", methods.METHODS)
def test_arrays_are_charged_like_single_steps(name):
    method = methods.METHODS[name]
    many = calls(method, Many(method.schedule, 50))
    each = [calls(method, method.at(k)) for k in range(50)]
    assert each == [calls(method, method.schedule.at(k)) for k in range(50)]
    assert np.array_equal(np.transpose(many), each)


def test_steps_go_on_from_any_step_and_say_why_they_end():
    method = methods.sdbgd
    whole = list(Steps(method, steps=20))
    some = Steps(method, steps=20)
    first = list(itertools.islice(some, 7))
    assert some.ended is Status.RUNNING
    rest = Steps(method, steps=20, k=some.k, spent=some.spent)
    assert [*first, *rest] == whole
    assert rest.ended is Status.STEPS
    assert next(rest, None) is None  # and stays ended


def test_calls_beyond_what_can_be_counted_are_refused():
    method = methods.dbgd.replace(lower_batch=Power(2.0**62))
    with pytest.raises(
        OverflowError, match=r"step 1 would bring the calls to 9.22e\+18"
    ):
        list(Steps(method))


@pytest.mark.parametrize(
    "law",
    [
        Power(1, 2.5),
        Power(1, 0.5),
        Power(0.3, 1.7),
        Power(2, -0.25),
        Power(7),
        lambda k: k,
    ],
)
def test_laws_as_arrays_are_floored_like_single_values(law):
    """t^2.5 is whole at every square: there the last bit decides."""
    single = [np.floor(law(k)) for k in range(3000)]
    assert np.array_equal(np.floor(law_values(law, 3000)), single)
    assert np.array_equal(np.floor(law_values(law, 2000, start=1000)), single[1000:])


def test_millions_of_large_batches_are_counted_without_a_loop():
    """Near whole numbers the law itself is asked; large numbers are all near one, and there it must not be."""
    looked_up = 0

    class Counted(Power):
        def __call__(self, k):
            nonlocal looked_up
            looked_up += 1
            return super().__call__(k)

    huge = Schedule(
        0.1, 1.0, 1.0, upper_batch=Counted(3e8, 1.0), lower_batch=Counted(150.7, 2.5)
    )
    steps, upper, lower = steps_within(methods.sdbgd.replace(schedule=huge), 10**22)
    assert steps > 10**5
    assert upper + lower <= 10**22
    assert looked_up < steps / 10


@pytest.mark.parametrize(("name", "value"), [("budget", 1e30), ("steps", 2**63)])
def test_limits_that_cannot_be_counted_are_refused_at_once(name, value):
    with pytest.raises(
        ValueError, match=rf"{name}=.* must be a whole number from 1 to 2\^63 − 1"
    ):
        tiebreak.minimize(PAPER.upper, PAPER.lower, PAPER.x0, **{name: value})


@pytest.mark.parametrize("name", methods.METHODS)
def test_steps_are_those_of_the_method_one_by_one(name):
    """Power laws are evaluated for many steps at once: the same bits, from any step on, and the limits as before."""
    method = methods.METHODS[name]
    for first in (0, 1, 1000):
        found = list(Steps(method, steps=first + 700, k=first))
        assert found == [method.at(k) for k in range(first, first + 700)]
        assert [p.weight for p in found[:3]] == [
            method.at(first + i).weight for i in range(3)
        ]


@pytest.mark.parametrize(
    "law",
    [
        Power(1, 2.8),
        Power(1, 2.5),
        Power(1, 1),
        Power(0.05, -0.25),
        Power(3, 0),
        Power(1, 2),
    ],
)
def test_many_values_of_a_power_are_its_values(law):
    for start in (0, 31, 10**6, 10**9):
        found = law.values(start, 300)
        assert found == [law(start + i) for i in range(300)]
        assert all(type(value) is float for value in found)


def test_no_law_is_asked_beyond_the_last_step_and_no_value_is_refused_before_it_is_needed():
    def short(k):
        if k >= 5:
            raise RuntimeError("there is no such step")
        return 0.1

    row = methods.sdbgd.replace(step_size=short)
    assert len(list(Steps(row, steps=5))) == 5
    growing = methods.sdbgd.replace(
        barrier=Power(1e-300, 400)
    )  # beyond all floats after seven steps
    taken = Steps(growing, steps=40)
    with pytest.raises(ValueError, match="barrier at step"):
        list(taken)
    assert taken.k == next(
        k for k in range(40) if not math.isfinite(_power(1e-300, k + 1, 400))
    )


def _power(constant, t, exponent):
    try:
        return constant * float(t) ** exponent
    except OverflowError:
        return math.inf
