"""Every method against the slow reference: iterates, multipliers, calls, the selected iterate, the residuals.

Both programs draw the same noise, so they differ by the order of floating-point operations alone. RTOL bounds the
difference relative to the largest entry of what is compared; steps and calls must be equal.
"""

import dataclasses
import math

import numpy as np
import pytest
import reference

import tiebreak
from tiebreak import Average, Gaussian, Method, Power, Schedule, Storm, methods, rules

RTOL = 1e-10
SEED = 20260101

# ------------------------------------------------------------------------------------------- methods, by pairs

STORM_SDBGD = (
    Schedule(  # the SDBGD rule on STORM estimates, with the largest legal η and β
        step_size=Power(1 / 6, -1 / 4),
        barrier=Power(1, -1 / 4),
        regularizer=Power(1, -1),
        momentum=Power(1, -1 / 2),
        upper_batch=Power(1, 1 / 2),
        lower_batch=Power(1, 1),
    )
)
VALUE = Schedule(
    step_size=Power(0.05, -1 / 4),
    barrier=0.5,
    regularizer=Power(1, -1),
    upper_batch=2,
    lower_batch=3,
    others={"target": 0.1, "rate": Power(0.7, 1 / 4)},
)


def _value_row(rule, weight):
    return reference.Row(
        eta=lambda t: 0.05 * t ** (-1 / 4),
        rule=rule,
        upper_batch=lambda t: 2,
        lower_batch=lambda t: 3,
        weight=weight,
    )


#: name → (the method, its reference row, a budget that allows some dozens or hundreds of steps). Every row of METHODS
#: comes first, so that a new method without a reference fails here.
BUDGETS = {
    "sdbgd": 200_000,
    "sdbpg": 60_000,
    "pr_sdbpg": 60_000,
    "vr_pr_sdbpg": 60_000,
    "dbgd": 601,
    "penalty": 60_000,
}
BUDGETS |= {"lazy_penalty": 60_000}
BUDGETS |= {
    "spider_penalty": 10_000,
    "storm_penalty": 10_000,
    "storm_sdbgd": 60_000,
    "spider_sdbgd": 60_000,
}
BUDGETS |= {"sdbgd_averaged": 60_000, "sdbgd_dual": 60_000}
CASES = {
    name: (methods.METHODS[name], reference.METHODS[name], BUDGETS[name])
    for name in methods.METHODS
}
CASES |= {
    "sdbgd, average": (
        methods.sdbgd.replace(estimator=Average(0.02)),
        dataclasses.replace(reference.METHODS["sdbgd"], average=0.02),
        200_000,
    ),
    "sdbgd, average from the schedule": (
        methods.sdbgd.replace(
            estimator=Average(), schedule=methods.sdbgd.schedule.replace(momentum=0.3)
        ),
        dataclasses.replace(reference.METHODS["sdbgd"], average=0.3),
        200_000,
    ),
    "sdbgd, storm": (
        Method("STORM-SDBGD", rules.sdbgd, STORM_SDBGD, Storm()),
        reference.Row(
            eta=lambda t: t ** (-1 / 4) / 6,
            rule=lambda fg, gg, t, value: reference.sdbgd(fg, gg, t ** (-1 / 4), 1 / t),
            upper_batch=math.isqrt,
            lower_batch=lambda t: t,
            weight=lambda t: t ** (-1 / 4) / 6 * t ** (-1 / 4),
            storm=(lambda t: 1 / math.sqrt(t), lambda t: 1 / math.sqrt(t)),
        ),
        20_001,
    ),
    "by value": (
        Method("by value", rules.by_value, VALUE),
        _value_row(
            lambda fg, gg, t, value: reference.by_value(
                fg, gg, value, 0.1, 0.7 * t ** (1 / 4), 1 / t
            ),
            lambda t: 0.05 * t ** (-1 / 4) * 0.5,
        ),
        1_003,
    ),
    "by value, no barrier": (
        Method("by value", rules.by_value, VALUE.replace(barrier=None)),
        _value_row(
            lambda fg, gg, t, value: reference.by_value(
                fg, gg, value, 0.1, 0.7 * t ** (1 / 4), 1 / t
            ),
            lambda t: 0.05 * t ** (-1 / 4),
        ),
        1_003,
    ),
    "least": (
        Method("least", rules.least, VALUE),
        _value_row(
            lambda fg, gg, t, value: reference.least(
                fg, gg, 0.5, value, 0.1, 0.7 * t ** (1 / 4), 1 / t
            ),
            lambda t: 0.05 * t ** (-1 / 4) * 0.5,
        ),
        1_003,
    ),
}

# ------------------------------------------------------------------------------------------ problems, by pairs


def _paper():
    problem = tiebreak.problems.paper()
    return (problem.upper, problem.lower, problem.x0), reference.paper_problem()


def _random(shape=(3, 2)):
    """Gaussian noise whose σ differs from coordinate to coordinate: an array that broadcasts, one for each level."""
    rng = np.random.default_rng(7)
    size = math.prod(shape)
    matrix = rng.normal(size=(size - 2, size)) / math.sqrt(size)
    centre, x0 = rng.normal(size=shape), rng.normal(size=shape)
    sigma_f, sigma_g = (
        np.linspace(0.1, 0.5, shape[-1]),
        np.linspace(0.2, 0.6, shape[0]).reshape(-1, 1),
    )

    def upper_gradient(x):
        return (x - centre) / np.sqrt(1 + (x - centre) ** 2)

    def lower_gradient(x):
        return (matrix.T @ (matrix @ x.ravel())).reshape(shape)

    upper = Gaussian(
        upper_gradient, sigma_f, lambda x: np.sqrt(1 + (x - centre) ** 2).sum()
    )
    lower = Gaussian(
        lower_gradient,
        sigma_g,
        lambda x: 0.5 * (matrix @ x.ravel()) @ (matrix @ x.ravel()),
    )
    flat = [
        array.ravel().tolist()
        for array in (
            centre,
            np.broadcast_to(sigma_f, shape),
            np.broadcast_to(sigma_g, shape),
            x0,
        )
    ]
    return (upper, lower, x0), reference.random_problem(matrix.tolist(), *flat)


PROBLEMS = {"paper": _paper, "random (3, 2)": _random}


def close(ours, theirs, what):
    theirs = np.asarray(theirs)
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=RTOL * scale, err_msg=what)


# ------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", CASES)
def test_trajectory_is_the_reference_s(name, problem):
    (upper, lower, x0), spelled_out = PROBLEMS[problem]()
    method, row, budget = CASES[name]
    runs = [0, 3]
    result = tiebreak.minimize(
        upper,
        lower,
        x0,
        method=method,
        budget=budget,
        runs=runs,
        seed=SEED,
        record=1,
        keep_iterates=True,
    )
    for i, run in enumerate(runs):
        path = reference.solve(spelled_out, row, SEED, run, budget=budget)
        assert path.steps >= 30, "too short to tell"

        # Counts, exactly.
        assert result.steps[i] == path.steps
        assert (result.upper_calls[i], result.lower_calls[i]) == (
            path.upper_calls[-1],
            path.lower_calls[-1],
        )
        assert result.calls[i] <= budget
        assert result.status[i] is tiebreak.Status.BUDGET
        history = result.history
        assert history.step.tolist() == list(range(path.steps + 1))
        assert history.upper_calls.tolist() == path.upper_calls
        assert history.lower_calls.tolist() == path.lower_calls

        # Iterates and multipliers.
        ours = history.x[:, i]
        assert ours.shape[1:] == x0.shape
        for k, x in enumerate(path.x):
            close(ours[k].ravel(), x, f"x at step {k}")
        close(result.x[i].ravel(), path.x[-1], "last x")
        close(history.multiplier[:-1, i], path.multiplier, "multipliers")
        assert np.isnan(history.multiplier[-1, i])  # the last iterate starts no step

        # The returned iterate: the reservoir replayed.
        assert result.selected.step[i] == path.selected
        close(result.selected.x[i].ravel(), path.x[path.selected], "selected x")

        # Residuals: x_k with the parameters of step k, the last iterate with those of the last step.
        expected = [
            reference.residuals(
                spelled_out, row, x, min(k + 1, path.steps), path.notes[k]
            )
            for k, x in enumerate(path.x)
        ]
        for column in expected[0]:
            close(history[column][:, i], [each[column] for each in expected], column)
            close(
                getattr(result.last, column)[i],
                expected[-1][column],
                f"{column} of the last iterate",
            )
            close(
                getattr(result.selected, column)[i],
                expected[path.selected][column],
                f"{column} of the selected",
            )


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_made_only_if_its_whole_cost_fits(name):
    """A budget of exactly K steps makes K; one call less makes K − 1."""
    (upper, lower, x0), spelled_out = _paper()
    method, row, _ = CASES[name]
    path = reference.solve(spelled_out, row, SEED, steps=12)
    exact = path.upper_calls[-1] + path.lower_calls[-1]
    for budget, steps in ((exact, 12), (exact - 1, 11)):
        result = tiebreak.minimize(
            upper, lower, x0, method=method, budget=budget, seed=SEED
        )
        assert result.steps == steps
        assert (result.upper_calls, result.lower_calls) == (
            path.upper_calls[steps],
            path.lower_calls[steps],
        )


def test_vr_is_charged_twice_on_every_step():
    """2(B_f + B_g) calls a step, the first one included, as the paper counts them."""
    (upper, lower, x0), _ = _paper()
    seen = []
    tiebreak.minimize(
        upper,
        lower,
        x0,
        method="vr_pr_sdbpg",
        steps=10,
        seed=0,
        callback=lambda r: seen.append((r.upper_calls, r.calls)),
    )
    batches = [(math.isqrt(t), t) for t in range(1, 11)]
    charged = [(2 * u, 2 * (u + l)) for u, l in batches]
    assert seen == [tuple(np.sum(charged[: k + 1], axis=0)) for k in range(10)]
    with pytest.raises(ValueError, match=r"budget=2 must be at least 4"):
        tiebreak.minimize(upper, lower, x0, method="vr_pr_sdbpg", budget=2)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("sdbgd", 275), ("sdbpg", 668), ("pr_sdbpg", 2262), ("vr_pr_sdbpg", 9933)],
)
def test_steps_that_fit_in_the_paper_s_budget(name, steps):
    """As an independent program counted them; and once more from the reference's batches, by adding them up."""
    row = reference.METHODS[name]
    spent = k = 0
    while (
        spent := spent
        + (1 + (row.storm is not None and (k > 0 or row.charge_first == 2)))
        * (row.upper_batch(k + 1) + row.lower_batch(k + 1))
    ) <= 10**8:
        k += 1
    assert k == steps
    (upper, lower, x0), _ = _paper()
    assert (
        tiebreak.minimize(
            upper, lower, x0, method=name, budget=10**8, seed=0, record=None
        ).steps
        == steps
    )


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 1, 3)])
def test_the_shape_of_x_does_not_matter(shape):
    """Separable gradients in any shape, scalars too, equal the reference on the flat list."""
    size = math.prod(shape)
    x0 = np.linspace(-1, 1, size + 1)[1:].reshape(shape)
    problem = reference.Problem(
        grad_f=lambda x: [xi - 2 for xi in x],
        grad_g=lambda x: [math.sin(xi) for xi in x],
        f=lambda x: sum((xi - 2) ** 2 for xi in x) / 2,
        g=lambda x: sum(1 - math.cos(xi) for xi in x),
        sigma_f=[0.3] * size,
        sigma_g=[0.4] * size,
        x0=x0.ravel().tolist(),
    )
    upper = Gaussian(lambda x: x - 2, 0.3, lambda x: ((x - 2) ** 2).sum() / 2)
    lower = Gaussian(np.sin, 0.4, lambda x: (1 - np.cos(x)).sum())
    result = tiebreak.minimize(
        upper,
        lower,
        x0,
        method="sdbgd",
        steps=40,
        seed=SEED,
        record=1,
        keep_iterates=True,
    )
    path = reference.solve(problem, reference.METHODS["sdbgd"], SEED, steps=40)
    assert result.x.shape == shape
    assert result.history.x.shape == (41, *shape)
    close(result.history.x.reshape(41, size), path.x, "x")
    assert result.selected.step == path.selected
    for column, value in reference.residuals(
        problem, reference.METHODS["sdbgd"], path.x[-1], 40
    ).items():
        close(getattr(result.last, column), value, column)
