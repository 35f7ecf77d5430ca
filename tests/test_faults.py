"""Faults, for real: processes killed at random moments, full disks, two writers. Nothing is lost but what was in
flight, nothing corrupt is read as good, and what is gone on with equals what was never stopped, bit for bit.

`make faults` repeats each of them 50 times; here a few times must do.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT, call

import tiebreak
from tiebreak import Status, minimize
from tiebreak.studies.engines import opened
from tiebreak.studies.store import Store
from tiebreak.studies.sweeps import sweep
from tiebreak.studies.task import Task
from tiebreak.studies.user_files import source_at

TIMES = int(os.environ.get("TIEBREAK_FAULTS", "2"))
MOMENTS = random.Random(11)
WORK = Path(__file__).parent / "support" / "work.py"
PAPER = tiebreak.problems.paper()

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="signals and locks are others elsewhere"
)


def started(code, *words, prefix=(), **options):
    """A Python program that has said that it has started."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout.readline() == "started\n"
    return process


def killed(process, seconds, number=signal.SIGKILL):
    """Let it go on for so long, then send it a signal; its code."""
    time.sleep(seconds)
    process.send_signal(number)
    with process:
        return process.wait(60)


def equal(one, other):
    for point in ("last", "selected"):
        for name in ("x", "step", "direction_squared", "lower_gradient_squared"):
            np.testing.assert_array_equal(
                getattr(getattr(one, point), name), getattr(getattr(other, point), name)
            )
    for name in ("step", "calls", "multiplier", "lower_value", "x"):
        np.testing.assert_array_equal(
            one.history[name], other.history[name], err_msg=name
        )
    assert one.status == other.status


# ------------------------------------------------------------------------------------------- the solver

SOLVER = """
import os, sys, time, tiebreak
path, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
problem = tiebreak.problems.paper()
fresh = dict(x0=problem.x0, method="vr_pr_sdbpg", runs=3, seed=9, steps=steps, record=1, keep_iterates=True)
options = dict(resume=path) if os.path.exists(path) else fresh
print("started", flush=True)
tiebreak.minimize(problem.upper, problem.lower, checkpoint=path, checkpoint_every=every,
                  callback=lambda record: time.sleep(0.001), **options)
"""


def whole(steps):
    return minimize(
        PAPER.upper,
        PAPER.lower,
        PAPER.x0,
        method="vr_pr_sdbpg",
        runs=3,
        seed=9,
        steps=steps,
        record=1,
        keep_iterates=True,
    )


def test_a_solver_killed_at_random_moments(tmp_path):
    """It saves after every third step, so that many of the moments are in the middle of that."""
    path, steps, before = tmp_path / "run.npz", 100 * TIMES, 0
    for _ in range(TIMES):
        assert killed(started(SOLVER, path, steps, 3), MOMENTS.uniform(0.02, 0.4)) in (
            -signal.SIGKILL,
            0,
        )
        if path.exists():
            now = int(tiebreak.load(path).steps[0])
            assert before <= now <= steps
            before = now
    assert before > 0
    resumed = minimize(PAPER.upper, PAPER.lower, resume=path, checkpoint=path)
    equal(resumed, whole(steps))
    equal(tiebreak.load(path), resumed)
    assert [p.name for p in tmp_path.iterdir()] == [
        "run.npz"
    ]  # neither locks nor halves of files


def test_sigterm_writes_a_checkpoint_and_has_its_own_code(tmp_path):
    for i in range(TIMES):
        path = tmp_path / f"{i}.npz"
        assert (
            killed(
                started(SOLVER, path, 5000, 10**6),
                MOMENTS.uniform(0.1, 0.4),
                signal.SIGTERM,
            )
            == 143
        )
        saved = tiebreak.load(path)
        assert 0 < saved.steps[0] < 5000
        assert set(saved.status) == {Status.INTERRUPTED}
        steps = int(saved.steps[0]) + 50
        equal(
            minimize(PAPER.upper, PAPER.lower, resume=path, steps=steps), whole(steps)
        )


def test_without_a_checkpoint_sigterm_ends_at_once():
    code = SOLVER.replace("checkpoint=path, checkpoint_every=every,", "")
    assert (
        killed(started(code, "nowhere.npz", 5000, 1), 0.1, signal.SIGTERM)
        == -signal.SIGTERM
    )


def test_two_solvers_on_one_checkpoint(tmp_path):
    """The second is refused, and told by whom; once the first is killed, it goes on."""
    path = tmp_path / "new" / "run.npz"
    first = started(SOLVER, path, 5000, 20)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(
        BlockingIOError,
        match=rf"run\.npz' is being written by process {first.pid}; wait for it, or",
    ):
        minimize(PAPER.upper, PAPER.lower, resume=path, checkpoint=path)
    assert killed(first, 0) == -signal.SIGKILL
    steps = int(tiebreak.load(path).steps[0]) + 20
    equal(
        minimize(PAPER.upper, PAPER.lower, resume=path, checkpoint=path, steps=steps),
        whole(steps),
    )
    assert [p.name for p in path.parent.iterdir()] == ["run.npz"]


# ------------------------------------------------------------------------------------------- sweeps

SWEEP = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[4], f"{sys.argv[4]}/support"]
from test_faults import blocks
from tiebreak.studies.sweeps import sweep
print("started", flush=True)
sweep(blocks(int(sys.argv[3]), sys.argv[2]), engine=2, store=sys.argv[1])
"""


def blocks(count, log, seconds=0.03):
    common = {"seed": 5, "log": str(log), "seconds": seconds}
    return [
        Task(
            f"block {i}",
            source_at(f"{WORK}:draw"),
            {"runs": [i, i + 1]} | common,
            count / 1000 - i / 1e6,
        )
        for i in range(count)
    ]


def numbers(swept):
    return [float(block.tables["numbers"]["x"][0]) for block in swept.blocks.values()]


def expected(count):
    return [
        float(np.random.default_rng([5, i]).standard_normal()) for i in range(count)
    ]


def lines(log):
    return (
        [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        if log.exists()
        else []
    )


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_sweep_killed_at_random_moments(tmp_path):
    """Its processes end with it, and what it had kept is not done again; how much it had depends on the machine."""
    count, log, store = 30 * TIMES, tmp_path / "log", tmp_path / "store"
    words, tasks, kept, seen = (
        (store, log, count, Path(__file__).parent),
        blocks(30 * TIMES, log),
        set(),
        0,
    )
    for _ in range(TIMES):
        assert killed(
            started(SWEEP, *words, env=ENVIRONMENT), MOMENTS.uniform(0.3, 1.2)
        ) in (-signal.SIGKILL, 0)
        deadline = time.monotonic() + 20
        while any(alive(pid) for _, pid in lines(log)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(alive(pid) for _, pid in lines(log))
        assert kept.isdisjoint(run for run, _ in lines(log)[seen:])
        # A damaged block would be a warning, hence an error.
        kept, seen = (
            {i for i, task in enumerate(tasks) if Store(store).read(task) is not None},
            len(lines(log)),
        )
    done = sweep(tasks, store=store, engine=2)
    assert numbers(done) == expected(count)
    assert sorted(run for run, _ in lines(log)[seen:]) == sorted(
        {*range(count)} - kept
    )  # once each
    assert {run for run, _ in lines(log)} == set(range(count))


def test_processes_of_a_pool_killed_at_random_moments(tmp_path):
    """In the middle of a block each time. All others are done once, and that one once more."""
    count, log = 20 * TIMES, tmp_path / "log"
    victims = []

    def kill():
        deadline = time.monotonic() + 600
        while len(victims) < TIMES and time.monotonic() < deadline:
            time.sleep(MOMENTS.uniform(0.0, 0.2))
            seen = lines(log)
            often = [run for run, _ in seen]
            for run, pid in seen[-2:]:
                if (
                    often.count(run) == 1
                    and pid not in [victim for _, victim in victims]
                    and alive(pid)
                ):
                    os.kill(pid, signal.SIGKILL)
                    victims.append((run, pid))
                    break

    killer = threading.Thread(target=kill)
    killer.start()
    done = sweep(blocks(count, log, seconds=0.1), engine=2)
    killer.join()
    assert numbers(done) == expected(count)
    assert len(victims) == TIMES
    again = len(lines(log)) - count
    assert 0 < again <= TIMES  # a process may be killed between two blocks


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_dask_workers_killed_at_random_moments(tmp_path):
    pytest.importorskip("distributed")
    count, log, kills = 40 * TIMES, tmp_path / "log", 0
    with opened("local:2") as workers:
        found = []
        tasks = blocks(count, log, seconds=0.1)
        thread = threading.Thread(
            target=lambda: found.append(
                sweep(tasks, engine=workers.executor, store=tmp_path / "store")
            )
        )
        thread.start()
        while thread.is_alive() and kills < TIMES:
            time.sleep(MOMENTS.uniform(0.2, 1.0))
            busy = [pid for _, pid in lines(log)[-2:] if alive(pid)]
            if busy:
                os.kill(MOMENTS.choice(busy), signal.SIGKILL)
                kills += 1
        thread.join(100 + 10 * TIMES)
    assert kills == TIMES
    assert numbers(found[0]) == expected(count)
    assert numbers(sweep(tasks, store=tmp_path / "store")) == expected(count)


def test_two_sweeps_on_one_folder(tmp_path):
    """The second command is refused with a sentence; SIGTERM ends the first with its own code."""
    words = [
        "reproduce",
        "--methods",
        "sdbgd,dbgd,penalty",
        "--budget",
        "1e13",
        "--runs",
        "2",
        "--workers",
        "2",
    ]
    main = "print('started', flush=True); from tiebreak.cli import main; main()"
    first = started(
        main,
        *words,
        "--output",
        tmp_path / "r",
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
    )
    lock, deadline = tmp_path / "r" / ".blocks.lock", time.monotonic() + 60
    while not (lock.exists() and lock.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    said = call(*words, "--output", tmp_path / "r", code=2).stderr
    assert (
        f"r/.blocks' is being written by process {first.pid}; wait for it, or choose another place"
        in said
    )
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 143
    assert "terminated; finished blocks are kept" in said
    assert "Traceback" not in said
    assert not lock.exists()


# ------------------------------------------------------------------------------------------- full disks

FULL = """
import resource, shutil, subprocess, sys, warnings
from pathlib import Path
import tiebreak
folder, kind, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if kind == "tmpfs":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print("started", flush=True)
problem, path = tiebreak.problems.paper(), folder / "run.npz"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    options = dict(method="vr_pr_sdbpg", runs=3, seed=9, steps=2000, record=1, keep_iterates=True)
    options |= dict(checkpoint=path, checkpoint_every=100)
    result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, **options)
print(result.steps[0], tiebreak.load(path).steps[0], [p.name for p in folder.iterdir()])
print(caught[0].message, len(caught))
try:
    result.save(path)
except OSError as error:
    print("refused", error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2) if kind == "tmpfs" else None
shutil.copy(path, out)
"""


@pytest.mark.parametrize(
    ("kind", "words"),
    [("tmpfs", "No space left on device"), ("limit", "File too large")],
)
def test_a_full_disk_leaves_the_last_whole_checkpoint(kind, words, tmp_path):
    """The checkpoint grows with its history until it does not fit; the run goes on, its file is the last that did."""
    prefix = ("unshare", "--mount", "--map-root-user") if kind == "tmpfs" else ()
    if prefix:
        trial = [*prefix, "mount", "-t", "tmpfs", "none", str(tmp_path)]
        try:
            if subprocess.run(trial, capture_output=True).returncode != 0:
                pytest.skip("no small disk can be made here")
        except OSError:
            pytest.skip("no small disk can be made here")
    (tmp_path / "disk").mkdir()
    process = started(
        FULL, tmp_path / "disk", kind, tmp_path / "out.npz", prefix=prefix
    )
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    first, second, third = shown.splitlines()
    steps, saved, rest = first.split(maxsplit=2)
    assert steps == "2000"
    assert 0 < int(saved) < 2000
    assert int(saved) % 100 == 0
    assert rest == "['run.npz']"
    assert second.startswith(f"checkpoint not written at step {int(saved) + 100}: ")
    assert f"{words}; the run goes on" in second
    assert third == f"refused {words}"
    equal(minimize(PAPER.upper, PAPER.lower, resume=tmp_path / "out.npz"), whole(2000))


# ------------------------------------------------------------------------------------------- damaged files


def test_a_damaged_checkpoint_is_refused_or_the_same(tmp_path):
    """A bit changed anywhere, or a part missing: a sentence, or, where the bit means nothing, the very same run."""
    path, steps = tmp_path / "run.npz", 30
    result = whole(steps)
    result.save(path)
    content, refused = path.read_bytes(), 0
    for _ in range(100 * TIMES):
        odd = bytearray(content)
        i = MOMENTS.randrange(len(odd))
        odd[i] ^= 1 << MOMENTS.randrange(8)
        path.write_bytes(odd[:i] if MOMENTS.random() < 0.1 else odd)
        try:
            equal(tiebreak.load(path), result)
        except ValueError as error:
            assert "run.npz" in str(error)  # noqa: PT017  # either is right
            refused += 1
    assert refused > 50 * TIMES


def test_a_damaged_block_is_done_again(tmp_path):
    count, log = 4, tmp_path / "log"
    tasks = blocks(count, log, seconds=0.0)
    sweep(tasks, store=tmp_path / "store")
    with Store(tmp_path / "store") as store:
        for i, task in enumerate(tasks):
            content = store.place(task).read_bytes()
            store.place(task).write_bytes(
                content[: len(content) // 2] if i == 0 else content
            )
    with pytest.warns(
        UserWarning, match=r"is not used: it is damaged.*; block 0 is run again"
    ):
        again = sweep(tasks, store=tmp_path / "store")
    assert numbers(again) == expected(count)
    assert [run for run, _ in lines(log)] == [0, 1, 2, 3, 0]
