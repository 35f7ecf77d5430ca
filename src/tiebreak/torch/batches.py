"""Batches that grow with the step, handed out in micro-batches: what the theory asks for, in the memory of one."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from tiebreak.checks import whole
from tiebreak.schedules import Law, Schedule
from tiebreak.torch.draws import Sizes, Stream, how_many, map_style, natural, parts, random, share_of
from tiebreak.torch.gradients import LEVELS

__all__ = ["Batch", "GrowingBatches"]

_OURS = frozenset({"batch_size", "batch_sampler", "sampler", "shuffle", "drop_last", "generator", "in_order"})
_CAPPED = {
    "lower": "noise in ∇g now pulls the multiplier towards a fixed weight, and the lower loss is not kept optimal. "
    'Use estimator="average" or tolerance=… in the optimizer',
    "upper": 'the noise of ∇f stays in every step. Use estimator="storm" in the optimizer, or a falling learning rate',
}


class Batch:
    """The samples of one step: iterate over it, once, for pairs ``(inputs, weight)``; its length is their number.

    Attributes
    ----------
    k, size : int
        The step, and its number of samples B_k, over all ranks.

    Examples
    --------
    >>> import torch
    >>> batches = iter(GrowingBatches(torch.arange(10.0), lambda k: 4 + 2 * k, micro_batch=3, seed=0))
    >>> first, second = next(batches), next(batches)
    >>> first.size, second.size, len(second)
    (4, 6, 2)
    >>> sum(weight for inputs, weight in second)
    1.0
    """

    def __init__(self, k: int, size: int, parts: int, source: Iterator[tuple[Any, float]]) -> None:
        self.k, self.size = k, size
        self._parts, self._source, self._begun = parts, source, False

    def __len__(self) -> int:
        return self._parts

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        if self._begun:  # ending at once, as iterators do, would leave a step without gradients
            raise RuntimeError(f"the batch of step {self.k} is handed out once; to use it again, keep list(batch)")
        self._begun = True
        return self._source

    def __repr__(self) -> str:
        return f"Batch(k={self.k}, size={self.size}, micro_batches={self._parts})"


class GrowingBatches:
    """Batches of B_k samples for the steps k = 0, 1, …, in micro-batches whose weights add up to 1.

    Σ weight · (mean loss of a micro-batch) is the mean loss of all B_k samples. The micro-batches of a step differ by
    one sample at most: no odd one left over upsets batch norm, or the noise that is measured from micro-batches.

    Over several ranks B_k is the batch of all of them. Each draws its share of the same samples, whatever the number of
    ranks, in equally many micro-batches, and the *mean over the ranks* of Σ weight · loss is the mean loss of all B_k:
    what DistributedDataParallel and FSDP make of the gradients.

    Parameters
    ----------
    dataset : Dataset, tensor or tuple of tensors
        Map-style: it has a length, and samples by number. Rows of tensors are gathered at once, and come as they were
        given: a tensor, or a tuple of tensors.
    schedule : Schedule, function of the step, or int
        B_k: the law of this `level` in a :class:`tiebreak.Schedule`, a law of your own (floored, at least 1), or a
        constant.
    micro_batch : int
        The most samples at once. Memory depends on it, and not on B_k.
    sampling : {"iid", "epoch"}
        With replacement, as the theory has it; or each sample once in an epoch, reshuffled, going on across steps.
    max_batch : int, optional
        The most samples in a step; a warning says, once, which guarantee that costs.
    share : "ranks" or (int, int), optional
        Over several processes: one share for each rank of ``torch.distributed``, or share i of n.
    level : {"upper", "lower"}
        Levels draw independently of each other, also with the same seed.
    seed : int
        Decides the samples, whatever `micro_batch`, `num_workers` and the number of shares are.
    num_workers, collate_fn, pin_memory, **options
        Those of :class:`torch.utils.data.DataLoader`; workers read ahead, across steps.

    Attributes
    ----------
    k, samples : int
        The next step (or the one under way), and the number of samples in all steps before it.

    Notes
    -----
    A step is over once its last micro-batch was handed out, so save the state after the optimizer's step. A step that
    was left halfway is skipped when the next one is asked for, but begun anew from a saved state or by a new loop. The
    draws of random transforms inside a dataset are not part of the state. The state is the same on every rank, and can
    be loaded where there are more or fewer of them. Where a step has fewer samples than there are ranks, some ranks
    have the same one, each at a part of its weight.

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
    >>> batches.k, batches.samples
    (3, 21)

    In training, both levels (or one of them) with their own batches:

    >>> from tiebreak.torch import SDBGD
    >>> model, data = torch.nn.Linear(3, 1), (torch.randn(100, 3), torch.randn(100, 1))
    >>> opt = SDBGD(model.parameters(), lr=0.1)
    >>> for batch in GrowingBatches(data, lambda k: 10 * (k + 1), micro_batch=16):
    ...     for (inputs, targets), weight in batch:
    ...         with opt.lower():
    ...             (weight * (model(inputs) - targets).square().mean()).backward()
    ...     with opt.upper():
    ...         model.weight.abs().sum().backward()
    ...     info = opt.step()
    ...     if batch.k == 3:
    ...         break
    """

    def __init__(
        self,
        dataset: Any,
        schedule: Schedule | Law | int,
        micro_batch: int = 64,
        *,
        sampling: str = "iid",
        max_batch: int | None = None,
        share: str | tuple[int, int] | None = None,
        level: str = "lower",
        seed: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        for name, value, legal in (("sampling", sampling, ("iid", "epoch")), ("level", level, LEVELS)):
            if value not in legal:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, legal))}")
        if ours := sorted(_OURS & set(options)):
            raise TypeError(f"{', '.join(ours)}: decided here, by micro_batch, sampling and seed; leave it out")
        self.micro_batch, self.sampling, self.level = whole("micro_batch", micro_batch), sampling, level
        self.seed = natural("seed", seed)
        self._sizes = Sizes(schedule, level, None if max_batch is None else whole("max_batch", max_batch))
        self._sizes(0)  # a law that is illegal from the start is reported at the start
        self._dataset, collate_fn = map_style(dataset, collate_fn)
        self._length = len(self._dataset)
        workers = natural("num_workers", num_workers)
        self._options = {"num_workers": workers, "collate_fn": collate_fn, "pin_memory": pin_memory, **options}
        DataLoader(self._dataset, batch_sampler=[], **self._options)  # let it complain about its options here
        self._given = share
        if share is not None:
            share_of(share)  # a bad one is reported at the start; ranks may come later
        self._share = (0, 1)  # of what is being loaded
        self.k, self.samples = 0, 0
        self._loaded: Iterator[Any] | None = None
        self._open: int | None = None  # the size of the batch under way
        self._serial = 0  # of the batch that may take from the loader
        self._warned = False

    def __iter__(self) -> Iterator[Batch]:
        if self._open is not None:
            self._open = None
            self.close()
        return self

    def __next__(self) -> Batch:
        if self._open is not None:  # left halfway: begin anew behind it, rather than load what nobody asked for
            self._finish(self._open)
            self.close()
        size, wanted = self._sizes(self.k), self._sizes.wanted(self.k)
        if size < wanted and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.level}_batch at step {self.k} is {wanted}, cut down to max_batch={size}: Corollary 1 needs "
                f"growing batches, and holds no longer; {_CAPPED[self.level]}. See 'Capped batches' in the docs.",
                RuntimeWarning,
                stacklevel=2,
            )
        share = share_of(self._given)
        if self._loaded is None or share != self._share:
            self._share = share
            self._loaded = self._load()
        self._serial += 1
        self._open = size
        number = how_many(size, self.micro_batch, share[1])
        return Batch(self.k, size, number, self._hand_out(self.k, size, number, self._serial))

    def _hand_out(self, k: int, size: int, left: int, serial: int) -> Iterator[tuple[Any, float]]:
        for part in parts(size, self.micro_batch, self._share):
            if self._serial != serial or self._loaded is None:
                raise RuntimeError(f"the batch of step {k} is over: there is a newer one, or a state was loaded")
            inputs = next(self._loaded)
            left -= 1
            if left == 0:  # now, and not when more is asked for: zip(upper, lower) asks only one of them
                self._finish(size)
            yield inputs, part.weight

    def _finish(self, size: int) -> None:
        self.k, self.samples, self._open = self.k + 1, self.samples + size, None

    def _load(self) -> Iterator[Any]:
        stream = Stream(self._sizes, self.micro_batch, self._length, self.sampling, self.seed, self.level, self._share)
        # Without a generator of our own the loader draws from torch's: resuming would shift every dropout mask.
        key = (
            (self.k, 1, *self._share[:1]) if self._share[0] else (self.k, 1)
        )  # random transforms differ over the ranks
        generator = torch.Generator().manual_seed(int(random(self.seed, self.level, *key).integers(2**62)))
        numbers = stream.numbers(self.k, self.samples)
        return iter(DataLoader(self._dataset, batch_sampler=numbers, generator=generator, **self._options))

    def state_dict(self) -> dict[str, int | str]:
        """Where the next step begins: plain numbers and words, fit for ``torch.load(…, weights_only=True)``."""
        at: dict[str, int | str] = {"k": self.k, "samples": self.samples, "seed": self.seed}
        return at | {"sampling": self.sampling, "level": self.level, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with its seed: the next batch is the one that was due, bit for bit."""
        if not isinstance(state, Mapping):
            raise TypeError(f"the state is a {type(state).__name__}; it must be what state_dict() gave")
        for name, mine in (("sampling", self.sampling), ("level", self.level), ("length", self._length)):
            if state.get(name) != mine:
                raise ValueError(f"the state has {name}={state.get(name)!r}, these batches have {name}={mine!r}")
        k, samples, seed = (natural(name, state.get(name)) for name in ("k", "samples", "seed"))
        self.k, self.samples, self.seed, self._open = k, samples, seed, None
        self.close()

    def close(self) -> None:
        """Stop the workers; asking for another batch starts them again."""
        self._loaded = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_open": None}  # a copy begins the step anew, with its own workers
