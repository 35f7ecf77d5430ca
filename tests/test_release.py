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
from command import call

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"


def tool(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of tools/ as a module."""
    monkeypatch.syspath_prepend(str(TOOLS))
    specification = importlib.util.spec_from_file_location(
        f"tools_{name}", TOOLS / f"{name}.py"
    )
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
    only = shutil.ignore_patterns(
        "*.pyc", "*.png", "*.svg", "*.ipynb", "_build", "__pycache__"
    )
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=only)
    return tmp_path


def test_version_changelog_citation_and_docs_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consistency = tool("consistency", monkeypatch)
    assert consistency.version(ROOT) == tiebreak.__version__
    assert consistency.faults(ROOT) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        (
            "CITATION.cff",
            "version: {v}",
            "version: 9.9.9",
            "CITATION.cff: version is 9.9.9, not {v}",
        ),
        (
            "CITATION.cff",
            "license: BSD-3-Clause",
            "license: MIT",
            "CITATION.cff: license is MIT, not BSD-3-Clause",
        ),
        (
            "README.md",
            "version = {{{v}}}",
            "version = {{9.9.9}}",
            "README.md: the BibTeX entry says 9.9.9, not {v}",
        ),
        ("README.md", "[torch]", "[torsch]", "README.md: there is no extra 'torsch'"),
        ("docs/jax.md", ".[jax]", ".[jacks]", "docs/jax.md: there is no extra 'jacks'"),
        (
            "docs/api/minimize.md",
            "minimize",
            "maximize",
            "docs/api: tiebreak.minimize is on no page",
        ),
        (
            "docs/api/torch.md",
            "GrowingBatches",
            "X",
            "docs/api: tiebreak.torch.GrowingBatches is on no page",
        ),
        (
            "pyproject.toml",
            ":: 3.11",
            ":: 3.9",
            "requires-python begins with 3.11, the classifiers with 3.9",
        ),
    ],
)
def test_a_contradiction_is_found(
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    before: str,
    after: str,
    said: str,
) -> None:
    consistency = tool("consistency", monkeypatch)
    before, after, said = (
        text.format(v=tiebreak.__version__) for text in (before, after, said)
    )
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
    heading, said = (
        heading.format(v=tiebreak.__version__),
        said and said.format(v=tiebreak.__version__),
    )
    (copy / "CHANGELOG.md").write_text(
        f"# Changelog\n\n{heading}\n\n### Added\n\n- x\n", encoding="utf-8"
    )
    found = consistency.faults(copy)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_the_oldest_libraries_are_those_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tool("release", monkeypatch)
    wheel = tmp_path / "x-1-py3-none-any.whl"
    lines = [
        "Requires-Dist: numpy>=2.0; python_version < '3.13'",
        "Requires-Dist: numpy>=2.1; python_version >= '3.13'",
        "Requires-Dist: jax>=0.5.3; extra == 'jax'",
        "Requires-Dist: optax>=0.2.5; extra == 'jax'",
        "Requires-Dist: torch>=2.6; extra == 'torch'",
        "Requires-Dist: rich>=13.8; extra == 'cli'",
        "Requires-Dist: tiebreak[cli]; extra == 'report'",
        "Requires-Dist: plotly>=6; extra == 'report'",
    ]
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("x-1.dist-info/METADATA", "\n".join(lines) + "\n")
    assert release.oldest(wheel, "", "3.11") == ["numpy==2.0"]
    assert release.oldest(wheel, "jax", "3.13") == [
        "numpy==2.1",
        "jax==0.5.3",
        "optax==0.2.5",
    ]
    assert release.oldest(wheel, "report", "3.12") == [
        "numpy==2.0",
        "rich==13.8",
        "plotly==6",
    ]
    assert release.oldest(wheel, "cli", "3.12") == ["numpy==2.0", "rich==13.8"]
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in release.pythons()


def test_what_is_in_the_artefacts_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tool("release", monkeypatch)
    wheel, sdist = tmp_path / "x.whl", tmp_path / "x.tar.gz"
    files = [path for path in (ROOT / "src" / "tiebreak").rglob("*") if path.is_file()]
    sources = [
        path.relative_to(ROOT / "src").as_posix()
        for path in files
        if "__pycache__" not in path.parts
    ]
    texts = ["README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"]
    wanted = [*texts, *(f"src/{name}" for name in sources)]

    def made(inside: list[str], archived: list[str]) -> list[str]:
        with zipfile.ZipFile(wheel, "w") as file:
            for name in inside:
                file.writestr(name, "")
        with tarfile.open(sdist, "w:gz") as archive:
            for name in archived:
                archive.addfile(tarfile.TarInfo(f"x-1/{name}"), io.BytesIO())
        found: list[str] = release.contents(wheel, sdist)
        return found

    whole = [*sources, "tiebreak-1.dist-info/METADATA"]
    assert made(whole, wanted) == []
    assert made([*whole, "tests/x.py"], wanted) == [
        "x.whl: tests/ does not belong there"
    ]
    for gone in (
        "py.typed",
        "studies/page.js",
        "studies/page.css",
        "styles/column.mplstyle",
        "solver/minimize.py",
    ):
        left = [name for name in whole if name != f"tiebreak/{gone}"]
        assert len(left) == len(whole) - 1
        assert made(left, wanted) == [f"x.whl: tiebreak/{gone} is missing"]
    assert set(sources) >= release.DATA
    for name in (
        "results/a",
        "tests/reference.py",
        "gallery/example.py",
        "benchmarks/step.py",
    ):
        assert made(whole, [*wanted[1:], name]) == [
            "x.tar.gz: README.md is missing",
            f"x.tar.gz: {name} does not belong there",
        ]


def test_the_smoke_test_passes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core's part, and a report's; `make release` runs all of it in empty environments."""
    monkeypatch.chdir(tmp_path)
    smoke = tool("smoke", monkeypatch)
    assert smoke.core().startswith("numpy ")
    assert smoke.report().startswith("plotly ")
    assert (tmp_path / "plan" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("reprod", {"reproduce"}),
        ("plan --bud", {"--budget"}),
        ("plan --objective pr", {"practice"}),
        (
            "compare --methods sdbgd,penal",
            {"sdbgd,penalty", "sdbgd,penalty_bound", "sdbgd,penalty_practice"},
        ),
        ("compare --problems plat", {"plateau", "plateau-10", "plateau-100-heavy"}),
    ],
)
def test_a_shell_completes_commands_options_and_names(
    words: str, completed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TIEBREAK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tiebreak {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert set(call().stdout.split()) == completed


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tiebreak", "--version"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == f"tiebreak {tiebreak.__version__}\n"


@pytest.mark.skipif(os.name != "posix", reason="CI's scripts are for bash")
@pytest.mark.parametrize("tools", ["none", "failing apt-get", "a browser"])
def test_a_browser_that_cannot_be_had_is_said_loudly(
    tools: str, tmp_path: Path
) -> None:
    """Not a failure, for apt's network is not ours; but nobody may take skipped tests for tests that passed."""
    made = {
        "failing apt-get": ["apt-get", "sleep", "id"],
        "a browser": ["chromedriver", "chromium"],
    }.get(tools, [])
    for name in made:
        answer = {"apt-get": "echo no network; exit 100", "id": "echo 0"}.get(
            name, "true"
        )
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "mktemp", "rm", "tail", "tr", "timeout", "id"):
        if not (tmp_path / name).exists():
            (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(tmp_path / "bash"), str(ROOT / ".ci" / "browser")],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == (0 if tools == "a browser" else 1), done
    assert ("SKIPPED" in done.stdout) == (tools != "a browser")
    assert ("no network" in done.stdout) == (tools == "failing apt-get")


@pytest.mark.skipif(os.name != "posix", reason="CI's scripts are for bash")
@pytest.mark.parametrize("code", [0, 2])
def test_the_skip_is_the_last_that_ci_says(code: int, tmp_path: Path) -> None:
    """However the rest ends, and with its exit code."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for path, text in {
        ".ci/browser": "echo the tests are SKIPPED; exit 1",
        "make": f"echo made; exit {code}",
    }.items():
        (tmp_path / path).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / path).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert done.returncode == code, done.stdout
    assert done.stdout.splitlines()[-1] == "the tests are SKIPPED"
    assert "made" in done.stdout
