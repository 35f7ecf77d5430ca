"""What `make release` asks before it builds; completion; ``python -m tiebreak``."""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType

import pytest

import tiebreak

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"


def tool(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of tools/ as a module."""
    monkeypatch.syspath_prepend(str(TOOLS))
    specification = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that the checks read."""
    for name in ("README.md", "CITATION.cff", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    only = shutil.ignore_patterns("*.pyc", "*.png", "*.svg", "*.ipynb", "_build", "__pycache__")
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=only)
    return tmp_path


def test_version_changelog_citation_and_docs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    consistency = tool("consistency", monkeypatch)
    assert consistency.version(ROOT) == tiebreak.__version__
    assert consistency.faults(ROOT) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("CITATION.cff", "version: {v}", "version: 9.9.9", "CITATION.cff: version is 9.9.9, not {v}"),
        ("CITATION.cff", "license: BSD-3-Clause", "license: MIT", "CITATION.cff: license is MIT, not BSD-3-Clause"),
        ("README.md", "version = {{{v}}}", "version = {{9.9.9}}", "README.md: the BibTeX entry says 9.9.9, not {v}"),
        ("README.md", "[torch]", "[torsch]", "README.md: there is no extra 'torsch'"),
        ("docs/jax.md", ".[jax]", ".[jacks]", "docs/jax.md: there is no extra 'jacks'"),
        ("docs/api/minimize.md", "minimize", "maximize", "docs/api: tiebreak.minimize is on no page"),
        ("docs/api/torch.md", "GrowingBatches", "X", "docs/api: tiebreak.torch.GrowingBatches is on no page"),
        ("pyproject.toml", ":: 3.11", ":: 3.9", "requires-python begins with 3.11, the classifiers with 3.9"),
    ],
)
def test_a_contradiction_is_found(
    copy: Path, monkeypatch: pytest.MonkeyPatch, file: str, before: str, after: str, said: str
) -> None:
    consistency = tool("consistency", monkeypatch)
    before, after, said = (text.format(v=tiebreak.__version__) for text in (before, after, said))
    text = (copy / file).read_text(encoding="utf-8")
    assert before in text
    (copy / file).write_text(text.replace(before, after), encoding="utf-8")
    assert any(fault.endswith(said) for fault in consistency.faults(copy))


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        ("## [Unreleased]\n\nWhat will be {v}.", None),
        ("## [Unreleased]\n\nWhat will be 9.9.9.", "[Unreleased] does not name {v}"),
        (f"## [{{v}}] - {date.today()}", None),
        (f"## [{{v}}] - {date.today() + timedelta(days=2)}", "is to come"),
        ("## [{v}]", "[{v}] has no date"),
        ("## [9.9.9] - 2026-01-01", "the newest section is [9.9.9], not [{v}]"),
        ("nothing", "there is no section"),
    ],
)
def test_the_changelog_is_of_this_version(
    copy: Path, monkeypatch: pytest.MonkeyPatch, heading: str, said: str | None
) -> None:
    consistency = tool("consistency", monkeypatch)
    heading, said = heading.format(v=tiebreak.__version__), said and said.format(v=tiebreak.__version__)
    (copy / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n### Added\n\n- x\n", encoding="utf-8")
    found = consistency.faults(copy)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_the_oldest_libraries_are_those_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tool("release", monkeypatch)
    wheel = tmp_path / "x-1-py3-none-any.whl"
    lines = [
        "Requires-Dist: numpy>=2.0; python_version < '3.13'",
        "Requires-Dist: numpy>=2.1; python_version >= '3.13'",
        "Requires-Dist: jax>=0.5.3; extra == 'jax'",
        "Requires-Dist: optax>=0.2.5; extra == 'jax'",
        "Requires-Dist: torch>=2.6; extra == 'torch'",
    ]
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("x-1.dist-info/METADATA", "\n".join(lines) + "\n")
    assert release.oldest(wheel, "", "3.11") == ["numpy==2.0"]
    assert release.oldest(wheel, "jax", "3.13") == ["numpy==2.1", "jax==0.5.3", "optax==0.2.5"]
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in release.pythons()


def test_what_is_in_the_artefacts_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tool("release", monkeypatch)
    wheel, sdist = tmp_path / "x.whl", tmp_path / "x.tar.gz"
    sources = [str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tiebreak").rglob("*.py")]
    wanted = [
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "pyproject.toml",
        "tests/reference.py",
        "docs/index.md",
    ]

    def made(inside: list[str], archived: list[str]) -> list[str]:
        with zipfile.ZipFile(wheel, "w") as file:
            for name in inside:
                file.writestr(name, "")
        with tarfile.open(sdist, "w:gz") as archive:
            for name in archived:
                archive.addfile(tarfile.TarInfo(f"x-1/{name}"), io.BytesIO())
        found: list[str] = release.contents(wheel, sdist)
        return found

    whole = [*sources, "tiebreak/py.typed", "tiebreak-1.dist-info/METADATA"]
    assert made(whole, wanted) == []
    assert made([*whole, "tests/x.py"], wanted) == ["x.whl: tests/ does not belong there"]
    assert made([name for name in whole if name != "tiebreak/py.typed"], wanted) == [
        "x.whl: tiebreak/py.typed is missing"
    ]
    assert made(whole, [*wanted[1:], "results/a"]) == [
        "x.tar.gz: README.md is missing",
        "x.tar.gz: results/a does not belong there",
    ]


def test_the_smoke_test_passes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part for the core, with what is installed; `make release` runs all of it in empty environments."""
    monkeypatch.chdir(tmp_path)
    assert tool("smoke", monkeypatch).core().startswith("numpy ")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("reprod", {"reproduce"}),
        ("example fairness-c", {"fairness-compas-parity", "fairness-compas-odds"}),
        ("plan --bud", {"--budget"}),
    ],
)
def test_a_shell_completes_commands_options_and_examples(words: str, completed: set[str]) -> None:
    asked = {
        "_TIEBREAK_COMPLETE": "complete_bash",
        "COMP_WORDS": f"tiebreak {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    command = [sys.executable, "-m", "tiebreak"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=120)
    assert set(done.stdout.split()) == completed, done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tiebreak", "--version"], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"tiebreak {tiebreak.__version__}\n"
