"""A run stopped and resumed equals the run never stopped, bit for bit, however it was stopped."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import tiebreak
from tiebreak import Average, FiniteSum, Gaussian, Status, methods, minimize
from tiebreak.solver.checkpoint import State

PAPER = tiebreak.problems.paper()
DATA = np.random.default_rng(5).standard_normal((30, 3))


def paper_levels():
    return PAPER.upper, PAPER.lower, PAPER.x0


def per_sample_levels():
    problem = tiebreak.problems.paper(per_sample=True)
    return problem.upper, problem.lower, problem.x0


def finite_sum_levels():
    upper = FiniteSum(lambda x, i: x - DATA[i].mean(axis=0), n=30)
    lower = FiniteSum(lambda x, i: DATA[i] * (DATA[i] @ x - 1), n=30, per_example=True)
    return upper, lower, np.zeros(3)


LEVELS = {
    "paper": paper_levels,
    "per sample": per_sample_levels,
    "finite sum": finite_sum_levels,
}
METHODS = [
    *methods.METHODS.values(),
    methods.sdbgd.replace(name="averaged", estimator=Average(0.1)),
]


def assert_equal(a, b):
    for point in ("last", "selected"):
        for name in (
            "x",
            "step",
            "direction_squared",
            "lower_gradient_squared",
            "stationarity_squared",
        ):
            first, second = (
                getattr(getattr(a, point), name),
                getattr(getattr(b, point), name),
            )
            np.testing.assert_array_equal(first, second, err_msg=f"{point}.{name}")
    assert np.array_equal(a.history.step, b.history.step)
    for name in a.history.columns:
        np.testing.assert_array_equal(a.history[name], b.history[name], err_msg=name)
    assert np.array_equal(a.calls, b.calls)
    assert a.status == b.status


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("runs", [None, 3])
def test_resumed_equals_uninterrupted(levels, method, runs, tmp_path):
    upper, lower, x0 = LEVELS[levels]()
    options = {"method": method, "runs": runs, "seed": 7, "keep_iterates": True}
    whole = minimize(upper, lower, x0, steps=35, **options)
    part = minimize(upper, lower, x0, steps=13, **options)
    for steps in (20, 35):
        part.save(tmp_path / "part.npz")
        part = minimize(
            upper, lower, method=method, steps=steps, resume=tmp_path / "part.npz"
        )
    assert_equal(part, whole)


def test_stopped_in_the_middle_of_a_block(tmp_path):
    """Tokens are drawn 256 steps ahead; a callback stops at 100 and the generators must stand there."""
    options = {"method": "vr_pr_sdbpg", "runs": 4, "seed": 0, "record": 3}
    whole = minimize(*paper_levels(), steps=700, **options)
    part = minimize(
        *paper_levels(), steps=700, callback=lambda r: r.step in (100, 400), **options
    )
    assert part.steps.tolist() == [100] * 4
    part.save(tmp_path / "a")
    part = minimize(
        PAPER.upper,
        PAPER.lower,
        resume=tmp_path / "a",
        callback=lambda r: r.step in (100, 400),
    )
    assert part.steps.tolist() == [400] * 4
    part.save(tmp_path / "a")
    assert_equal(minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "a"), whole)


def test_load_gives_the_result_back(tmp_path):
    result = minimize(*paper_levels(), steps=20, runs=2, seed=3, keep_iterates=True)
    result.save(tmp_path / "deep" / "r.npz")
    loaded = tiebreak.load(tmp_path / "deep" / "r.npz")
    assert_equal(result, loaded)
    assert np.array_equal(result.history.x, loaded.history.x)
    assert loaded.message == result.message
    assert loaded.seed == 3


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
def test_a_dead_run_stays_dead_and_the_others_go_on(tmp_path):
    class Trap(Gaussian):
        def gradient(self, x, token):
            return np.where(x[:, :1] > 4, np.nan, super().gradient(x, token))

    upper, lower = (
        Trap(lambda x: x - 9, 8.0, vectorized=True),
        Gaussian(lambda x: 0 * x, 0.0, vectorized=True),
    )
    options = {"method": "vr_pr_sdbpg", "runs": 12, "seed": 1}
    whole = minimize(upper, lower, [0.0, 0.0], steps=60, **options)
    assert 0 < sum(s is Status.NON_FINITE for s in whole.status) < 12
    part = minimize(upper, lower, [0.0, 0.0], steps=30, **options)
    part.save(tmp_path / "r")
    resumed = minimize(upper, lower, resume=tmp_path / "r", steps=60)
    assert_equal(resumed, whole)
    assert resumed.faults == whole.faults


def test_budget_can_be_raised(tmp_path):
    whole = minimize(*paper_levels(), budget=10**6, seed=0)
    part = minimize(*paper_levels(), budget=10**4, seed=0)
    part.save(tmp_path / "r")
    assert_equal(
        minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "r", budget=10**6), whole
    )
    again = minimize(
        PAPER.upper, PAPER.lower, resume=tmp_path / "r"
    )  # the old limit: nothing left to do
    assert again.steps == part.steps
    assert again.status is Status.BUDGET


CHILD = """
import sys, time, tiebreak
problem = tiebreak.problems.paper()
def slow(record):
    time.sleep(0.0005)
fresh = dict(x0=problem.x0, method="vr_pr_sdbpg", runs=2, seed=9, steps=3000)
options = dict(resume=sys.argv[1]) if len(sys.argv) > 2 else fresh
print("started", flush=True)
tiebreak.minimize(problem.upper, problem.lower, checkpoint=sys.argv[1], checkpoint_every=50, callback=slow, **options)
"""


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """kill −9 at arbitrary moments, three times; the checkpoint is always whole."""
    path = tmp_path / "run.npz"
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    for attempt in range(3):
        arguments = [sys.executable, str(script), str(path)] + (
            ["resume"] if attempt else []
        )
        before = tiebreak.load(path).steps.max() if attempt else 0
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"started\n"
        deadline = time.monotonic() + 60
        while (
            not path.exists() or tiebreak.load(path).steps.max() <= before
        ) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.013 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        saved = tiebreak.load(path)
        assert saved.steps.max() > before
        assert saved.steps.max() % 50 == 0
        assert saved.status[0] is Status.RUNNING
    resumed = minimize(PAPER.upper, PAPER.lower, resume=path)
    assert_equal(
        resumed,
        minimize(*paper_levels(), method="vr_pr_sdbpg", runs=2, seed=9, steps=3000),
    )


def test_a_full_disk_ends_neither_the_run_nor_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    minimize(*paper_levels(), steps=20, seed=0, checkpoint=path, checkpoint_every=20)
    saved = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(
        RuntimeWarning, match="No space left.*; the run goes on"
    ) as caught:
        result = minimize(
            *paper_levels(), steps=21, seed=1, checkpoint=path, checkpoint_every=20
        )
    assert [str(w.message)[:34] for w in caught] == [
        f"checkpoint not written at step {k}:" for k in (20, 21)
    ]
    assert result.steps == 21
    assert path.read_bytes() == saved
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    with pytest.raises(OSError, match="No space left"):
        result.save(path)


def test_the_checkpoint_is_current_at_the_end_however_it_comes(tmp_path):
    path = tmp_path / "c"
    ended = minimize(
        *paper_levels(), steps=45, seed=0, checkpoint=path, checkpoint_every=20
    )
    assert_equal(tiebreak.load(path), ended)
    stopped = minimize(
        *paper_levels(),
        steps=45,
        seed=1,
        checkpoint=path,
        callback=lambda record: record.step == 7,
    )
    assert_equal(tiebreak.load(path), stopped)


def test_an_error_in_an_oracle_loses_nothing(tmp_path):
    def broken(x):
        if broken.calls == 30:
            raise RuntimeError("the data loader died")
        broken.calls += 1
        return x

    broken.calls = 0
    with pytest.raises(RuntimeError, match="data loader"):
        minimize(
            broken,
            PAPER.lower,
            [1.0, 1.0],
            steps=90,
            seed=0,
            checkpoint=tmp_path / "c",
            record=None,
        )
    saved = tiebreak.load(tmp_path / "c")
    assert saved.steps > 0
    resumed = minimize(lambda x: x, PAPER.lower, resume=tmp_path / "c")
    assert np.array_equal(
        resumed.x,
        minimize(lambda x: x, PAPER.lower, [1.0, 1.0], steps=90, seed=0, record=None).x,
    )


def saver(path, then):
    """A process that is in the middle of writing `path`, then does as told; it has said so when this returns."""
    code = f"""
import sys
from tiebreak.files import atomic
with atomic({str(path)!r}, "w") as file:
    file.write("half")
    file.flush()
    print("writing", flush=True)
    {then}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "writing\n"
    return process


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path):
    path = tmp_path / "run.npz"
    with saver(path, "sys.stdin.read()") as killed:
        killed.kill()
    assert len(list(tmp_path.iterdir())) == 1
    for name in (
        ".run.npz.backup",
        ".run.npz.12345678",
        ".other.npz.abcdefgh.tiebreak",
    ):
        (tmp_path / name).write_text("not ours")
    minimize(*paper_levels(), steps=5, seed=0).save(path)
    names = {
        ".run.npz.backup",
        ".run.npz.12345678",
        ".other.npz.abcdefgh.tiebreak",
        "run.npz",
    }
    assert {p.name for p in tmp_path.iterdir()} == names


def test_those_who_save_at_the_same_time_leave_each_other_alone(tmp_path):
    """Several processes write one file again and again, each sweeping before it writes: none loses its own."""
    path = tmp_path / "run.npz"
    slow = saver(path, "sys.stdin.read()")
    many = "[atomic_write() for _ in range(200)]"
    code = f"""
from tiebreak.files import atomic
def atomic_write():
    with atomic({str(path)!r}, "w") as file:
        file.write("whole")
{many}
"""
    others = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for other in others:
        _, said = other.communicate(timeout=60)
        assert other.returncode == 0, said
    assert path.read_text() == "whole"
    slow.communicate("", timeout=60)  # now it finishes
    assert slow.returncode == 0
    assert path.read_text() == "half"
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "sdbpg"}, "method='SDBPG' must be 'SDBGD'"),
        (
            {
                "method": methods.sdbgd.replace(
                    schedule=methods.sdbgd.schedule.replace(barrier=0.1)
                )
            },
            "method='SDBGD' is another one; .* was made with a SDBGD of another rule, estimator or schedule",
        ),
        ({"x0": [1.0, 2.0, 3.0]}, r"x0 has shape \(3,\)"),
        ({"x0": [1.0, 2.0]}, "x0 differs from the start of"),
        ({"seed": 5}, "seed=5 must be that of"),
        ({"runs": 3}, "runs=3 must be those of"),
        ({"budget": 0}, "budget=0 must be a whole number ≥ 1"),
    ],
)
def test_resuming_something_else_is_refused(change, message, tmp_path):
    minimize(*paper_levels(), method="sdbgd", steps=5, seed=0, runs=2).save(
        tmp_path / "r"
    )
    with pytest.raises(ValueError, match=message):
        minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "r", **change)


def test_a_method_of_your_own_must_be_given_again(tmp_path):
    mine = methods.sdbgd.replace(name="mine")
    minimize(*paper_levels(), method=mine, steps=5, seed=0).save(tmp_path / "r")
    with pytest.raises(ValueError, match="a method of your own; give it again"):
        minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "r", steps=9)
    assert (
        minimize(
            PAPER.upper, PAPER.lower, method=mine, resume=tmp_path / "r", steps=9
        ).steps
        == 9
    )


@pytest.mark.parametrize("content", [b"", b"not a result", b"PK\x03\x04 half a file"])
def test_a_file_that_is_no_result_is_named(content, tmp_path):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"bad\.npz' is not a result saved by tiebreak"
    ):
        tiebreak.load(path)
    with pytest.raises(FileNotFoundError):
        minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "missing.npz")


# ------------------------------------------------------------------------------------------- files made by hand


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """What a file holds: the text of its description, read, and its arrays. One of three runs has ended."""
    path = tmp_path_factory.mktemp("saved") / "r.npz"
    upper, lower = (
        Gaussian(lambda x: x - 1, 1.0, lambda x: (x @ x) / 2),
        Gaussian(lambda x: x, 1.0),
    )
    wild = Gaussian(lambda x: np.where(x > 1.5, np.nan, x - 1), 1.0)
    options = {"method": "vr_pr_sdbpg", "runs": 3, "seed": 5, "keep_iterates": True}
    for level in (upper, wild):
        minimize(level, lower, [1.0, 1.0], steps=40, **options).save(path)
    with np.load(path) as file:
        return json.loads(str(file["meta"])), {
            name: file[name] for name in file.files if name != "meta"
        }


def by_hand(path, meta, arrays):
    with open(path, "wb") as file:
        np.savez(file, meta=np.array(json.dumps(meta)), **arrays)


def refused(path, message=""):
    """Reading it, and going on from it, end with one sentence that names the file."""
    levels = Gaussian(lambda x: x - 1, 1.0), Gaussian(lambda x: x, 1.0)
    for attempt in (
        lambda: tiebreak.load(path),
        lambda: minimize(*levels, resume=path, steps=45),
    ):
        with pytest.raises(ValueError, match=rf"made\.npz' .*{message}"):
            attempt()


ODD = (
    None,
    True,
    -1,
    1.5,
    "odd",
    [],
    [0, 0],
    [99],
    ["odd"],
    {},
    {"odd": 1},
    {"upper": 1, "lower": 1},
)


def test_every_part_of_a_description_is_checked(parts, tmp_path):
    """Each entry missing, and each in turn an odd value: either it is legal, or it is refused and the file named."""
    meta, arrays = parts
    path, legal = tmp_path / "made.npz", 0
    levels = Gaussian(lambda x: x - 1, 1.0), Gaussian(lambda x: x, 1.0)
    places = [(meta, key) for key in meta] + [
        (meta["configuration"], key) for key in meta["configuration"]
    ]
    for inner, key in places:
        whole = dict(meta) | (
            {}
            if inner is meta
            else {"configuration": {k: v for k, v in inner.items() if k != key}}
        )
        if inner is meta:
            del whole[key]
        by_hand(path, whole, arrays)
        refused(path)
        for odd in ODD:
            changed = dict(meta) | (
                {key: odd}
                if inner is meta
                else {"configuration": dict(inner) | {key: odd}}
            )
            by_hand(path, changed, arrays)
            try:
                tiebreak.load(path)
                minimize(*levels, resume=path, steps=45)
                legal += 1
            except ValueError as error:
                said = str(error)
                assert "made.npz" in said, (key, odd, said)
    assert 0 < legal < len(places) * len(ODD) / 4


def test_every_array_is_checked(parts, tmp_path):
    meta, arrays = parts
    path = tmp_path / "made.npz"
    assert {
        "x",
        "history.x",
        "history.multiplier",
        "memory.lower.0",
        "last_measures.direction_squared",
    } <= set(arrays)
    for name, array in arrays.items():
        for odd in (
            array[:1][:0],
            array.astype(str),
            array.astype(np.complex128),
            np.array(3),
        ):
            by_hand(path, meta, arrays | {name: odd})
            refused(path, re.escape(name.partition(".")[0]))
        by_hand(path, meta, arrays | {name: array[..., None]})
        if name.startswith("memory"):  # only the method knows what it needs
            with pytest.raises(
                ValueError, match=r"made\.npz' remembers .*; Storm needs"
            ):
                minimize(
                    *(Gaussian(lambda x: x, 1.0) for _ in range(2)),
                    resume=path,
                    steps=45,
                )
        else:
            refused(path, re.escape(name.partition(".")[0]))
        if (
            name.startswith(("history.step", "history.mult", "history.x", "memory"))
            or "." not in name
        ):
            by_hand(
                path,
                meta,
                {other: value for other, value in arrays.items() if other != name},
            )
            refused(path, f"there is no '{re.escape(name)}'")


@pytest.mark.parametrize(
    ("place", "odd", "message"),
    [
        (
            "alive",
            [0, 3],
            r"alive is \[0, 3\]; it must be different numbers below 3, in order",
        ),
        ("alive", [1, 0], "alive is"),
        ("alive", [-1], "alive is"),
        (
            "status",
            ["STEPS", "STEPS", "FINE"],
            "status is .*; it must be 3 names of a status",
        ),
        ("faults", [[7, "why"]], "faults is"),
        ("faults", [[0, 3]], "faults is"),
        ("faults", [3], "cannot unpack"),
        ("streams", {"upper": []}, "there is no 'streams.lower'"),
        ("k", 2.0, "k is 2.0; it must be a whole number ≥ 0"),
        ("weight", float("nan"), "weight is nan"),
    ],
)
def test_what_is_wrong_is_said(place, odd, message, parts, tmp_path):
    meta, arrays = parts
    by_hand(tmp_path / "made.npz", meta | {place: odd}, arrays)
    refused(tmp_path / "made.npz", message)


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"text"', "{}", "{", "[" * 100_000]
)
def test_a_description_that_is_none(text, parts, tmp_path):
    path = tmp_path / "made.npz"
    with open(path, "wb") as file:
        np.savez(file, meta=np.array(text), **parts[1])
    refused(path)


# ------------------------------------------------------------------------------------------- oracles that tell less


@pytest.mark.parametrize(
    ("upper", "lower", "lost"),
    [
        (Gaussian(lambda x: x - 1, 0.1), None, "upper_value"),
        (None, Gaussian(lambda x: x, 0.1), "lower_value"),
        (
            "bare",
            None,
            "direction_squared, stationarity_squared, exact_multiplier, upper_value",
        ),
    ],
)
def test_an_oracle_that_lost_its_value_is_refused_before_any_step(
    upper, lower, lost, tmp_path
):
    """The history could not be gone on with."""
    made = []

    class Bare:
        def sample(self, rng, size):
            made.append(size)
            return rng.standard_normal(2)

        def gradient(self, x, token):
            return x - 1 + token

    full = [
        Gaussian(lambda x, c=c: x - c, 0.1, lambda x, c=c: (x - c) @ (x - c) / 2)
        for c in (1, 0)
    ]
    minimize(*full, [1.0, 1.0], steps=10, seed=0).save(tmp_path / "r")
    given = [Bare() if upper == "bare" else upper or full[0], lower or full[1]]
    with pytest.raises(
        ValueError,
        match=f"the oracles no longer give {lost}, which the history of .* holds",
    ):
        minimize(*given, resume=tmp_path / "r", steps=20)
    assert not made
    minimize(*full, [1.0, 1.0], steps=10, seed=0, record=None).save(
        tmp_path / "r"
    )  # no history, nothing to lose
    assert minimize(*given, resume=tmp_path / "r", steps=20).steps == 20


def test_an_oracle_that_tells_more_fills_the_history_from_there_on(tmp_path):
    less, more = (
        Gaussian(lambda x: x - 1, 0.1),
        Gaussian(lambda x: x - 1, 0.1, lambda x: (x - 1) @ (x - 1) / 2),
    )
    lower = Gaussian(lambda x: x, 0.1)
    minimize(less, lower, [1.0, 1.0], steps=10, seed=0, record=1).save(tmp_path / "r")
    history = minimize(more, lower, resume=tmp_path / "r", steps=20).history
    assert np.isnan(history.upper_value[:10]).all()
    assert np.isfinite(history.upper_value[10:]).all()
    assert len(history) == 21


def test_blocks_in_which_a_level_draws_nothing():
    """Upper batches are held for four steps and runs stop after every one: some go on with held batches alone."""
    problem = tiebreak.problems.paper()
    method = tiebreak.methods.lazy_penalty.replace(upper_hold=4)
    options = {"method": method, "runs": 3, "seed": 0}
    whole = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, steps=7, **options
    )
    part = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, steps=1, **options
    )
    for steps in range(2, 8):
        part = tiebreak.minimize(
            problem.upper, problem.lower, method=method, resume=part, steps=steps
        )
    np.testing.assert_array_equal(part.x, whole.x)


def test_saving_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """Without a number of its own, a run with a long history is saved less often than every 1000 steps."""
    saved = []
    save = State.save

    def slow(state, path):
        saved.append(time.perf_counter())
        time.sleep(0.05)
        save(state, path)

    monkeypatch.setattr(State, "save", slow)
    begin = time.perf_counter()
    minimize(*paper_levels(), steps=20_000, seed=0, checkpoint=tmp_path / "run")
    elapsed = time.perf_counter() - begin
    # One save at the first thousand steps, one at the end, and a tenth of the time in between.
    assert len(saved) <= 2 + elapsed / (11 * 0.05)
    saved.clear()
    minimize(
        *paper_levels(),
        steps=5000,
        seed=0,
        checkpoint=tmp_path / "other",
        checkpoint_every=1000,
    )
    assert len(saved) == 6
