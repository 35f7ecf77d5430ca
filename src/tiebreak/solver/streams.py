"""Random draws of a run: a stream each for upper samples, lower samples and selection."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.random import Generator, SeedSequence, default_rng

PURPOSES = ("upper", "lower", "selection")


class Stream:
    """Random draws for one purpose, with a generator for each run, made in blocks ahead of the steps.

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
            self.restore(self._before)
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

    def restore(self, states: Sequence[Any]) -> None:
        """Set the state of every generator."""
        for rng, state in zip(self.rngs, states, strict=True):
            rng.bit_generator.state = state


def generators(seed: SeedSequence, runs: Sequence[int]) -> tuple[list[Generator], ...]:
    """Generators for each of the :data:`PURPOSES`, one for each run: children of `seed` by the run's number.

    A run's streams depend on the seed and on its own number, never on how many runs there are beside it.
    """
    streams: tuple[list[Generator], ...] = ([], [], [])
    for run in runs:
        for purpose, stream in enumerate(streams):
            key = (*seed.spawn_key, run, purpose)
            child = SeedSequence(
                entropy=seed.entropy, spawn_key=key, pool_size=seed.pool_size
            )
            stream.append(default_rng(child))
    return streams
