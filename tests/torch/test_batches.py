"""Growing batches: the law of the samples, the weights, the schedule, workers, resuming, and shares."""

import copy
import gc
import io
import itertools
import math
import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import tiebreak
import torch
from tiebreak.torch import DynamicBarrier, GrowingBatches
from training import simple_method

# Other tests of the same process may have started JAX, which warns of every fork; workers do not use it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded:DeprecationWarning"
    ),
]

WORKERS = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*multi-threaded"
)
MODES = pytest.mark.parametrize("sampling", ["iid", "epoch"])


class Squares(Dataset):
    """Map-style, one sample at a time, as (number, square)."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        assert type(i) is int  # what datasets of other libraries insist on
        return i, torch.tensor(float(i) ** 2)


def take(batches, steps):
    """The samples of some steps, a list of numbers for each; for datasets of plain numbers."""
    return [
        [int(i) for rows, _ in batch for i in rows]
        for batch in itertools.islice(batches, steps)
    ]


def numbers(length, schedule, **options):
    return GrowingBatches(torch.arange(length), schedule, **options)


# -------------------------------------------------------------------------------------------------- the law of samples


def fits(table):
    """Whether counts are those of a uniform law: chi-square, two-sided, at 99.98 % confidence."""
    counts = np.asarray(table).ravel()
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return (
        stats.chi2.ppf(1e-4, counts.size - 1)
        < statistic
        < stats.chi2.ppf(1 - 1e-4, counts.size - 1)
    )


def pairs(first, second, length):
    table = np.zeros((length, length))
    np.add.at(table, (np.asarray(first), np.asarray(second)), 1)
    return table


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_iid_samples_are_uniform_and_independent(seed):
    (step,) = take(numbers(10, 20_000, micro_batch=1000, seed=seed), 1)
    assert fits(np.bincount(step, minlength=10))
    assert fits(pairs(step[::2], step[1::2], 10))


def test_steps_levels_and_seeds_are_independent_of_each_other():
    """Every step has a generator of its own, so samples at the same place of different streams are independent."""
    lower, upper, other = (
        np.ravel(take(numbers(4, 2, level=level, seed=seed), 1000))
        for level, seed in (("lower", 0), ("upper", 0), ("lower", 1))
    )
    assert fits(pairs(lower[:-2:2], lower[2::2], 4))  # step after step
    assert fits(pairs(lower, upper, 4))
    assert fits(pairs(lower, other, 4))


@pytest.mark.parametrize(
    ("length", "micro_batch"), [(10, 3), (7, 64), (1, 2), (100, 9)]
)
def test_an_epoch_has_every_sample_once(length, micro_batch):
    """Across steps of 1, 2, 3, … samples: each run of `length` samples is a permutation."""
    batches = numbers(
        length, lambda k: k + 1, sampling="epoch", micro_batch=micro_batch
    )
    samples = list(itertools.chain(*take(batches, 40)))
    epochs = [samples[i : i + length] for i in range(0, len(samples), length)]
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs[:-1])
    assert len(set(epochs[-1])) == len(epochs[-1])
    assert batches.samples == len(samples) == 820


def test_epochs_are_shuffled_independently():
    first = [epoch[0] for epoch in take(numbers(5, 5, sampling="epoch"), 1000)]
    assert fits(np.bincount(first, minlength=5))
    assert fits(pairs(first[:-1], first[1:], 5))


@MODES
def test_the_samples_do_not_depend_on_the_micro_batch(sampling):
    streams = [
        take(numbers(50, lambda k: 7 * k + 3, sampling=sampling, micro_batch=m), 6)
        for m in (1, 4, 1000)
    ]
    assert streams[0] == streams[1] == streams[2]


# ------------------------------------------------------------------------------------------------ weights and gradients


@given(st.integers(1, 300), st.integers(1, 80))
@settings(max_examples=100, deadline=None)
def test_micro_batches_are_few_even_and_weigh_what_they_count(size, micro_batch):
    batch = next(iter(numbers(11, size, micro_batch=micro_batch)))
    assert (batch.k, batch.size, len(batch)) == (0, size, math.ceil(size / micro_batch))
    parts = [(len(rows), weight) for rows, weight in batch]
    counts = [n for n, _ in parts]
    assert len(parts) == len(batch)
    assert sum(counts) == size
    assert max(counts) <= micro_batch
    assert max(counts) - min(counts) <= 1
    assert all(weight == n / size for n, weight in parts)
    assert math.fsum(weight for _, weight in parts) == pytest.approx(1, rel=1e-14)


def regression(seed=0):
    torch.manual_seed(seed)
    data = (
        torch.randn(40, 5, dtype=torch.float64),
        torch.randn(40, 1, dtype=torch.float64),
    )
    layers = (
        torch.nn.Linear(5, 8),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(8, 1),
    )
    return torch.nn.Sequential(*layers).double(), data


def backward(model, opt, batch):
    for (inputs, targets), weight in batch:
        loss = weight * torch.nn.functional.mse_loss(model(inputs), targets)
        with opt.lower(loss):
            loss.backward()


@MODES
def test_micro_batches_equal_one_batch_in_gradient_and_loss(sampling):
    results = []
    for micro_batch in (7, 1000):
        model, data = regression()
        model.eval()  # dropout would draw different masks for different shapes
        opt = DynamicBarrier(
            torch.optim.SGD(model.parameters(), lr=0.0), method=simple_method()
        )
        backward(
            model,
            opt,
            next(
                iter(
                    GrowingBatches(data, 50, micro_batch=micro_batch, sampling=sampling)
                )
            ),
        )
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        with opt.upper():
            model[0].weight.square().sum().backward()
        info = opt.step()
        results.append((gradient, info.lower_loss, info.gg, info.fg))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


# --------------------------------------------------------------------------------------------------------- the schedule


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("method", tiebreak.schedules.PAPER)
def test_sizes_follow_the_schedule_floors_and_all(method, level):
    schedule = tiebreak.schedules.PAPER[method]
    batches = numbers(9, schedule, level=level, micro_batch=10**6)
    for k, batch in enumerate(itertools.islice(batches, 10)):
        assert (batch.k, batch.size) == (k, getattr(schedule.at(k), f"{level}_batch"))
    assert next(iter(numbers(9, schedule, level="lower"))).size == 1


def test_other_laws():
    def sizes(law):
        return [batch.size for batch in itertools.islice(numbers(9, law), 4)]

    assert sizes(5) == [5, 5, 5, 5]
    assert sizes(np.int64(5)) == [5, 5, 5, 5]
    assert sizes(lambda k: 1.6**k) == [1, 1, 2, 4]
    assert sizes(lambda k: k - 2) == [1, 1, 1, 1]
    assert sizes(tiebreak.Power(1, 2.5)) == [1, 5, 15, 32]  # 4^2.5 is 32 exactly
    assert sizes(tiebreak.Capped(tiebreak.anytime(0.25).lower_batch, 7)) == [1, 5, 7, 7]


@WORKERS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_law_that_ends_fails_at_its_end_and_not_ahead(num_workers):
    """Workers read ahead, beyond the last step of the law; the error is raised when that step is reached."""
    sizes = [2, 3, 4]
    batches = numbers(10, lambda k: sizes[k], num_workers=num_workers)
    steps = iter(batches)
    assert [len(step) for step in take(steps, 3)] == sizes
    with pytest.raises(IndexError):
        next(steps)
    with pytest.raises(IndexError):
        next(iter(batches))


# -------------------------------------------------------------------------------------------------------------- workers


def load(batches, steps):
    """Everything that some steps of squares give, as plain numbers."""
    return [
        [(i.tolist(), squares.tolist(), weight) for (i, squares), weight in batch]
        for batch in itertools.islice(batches, steps)
    ]


@WORKERS
@MODES
def test_workers_change_nothing(sampling):
    def run(num_workers):
        batches = GrowingBatches(
            Squares(23),
            lambda k: 4 * k + 1,
            micro_batch=5,
            sampling=sampling,
            num_workers=num_workers,
        )
        return load(batches, 6), batches.state_dict()

    state = {
        "k": 6,
        "samples": 66,
        "seed": 0,
        "sampling": sampling,
        "level": "lower",
        "length": 23,
    }
    assert run(0) == run(2)
    assert run(0)[1] == state


@WORKERS
def test_workers_end_with_their_loop():
    """No reference cycle holds them: they stop with the last reference, also in the middle of a step."""
    batches = GrowingBatches(Squares(23), 20, micro_batch=2, num_workers=1)
    steps = iter(batches)
    batch = next(steps)
    next(iter(batch))
    assert len(multiprocessing.active_children()) == 1
    gc.disable()
    try:
        del steps, batch
        assert not multiprocessing.active_children()
    finally:
        gc.enable()


@WORKERS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_global_generators_are_left_alone(num_workers):
    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  # it is the legacy one we watch
    load(GrowingBatches(Squares(23), 30, num_workers=num_workers), 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


# ------------------------------------------------------------------------------------------------------------- resuming


@WORKERS
@pytest.mark.parametrize(
    ("sampling", "workers"), [("iid", (0, 0)), ("epoch", (0, 0)), ("epoch", (1, 1))]
)
def test_resumed_equals_uninterrupted(sampling, workers):
    """Saved after five steps, 35 samples, in the middle of the second epoch of 23; workers had read further."""

    def make(num_workers, seed):
        return GrowingBatches(
            Squares(23),
            lambda k: 3 * k + 1,
            micro_batch=4,
            sampling=sampling,
            num_workers=num_workers,
            seed=seed,
        )

    expected = load(make(0, 5), 9)
    first = make(workers[0], 5)
    results = load(first, 5)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(workers[1], 99)  # the seed comes with the state
    second.load_state_dict(torch.load(file, weights_only=True))
    assert (second.k, second.samples, second.seed) == (5, 35, 5)
    assert results + load(second, 4) == expected


def train(model, opt, levels, steps):
    upper, lower = levels
    for above, below in itertools.islice(zip(upper, lower, strict=False), steps):
        opt.zero_grad()
        backward(model, opt, below)
        for rows, weight in above:
            with opt.upper():
                (weight * model(rows).square().mean()).backward()
        opt.step()


@MODES
def test_a_resumed_training_run_with_dropout_equals_the_uninterrupted_one(sampling):
    def make(seed):
        model, data = regression(seed)
        opt = DynamicBarrier(
            torch.optim.AdamW(model.parameters(), lr=0.01), method=simple_method()
        )
        options = {"sampling": sampling, "micro_batch": 8, "seed": 4}
        data = data if seed == 0 else regression(0)[1]
        levels = [
            GrowingBatches(data[0], tiebreak.anytime(0.25), level="upper", **options),
            GrowingBatches(data, tiebreak.anytime(0.25), level="lower", **options),
        ]
        return model, opt, levels

    model, opt, levels = make(0)
    train(model, opt, levels, 8)
    half, first, streams = make(0)
    train(half, first, streams, 5)
    file = io.BytesIO()
    parts = (half, first, *streams)
    torch.save(
        {
            "parts": [part.state_dict() for part in parts],
            "random": torch.get_rng_state(),
        },
        file,
    )
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh, second, others = make(9)
    for part, state in zip((fresh, second, *others), saved["parts"], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(saved["random"])
    train(fresh, second, others, 3)
    assert [o.state_dict() for o in others] == [b.state_dict() for b in levels]
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(p, q)


@MODES
def test_a_step_saved_halfway_starts_from_its_first_sample(sampling):
    expected = take(numbers(10, 6, sampling=sampling), 4)
    batches = numbers(10, 6, sampling=sampling, micro_batch=2)
    steps = iter(batches)
    take(steps, 1)
    parts = iter(next(steps))
    next(parts)
    other = numbers(10, 6, sampling=sampling)
    other.load_state_dict(batches.state_dict())
    assert take(other, 3) == expected[1:]
    for duplicate in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        assert take(duplicate, 3) == expected[1:]
    next(parts)
    next(parts)  # that was the last: the step is over before more is asked for
    assert batches.state_dict()["k"] == 2
    assert take(steps, 2) == expected[2:]


@MODES
def test_a_step_left_halfway_is_skipped_in_the_loop_and_repeated_by_a_new_one(sampling):
    expected = take(numbers(10, 6, sampling=sampling), 5)
    batches = numbers(10, 6, sampling=sampling, micro_batch=2)
    steps = iter(batches)
    untouched = next(steps)
    next(iter(next(steps)))
    third = next(steps)
    assert [int(i) for rows, _ in third for i in rows] == expected[2]
    for old in (untouched, third):
        with pytest.raises(
            RuntimeError,
            match=r"step \d can be iterated once, before the next; keep list\(batch\)",
        ):
            iter(old)
    for batch in batches:
        assert batch.k == 3
        break
    assert take(batches, 2) == expected[3:]


def test_a_second_loop_or_a_loaded_state_ends_the_first_loop():
    batches = numbers(10, 6, micro_batch=2)
    start = batches.state_dict()
    first, second = next(iter(batches)), next(iter(batches))
    list(first)
    with pytest.raises(
        RuntimeError,
        match="step 0 is over: another loop or a loaded state has led to step 1",
    ):
        list(second)
    steps = iter(batches)
    list(next(steps))
    batches.load_state_dict(start)
    with pytest.raises(
        RuntimeError,
        match="step 2 is over: another loop or a loaded state has led to step 0",
    ):
        list(next(steps))
    assert take(batches, 2) == take(numbers(10, 6), 2)


def test_zip_leaves_both_levels_at_the_same_step():
    upper, lower = (
        numbers(10, 6, micro_batch=3, level=level) for level in ("upper", "lower")
    )
    for above, below in zip(upper, lower, strict=True):
        assert (
            len(list(zip(above, below, strict=False))) == 2
        )  # stops at the first's end, never asks the second
        assert upper.k == lower.k == above.k + 1
        if above.k == 2:
            break


# ----------------------------------------------------------------------------------------------- datasets and bad input


def test_tensors_come_as_they_were_given():
    x, y = torch.randn(6, 3), torch.arange(6)

    def first(dataset, **options):
        return next(
            iter(next(iter(GrowingBatches(dataset, 4, sampling="epoch", **options))))
        )[0]

    assert torch.equal(first(x), x[first(y)])
    rows, targets = first((x, y))
    assert torch.equal(rows, x[targets])
    rows, targets = first(TensorDataset(x, y))
    assert torch.equal(rows, x[targets])
    assert torch.equal(
        first([float(i) for i in y]), first(y).double()
    )  # a list is a map-style dataset
    assert first((x, y), collate_fn=len) == 4
    assert (
        first(x, collate_fn=lambda samples: [s.shape for s in samples])
        == [torch.Size([3])] * 4
    )


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


BAD = {
    "iterable": (
        {"dataset": Endless()},
        TypeError,
        "dataset=Endless must be map-style",
    ),
    "no dataset": ({"dataset": 3}, TypeError, "dataset=int must be map-style"),
    "mapping": (
        {"dataset": {"x": torch.ones(3)}},
        TypeError,
        "dataset=dict must be map-style",
    ),
    "empty": (
        {"dataset": torch.ones(0, 3)},
        ValueError,
        "dataset=Tensor has no samples",
    ),
    "no samples": ({"dataset": []}, ValueError, "dataset=list has no samples"),
    "uneven": (
        {"dataset": (torch.ones(3), torch.ones(4))},
        AssertionError,
        "Size mismatch between tensors",
    ),
    "micro 0": (
        {"micro_batch": 0},
        ValueError,
        "micro_batch=0 must be a whole number ≥ 1",
    ),
    "micro 2.5": (
        {"micro_batch": 2.5},
        ValueError,
        "micro_batch=2.5 must be a whole number ≥ 1",
    ),
    "sampling": (
        {"sampling": "shuffle"},
        ValueError,
        "sampling='shuffle' must be one of 'iid', 'epoch'",
    ),
    "level": (
        {"level": "middle"},
        ValueError,
        "level='middle' must be one of 'upper', 'lower'",
    ),
    "seed": ({"seed": -1}, ValueError, "seed=-1 must be a whole number ≥ 0"),
    "seed None": ({"seed": None}, ValueError, "seed=None must be a whole number ≥ 0"),
    "seed bool": ({"seed": True}, ValueError, "seed=True must be a whole number ≥ 0"),
    "size word": (
        {"schedule": "big"},
        TypeError,
        "lower_batch='big' must be a number or a function of the step k",
    ),
    "law nan": (
        {"schedule": lambda k: math.nan},
        ValueError,
        "lower_batch at step 0 is nan; it must be finite",
    ),
    "law word": (
        {"schedule": lambda k: "x"},
        TypeError,
        "lower_batch at step 0 is 'x'; it must be a number",
    ),
    "share": ({"share": (2, 2)}, ValueError, r"share=\(2, 2\) must be \(i, n\)"),
    "negative share": (
        {"share": (-1, 2)},
        ValueError,
        r"share=\(-1, 2\) must be \(i, n\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    change, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        GrowingBatches(**{"dataset": torch.arange(9), "schedule": 4} | change)


def test_several_ranks_must_name_their_share(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(
        RuntimeError, match=r"several ranks run: give share=\(rank, ranks\)"
    ):
        GrowingBatches(torch.arange(9), 4)
    GrowingBatches(torch.arange(9), 4, share=(3, 4))


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"generator": None}, {"in_order": False}, {"colour": "red"}],
)
def test_options_that_the_loader_refuses_are_named(options):
    (name,) = options
    with pytest.raises((TypeError, ValueError), match=name):
        next(iter(numbers(9, 4, **options)))


def test_a_law_that_turns_illegal_is_reported_at_its_step():
    batches = numbers(9, lambda k: 3 if k < 2 else math.inf)
    with pytest.raises(ValueError, match="lower_batch at step 2 is inf"):
        take(batches, 3)
    assert batches.k == 2


def test_states_of_other_batches_are_refused_and_change_nothing():
    batches = numbers(10, 6)
    expected = take(numbers(10, 6), 2)
    assert take(batches, 1) == expected[:1]
    for change, message in (
        (
            {"sampling": "epoch"},
            "the state has sampling='epoch', these batches have sampling='iid'",
        ),
        (
            {"level": "upper"},
            "the state has level='upper', these batches have level='lower'",
        ),
        ({"length": 11}, "the state has length=11, these batches have length=10"),
        ({"k": -1}, "k=-1 must be a whole number ≥ 0"),
        ({"samples": None}, "samples=None must be a whole number ≥ 0"),
    ):
        with pytest.raises(ValueError, match=message):
            batches.load_state_dict({**numbers(10, 6).state_dict(), **change})
    with pytest.raises(ValueError, match="the state has sampling=None"):
        batches.load_state_dict({})
    with pytest.raises(TypeError, match="the state is a list"):
        batches.load_state_dict([])
    assert take(batches, 1) == expected[1:]


def test_an_error_in_the_dataset_leaves_the_state_at_the_step():
    class Broken(Squares):
        def __getitem__(self, i):
            if i == 3:
                raise OSError("unreadable")
            return super().__getitem__(i)

    batches = GrowingBatches(Broken(4), 8, sampling="epoch", micro_batch=2)
    with pytest.raises(OSError, match="unreadable"):
        list(next(iter(batches)))
    assert batches.state_dict()["k"] == 0


# --------------------------------------------------------------------------------------------------------- over ranks


@MODES
@pytest.mark.parametrize("micro_batch", [1, 2, 7, 100])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_ranks_draw_the_samples_of_one_process(sampling, micro_batch, n):
    """The same samples at each step, in order, each once; weights such that the mean over ranks is the mean loss."""
    sizes = [1, 2, 4, 7, 11, 17, 23, 64]
    options = {"sampling": sampling, "seed": 3}
    whole = take(numbers(13, lambda k: sizes[k], **options), 8)
    shares = [
        numbers(
            13, lambda k: sizes[k], share=(i, n), micro_batch=micro_batch, **options
        )
        for i in range(n)
    ]
    for k, batches in enumerate(itertools.islice(zip(*shares, strict=True), 8)):
        ranks = [
            [(rows.tolist(), weight) for rows, weight in batch] for batch in batches
        ]
        parts = list(itertools.chain(*ranks))
        counts = [len(rows) for rows, _ in parts]
        assert (
            len({len(rank) for rank in ranks}) == 1
        )  # ranks meet at every micro-batch
        assert 0 < min(counts) <= max(counts) <= min(micro_batch, min(counts) + 1)
        assert all(weight > 0 for _, weight in parts)
        if sizes[k] >= len(parts):
            assert list(itertools.chain(*(rows for rows, _ in parts))) == whole[k]
        total = np.zeros(13)  # what each sample counts for, in the mean over the ranks
        for rows, weight in parts:
            np.add.at(total, rows, weight / len(rows) / n)
        np.testing.assert_allclose(
            total, np.bincount(whole[k], minlength=13) / sizes[k], rtol=1e-12
        )


@MODES
def test_another_number_of_ranks_goes_on_where_the_first_was(sampling):
    def law(k):
        return 3 + 2 * k

    options = {"sampling": sampling, "seed": 5, "micro_batch": 3}
    whole = take(numbers(17, law, **options), 9)
    two = [numbers(17, law, share=(i, 2), **options) for i in range(2)]
    first = [take(batches, 4) for batches in two]
    state = two[0].state_dict()
    assert state == two[1].state_dict()
    assert state == {
        "k": 4,
        "samples": 24,
        "seed": 5,
        "sampling": sampling,
        "level": "lower",
        "length": 17,
    }
    three = [numbers(17, law, share=(i, 3), **options | {"seed": 99}) for i in range(3)]
    for batches in three:
        batches.load_state_dict(state)
    then = [take(batches, 5) for batches in three]
    assert [a + b for a, b in zip(*first, strict=True)] == whole[:4]
    assert [a + b + c for a, b, c in zip(*then, strict=True)] == whole[4:]


@WORKERS
def test_shares_with_workers():
    def drawn(**options):
        return load(
            GrowingBatches(Squares(10), 7, micro_batch=2, share=(1, 2), **options), 3
        )

    assert drawn(num_workers=2) == drawn()
