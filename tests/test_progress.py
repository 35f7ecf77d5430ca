"""The line of a run that goes on: in a terminal, in a log file, from other processes; and none where none is wanted."""

import io
import math
import os
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT, call

import tiebreak
from tiebreak import progress
from tiebreak.progress import Line, Progress, Share, sparkline
from tiebreak.solver.budget import first_cost
from tiebreak.studies import Comparison, compare, solving, sweep
from tiebreak.studies.comparison import problems as compared
from tiebreak.studies.task import Task
from tiebreak.studies.user_files import source_at
from training import simple_method

PROBLEM = tiebreak.problems.paper()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_sparklines_are_logarithmic_where_they_can_be():
    assert sparkline([1e-8, 1e-4, 1.0]) == "▁▅█"
    assert sparkline([-1, 0, 1]) == "▁▅█"
    assert sparkline([1, math.nan, math.inf, 10]) == "▁  █"
    assert sparkline([3.0]) == "▁"
    assert sparkline([]) == ""
    assert len(sparkline(range(1, 1000))) == 16


def test_a_share_travels_with_what_the_solver_told():
    share = Share(0.25, Progress(1, 2, 0.5, 3.0, 4.0, 5.0))
    again = pickle.loads(pickle.dumps(share))
    assert (again, again.now) == (0.25, share.now)
    assert Share(0.5).now is None


def test_plain_lines_where_there_is_no_terminal(monkeypatch):
    """No more than one in two seconds, and no less, whether or not anything is told; the newest at the end."""
    monkeypatch.setattr(progress, "SILENCE", 0.2)
    stream, began = io.StringIO(), time.monotonic()
    with Line(stream) as line:
        for i in range(40):  # much more often than can be read
            line.tell(i / 100, "run", steps=i, curves={"r": 10.0**-i})
            time.sleep(0.01)
        time.sleep(0.7)  # a step that takes long
        line.tell(0.5, "run", steps=40, curves={"r": 1e-40})
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert 4 <= len(lines) <= (time.monotonic() - began) / 0.15 + 1
    assert re.search(
        r"^ 50 %  in 0:\d\d  \d+:\d\d left  step 40  r [▁▂▃▄▅▆▇█]{16} 1\.0e-40  run$",
        lines[-1],
    )


def test_a_terminal_has_one_line_as_wide_as_it_is(monkeypatch):
    monkeypatch.setattr(
        progress, "get_terminal_size", lambda: os.terminal_size((80, 24))
    )
    monkeypatch.setattr(progress, "_OFTEN", 0.0)
    stream = Terminal()
    with Line(stream) as line:
        now = Progress(12_345, 98_765_432, 0.5, 1.25, 1.5e-3, 2.5e-2)
        for share in (0.1, 0.5):
            progress.show(line, share, "a name much too long for this", now)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    pieces = written.strip("\n").split("\r")[1:]
    assert all(len(piece) <= 79 for piece in pieces)
    for word in (
        "50 %",
        "left",
        "step 12,345",
        "9.9e7 calls",
        "λ 1.25",
        "‖d‖² ▁▁ 1.5e-3",
        "‖∇g‖² ▁▁ 0.025",
    ):
        assert word in pieces[-1]


def test_waiting_is_said_where_it_takes_long(monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.2)
    for seconds, many in ((0.0, False), (1.0, True)):
        stream = io.StringIO()
        with Line(stream, name="Drawing"):
            time.sleep(seconds)
        lines = stream.getvalue().splitlines()
        assert (len(lines) > 2) == many
        assert all(re.fullmatch(r"in 0:0\d  Drawing", line) for line in lines)


def test_quiet_is_quiet_and_a_closed_stream_ends_nothing():
    stream = io.StringIO()
    with Line(stream, quiet=True) as line:
        line.tell(0.5, "x")
    assert stream.getvalue() == ""
    gone = io.StringIO()
    with Line(gone) as line:
        gone.close()
        line.tell(0.5, "x")


def test_the_time_left_is_that_of_the_stage(monkeypatch):
    """Half of it in ten seconds leaves ten; another stage, whose share begins again, has a time of its own."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    line = Line(io.StringIO())
    line.tell(0.0, "first")
    now[0] = 10.0
    line.tell(0.5, "first")
    assert line._left() == 10.0
    line.tell(0.0, "second")
    now[0] = 12.0
    line.tell(0.25, "second")
    assert line._left() == pytest.approx(6.0)


def test_the_solver_tells_what_it_recorded():
    told = []
    result = tiebreak.minimize(
        PROBLEM.upper,
        PROBLEM.lower,
        PROBLEM.x0,
        budget=10**5,
        runs=3,
        seed=0,
        progress=told.append,
    )
    last, history = told[-1], result.history
    row = list(history.step).index(max(k for k in history.step if k < last.steps))
    assert last.multiplier == pytest.approx(history["multiplier"][row].mean())
    assert last.direction_squared == pytest.approx(
        history["direction_squared"][row].mean()
    )
    assert last.lower_gradient_squared == pytest.approx(
        history["lower_gradient_squared"][row].mean()
    )


def test_where_nothing_is_recorded_the_newest_iterate_is_looked_at():
    """Its exact residuals, at no charge and without a trace in the result; NaN where there are no exact gradients."""
    given = {"budget": 10**5, "runs": 3, "seed": 0, "record": None}
    told, stopped = [], []
    watched = tiebreak.minimize(
        PROBLEM.upper, PROBLEM.lower, PROBLEM.x0, progress=told.append, **given
    )
    alone = tiebreak.minimize(PROBLEM.upper, PROBLEM.lower, PROBLEM.x0, **given)
    np.testing.assert_array_equal(watched.x, alone.x)
    np.testing.assert_array_equal(watched.selected.x, alone.selected.x)
    assert (watched.calls == alone.calls).all()
    assert len(watched.history) == 0
    first = told[0]
    tiebreak.minimize(
        PROBLEM.upper,
        PROBLEM.lower,
        PROBLEM.x0,
        **given,
        callback=lambda r: r.step == first.steps and stopped.append(r),
    )
    (there,) = stopped
    assert first.multiplier == pytest.approx(there.multiplier.mean())
    assert first.direction_squared == pytest.approx(there.direction_squared.mean())
    assert first.lower_gradient_squared == pytest.approx(
        there.lower_gradient_squared.mean()
    )

    class Blind:
        sample, gradient = PROBLEM.lower.sample, PROBLEM.lower.gradient

    tiebreak.minimize(PROBLEM.upper, Blind(), PROBLEM.x0, progress=told.append, **given)
    assert told[-1].multiplier >= 0
    assert math.isnan(told[-1].lower_gradient_squared)


def test_another_process_tells_while_it_works():
    """Steps and residuals come from there, too; shares of the whole sweep never fall."""
    tasks = [
        task
        for name in ("sdbgd", "sdbpg")
        for task in solving(
            name, "tiebreak.problems:paper", name, budget=10**7, runs=2, seed=0
        )
    ]
    heard = []
    sweep(tasks, engine=2, progress=lambda name, share: heard.append((name, share)))
    shares = [float(share) for _, share in heard]
    assert shares[-1] == 1
    told = [(name, share.now) for name, share in heard if share.now is not None]
    assert {name for name, _ in told} == {task.name for task in tasks}
    assert all(
        now.steps > 0 and 0 < now.calls <= 10**7 and now.lower_gradient_squared > 0
        for _, now in told
    )


@pytest.mark.parametrize("engine", ["here", 1])
def test_short_tasks_show_where_they_got_to(engine):
    """Each that is over in a moment tells once, at its end; one that cannot tell shows the newest of the others."""
    tasks = [
        task
        for name in ("sdbgd", "sdbpg")
        for task in solving(
            name,
            "tiebreak.problems:paper",
            name,
            budget=10**4,
            runs=2,
            seed=0,
            record=None,
        )
    ]
    path = Path(__file__).parent / "support" / "work.py"
    work = source_at(f"{path}:mute")
    tasks.append(Task("mute", work, {}))
    heard = []
    sweep(
        tasks, engine=engine, progress=lambda name, share: heard.append((name, share))
    )
    assert {name for name, _ in heard} == {task.name for task in tasks[:2]}
    assert all(
        share.now.steps > 0 and share.now.direction_squared > 0 for _, share in heard
    )


def test_a_comparison_shows_what_its_runs_tell():
    heard = []
    asked = Comparison(
        problems="paper",
        methods="sdbgd,penalty",
        budgets=[10**3, 10**4],
        runs=2,
        trials=2,
    )
    compare(asked, lambda name, share: heard.append(share), engine="here")
    assert heard[-1] == 1
    assert all(
        share.now.calls > 0 and share.now.lower_gradient_squared > 0 for share in heard
    )


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("plan", "--budget", "2e4"), "Planned: SDBGD, "),
        (
            ("compare", "--quick", "--problems", "paper", "--methods", "sdbgd"),
            "1 method on 1 problem, 3 budgets",
        ),
        (
            (
                "verify",
                "--quick",
                "--problem",
                "paper",
                "--method",
                "sdbgd",
                "--steps",
                "50",
            ),
            "The theorems against",
        ),
        (
            ("reproduce", "--budget", "2e4", "--runs", "2", "--methods", "sdbgd"),
            "The paper's problem",
        ),
    ],
)
def test_the_first_word_comes_before_what_is_slow_to_load(words, first, tmp_path):
    """Whatever a command says first, neither matplotlib nor torch nor pyarrow is there yet."""
    slow = ("matplotlib", "torch", "pyarrow")
    spy = f"""
import sys
from rich.console import Console
write = Console.print
def print_and_end(self, *words, **options):
    write(self, *words, **options)
    print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)
    sys.exit()
Console.print = print_and_end
"""
    said, loaded = call(*words, "--output", tmp_path, before=spy).stderr.splitlines()
    assert said.startswith(first)
    assert loaded == "[]"


@pytest.mark.usefixtures("no_figures")
def test_plans_of_a_comparison_are_announced_while_they_are_made(tmp_path, monkeypatch):
    """Twenty problems' plans take half a minute: before they are made the count is said, and each while it is."""
    monkeypatch.setattr(progress, "SILENCE", 0.1)
    monkeypatch.setattr(
        compared, "first_cost", lambda method: time.sleep(0.3) or first_cost(method)
    )
    words = (
        "compare",
        "--problems",
        "paper",
        "--methods",
        "penalty_bound",
        "--budgets",
        "1e3",
        "--trials",
        "1",
    )
    said = call(*words, "--output", tmp_path).stderr.splitlines()
    assert said[0].startswith("1 method on 1 problem")
    assert any("Preparing 1 of 1: Penalty bound on paper" in line for line in said)


@pytest.mark.usefixtures("no_figures")
def test_a_taken_folder_is_said_before_plans_are_made(tmp_path, monkeypatch):
    words = (
        "compare",
        "--problems",
        "paper",
        "--methods",
        "sdbgd",
        "--trials",
        "1",
        "--output",
        tmp_path,
    )
    call(*words, "--budgets", "1e3")
    monkeypatch.setattr(compared, "first_cost", lambda method: 1 / 0)
    assert (
        "holds the results of another command"
        in call(*words, "--budgets", "1e4", code=2).stderr
    )


@pytest.mark.parametrize(
    ("command", "usual"),
    [
        ("compare", ("1e4,1e5,1e6", "10", "7", "all")),
    ],
)
def test_help_says_what_is_taken_if_nothing_is_said(command, usual):
    shown = call(command, "--help").stdout
    assert all(f"[default: {value}]" in shown for value in usual)


def test_help_names_every_constant_on_a_narrow_screen(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "COLUMNS", "80")
    for command in ("plan", "verify", "table"):
        shown = call(command, "--help").stdout
        assert all(
            re.search(rf"\b{name}\b", shown)
            for name in ("L_f", "G_f", "sigma_g", "delta_f", "delta_g")
        )


@pytest.mark.usefixtures("no_figures")
def test_quiet_commands_show_tables_and_nothing_else(tmp_path):
    words = (
        "reproduce",
        "--budget",
        "2e4",
        "--runs",
        "2",
        "--methods",
        "sdbgd",
        "--output",
        tmp_path,
    )
    done = call(*words, "--quiet")
    assert done.stderr == ""
    assert "Residuals, mean" in done.stdout
    assert (
        "--runs 0" in call(*words, "--runs", "0", "--quiet", code=2).stderr
    )  # an error is no remark


# --- a training run -------------------------------------------------------------------------------------------------


class TestTraining:
    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    def run(self, steps=6, bad=(), every=1, announced=6, **options):
        torch = self.torch
        from tiebreak.torch import DynamicBarrier, Progress

        torch.manual_seed(0)
        x = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
        given = {"tolerance": 0.1, "reference": 0.0, "nonfinite": "skip"} | options
        opt = DynamicBarrier(torch.optim.SGD([x], lr=0.05), **given)
        stream = io.StringIO()
        with Progress(
            steps=announced, every=every, name="mine", stream=stream
        ) as shown:
            opt.register_step_post_hook(shown)
            for k in range(steps):
                factor = math.nan if k in bad else 1.0
                opt.step(
                    lower=lambda f=factor: f * x[:2].square().sum(),
                    upper=lambda: (x - 1).square().sum(),
                )
        return opt, stream.getvalue()

    def test_the_excess_in_tolerances_is_shown(self):
        opt, said = self.run()
        last = said.splitlines()[-1]
        found = opt.log()
        assert last.startswith("100 %")
        assert f"excess {found['excess']:.2f} tolerances" in last
        assert ("(outside)" in last) == (found["excess"] > 1)
        assert "step 6 of 6" in last
        assert last.endswith("mine")
        assert re.search(r"‖d‖² [▁-█]{6} ", last)

    def test_the_last_step_is_looked_at(self):
        _, said = self.run(every=4)
        assert "step 6 of 6" in said.splitlines()[-1]

    def test_the_line_ends_with_the_last_step_and_not_with_the_program(self):
        """A script that prints next must not print into the line, and has seen the last step by then."""
        torch = self.torch
        from tiebreak.torch import DynamicBarrier, Progress

        x, stream = (
            torch.nn.Parameter(torch.ones(2, dtype=torch.float64)),
            io.StringIO(),
        )
        opt = DynamicBarrier(torch.optim.SGD([x], lr=0.05), method=simple_method())
        shown = Progress(steps=3, stream=stream)
        opt.register_step_post_hook(shown)
        for _ in range(3):
            opt.step(lower=lambda: x.square().sum(), upper=lambda: x.sum())
        assert stream.getvalue().endswith("\n")
        assert "100 %  in 0:00  step 3 of 3" in stream.getvalue()
        shown.close()
        assert stream.getvalue().count("step 3 of 3") == 1

    def test_the_newest_step_is_shown_at_the_end(self):
        """Every fourth is looked at: of 6 the first and the fifth, and the sixth when the line ends."""
        _, said = self.run(every=4, announced=None)
        assert "step 6  " in said.splitlines()[-1]

    def test_more_steps_than_were_announced_are_called_so(self):
        _, said = self.run(announced=3)
        assert "step 6 of 3 that were announced" in said.splitlines()[-1]
        assert "%" not in said.splitlines()[-1]

    def test_skipped_steps_are_counted(self):
        _, said = self.run(bad=(1, 2))
        assert "2 skipped" in said.splitlines()[-1]

    def test_without_a_tolerance_there_is_no_excess(self):
        _, said = self.run(tolerance=None, reference=None, method=simple_method())
        assert "excess" not in said
        assert "λ" in said

    def test_bad_arguments_are_named(self):
        from tiebreak.torch import Progress

        with pytest.raises(ValueError, match="steps=0"):
            Progress(steps=0)
        with pytest.raises(ValueError, match="every=0"):
            Progress(every=0)
