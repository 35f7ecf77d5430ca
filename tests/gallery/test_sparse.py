"""Sparsity and continual learning: what they measure and how they split, on small made data."""

import copy
import gzip
import importlib.util
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import torch
from gallery import continual, fashion, figure, needs, pruning, sparsity
from gallery.fashion import Images
from gallery.methods import METHODS
from gallery.rates import move, scheduled
from gallery.training import Goal, train
from torch import nn

CLASSES = 10


def made(rows, seed=0, width=12):
    """Classes around centres of their own."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(rows) % CLASSES
    return Images(
        centres[labels] + 0.7 * torch.randn(rows, width, generator=generator), labels
    )


def network(seed=0):
    return fashion.perceptron((12, 16, CLASSES), seed, "cpu")


def sparse_task(steps=40):
    data = made(200)
    model = fashion.fit(network(), data, 0.01, 32, 60, 1)
    return sparsity.task(model, data, made(100, 1), 0.01, 32, steps, 2)


def continual_task(steps=30):
    data = made(200)
    model = fashion.fit(network(), continual.halves(data)[0], 0.01, 32, 60, 1)
    return continual.task(model, data, made(100, 1), 0.01, 16, steps, 2)


def zeros(model):
    return torch.cat([(p == 0).flatten() for p in pruning.weights(model)])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Fashion-MNIST's files with few images, drawn at random."""
    rng = np.random.default_rng(0)
    folder = tmp_path / fashion.PACKAGE / "usr" / "share"
    folder.mkdir(parents=True)
    for part, count in (("train", 300), ("t10k", 50)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % CLASSES).astype(np.uint8)
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(bytes(16) + pixels.tobytes())
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes(8) + labels.tobytes())
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    caches = (fashion.load, fashion.split, sparsity._dense, continual._first)
    for cache in caches:
        cache.cache_clear()
    yield pixels
    for cache in caches:
        cache.cache_clear()


def test_starting_models_are_trained_once_and_as_fit_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_CACHE", str(tmp_path))
    data, sizes, plain, calls = made(100), (12, 16, CLASSES), fashion.fit, []
    monkeypatch.setattr(
        fashion, "fit", lambda *args: calls.append(args) or plain(*args)
    )

    def same(one, other):
        return all(
            map(torch.equal, one.state_dict().values(), other.state_dict().values())
        )

    first = fashion.trained("mine", sizes, data, 0.01, 32, 20, 4)
    assert same(
        first, plain(fashion.perceptron(sizes, 4, "cpu"), data, 0.01, 32, 20, 5)
    )
    assert same(first, fashion.trained("mine", sizes, data, 0.01, 32, 20, 4))
    assert len(calls) == 1
    others = (
        (made(100, 1), 0.01, 32, 20, 4),
        (data, 0.02, 32, 20, 4),
        (data, 0.01, 32, 21, 4),
        (data, 0.01, 32, 20, 5),
    )
    for other in others:
        assert not same(first, fashion.trained("mine", sizes, *other))
    assert len(calls) == 5


def test_masks_are_those_of_a_plain_sort():
    parameters = [torch.tensor([[3.0, -1.0], [0.5, 0.0]]), torch.tensor([[-2.0, 4.0]])]
    flat = [abs(v) for p in parameters for v in p.flatten().tolist()]
    for count in range(len(flat) + 1):
        kept = torch.cat(
            [mask.flatten() for mask in pruning.masks(parameters, count)]
        ).tolist()
        least = sorted(range(len(flat)), key=lambda i: flat[i])[:count]
        assert kept == [i not in least for i in range(len(flat))]
    assert not any(
        mask.any() for mask in pruning.masks([torch.ones(2, 2)], 1)
    )  # ties go together


@pytest.mark.parametrize("limit", [-1.0, 0.0, 0.02, 0.4, 5.0, 1e9])
def test_what_can_go_is_what_a_scan_finds(limit):
    """The squared distance to the whole model rises with every weight that goes, so that the scan is unambiguous."""
    model, parts = network(), 50
    whole = copy.deepcopy(model.state_dict())
    start = [p.detach().clone() for p in pruning.weights(model)]
    total = sum(p.numel() for p in start)

    def loss(model):
        return sum(
            float((p - q).square().sum())
            for p, q in zip(pruning.weights(model), start, strict=True)
        )

    share, said = pruning.removable(
        model, loss, limit, lambda m: int(zeros(m).sum()), parts
    )
    flat = np.sort(torch.cat([q.flatten() for q in start]).double().square().numpy())
    fits = [
        part
        for part in range(parts + 1)
        if flat[: part * total // parts].sum() <= limit
    ]
    assert share == (fits[-1] * total // parts / total if fits else 0.0)
    assert said == round(share * total)
    assert all(
        torch.equal(value, whole[name]) for name, value in model.state_dict().items()
    )


def test_the_model_comes_back_where_the_loss_fails():
    model = network()
    whole = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        pruning.removable(model, lambda m: 1 / 0, 1.0, lambda m: 0.0)
    assert all(map(torch.equal, model.parameters(), whole))


def test_the_penalty_and_its_gradient():
    model = network()
    values = [v for p in pruning.weights(model) for v in p.flatten().tolist()]
    slow = (
        0.01 / math.sqrt(len(values)) * sum(math.log(1 + abs(v) / 0.01) for v in values)
    )
    loss = sparsity.penalty(model)
    assert loss.item() == pytest.approx(slow, rel=1e-5)
    gradients = torch.autograd.grad(
        loss, list(model.parameters()), materialize_grads=True
    )
    assert 0 < sum(float(g.square().sum()) for g in gradients) <= 1
    assert all(not g.any() for g in gradients if g.dim() == 1)  # biases are left alone


@pytest.mark.parametrize("method", pruning.METHODS, ids=lambda method: method.name)
def test_pruned_weights_stay_zero(method):
    task, settings = sparse_task(), method.grid[0]
    assert len(method.grid) == 6
    rates, gone, counts, spent = [], zeros(task.model), [], 0
    base = task.base

    def watched(parameters):
        optimizer = base(parameters)
        optimizer.register_step_pre_hook(
            lambda o, args, kwargs: rates.append(o.param_groups[0]["lr"])
        )
        return optimizer

    task.base = watched
    for cost in method.train(task, settings):
        now = zeros(task.model)
        assert not (gone & ~now).any()
        gone, spent = now, spent + cost
        counts.append(int(now.sum()))
    total = len(gone)
    assert spent == 2 * task.steps
    assert counts[-1] == int(settings["share"] * total)
    rounds = int(settings.get("rounds", 1))
    assert (
        sum(later > before for before, later in itertools.pairwise(rates)) == rounds - 1
    )
    assert len({*counts}) == (rounds if "until" not in settings else len({*counts}))
    if "until" in settings:
        assert counts[0] == 0
        assert counts[len(counts) // 4] < counts[len(counts) // 2] == counts[-1]
    removed = task.metrics(task.model)["removed"]
    assert removed == 0 or removed >= settings["share"] - 1 / 2000


def test_sparsity_measures_the_pruned_model():
    task = sparse_task()
    lower, upper = task.losses(task.model)
    assert lower == pytest.approx(task.lower(task.model, made(200)).item())
    assert upper == pytest.approx(task.upper(task.model, None).item())
    found = task.metrics(task.model)
    assert [metric.name for metric in sparsity.EXAMPLE.metrics] == list(found)
    assert 0 < found["removed"] < 1
    assert found["smaller"] == pytest.approx(1 / (1 - found["removed"]))
    kept = pruning.masks(
        pruning.weights(task.model), round(found["removed"] * len(zeros(task.model)))
    )
    pruning.keep(pruning.weights(task.model), kept)
    assert task.losses(task.model)[0] <= 1.01 * lower
    assert fashion.accuracy(task.model, made(100, 1)) == found["test accuracy"]
    for p in task.model.parameters():
        p.data.zero_()
    assert (
        task.metrics(task.model)["removed"] == 0
    )  # outside before anything is removed


def test_halves_are_the_old_and_the_new_classes():
    old, new = continual.halves(made(200))
    assert set(old.labels.tolist()) == set(range(5))
    assert set(new.labels.tolist()) == set(range(5, 10))


def test_continual_measures_both_halves():
    task = continual_task()
    found = task.metrics(task.model)
    assert [metric.name for metric in continual.EXAMPLE.metrics] == list(found)
    test = made(100, 1)
    right = (task.model(test.inputs).argmax(1) == test.labels).tolist()
    old = [r for r, label in zip(right, test.labels, strict=True) if label < 5]
    new = [r for r, label in zip(right, test.labels, strict=True) if label >= 5]
    assert found["old"] == pytest.approx(sum(old) / len(old))
    assert found["new"] == pytest.approx(sum(new) / len(new))
    assert found["average"] == pytest.approx((found["old"] + found["new"]) / 2)
    assert found["forgotten"] == 0
    lower, upper = task.batches(100)
    assert lower.labels.max() < 5 <= upper.labels.min()
    drawn = {
        tuple(row)
        for step in range(20)
        for row in task.batches(step)[0].inputs.tolist()
    }
    assert len(drawn) == 100  # all images of the old classes


def test_agem_goes_against_no_old_gradient():
    """With SGD the change of the weights is the direction: ∇f where they agree, else orthogonal to ∇g."""
    seen = set()
    for seed in range(8):
        task = continual_task()
        task.model = network(seed)
        task.base = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
        old, new = task.batches(0)
        parameters = list(task.model.parameters())
        b, a = (
            nn.utils.parameters_to_vector(
                torch.autograd.grad(loss, parameters)
            ).double()
            for loss in (task.lower(task.model, old), task.upper(task.model, new))
        )
        before = nn.utils.parameters_to_vector(parameters).detach().double()
        assert next(iter(continual.agem(task, {}))) == 2
        moved = before - nn.utils.parameters_to_vector(parameters).detach().double()
        wanted = a if a @ b >= 0 else a - (a @ b) / (b @ b) * b
        torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-6)
        seen.add(bool(a @ b >= 0))
    assert False in seen  # some of them conflict


def test_ewc_holds_what_the_old_images_need():
    def moved(weight):
        task = continual_task()
        start = [p.detach().clone() for p in task.model.parameters()]
        spent = sum(continual.ewc(task, {"weight": weight}))
        assert spent == 2 * task.steps
        assert task.metrics(task.model)["forgotten"] >= 0
        return [
            p.detach() - q for p, q in zip(task.model.parameters(), start, strict=True)
        ], task

    torch.manual_seed(0)
    free, task = moved(0.0)
    torch.manual_seed(0)
    bound, other = moved(1e6)
    assert sum(float(d.square().sum()) for d in bound) < sum(
        float(d.square().sum()) for d in free
    )
    assert other.losses(other.model)[0] < task.losses(task.model)[0]
    # Without its penalty it is plain training on the new images.
    plain = continual_task()
    torch.manual_seed(0)
    images = min(200, plain.steps)
    parameters = list(plain.model.parameters())
    for step, optimizer in scheduled(plain, 2 * plain.steps - images):
        loss = plain.upper(plain.model, plain.batches(step)[1])
        move(optimizer, torch.autograd.grad(loss, parameters))
    assert all(map(torch.equal, plain.model.parameters(), task.model.parameters()))


def test_rehearsal_is_the_plain_sum():
    task, slow = continual_task(steps=5), continual_task(steps=5)
    assert sum(continual.rehearsal(task, {})) == 2 * task.steps
    optimizer = slow.base(slow.model.parameters())
    for step in range(5):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / 5)) / 2
        optimizer.zero_grad()
        for loss, batch in zip(
            (slow.lower, slow.upper), slow.batches(step), strict=True
        ):
            loss(slow.model, batch).backward()
        optimizer.step()
    for one, other in zip(
        task.model.parameters(), slow.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_joint_training_knows_both_halves():
    task = continual_task(steps=60)
    assert sum(continual.joint(task, {})) == 2 * task.steps
    found = task.metrics(task.model)
    assert found["old"] > 0.6
    assert found["new"] > 0.6
    (limit,) = (method for method in continual.EXAMPLE.methods if method.limit)
    assert limit.train is continual.joint


@pytest.mark.parametrize(
    "method", continual.EXAMPLE.methods, ids=lambda method: method.name
)
def test_the_fields_own_methods_spend_the_budget(method):
    task = continual_task()
    assert sum(method.train(task, method.grid[0])) == 2 * task.steps


@pytest.mark.parametrize(
    "make", [sparse_task, continual_task], ids=["sparsity", "continual"]
)
def test_the_common_loop_trains_it(make):
    """Ours keeps to the tolerance, and its upper loss ends below that of training on the lower loss alone."""
    ends = {}
    for name in ("lower-only", "tolerance-start"):
        task = make(steps=300)
        goal = Goal.of(task.losses(task.model)[0], "20%")
        found = train(task, METHODS[name], {}, goal)
        assert found.status == "finished"
        assert goal.excess(found.lower) <= 1
        ends[name] = found.upper
    assert ends["tolerance-start"] < ends["lower-only"]


def test_files_become_examples(files):
    images = fashion.load("t10k")
    torch.testing.assert_close(
        images.inputs, (torch.from_numpy(files).reshape(50, 784) / 255 - 0.286) / 0.353
    )
    one, other = fashion.split(100, 0, "cpu")[0], fashion.split(100, 1, "cpu")[0]
    assert len(one.labels) == 100
    assert not torch.equal(one.inputs, other.inputs)
    for example in (sparsity.EXAMPLE, continual.EXAMPLE):
        task, again = example.build("quick", 0, "cpu"), example.build("quick", 0, "cpu")
        assert task.model is not again.model  # each training has a model of its own
        assert all(map(torch.equal, task.model.parameters(), again.model.parameters()))
        for one, other in zip(task.batches(3), again.batches(3), strict=True):
            assert one is other is None or torch.equal(one.inputs, other.inputs)
        assert task.metrics(task.model).keys() == {
            metric.name for metric in example.metrics
        }


@pytest.mark.parametrize("name", ["sparsity", "continual"])
def test_the_example_to_copy_runs(name, files, capsys):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    try:
        module.main(300, 32, 20, 80)
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == (4 if name == "continual" else 3)
    assert any(
        ("at most 1 is the promise" in line) or line.startswith("inside: excess")
        for line in shown
    )


@pytest.mark.parametrize(
    "example", [sparsity.EXAMPLE, continual.EXAMPLE], ids=lambda example: example.name
)
def test_the_fields_own_methods_can_be_told_apart_in_the_picture(example):
    own = [method.name for method in example.methods]
    looks = [figure._look(name, own) for name in (*METHODS, *own)]
    assert len(
        {(look["marker"], look["color"], look.get("markerfacecolor")) for look in looks}
    ) == len(looks)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TIEBREAK_DATA", str(tmp_path))
    fashion.load.cache_clear()
    with pytest.raises(needs.Missing, match="apt-get download dataset-fashion-mnist"):
        fashion.load("train")


def test_the_real_images():
    try:
        train_images, test = fashion.load("train"), fashion.load("t10k")
    except needs.Missing as missing:
        pytest.skip(str(missing))
    assert torch.bincount(train_images.labels).tolist() == [6000] * CLASSES
    assert torch.bincount(test.labels).tolist() == [1000] * CLASSES
    assert abs(train_images.inputs.mean()) < 0.01
    assert abs(train_images.inputs.std() - 1) < 0.01
