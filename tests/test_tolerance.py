"""The rule of `tiebreak.tolerance`: in closed loop on a known plant, against a plain program, and in every library."""

import ast
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak.tolerance import (
    DEFAULT,
    Constants,
    Memory,
    after_return,
    check,
    follow,
    initial_memory,
    needs_return,
)

SOURCES = Path(tiebreak.__file__).parent
AIM = DEFAULT.target_excess


def plant(
    steps=2000,
    c=4.0,
    lag=20.0,
    noise=0.0,
    swing=0.0,
    start=0.0,
    number=None,
    tolerance_at=lambda t: 0.01,
):
    """A quadratic g pulled by f: its excess follows c/w² with a lag; the loss that is measured has a batch's noise.

    The reference is a twin's, which shares most of that noise; or a `number`, the last of the losses `number(t)` of
    lower-only training. Returns the true excess, w and w₀ at each step.
    """
    generator, memory, excess, seen = (
        np.random.default_rng(0),
        initial_memory(),
        start,
        [],
    )
    for t in range(steps):
        shared = 0.3 + 0.03 * generator.normal()
        low, reference = (number(t), number(steps)) if number else (shared, shared)
        loss = low + 0.01 * (excess + noise * generator.normal())
        memory, reading = follow(
            memory, loss, reference, tolerance_at(t), 2.0, 3.0, same_batch=not number
        )
        excess += (c / reading.ratio**2 - excess) / lag + swing * generator.normal()
        seen.append(
            (0.01 * excess / tolerance_at(t), reading.ratio, memory.integral_ratio)
        )
    return np.array(seen).T


# --- in closed loop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1.0, 10.0, 100.0, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("lag", [1.0, 20.0, 200.0])
def test_the_excess_comes_to_its_aim(c, lag):
    """Where f costs so much that the first w is far too small, this takes long; elsewhere nothing is ever outside."""
    excess, ratio, _ = plant(c=c, lag=lag, steps=4000)
    np.testing.assert_allclose(excess[-300:], AIM, rtol=0.02)
    np.testing.assert_allclose(ratio[-1], (c / AIM) ** 0.5, rtol=0.02)
    transient = 0 if c <= 10 else 50 if c <= 100 else 300 if c <= 1e3 else 2500
    assert excess[transient:].max() < 1


def test_where_f_costs_nothing_w_falls_to_its_bound():
    excess, ratio, integral = plant(c=0.01)
    assert integral[-1] == 1
    assert 0.4 < ratio[-1] < 0.6
    assert excess.max() < AIM


@pytest.mark.parametrize(
    ("disturbance", "number", "inside", "median"),
    [
        ({"noise": 0.1}, False, 0.999, 0.6),
        ({"noise": 0.5}, False, 0.97, 0.45),
        ({"noise": 2.0}, False, 0.93, 0.0),
        ({"swing": 0.02}, False, 0.99, 0.6),
        ({"swing": 0.05}, False, 0.95, 0.55),
        ({"swing": 0.1}, False, 0.88, 0.45),
        ({"noise": 0.1}, True, 0.98, 0.6),
        ({"noise": 0.5}, True, 0.85, 0.45),
    ],
)
def test_with_noise_and_with_a_model_that_swings_most_steps_are_inside(
    disturbance, number, inside, median
):
    """In tolerances: with a swing of 0.05 a step the excess wanders with a deviation of 0.13."""
    excess, _, _ = plant(
        steps=4000, number=(lambda t: 0.3) if number else None, **disturbance
    )
    assert np.mean(excess[500:] <= 1) > inside
    assert median < np.median(excess[500:]) < AIM


def test_against_a_number_w_does_not_wind_up_and_the_end_is_inside():
    """Lower-only training comes down from 30 tolerances above its final loss; meanwhile f waits."""
    excess, ratio, integral = plant(
        steps=4000, number=lambda t: 0.3 + 0.3 * math.exp(-t / 150)
    )
    assert integral.max() < 5 * DEFAULT.initial_ratio_outside
    assert np.median(ratio[20:300]) > 20
    assert excess[-1] == pytest.approx(AIM, rel=0.03)


@pytest.mark.parametrize("start", [3.0, 300.0, 30_000.0])
def test_while_the_excess_falls_w0_does_not_grow(start):
    memory, integral = initial_memory(), []
    for t in range(300):
        memory, _ = follow(
            memory,
            0.3 + 0.01 * start * math.exp(-t / 40),
            0.3,
            0.01,
            1.0,
            1.0,
            same_batch=False,
        )
        integral.append(memory.integral_ratio)
    assert (
        np.diff(integral[25:]) <= 0
    ).all()  # before that, both averages of the excess are nearly the same
    assert plant(start=start)[0][-1] == pytest.approx(AIM, rel=0.03)


@pytest.mark.parametrize(
    ("aim", "first"),
    [(0.5, DEFAULT.initial_ratio), (2.0, DEFAULT.initial_ratio_outside)],
)
def test_w_begins_inside_the_tolerance_or_outside(aim, first):
    """Without an error w is w₀."""
    memory, reading = follow(
        initial_memory(),
        aim,
        0.0,
        1.0,
        1.0,
        1.0,
        constants=DEFAULT._replace(target_excess=aim),
    )
    assert reading.ratio == memory.integral_ratio == pytest.approx(first)


def test_a_new_tolerance_counts_at_once():
    excess, ratio, _ = plant(
        c=10.0, steps=4000, tolerance_at=lambda t: 0.01 if t < 2000 else 0.0025
    )
    assert excess[2000] > 3
    assert ratio[2000] == pytest.approx(
        ratio[1999] * math.exp(DEFAULT.error_range - 1), rel=0.2
    )
    assert excess[-1] == pytest.approx(AIM, rel=0.03)


def test_a_sudden_large_gradient_of_f_is_cut():
    memory = initial_memory()
    for upper in (*[1.0] * 50, 1e6):
        memory, reading = follow(memory, 0.3, 0.3, 0.01, upper, 4.0)
        assert upper / reading.unit == pytest.approx(
            4 * (DEFAULT.max_upper_gradient_ratio if upper > 1 else 1)
        )


# --- the rescue ------------------------------------------------------------------------------------------------------


def trapped(rescued, edge=2.0, steps=1200, rate=0.05, noise=0.0, g=1.0, f=1.0):
    """e = x² up to an edge, beyond which no gradient of g leads back; f = −x. The model is thrown there at step 400.

    Returns the true excess, and the steps at which the rule asks for a return.
    """
    generator, x, memory, seen, asked = (
        np.random.default_rng(0),
        0.1,
        initial_memory(),
        [],
        [],
    )
    for t in range(steps):
        x = edge + 1 if t == 400 and edge < math.inf else x
        slope, excess = 2 * x * (x < edge), min(x, edge) ** 2
        reference = 0.3 + 0.03 * generator.normal()
        loss = reference + 0.01 * (excess + noise * generator.normal())
        memory, reading = follow(
            memory, g * loss, g * reference, g * 0.01, f, g * abs(slope)
        )
        x -= (
            rate
            * (reading.ratio * slope - f / reading.unit / g)
            / max(1.0, reading.ratio)
        )
        if needs_return(memory):
            asked.append(t)
            x, memory = (0.0, after_return(memory)) if rescued else (x, memory)
        seen.append(excess)
    return np.array(seen), asked


@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_what_steps_on_g_do_not_repair_is_set_to_the_twin_once(noise):
    excess, asked = trapped(rescued=False, noise=noise)
    assert (excess[400:] > 1).all()
    assert len(asked) > 100
    excess, asked = trapped(rescued=True, noise=noise)
    assert len(asked) == 1
    assert 400 + DEFAULT.rescue_steps <= asked[0] <= 400 + 3 * DEFAULT.rescue_steps
    assert (excess[asked[0] + 1 :] <= 1).all()


@settings(max_examples=15, deadline=None)
@given(st.floats(-6, 6), st.floats(-6, 6), st.floats(-3, -0.5), st.floats(0, 3))
def test_a_model_that_can_be_repaired_is_never_set_to_its_twin(g, f, rate, noise):
    assert (
        trapped(
            True, edge=math.inf, steps=600, rate=10**rate, noise=noise, g=10**g, f=10**f
        )[1]
        == []
    )


@pytest.mark.parametrize(
    ("steps", "stalled", "lost"),
    [(100, 1, 1), (100, 0.9, 0), (1e4, 9, 0), (1e4, 11, 1)],
)
def test_a_return_takes_a_share_of_all_steps_and_leaves_no_excess(steps, stalled, lost):
    losses = {
        "fast_loss": 2.0,
        "slow_loss": 3.0,
        "fast_reference": 1.0,
        "slow_reference": 1.5,
        "returns": 4.0,
    }
    memory = Memory(**initial_memory()._asdict() | losses)._replace(steps=steps)
    memory = memory._replace(stalled_steps=stalled * DEFAULT.rescue_steps)
    assert needs_return(memory) == lost
    after = after_return(memory)
    assert not needs_return(after)
    assert (after.integral_ratio, after.returns, after.slow_loss) == (
        DEFAULT.initial_ratio,
        5,
        after.slow_reference,
    )
    assert follow(after, 1.0, 1.0, 0.01, 1.0, 1.0)[1].excess == pytest.approx(0)


# --- the equations ---------------------------------------------------------------------------------------------------


def mean(values, weight):
    """An exponential average with at least 1/k at step k; of norms (None is 0) those that are not 0."""
    found = None
    for k, value in enumerate(values, 1):
        if value is not None:
            found = (
                value if found is None else found + max(1 / k, weight) * (value - found)
            )
    return found


def plainly(rows, relative, same_batch):
    """The documented equations on whole histories, with logarithms and branches: (w, s, e), and whether to return."""
    c, swing, z, stalled = DEFAULT, 0.0, None, 0
    for k in range(1, len(rows) + 1):
        loss, reference, tolerances, upper, lower = zip(*rows[:k], strict=True)
        upper, lower = ([norm or None for norm in norms] for norms in (upper, lower))
        means = [
            (mean(loss, weight), mean(reference, weight))
            for weight in (c.fast_weight, c.slow_weight)
        ]
        e, slow = (
            (g - r) / (tolerances[-1] * (abs(r) if relative else 1)) for g, r in means
        )
        rise = max(e - slow, 0)
        # The mean rise is stored times t, so that a new tolerance counts at once.
        t = tolerances[-1]
        swing += max(1 / k, c.slow_weight) * (t * rise * same_batch - swing)
        swing = min(swing, c.error_range * c.target_excess / c.mean_rise_weight * t)
        ahead = e + c.rise_weight * rise + c.mean_rise_weight * swing / t
        error = min(max(ahead / c.target_excess, 1 / c.error_range), c.error_range)
        if z is None:
            z = math.log(c.initial_ratio_outside if e > 1 else c.initial_ratio)
        if error <= 1 or e >= c.held_share * slow:
            z = min(
                max(z + 0.5 * math.log(error) / c.integral_steps, 0),
                math.log(c.max_ratio),
            )
        w = min(math.exp(z + c.proportional_gain * (error - 1)), c.max_ratio)
        stalled = (
            stalled + 1
            if w >= c.max_ratio / 10 and e > 1 and e >= c.stalled_share * slow
            else 0
        )
        norm = max(
            mean(upper, c.slow_weight), (upper[-1] or 0) / c.max_upper_gradient_ratio
        )
        yield (
            (w, norm / mean(lower, c.slow_weight), e),
            stalled >= max(c.rescue_steps, c.rescue_share * k),
        )


def sequence(seed, steps=400, number=False):
    """Losses that wander, rise and stay outside; norms that jump and vanish; a tolerance that changes."""
    generator, excess = np.random.default_rng(seed), 0.0 if seed % 2 else 8.0
    for t in range(steps):
        excess += 0.1 * (5 * (150 < t < 280) + 0.5 - excess) + 0.1 * generator.normal()
        reference = 0.3 if number else 0.3 + 0.1 / (1 + t)
        upper, lower = (
            generator.uniform(0.5, 1.5, 2) * (30 if t % 50 == 49 else 1) * (t % 7 != 3)
        )
        loss = reference + 0.01 * (excess + 0.2 * generator.normal())
        yield (
            float(loss),
            reference,
            0.01 if t < 300 else 0.02,
            float(upper),
            float(lower),
        )


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_rule_is_its_equations(seed, relative):
    number = seed > 1
    rows, memory, returns = list(sequence(seed, number=number)), initial_memory(), []
    rows = [(*row[:2], row[2] / 0.3, *row[3:]) for row in rows] if relative else rows
    for row, (numbers, lost) in zip(
        rows, plainly(rows, relative, not number), strict=True
    ):
        memory, reading = follow(memory, *row, relative=relative, same_batch=not number)
        np.testing.assert_allclose(
            [reading.ratio, reading.unit, reading.excess],
            numbers,
            rtol=1e-9,
            atol=1e-12,
        )
        assert needs_return(memory) == lost
        returns.append(lost)
    assert 0 < sum(returns) < len(rows)


norms = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))
losses = st.one_of(norms, norms.map(lambda x: -x))
rows_of = st.lists(
    st.tuples(losses, losses, st.floats(1e-12, 1e12), norms, norms),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(rows_of, st.booleans())
def test_finite_in_finite_out_and_within_bounds(rows, relative):
    memory = initial_memory()
    for row in rows:
        before, (memory, reading) = memory, follow(memory, *row, relative=relative)
        assert all(math.isfinite(x) for x in (*memory, *reading))
        assert 1 <= memory.integral_ratio <= DEFAULT.max_ratio
        assert (
            math.exp(-DEFAULT.proportional_gain) <= reading.ratio <= DEFAULT.max_ratio
        )
        assert reading.unit > 0
        check(memory)
        assert math.isfinite(follow(initial_memory(), *row[:4], 5e-324)[1].unit)
        assert follow(Memory(*map(float, before)), *row, relative=relative) == (
            memory,
            reading,
        )  # all that is to save


@settings(max_examples=100, deadline=None)
@given(rows_of, st.booleans(), st.integers(-60, 60), st.integers(-60, 60))
def test_units_cancel(rows, relative, g, f):
    """Exactly, if they are powers of two."""
    one, other = initial_memory(), initial_memory()
    for loss, reference, tolerance, upper, lower in rows:
        one, first = follow(
            one, loss, reference, tolerance, upper, lower, relative=relative
        )
        scaled = (
            loss * 2.0**g,
            reference * 2.0**g,
            tolerance * (1 if relative else 2.0**g),
        )
        other, second = follow(
            other, *scaled, upper * 2.0**f, lower * 2.0**g, relative=relative
        )
        assert (second.ratio, second.excess) == (first.ratio, first.excess)
        if one.upper_norm and one.lower_norm:
            assert second.unit == first.unit * 2.0 ** (f - g)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.1, 10),
    st.floats(0.001, 1),
    st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_share_is_a_tolerance_of_that_size(size, share, excess, negative):
    reference, one, other = (
        -size if negative else size,
        initial_memory(),
        initial_memory(),
    )
    for e in excess:
        loss = reference + share * size * e
        one, first = follow(one, loss, reference, share, 1.0, 1.0, relative=True)
        other, second = follow(other, loss, reference, share * size, 1.0, 1.0)
        # The mean rise is stored in the unit of the tolerance, so the last bits differ.
        assert first == pytest.approx(second, rel=1e-9)


# --- every library ---------------------------------------------------------------------------------------------------

LIBRARIES = {
    "python": float,
    "numpy": np.float32,
    "torch": lambda x: torch.tensor(x, dtype=torch.float32),
    "jax": jnp.float32,
}
DOUBLE = {
    "numpy": lambda x: np.array([x, 2 * x]),
    "torch": partial(torch.tensor, dtype=torch.float64),
    "jax": jnp.array,
}


def trace(make, rows, relative=False):
    """Memory and reading of each step as numbers: of the first run, where there are several."""
    step, memory, seen = partial(follow, relative=relative), initial_memory(), []
    step = jax.jit(step) if isinstance(make(0.0), jax.Array) else step
    for row in rows:
        memory, reading = step(memory, *map(make, row))
        seen.append([np.asarray(x).ravel()[0].item() for x in (*memory, *reading)])
    return np.array(seen)


RATIO = len(Memory._fields)
UNIT = RATIO + 1


@pytest.mark.parametrize("library", DOUBLE)
@pytest.mark.parametrize("relative", [False, True])
def test_all_libraries_agree(library, relative):
    with jax.enable_x64(True):
        found = trace(DOUBLE[library], sequence(0), relative)
    np.testing.assert_allclose(
        found, trace(float, sequence(0), relative), rtol=1e-8, atol=1e-11
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("relative", [False, True])
def test_what_is_zero_does_no_harm(library, relative):
    """Either gradient, or both, or both losses, of which a share is nothing: from the beginning, or later.

    A gradient of 0 does not tell its size: s is made of those that were seen.
    """
    for zeros, unseen in (((3,), 1.0), ((4,), 2.0), ((3, 4), 1.0), ((0, 1), 2 / 3)):
        row = (0.301, 0.3, 0.02, 2.0, 3.0)
        rest = tuple(0.0 if i in zeros else x for i, x in enumerate(row))
        for rows, units in (
            ([rest] * 50 + [row], [unseen, 2 / 3]),
            ([row] * 20 + [rest] * 50, [2 / 3, 2 / 3]),
        ):
            found = trace(LIBRARIES[library], rows, relative)
            assert np.isfinite(found).all()
            np.testing.assert_allclose(found[[0, -1], UNIT], units, rtol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_share_of_nothing_puts_g_first(library):
    """With a reference of 0 whatever g is above it, is too much."""
    found = trace(
        LIBRARIES[library],
        [(1e-3 * (t > 1), 0.0, 0.02, 1.0, 1.0) for t in range(200)],
        relative=True,
    )
    assert found[-1, RATIO] == DEFAULT.max_ratio


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_keep_their_type(dtype):
    torch_type, rows = getattr(torch, dtype), list(sequence(0))[:3]
    with jax.enable_x64(True):
        for make in (
            np.dtype(dtype).type,
            partial(torch.tensor, dtype=torch_type),
            partial(jnp.asarray, dtype=dtype),
        ):
            for memory in (initial_memory(), Memory(*map(make, initial_memory()))):
                for row in rows:
                    memory, reading = follow(memory, *map(make, row), relative=True)
                assert {
                    str(x.dtype).split(".")[-1]
                    for x in (*memory, *reading, *after_return(memory))
                } == {dtype}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_single_precision_reaches_far(library, scale):
    rows = [
        (*(scale * x for x in row[:3]), row[3], scale * row[4]) for row in sequence(0)
    ]
    np.testing.assert_allclose(
        trace(LIBRARIES[library], rows)[:150, RATIO],
        trace(float, rows)[:150, RATIO],
        rtol=0.02,
    )


def test_runs_side_by_side_are_separate_runs():
    """As NumPy arrays, and under vmap and scan."""
    runs = np.array([list(sequence(seed))[:150] for seed in (0, 1)])
    apart = [trace(float, rows.tolist())[:, RATIO] for rows in runs]
    together, seen = initial_memory(), []
    for row in runs.transpose(1, 2, 0):
        together, reading = follow(together, *row)
        seen.append(reading.ratio)
    np.testing.assert_allclose(np.transpose(seen), apart, rtol=1e-9)
    with jax.enable_x64(True):
        start = Memory(*map(jnp.float64, initial_memory()))
        scan = jax.vmap(
            lambda rows: (
                jax.lax.scan(lambda memory, row: follow(memory, *row), start, rows)[
                    1
                ].ratio
            )
        )
        np.testing.assert_allclose(jax.jit(scan)(jnp.array(runs)), apart, rtol=1e-9)


# --- the module ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "steps",
        "integral_ratio",
        "mean_rise",
        "upper_norm",
        "lower_norm",
        "stalled_steps",
        "returns",
    ],
)
def test_a_memory_that_cannot_be_is_named(name):
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match=rf"^{name}={wrong} must be at least 0$"):
            check(initial_memory()._replace(**{name: wrong}))


def test_a_new_tolerance_counts_from_the_next_step_on():
    """After a hundred steps far outside a tight tolerance, a wide one is judged as if nothing had been outside."""

    def ratio_under_wide_tolerance(first_tolerance):
        memory = initial_memory()
        for k in range(100):
            loss = 1.0 + 0.001 * (k % 10)
            memory, _ = follow(memory, loss, 1.0, first_tolerance, 1.0, 1.0)
        memory = memory._replace(integral_ratio=30.0)
        return follow(memory, 1.001, 1.0, 1.0, 1.0, 1.0)[1].ratio

    expected = ratio_under_wide_tolerance(1.0)
    assert ratio_under_wide_tolerance(1e-5) == pytest.approx(expected, rel=1e-2)


def test_one_batch_far_outside_is_forgotten_in_some_hundred_steps():
    """w after a batch that is 10⁶ tolerances above its reference, in a run whose excess is 0.4."""

    def ratios(jump):
        memory = initial_memory()
        for k in range(800):
            loss = 1.0 + (jump if k == 400 else 0.004)
            memory, reading = follow(memory, loss, 1.0, 0.01, 1.0, 1.0)
            yield reading.ratio

    undisturbed = list(ratios(0.004))
    disturbed = list(ratios(1e4))
    assert disturbed[401] > 10 * undisturbed[401]
    assert disturbed[-1] < 1.5 * undisturbed[-1]


def test_the_rule_stays_small():
    """A new constant or field has to replace another. Lines without blank ones."""
    lines = (SOURCES / "tolerance.py").read_text(encoding="utf-8").splitlines()
    assert len(Constants._fields) <= 16
    assert len(Memory._fields) <= 12
    assert sum(bool(line.strip()) for line in lines) <= 220


def test_no_other_module_reads_the_memory():
    """By names that nothing else in the package has."""
    own = {"stalled_steps", "slow_loss", "mean_rise", "slow_reference"}
    assert own < set(Memory._fields)
    for path in SOURCES.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        named = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & own
        assert not named or path == SOURCES / "tolerance.py", path
