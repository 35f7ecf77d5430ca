"""What SECURITY.md promises: nothing that users exchange is a pickle, and what was found by fuzzing stays mended."""

import ast
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiebreak
from fuzzing import limited
from tiebreak.options import recorded
from tiebreak.studies.store import Store, encoded
from tiebreak.studies.task import Block, Task
from training import simple_method

PACKAGE = Path(tiebreak.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Code that users name themselves (a problem of their own), and kernels made of our own formulas.
RUNS_CODE = {"studies/user_files.py", "torch/kernels/triton_decision.py"}
PICKLES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def calls(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every call in a module: what is called, as it is written, and its keywords that are constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    constant = ast.Constant
    return [
        (
            ast.unparse(call.func),
            {
                k.arg: k.value.value
                for k in call.keywords
                if k.arg and isinstance(k.value, constant)
            },
        )
        for call in found
    ]


def imports(path: Path) -> set[str]:
    """The packages that a module imports, and the names that it asks `import_module` for."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            "import_module"
        ):
            found |= {
                str(arg.value).partition(".")[0]
                for arg in node.args
                if isinstance(arg, ast.Constant)
            }
    return found


def test_no_module_knows_pickles() -> None:
    """The standard library's pool pickles tasks and blocks between a process and its workers: never a file."""
    assert [name_of(path) for path in MODULES if imports(path) & PICKLES] == []


def test_readers_refuse_pickles() -> None:
    """`np.load` says so in words; nothing else that could read one is called at all."""
    readers = 0
    for path in MODULES:
        for function, keywords in calls(path):
            if function in ("np.load", "numpy.load"):
                readers += 1
                assert keywords.get("allow_pickle") is False, path
            where = f"{function} in {path}"
            assert function not in (
                "torch.load",
                "torch.save",
                "pd.read_pickle",
                "np.fromfile",
            ), where
            assert keywords.get("allow_pickle") is not True, where
            assert keywords.get("weights_only") is not False, where
    assert readers == 2  # checkpoints and blocks


def test_code_is_run_in_two_places() -> None:
    dangerous = {
        "eval",
        "exec",
        "os.system",
        "os.popen",
        "yaml.load",
        "yaml.unsafe_load",
        "compile",
    }
    assert {
        name_of(path)
        for path in MODULES
        if {name for name, _ in calls(path)} & dangerous
    } == RUNS_CODE


class Trap:
    """A pickle of it would run code when it is read."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("a trap has sprung",))


def test_a_pickle_in_a_checkpoint_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "run.npz", meta=np.array(Trap(), dtype=object))
    with pytest.raises(ValueError, match="is not a result saved by tiebreak"):
        tiebreak.load("run.npz")
    assert not (tmp_path / "a trap has sprung").exists()


def test_states_are_plain_data(tmp_path: Path) -> None:
    """`torch.load` with `weights_only=True`, its default, reads whatever the optimizers save."""
    torch = pytest.importorskip("torch")
    from tiebreak.torch import DynamicBarrier

    for options in (
        {"tolerance": "2%", "reference": "twin"},
        {"method": simple_method(estimator="average")},
    ):
        x = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        opt = DynamicBarrier(
            torch.optim.AdamW([x]), model=torch.nn.ParameterList([x]), **options
        )
        opt.step(lower=lambda x=x: x[0].square(), upper=lambda x=x: x.abs().sum())
        torch.save(opt.state_dict(), tmp_path / "state.pt")
        opt.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert opt.count == 1


# --- found by fuzzing: the smallest example of each -------------------------------------------------------------------


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (tiebreak.load, recorded):
        with (
            limited(20),
            pytest.raises(OSError, match="neither a file nor a link to one"),
        ):
            read(tmp_path / "pipe")


def test_a_memory_of_other_numbers(tmp_path: Path) -> None:
    """STORM's previous point as truths: it can be read, and would fail in the first step."""
    problem, path = tiebreak.problems.paper(), tmp_path / "run.npz"
    levels = problem.upper, problem.lower
    tiebreak.minimize(*levels, problem.x0, method="vr_pr_sdbpg", steps=3, seed=0).save(
        path
    )
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(
        path,
        **arrays
        | {"memory.upper.0": np.ones_like(arrays["memory.upper.0"], dtype=bool)},
    )
    with pytest.raises(ValueError, match=r"remembers .*bool of shape .* needs"):
        tiebreak.minimize(*levels, steps=5, resume=path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k", 2**63),
        ("weight", 10**400),
        ("weight", math.inf),
        ("selected_step", -1),
        ("steps", -1),
    ],
)
def test_counts_of_a_checkpoint_beyond_all_range(
    name: str, value: Any, tmp_path: Path
) -> None:
    problem, path = tiebreak.problems.paper(), tmp_path / "run.npz"
    tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=3, seed=0).save(
        path
    )
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    if name in arrays:
        arrays[name] = np.full_like(arrays[name], value)
    else:
        arrays["meta"] = np.array(
            json.dumps(json.loads(str(arrays["meta"])) | {name: value})
        )
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=rf"was not saved by tiebreak: {name} is"):
        tiebreak.load(path)


def test_a_log_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "fit.csv").write_bytes(b"\xf3tep,lower_loss\n0,1.0\n")
    with pytest.raises(ValueError, match=r"fit\.csv' is no CSV log"):
        recorded(tmp_path / "fit.csv")


def test_a_block_with_a_right_checksum_and_nothing_in_it(tmp_path: Path) -> None:
    import hashlib

    task, store, body = (
        Task("a", divmod, {}),
        Store(tmp_path),
        b"no archive",
    )
    head = {
        "fingerprint": task.fingerprint,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    store.place(task).write_bytes(json.dumps(head).encode() + b"\n" + body)
    with pytest.warns(UserWarning, match="it holds no block"):
        assert store.read(task) is None
    store.place(task).write_bytes(encoded(Block({}, {"x": 1}), task.fingerprint))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.read(task) is not None


def test_whole_numbers_beyond_floats() -> None:
    constants = tiebreak.problems.paper().constants
    with pytest.raises(ValueError, match=r"budget=.* must be at most 10\^250"):
        tiebreak.theory.plan(constants, budget=10**400)
    for call in (
        lambda: tiebreak.theory.plan(constants, epsilon=10**400),
        lambda: tiebreak.theory.oracle_complexity(10**400),
        lambda: tiebreak.theory.oracle_complexity(1e-100),
        lambda: tiebreak.Power(10**400),
        lambda: tiebreak.Schedule(barrier=10**400),
        lambda: tiebreak.Schedule(barrier=tiebreak.Power(1, 400)).at(10),
    ):
        with pytest.raises(ValueError, match=r"must be|no float holds"):
            call()


class TestStates:
    """States of the torch optimizer: refused with a sentence before anything is changed, or as good as any."""

    @staticmethod
    def made(**options: Any) -> tuple[Any, Any]:
        torch = pytest.importorskip("torch")
        from tiebreak.torch import SDBGD

        x = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
        opt = SDBGD([x], lr=0.1, model=torch.nn.ParameterList([x]), **options)
        opt.step(lower=lambda: x[0].square(), upper=lambda: x.abs().sum())
        return x, opt

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("count", -1, "count is -1"),
            ("count", math.inf, "count is inf"),
            ("version", "x", "version is x"),
            ("kept", None, "kept is None"),
            ("settings", {}, "no state of such an optimizer"),
            ("tolerance", [1, 2, 3], r"tolerance is \[1, 2, 3\]"),
            ("tolerance", [-1.0, False], "tolerance is"),
            ("law", {"steps": -1}, "tolerance rule"),
            ("law", 3, "no state of such an optimizer"),
        ],
    )
    def test_numbers_that_are_none(self, name: str, value: Any, said: str) -> None:
        _, opt = self.made(tolerance=0.1, reference=0.5)
        state = opt.state_dict()
        text = json.loads(state["param_groups"][0]["tiebreak"]) | {name: value}
        state["param_groups"][0]["tiebreak"] = json.dumps(text)
        with pytest.raises(ValueError, match=said):
            opt.load_state_dict(state)
        assert opt.count == 1

    @pytest.mark.parametrize(
        "state", [3, None, {}, {"param_groups": 3}, {"param_groups": [], "state": {}}]
    )
    def test_what_is_no_state(self, state: Any) -> None:
        _, opt = self.made(method=simple_method())
        with pytest.raises(
            ValueError, match=r"no state of such an optimizer|another optimizer"
        ):
            opt.load_state_dict(state)

    def test_flags_and_memories(self) -> None:
        torch = pytest.importorskip("torch")
        _, opt = self.made(method=simple_method(estimator="average"))
        for name, value, said in (
            ("tiebreak", "x", "must be a whole number"),
            ("tiebreak_lower_0", torch.ones(7), "lower memory of parameter 0"),
            ("tiebreak_lower_0", None, "lower memory of parameter 0"),
        ):
            state = opt.state_dict()
            state["state"][0] = {**state["state"][0], name: value}
            with pytest.raises(ValueError, match=said):
                opt.load_state_dict(state)

    @pytest.mark.parametrize(
        "options",
        [
            {"tolerance": 0.1, "reference": "start"},
            {"tolerance": 0.1, "reference": "twin"},
            {"method": simple_method(estimator="average")},
        ],
    )
    def test_a_model_that_is_moved(self, options: dict[str, Any]) -> None:
        """A copy, and what an estimator remembers, follow the parameters to another precision."""
        torch = pytest.importorskip("torch")
        x, opt = self.made(**options)
        x.data, x.grad = x.data.float(), None
        weight = torch.tensor([1.0, 0.5])
        opt.step(lower=lambda: (x @ weight).square(), upper=lambda: x.abs().sum())
        assert x.dtype == torch.float32
        assert bool(torch.isfinite(x).all())

    @pytest.mark.parametrize("sharded", [0.1, "x", {3: True}, [None]])
    def test_sharded_names_parameters(self, sharded: Any) -> None:
        with pytest.raises(
            TypeError, match=r"sharded=.* must be True, parameters, or a mapping"
        ):
            self.made(method=simple_method(), sharded=sharded)

    def test_a_log_with_another_header(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        from tiebreak.torch import CSVLog

        (tmp_path / "log.csv").write_bytes(b"step,multiplier\x80fg\n0,1.0\nhalf a line")
        with pytest.raises(ValueError, match="is no log of this kind"):
            CSVLog(tmp_path / "log.csv")
        assert (tmp_path / "log.csv").read_bytes().endswith(b"half a line")

    def test_a_loss_beyond_floats_is_not_finite(self) -> None:
        x, opt = self.made(tolerance=0.1, reference=0.5)
        with opt.lower(10**400):
            x[0].square().backward()
        with opt.upper():
            x.abs().sum().backward()
        with pytest.raises(FloatingPointError):
            opt.step()
        with pytest.raises(ValueError, match="weight="), opt.lower(weight=10**400):
            pass
