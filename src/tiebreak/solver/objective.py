"""An objective as the solver sees it: all runs at once, every shape checked, whatever the oracle can or cannot do."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from tiebreak.oracles import Array, Exact, Gaussian, Oracle

_LARGEST_BLOCK = (
    2**21
)  # numbers drawn ahead at most (16 MiB), however many runs and dimensions there are


class Level:
    """The upper or lower objective for points kept as rows, (…, dimension).

    Parameters
    ----------
    name : str
        "upper" or "lower", for messages.
    oracle : Oracle or callable
        A plain function is taken as an exact gradient.
    shape, dtype :
        Of one point.
    """

    def __init__(
        self, name: str, oracle: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        if not isinstance(oracle, Oracle):
            if not callable(oracle):
                raise TypeError(
                    f"{name}={oracle!r} must be an oracle (with `sample(rng, size)` and `gradient(x, token)`), "
                    "or a function that gives the exact gradient"
                )
            oracle = Exact(oracle)
        if hasattr(oracle, "bind"):
            oracle = oracle.bind(shape)
        self.name = name
        self.oracle = oracle
        self.shape = shape
        self.dtype = dtype
        self.dimension = int(np.prod(shape, dtype=int))
        self.vectorized = bool(getattr(oracle, "vectorized", False))
        self.has_exact = hasattr(oracle, "exact_gradient")
        self.has_value = bool(getattr(oracle, "has_value", hasattr(oracle, "value")))
        self._draws_blocks = hasattr(oracle, "sample_block")
        self.samples_ahead = getattr(oracle, "samples_ahead", None) or float("inf")
        self._additive = bool(getattr(oracle, "additive", False))
        # Where it takes rows as they are, there are one or two calls less at every step.
        self._plain = self.vectorized and len(shape) == 1
        #: Whether nothing is random, as far as is known: no noise is drawn then.
        self.deterministic = type(oracle) is Exact or (
            type(oracle) is Gaussian and not np.any(oracle.sigma)
        )
        self.tokens: Any = None  # of the step that is being made
        self._seen: Any = (
            None,
            None,
            None,
            None,
        )  # the last two points of an additive oracle, with their gradients

    def block_size(self, runs: int) -> int:
        """How many steps to draw ahead."""
        wanted = int(getattr(self.oracle, "block_size", 1)) if self._draws_blocks else 1
        return max(1, min(wanted, _LARGEST_BLOCK // (runs * self.dimension)))

    def draw(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Sequence[Any]:
        """The tokens of all runs, step by step; none, and nothing is drawn, where a step takes no samples."""
        if self.deterministic:
            return [None] * len(sizes)
        if 0 in sizes:
            taken = [size for size in sizes if size]
            drawn = iter(self.draw(rngs, taken) if taken else ())
            return [next(drawn) if size else None for size in sizes]
        if self._draws_blocks:
            return self.oracle.sample_block(rngs, sizes)  # type: ignore[no-any-return]  # checked where it is used
        tokens = [[self.oracle.sample(rng, size) for rng in rngs] for size in sizes]
        if not self.vectorized:
            return tokens
        if any(
            np.asarray(token).dtype == object or np.shape(token) != np.shape(step[0])
            for step in tokens
            for token in step
        ):
            raise TypeError(
                f"{self.name}.sample must return arrays of one shape: a vectorized oracle's tokens are stacked"
            )
        return [np.stack(step) for step in tokens]

    def gradient(self, x: Array, tokens: Any) -> Array:
        """Mini-batch gradients at the rows of x, one for each run."""
        self.tokens = tokens
        return self.evaluate(x)

    def evaluate(self, x: Array, wanted: bool = True) -> Array:
        """The same with the `tokens` that were set, as an estimator asks for it; zeros where it is not wanted."""
        tokens = self.tokens
        if not wanted:
            return np.zeros_like(x)
        if not self._additive:
            return self._check("gradient", self._at(x, tokens), x.shape).astype(
                self.dtype, copy=False
            )
        # STORM comes back to the point before, with another token. A point that nobody can write to is known again.
        point, exact, before, earlier = self._seen
        shape = x.shape
        dtype = self.dtype
        if x is before:
            exact = earlier
        elif x is not point:
            before = point
            earlier = exact
            exact = self._check("gradient", self._at(x), shape)
            if not x.flags.writeable:
                self._seen = (x, exact, before, earlier)
        if tokens is None:
            found: Array = exact
        elif type(tokens) is np.ndarray and tokens.shape == shape:
            found = exact + tokens
        else:
            found = exact + np.reshape(tokens, shape)
        return found if found.dtype is dtype else found.astype(dtype)

    def exact(self, x: Array) -> Array:
        """Exact gradients at the rows of x, (…, dimension)."""
        return (
            self._evaluate("exact_gradient", x, self.shape)
            .reshape(x.shape)
            .astype(self.dtype, copy=False)
        )

    def _at(self, x: Array, *tokens: Any) -> Any:
        """Gradients at the rows of x."""
        if self._plain:
            try:
                return self.oracle.gradient(x, *tokens)
            except (ValueError, IndexError) as error:
                raise self._failed("gradient", error) from error
        return self._evaluate("gradient", x, self.shape, *tokens).reshape(x.shape)

    def value(self, x: Array, *tokens: Any) -> Array:
        """Values at the rows of x, (…), in float64: of the mini-batches where tokens are given, else exact."""
        return self._evaluate("value", x, (), *tokens).astype(np.float64, copy=False)

    def _evaluate(
        self, what: str, x: Array, shape: tuple[int, ...], *tokens: Any
    ) -> Array:
        """The oracle's function `what` at every row of x, in one call where it can, as an array (…, *shape)."""
        function = getattr(self.oracle, what)
        leading = x.shape[:-1]
        points = x.reshape(*leading, *self.shape)
        rows = points.reshape(-1, *self.shape)
        columns: list[Any] = [rows]
        columns += [[None] * len(rows) if each is None else each for each in tokens]
        try:
            if self.vectorized:
                results = [function(points, *tokens)]
            else:
                results = [
                    function(*arguments) for arguments in zip(*columns, strict=True)
                ]
        except (ValueError, IndexError) as error:
            raise self._failed(what, error) from error
        if self.vectorized:
            return self._check(what, results[0], (*leading, *shape))
        checked = [self._check(what, result, shape) for result in results]
        return np.stack(checked).reshape(*leading, *shape)

    def _failed(self, what: str, error: Exception) -> ValueError:
        return ValueError(
            f"{self.name}.{what} failed at a point of shape {self.shape}, the shape of x0: {error}"
        )

    def _check(self, what: str, returned: Any, shape: tuple[int, ...]) -> Array:
        """What the function returned, as an array of this shape."""
        if (
            type(returned) is np.ndarray
            and returned.shape == shape
            and returned.dtype.kind == "f"
        ):
            return returned
        try:
            result = np.asarray(returned)
        except ValueError as error:
            raise ValueError(
                f"{self.name}.{what} returned no array, but {returned!r} ({error})"
            ) from None
        if result.dtype.kind not in "fiu":
            raise TypeError(
                f"{self.name}.{what} returned {_shown(returned)}; it must be an array of real numbers"
            )
        if result.shape != shape:
            hint = (
                " (a vectorized function keeps all axes in front of x's own)"
                if self.vectorized
                else ""
            )
            raise ValueError(
                f"{self.name}.{what} returned shape {result.shape}; it must be {shape}{hint}"
            )
        return result


def _shown(returned: Any) -> str:
    return (
        f"dtype {returned.dtype}"
        if isinstance(returned, np.ndarray)
        else repr(returned)
    )


class Stream:
    """Random draws for one purpose, one generator a run, made in blocks and known at every step.

    A generator gives the same numbers whether asked for ten steps at once or ten times for one, so blocks are a matter
    of speed alone: `rewind` puts the generators where they would be had only the first steps of the block been drawn.
    """

    def __init__(
        self,
        rngs: list[Generator],
        draw: Callable[[Sequence[Generator], Sequence[Any]], Any],
    ) -> None:
        self.rngs = rngs
        self._draw = draw
        self._before: list[Any] = []  # the states before the block
        self._arguments: Sequence[Any] = ()  # of the block, as long as it may be undone

    def block(self, arguments: Sequence[Any]) -> Any:
        """Draw for as many steps as there are arguments."""
        self._before = self.states()
        self._arguments = arguments
        return self._draw(self.rngs, arguments)

    def rewind(self, taken: int) -> None:
        """Undo all but the first `taken` steps of the last block."""
        if taken < len(self._arguments):
            for rng, state in zip(self.rngs, self._before, strict=True):
                rng.bit_generator.state = state
            if taken:
                self._draw(self.rngs, self._arguments[:taken])
        self._arguments = ()

    def restrict(self, rows: Sequence[int]) -> None:
        """Go on with these runs only."""
        self.rngs = [self.rngs[row] for row in rows]
        self._before = [self._before[row] for row in rows] if self._before else []

    def states(self) -> list[Any]:
        """The state of every generator."""
        return [rng.bit_generator.state for rng in self.rngs]


def generators(
    seed: SeedSequence, runs: Sequence[int]
) -> tuple[list[Generator], list[Generator], list[Generator]]:
    """Generators for upper samples, lower samples and selection, of each run: children of `seed` by the run's number.

    A run's streams depend on the seed and on its own number, never on how many runs there are beside it.
    """
    streams: tuple[list[Generator], list[Generator], list[Generator]] = ([], [], [])
    for run in runs:
        for purpose, stream in enumerate(streams):
            child = SeedSequence(
                entropy=seed.entropy,
                spawn_key=(*seed.spawn_key, run, purpose),
                pool_size=seed.pool_size,
            )
            stream.append(default_rng(child))
    return streams
