"""Every reader of files, given files that are damaged, made up, or no files at all: a sentence, never a traceback."""

import hashlib
import io
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import (
    DEEP,
    NUMBERS,
    WORDS,
    as_json,
    damaged,
    inputs,
    limited,
    mangled,
    only_ours,
)
from hypothesis import given
from hypothesis import strategies as st

import tiebreak
from tiebreak.options import recorded
from tiebreak.studies import Experiment, load, run
from tiebreak.studies.findings import summary
from tiebreak.studies.folder import save, write_files
from tiebreak.studies.store import Store, encoded
from tiebreak.studies.task import Block, Task

PAPER = tiebreak.problems.paper()
KEPT = st.sampled_from(["sdbgd", "vr_pr_sdbpg"])  # by method


# --- checkpoints of the solver ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two methods, with and without a memory, one run and several."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for method, runs, record in (("vr_pr_sdbpg", 2, 1), ("sdbgd", None, "log")):
        options: dict[str, Any] = {
            "method": method,
            "runs": runs,
            "record": record,
            "seed": 3,
        }
        result = tiebreak.minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            steps=6,
            keep_iterates=runs is None,
            **options,
        )
        result.save(folder / method)
    return folder


def read_checkpoint(path: Path) -> None:
    """All that a user would do with it: look at it, and go on."""
    result = tiebreak.load(path)
    repr(result)
    assert result.x.dtype.kind == "f"
    if np.max(result.steps) < 10:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a run that starts from what is not finite says so
            tiebreak.minimize(
                PAPER.upper,
                PAPER.lower,
                steps=int(np.max(result.steps)) + 3,
                resume=path,
            )


@inputs(0.1, 150)
@given(data=st.data())
def test_damaged_checkpoints(
    checkpoints: Path, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(data.draw(damaged((checkpoints / data.draw(KEPT)).read_bytes())))
    with only_ours():
        read_checkpoint(path)


@inputs(0.12, 200)
@given(data=st.data())
def test_made_up_checkpoints(
    checkpoints: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Whole archives with right checksums, and something else in them."""
    path = tmp_path / "run.npz"
    with np.load(checkpoints / data.draw(KEPT)) as file:
        arrays = {name: file[name] for name in file.files}
    if data.draw(st.booleans()):
        meta = data.draw(mangled(json.loads(str(arrays["meta"]))))
        arrays["meta"] = np.array(as_json(meta))
    else:
        arrays = {
            str(k) or "_": v for k, v in data.draw(mangled_arrays(arrays)).items()
        }
    np.savez(
        path,
        **{
            name.replace("\0", "0").replace("\ud800", "d"): value
            for name, value in arrays.items()
        },
    )
    with only_ours():
        read_checkpoint(path)


@st.composite
def mangled_arrays(draw: st.DrawFn, arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays by name, one of them removed, renamed, or of another shape, dtype or content."""
    found = dict(arrays)
    name = draw(st.sampled_from(sorted(found)))
    value = found[name]
    kind = draw(
        st.sampled_from(
            ["remove", "rename", "extra", "shape", "dtype", "number", "empty", "text"]
        )
    )
    if kind == "remove":
        del found[name]
    elif kind in ("rename", "extra"):
        new = draw(
            st.sampled_from(
                [
                    *WORDS[:-1],
                    "memory.upper.0",
                    "history.x",
                    "last_measures.x",
                    *sorted(found),
                ]
            )
        )
        found[new] = value
        if kind == "rename" and new != name:
            del found[name]
    elif kind == "shape":
        flat = value.reshape(-1)
        found[name] = {"flat": flat, "front": value[None], "one": flat[:1]}[
            draw(st.sampled_from(["flat", "front", "one"]))
        ]
    elif kind == "dtype":
        found[name] = np.zeros(
            value.shape,
            draw(
                st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u8", "c16", "?", "U3"])
            ),
        )
    elif kind == "number" and value.dtype.kind in "fi" and value.size:
        legal = [
            n
            for n in NUMBERS
            if (
                isinstance(n, float)
                if value.dtype.kind == "f"
                else n == n and -(2**63) <= n < 2**63
            )
        ]
        found[name] = value.copy()
        found[name].reshape(-1)[draw(st.integers(0, value.size - 1))] = draw(
            st.sampled_from(legal)
        )
    elif kind == "empty":
        found[name] = np.zeros(
            draw(st.sampled_from([(0,), (0, 5), (3, 0)])), value.dtype
        )
    else:
        found[name] = np.array(draw(st.sampled_from(WORDS)).replace("\ud800", "d"))
    return found


# --- blocks of a sweep ------------------------------------------------------------------------------------------------

TASK = Task("a task", {"where": "work:sums", "text": None}, {"numbers": [1, 2]})
BLOCK = Block(
    {"curves": {"run": np.arange(3), "x0": np.ones(3)}, "none": {}},
    {"seconds": 0.5, "faults": []},
)


def read_block(store: Store) -> Block | None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        block = store.read(TASK)
    if block is None and store.place(TASK).exists():
        assert len(said) == 1
        assert "is run again" in str(said[0].message)
    return block


@inputs(0.05, 100)
@given(data=st.data())
def test_damaged_blocks(tmp_path: Path, data: st.DataObject) -> None:
    """A checksum is right for what was written alone: whatever else is there is made again."""
    store, whole = Store(tmp_path), encoded(BLOCK, TASK.fingerprint)
    content = data.draw(damaged(whole))
    store.place(TASK).write_bytes(content)
    with limited():
        assert (read_block(store) is not None) == (content == whole)


@inputs(0.06, 150)
@given(data=st.data())
def test_made_up_blocks(tmp_path: Path, data: st.DataObject) -> None:
    """A right checksum around something else: a block or none, and never an error."""
    store = Store(tmp_path)
    whole = encoded(BLOCK, TASK.fingerprint).partition(b"\n")[2]
    if data.draw(st.booleans()):
        body = data.draw(damaged(whole))
    else:
        with np.load(io.BytesIO(whole)) as file:
            arrays = data.draw(
                mangled_arrays({name: file[name] for name in file.files})
            )
        if "facts" in arrays and data.draw(st.booleans()):
            facts = data.draw(mangled(BLOCK.facts))
            arrays["facts"] = np.array(as_json(facts))
        held = io.BytesIO()
        np.savez(
            held,
            **{
                (n or "_").replace("\0", "0").replace("\ud800", "d"): a
                for n, a in arrays.items()
            },
        )
        body = held.getvalue()
    head = {
        "fingerprint": TASK.fingerprint,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    store.place(TASK).write_bytes(json.dumps(head).encode() + b"\n" + body)
    with limited():
        block = read_block(store)
    assert block is None or all(
        isinstance(columns, dict) for columns in block.tables.values()
    )


# --- folders of results -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    save(run(Experiment(methods=("sdbgd", "sdbpg"), runs=2, budget=200)), folder)
    return folder


def read_folder(folder: Path) -> None:
    summary(load(folder))


FILES = ("config.json", "findings.json", "manifest.json")


def with_file(results: Path, folder: Path, name: str, content: bytes | None) -> None:
    """A copy of the results with another content of a file."""
    for each in FILES:
        shutil.copyfile(results / each, folder / each)
    if content is not None:
        (folder / name).write_bytes(content)


@inputs(0.1, 120)
@given(data=st.data())
def test_damaged_results(results: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    with_file(
        results, tmp_path, name, data.draw(damaged((results / name).read_bytes()))
    )
    with only_ours():
        read_folder(tmp_path)


@inputs(0.1, 120)
@given(data=st.data())
def test_made_up_results(results: Path, tmp_path: Path, data: st.DataObject) -> None:
    """JSON as it should be with something else in it, and checksums that are right for that."""
    name = data.draw(st.sampled_from(FILES))
    saved = data.draw(mangled(json.loads((results / name).read_text(encoding="utf-8"))))
    content = as_json(saved).encode()
    with_file(results, tmp_path, name, content)
    with only_ours():
        if name != "manifest.json":
            write_files(tmp_path, {name: content}, update=True, overwrite=True)
        read_folder(tmp_path)


# --- logs and curves -------------------------------------------------------------------------------------------------

LOG = "step,multiplier,lower_loss,skipped\n0,1.0,2.0,0\n1,,,1\n2,0.5,1.5,0\n10,0.25,1.25,0\n"


@inputs(0.05, 120)
@given(data=st.data())
def test_damaged_curves(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fit.csv"
    path.write_bytes(data.draw(damaged(LOG.encode())))
    with only_ours():
        steps, losses = recorded(path)
        assert steps == sorted(set(steps))
        assert np.isfinite(losses).all()


# --- what is no file at all -------------------------------------------------------------------------------------------

READERS = {
    "checkpoint": lambda path: tiebreak.load(path),
    "resume": lambda path: tiebreak.minimize(
        PAPER.upper, PAPER.lower, resume=path, steps=3
    ),
    "curve": lambda path: recorded(path),
    "results": lambda path: load(path),
}


def places(folder: Path) -> dict[str, Path]:
    """Paths at which no file can be read; those that would wait for ever among them."""
    names = (
        "nothing",
        "folder",
        "dangling",
        "circle",
        "pipe",
        "long",
        "empty",
        "private",
    )
    found = {name: folder / name for name in names}
    found["folder"].mkdir()
    found["dangling"].symlink_to(folder / "nowhere")
    found["circle"].symlink_to(found["circle"])
    os.mkfifo(found["pipe"])
    found["long"] = folder / ("x" * 300)
    found["empty"].touch()
    found["private"].touch(mode=0o000)
    found |= {
        "zeros": Path("/dev/zero"),
        "null": Path("/dev/null"),
        "inside a file": found["empty"] / "x",
    }
    return found


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file(reader: str, tmp_path: Path) -> None:
    for name, path in places(tmp_path).items():
        with only_ours(20) as said:
            READERS[reader](path)
        assert said, name


@pytest.mark.parametrize("name", FILES)
def test_results_with_a_file_that_is_none(
    results: Path, name: str, tmp_path: Path
) -> None:
    (tmp_path / "places").mkdir()
    for kind, other in places(tmp_path / "places").items():
        folder = tmp_path / kind
        folder.mkdir()
        with_file(results, folder, name, None)
        (folder / name).unlink()
        (folder / name).symlink_to(other)
        with only_ours(20) as said:
            load(folder)
        assert said, kind


def test_a_link_to_a_file_is_a_file(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkpoints / "sdbgd")
    assert tiebreak.load(tmp_path / "link").steps == 6


@pytest.mark.parametrize(
    "text", [as_json(DEEP), "[" * 10**6, "9" * 10**5, '{"a":' * 10**5]
)
def test_deep_and_long_json(results: Path, text: str, tmp_path: Path) -> None:
    with_file(results, tmp_path, "config.json", text.encode())
    with pytest.raises(ValueError, match="is not as the command wrote it"):
        load(tmp_path)
