"""The problems of the simple-bilevel literature: gradients, exact solutions, and what is measured of them."""

import numpy as np
import pytest

import tiebreak
from gallery import constrained
from gallery.constrained import cut, left_over, onto_one_norm_ball
from gallery.problems.dictionary import (
    ball,
    ball_pullback,
    dictionary,
    dictionary_data,
    recovery,
    unball,
)
from gallery.problems.regression import (
    RegressionData,
    Rows,
    regression,
    regression_data,
)


@pytest.fixture(scope="module")
def atoms():
    return dictionary_data(0, samples=(60, 40), first_stage=300)


def made(seed=0, train=8, validation=30, features=12):
    """Small made rows: nothing to install."""
    rng = np.random.default_rng(seed)
    return RegressionData(
        *(
            Rows(rng.normal(size=(n, features)), rng.normal(size=n))
            for n in (train, validation, 20)
        )
    )


def slope(value, x, direction, step=1e-6):
    return (value(x + step * direction) - value(x - step * direction)) / (2 * step)


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("name", ["regression", "dictionary"])
def test_gradients_are_those_of_the_values(name, level, atoms):
    """Along random directions, for all samples, for a batch, and for one in which a sample occurs twice."""
    problem = regression(made()) if name == "regression" else dictionary(atoms)
    oracle, rng = getattr(problem, level), np.random.default_rng(1)
    x = problem.x0 + 0.1 * rng.standard_normal(problem.x0.shape)
    everything = (np.arange(oracle.n), None)
    for token in (
        everything,
        (np.array([3, 1, 3, 5]), None),
        (np.array([0, 2, 7]), np.array([1, 4, 2])),
    ):
        for _ in range(3):
            direction = rng.standard_normal(x.shape) / np.sqrt(x.size)
            expected = slope(
                lambda z, token=token: oracle.value(z, token), x, direction
            )
            assert oracle.gradient(x, token) @ direction == pytest.approx(
                expected, rel=1e-5, abs=1e-8
            )


def test_the_ball_is_covered_and_never_left():
    rng = np.random.default_rng(0)
    u = rng.standard_normal((7, 500)) * 10.0 ** rng.uniform(-3, 3, 500)
    norms = np.linalg.norm(ball(u), axis=0)
    assert norms.max() <= 1 + 1e-12
    points = rng.standard_normal((7, 500))
    points *= np.append(rng.uniform(0, 1, 499), 1.0) / np.linalg.norm(points, axis=0)
    np.testing.assert_allclose(ball(unball(points)), points, atol=1e-12)
    assert np.all(unball(np.zeros((7, 2))) == 0)
    gradient = rng.standard_normal((7, 500))  # ⟨J dx, gradient⟩ = ⟨dx, Jᵀ gradient⟩
    u, direction = u / (1 + np.linalg.norm(u, axis=0)), rng.standard_normal((7, 500))
    expected = slope(lambda z: float(np.sum(ball(z) * gradient)), u, direction)
    assert np.sum(ball_pullback(u, gradient) * direction) == pytest.approx(
        expected, rel=1e-6
    )


def test_whatever_the_variables_are_the_constraints_hold(atoms):
    rng = np.random.default_rng(0)
    for scale in (0.01, 1, 100):
        learnt, coefficients = atoms.decode(scale * rng.standard_normal(atoms.x0.shape))
        assert np.linalg.norm(learnt, axis=0).max() <= 1 + 1e-12
        assert np.abs(coefficients).sum(axis=0).max() <= atoms.radius + 1e-12


def test_the_start_is_what_the_first_stage_left(atoms):
    """And it is optimal for g: no projected gradient step moves the atoms (g is convex in them)."""
    learnt, coefficients = atoms.decode(atoms.x0)
    np.testing.assert_allclose(learnt, atoms.atoms, atol=1e-7)
    assert np.all(atoms.atoms[:, 40:] == 0)
    assert np.all(atoms.coefficients[40:] == 0)
    assert np.abs(coefficients).sum(axis=0).max() < atoms.radius
    outward = (atoms.atoms @ atoms.coefficients - atoms.old) @ atoms.coefficients.T
    moved = atoms.atoms - 1e-3 * outward
    moved /= np.maximum(1, np.linalg.norm(moved, axis=0))
    np.testing.assert_allclose(moved, atoms.atoms, atol=1e-9)
    assert dictionary(atoms).lower.value(atoms.x0) == pytest.approx(
        atoms.lower_optimum, abs=1e-9
    )


def test_data_are_as_the_literature_has_them():
    data = dictionary_data(3, first_stage=1)
    assert data.truth.shape == (25, 50)
    np.testing.assert_allclose(np.linalg.norm(data.truth, axis=0), 1)
    assert data.old.shape == (25, 250)
    assert data.new.shape == (25, 200)
    # Old samples lie, but for noise, in what atoms 1 … 40 make of five coefficients of at most 1: |a| ≤ 5 + noise.
    assert np.linalg.norm(data.old, axis=0).max() < 5.5
    for samples, unused in ((data.old, np.arange(40, 50)), (data.new, np.arange(29))):
        power = np.mean((data.truth.T @ samples) ** 2, axis=1)
        used = np.setdiff1d(np.arange(50), unused)
        assert power[used].mean() > 1.2 * power[unused].mean()


def test_recovery():
    truth = np.eye(4)
    assert recovery(truth, truth) == 1
    assert (
        recovery(-7 * truth[:, ::-1], truth) == 1
    )  # sign, length and order do not matter
    assert recovery(np.zeros((4, 3)), truth) == 0
    angle = np.arccos(0.9)
    for turn, share in ((angle - 1e-6, 0.25), (angle + 1e-6, 0.0)):
        assert (
            recovery(np.array([[np.cos(turn)], [np.sin(turn)], [0], [0]]), truth)
            == share
        )
    assert (
        recovery(np.tile(truth[:, :1], 9), truth) == 0.25
    )  # one atom learnt nine times is one


@pytest.mark.parametrize(
    ("train", "validation", "features"), [(8, 30, 12), (8, 3, 12), (12, 30, 8)]
)
def test_the_exact_solution_is_optimal(train, validation, features):
    """∇g = 0 and ∇f has no part along the null space of g's Hessian: the conditions of the convex problem, both."""
    data = made(1, train, validation, features)
    problem = regression(data)
    x = problem.solution
    np.testing.assert_allclose(problem.lower.exact_gradient(x), 0, atol=1e-12)
    free = np.linalg.svd(data.train.features)[2][min(train, features) :].T
    np.testing.assert_allclose(free.T @ problem.upper.exact_gradient(x), 0, atol=1e-12)
    start = np.random.default_rng(0).standard_normal(features)
    nearest = data.solution(start)
    assert data.validation.loss(nearest) == pytest.approx(
        data.validation.loss(x), abs=1e-12
    )
    assert np.linalg.norm(nearest - start) <= np.linalg.norm(x - start) + 1e-12
    rest = np.linalg.svd(np.vstack([data.train.features, data.validation.features]))[2]
    rest = rest[min(train + validation, features) :]  # along which neither loss changes
    np.testing.assert_allclose(rest @ (nearest - start), 0, atol=1e-10)


def test_constants_hold_on_their_ball():
    data = made()
    problem, rng = regression(data), np.random.default_rng(0)
    c, radius = problem.constants, 2 * np.linalg.norm(problem.solution)
    for _ in range(50):
        x, y = (
            problem.solution + radius * ball(rng.standard_normal(12)) for _ in range(2)
        )
        for oracle, smoothness, sigma in (
            (problem.upper, c.L_f, c.sigma_f),
            (problem.lower, c.L_g, c.sigma_g),
        ):
            change = oracle.exact_gradient(x) - oracle.exact_gradient(y)
            assert np.linalg.norm(change) <= smoothness * np.linalg.norm(x - y) * (
                1 + 1e-12
            )
            single = [
                oracle.gradient(x, (np.array([i]), None)) - oracle.exact_gradient(x)
                for i in range(oracle.n)
            ]
            assert np.mean(np.sum(np.square(single), axis=1)) <= sigma**2
        assert np.linalg.norm(problem.upper.exact_gradient(x)) <= c.G_f


def test_the_solver_comes_to_the_exact_solution():
    problem = regression(made(0, 4, 40, 8))
    c = problem.constants
    schedule = tiebreak.Schedule(
        step_size=tiebreak.Power(1 / (c.L_f + c.L_g), -1 / 2), barrier=1.0
    )
    method = tiebreak.methods.dbgd.replace(schedule=schedule)
    exact = (problem.upper.exact_gradient, problem.lower.exact_gradient)
    result = tiebreak.minimize(
        *exact, problem.x0, method=method, steps=4000, record=None
    )
    assert np.linalg.norm(result.x - problem.solution) < 0.01 * np.linalg.norm(
        problem.solution
    )


def test_a_seed_gives_the_same_data_and_another_gives_others():
    one, same, other = (
        dictionary_data(seed, samples=(20, 15), first_stage=5) for seed in (4, 4, 5)
    )
    for name in ("truth", "old", "new", "fresh", "coefficients", "atoms", "start"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    pytest.importorskip(
        "sklearn",
        reason="the diabetes data come with scikit-learn: pip install scikit-learn",
    )
    one, same, other = (regression_data(seed) for seed in (4, 4, 5))
    assert np.array_equal(one.train.features, same.train.features)
    assert not np.array_equal(one.train.targets, other.train.targets)
    assert (
        len(
            {
                row
                for part in (one.train, one.validation, one.test)
                for row in map(bytes, part.features)
            }
        )
        == 442
    )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"shares=\(0.9, 0.2\)"):
        regression_data(shares=(0.9, 0.2))
    with pytest.raises((ValueError, TypeError), match="first_stage"):
        dictionary_data(first_stage=0)


def test_the_nearest_point_of_a_one_norm_ball():
    """Against the definition: inside nothing moves; outside it is on the sphere, and no corner is nearer."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((6, 300)) * rng.uniform(0.05, 2, 300)
    found = onto_one_norm_ball(points, 2.0)
    outside = np.abs(points).sum(axis=0) > 2
    assert 50 < outside.sum() < 250
    assert np.array_equal(found[:, ~outside], points[:, ~outside])
    np.testing.assert_allclose(np.abs(found[:, outside]).sum(axis=0), 2)
    corners = 2 * np.hstack(
        [np.eye(6), -np.eye(6)]
    )  # of the ball: ⟨point − found, corner − found⟩ ≤ 0
    away = points - found
    assert np.all(corners.T @ away <= np.sum(away * found, axis=0) + 1e-9)


def test_a_cut_is_the_best_atom_set_below_it():
    """Feasible, tight, and no worse than random feasible atoms; without a binding cut, the free optimum."""
    rng = np.random.default_rng(0)
    upper, lower = rng.standard_normal((2, 5, 4))
    free = cut(upper, lower, np.inf)
    np.testing.assert_allclose(free, -upper / np.linalg.norm(upper, axis=0))
    room = float(np.sum(lower * free)) - 1.0
    best = cut(upper, lower, room)
    assert np.sum(lower * best) == pytest.approx(room, abs=1e-9)
    tried = ball(rng.standard_normal((5, 20_000, 4)), 0).transpose(1, 0, 2)
    allowed = np.sum(lower * tried, axis=(1, 2)) <= room
    assert allowed.any()
    assert np.sum(upper * best) <= np.sum(upper * tried[allowed], axis=(1, 2)).min()


def test_the_literature_on_its_own_sets(atoms):
    """All stay feasible and bring f down."""
    for name, (method, steps, others) in constrained.METHODS.items():
        for made_so, _ in zip(
            method(atoms, steps[0], others[1]), range(60), strict=False
        ):
            learnt, coefficients = made_so
        assert np.linalg.norm(learnt, axis=0).max() <= 1 + 1e-12, name
        assert np.abs(coefficients).sum(axis=0).max() <= atoms.radius + 1e-9, name
        assert atoms.upper(learnt, coefficients) < 0.9 * atoms.upper(
            *atoms.decode(atoms.x0)
        ), name
        again = atoms.decode(atoms.encode(learnt, coefficients))
        np.testing.assert_allclose(again[0], learnt, atol=1e-7)
        np.testing.assert_allclose(again[1], coefficients, atol=1e-7)


def test_the_cut_holds_the_old_samples(atoms):
    """g(x⁺) ≤ (1−γ) g(x) + γ g(x₀) + L/2 ‖x⁺ − x‖²: what the cut and smoothness give together, at every step."""
    smoothness = np.linalg.norm(atoms.coefficients, 2) ** 2 / atoms.old.shape[1]
    before = atoms.atoms
    for k, (after, _) in zip(
        range(1, 61), constrained.cg_bio(atoms, 0.2, 0.5), strict=False
    ):
        share = 0.2 * k**-0.5
        bound = (1 - share) * atoms.lower(before) + share * atoms.lower_optimum
        assert (
            atoms.lower(after)
            <= bound + smoothness / 2 * np.sum((after - before) ** 2) + 1e-12
        )
        before = after


def test_what_is_left_over_is_least():
    """For orthonormal atoms and a ball that does not bind, the part of a sample outside their span."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    samples = 0.1 * rng.standard_normal((6, 30))
    expected = np.sum((basis[:, 4:].T @ samples) ** 2) / 30 / 2
    assert left_over(basis[:, :4], samples, 3.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["regression", "dictionary"])
def test_training_loops_have_the_same_problem(name, atoms):
    """Losses and gradients of the torch model are those of the NumPy problem, for a batch and for all samples."""
    torch = pytest.importorskip("torch")
    from gallery import dictionary as on_atoms
    from gallery import regression as on_rows

    data = made() if name == "regression" else atoms
    problem = regression(data) if name == "regression" else dictionary(data)
    task = (on_rows if name == "regression" else on_atoms).task_of(
        data, steps=10, seed=0
    )
    x = problem.x0 + 0.1 * np.random.default_rng(0).standard_normal(problem.x0.shape)
    with torch.no_grad():
        if name == "regression":
            task.model.weight.copy_(torch.tensor(x)[None])
        else:
            task.model.set(data, x)
    for level, batch in zip(("lower", "upper"), task.batches(3), strict=True):
        oracle = getattr(problem, level)
        value = getattr(task, level)(task.model, batch)
        found = torch.autograd.grad(
            value, list(task.model.parameters()), materialize_grads=True
        )
        token = (batch.numpy(), None)
        assert float(value.detach()) == pytest.approx(oracle.value(x, token), rel=1e-10)
        flat = np.concatenate([part.numpy().ravel() for part in found])
        np.testing.assert_allclose(flat, oracle.gradient(x, token), atol=1e-12)
    assert task.losses(task.model) == pytest.approx(
        (problem.lower.value(x), problem.upper.value(x)), rel=1e-10
    )
    example = (on_rows if name == "regression" else on_atoms).EXAMPLE
    assert set(task.metrics(task.model)) == {metric.name for metric in example.metrics}


def test_a_barrier_learns_the_new_and_keeps_the_old(atoms):
    torch = pytest.importorskip("torch")
    import tiebreak.torch
    from gallery.dictionary import EXAMPLE, task_of

    task = task_of(atoms, steps=150, seed=0)
    opt = tiebreak.torch.DynamicBarrier(
        task.base(task.model.parameters()),
        tolerance=EXAMPLE.tolerance,
        reference=EXAMPLE.reference,
        model=task.model,
    )
    rate = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: task.rate(k / task.steps))
    before = task.losses(task.model)
    for step in range(task.steps):
        old, new = task.batches(step)
        opt.step(
            lower=lambda: task.lower(task.model, old),  # noqa: B023
            upper=lambda: task.upper(task.model, new),  # noqa: B023
        )
        rate.step()
    after = task.losses(task.model)
    assert after[0] <= 1.05 * before[0]
    assert after[1] < 0.3 * before[1]


def test_conditional_gradients_in_the_common_loop(atoms):
    """The example's own method charges all samples at every step and leaves its point in the model."""
    pytest.importorskip("torch")
    from gallery.dictionary import EXAMPLE, task_of

    task = task_of(atoms, steps=20, seed=0)
    [method] = EXAMPLE.methods
    spent = 0
    for cost in method.train(task, method.grid[0]):
        spent += cost
        if spent >= 2 * task.steps:
            break
    expected = next(
        pair
        for k, pair in enumerate(constrained.cg_bio(atoms, *method.grid[0].values()), 1)
        if 4 * k >= spent
    )
    assert task.losses(task.model) == pytest.approx(
        (atoms.lower(expected[0]), atoms.upper(*expected)), rel=1e-6
    )


def test_tuning_prefers_what_keeps_the_tolerance(monkeypatch):
    """Inside half the tolerance first, then the least upper value; where nothing is, the least lower gap."""
    from benchmarks.classic import study
    from benchmarks.classic.methods import Candidate

    ends = {
        (1, 1): (0.9, 1.0),
        (1, 2): (0.4, 3.0),
        (2, 1): (0.5, 2.0),
        (2, 2): (float("inf"), 0.0),
    }

    def run(_, __, ___, setting, ____, *, watch):
        assert not watch
        return {
            "end": dict(zip(("lower gap", "upper gap"), ends[setting], strict=True))
        }

    monkeypatch.setattr(study, "run", run)
    candidate = Candidate("any", True, None, (1, 2), (1, 2))
    for tolerance, best in (
        (1.0, ((2, 1), True)),
        (0.6, ((1, 2), False)),
        (2.0, ((1, 1), True)),
    ):
        chosen = study.STUDIES["regression"]._replace(tolerance=tolerance, tuning=(7,))
        assert study.tuned(chosen, candidate, {7: None}) == best


def test_every_method_of_the_comparison_makes_a_few_steps(atoms):
    """On both problems, within the budget, and all is measured that the table shows; 15 settings each."""
    from benchmarks.classic import report, study
    from benchmarks.classic.methods import candidates, defaults

    pytest.importorskip(
        "sklearn",
        reason="the diabetes data come with scikit-learn: pip install scikit-learn",
    )
    monkey = pytest.MonkeyPatch()
    monkey.setattr(study, "dictionary_data", lambda seed: atoms)
    for name, plan in study.STUDIES.items():
        short = plan._replace(budget=3 * sum(plan.units.rows))
        instance = plan.prepare(0)
        for candidate in (*candidates(plan.units), *plan.extra, *defaults()):
            alone = len(candidate.steps) == 1
            assert len(candidate.steps) * len(candidate.others) == (1 if alone else 15)
            made = study.run(
                short, instance, candidate, (candidate.steps[0], candidate.others[0]), 0
            )
            assert made["curve"][-1]["calls"] <= short.budget, candidate.name
            assert set(report.COLUMNS[name]) - {"fresh"} <= set(made["end"]), (
                candidate.name
            )
    monkey.undo()


def test_a_table_names_the_best_inside(monkeypatch):
    from benchmarks.classic import report

    monkeypatch.setattr(report, "known", lambda name, seeds: {})
    ends = {
        "careful": (0.001, 5.0),
        "best": (0.004, 1.0),
        "careless": (0.1, 0.5),
        "by luck": (0.0049, 0.6),
    }
    methods = [
        {
            "method": n,
            "feasible when tuned": n != "by luck",
            "runs": [
                {
                    "end": {
                        "lower gap": g,
                        "upper gap": f + s,
                        "distance": 1.0,
                        "test": 2.0,
                    }
                }
                for s in (0, 1)
            ],
        }
        for n, (g, f) in ends.items()
    ]
    lines = report.table(
        {"name": "regression", "tolerance": 0.005, "methods": methods}
    ).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "careful",
        "**best**",
        "careless",
        "by luck",
    ]
    assert [line.split("|")[2].strip() for line in lines[2:]] == [
        "yes",
        "yes",
        "",
        "yes",
    ]
    assert "1.5 ± 0.7" in lines[3]
