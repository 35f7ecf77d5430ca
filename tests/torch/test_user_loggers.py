"""The hook for loggers, against the real packages: each in a process of its own, without a network."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from tiebreak.torch import DynamicBarrier, Log  # noqa: E402
from training import simple_method  # noqa: E402

STEPS = 5
#: Two groups, and a step that is skipped: every shape that a row may have.
TRAIN = f"""
import math, json, torch, tiebreak.torch
torch.manual_seed(0)
x, y = (torch.nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(2))
base = torch.optim.SGD([{{"params": [x]}}, {{"params": [y]}}], lr=0.01)
opt = tiebreak.torch.DynamicBarrier(base, method=tiebreak.methods.dbgd.replace(barrier=1.0), nonfinite="skip")
def train(log):
    rows = []
    with log:
        handle = opt.register_step_post_hook(log)
        for k in range({STEPS}):
            bad = math.nan if k == 2 else 1.0
            opt.step(lower=lambda: bad * (x * y).square().sum(), upper=lambda: (x - 2).square().sum() + y.sum())
            rows.append(None if k == 2 else opt.log())
        handle.remove()
    return rows
"""


def process(code, folder):
    """What a program prints as JSON in its last line. Warnings of other people's packages are theirs."""
    text = TRAIN + textwrap.dedent(code)
    outside = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder),
    }
    outside |= {
        "HF_HUB_OFFLINE": "1",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    outside |= {"MLFLOW_ALLOW_FILE_STORE": "true", "DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, cwd=folder, timeout=120,
        env=os.environ | outside,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def needs(name):
    return pytest.mark.skipif(
        find_spec(name) is None, reason=f"{name} is not here: pip install '.[loggers]'"
    )


def check(rows, steps, multipliers, skipped):
    """Every step once, the numbers of the optimizer's own log, and of the step that was skipped that alone."""
    assert steps == [k for k, row in enumerate(rows) if row is not None]
    assert multipliers == pytest.approx(
        [row["multiplier"] for row in rows if row is not None], rel=1e-6
    )
    assert skipped == [0, 0, 1, 0, 0]


@needs("tensorboard")
def test_tensorboard(tmp_path):
    found = process(
        """
        from torch.utils.tensorboard import SummaryWriter
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        with SummaryWriter("logs") as writer:
            rows = train(tiebreak.torch.Log(writer, every=1))
        read = EventAccumulator("logs"); read.Reload()
        found = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
        print(json.dumps([rows, found]))
        """,
        tmp_path,
    )
    rows, scalars = found
    one = scalars["tiebreak/multiplier"]
    check(
        rows,
        [k for k, _ in one],
        [value for _, value in one],
        [value for _, value in scalars["tiebreak/skipped"]],
    )


@pytest.mark.long
@needs("wandb")
def test_wandb(tmp_path):
    """Offline; read back from the file that a later `wandb sync` would send."""
    rows, history = process(
        """
        import glob, pathlib, struct, wandb
        from wandb.proto import wandb_internal_pb2
        with wandb.init(project="tiebreak", mode="offline") as run:
            rows = train(tiebreak.torch.Log(run, every=1))
        wandb.teardown()  # its own process writes the file, and is waited for here
        # LevelDB's log after seven bytes: blocks of 32 KiB, pieces with checksum, length and kind (1: whole, 4: last).
        data = pathlib.Path(glob.glob("wandb/offline-run-*/run-*.wandb")[0]).read_bytes()
        place, piece, history = 7, b"", []
        while place < len(data):
            if (rest := 32768 - place % 32768) < 7:
                place += rest
                continue
            _, length, kind = struct.unpack("<IHB", data[place : place + 7])
            piece, place = piece + data[place + 7 : place + 7 + length], place + 7 + length
            if kind not in (1, 4):
                continue
            record, piece = wandb_internal_pb2.Record.FromString(piece), b""
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                history.append(items)
        print(json.dumps([rows, history]))
        """,
        tmp_path,
    )
    made = [row for row in history if "tiebreak/multiplier" in row]
    assert [row["_step"] for row in history] == list(range(STEPS))
    check(rows, [row["tiebreak/step"] for row in made], [row["tiebreak/multiplier"] for row in made],
          [row["tiebreak/skipped"] for row in history])  # fmt: skip


@pytest.mark.long
@needs("trackio")
def test_trackio(tmp_path):
    """Its own file, by its own reader."""
    rows, history = process(
        """
        import sqlite3, pathlib, time, trackio
        trackio.init(project="tiebreak", embed=False)
        rows = train(tiebreak.torch.Log(trackio, every=1))
        trackio.finish()
        path = next(p for p in pathlib.Path(".").rglob("tiebreak*.db"))
        with sqlite3.connect(path) as data:
            rows_of = data.execute("select step, metrics from metrics order by step")
            history = [(step, json.loads(text)) for step, text in rows_of]
        print(json.dumps([rows, history]))
        """,
        tmp_path,
    )
    assert [step for step, _ in history] == list(range(STEPS))
    made = [(step, row) for step, row in history if "tiebreak/multiplier" in row]
    check(rows, [step for step, _ in made], [row["tiebreak/multiplier"] for _, row in made],
          [row["tiebreak/skipped"] for _, row in history])  # fmt: skip


@pytest.mark.long
@needs("mlflow")
def test_mlflow(tmp_path):
    rows, one, skipped = process(
        """
        import mlflow
        mlflow.set_tracking_uri("file:" + __import__("os").getcwd() + "/runs")
        with mlflow.start_run() as run:
            rows = train(tiebreak.torch.Log(mlflow, every=1))
        client = mlflow.MlflowClient()
        def history(name):
            return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, f"tiebreak/{name}")]
        print(json.dumps([rows, history("multiplier"), history("skipped")]))
        """,
        tmp_path,
    )
    check(
        rows,
        [k for k, _ in one],
        [value for _, value in one],
        [value for _, value in skipped],
    )


class Plain:
    def __init__(self):
        self.told = []

    def log(self, data, **step):
        self.told.append((data, step))


def one_step(log):
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=simple_method())
    opt.register_step_post_hook(log)
    opt.step(lower=lambda: x[0].square(), upper=lambda: (x - 3).square().sum())
    return opt


@pytest.mark.parametrize("numbered", [True, False])
def test_a_step_of_one_s_own_numbering(numbered):
    run = Plain()
    opt = one_step(Log(run, numbered=numbered, prefix="p/"))
    ((data, step),) = run.told
    assert step == ({"step": 0} if numbered else {})
    assert data["p/step"] == 0
    assert data["p/multiplier"] == opt.log()["multiplier"]
    assert all(type(value) in (int, float) for value in data.values())


def test_what_is_no_logger_is_refused():
    with pytest.raises(TypeError, match=r"logger=None must have log\(dict\)"):
        Log(None)
    with pytest.raises(TypeError, match="prefix=3 must be a string"):
        Log(Plain(), prefix=3)
