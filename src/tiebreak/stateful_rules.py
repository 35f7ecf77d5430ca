"""Rules with a memory: two answers to the paper's open question, what the stochastic projection should be.

SDBGD puts a mini-batch into the deterministic multiplier. Its λ then has the noise of one batch, is not linear in it,
and multiplies the very batch that it was made of, so that the direction is biased even where the inner products are
not. These rules keep the projection, and change what is put into it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiebreak import rules
from tiebreak.rules import Scalar


class StatefulRule(ABC):
    """A rule with a memory: ``rule(fg, gg, memory, …)`` returns λ and the new memory.

    The object keeps nothing: the solver saves the memory with the run, and a measurement discards the new memory.
    """

    #: Whether :meth:`step_size` multiplies the schedule's step size.
    sets_step_size = False

    @abstractmethod
    def begin(self, zero: Scalar) -> tuple[Scalar, ...]:
        """Return the memory before the first step, a tuple of numbers like the scalar `zero`."""

    #: ``rule(fg, gg, memory, …)``; further arguments are found by their names.
    __call__: Callable[..., Any]

    def step_size(self, memory: tuple[Scalar, ...]) -> Scalar:
        """Return a factor of each run's step size."""
        raise NotImplementedError

    def chosen(self, memory: tuple[Scalar, ...]) -> dict[str, Scalar]:
        """Return numbers by name for the `chosen` of a result."""
        return {}


@dataclass(frozen=True)
class Averaged(StatefulRule):
    """λ = [β G − F]₊ / (G + ρ), F and G exponential averages of fg and gg: the projection for the averaged products.

    Parameters
    ----------
    lagged : bool
        Take the averages of the steps before: then λ is known before the batch is drawn, E[λ b] = λ ∇g, and the
        direction is unbiased. In the first step there are none, and this one's products are taken.
    """

    lagged: bool = False

    def begin(self, zero: Scalar) -> tuple[Scalar, ...]:
        """No products yet, and no weight."""
        return zero, zero, zero

    def __call__(
        self,
        fg: Scalar,
        gg: Scalar,
        memory: tuple[Scalar, ...],
        barrier: Scalar,
        regularizer: Scalar,
        rate: Scalar = 0.1,
        noise: Scalar = 0.0,
    ) -> tuple[Scalar, tuple[Scalar, ...]]:
        """λ, and the averages; `rate` in (0, 1] is the weight of the newest product.

        `noise` is what E‖b‖² has too much, the variance of the lower batch's mean, where it is known: it is taken out,
        and what remains is, in the mean, a product of two independent batches.
        """
        new = tuple(
            (1 - rate) * old + rate * value
            for old, value in zip(memory, (fg, gg, 1.0), strict=True)
        )
        first = 1 * (memory[2] == 0)
        F, G, weight = (
            (first * n + (1 - first) * m for n, m in zip(new, memory, strict=True))
            if self.lagged
            else new
        )
        square = G / weight - noise
        return rules.sdbgd(F / weight, square * (square > 0), barrier, regularizer), new


@dataclass(frozen=True)
class Dual(StatefulRule):
    """λ as the dual variable of the projection: a proximal step a batch towards max λ(β gg − fg) − λ²(gg + ρ)/2, λ ≥ 0.

    λ ← [ρλ + τ(β gg − fg)]₊ / (ρ + τ(gg + ρ)), where ρ/τ weighs the past: a projected dynamical system for the dual. A
    step is made with the λ from before, which this batch has no part in, so that E[λ b] = λ ∇g. Products that stand
    still lead to SDBGD's λ, at any τ > 0; for τ → ∞ the next λ is SDBGD's of this batch.
    """

    def begin(self, zero: Scalar) -> tuple[Scalar, ...]:
        """λ = 0: f alone."""
        return (zero,)

    def __call__(
        self,
        fg: Scalar,
        gg: Scalar,
        memory: tuple[Scalar, ...],
        barrier: Scalar,
        regularizer: Scalar,
        rate: Scalar = 1.0,
    ) -> tuple[Scalar, tuple[Scalar, ...]]:
        """λ, and the next one; `rate` is τ > 0."""
        (now,) = memory
        pushed = rate * barrier * gg + regularizer * now
        return now, (
            rules.multiplier(rate * fg, rate * (gg + regularizer), pushed, regularizer),
        )
