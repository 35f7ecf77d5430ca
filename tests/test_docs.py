"""What the README and the pages tell people to type: commands parse, Python compiles, links lead somewhere.

Blocks with prompts (``>>>``) are run, each page as a doctest; nothing is run here.
"""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import typer

import tiebreak
from tiebreak.cli.app import app
from tiebreak.studies import Comparison
from tiebreak.studies.comparison.problems import compared_problems

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not {"_build", "_tables"} & set(page.parts)
    ),
]
MINE = """
from dataclasses import replace
from tiebreak import methods, problems
problem = replace(problems.paper(), name="mine")
method = methods.sdbgd.replace(name="method")
mine = methods.sdbgd.replace(name="mine")
"""
ids = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> Iterator[str]:
    """The fenced blocks of a language, those inside of lists, too."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(
        rf"^( *)```{language}\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE
    ):
        yield dedent(found[2])


def commands(page: Path) -> Iterator[str]:
    """Every `tiebreak …` of a page, in console blocks and in running text; an ellipsis marks one that is not whole."""
    lines = [
        line.removeprefix("$ ")
        for block in blocks(page, "console")
        for line in block.splitlines()
    ]
    prose = re.sub(
        r"^ *```.*?^ *```$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    inline = [
        " ".join(span.split())
        for span in re.findall(r"(?<!`)`(tiebreak [^`]+)`(?!`)", prose)
    ]
    for line in (*lines, *inline):
        if line.startswith("tiebreak ") and "…" not in line:
            yield line


def parsed(line: str) -> Any:
    """The options that the command line makes of a command, without running it."""
    name, *arguments = shlex.split(line, comments=True)[1:]
    group = typer.main.get_command(app)
    if name.startswith("--"):  # of no command, such as --version
        known = {option for each in group.params for option in each.opts}
        assert name in known, f"{name} is no option of tiebreak: {sorted(known)}"
        return {}
    assert name in group.commands, f"tiebreak has no command {name!r}"
    if (
        not arguments or "--help" in arguments
    ):  # a command by its name, such as `tiebreak report`
        return {}
    return group.commands[name].make_context(name, arguments).params


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_command_parses(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name, its options and their values; methods and problems exist, in `mine.py` those that the pages have."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE, encoding="utf-8")
    for line in commands(page):
        try:
            given = parsed(line)
            for option, find in (
                ("methods", lambda names: Comparison("paper", names)),
                ("problems", compared_problems),
            ):
                if option in given and not line.startswith(
                    ("tiebreak reproduce", "tiebreak verify")
                ):
                    find(given[option] or ["all"])
        except Exception as error:
            raise AssertionError(f"{page.name}: `{line}`: {error}") from error


def test_what_is_wrong_does_not_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: a command, an option, a number of arguments, a method."""
    page = tmp_path / "page.md"
    for line in (
        "tiebreak compear",
        "tiebreak compare --quik",
        "tiebreak report a b",
        "tiebreak compare --methods sdbgd,mine.py",
        "tiebreak --versoin",
    ):
        page.write_text(f"```console\n$ {line}   # why\n```\n", encoding="utf-8")
        with pytest.raises(AssertionError, match=r"page\.md: "):
            test_every_command_parses(page, tmp_path, monkeypatch)
        page.write_text(f"See `{line}`.\n", encoding="utf-8")
        with pytest.raises(AssertionError, match=r"page\.md: "):
            test_every_command_parses(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


@pytest.fixture(scope="module")
def defined_tests() -> set[str]:
    """The names of all tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return set(re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_named_test_exists(page: Path, defined_tests: set[str]) -> None:
    """A page that names the test of a statement, or a file of tests, names one that exists."""
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined_tests
    for name in re.findall(r"`(tests/[\w/]+\.py|test_\w+\.py)`", text):
        assert (ROOT / name).exists() or list((ROOT / "tests").rglob(name)), name


def anchors(page: Path) -> set[str]:
    """The headings as GitHub and MyST make anchors of them."""
    text = re.sub(
        r"^```.*?^```$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")
        for head in heads
    }


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/training.md",
        "docs/should-i-use-it.md",
        "docs/pytorch.md",
        "docs/finish.md",
        "docs/report.md",
        "docs/results.md",
        "docs/command-line.md",
        "docs/troubleshooting.md",
    ],
)
def test_every_link_leads_somewhere(name: str) -> None:
    """Files and headings, in a clone; all pages of the documentation are checked where they are built (`make site`)."""
    page, wrong = ROOT / name, []
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        parts = urlsplit(link)
        if parts.scheme:
            continue
        file = page.parent / parts.path if parts.path else page
        if not file.exists() or (
            parts.fragment and parts.fragment not in anchors(file)
        ):
            wrong.append(link)
    assert not wrong
    assert links or name != "README.md"


def test_what_was_measured_takes_the_place_of_what_was_not(tmp_path: Path) -> None:
    """docs/collect.py: table, picture and numbers go where they belong, and the page stops saying they are missing."""
    collect = script("collect")
    docs, run, results = (tmp_path / name for name in ("docs", "run", "results"))
    for folder in (docs / "_tables", docs / "_static", docs / "gallery", run, results):
        folder.mkdir(parents=True)
    summary = {
        "example": "mine",
        "title": "Mine",
        "study": {"quick": False, "methods": []},
        "interrupted": False,
    }
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (run / "summary.md").write_text("| a |", encoding="utf-8")
    (run / "plane.png").write_bytes(b"")
    page = docs / "gallery" / "mine.md"
    page.write_text(
        "# Mine\n\n<!-- gallery-mine -->\n\n**Not measured yet.** Nothing.\n\n## Limits\n",
        encoding="utf-8",
    )
    assert collect.collect(run, docs, results) == "mine"
    once = page.read_text(encoding="utf-8")
    assert once == f"# Mine\n\n{collect.shown('mine', 'Mine')}\n## Limits\n"
    collect.collect(run, docs, results)
    assert page.read_text(encoding="utf-8") == once
    # The quick size has a place of its own, if there are seeds enough for a table.
    for seeds in (1, 5):
        summary["study"] |= {"quick": True, "seeds": seeds}
        summary["command"] = "python -m gallery mine"
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        if seeds == 1:
            with pytest.raises(
                SystemExit, match="is quick, and has fewer than 5 seeds"
            ):
                collect.collect(run, docs, results)
        else:
            assert collect.collect(run, docs, results) == "mine-quick"
    assert (results / "gallery-mine-quick.json").exists()
    assert page.read_text(encoding="utf-8") == once


def test_a_gallery_page_shows_a_result_or_says_that_there_is_none() -> None:
    for page in sorted((ROOT / "docs" / "gallery").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name, after in re.findall(
            r"^<!-- gallery-(\S+) -->\n\n(.*)$", text, re.MULTILINE
        ):
            measured = (
                ROOT / "benchmarks" / "results" / f"gallery-{name}.json"
            ).exists()
            later = name.endswith(
                ("-time", "-again")
            )  # beside another run's: a table alone
            shown = "```{include}" if later else "```{image}"
            assert after.startswith(shown if measured else "**Not measured yet.**"), (
                f"{page.name}: {name}"
            )


def test_the_loop_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """What its diff leaves, with a small model and data in the place of the reader's; both ends of it compile."""
    torch = pytest.importorskip("torch")
    (diff,) = blocks(ROOT / "README.md", "diff")
    for sign in "-+":
        side = "\n".join(
            line[1:] for line in diff.splitlines() if line[:1] in ("", " ", sign)
        )
        compile(side, "README.md", "exec")
    torch.manual_seed(0)
    inputs, model = torch.randn(64, 8), torch.nn.Linear(8, 1)
    given = {
        "model": model,
        "loader": [torch.randint(0, 64, (32,)) for _ in range(40)],
        "fit": lambda model, rows: (
            (model(inputs[rows]) - inputs[rows, :1]).square().mean()
        ),
        "sparsity": lambda model: model.weight.abs().sum(),
    }
    exec(side, given)
    (promised,) = (
        block for block in blocks(ROOT / "README.md", "text") if "excess" in block
    )
    shown, promised = (
        re.sub(r"-?\d[\d.]*", "0", text).strip()
        for text in (capsys.readouterr().out, promised)
    )
    # The line of this small example may end before the tolerance does.
    assert shown.partition("; the line ends here")[0] == promised


def settings() -> list[tuple[str, Any]]:
    """Name and method of every row of the table in docs/known-methods.md."""
    page = ROOT / "docs" / "known-methods.md"
    names: dict[str, Any] = {}
    exec(next(blocks(page, "python")), names)
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| `(.+)` \|$", page.read_text("utf-8"), re.MULTILINE
    )
    return [(name, eval(code, names)) for name, code in rows]


@pytest.mark.parametrize(("name", "method"), settings())
def test_a_published_method_is_a_setting(name: str, method: Any) -> None:
    """The solver runs each, and the optimizers run each without a memory."""
    problem = tiebreak.problems.paper()
    result = tiebreak.minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method=method.replace(step_size=0.05),
        steps=5,
        runs=2,
        seed=0,
    )
    assert np.isfinite(result.x).all()
    if method.remembers:
        return
    torch = pytest.importorskip("torch")
    pytest.importorskip("jax")
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = tiebreak.torch.DynamicBarrier(base, method=method, normalize=False)
    step = opt.step(
        lower=lambda: (model(torch.ones(4, 3)) - 1).square().mean(),
        upper=lambda: model.weight.abs().sum(),
    )
    assert step.multiplier.item() >= 0
    tiebreak.optax.dynamic_barrier(method=method, normalize=False)


def script(name: str) -> Any:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["guarantees", "rates", "waiting"])
def test_a_table_is_that_of_the_code_and_the_records(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = script("measure")
    monkeypatch.setattr(measure, "TABLES", tmp_path)
    measure.write(name, measure.MEASUREMENTS[name]())
    written = (tmp_path / f"{name}.md").read_text("utf-8")
    assert written == (ROOT / "docs" / "_tables" / f"{name}.md").read_text("utf-8")


def test_the_tables_of_the_gallery_are_those_of_the_records() -> None:
    """The overview is that of the records, and the table of the README has rows of it."""
    collect = script("collect")
    table = (ROOT / "docs" / "_tables" / "gallery.md").read_text("utf-8")
    assert table == collect.overview()
    rows = [line.split(" | ")[:4] for line in table.splitlines()]
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = [
        line.removesuffix(" |").split(" | ")
        for line in readme.splitlines()
        if re.match(r"\| .*[↓↑] \|", line)
    ]
    assert len(shown) == 4
    assert all(row in rows for row in shown)
