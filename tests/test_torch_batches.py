"""Growing batches: the law of the samples, the weights, the schedule, memory, workers, and resuming."""

import copy
import gc
import io
import itertools
import math
import multiprocessing
import pickle
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import tiebreak
from tiebreak.torch import DynamicBarrier, GrowingBatches

# Other tests of the same process may have started JAX, which warns of every fork; workers do not use it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*multi-threaded")
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
    return [[int(i) for rows, _ in batch for i in rows] for batch in itertools.islice(batches, steps)]


def numbers(length, schedule, **options):
    return GrowingBatches(torch.arange(length), schedule, **options)


# -------------------------------------------------------------------------------------------------- the law of samples


def fits(table):
    """Whether counts are those of a uniform law: chi-square, two-sided, at 99.98 % confidence."""
    counts = np.asarray(table).ravel()
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return stats.chi2.ppf(1e-4, counts.size - 1) < statistic < stats.chi2.ppf(1 - 1e-4, counts.size - 1)


def pairs(first, second, length):
    table = np.zeros((length, length))
    np.add.at(table, (np.asarray(first), np.asarray(second)), 1)
    return table


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_iid_samples_are_uniform_and_independent(seed):
    (step,) = take(numbers(10, 20_000, seed=seed), 1)
    assert fits(np.bincount(step, minlength=10))
    assert fits(pairs(step[::2], step[1::2], 10))


def test_steps_levels_and_seeds_are_independent_of_each_other():
    """Every step has a generator of its own: samples at the same place of different streams do not know each other."""
    lower, upper, other = (
        np.ravel(take(numbers(4, 2, level=level, seed=seed), 3000))
        for level, seed in (("lower", 0), ("upper", 0), ("lower", 1))
    )
    assert fits(pairs(lower[:-2:2], lower[2::2], 4))  # step after step
    assert fits(pairs(lower, upper, 4))
    assert fits(pairs(lower, other, 4))


@pytest.mark.parametrize(("length", "micro_batch"), [(10, 3), (7, 64), (1, 2), (100, 9)])
def test_an_epoch_has_every_sample_once(length, micro_batch):
    """Across steps of 1, 2, 3, … samples: each run of `length` samples is a permutation."""
    batches = numbers(length, lambda k: k + 1, sampling="epoch", micro_batch=micro_batch)
    seen = list(itertools.chain(*take(batches, 40)))
    epochs = [seen[i : i + length] for i in range(0, len(seen), length)]
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs[:-1])
    assert len(set(epochs[-1])) == len(epochs[-1])
    assert batches.samples == len(seen) == 820


def test_epochs_are_shuffled_independently():
    first = [epoch[0] for epoch in take(numbers(5, 5, sampling="epoch"), 3000)]
    assert fits(np.bincount(first, minlength=5))
    assert fits(pairs(first[:-1], first[1:], 5))


def test_a_batch_larger_than_the_dataset_goes_through_several_epochs():
    (step,) = take(numbers(8, 28, sampling="epoch", micro_batch=5), 1)
    assert sorted(np.bincount(step)) == [3] * 4 + [4] * 4


@MODES
def test_the_samples_do_not_depend_on_the_micro_batch(sampling):
    streams = [take(numbers(50, lambda k: 7 * k + 3, sampling=sampling, micro_batch=m), 6) for m in (1, 4, 1000)]
    assert streams[0] == streams[1] == streams[2]


# ------------------------------------------------------------------------------------------------ weights and gradients


@given(st.integers(1, 300), st.integers(1, 80))
@settings(max_examples=100, deadline=None)
def test_micro_batches_are_few_even_and_weigh_what_they_count(size, micro_batch):
    batch = next(numbers(11, size, micro_batch=micro_batch))
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
    data = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    layers = torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    return torch.nn.Sequential(*layers).double(), data


def backward(model, opt, batch, told=False):
    for (inputs, targets), weight in batch:
        loss = weight * torch.nn.functional.mse_loss(model(inputs), targets)
        with opt.lower(loss if told else None):
            loss.backward()


@MODES
def test_micro_batches_equal_one_batch_in_gradient_and_loss(sampling):
    found = []
    for micro_batch in (7, 1000):
        model, data = regression()
        model.eval()  # dropout would draw different masks for different shapes
        opt = DynamicBarrier(torch.optim.SGD(model.parameters(), lr=0.0), barrier=1.0)
        batch = next(GrowingBatches(data, 50, micro_batch=micro_batch, sampling=sampling))
        backward(model, opt, batch, told=True)
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        with opt.upper():
            model[0].weight.square().sum().backward()
        info = opt.step()
        found.append((gradient, info.lower_loss, info.gg, info.fg))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


# --------------------------------------------------------------------------------------------------------- the schedule


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("method", tiebreak.schedules.PAPER)
def test_sizes_follow_the_schedule_floors_and_all(method, level):
    schedule = tiebreak.schedules.PAPER[method]
    batches = GrowingBatches(torch.arange(9), schedule, level=level)
    for k in range(40):
        batch = next(batches)  # not used up: no sample is loaded
        assert (batch.k, batch.size) == (k, getattr(schedule.at(k), f"{level}_batch"))
    assert next(GrowingBatches(torch.arange(9), schedule, level="lower")).size == 1


def test_other_laws():
    def sizes(law):
        return [batch.size for batch in itertools.islice(numbers(9, law), 4)]

    assert sizes(5) == [5, 5, 5, 5]
    assert sizes(np.int64(5)) == [5, 5, 5, 5]
    assert sizes(lambda k: 1.6**k) == [1, 1, 2, 4]
    assert sizes(lambda k: k - 2) == [1, 1, 1, 1]
    assert sizes(tiebreak.Power(1, 2.5)) == [1, 5, 15, 32]  # 4^2.5 is 32 exactly


@WORKERS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_law_that_ends_fails_at_its_end_and_not_ahead(num_workers):
    """Workers read ahead, beyond the last step that the law knows of; that is nobody's error until it is reached."""
    sizes = [2, 3, 4]
    batches = numbers(10, lambda k: sizes[k], num_workers=num_workers)
    assert [len(step) for step in take(batches, 3)] == sizes
    with pytest.raises(IndexError):
        next(batches)


@pytest.mark.parametrize(
    ("level", "advice"),
    [("lower", 'estimator="average" or tolerance=…'), ("upper", 'estimator="storm"')],
)
def test_a_cap_says_once_what_it_costs(level, advice):
    batches = numbers(10, tiebreak.anytime(0.25).replace(upper_batch=lambda k: k + 1), level=level, max_batch=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sizes = [len(step) for step in take(batches, 8)]
    assert sizes == ([1, 4, 4, 4, 4, 4, 4, 4] if level == "lower" else [1, 2, 3, 4, 4, 4, 4, 4])
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    first, wanted = (1, 5) if level == "lower" else (4, 5)
    text = str(warning.message)
    assert f"{level}_batch at step {first} is {wanted}, cut down to max_batch=4" in text
    assert "Corollary 1 needs growing batches, and holds no longer" in text
    assert advice in text


def test_a_cap_that_does_not_bind_is_quiet():
    assert len(take(numbers(10, lambda k: k + 1, max_batch=5), 5)) == 5


# --------------------------------------------------------------------------------------------------- memory and workers


@MODES
def test_memory_does_not_grow_with_the_batch(sampling):
    """300 000 samples in one step: their numbers alone would take 2.4 MB."""
    batches = numbers(1000, 300_000, micro_batch=200, sampling=sampling)
    take(numbers(1000, 300, sampling=sampling), 1)  # imports and caches
    gc.collect()
    tracemalloc.start()
    total = sum(len(rows) for rows, _ in next(batches))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 300_000
    assert peak < 200_000


def everything(batches, steps):
    return [[(inputs, weight) for inputs, weight in batch] for batch in itertools.islice(batches, steps)]


def same(a, b):
    flat = [
        [value for step in run for (i, square), weight in step for value in (i, square, torch.tensor(weight))]
        for run in (a, b)
    ]
    return len(flat[0]) == len(flat[1]) and all(torch.equal(x, y) for x, y in zip(*flat, strict=True))


@WORKERS
@MODES
def test_workers_change_nothing(sampling):
    def run(num_workers):
        batches = GrowingBatches(
            Squares(23), lambda k: 4 * k + 1, micro_batch=5, sampling=sampling, num_workers=num_workers
        )
        found = everything(batches, 6)
        return found, batches.state_dict()

    alone, state = run(0)
    helped, state_helped = run(2)
    assert same(alone, helped)
    assert state == state_helped == {
        "k": 6, "samples": 66, "seed": 0, "sampling": sampling, "level": "lower", "length": 23
    }  # fmt: skip


@WORKERS
def test_workers_end_with_their_batches():
    """No cycle keeps them: they stop when the last reference goes, also from the middle of a step."""
    batches = GrowingBatches(Squares(23), 20, micro_batch=2, num_workers=1)
    next(iter(next(batches)))
    assert len(multiprocessing.active_children()) == 1
    reference = weakref.ref(batches)
    gc.disable()
    try:
        del batches
        assert reference() is None
        assert not multiprocessing.active_children()
    finally:
        gc.enable()
    again = GrowingBatches(Squares(23), 3, num_workers=1)
    take_one = everything(again, 1)
    again.close()
    assert not multiprocessing.active_children()
    assert same(take_one + everything(again, 1), everything(GrowingBatches(Squares(23), 3), 2))


@WORKERS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_global_generators_are_left_alone(num_workers):
    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  # it is the legacy one we watch
    everything(GrowingBatches(Squares(23), 30, num_workers=num_workers), 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


# ------------------------------------------------------------------------------------------------------------- resuming


@WORKERS
@MODES
@pytest.mark.parametrize("workers", [(0, 0), (2, 0), (0, 1)])
def test_resumed_equals_uninterrupted(sampling, workers):
    """Saved after five steps, 35 samples, in the middle of the second epoch of 23; workers had read further."""

    def make(num_workers, seed):
        return GrowingBatches(
            Squares(23), lambda k: 3 * k + 1, micro_batch=4, sampling=sampling, num_workers=num_workers, seed=seed
        )

    expected = everything(make(0, 5), 9)
    first = make(workers[0], 5)
    found = everything(first, 5)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(workers[1], 99)  # the seed comes with the state
    second.load_state_dict(torch.load(file, weights_only=True))
    assert (second.k, second.samples, second.seed) == (5, 35, 5)
    assert same(found + everything(second, 4), expected)


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
        opt = DynamicBarrier(torch.optim.AdamW(model.parameters(), lr=0.01), barrier=1.0, estimator="average")
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
    torch.save({"parts": [part.state_dict() for part in parts], "random": torch.get_rng_state()}, file)
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
def test_a_step_saved_halfway_is_begun_anew(sampling):
    expected = take(numbers(10, 6, sampling=sampling), 4)
    batches = numbers(10, 6, sampling=sampling, micro_batch=2)
    take(batches, 1)
    parts = iter(next(batches))
    next(parts)
    other = numbers(10, 6, sampling=sampling)
    other.load_state_dict(batches.state_dict())
    assert take(other, 3) == expected[1:]
    for twin in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        assert take(twin, 3) == expected[1:]
    next(parts)
    next(parts)  # that was the last: the step is over before more is asked for
    assert batches.state_dict()["k"] == 2
    assert take(batches, 2) == expected[2:]


@MODES
def test_a_step_left_halfway_is_skipped_by_next_and_begun_anew_by_a_loop(sampling):
    expected = take(numbers(10, 6, sampling=sampling), 5)
    batches = numbers(10, 6, sampling=sampling, micro_batch=2)
    untouched = next(batches)
    begun = next(batches)
    parts = iter(begun)
    next(parts)
    third = [int(i) for rows, _ in next(batches) for i in rows]
    assert third == expected[2]
    for old in (untouched, parts):
        with pytest.raises(RuntimeError, match="is over: there is a newer one"):
            next(iter(old))
    for batch in batches:
        assert batch.k == 3
        break
    assert take(batches, 2) == expected[3:]


def test_a_loaded_state_ends_what_was_under_way():
    batches = numbers(10, 6, micro_batch=2)
    parts = iter(next(batches))
    next(parts)
    batches.load_state_dict(batches.state_dict())
    with pytest.raises(RuntimeError, match="the batch of step 0 is over"):
        next(parts)
    assert take(batches, 2) == take(numbers(10, 6), 2)


def test_a_batch_is_handed_out_once():
    batch = next(numbers(10, 6, micro_batch=4))
    assert repr(batch) == "Batch(k=0, size=6, micro_batches=2)"
    assert len(list(batch)) == 2
    with pytest.raises(RuntimeError, match=r"step 0 is handed out once; to use it again, keep list\(batch\)"):
        iter(batch)


def test_zip_leaves_both_levels_at_the_same_step():
    upper, lower = (numbers(10, 6, micro_batch=3, level=level) for level in ("upper", "lower"))
    for above, below in zip(upper, lower, strict=True):
        assert len(list(zip(above, below, strict=False))) == 2  # stops at the first's end, never asks the second
        assert upper.k == lower.k == above.k + 1
        if above.k == 2:
            break


# ----------------------------------------------------------------------------------------------- datasets and bad input


def test_tensors_come_as_they_were_given():
    x, y = torch.randn(6, 3), torch.arange(6)

    def first(dataset, **options):
        return next(iter(next(GrowingBatches(dataset, 4, sampling="epoch", **options))))[0]

    assert torch.equal(first(x), x[first(y)])
    rows, targets = first((x, y))
    assert torch.equal(rows, x[targets])
    rows, targets = first(TensorDataset(x, y))
    assert torch.equal(rows, x[targets])
    assert torch.equal(first([float(i) for i in y]), first(y).double())  # a list is a map-style dataset
    assert first((x, y), collate_fn=len) == 4
    assert first(x, collate_fn=lambda samples: [s.shape for s in samples]) == [torch.Size([3])] * 4


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


BAD = {
    "iterable": (
        {"dataset": Endless()},
        TypeError,
        "dataset=Endless is iterable-style, but samples are drawn by number",
    ),
    "no dataset": ({"dataset": 3}, TypeError, "dataset=int must be a map-style dataset"),
    "generator": ({"dataset": iter([1, 2])}, TypeError, "dataset=list_iterator must be a map-style dataset"),
    "mapping": ({"dataset": {"x": torch.ones(3)}}, TypeError, "dataset=dict must be a map-style dataset"),
    "empty": ({"dataset": torch.ones(0, 3)}, ValueError, "dataset=Tensor has no samples"),
    "no samples": ({"dataset": []}, ValueError, "dataset=list has no samples"),
    "no rows": ({"dataset": torch.tensor(1.0)}, ValueError, "dataset=Tensor has no samples"),
    "uneven": ({"dataset": (torch.ones(3), torch.ones(4))}, ValueError, r"tensors of \[3, 4\] rows"),
    "micro 0": ({"micro_batch": 0}, ValueError, "micro_batch=0 must be a whole number ≥ 1"),
    "micro 2.5": ({"micro_batch": 2.5}, ValueError, "micro_batch=2.5 must be a whole number ≥ 1"),
    "cap": ({"max_batch": -1}, ValueError, "max_batch=-1 must be a whole number ≥ 1"),
    "sampling": ({"sampling": "shuffle"}, ValueError, "sampling='shuffle' must be one of 'iid', 'epoch'"),
    "level": ({"level": "middle"}, ValueError, "level='middle' must be one of 'upper', 'lower'"),
    "seed": ({"seed": -1}, ValueError, "seed=-1 must be a whole number ≥ 0"),
    "seed None": ({"seed": None}, ValueError, "seed=None must be a whole number ≥ 0"),
    "seed bool": ({"seed": True}, ValueError, "seed=True must be a whole number ≥ 0"),
    "workers": ({"num_workers": 1.5}, ValueError, "num_workers=1.5 must be a whole number ≥ 0"),
    "size 0": ({"schedule": 0}, ValueError, "schedule=0 must be a whole number ≥ 1, a function of the step k, or a ti"),
    "size word": ({"schedule": "big"}, ValueError, "schedule='big' must be a whole number ≥ 1, a function of the st"),
    "law nan": ({"schedule": lambda k: math.nan}, ValueError, "lower_batch at step 0 is nan; it must be finite"),
    "law word": ({"schedule": lambda k: "x"}, TypeError, "lower_batch at step 0 is 'x'; it must be a number"),
    "ours": ({"shuffle": True, "batch_size": 3}, TypeError, "batch_size, shuffle: decided here, by micro_batch"),
    "unknown": ({"colour": "red"}, TypeError, "unexpected keyword argument 'colour'"),
    "theirs": ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified in multiprocessing"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    change, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        GrowingBatches(**{"dataset": torch.arange(9), "schedule": 4} | change)


def test_a_law_that_turns_illegal_is_reported_at_its_step():
    batches = numbers(9, lambda k: 3 if k < 2 else math.inf)
    take(batches, 2)
    with pytest.raises(ValueError, match="lower_batch at step 2 is inf"):
        next(batches)


def test_states_of_other_batches_are_refused_and_change_nothing():
    batches = numbers(10, 6)
    expected = take(numbers(10, 6), 2)
    assert take(batches, 1) == expected[:1]
    for change, message in (
        ({"sampling": "epoch"}, "the state has sampling='epoch', these batches have sampling='iid'"),
        ({"level": "upper"}, "the state has level='upper', these batches have level='lower'"),
        ({"length": 11}, "the state has length=11, these batches have length=10"),
        ({"k": -1}, "k=-1 must be a whole number ≥ 0"),
        ({"samples": None}, "samples=None must be a whole number ≥ 0"),
    ):
        with pytest.raises(ValueError, match=message):
            batches.load_state_dict({**numbers(10, 6).state_dict(), **change})
    with pytest.raises(ValueError, match="the state has sampling=None"):
        batches.load_state_dict({})
    assert take(batches, 1) == expected[1:]


def test_an_error_in_the_dataset_leaves_the_state_at_the_step():
    class Broken(Squares):
        def __getitem__(self, i):
            if i == 3:
                raise OSError("unreadable")
            return super().__getitem__(i)

    batches = GrowingBatches(Broken(4), 8, sampling="epoch", micro_batch=2)
    with pytest.raises(OSError, match="unreadable"):
        list(next(batches))
    assert batches.state_dict()["k"] == 0


# --------------------------------------------------------------------------------------------------------- over ranks


def shares(length, schedule, n, steps, **options):
    """What each of n ranks draws in each step: by rank and step, pairs of samples and weight."""
    ranks = [numbers(length, schedule, share=(i, n), **options) for i in range(n)]
    return [
        [[(rows.tolist(), w) for rows, w in batch] for batch in itertools.islice(batches, steps)] for batches in ranks
    ]


@MODES
@pytest.mark.parametrize("micro_batch", [1, 2, 7, 100])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_ranks_draw_the_samples_of_one_process(sampling, micro_batch, n):
    """The same samples at each step, in order, each once; weights such that the mean over ranks is the mean loss."""
    steps, options = 8, {"sampling": sampling, "seed": 3}
    sizes = [1, 2, 4, 7, 11, 17, 23, 64]
    whole = take(numbers(13, lambda k: sizes[k], **options), steps)
    by_rank = shares(13, lambda k: sizes[k], n, steps, micro_batch=micro_batch, **options)
    for k, size in enumerate(sizes):
        here = [rank[k] for rank in by_rank]
        assert len({len(parts) for parts in here}) == 1  # ranks meet at every micro-batch
        assert all(0 < len(rows) <= micro_batch for parts in here for rows, _ in parts)
        assert all(weight > 0 for parts in here for _, weight in parts)
        if size >= n and micro_batch > 1:
            drawn = [rows for parts in here for rows, _ in parts]
            assert list(itertools.chain(*drawn)) == whole[k]
            assert max(map(len, drawn)) - min(map(len, drawn)) <= 1
        total = np.zeros(13)  # what each sample counts for, in the mean over the ranks
        for parts in here:
            for rows, weight in parts:
                np.add.at(total, rows, weight / len(rows) / n)
        np.testing.assert_allclose(total, np.bincount(whole[k], minlength=13) / size, rtol=1e-12)


@MODES
def test_another_number_of_ranks_goes_on_where_the_first_was(sampling):
    def law(k):
        return 3 + 2 * k

    options = {"sampling": sampling, "seed": 5, "micro_batch": 3}
    whole = take(numbers(17, law, **options), 9)
    two = [numbers(17, law, share=(i, 2), **options) for i in range(2)]
    first = [take(batches, 4) for batches in two]
    states = [batches.state_dict() for batches in two]
    assert (
        states[0]
        == states[1]
        == {"k": 4, "samples": 24, "seed": 5, "sampling": sampling, "level": "lower", "length": 17}
    )
    three = [numbers(17, law, share=(i, 3), **options | {"seed": 99}) for i in range(3)]
    for batches in three:
        batches.load_state_dict(states[0])
    then = [take(batches, 5) for batches in three]
    assert [a + b for a, b in zip(*first, strict=True)] == whole[:4]
    assert [a + b + c for a, b, c in zip(*then, strict=True)] == whole[4:]


@WORKERS
def test_shares_with_workers():
    def drawn(share, **options):
        batches = GrowingBatches(Squares(10), 7, micro_batch=2, share=share, **options)
        return [[i.tolist() for (i, _), _ in batch] for batch in itertools.islice(batches, 3)]

    for share in ((0, 2), (1, 2)):
        assert drawn(share, num_workers=2) == drawn(share)


def test_what_a_share_may_be():
    for bad in ("rank", (2, 2), (0,), 3, (-1, 2), (0.5, 2), (0, 0), (True, 2)):
        with pytest.raises(ValueError, match='must be "ranks", or'):
            numbers(5, 2, share=bad)
    assert take(numbers(5, 2, share="ranks"), 2) == take(numbers(5, 2), 2)  # alone


def test_several_processes_must_say_how_they_share(monkeypatch):
    from tiebreak.torch import draws

    batches, whole = numbers(50, 6), numbers(50, 6, share=(0, 1))
    ranks = numbers(50, 6, share="ranks")
    everything = take(numbers(50, 6), 2)
    assert take(ranks, 1) == everything[:1]  # before there were ranks
    for name, value in (("is_initialized", True), ("get_world_size", 3), ("get_rank", 2)):
        monkeypatch.setattr(draws.dist, name, lambda value=value: value)
    with pytest.raises(RuntimeError, match="3 processes run: say which share"):
        next(iter(batches))
    assert take(whole, 2) == everything
    assert take(ranks, 1) == [everything[1][4:]]
