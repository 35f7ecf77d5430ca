"""A sweep gives the same bits whoever runs it and however often it was stopped; finished blocks are kept, and only
sound ones are read again; a worker that dies costs its block.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command import call

from tiebreak import minimize, problems
from tiebreak.studies import Experiment, Verification, run, solving
from tiebreak.studies.engines import checked_engine
from tiebreak.studies.store import Store, decoded
from tiebreak.studies.sweeps import split, sweep
from tiebreak.studies.task import Block, Interrupted, Task
from tiebreak.studies.user_files import SweepError, source_at
from tiebreak.studies.verification import verification

WORK = Path(__file__).parents[1] / "support" / "work.py"


def work(name):
    return source_at(f"{WORK}:{name}")


def draws(count=6, expected=0.1, **options):
    blocks = [{"runs": [2 * i, 2 * i + 2], "seed": 5} | options for i in range(count)]
    return [
        Task(f"block {i}", work("draw"), arguments, expected)
        for i, arguments in enumerate(blocks)
    ]


def equal(one, other):
    assert list(one.blocks) == list(other.blocks)
    for name, block in one.blocks.items():
        same(block, other.blocks[name])


def same(block, twin):
    assert block.facts == twin.facts
    assert list(block.tables) == list(twin.tables)
    for name, table in block.tables.items():
        assert list(table) == list(twin.tables[name])
        for column, values in table.items():
            np.testing.assert_array_equal(values, twin.tables[name][column])
            assert values.dtype == twin.tables[name][column].dtype


# ------------------------------------------------------------------------------------------- the same bits


def both_methods():
    paper = {
        "problem": "tiebreak.problems:paper",
        "budget": 3000,
        "runs": 5,
        "seed": 3,
        "block": 2,
    }
    own = {
        "problem": f"{WORK}:problem",
        "budget": 400,
        "runs": 3,
        "seed": 1,
        "problem_arguments": {"shift": 2.0},
    }
    tasks = solving("storm", method="vr_pr_sdbpg", **paper) + solving(
        "own", method=f"{WORK}:method", **own
    )
    assert [task.name for task in tasks] == [
        f"storm, runs {i}" for i in ("0 to 1", "2 to 3", "4 to 4")
    ] + ["own, runs 0 to 2"]
    return tasks


@pytest.fixture(scope="module")
def alone():
    return sweep(both_methods())


def test_blocks_of_runs_equal_all_runs_together(alone):
    """The plain way: one call of the solver, all runs in it."""
    problem = problems.paper()
    whole = minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method="vr_pr_sdbpg",
        budget=3000,
        runs=5,
        seed=3,
        keep_iterates=True,
    )
    blocks = list(alone.blocks.values())[:3]
    expected = whole.history.tidy()
    for name, column in expected.items():
        found = np.concatenate([block.tables["curves"][name] for block in blocks])
        np.testing.assert_array_equal(found, column, err_msg=name)
    for iterate in ("last", "selected"):
        tables = [block.tables[iterate] for block in blocks]
        for axis in (0, 1):
            found = np.concatenate([table[f"x{axis}"] for table in tables])
            np.testing.assert_array_equal(found, getattr(whole, iterate).x[:, axis])
        assert np.concatenate([table["run"] for table in tables]).tolist() == list(
            range(5)
        )


@pytest.mark.parametrize(
    "kind", ["threads", "standard processes", "one process", "three processes"]
)
def test_every_executor_gives_the_same_bits(kind, alone, tmp_path):
    if kind == "threads":
        engine = ThreadPoolExecutor(2)
    elif kind == "standard processes":
        engine = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    else:
        engine = 1 if kind == "one process" else 3
    with nullcontext() if isinstance(engine, int) else engine:
        found = sweep(both_methods(), engine=engine, store=tmp_path)
    times = [
        {n: v for n, v in b.facts.items() if n != "seconds"}
        for s in (found, alone)
        for b in s.blocks.values()
    ]
    assert times[: len(times) // 2] == times[len(times) // 2 :]
    for name, block in found.blocks.items():
        same(block._replace(facts={}), alone.blocks[name]._replace(facts={}))
    again = sweep(both_methods(), store=tmp_path)  # and what was kept is what was made
    equal(again, found)


@pytest.mark.long
def test_reproduce_on_dask_writes_the_same_bytes(tmp_path):
    pytest.importorskip("distributed")
    parquet = pytest.importorskip("pyarrow.parquet")
    run(
        Experiment(budget=5000, runs=3, methods=("sdbgd", "vr_pr_sdbpg")),
        tmp_path / "here",
    )
    words = (
        "reproduce",
        "--budget",
        "5000",
        "--runs",
        "3",
        "--methods",
        "sdbgd,vr_pr_sdbpg",
        "--scheduler",
        "local:2",
    )
    # Dask itself is not free of warnings, which are errors in these tests
    call(
        *words,
        "--output",
        tmp_path / "dask",
        before="import warnings; warnings.simplefilter('ignore')",
    )
    for file in ("curves.csv", "points.csv"):
        assert (tmp_path / "dask" / file).read_bytes() == (
            tmp_path / "here" / file
        ).read_bytes(), file
    one, other = (
        parquet.read_table(tmp_path / folder / "curves.parquet")
        for folder in ("dask", "here")
    )
    assert one.to_pandas().equals(
        other.to_pandas()
    )  # a NaN equals a NaN; and the files have a date besides
    assert not (tmp_path / "dask" / ".blocks").exists()


def test_verify_on_processes_finds_the_same(monkeypatch):
    """One case of each kind."""
    monkeypatch.setattr(
        verification, "_QUICK", verification.Sizes(60, 60, 30, (2,), 1, 100)
    )
    every = verification.cases(Verification(quick=True))
    monkeypatch.setattr(
        verification, "cases", lambda _: [every[0], every[3], every[-1]]
    )
    asked = Verification(runs=4, quick=True)
    one, other = run(asked), run(asked, engine=2)
    for name in ("bounds", "deviations", "rates", "slopes"):
        for column, values in one.data[name].items():
            np.testing.assert_array_equal(
                values, other.data[name][column], err_msg=column
            )
    assert one.record["cases"] == other.record["cases"]


def test_numerical_libraries_have_one_thread():
    """With more, products of matrices differ in their last bits, and workers are in each other's way."""
    tasks = [Task("threads", work("threads"), {})]
    for engine in (None, 1):
        counts = sweep(tasks, engine=engine).blocks["threads"].facts["threads"]
        assert counts
        assert set(counts) == {1}


def test_a_small_sweep_starts_no_process(tmp_path):
    log = tmp_path / "log"
    sweep([*draws(1, log=str(log))])
    assert log.read_text().split()[1] == str(os.getpid())


def test_a_long_sweep_starts_processes(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setattr("tiebreak.studies.sweeps.cores", lambda: 2)
    tasks = draws(6, 1.0, log=str(log))  # six seconds of work, as they say
    equal(sweep(tasks), sweep(tasks, engine=ThreadPoolExecutor(1)))
    pids = [line.split()[1] for line in log.read_text().splitlines()]
    assert str(os.getpid()) not in pids[:6]
    assert {*pids[6:]} == {str(os.getpid())}


def test_split():
    for runs in (1, 7, 512, 513, 2000):
        for size in (1, 3, 512):
            blocks = split(runs, size)
            assert [run for block in blocks for run in block] == list(range(runs))
            assert len(blocks) == -(-runs // size)
            lengths = {len(block) for block in blocks}
            assert max(lengths) <= size
            assert max(lengths) - min(lengths) <= 1


# ------------------------------------------------------------------------------------------- what is kept


def made(log):
    return (
        [line.split()[0] for line in log.read_text().splitlines()]
        if log.exists()
        else []
    )


def test_finished_blocks_are_not_done_again(tmp_path):
    log, store = tmp_path / "log", tmp_path / "store"
    tasks = draws(log=str(log))
    stopped = sweep(tasks, store=store, progress=_stop_at("block 3"))
    assert stopped.interrupted
    assert list(stopped.blocks) == ["block 0", "block 1", "block 2"]
    done = sweep(tasks, store=store, engine=ThreadPoolExecutor(1))
    assert not done.interrupted
    assert made(log) == ["0", "2", "4", "6", "6", "8", "10"]
    equal(done, sweep(draws(log=str(log))))
    assert len(list(store.iterdir())) == 6


def _stop_at(name):
    def hear(heard, share):
        assert 0 <= share <= 1
        if heard == name:
            raise KeyboardInterrupt

    return hear


@pytest.fixture
def listening():
    """Ctrl-C reaches this process, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_block_gives_what_it_has_and_is_not_kept(tmp_path, listening):
    """Here the solver, in this process and in another one."""
    limits = {"budget": 10**13, "runs": 2, "seed": 0}
    for engine in (None, 1):
        log = tmp_path / f"log {engine}"
        (task,) = solving(
            "long",
            f"{WORK}:noticed",
            "penalty",
            **limits,
            problem_arguments={"log": str(log)},
        )

        def interrupt(log=log):
            while not log.exists():
                time.sleep(0.05)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        stopped = sweep([task], store=tmp_path / "store", engine=engine)
        assert stopped.interrupted
        assert not stopped.blocks
        (partial,) = stopped.partial.values()
        assert set(partial.tables["last"]["status"].tolist()) == {"interrupted"}
        assert partial.tables["last"]["steps"].min() > 0
        assert not (tmp_path / "store").exists()


def test_a_block_is_for_the_same_work_alone(tmp_path):
    """Other arguments, another file, another version: other fingerprints."""
    (task,) = draws(1)
    changed = tmp_path / "work.py"
    changed.write_text(WORK.read_text() + "\n# changed\n")
    others = [
        *draws(1, seed=6),
        Task(task.name, source_at(f"{changed}:draw"), task.arguments),
        Task(task.name, task.function, task.arguments, code="another version"),
    ]
    prints = {other.fingerprint for other in (task, *others)}
    assert len(prints) == 4
    with Store(tmp_path / "store") as store:
        store.write(task, Block({}, {}))
        assert store.read(task) == Block({}, {})
        assert [store.read(other) for other in others] == [None] * 3
        store.place(others[0]).write_bytes(store.place(task).read_bytes())
        with pytest.warns(
            UserWarning, match="is not used: it is damaged, or was made by other code"
        ):
            assert store.read(others[0]) is None
    with pytest.raises(SweepError, match="another version of tiebreak or NumPy"):
        sweep([others[2]], engine=ThreadPoolExecutor(1))


@pytest.mark.filterwarnings("ignore:.*is not used")
def test_nothing_damaged_is_read_as_good(tmp_path):
    """Every byte changed in turn, every length cut: refused, each time; then the block is made again."""
    (task,) = draws(1)
    with Store(tmp_path) as store:
        block = sweep([task], store=store).blocks[task.name]
        place = store.place(task)
        content = place.read_bytes()
        assert decoded(content, task.fingerprint).facts == block.facts
        changed = [
            content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :]
            for i in range(len(content))
        ]
        for odd in (
            *changed,
            *(content[:i] for i in range(len(content))),
            content + b" ",
        ):
            with pytest.raises(ValueError, match="it is damaged"):
                decoded(odd, task.fingerprint)
        place.write_bytes(changed[-1])
        assert store.read(task) is None
        again = sweep([task], store=store).blocks[task.name]
        same(again, block)
        assert place.read_bytes() == content


def test_a_full_disk_does_not_end_a_sweep(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(
        RuntimeWarning,
        match="cannot be kept .* No space left on device; the sweep goes on",
    ) as caught:
        done = sweep(draws(), store=tmp_path / "store")
    assert len(done.blocks) == 6
    assert len(caught) == 1
    assert not (tmp_path / "store").exists() or not list((tmp_path / "store").iterdir())


def test_a_store_is_held_by_one_at_a_time(tmp_path):
    with (
        Store(tmp_path / "s"),
        pytest.raises(
            BlockingIOError, match=f"is being written by process {os.getpid()};"
        ),
    ):
        sweep(draws(), store=tmp_path / "s")
    assert len(sweep(draws(), store=tmp_path / "s").blocks) == 6


# ------------------------------------------------------------------------------------------- what goes wrong


def test_a_worker_that_dies_costs_its_block(tmp_path):
    """Twice, then it lives. The other worker does its own block once, undisturbed."""
    log, others = tmp_path / "log", tmp_path / "others"
    deadly = Task(
        "deadly", work("die"), {"log": str(log), "times": 2, "runs": [0, 2], "seed": 5}
    )
    done = sweep([deadly, *draws(2, log=str(others), seconds=0.5)], engine=2)
    assert list(done.blocks) == ["deadly", "block 0", "block 1"]
    assert len(set(log.read_text().split())) == 3
    assert sorted(made(others)) == ["0", "2"]
    np.testing.assert_array_equal(
        done.blocks["deadly"].tables["numbers"]["x"],
        done.blocks["block 0"].tables["numbers"]["x"],
    )


def test_a_block_that_kills_every_worker_ends_the_sweep_with_a_sentence(tmp_path):
    log = tmp_path / "log"
    deadly = Task(
        "deadly",
        work("die"),
        {"log": str(log), "times": 99, "runs": [0, 2], "seed": 5},
        0.1,
    )
    with pytest.raises(
        SweepError,
        match=r"^deadly: its worker died 3 times; the last time, A process in the process pool was terminated abruptly",
    ):
        sweep([*draws(1), deadly], engine=1, store=tmp_path / "store")
    assert len(log.read_text().split()) == 3
    assert len(list((tmp_path / "store").glob("*.block"))) == 1  # the other one is kept
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pytest.raises(SweepError, match=r"^deadly: the executor is of no more use: "):
        sweep([deadly], engine=pool)


def test_an_error_in_a_block_ends_the_sweep(tmp_path):
    tasks = [*draws(2), Task("bad", work("fail"), {"number": 3})]
    for engine in (None, 1):
        with pytest.raises(
            ValueError, match=r"^number=3 must be another one"
        ) as caught:
            sweep(tasks, engine=engine, store=tmp_path)
    assert "work.py" in str(
        caught.value.__cause__
    )  # where it was, in the other process
    assert len(list(tmp_path.glob("*.block"))) == 2
    with pytest.raises(
        TypeError, match=r"^none: .*nothing gave dict; it must give a Block$"
    ):
        sweep([Task("none", work("nothing"), {})])
    with (
        pytest.raises(TypeError, match=r"column t.x holds Python objects"),
        Store(tmp_path) as store,
    ):
        store.write(tasks[0], Block({"t": {"x": np.array([{}])}}, {}))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nothing", "problem='nothing' must be 'module:name' or 'file.py:name'"),
        ("tiebreak.problems:nothing", "has no attribute 'nothing'"),
        ("tiebreak.nothing:paper", "No module named 'tiebreak.nothing'"),
        ("nowhere.py:paper", "'nowhere.py' cannot be read"),
    ],
)
def test_bad_names(where, message):
    with pytest.raises(ValueError, match=message):
        solving("x", where, "sdbgd", budget=100, runs=1, seed=0)


@pytest.mark.parametrize(
    "engine", [0, -1, 1.5, True, "nonsense", "local:", "local:0", "tcp://", ""]
)
def test_bad_engines(engine):
    with pytest.raises(ValueError, match=r"^(workers|scheduler)=.* must be"):
        checked_engine(engine)
    with pytest.raises(ValueError, match=r"^(workers|scheduler)=.* must be"):
        run(Experiment(methods=("sdbgd",), budget=100, runs=1), engine=engine)


def test_a_lost_scheduler_is_noticed(monkeypatch):
    """Dask's futures never end then; here an executor that is as one whose client has closed."""

    class Lost(Executor):
        _client = SimpleNamespace(status="running")

        def submit(self, *_, **__):
            self._client.status = "closed"
            return Future()

    monkeypatch.setattr("tiebreak.studies.sweeps._LOOK", 0.05)
    with pytest.raises(SweepError, match=r"^the scheduler was lost$"):
        sweep(draws(1), engine=Lost())


def test_tasks_have_names_of_their_own():
    with pytest.raises(ValueError, match="must have different names"):
        sweep([*draws(1), *draws(1)])


def test_one_share_of_everything():
    heard = []
    sweep(draws(4), progress=lambda name, share: heard.append((name, share)))
    assert [share for _, share in heard] == pytest.approx(
        [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0]
    )
    assert [name for name, _ in heard[::2]] == [f"block {i}" for i in range(4)]


def test_what_is_interrupted_can_be_sent():
    import pickle

    block = Block({"t": {"x": np.arange(3)}}, {"a": 1})
    same(pickle.loads(pickle.dumps(Interrupted(block))).block, block)


def test_arguments_are_plain_data():
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(Task("t", work("draw"), {"x": np.arange(3)}).fingerprint)
