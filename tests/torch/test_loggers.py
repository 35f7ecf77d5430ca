"""Logs as hooks: every number of every step, once, whatever happens to the process."""

import copy
import csv
import gc
import json
import math
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

import torch
from tiebreak.torch import SDBGD, CSVLog, DynamicBarrier, Log, Step, loggers
from training import simple_method

COLUMNS = ["step", *Step._fields, "seconds"]
TOLERANCE = ("reference", "excess", "ratio")
MULTIPLIER = ("multiplier", "fg", "gg", "ff")


class Writer:
    """A stand-in for SummaryWriter."""

    def __init__(self):
        self.told, self.flushed = [], 0

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.told.append((tag, scalar_value, global_step))

    def flush(self):
        self.flushed += 1


def problem(kind="barrier", **options):
    torch.manual_seed(0)
    x, y = (torch.nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [x]}, {"params": [y]}]
    if kind == "sdbgd":
        return (x, y), SDBGD(groups, **options)
    return (x, y), DynamicBarrier(
        torch.optim.AdamW(groups, lr=0.1), **{"method": simple_method()} | options
    )


def step(opt, parameters, bad=False, told=True):
    x, y = parameters
    for level, loss in (
        ("lower", (x * y).square().sum()),
        ("upper", (x - 2).square().sum() + y.sum()),
    ):
        with getattr(opt, level)(loss if told else None):
            (loss * (math.nan if bad else 1.0)).backward()
    return opt.step()


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["barrier", "sdbgd"])
def test_the_csv_log_has_every_number_of_every_step(kind, tmp_path):
    """In full: what is read back is what was written, to the last bit."""
    parameters, opt = problem(kind)
    began = time.monotonic()
    with CSVLog(tmp_path / "new" / "log.csv") as log:
        opt.register_step_post_hook(log)
        expected = []
        for _ in range(7):
            step(opt, parameters)
            expected.append(opt.log())
    rows = read(log.path)
    assert list(rows[0]) == COLUMNS
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] <= time.monotonic() - began + 0.001
    assert [int(row["step"]) for row in rows] == list(range(7))
    for row, want in zip(rows, expected, strict=True):
        assert row["skipped"] == "0"
        numbers = [
            name
            for name in COLUMNS[1:]
            if name not in ("skipped", "seconds", *TOLERANCE)
        ]
        assert {name: float(row[name]) for name in numbers} == {
            name: want[name] for name in numbers
        }
        assert all(row[name] == "" for name in TOLERANCE)


def test_only_every_so_many_steps_are_read_from_the_device(tmp_path, monkeypatch):
    """Steps 0, 4, 8 by the optimizer's count, also after a resume; of other steps only `skipped` is read."""
    sizes = []

    class Copy(loggers.HostCopy):
        def __init__(self, tensor):
            sizes.append(tensor.numel())
            super().__init__(tensor)

    monkeypatch.setattr(loggers, "HostCopy", Copy)
    path = tmp_path / "log.csv"
    parameters, opt = problem()
    opt.register_step_post_hook(CSVLog(path, every=4))
    for _ in range(6):
        step(opt, parameters)
    again, second = problem()
    second.load_state_dict(copy.deepcopy(opt.state_dict()))
    second.register_step_post_hook(CSVLog(path, every=4))
    for _ in range(4):
        step(second, again)
    assert [k for k, size in enumerate(sizes) if size > 1] == [0, 4, 8]
    assert sum(sizes) == 3 * (len(Step._fields) - len(TOLERANCE)) + 7
    assert [row["step"] for row in read(path)] == ["0", "4", "8"]
    assert path.read_text().count("step,upper_loss") == 1


def test_losses_that_were_not_told_are_empty(tmp_path):
    parameters, opt = problem()
    writer, log = Writer(), CSVLog(tmp_path / "log.csv")
    opt.register_step_post_hook(log)
    opt.register_step_post_hook(Log(writer))
    step(opt, parameters, told=False)
    (row,) = read(log.path)
    assert (row["upper_loss"], row["lower_loss"]) == ("", "")
    assert [tag for tag, _, _ in writer.told] == [
        f"tiebreak/{name}" for name in (*MULTIPLIER, "skipped")
    ]


def test_skipped_steps_are_written_without_numbers(tmp_path):
    """Also the very first one, also between two that are due; every step that is tried has a number."""
    parameters, opt = problem(nonfinite="skip")
    writer, log = Writer(), CSVLog(tmp_path / "log.csv", every=2)
    opt.register_step_post_hook(log)
    opt.register_step_post_hook(Log(writer, every=2))
    for bad in (
        True,
        False,
        False,
        True,
        False,
    ):  # 1 is not due, and 3 is written because it is skipped
        step(opt, parameters, bad)
    rows = read(log.path)
    assert [(row["step"], row["skipped"]) for row in rows] == [
        ("0", "1"),
        ("2", "0"),
        ("3", "1"),
        ("4", "0"),
    ]
    for row in rows:
        filled = {name for name, value in row.items() if value} - {
            "step",
            "skipped",
            "seconds",
        }
        assert bool(filled) == (row["skipped"] == "0")
    skips = [(k, value) for tag, value, k in writer.told if tag == "tiebreak/skipped"]
    assert skips == [(0, 1.0), (2, 0.0), (3, 1.0), (4, 0.0)]
    assert all(math.isfinite(value) for _, value, _ in writer.told)


def test_a_log_is_continued_after_half_a_line(tmp_path):
    path = tmp_path / "log.csv"
    path.touch()  # an empty file is a new one
    for start in range(0, 6, 2):
        parameters, opt = problem()
        opt.count = start
        opt.register_step_post_hook(CSVLog(path))
        step(opt, parameters)
        step(opt, parameters)
        gc.collect()
        with path.open("a") as file:
            file.write(
                "6,0.123" if start else "1" * 70_000
            )  # a crash in the middle of a line, of any length
    rows = read(path)
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4", "5", "6"]
    assert rows[-1]["gg"] is None
    CSVLog(path)
    assert [row["step"] for row in read(path)] == ["0", "1", "2", "3", "4", "5"]


def test_seconds_go_on_where_the_log_ended(tmp_path):
    """Resumed, the clock starts at the last line's; the time in between was no training."""
    path = tmp_path / "log.csv"
    for start, before in ((0, 0.0), (1, 1000.0), (2, 1000.0)):
        parameters, opt = problem()
        opt.count = start
        opt.register_step_post_hook(CSVLog(path))
        step(opt, parameters)
        gc.collect()
        seconds = [float(row["seconds"]) for row in read(path)]
        assert before <= seconds[-1] < before + 100
        if start == 0:
            head, row = path.read_text().splitlines()
            path.write_text(f"{head}\n{row.rpartition(',')[0]},1000.0\n")
    assert seconds == sorted(seconds)


def test_beside_the_log_is_what_the_optimizer_was_told(tmp_path):
    parameters, opt = problem()
    opt.register_step_post_hook(CSVLog(tmp_path / "log.csv"))
    step(opt, parameters)
    told = json.loads((tmp_path / "log.csv.json").read_text())
    assert told["optimizer"] == repr(opt)
    assert told["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    "text",
    ["Dear diary,\nno newline here", "step,lower_loss\n0,1.5\n1,", "step,multiplier\n"],
)
def test_files_of_another_kind_are_left_alone(text, tmp_path):
    path = tmp_path / "diary.txt"
    path.write_text(text)
    with pytest.raises(
        ValueError,
        match=r"diary.txt' exists and is no log of this kind, whose columns are step, uppe",
    ):
        CSVLog(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == text


def test_a_killed_process_loses_nothing_that_was_written(tmp_path):
    path = tmp_path / "log.csv"
    program = f"""
        import os, signal, torch
        from tiebreak.torch import SDBGD, CSVLog
        x = torch.nn.Parameter(torch.ones(2))
        opt = SDBGD([x])
        opt.register_step_post_hook(CSVLog({str(path)!r}))
        for _ in range(5):
            opt.step(upper=lambda: (x - 3).square().sum(), lower=lambda: x[0].square())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_text().endswith("\n")
    assert [row["step"] for row in read(path)] == ["0", "1", "2", "3", "4"]


def test_closed_logs_write_no_more(tmp_path):
    parameters, opt = problem()
    writer = Writer()
    with CSVLog(tmp_path / "log.csv") as log, Log(writer, every=1) as board:
        for hook in (log, board):
            opt.register_step_post_hook(hook)
        step(opt, parameters)
    told = len(writer.told)
    step(opt, parameters)
    log.close()
    assert len(read(log.path)) == 1
    assert (
        len(writer.told) == told == len(Step._fields) - len(TOLERANCE)
    )  # there is none, and nothing to say of it
    assert writer.flushed == 1
    Log(SimpleNamespace(add_scalar=print)).close()  # a writer need not be able to flush


def test_a_log_that_is_forgotten_does_not_complain(tmp_path):
    """``opt.register_step_post_hook(CSVLog(…))`` leaves nobody to close the file: no ResourceWarning."""
    parameters, opt = problem()
    opt.register_step_post_hook(CSVLog(tmp_path / "log.csv"))
    step(opt, parameters)
    twin = copy.deepcopy(opt)  # hooks stay with the original
    del opt
    gc.collect()
    assert not twin._optimizer_step_post_hooks
    assert len(read(tmp_path / "log.csv")) == 1


def test_tensorboard_tags_values_and_steps():
    parameters, opt = problem("sdbgd")
    writer = Writer()
    opt.register_step_post_hook(Log(writer, every=3, prefix="run 1/"))
    expected = []
    for k in range(5):
        info = step(opt, parameters)
        if k % 3 == 0:
            expected += [
                (f"run 1/{name}", float(value), k)
                for name, value in info._asdict().items()
                if value is not None
            ]
    assert writer.told == expected
    assert all(type(value) is float for _, value, _ in writer.told)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda path: CSVLog(path / "a.csv", every=0),
            ValueError,
            "every=0 must be a whole number ≥ 1",
        ),
        (
            lambda path: Log(Writer(), every=2.5),
            ValueError,
            "every=2.5 must be a whole number ≥ 1",
        ),
        (
            lambda path: Log(Writer(), prefix=None),
            TypeError,
            "prefix=None must be a string",
        ),
        (lambda path: CSVLog(path), IsADirectoryError, "Is a directory"),
    ],
)
def test_bad_input_is_named(make, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        make(tmp_path)


def test_the_base_optimizer_is_the_wrong_place(tmp_path):
    parameters, opt = problem()
    opt.base.register_step_post_hook(CSVLog(tmp_path / "log.csv"))
    with pytest.raises(
        TypeError,
        match="CSVLog is for DynamicBarrier and its kin; AdamW has no multiplier",
    ):
        step(opt, parameters)
    assert (tmp_path / "log.csv").read_text() == ""
