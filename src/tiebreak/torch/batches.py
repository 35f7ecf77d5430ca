"""Batches that grow with the step, in micro-batches, so that memory does not grow with them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice, tee
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tiebreak.checks import one_of, whole
from tiebreak.schedules import Law, Schedule
from tiebreak.torch.distributed.layout import several_ranks
from tiebreak.torch.gradients import LEVELS

#: The sample numbers and the weight of each micro-batch of a step.
_Parts: TypeAlias = list[tuple[list[int], float]]


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
    _length: int
    _pairs: Iterator[tuple[Any, float]]
    _used: bool = False

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        if self._used:  # an exhausted iterator would leave a step without gradients
            raise RuntimeError(
                f"the batch of step {self.k} can be iterated once, before the next; keep list(batch)"
            )
        self._used = True
        return self._pairs


class GrowingBatches:
    """Batches of B_k samples for the steps k = 0, 1, …, in micro-batches whose weights add up to 1.

    Σ weight · (mean loss of a micro-batch) is the mean loss of all B_k samples. The micro-batches of a step differ by
    at most one sample.

    Over several ranks B_k is the batch of all of them. Each rank draws its share of the same samples, whatever the
    number of ranks, in equally many micro-batches. The *mean over the ranks* of Σ weight · loss is the mean loss of all
    B_k samples, as DistributedDataParallel and FSDP average gradients.

    Parameters
    ----------
    dataset : Dataset, tensor or tuple of tensors
        Map-style: with a length, and samples by number. Rows of tensors are gathered in one operation.
    schedule : Schedule, function of the step, or int
        B_k: the law of this `level` in a :class:`tiebreak.Schedule`, a law of your own (floored, at least 1), or a
        constant. :class:`tiebreak.Capped` limits a law; Corollary 1 needs growing batches, and does not cover the cap.
    micro_batch : int
        The most samples at once. Memory depends on it; of B_k only the sample numbers are kept.
    sampling : {"iid", "epoch"}
        With replacement, as in the theory; or each sample once in an epoch, reshuffled, continuing across steps.
    share : (int, int)
        The share i of n that this process draws of each batch. With data parallelism over all ranks it is
        ``(dist.get_rank(), dist.get_world_size())``; ``(0, 1)`` is the whole batch. Required if several ranks run.
    level : {"upper", "lower"}
        Levels draw independently of each other, also with the same seed.
    seed : int
        Decides the samples, whatever `micro_batch`, `num_workers` and the number of shares are.
    **options
        Those of :class:`torch.utils.data.DataLoader`, such as `num_workers`; workers read ahead, across steps.

    Attributes
    ----------
    k, samples : int
        The next step (or the one under way), and the number of samples in all steps before it.

    Notes
    -----
    A step ends when its last micro-batch is handed out, so save the state after the optimizer's step. An incomplete
    step starts from its first sample after a saved state is loaded, or in a new loop; a loop that goes on skips the
    rest of the step. The draws of random transforms inside a dataset are not part of the state. The state is the same
    on every rank, and can be loaded with another number of ranks. If a step has fewer samples than all ranks have
    micro-batches, some micro-batches have the same sample, each with a part of its weight.

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
        self._batch_size(0)  # report a law that is illegal from the start
        self._dataset, self._options = _prepare(dataset, options)
        self._length = len(self._dataset)
        if share is None and several_ranks():
            raise RuntimeError(
                "several ranks run: give share=(rank, ranks), or (0, 1) for the whole batch on each"
            )
        self._share = share or (0, 1)
        if not 0 <= self._share[0] < self._share[1]:
            raise ValueError(
                f"share={share!r} must be (i, n), share i of n, with 0 ≤ i < n"
            )

    def __iter__(self) -> Iterator[Batch]:
        plan, plan_ahead = tee(self._plan())
        numbers = (part for _, _, parts in plan_ahead for part, _ in parts)
        # A generator of its own: the loader would draw from torch's, which shifts the dropout masks of a resumed run.
        generator = torch.Generator().manual_seed(
            int(self._random(self.k, 1, self._share[0]).integers(2**62))
        )
        loader = DataLoader(
            self._dataset,
            batch_sampler=numbers,
            generator=generator,
            in_order=True,
            **self._options,
        )
        source = iter(loader)
        for k, size, parts in plan:
            pairs = self._load(k, size, parts, source)
            batch = Batch(k, size, len(parts), pairs)
            yield batch
            batch._used = True
            for _ in pairs:
                pass  # skip what the step has left
        self._batch_size(self.k)  # raise the error that ended the plan

    def _load(
        self, k: int, size: int, parts: _Parts, source: Iterator[Any]
    ) -> Iterator[tuple[Any, float]]:
        for number, (_, weight) in enumerate(parts, 1):
            if self.k != k:
                raise RuntimeError(
                    f"step {k} is over: another loop or a loaded state has led to step {self.k}"
                )
            inputs = next(source)
            if number == len(
                parts
            ):  # before the yield: zip(upper, lower) resumes only one of its iterators
                self.k += 1
                self.samples += size
            yield inputs, weight

    def _plan(self) -> Iterator[tuple[int, int, _Parts]]:
        epoch, offset = divmod(self.samples, self._length)
        orders = (
            self._random(number).permutation(self._length) for number in count(epoch)
        )
        order = islice(chain.from_iterable(orders), offset, None)
        index, shares = self._share
        for k in count(self.k):
            try:
                size = self._batch_size(k)
            except (
                Exception
            ):  # workers read ahead; the loop raises the error if it reaches this step
                return
            if self.sampling == "iid":
                samples = self._random(k).integers(self._length, size=size)
            else:
                samples = np.fromiter(islice(order, size), np.int64, size)
            length = math.ceil(
                size / shares / self.micro_batch
            )  # the same in every share
            parts = _split(samples, shares * length)[
                index * length : (index + 1) * length
            ]
            yield k, size, [(part.tolist(), shares * weight) for part, weight in parts]

    def _batch_size(self, k: int) -> int:
        return int(getattr(self._schedule.at(k), f"{self.level}_batch"))

    def _random(self, *key: int) -> np.random.Generator:
        """A random generator that is independent of those with another seed, level or key."""
        return np.random.default_rng(
            np.random.SeedSequence(
                self.seed, spawn_key=(LEVELS.index(self.level), *key)
            )
        )

    def state_dict(self) -> dict[str, int | str]:
        """Where the next step begins: plain numbers and words, fit for ``torch.load(…, weights_only=True)``."""
        position = {"k": self.k, "samples": self.samples}
        return {
            **position,
            "seed": self.seed,
            "sampling": self.sampling,
            "level": self.level,
            "length": self._length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with its seed: the next loop begins with the same samples, bit for bit."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"the state is a {type(state).__name__}; it must be what state_dict() gave"
            )
        current = self.state_dict()
        for name in ("sampling", "level", "length"):
            given, own = state.get(name), current[name]
            if given != own:
                raise ValueError(
                    f"the state has {name}={given!r}, these batches have {name}={own!r}"
                )
        self.k, self.samples, self.seed = (
            whole(name, state.get(name), 0) for name in ("k", "samples", "seed")
        )


def _split(
    samples: NDArray[np.int64], places: int
) -> list[tuple[NDArray[np.int64], float]]:
    """Split into parts that are not empty, with weights that add up to 1: parts may have the same sample."""
    size = len(samples)
    if size >= places:
        return [(part, len(part) / size) for part in np.array_split(samples, places)]
    owners = np.arange(places) * size // places
    repeats = np.bincount(owners).tolist()
    return [(samples[i : i + 1], 1 / (size * repeats[i])) for i in owners]


class _Rows(TensorDataset):
    """Tensors by rows: gathers all rows of a micro-batch in one operation."""

    def __getitems__(self, numbers: list[int]) -> list[Tensor]:
        rows = torch.from_numpy(
            np.array(numbers)
        )  # much faster than torch.tensor(numbers)
        return [
            tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors
        ]


def _prepare(dataset: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The dataset and the loader's options, with tensors gathered by rows unless the user collates samples."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset | Mapping) or not hasattr(
        dataset, "__len__"
    ):
        raise TypeError(
            f"dataset={kind} must be map-style (samples by number, a length), a tensor, or tensors in a tuple"
        )
    if isinstance(dataset, tuple):
        dataset = TensorDataset(*dataset)
    if not len(dataset):
        raise ValueError(f"dataset={kind} has no samples; it must have at least one")
    if options.get("collate_fn") is None and isinstance(dataset, Tensor):
        return _Rows(dataset), {**options, "collate_fn": itemgetter(0)}
    if options.get("collate_fn") is None and type(dataset) is TensorDataset:
        return _Rows(*dataset.tensors), {**options, "collate_fn": tuple}
    return dataset, options
