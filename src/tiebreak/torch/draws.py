"""Which samples make up step k: sizes by a law, numbers by a seed, never more of them at once than a micro-batch."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tiebreak.checks import whole
from tiebreak.schedules import Schedule
from tiebreak.torch.gradients import LEVELS

__all__ = ["Sizes", "Stream", "map_style", "natural", "random", "split"]


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


@dataclass(frozen=True)
class Stream:
    """The numbers of samples, micro-batch after micro-batch, from any step on.

    Every step (iid) or epoch has a random generator of its own. So two numbers tell where to begin, however far
    workers have read ahead.
    """

    sizes: Sizes
    micro_batch: int
    length: int
    sampling: str
    seed: int
    level: str

    def numbers(self, first: int, position: int) -> Iterator[list[int]]:
        """From step `first`, with `position` samples behind it."""
        order = np.zeros(0, dtype=np.int64)
        for k in count(first):
            try:
                size = self.sizes(k)
            except Exception:  # this is read ahead: the step itself will say so, if it ever comes
                return
            rng = random(self.seed, self.level, k)
            for part in split(size, self.micro_batch):
                if self.sampling == "iid":
                    yield rng.integers(self.length, size=part).tolist()
                    continue
                found: list[int] = []
                while len(found) < part:
                    epoch, offset = divmod(position, self.length)
                    if offset == 0 or not len(order):
                        order = random(self.seed, self.level, epoch).permutation(self.length)
                    taken = order[offset : offset + part - len(found)]
                    found += taken.tolist()
                    position += len(taken)
                yield found


def split(size: int, most: int) -> Iterator[int]:
    """`size` in as few parts of at most `most` as will do, equal but for one sample.

    Examples
    --------
    >>> list(split(65, 64)), list(split(7, 3))
    ([33, 32], [3, 2, 2])
    """
    parts = -(-size // most)
    return (size // parts + (j < size % parts) for j in range(parts))


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
