"""An objective as the solver sees it: all runs at once, every shape checked, whatever the oracle can or cannot do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

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
        # An oracle that takes rows unchanged saves calls at every step.
        self._plain = self.vectorized and len(shape) == 1
        #: Whether nothing is random, as far as is known: no noise is drawn then.
        self.deterministic = type(oracle) is Exact or (
            type(oracle) is Gaussian and not np.any(oracle.sigma)
        )
        self.tokens: Any = None  # of the present step
        # The last two points of an additive oracle, each with its exact gradient.
        self._points: Any = (None, None, None, None)

    def block_size(self, runs: int) -> int:
        """How many steps to draw ahead."""
        if not self._draws_blocks:
            return 1
        size = int(getattr(self.oracle, "block_size", 1))
        return max(1, min(size, _LARGEST_BLOCK // (runs * self.dimension)))

    def draw(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Sequence[Any]:
        """The tokens of all runs, step by step; None if a step takes no samples: then nothing is drawn."""
        if self.deterministic:
            return [None] * len(sizes)
        if 0 in sizes:
            positive = [size for size in sizes if size]
            tokens = iter(self.draw(rngs, positive) if positive else ())
            return [next(tokens) if size else None for size in sizes]
        if self._draws_blocks:
            return self.oracle.sample_block(rngs, sizes)  # type: ignore[no-any-return]  # checked where it is used
        return [self._draw_step(rngs, size) for size in sizes]

    def _draw_step(self, rngs: Sequence[Generator], size: int) -> Any:
        """The tokens of all runs for one step."""
        tokens = [self.oracle.sample(rng, size) for rng in rngs]
        if not self.vectorized:
            return tokens
        shape = np.shape(tokens[0])
        for token in tokens:
            if np.asarray(token).dtype == object or np.shape(token) != shape:
                raise TypeError(
                    f"{self.name}.sample must return arrays of one shape: a vectorized oracle's tokens are stacked"
                )
        return np.stack(tokens)

    def gradient(self, x: Array, tokens: Any) -> Array:
        """Mini-batch gradients at the rows of x, one for each run."""
        self.tokens = tokens
        return self.evaluate(x)

    def evaluate(self, x: Array, needed: bool = True) -> Array:
        """The same with the `tokens` that were set, as an estimator asks for it; zeros if it is not needed."""
        tokens = self.tokens
        if not needed:
            return np.zeros_like(x)
        dtype = self.dtype
        if not self._additive:
            return self._check("gradient", self._at(x, tokens), x.shape).astype(
                dtype, copy=False
            )
        # STORM returns to the previous point with another token. A read-only point is recognized by identity.
        point, exact, previous, previous_exact = self._points
        shape = x.shape
        if x is previous:
            exact = previous_exact
        elif x is not point:
            previous = point
            previous_exact = exact
            exact = self._check("gradient", self._at(x), shape)
            if not x.flags.writeable:
                self._points = (x, exact, previous, previous_exact)
        if tokens is None:
            gradient: Array = exact
        elif type(tokens) is np.ndarray and tokens.shape == shape:
            gradient = exact + tokens
        else:
            gradient = exact + np.reshape(tokens, shape)
        if gradient.dtype is dtype:
            return gradient
        return gradient.astype(dtype)

    def exact(self, x: Array) -> Array:
        """Exact gradients at the rows of x, (…, dimension)."""
        rows = self._evaluate("exact_gradient", x, self.shape)
        return rows.reshape(x.shape).astype(self.dtype, copy=False)

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
            kind = (
                f"dtype {result.dtype}"
                if isinstance(returned, np.ndarray)
                else repr(returned)
            )
            raise TypeError(
                f"{self.name}.{what} returned {kind}; it must be an array of real numbers"
            )
        if result.shape != shape:
            hint = ""
            if self.vectorized:
                hint = " (a vectorized function keeps all axes in front of x's own)"
            raise ValueError(
                f"{self.name}.{what} returned shape {result.shape}; it must be {shape}{hint}"
            )
        return result
