"""A study of one's own, as CONTRIBUTING has it: one file of at most 60 lines, and everything follows from it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command import call
from tiebreak.studies import Block, Experiment, Task, load, run
from tiebreak.studies.folder import read_columns
from tiebreak.studies.store import Store

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
(COINS,) = re.findall(r'```python\n("""How fast.*?)```', TEXT, re.DOTALL)


def test_it_is_short() -> None:
    assert len(COINS.splitlines()) <= 60


def test_files_summary_figures_page_and_latex_follow(tmp_path: Path) -> None:
    (tmp_path / "coins.py").write_text(COINS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "coins.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "Near\n"), done.stderr
    folder = tmp_path / "results" / "coins"
    assert load(folder).tables[0].title == "The end"
    errors = read_columns(folder / "error.csv")["error"]
    assert errors[-1] == pytest.approx(0.01, abs=0.01)
    assert len(errors) == 1000
    assert np.isfinite(errors).all()
    call("report", folder)
    assert (folder / "error.png").read_bytes().startswith(b"\x89PNG")
    assert "The end" in (folder / "report.html").read_text(encoding="utf-8")
    call("publish", folder)
    assert (folder / "paper" / "main.tex").exists()
    again = subprocess.run(
        [sys.executable, "coins.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert "The same, bit for bit." in call("diff", folder, folder).stderr
    refused = call("repeat", folder, "--output", tmp_path / "new", code=2)
    assert "this result was made by `python coins.py`; run that" in refused.stderr


def test_a_study_takes_processes_too(tmp_path: Path) -> None:
    text = COINS.replace('"results/coins")', '"results/coins", engine=2)')
    (tmp_path / "coins.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "coins.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "Near\n"), done.stderr


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    """The neighbour's checksum counts, and its copy is kept beside that of the file."""
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "from helper import SCALE\nimport tiebreak\n\n\n"
        "method = tiebreak.methods.sdbgd.replace(name='mine', step_size=0.1 * SCALE)\n",
        encoding="utf-8",
    )
    words = ["compare", "--problems", "paper", "--as-is", "--budgets", "1000"]
    words += ["--methods", f"{tmp_path}/mine.py:method", "--runs", "2"]
    call(*words, "--workers", "1", "--output", tmp_path / "a")
    copies = {path.name for path in (tmp_path / "a" / "own").glob("*/*.py")}
    assert copies == {"mine.py", "helper.py"}
    done = call("repeat", tmp_path / "a", "--own", "--output", tmp_path / "b")
    assert "The same, bit for bit." in done.stderr
    (tmp_path / "helper.py").write_text("SCALE = 3.0\n", encoding="utf-8")
    refused = call("repeat", tmp_path / "a", "--output", tmp_path / "c", code=2)
    assert "helper.py', which has changed since" in refused.stderr.replace("\n", "")


def test_a_neighbour_is_stored_and_repeated_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied folder runs its own neighbour, and refuses a changed one."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "scale.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    (here / "mine.py").write_text(
        "from scale import SCALE\nimport tiebreak\n\n\n"
        "method = tiebreak.methods.sdbgd.replace(name='mine', step_size=0.1 * SCALE)\n",
        encoding="utf-8",
    )
    words = ["compare", "--problems", "paper", "--as-is", "--budgets", "1000"]
    words += ["--methods", "mine.py:method", "--runs", "2", "--workers", "1"]
    monkeypatch.chdir(here)
    call(*words, "--output", "a")
    assert list(load("a").record["sources"]) == ["mine.py", "scale.py"]
    copied = tmp_path / "copied"
    shutil.copytree(here, copied)
    shutil.rmtree(here / "a")
    (here / "scale.py").unlink()
    monkeypatch.chdir(copied)
    call("repeat", "a", "--output", "b")
    (copied / "scale.py").write_text("SCALE = 3.0\n", encoding="utf-8")
    refused = call("repeat", "a", "--output", "c", code=2)
    assert "'scale.py', which has changed since" in refused.stderr.replace("\n", "")


def _half(progress, *, number):
    if number == 1:
        raise KeyboardInterrupt
    return Block({"part": {"number": np.array([number])}}, {})


def _failing(progress, *, number):
    raise ZeroDivisionError("no tosses")


class Named:
    """A study whose `collect` names its blocks."""

    command = "python named.py"
    function = staticmethod(_half)

    def tasks(self, blocks):
        return [Task(f"part {i}", self.function, {"number": i}) for i in range(2)]

    def collect(self, result):
        return result.blocks["part 1"]


class Forgetful(Named):
    def tasks(self, blocks):
        return super().tasks(blocks)[:1]

    def collect(self, result):
        return None


class Failing(Named):
    function = staticmethod(_failing)


def test_ctrl_c_writes_no_result_and_keeps_finished_blocks(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="1 block finished and kept"):
        run(Named(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".blocks"}
    assert len(Store(tmp_path / ".blocks")) == 1
    with pytest.raises(KeyboardInterrupt, match="not kept: there is no folder"):
        run(Named())


def test_collect_must_return_findings(tmp_path: Path) -> None:
    legal = "Forgetful.collect must return Findings, not NoneType"
    with pytest.raises(TypeError, match=legal):
        run(Forgetful(), tmp_path)
    with pytest.raises(TypeError, match=legal):
        run(Forgetful())


@pytest.mark.parametrize("engine", ["here", 1])
def test_the_error_of_a_task_names_the_task(engine: str | int) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        run(Failing(), engine=engine)
    assert raised.value.__notes__ in (
        ["The task 'part 0' failed."],
        ["The task 'part 1' failed."],
    )


def test_another_command_does_not_discard_finished_blocks(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Named(), tmp_path)
    other = Experiment(methods=["sdbgd"], runs=2, budget=1000)
    with pytest.raises(ValueError, match="unfinished work of another command") as why:
        run(other, tmp_path)
    assert "`python named.py`" in str(why.value)
    assert len(Store(tmp_path / ".blocks")) == 1
    with pytest.raises(KeyboardInterrupt):
        run(Named(), tmp_path)
    run(other, tmp_path, overwrite=True)
    assert not (tmp_path / ".blocks").exists()


def test_a_report_of_unfinished_work_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Named(), tmp_path)
    refused = " ".join(call("report", tmp_path, code=2).stderr.split())
    assert "holds unfinished work and no result yet" in refused
    assert "the same command goes on from there: python named.py" in refused
