"""The command line with whatever may be typed: an exit code and a line of ours, never a traceback, never a hang."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import NUMBERS, WORDS, inputs, limited
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tiebreak.cli.app import app
from tiebreak.studies.comparison.problems import rehearse

NUMBER = st.one_of(
    st.sampled_from(
        [
            "0",
            "1",
            "2",
            "3",
            "10",
            "100",
            "1e3",
            "0.5",
            "1e-3",
            "1e5",
            "1.5",
            "-0",
            "+3",
            "1_0",
            "0x10",
            "٣",
        ]
    ),
    st.sampled_from(
        [
            repr(number) if abs(number) < 1e300 else str(number)[:400]
            for number in NUMBERS
        ]
    ),
    st.integers(-3, 500).map(str),
    st.floats(1e-3, 1e3).map(repr),
)
NASTY = st.one_of(
    st.sampled_from([word for word in WORDS if word != "\ud800"]), st.text(max_size=12)
)
TEXT = st.one_of(NUMBER, NUMBER, NUMBER, NASTY)
METHODS = ["sdbgd", "SDBPG", "pr_sdbpg", "vr-pr-sdbpg", "penalty", "dbgd", "nonsense"]
PROBLEMS = [
    "paper",
    "valley-4",
    "Islands-3-heavy",
    "random",
    "random-heavy",
    "valley-1",
    "all",
    "file:x",
    "out/x.py:y",
]
CONSTANTS = ("L_f", "L_g", "G_f", "sigma_f", "sigma_g", "delta_f", "delta_g", "x")
PLACES = (
    "out",
    "file",
    "file/below",
    "link",
    "circle",
    "nothing/deep",
    "",
    "\0",
    "x" * 300,
)

constants = st.one_of(
    st.just("paper"),
    st.builds(
        lambda start, pairs: ",".join(
            [*start, *(f"{name}={value}" for name, value in pairs)]
        ),
        st.sampled_from([["paper"], []]),
        st.lists(st.tuples(st.sampled_from(CONSTANTS), TEXT), max_size=8),
    ),
    NASTY,
)
names = st.one_of(st.lists(st.sampled_from(METHODS), max_size=3).map(",".join), NASTY)
place = st.sampled_from(PLACES)
OPTIONS: dict[str, dict[str, Any]] = {
    "table": {"--epsilon": TEXT, "--constants": constants, "--markdown": None},
    "plan": {
        "--budget": TEXT,
        "--epsilon": TEXT,
        "--method": names,
        "--objective": st.sampled_from(["bound", "practice", "x", ""]),
        "--kind": st.sampled_from(["horizon", "anytime", "x"]),
        "--constants": constants,
        "--runs": TEXT,
        "--seed": TEXT,
        "--run": None,
        "--output": place,
    },
    "reproduce": {
        "--methods": names,
        "--runs": TEXT,
        "--budget": TEXT,
        "--seed": TEXT,
        "--start": st.one_of(st.tuples(TEXT, TEXT).map(",".join), TEXT),
        "--noise": TEXT,
        "--record": st.one_of(st.sampled_from(["log", "all"]), TEXT),
        "--per-sample": None,
        "--output": place,
        "--workers": TEXT,
        "--scheduler": st.one_of(
            st.sampled_from(["local:0", "local:x", "tcp:", "http//x"]), NASTY
        ),
    },
    "verify": {
        "--runs": TEXT,
        "--seed": TEXT,
        "--output": place,
        "--quick": None,
        "--workers": TEXT,
    },
    "compare": {
        "--problems": st.one_of(
            st.lists(st.sampled_from(PROBLEMS), max_size=3).map(",".join), NASTY
        ),
        "--methods": st.one_of(
            st.sampled_from(["all", "sdbgd_practice,penalty", "file:x", "file.py:x"]),
            names,
        ),
        "--budgets": st.one_of(st.lists(TEXT, max_size=3).map(",".join), TEXT),
        "--runs": TEXT,
        "--trials": TEXT,
        "--seed": TEXT,
        "--quick": None,
        "--output": place,
        "--workers": TEXT,
    },
    "report": {},
    "list": {},
}


class Worked(Exception):
    """A command has come to where it would work for long."""


def stop(*_: object, **__: object) -> Any:
    raise Worked


@pytest.fixture(scope="module", autouse=True)
def no_work() -> Iterator[None]:
    """Everything up to the work: what is run, drawn and swept has tests of its own, and takes seconds."""
    patch = pytest.MonkeyPatch()
    patch.setattr("tiebreak.cli.study.run", stop)
    patch.setattr(
        "tiebreak.studies.comparison.comparison.rehearse",
        lambda problems, methods, *options: rehearse(
            problems[:2], methods[:4], *options
        ),  # of hundreds of pairs
    )
    patch.setenv("COLUMNS", "100")
    yield
    patch.undo()


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options; now and then of another one, or twice, or no command at all."""
    command = draw(st.sampled_from([*OPTIONS, "plan", "reproduce", "compare"]))
    words = [command] if draw(st.integers(0, 19)) else [draw(NASTY)]
    options = (
        OPTIONS[command]
        if draw(st.integers(0, 9))
        else {n: o for each in OPTIONS.values() for n, o in each.items()}
    )
    if command == "plan" and draw(st.booleans()):
        words += ["--budget", draw(NUMBER)]
    for name in (
        draw(st.lists(st.sampled_from(sorted(options)), max_size=4)) if options else ()
    ):
        words.append(name)
        if options[name] is not None:
            words.append(draw(options[name]))
    if command == "report" or not draw(st.integers(0, 15)):
        words.append(draw(st.one_of(place, NASTY)))
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands work: there is a file, a link, and a link to itself."""
    made = tmp_path_factory.mktemp("cli")
    (made / "file").touch()
    (made / "link").symlink_to(made / "out")
    (made / "circle").symlink_to(made / "circle")
    return made


def run(words: list[str], folder: Path) -> Any:
    """The command in this process; what is not ours comes through."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("error")
            return CliRunner().invoke(app, words, prog_name="tiebreak")
    finally:
        os.chdir(before)


@inputs(0.12, 50)
@given(words=command_lines())
def test_command_lines(folder: Path, words: list[str]) -> None:
    done = run(words, folder)
    if isinstance(done.exception, Worked):
        return
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(words) from done.exception
    assert done.exit_code in (0, 1, 2), (words, done.output)
    assert "Traceback" not in done.output
    if done.exit_code:
        assert done.output.strip(), words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--budget", "1e400"), "budget"),
        (("table", "--epsilon", "9" * 500), "epsilon"),
        (("table", "--constants", "paper,L_f=1e999"), "L_f"),
    ],
)
def test_numbers_beyond_all_range(
    words: tuple[str, ...], said: str, folder: Path
) -> None:
    done = run([*words], folder)
    assert done.exit_code == 2
    assert said in done.output
