"""A mean of n terms as an objective: mini-batches of indices, or counts where they would be more than n."""

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.oracles.sampling import Array, Function, checked, known

Indices: TypeAlias = NDArray[np.int64]
#: Indices and their counts; None for counts of 1.
Token: TypeAlias = tuple[Indices, Indices | None]

_WORTH_A_CALL = 64  # terms of a sum that cost more than calling the function


class FiniteSum:
    """The mean of n terms, sampled with replacement or without.

    Parameters
    ----------
    gradient : callable
        (x, indices) ↦ the mean gradient of those terms; with `per_example`, (x, i) ↦ the gradient of one term; with
        `weighted`, (x, indices, weights) ↦ Σ wᵢ ∇ᵢ(x).
    n : int
        How many terms there are.
    value : callable, optional
        The same for values.
    per_example : bool
        Whether the functions take one index.
    weighted : bool
        Whether the functions take weights, and give weighted sums. A batch larger than n then takes one call.
    vectorized : bool
        Whether the functions, which must be weighted, take many points at once: x of shape (…, d), weights (…, b), and
        indices (…, b) or, where all points have the same terms, (b,). All runs then take one call.
    replace : bool
        Whether a term may be drawn twice. If not, a batch of n is all of them, and so is every larger one: the exact
        gradient. Give the batch's law a cap then, ``Capped(law, n)``, for calls are charged as they are asked for.
    chunk : int
        At most so many indices are given to a function at once, and about so many for all points together.

    Notes
    -----
    A batch larger than n is drawn as multinomial counts, so memory never exceeds n indices a run. A function without
    weights is then called for groups of terms with equal counts, or by the counts' binary digits.

    Examples
    --------
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> oracle = FiniteSum(lambda x, i: x - data[i].mean(), n=3)  # the mean of ½(x − data_i)²
    >>> float(oracle.exact_gradient(np.array(0.0)))
    -3.0
    >>> token = oracle.sample(np.random.default_rng(0), size=10**15)
    >>> float(np.round(oracle.gradient(np.array(0.0), token), 4))
    -3.0
    """

    block_size = 64
    samples_ahead = 2**14

    def __init__(
        self,
        gradient: Function,
        n: int,
        value: Function | None = None,
        *,
        per_example: bool = False,
        weighted: bool = False,
        vectorized: bool = False,
        replace: bool = True,
        chunk: int = 2**16,
    ) -> None:
        arguments = "x, i" if per_example else "x, indices"
        if weighted:
            arguments = "x, indices, weights"
        self._gradient = checked("gradient", gradient)
        self._value = value if value is None else checked("value", value, arguments)
        if per_example and weighted:
            raise ValueError(
                "per_example=True and weighted=True: a function of one index needs no weights; give one"
            )
        if vectorized and not weighted:
            raise ValueError(
                "vectorized=True needs weighted=True: batches of different runs have terms and counts of their own"
            )
        self.n = whole("n", n)
        self.per_example = per_example
        self.chunk = whole("chunk", chunk)
        self.weighted = weighted
        self.vectorized = vectorized
        self.replace = replace
        self._all = np.arange(self.n)
        self.shape: tuple[int, ...] | None = None
        self._tried = (
            per_example or weighted or self.n < 2
        )  # whether the function is known to give means

    def bind(self, shape: tuple[int, ...]) -> "FiniteSum":
        """This oracle for points of this shape."""
        bound = copy.copy(self)
        bound.shape = shape
        return bound

    @property
    def has_value(self) -> bool:
        return self._value is not None

    def sample(self, rng: Generator, size: int) -> Token:
        """Indices, and how often each occurs; None where every one stands for itself."""
        drawn = self._drawn(rng, size)
        if size <= self.n or not self.replace:
            return drawn, None
        indices = np.flatnonzero(drawn)
        return indices, drawn[indices]

    def _drawn(self, rng: Generator, size: int) -> Indices:
        """The indices of a batch, or, of one that is larger than n, how often each term is in it."""
        if not self.replace and size >= self.n:
            return self._all
        if not self.replace:
            return rng.choice(self.n, size, replace=False, shuffle=False)
        if size <= self.n:
            return rng.integers(self.n, size=size)
        return rng.multinomial(size, np.full(self.n, 1 / self.n))

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Any:
        """The tokens of several steps for several runs."""
        if not self.vectorized:
            return [[self.sample(rng, size) for rng in rngs] for size in sizes]
        return [
            self._together([self._drawn(rng, size) for rng in rngs], size)
            for size in sizes
        ]

    def _together(self, drawn: Sequence[Indices], size: int) -> Token:
        """One token for all runs: terms of each, or all terms with the counts of each."""
        if size >= self.n and not self.replace:
            return self._all, None
        rows = np.stack(drawn)
        if size <= self.n:
            return (rows, None)
        return (self._all, rows)

    def gradient(self, x: Array, token: Any) -> Any:
        """The batch's mean gradient."""
        self._try(x)
        return self._mean(self._gradient, x, *token)

    def exact_gradient(self, x: Array) -> Any:
        """The mean gradient of all n terms."""
        self._try(x)
        return self._mean(self._gradient, x, self._all, None)

    def _try(self, x: Array) -> None:
        """At the first point, see that two terms together give their mean: a sum would be many times too long."""
        if self._tried:
            return
        self._tried = True
        pair, one, other = (
            np.asarray(self._gradient(x, self._all[part]))
            for part in (slice(2), slice(1), slice(1, 2))
        )
        total = one + other
        with np.errstate(all="ignore"):
            size = np.abs(total).max(initial=0)
            if 0 < size < np.inf and np.abs(pair - total).max(initial=0) <= 1e-6 * size:
                raise ValueError(
                    "gradient(x, indices) gives the sum of its terms; it must give their mean: divide by len(indices)"
                )

    def value(self, x: Array, token: Any = None) -> Any:
        """The mean value of the batch or, without one, of all n terms."""
        return self._mean(known(self._value), x, *(token or (self._all, None)))

    def _mean(
        self, function: Function, x: Array, indices: Indices, counts: Indices | None
    ) -> Any:
        if self.weighted:
            return self._weighted(function, x, indices, counts)
        if counts is None:
            return self._sum(function, x, indices) / len(indices)
        order = np.argsort(counts, kind="stable")
        levels, starts = np.unique(counts[order], return_index=True)
        if len(indices) >= _WORTH_A_CALL * len(levels):
            groups = np.split(indices[order], starts[1:])
            total = sum(
                int(level) * self._sum(function, x, group)
                for level, group in zip(levels, groups, strict=True)
            )
        else:  # nearly all counts differ: take the least count for all terms, and the excess by binary digits
            least = int(levels[0])
            excess = counts - levels[0]
            total = least * self._sum(function, x, indices)
            for digit in range(int(excess.max()).bit_length()):
                chosen = indices[excess >> digit & 1 == 1]
                if len(chosen):
                    total = total + 2**digit * self._sum(function, x, chosen)
        return total / int(counts.sum())

    def _weighted(
        self, function: Function, x: Array, indices: Indices, counts: Indices | None
    ) -> Any:
        """The mean, by weights: at once, or for some points after another where that would take too much memory."""
        if counts is None:
            weights = np.full(indices.shape, 1 / indices.shape[-1])
        else:
            weights = counts / counts.sum(axis=-1, keepdims=True)
        leading: tuple[int, ...] = ()
        if self.vectorized and self.shape is not None:
            leading = x.shape[: x.ndim - len(self.shape)]
        few = max(1, self.chunk // indices.shape[-1])
        if math.prod(leading) <= few:
            return self._pieces(function, x, indices, weights)
        points = x.reshape(-1, *x.shape[len(leading) :])
        parts = []
        for start in range(0, len(points), few):
            group = slice(start, start + few)
            terms = indices[group] if indices.ndim > 1 else indices
            shares = weights[group] if weights.ndim > 1 else weights
            parts.append(self._pieces(function, points[group], terms, shares))
        values = np.concatenate(parts)
        return values.reshape(*leading, *values.shape[1:])

    def _pieces(
        self, function: Function, x: Array, indices: Indices, weights: Array
    ) -> Any:
        """Σ wᵢ ∇ᵢ(x), a chunk of terms after another; the pieces do not depend on how many points there are."""
        parts = (
            slice(start, start + self.chunk)
            for start in range(0, indices.shape[-1], self.chunk)
        )
        return sum(
            np.asarray(function(x, indices[..., part], weights[..., part]))
            for part in parts
        )

    def _sum(self, function: Function, x: Array, indices: Indices) -> Any:
        if self.per_example:
            return sum(np.asarray(function(x, int(i))) for i in indices)
        parts = [
            indices[s : s + self.chunk] for s in range(0, len(indices), self.chunk)
        ]
        return sum(len(part) * np.asarray(function(x, part)) for part in parts)
