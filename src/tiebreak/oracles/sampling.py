"""Stochastic gradients, sampled apart from being evaluated.

An oracle draws a token, then gives the gradient at any point for that token::

    token = oracle.sample(rng, size)          # what is random: a mini-batch of `size` samples
    gradient = oracle.gradient(x, token)      # the mean gradient of that mini-batch at x

STORM evaluates one token at two points; a Gaussian oracle's token is the noise of the batch mean. Any object with these
two methods is an oracle. What else the solver uses, where it is there:

``exact_gradient(x)``
    the expectation, for residuals; never used by a method, never charged;
``value(x, token=None)``
    the mean value of the batch or, without a token, of the objective (``has_value = False`` says that it is not known);
``vectorized = True``
    the methods accept arrays with further axes in front of x's own, and tokens stacked along a first axis;
``sample_block(rngs, sizes)`` and ``block_size``
    the tokens of several steps for several runs at once, equal to those drawn one by one, up to `block_size` steps, and
    up to ``samples_ahead`` samples a run, if that is there;
``additive = True``
    ``gradient(x, token)`` is ``gradient(x) + token``, tokens being arrays of x's shape: a point is then evaluated once,
    however many mini-batches are taken there;
``bind(shape)``
    returns the oracle for points of this shape, or raises.
"""

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Function: TypeAlias = Callable[..., Any]


@runtime_checkable
class Oracle(Protocol):
    """What the solver needs of an objective; see the module for what it can use besides.

    Examples
    --------
    Rows of a table, drawn with replacement; the objective is the mean of ‖x − row‖²/2:

    >>> class Sampled:
    ...     rows = np.arange(6.0).reshape(3, 2)
    ...     def sample(self, rng, size):
    ...         return rng.integers(len(self.rows), size=size)
    ...     def gradient(self, x, token):
    ...         return x - self.rows[token].mean(axis=0)
    >>> isinstance(Sampled(), Oracle)
    True
    >>> import tiebreak
    >>> result = tiebreak.minimize(Sampled(), Sampled(), [0.0, 0.0], steps=5, seed=0)
    >>> result.steps, result.last.lower_gradient_squared
    (5, None)
    """

    def sample(self, rng: Generator, size: int) -> Any:
        """Draw a mini-batch of `size` samples."""

    def gradient(self, x: Array, token: Any) -> Array:
        """The mean gradient of the mini-batch at x."""


class Exact:
    """The gradient itself, without noise.

    Parameters
    ----------
    gradient : callable
        x ↦ ∇(x), of x's shape.
    value : callable, optional
        x ↦ the objective's value.
    vectorized : bool
        Whether both functions accept arrays with further axes in front of x's own: then all runs take one call.

    Examples
    --------
    >>> Exact(lambda x: 2 * x).gradient(np.array([1.0, 2.0]))
    array([2., 4.])
    """

    block_size = 256

    def __init__(
        self,
        gradient: Function,
        value: Function | None = None,
        *,
        vectorized: bool = False,
    ) -> None:
        self._gradient = checked("gradient", gradient)
        self._value = value if value is None else checked("value", value)
        self.vectorized = vectorized

    @property
    def has_value(self) -> bool:
        return self._value is not None

    @property
    def additive(self) -> bool:
        """Yes, unless a subclass has a gradient of its own."""
        return type(self).gradient in (Exact.gradient, Gaussian.gradient)

    def sample(self, rng: Generator, size: int) -> Any:
        """Nothing is random: no token."""

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Any:
        """No tokens for all runs, a step each."""
        return [None] * len(sizes)

    def gradient(self, x: Array, token: Any = None) -> Any:
        """∇(x)."""
        return self._gradient(x)

    def exact_gradient(self, x: Array) -> Any:
        """∇(x)."""
        return self._gradient(x)

    def value(self, x: Array, token: Any = None) -> Any:
        """The objective at x."""
        return known(self._value)(x)


class Gaussian(Exact):
    """Additive Gaussian noise: every sample is ∇(x) + N(0, σ² I), so a batch mean is ∇(x) + N(0, σ²/B I).

    The batch mean is drawn from its exact law, in O(d) whatever the batch size, unless `per_sample` asks for more.

    Parameters
    ----------
    gradient : callable
        x ↦ ∇(x), the exact gradient.
    sigma : float or array
        Standard deviation *per coordinate* (an array must broadcast to x). The theory's σ² is the total variance, the
        sum of the squares over the coordinates: for a number, σ² times the dimension.
    value : callable, optional
        x ↦ the objective's value, known without noise.
    shape : tuple of int, optional
        The shape of x; the solver fills it in.
    vectorized : bool
        Whether the functions accept further axes in front of x's own.
    per_sample : bool
        Really draw each of the B samples, in bounded memory. The same law, B times the work.

    Examples
    --------
    >>> oracle = Gaussian(lambda x: 2 * x, sigma=0.5, shape=(2,))
    >>> token = oracle.sample(np.random.default_rng(0), size=10**12)
    >>> np.round(oracle.gradient(np.array([1.0, 2.0]), token), 3)
    array([2., 4.])
    """

    def __init__(
        self,
        gradient: Function,
        sigma: Any,
        value: Function | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        vectorized: bool = False,
        per_sample: bool = False,
    ) -> None:
        super().__init__(gradient, value, vectorized=vectorized)
        try:
            self.sigma = np.asarray(sigma, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(
                f"sigma={sigma!r} must be a number or an array of numbers, finite and ≥ 0"
            ) from None
        if not (np.isfinite(self.sigma).all() and (self.sigma >= 0).all()):
            raise ValueError(f"sigma={sigma!r} must be finite and ≥ 0")
        if per_sample and type(self).sample_block is not Gaussian.sample_block:
            raise TypeError(
                f"per_sample=True has no effect on {type(self).__name__}, which draws in a way of its own"
            )
        self.shape = None if shape is None else tuple(shape)
        self.per_sample = per_sample
        # Drawing every sample is the work: draw ahead only as much as keeps the bookkeeping small.
        self.samples_ahead = 2**19 if per_sample else None

    def bind(self, shape: tuple[int, ...]) -> "Gaussian":
        """This oracle for points of this shape."""
        if self.shape is not None and self.shape != shape:
            raise ValueError(
                f"shape={self.shape!r} of the Gaussian oracle must be x0's shape, {shape!r}"
            )
        try:
            fits = np.broadcast_shapes(self.sigma.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"sigma of shape {self.sigma.shape} must broadcast to x0's shape, {shape!r}"
            )
        bound = copy.copy(self)
        bound.shape = shape
        return bound

    def shape_of_x(self) -> tuple[int, ...]:
        """The shape of x, or a ValueError where it is not known yet."""
        if self.shape is None:
            name = type(self).__name__
            raise ValueError(
                f"shape=None: to sample outside of minimize, give the {name} oracle the shape of x"
            )
        return self.shape

    def sample(self, rng: Generator, size: int) -> Array:
        """The noise of a batch mean."""
        noise: Array = self.sample_block([rng], [size])[0, 0]
        return noise

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Array:
        """The noise of the batch means, steps × runs × x's shape."""
        shape = self.shape_of_x()
        dimension = math.prod(shape)
        noise = np.empty((len(sizes), len(rngs), dimension))
        if self.per_sample:
            for i, size in enumerate(sizes):
                noise[i] = [_mean_of_normals(rng, size, dimension) for rng in rngs]
        else:
            _fill(noise, rngs)
            noise /= np.sqrt(np.asarray(sizes, dtype=float))[:, None, None]
        shaped = noise.reshape(len(sizes), len(rngs), *shape)
        shaped *= self.sigma
        return shaped

    def gradient(self, x: Array, token: Any = None) -> Any:
        """∇(x) plus the batch's noise, where a token is given."""
        if token is None:
            return self._gradient(x)
        return self._gradient(x) + token


def _fill(noise: Array, rngs: Sequence[Generator]) -> None:
    """Standard normals (steps, runs, dimension), each run's from its generator, step by step."""
    steps, runs, dimension = noise.shape
    if runs == 1:
        rngs[0].standard_normal(out=noise)
        return
    # A few runs at a time, into a buffer that stays in the cache: run by run, a handful of numbers would be written
    # to every step's row, each to a memory page of its own.
    group = max(1, min(runs, _CHUNK // (steps * dimension)))
    buffer = np.empty((group, steps, dimension))
    for start in range(0, runs, group):
        some = rngs[start : start + group]
        for row, rng in zip(buffer, some, strict=False):
            rng.standard_normal(out=row)
        noise[:, start : start + group] = buffer[: len(some)].transpose(1, 0, 2)


_CHUNK = (
    2**14
)  # normals drawn at a time: 128 KiB stay in the cache between being drawn and being added


def _mean_of_normals(rng: Generator, size: int, dimension: int) -> Array:
    """The mean of `size` standard normal vectors, every one drawn, in O(chunk) memory."""
    step = max(1, _CHUNK // dimension)
    total = np.zeros(dimension)
    # Coordinates first: the sum runs along memory, and summing columns would cost as much as drawing.
    chunk = np.empty((dimension, min(step, size)))
    for start in range(0, size, step):
        if size - start < chunk.shape[1]:
            chunk = np.empty((dimension, size - start))
        rng.standard_normal(out=chunk)
        total += np.add.reduce(chunk, axis=1)
    return total / size


def known(value: Function | None) -> Function:
    """The function of an oracle's values, if it was given one."""
    if value is None:
        raise ValueError("value=None: this oracle was given no function for its values")
    return value


def checked(name: str, function: Function, arguments: str = "") -> Function:
    """The function; TypeError, for the argument `name`, if it is none or cannot take the `arguments`."""
    if not callable(function):
        raise TypeError(f"{name}={function!r} must be a function")
    try:
        if arguments:
            inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        raise TypeError(
            f"{name}={function!r} must be a function of ({arguments})"
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    return function
