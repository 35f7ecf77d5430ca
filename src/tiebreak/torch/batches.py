"""Batches that grow with the step, in micro-batches that bound the memory."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice, tee
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tiebreak.checks import one_of, whole
from tiebreak.schedules import Law, Schedule
from tiebreak.torch.distributed.layout import several_ranks
from tiebreak.torch.gradients import LEVELS

#: What a saved state must share with the batches that load it, and what they take from it.
_SETTINGS = ("sampling", "level", "length")
_POSITION = ("k", "samples", "seed")


@dataclass
class Batch:
    """The samples of one step. Iterate once for pairs ``(inputs, weight)``; the length is the number of pairs.

    Attributes
    ----------
    k, size : int
        The step, and its number of samples B_k, over all ranks.

    Examples
    --------
    >>> batches = GrowingBatches(range(100), lambda k: 4, micro_batch=2, seed=0)
    >>> batch = next(iter(batches))
    >>> batch.k, batch.size, [weight for _, weight in batch]
    (0, 4, [0.5, 0.5])
    """

    k: int
    size: int
    _samples: list[list[int]]  # of each micro-batch
    _weights: list[float]
    _pairs: Iterator[tuple[Any, float]] | None = None  # None after the iteration

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        pairs = self._pairs
        if pairs is None:  # the step would silently miss its gradients
            raise RuntimeError(
                f"the batch of step {self.k} can be iterated once, before the next; keep list(batch)"
            )
        self._pairs = None
        return pairs


class GrowingBatches:
    """Batches of B_k samples for the steps k = 0, 1, …, in micro-batches whose weights add up to 1.

    Σ weight · (mean loss of a micro-batch) is the mean loss of all B_k samples. The micro-batches of a step differ by
    at most one sample.

    Over several ranks B_k is the batch of all of them. The ranks share the same samples, whatever their number, and each
    has equally many micro-batches. The *mean over the ranks* of Σ weight · loss is the mean loss of all B_k samples, as
    DistributedDataParallel and FSDP average gradients.

    Parameters
    ----------
    dataset : Dataset, tensor or tuple of tensors
        Map-style: with a length, and samples by number. Rows of tensors are gathered in one operation.
    schedule : Schedule, function of the step, or int
        B_k: the law of this `level` in a :class:`tiebreak.Schedule`, a law of your own (floored, at least 1), or a
        constant. :class:`tiebreak.Capped` limits a law; Corollary 1 needs growing batches, and does not cover the cap.
    micro_batch : int
        The maximum number of samples at once, which bounds the memory. Of the whole batch only the sample numbers are
        in memory.
    sampling : {"iid", "epoch"}
        With replacement, as in the theory; or each sample once in an epoch. Epochs are shuffled and continue across
        steps.
    share : (int, int)
        The share i of n that this process draws of each batch. With data parallelism over all ranks it is
        ``(dist.get_rank(), dist.get_world_size())``; ``(0, 1)`` is the whole batch. Required if several ranks run.
    level : {"upper", "lower"}
        The levels draw independent samples, also with the same seed.
    seed : int
        Determines the samples for any `micro_batch`, `num_workers` and number of shares.
    **options
        Those of :class:`torch.utils.data.DataLoader`, such as `num_workers`; workers read ahead, across steps.

    Attributes
    ----------
    k, samples : int
        The next or current step, and the number of samples in all steps before.
    length : int
        The number of samples of the dataset.

    Notes
    -----
    A step ends when the loop receives its last micro-batch, so save the state after the optimizer's step. An incomplete
    step restarts at its first sample in a new loop or after a saved state is loaded; a loop that continues skips the
    remaining samples of the step. The random numbers of transforms inside a dataset are not part of the state. The
    state is the same on every rank, and can be loaded with another number of ranks. If a step has fewer samples than
    all ranks have micro-batches, some micro-batches have the same sample, each with a part of its weight.

    Examples
    --------
    >>> from tiebreak import Power
    >>> batches = GrowingBatches(torch.randn(100, 3), Power(1, 2.5), micro_batch=10)
    >>> for batch in batches:
    ...     print(batch.k, batch.size, [(len(rows), round(weight, 3)) for rows, weight in batch])
    ...     if batch.k == 2:
    ...         break
    0 1 [(1, 1.0)]
    1 5 [(5, 1.0)]
    2 15 [(8, 0.533), (7, 0.467)]
    >>> batches.state_dict()
    {'k': 3, 'samples': 21, 'seed': 0, 'sampling': 'iid', 'level': 'lower', 'length': 100}
    """

    def __init__(
        self,
        dataset: Any,
        schedule: Schedule | Law | int,
        micro_batch: int = 64,
        *,
        sampling: str = "iid",
        share: tuple[int, int] | None = None,
        level: str = "lower",
        seed: int = 0,
        **options: Any,
    ) -> None:
        one_of("sampling", sampling, ("iid", "epoch"))
        one_of("level", level, LEVELS)
        self.micro_batch = whole("micro_batch", micro_batch)
        self.sampling = sampling
        self.level = level
        self.seed = whole("seed", seed, 0)
        self.k = 0
        self.samples = 0
        if not isinstance(schedule, Schedule):
            schedule = Schedule().replace(**{f"{level}_batch": schedule})
        self._schedule = schedule
        self._batch_size(0)  # report an illegal law at once
        self._dataset, self._options = _prepare(dataset, options)
        self.length = len(self._dataset)
        if share is None and several_ranks():
            raise RuntimeError(
                "several ranks run: give share=(rank, ranks), or (0, 1) for the whole batch on each"
            )
        self._rank, self._ranks = share or (0, 1)
        if not 0 <= self._rank < self._ranks:
            raise ValueError(
                f"share={share!r} must be (i, n), share i of n, with 0 ≤ i < n"
            )

    def __iter__(self) -> Iterator[Batch]:
        batches, ahead = tee(self._plan())
        # The loader would draw from torch's generator and change the dropout masks of a resumed run.
        seed = self._random(self.k, 1, self._rank).integers(2**62)
        loader = DataLoader(
            self._dataset,
            batch_sampler=chain.from_iterable(batch._samples for batch in ahead),
            generator=torch.Generator().manual_seed(int(seed)),
            in_order=True,
            **self._options,
        )
        source = iter(loader)
        for batch in batches:
            pairs = self._load(batch.k, batch.size, batch._weights, source)
            batch._pairs = pairs
            yield batch
            batch._pairs = None
            for _ in pairs:
                pass  # skip the remaining samples of the step
        self._batch_size(self.k)  # raise the error that ended the plan

    def _load(
        self, k: int, size: int, weights: list[float], source: Iterator[Any]
    ) -> Iterator[tuple[Any, float]]:
        for number, weight in enumerate(weights, 1):
            if self.k != k:
                raise RuntimeError(
                    f"step {k} is over: another loop or a loaded state has led to step {self.k}"
                )
            inputs = next(source)
            # End the step before the last yield: zip(upper, lower) resumes only one of its iterators.
            if number == len(weights):
                self.k += 1
                self.samples += size
            yield inputs, weight

    def _plan(self) -> Iterator[Batch]:
        """Yield the batches from the next step on, without their pairs."""
        epoch, offset = divmod(self.samples, self.length)
        orders = (self._random(i).permutation(self.length) for i in count(epoch))
        order = islice(chain.from_iterable(orders), offset, None)
        for k in count(self.k):
            try:
                size = self._batch_size(k)
            except Exception:
                return  # workers read ahead; `__iter__` raises the error at the step
            if self.sampling == "iid":
                samples = self._random(k).integers(self.length, size=size)
            else:
                samples = np.fromiter(islice(order, size), np.int64, size)
            length = math.ceil(size / self._ranks / self.micro_batch)
            places = self._ranks * length
            repeats = [1] * places
            if size < places:  # several micro-batches have the same sample
                owners = np.arange(places) * size // places
                samples = samples[owners]
                repeats = np.bincount(owners)[owners].tolist()
            share = slice(self._rank * length, (self._rank + 1) * length)
            parts = np.array_split(samples, places)[share]
            weights = [
                self._ranks * (len(part) / (size * repeat))
                for part, repeat in zip(parts, repeats[share], strict=True)
            ]
            yield Batch(k, size, [part.tolist() for part in parts], weights)

    def _batch_size(self, k: int) -> int:
        return int(getattr(self._schedule.at(k), f"{self.level}_batch"))

    def _random(self, *key: int) -> np.random.Generator:
        """Return a generator that is independent of those of other seeds, levels and keys."""
        spawn_key = (LEVELS.index(self.level), *key)
        return np.random.default_rng(
            np.random.SeedSequence(self.seed, spawn_key=spawn_key)
        )

    def state_dict(self) -> dict[str, int | str]:
        """Return the start of the next step: numbers and words, fit for ``torch.load(…, weights_only=True)``."""
        return {name: getattr(self, name) for name in (*_POSITION, *_SETTINGS)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with its seed: the next loop starts with the same samples, bit for bit."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"the state is a {type(state).__name__}; it must be what state_dict() gave"
            )
        for name in _SETTINGS:
            current = getattr(self, name)
            if state.get(name) != current:
                raise ValueError(
                    f"the state has {name}={state.get(name)!r}, these batches have {name}={current!r}"
                )
        self.k, self.samples, self.seed = (
            whole(name, state.get(name), 0) for name in _POSITION
        )


class _Rows(TensorDataset):
    """Tensors by rows: gathers all rows of a micro-batch in one operation."""

    def __getitems__(self, numbers: list[int]) -> list[Tensor]:
        rows = torch.from_numpy(np.array(numbers))  # faster than torch.tensor(numbers)
        return [
            tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors
        ]


def _prepare(dataset: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the dataset and the loader's options; rows of tensors are gathered unless the user collates samples."""
    kind = type(dataset).__name__
    is_iterable = isinstance(dataset, IterableDataset | Mapping)
    if is_iterable or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"dataset={kind} must be map-style (samples by number, a length), a tensor, or tensors in a tuple"
        )
    if isinstance(dataset, tuple):
        dataset = TensorDataset(*dataset)
    if not len(dataset):
        raise ValueError(f"dataset={kind} has no samples; it must have at least one")
    if options.get("collate_fn") is None:
        if isinstance(dataset, Tensor):
            return _Rows(dataset), options | {"collate_fn": itemgetter(0)}
        if type(dataset) is TensorDataset:
            return _Rows(*dataset.tensors), options | {"collate_fn": tuple}
    return dataset, options
