"""Which samples make up step k: sizes by a law, numbers by a seed, never more of them at once than a micro-batch."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tiebreak.checks import whole
from tiebreak.schedules import Schedule
from tiebreak.torch.gradients import LEVELS

__all__ = ["Part", "Sizes", "Stream", "how_many", "map_style", "natural", "parts", "portion", "random", "share_of"]


class Sizes:
    """B_k, before and after the cap.

    Examples
    --------
    >>> sizes = Sizes(lambda k: 2.5**k, "lower", most=5)
    >>> [sizes(k) for k in range(4)], sizes.wanted(3)
    ([1, 2, 5, 5], 15)
    """

    def __init__(self, schedule: Any, level: str, most: int | None) -> None:
        self.name, self.most = f"{level}_batch", most
        law = getattr(schedule, self.name) if isinstance(schedule, Schedule) else schedule
        if not callable(law):
            try:
                law = whole("schedule", law)
            except ValueError as error:
                raise ValueError(f"{error}, a function of the step k, or a tiebreak.Schedule") from None
        self.schedule = Schedule(1.0, **{self.name: law})  # which floors and checks

    def wanted(self, k: int) -> int:
        """What the law says."""
        return int(getattr(self.schedule.at(k), self.name))

    def __call__(self, k: int) -> int:
        return self.wanted(k) if self.most is None else min(self.most, self.wanted(k))


class Part(NamedTuple):
    """Some of the samples of a step: from which to which (not included), and their weight."""

    first: int
    end: int
    weight: float


def portion(size: int, places: int, j: int) -> tuple[int, int, int]:
    """What place j has of `size` samples: from which, to which, and how many places have the same.

    Portions are equal but for one sample. Where there are fewer samples than places, no place stays empty: some have
    the same sample.

    Examples
    --------
    >>> [portion(5, 2, j) for j in range(2)], [portion(2, 3, j) for j in range(3)]
    ([(0, 3, 1), (3, 5, 1)], [(0, 1, 2), (0, 1, 2), (1, 2, 1)])
    """
    if size < places:
        i = j * size // places
        return i, i + 1, _ceil((i + 1) * places, size) - _ceil(i * places, size)
    least, more = divmod(size, places)
    return j * least + min(j, more), (j + 1) * least + min(j + 1, more), 1


def how_many(size: int, micro_batch: int, shares: int = 1) -> int:
    """The number of micro-batches, as few as will do; in every share as many, for ranks meet at each of them."""
    return _ceil(_ceil(size, shares), micro_batch)


def parts(size: int, micro_batch: int, share: tuple[int, int] = (0, 1)) -> Iterator[Part]:
    """The micro-batches of share i of n of a step with `size` samples.

    Wrappers average gradients over the ranks that have the shares, so it is the mean of all shares' weights that adds
    up to 1; a share with more samples than another counts for more.

    Examples
    --------
    >>> [part.end - part.first for part in parts(65, 64)], [part.end - part.first for part in parts(7, 3)]
    ([33, 32], [3, 2, 2])
    >>> list(parts(5, 2, share=(0, 2)))
    [Part(first=0, end=2, weight=0.8), Part(first=2, end=3, weight=0.4)]
    >>> list(parts(5, 2, share=(1, 2)))
    [Part(first=3, end=4, weight=0.4), Part(first=4, end=5, weight=0.4)]
    """
    i, n = share
    first, end, holders = portion(size, n, i)
    count = how_many(size, micro_batch, n)
    for j in range(count):
        a, b, again = portion(end - first, count, j)
        yield Part(first + a, first + b, n * (b - a) / (size * holders * again))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


@dataclass(frozen=True)
class Stream:
    """The numbers of samples, micro-batch after micro-batch, from any step on.

    Every step (iid) or epoch has a random generator of its own. So two numbers tell where to begin, however far
    workers have read ahead, and whatever the number of shares: each takes its part of the same numbers.
    """

    sizes: Sizes
    micro_batch: int
    length: int
    sampling: str
    seed: int
    level: str
    share: tuple[int, int] = (0, 1)

    def numbers(self, first: int, position: int) -> Iterator[list[int]]:
        """From step `first`, with `position` samples behind it."""
        epochs = _Epochs(self)
        for k in count(first):
            try:
                size = self.sizes(k)
            except Exception:  # this is read ahead: the step itself will say so, if it ever comes
                return
            rng, taken, found = random(self.seed, self.level, k), 0, list[int]()
            for part in parts(size, self.micro_batch, self.share):
                if part.end > taken:  # else the sample of the part before, once more
                    if self.sampling == "iid":
                        _skip(rng, self.length, part.first - taken)
                        found = rng.integers(self.length, size=part.end - part.first).tolist()
                    else:
                        found = epochs.between(position + part.first, position + part.end)
                    taken = part.end
                yield found
            position += size


class _Epochs:
    """The samples in the order of their epochs, each a shuffle of its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._epoch = stream, -1
        self._order = np.zeros(0, dtype=np.int64)

    def between(self, first: int, end: int) -> list[int]:
        found: list[int] = []
        while first < end:
            epoch, offset = divmod(first, self._stream.length)
            if epoch != self._epoch:
                rng = random(self._stream.seed, self._stream.level, epoch)
                self._epoch, self._order = epoch, rng.permutation(self._stream.length)
            taken = self._order[offset : offset + end - first]
            found += taken.tolist()
            first += len(taken)
        return found


def _skip(rng: np.random.Generator, length: int, numbers: int) -> None:
    """Draw what other shares take, a piece at a time: how far a draw moves the generator is known only by drawing."""
    while numbers > 0:
        piece = min(numbers, 1 << 16)
        rng.integers(length, size=piece)
        numbers -= piece


def random(seed: int, level: str, *key: int) -> np.random.Generator:
    """A generator for this seed, level and key, independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(LEVELS.index(level), *key)))


class Rows(Dataset[Any]):
    """Tensors by rows, many at once: one gather in place of a call per sample."""

    def __init__(self, tensors: tuple[Tensor, ...], alone: bool) -> None:
        self.tensors, self.alone = tensors, alone

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, numbers: list[int]) -> Any:
        rows = torch.from_numpy(np.array(numbers, dtype=np.int64))  # far faster than torch.tensor(numbers)
        found = tuple(t.index_select(0, rows.to(t.device)) for t in self.tensors)
        return found[0] if self.alone else found


def _as_is(rows: Any) -> Any:  # no lambda: workers that are spawned have to unpickle it
    return rows


def map_style(dataset: Any, collate_fn: Any) -> tuple[Any, Any]:
    """A dataset with a length and samples by number, and what makes a batch of a list of them."""
    kind, alone = type(dataset).__name__, isinstance(dataset, Tensor)
    tensors = (dataset,) if alone else dataset.tensors if type(dataset) is TensorDataset else dataset
    if isinstance(tensors, tuple) and tensors and all(isinstance(t, Tensor) for t in tensors):
        lengths = {len(t) if t.dim() else 0 for t in tensors}
        if len(lengths) > 1:
            raise ValueError(f"dataset has tensors of {sorted(lengths)} rows; all must have equally many")
        if collate_fn is None:
            dataset, collate_fn = Rows(tensors, alone), _as_is
        elif not alone:
            dataset = TensorDataset(*tensors)
    elif isinstance(dataset, IterableDataset):
        raise TypeError(
            f"dataset={kind} is iterable-style, but samples are drawn by number: it must have __getitem__ and __len__"
        )
    elif isinstance(dataset, Mapping) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(
            f"dataset={kind} must be a map-style dataset (with __getitem__ and __len__), a tensor or a tuple of tensors"
        )
    if (alone and not tensors[0].dim()) or not len(dataset):
        raise ValueError(f"dataset={kind} has no samples; it must have at least one")
    return dataset, collate_fn


def natural(name: str, value: Any) -> int:
    """`value` as an int, if it is a whole number ≥ 0."""
    try:
        number = operator.index(value)
        if isinstance(value, bool) or number < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a whole number ≥ 0") from None
    return number


def share_of(given: Any) -> tuple[int, int]:
    """Which share of each batch this process draws, and of how many, as it was `given`."""
    many = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if given is None:
        if many:
            world = dist.get_world_size()
            raise RuntimeError(
                f'{world} processes run: say which share of each batch this one draws. share="ranks" is one of {world} '
                "(data parallelism over all ranks), share=(i, n) share i of n (a data-parallel part of a mesh: "
                '(mesh["dp"].get_local_rank(), mesh["dp"].size())), share=(0, 1) the whole batch'
            )
        return 0, 1
    if isinstance(given, str) and given == "ranks":
        return (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    try:
        i, n = given
        number, of = natural("share", i), whole("share", n)
        if isinstance(given, str) or number >= of:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f'share={given!r} must be "ranks", or (i, n) with whole numbers 0 ≤ i < n') from None
    return number, of
