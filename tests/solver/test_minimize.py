"""The loop: runs, budgets, histories, callbacks, faults. test_reference checks trajectories."""

import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

import tiebreak
from tiebreak import Exact, Gaussian, Schedule, Status, methods, minimize
from tiebreak.solver.budget import calls
from tiebreak.solver.step import take_step

PAPER = tiebreak.problems.paper()
QUICK = Schedule(
    step_size=0.05, barrier=0.5, regularizer=0.1, upper_batch=2, lower_batch=3
)
METHOD = methods.sdbgd.replace(schedule=QUICK)


def solve(**options):
    given = {"method": "sdbgd", "steps": 40, "seed": 1} | options
    return minimize(PAPER.upper, PAPER.lower, PAPER.x0, **given)


def same_history(a, b, run_a=slice(None), run_b=slice(None)):
    assert np.array_equal(a.step, b.step)
    assert np.array_equal(a.calls, b.calls)
    assert a.columns.keys() == b.columns.keys()
    for name in a.columns:
        np.testing.assert_array_equal(
            a.columns[name][:, run_a], b.columns[name][:, run_b], err_msg=name
        )


@pytest.mark.parametrize("name", methods.METHODS)
def test_vectorised_runs_are_single_runs_bit_for_bit(name):
    together = solve(method=name, steps=600, runs=10)
    for run in (0, 3, 9):
        alone = solve(method=name, steps=600, runs=[run])
        assert np.array_equal(together.x[run], alone.x[0])
        assert np.array_equal(together.selected.x[run], alone.selected.x[0])
        assert together.selected.step[run] == alone.selected.step[0]
        same_history(together.history, alone.history, [run], [0])
    assert np.array_equal(
        together.x[0], solve(method=name, steps=600).x
    )  # no runs asked for: run 0, without the axis


def test_a_step_of_a_few_numbers_is_made_by_python_as_numpy_makes_it():
    """Two rows take NumPy's way; one row of up to four numbers takes Python's: every bit is the same."""
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e308, -1e308])
    with np.errstate(all="ignore"):
        for _ in range(300):
            x, a, b = rng.normal(size=(3, 1, 3)) * 10.0 ** rng.integers(
                -300, 300, size=(3, 1, 3)
            )
            for array in (x, a, b):
                array[rng.random(array.shape) < 0.1] = rng.choice(special)
            multiplier, pace = (
                float(abs(rng.normal()) * 10.0 ** rng.integers(-9, 9)),
                float(-rng.random()),
            )
            one, finite = take_step(x, a, b, multiplier, pace)
            two, both = take_step(
                *(np.repeat(array, 2, axis=0) for array in (x, a, b)),
                np.full(2, multiplier),
                pace,
            )
            np.testing.assert_array_equal(one, two[:1], strict=True)
            np.testing.assert_array_equal(
                np.signbit(one[~np.isnan(one)]), np.signbit(two[:1][~np.isnan(one)])
            )
            assert finite is both is bool(np.isfinite(one).all())


def test_a_rule_gets_parameters_alone():
    """A step's parameters are a tuple: its `count` is none of them, nor is what it derives from them."""
    seen = []

    def rule(fg, gg, barrier, count=3, index=4, weight=5):
        seen.append((count, index, weight))
        return barrier + 0 * fg

    for others in ({}, {"weight": 6.0}):
        solve(method=methods.Method("own", rule, QUICK.replace(others=others)), steps=2)
        weight = others.get("weight", 5)
        assert all(
            count == 3 and index == 4 and np.all(own == weight)
            for count, index, own in seen
        )
        seen.clear()


def test_runs_are_distinct_and_seeds_matter():
    result = solve(runs=5)
    assert len({row.tobytes() for row in result.x}) == 5
    assert not np.array_equal(result.x, solve(runs=5, seed=2).x)
    assert np.array_equal(result.x, solve(runs=5, seed=np.random.SeedSequence(1)).x)
    assert np.array_equal(solve(seed=[1, 2]).x, solve(seed=[1, 2]).x)


def test_a_fresh_seed_is_kept_and_reproduces():
    result = solve(seed=None)
    assert np.array_equal(result.x, solve(seed=result.seed).x)


def test_streams_are_independent_of_one_another():
    """More upper samples, more runs, or a per-sample lower oracle leave the other streams where they were."""
    seen = []

    class Spy(Gaussian):
        def gradient(self, x, token):
            seen[-1].append(token.copy())
            return super().gradient(x, token)

    def lower_noise(upper_batch):
        seen.append([])
        lower = Spy(lambda x: x, 1.0, shape=(2,))
        method = METHOD.replace(schedule=QUICK.replace(upper_batch=upper_batch))
        upper = Gaussian(lambda x: x, 1.0, per_sample=True)
        minimize(upper, lower, [1.0, 1.0], method=method, steps=20, seed=0)
        return np.array(seen[-1])

    assert np.array_equal(lower_noise(1), lower_noise(50))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 2), (2, 1, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_shape_and_both_precisions(shape, dtype):
    x0 = np.ones(shape, dtype)
    upper = Gaussian(lambda x: x - 2, 0.1, lambda x: 0.5 * np.sum((x - 2) ** 2))
    lower = Gaussian(lambda x: 0 * x, 0.0, lambda x: 0.0)
    result = minimize(upper, lower, x0, method=METHOD, steps=200, seed=0)
    assert result.x.shape == shape
    assert result.x.dtype == dtype
    assert result.selected.x.shape == shape
    assert np.abs(result.x - 2).max() < 0.2  # g is flat: f alone decides
    batched = minimize(upper, lower, x0, method=METHOD, steps=200, seed=0, runs=3)
    assert batched.x.shape == (3, *shape)
    assert np.array_equal(batched.x[0], result.x)


def test_vectorized_and_plain_functions_agree():
    def options(vectorized):
        return {"sigma": 0.3, "shape": (2,), "vectorized": vectorized}

    center = np.array([1.0, -2.0])
    results = [
        minimize(
            Gaussian(lambda x: x - center, **options(vectorized)),
            Gaussian(lambda x: x * np.array([1.0, 0.0]), **options(vectorized)),
            [2.0, 2.0],
            method="vr_pr_sdbpg",
            steps=300,
            runs=4,
            seed=0,
        )
        for vectorized in (True, False)
    ]
    assert np.array_equal(results[0].x, results[1].x)
    same_history(results[0].history, results[1].history)


def test_a_whole_step_fits_or_is_not_made():
    cost = [int(t) + int(t**2.5) for t in range(1, 40)]  # SDBGD's batches
    for budget in (
        2,
        8,
        500,
        12_345,
        sum(cost[:20]),
        sum(cost[:20]) - 1,
        sum(cost[:20]) + 1,
    ):
        result = solve(steps=None, budget=budget)
        expected = int(np.searchsorted(np.cumsum(cost), budget, side="right"))
        assert result.steps == expected
        assert result.calls == sum(cost[:expected]) <= budget
        assert result.status is Status.BUDGET
    storm = solve(method="storm_penalty", steps=None, budget=11)
    assert storm.calls == 2 + 2 * 2 * 2 == 10  # two points, but for the first step
    reduced = solve(method="vr_pr_sdbpg", steps=None, budget=11)
    assert reduced.calls == 2 * (1 + 1) + 2 * (1 + 2) == 10  # every step twice


def test_calls_made_are_calls_charged():
    counts = {"upper": 0, "lower": 0}

    class Counting:
        def __init__(self, level):
            self.level = level

        def sample(self, rng, size):
            return size, rng.standard_normal(2)

        def gradient(self, x, token):
            counts[self.level] += token[0]
            return x + token[1]

    for method in methods.METHODS.values():
        counts.update(upper=0, lower=0)
        result = minimize(
            Counting("upper"),
            Counting("lower"),
            [1.0, 1.0],
            method=method,
            steps=25,
            seed=0,
        )
        extra = (
            1 if method is methods.vr_pr_sdbpg else 0
        )  # its first step is charged twice
        assert result.upper_calls == counts["upper"] + extra
        assert result.lower_calls == counts["lower"] + extra


def test_the_first_limit_ends_the_run():
    assert solve(steps=5, budget=10**6).status is Status.STEPS
    assert solve(steps=500, budget=10**4).status is Status.BUDGET
    assert solve(steps=5).message == "all steps were made"


@pytest.mark.parametrize("record", ["log", 1, 7, None])
def test_recording_never_changes_the_run(record):
    plain, recorded = (
        solve(steps=300, record=1),
        solve(steps=300, record=record, keep_iterates=True),
    )
    assert np.array_equal(plain.x, recorded.x)
    assert np.array_equal(plain.selected.x, recorded.selected.x)
    assert plain.calls == recorded.calls
    if record is None:
        assert len(recorded.history) == 0
        return
    steps = recorded.history.step
    assert steps[0] == 0
    assert steps[-1] == 300
    assert np.all(np.diff(steps) > 0)
    rows = np.isin(plain.history.step, steps)
    for name in plain.history.columns:
        np.testing.assert_array_equal(plain.history[name][rows], recorded.history[name])
    assert np.array_equal(recorded.history.x[-1], recorded.x)
    if record == "log":
        assert len(steps) < 110


def test_history_holds_exact_residuals_of_its_iterates():
    history = solve(steps=30, record=1, keep_iterates=True).history
    for i, k in enumerate(history.step):
        a, b = (
            PAPER.upper.exact_gradient(history.x[i]),
            PAPER.lower.exact_gradient(history.x[i]),
        )
        parameters = methods.sdbgd.schedule.at(min(int(k), 29))
        factor = max(0.0, parameters.barrier * b @ b - a @ b) / (
            b @ b + parameters.regularizer
        )
        assert history.exact_multiplier[i] == pytest.approx(factor, rel=1e-12)
        assert history.direction_squared[i] == pytest.approx(
            np.sum((a + factor * b) ** 2), rel=1e-12
        )
        assert history.lower_gradient_squared[i] == pytest.approx(b @ b, rel=1e-12)
        assert history.stationarity_squared[i] == pytest.approx(
            a @ a - max(0.0, -a @ b) ** 2 / (b @ b), rel=1e-9
        )
        assert history.upper_value[i] == pytest.approx(
            np.sqrt(1 + np.sum((history.x[i] - (7.1, 1)) ** 2)), rel=1e-14
        )
    assert np.isnan(history.multiplier[-1])  # the last iterate starts no step
    assert not np.isnan(history.multiplier[:-1]).any()


def test_history_goes_to_pandas_csv_and_parquet(tmp_path):
    pd = pytest.importorskip("pandas")
    history = solve(runs=3, keep_iterates=True).history
    frame = history.to_pandas()
    assert len(frame) == 3 * len(history)
    assert list(frame.columns[:5]) == [
        "run",
        "step",
        "upper_calls",
        "lower_calls",
        "calls",
    ]
    assert np.array_equal(
        frame[frame.run == 2].lower_gradient_squared,
        history.lower_gradient_squared[:, 2],
    )
    assert np.array_equal(frame[frame.run == 1].x1, history.x[:, 1, 1])
    history.to_csv(tmp_path / "h.csv")
    history.to_parquet(tmp_path / "h.parquet")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "h.csv"), frame)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "h.parquet"), frame)


def test_unknown_measures_are_absent_not_invented():
    class Bare:
        def sample(self, rng, size):
            return rng.standard_normal(2)

        def gradient(self, x, token):
            return x + token

    result = minimize(
        Bare(), Exact(lambda x: x), [1.0, 1.0], method=METHOD, steps=10, seed=0
    )
    assert result.last.direction_squared is None
    assert result.last.upper_value is None
    assert result.last.lower_gradient_squared == pytest.approx(
        result.x @ result.x
    )  # g's exact gradient is known
    with pytest.raises(
        AttributeError, match="'direction_squared' was not recorded; recorded are"
    ):
        _ = result.history.direction_squared
    with pytest.raises(KeyError, match="recorded are"):
        result.history["nonsense"]


def test_callback_sees_every_step_and_may_stop():
    seen = []

    def look(record):
        seen.append(record)
        assert record.lower_gradient_squared == pytest.approx(
            np.sum(PAPER.lower.exact_gradient(record.x) ** 2)
        )
        return record.step == 17

    result = solve(callback=look)
    assert [record.step for record in seen] == list(range(1, 18))
    assert result.status is Status.CALLBACK
    assert result.steps == 17
    assert np.array_equal(seen[-1].x, result.x)
    assert seen[-1].direction_squared == result.last.direction_squared
    assert seen[-1].calls == result.calls
    assert np.array_equal(result.x, solve(steps=17).x)

    def stop(record):
        raise StopIteration

    assert solve(callback=stop, runs=2).steps.tolist() == [1, 1]


def test_records_are_immutable():
    def tamper(record):
        with pytest.raises(AttributeError):
            record.step = 0
        with pytest.raises(ValueError, match="read-only"):
            record.x[0] = 0
        with pytest.raises(ValueError, match="read-only"):
            record.multiplier[0] = 0
        with pytest.raises(AttributeError, match="known are"):
            _ = record.nonsense
        return True

    assert solve(callback=tamper, runs=2).steps.tolist() == [1, 1]


def test_an_oracle_that_works_in_place_fails_loudly():
    def careless(x):
        x -= 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        minimize(careless, lambda x: x, np.ones(3), method=METHOD, steps=3)


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("name", ["sdbgd", "vr_pr_sdbpg"])
def test_a_bad_gradient_stops_its_run_alone(bad, level, name):
    """Runs drift apart by noise; those that pass 5 meet a bad number there."""

    def drift(x):
        return x - 10

    class Trap(Gaussian):
        def gradient(self, x, token):
            return np.where(x[:, :1] > 5, bad, super().gradient(x, token))

    def problem(trapped):
        kinds = {
            side: Trap if trapped and side == level else Gaussian
            for side in ("upper", "lower")
        }
        options = {"sigma": 8.0, "shape": (2,), "vectorized": True}
        return kinds["upper"](drift, **options), kinds["lower"](
            lambda x: 0.01 * x, **options
        )

    method = methods.get(name).replace(
        schedule=methods.get(name).schedule.replace(upper_batch=1, lower_batch=1)
    )
    options = {
        "method": method,
        "steps": 60,
        "runs": 12,
        "seed": 3,
        "record": 1,
        "keep_iterates": True,
    }
    whole = minimize(*problem(False), [0.0, 0.0], **options)
    result = minimize(*problem(True), [0.0, 0.0], **options)
    passed = (whole.history.x[:-1, :, 0] > 5).any(axis=0)
    assert passed.any()
    assert not passed.all()
    for run in range(12):
        if not passed[run]:
            assert result.status[run] is Status.STEPS
            assert np.array_equal(result.x[run], whole.x[run])
            assert np.array_equal(result.selected.x[run], whole.selected.x[run])
            continue
        crossing = int(np.argmax(whole.history.x[:, run, 0] > 5))
        assert result.status[run] is Status.NON_FINITE
        assert result.steps[run] == crossing
        assert np.array_equal(result.x[run], whole.history.x[crossing, run])
        assert result.selected.step[run] <= max(crossing - 1, 0)
        assert (
            f"run {run} at step {crossing}: the {level} gradient is not finite"
            in result.message
        )
        charged = sum(sum(calls(method, method.at(k))) for k in range(crossing + 1))
        assert result.calls[run] == charged  # the failed step, too
        assert np.isnan(
            result.history.lower_gradient_squared[result.history.step > crossing, run]
        ).all()
        frame = result.history.tidy()
        assert frame["step"][frame["run"] == run].max() == crossing
    assert not result.success


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
def test_all_runs_may_fail():
    result = minimize(
        lambda x: x * np.nan, lambda x: x, [1.0], method=METHOD, steps=5, runs=3
    )
    assert [s.name for s in result.status] == ["NON_FINITE"] * 3
    assert np.array_equal(result.x, np.ones((3, 1)))
    assert result.steps.tolist() == [0, 0, 0]
    assert len(result.history) == 1
    single = minimize(lambda x: x * np.nan, lambda x: x, [1.0], method=METHOD, steps=5)
    assert single.status is Status.NON_FINITE
    assert "upper gradient is not finite" in single.message


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
def test_an_overflowing_step_is_a_fault_too():
    result = minimize(
        lambda x: 0 * x + 1e308,
        lambda x: 0 * x,
        [-1e308],
        method=METHOD.replace(schedule=QUICK.replace(step_size=10)),
        steps=5,
    )
    assert result.status is Status.NON_FINITE
    assert np.isfinite(result.x).all()
    assert "the step overflows" in result.message


def test_zero_gradients_are_defined():
    zero = minimize(
        lambda x: 0 * x, lambda x: 0 * x, [1.0, 2.0], method="dbgd", steps=5
    )
    assert np.array_equal(zero.x, [1.0, 2.0])
    assert (
        zero.last.stationarity_squared
        == zero.last.lower_gradient_squared
        == zero.last.direction_squared
        == 0
    )
    flat_f = minimize(
        lambda x: 0 * x, lambda x: x, [1.0, 2.0], method="sdbgd", steps=50
    )
    assert np.linalg.norm(flat_f.x) < np.linalg.norm(
        [1.0, 2.0]
    )  # where ∇f = 0, g still descends


def test_ctrl_c_returns_what_was_reached():
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background begins with Ctrl-C ignored

    def interrupt(record):
        if record.step == 12:
            signal.raise_signal(signal.SIGINT)

    result = solve(steps=10**6, callback=interrupt)
    assert result.status is Status.INTERRUPTED
    assert result.steps == 12
    assert np.array_equal(result.x, solve(steps=12).x)
    assert not result.success
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("stage", ["sample", "gradient"])
def test_an_interrupt_inside_an_oracle_leaves_a_whole_state(stage, tmp_path):
    class Impatient:
        def __init__(self, at):
            self.at, self.count = at, 0

        def count_down(self, here):
            self.count += here == stage
            if self.count == self.at:
                self.at = None
                raise KeyboardInterrupt

        def sample(self, rng, size):
            token = rng.standard_normal(2)
            self.count_down("sample")
            return token

        def gradient(self, x, token):
            self.count_down("gradient")
            return x + token

    lower = Gaussian(lambda x: x, 1.0)
    whole = minimize(
        Impatient(None),
        lower,
        [1.0, 1.0],
        method="vr_pr_sdbpg",
        steps=30,
        seed=0,
        record=1,
    )
    cut = minimize(
        Impatient(18),
        lower,
        [1.0, 1.0],
        method="vr_pr_sdbpg",
        steps=30,
        seed=0,
        record=1,
    )
    assert cut.status is Status.INTERRUPTED
    assert 0 < cut.steps < 30
    cut.save(tmp_path / "cut.npz")
    resumed = minimize(Impatient(None), lower, resume=tmp_path / "cut.npz")
    assert np.array_equal(resumed.x, whole.x)
    same_history(resumed.history, whole.history)


def test_works_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(solve().x))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], solve().x)


def test_progress_is_told_and_printed(capsys):
    told = []
    solve(steps=None, budget=10**7, progress=told.append)
    assert told[-1].calls <= 10**7
    assert 0.5 < told[-1].fraction <= 1
    assert [p.steps for p in told] == sorted(p.steps for p in told)
    solve(progress=True)
    said = capsys.readouterr().err
    assert said.startswith("100 %")
    assert "step 40" in said


def test_a_rule_of_your_own_goes_in():
    def mine(fg, gg, barrier, gain, k):
        return np.maximum(barrier - fg / (gg + gain), 0) * (k >= 0)

    schedule = QUICK.replace(others={"gain": lambda k: 1 / (k + 1)})
    result = minimize(
        PAPER.upper,
        PAPER.lower,
        PAPER.x0,
        method=tiebreak.Method("mine", mine, schedule),
        steps=30,
        runs=2,
    )
    assert result.success
    assert result.method == "mine"

    def scalar_minded(fg, gg, barrier):
        return max(barrier * gg - fg, 0.0) / gg

    with pytest.raises(
        ValueError,
        match=r"rule of method 'SDBGD' failed: .*truth value.*np.maximum and np.where instead",
    ):
        solve(method=METHOD.replace(rule=scalar_minded), runs=3)
    with pytest.raises(ValueError, match=r"rule of method 'SDBGD' failed: .*shape"):
        solve(method=METHOD.replace(rule=lambda fg, gg: np.ones(7)), runs=3)
    with pytest.raises(
        TypeError, match=r"rule of method 'SDBGD' failed: it returned array\(None"
    ):
        solve(method=METHOD.replace(rule=lambda fg, gg: None), runs=3)


def test_time_is_spent_on_steps_not_on_batches():
    """The Gaussian oracle's cost does not grow with the batch."""
    start = time.perf_counter()
    result = solve(
        method=METHOD.replace(schedule=QUICK.replace(lower_batch=10**15)), steps=100
    )
    assert result.lower_calls == 10**17
    assert time.perf_counter() - start < 5


# ------------------------------------------------------------------------------------------- runs that are the same


@pytest.mark.parametrize("name", ["dbgd", "vr_pr_sdbpg", "storm_penalty"])
@pytest.mark.parametrize("kind", ["function", "vectorized", "no noise"])
def test_without_noise_all_runs_are_the_same(name, kind, tmp_path):
    """Every run is the run that is made alone; the runs differ in the iterate that each selects."""

    def gradient(x):
        return x * np.array([1.0, 0.0])

    def upper(x):
        return x - 1

    def levels():
        if kind == "function":
            return upper, gradient
        kinds = Exact if kind == "vectorized" else partial(Gaussian, sigma=0.0)
        return kinds(upper, vectorized=True), kinds(gradient, vectorized=True)

    def go(runs, **options):
        options = {
            "method": name,
            "steps": 40,
            "seed": 3,
            "record": 1,
            "keep_iterates": True,
        } | options
        return minimize(*levels(), [2.0, 3.0], runs=runs, **options)

    called = []
    together = go(
        6,
        callback=lambda record: called.append(
            (record.x.copy(), record.multiplier.copy())
        ),
    )
    assert called[0][0].shape == (6, 2)
    assert called[0][1].shape == (6,)
    for run in range(6):
        alone = go([run])
        for point in ("last", "selected"):
            for column in ("x", "step", "direction_squared", "lower_gradient_squared"):
                one, all_of_them = (
                    getattr(getattr(alone, point), column),
                    getattr(getattr(together, point), column),
                )
                np.testing.assert_array_equal(one[0], all_of_them[run])
        np.testing.assert_array_equal(alone.history.x[:, 0], together.history.x[:, run])
        np.testing.assert_array_equal(
            alone.history.multiplier[:, 0], together.history.multiplier[:, run]
        )
    first = go(6, steps=15)
    first.save(tmp_path / "run.npz")
    resumed = minimize(*levels(), resume=tmp_path / "run.npz", steps=40, method=name)
    np.testing.assert_array_equal(resumed.x, together.x)
    np.testing.assert_array_equal(resumed.selected.x, together.selected.x)
    noisy = Gaussian(upper, 0.1, vectorized=True)
    assert (
        len(
            np.unique(
                minimize(noisy, levels()[1], [2.0, 3.0], runs=3, steps=5, seed=0).x[
                    :, 0
                ]
            )
        )
        == 3
    )


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
def test_runs_that_are_the_same_fail_together():
    result = minimize(
        lambda x: -x * 1e200,
        lambda x: x * 0,
        [1.0],
        method="dbgd",
        steps=9,
        runs=3,
        seed=0,
    )
    assert set(result.status) == {Status.NON_FINITE}
    assert len(result.faults) == 3
    assert len({fault.partition(" at ")[2] for fault in result.faults.values()}) == 1
    assert len(set(result.steps.tolist())) == 1


def test_an_oracle_that_a_callback_changes_is_asked_for_what_it_has_become():
    """Continuation: from step 5 on the upper gradient is x + 1 instead of x − 1, whatever the kind of oracle."""

    class Own:
        vectorized = True

        def sample(self, rng, size):
            return np.zeros(1)

        def gradient(self, x, token):
            return x - 1

    for oracle in (Own(), Exact(lambda x: x - 1, vectorized=True)):

        def change(record, oracle=oracle):
            if record.step == 5:
                oracle.gradient = lambda x, token=None: x + 1

        lower = Exact(np.zeros_like, vectorized=True)
        done = minimize(
            oracle,
            lower,
            np.zeros(2),
            method="penalty",
            steps=400,
            callback=change,
            seed=0,
        )
        assert np.all(done.x < -0.5)
