"""From what a step measured to the weights of its direction: one decision for every front end.

A front end (the NumPy solver, the torch optimizer, the optax transformation) measures, decides, guards and moves. What
lies between the inner products and the two weights of ``d = a ∇f + b ∇g`` is here, once, on scalars alone::

    rule mode        λ = rule(fg, gg, …)                     a = 1/(1+λ), b = λ/(1+λ); or 1 and λ
    tolerance mode   w = λ/s from :mod:`tiebreak.tolerance`    a = 1/(s max(1,w)), b = w/max(1,w)

Like the rules, this is arithmetic and comparisons, for Python floats, NumPy arrays, torch tensors and JAX tracers; no
array library is imported. It changes nothing: the new memory is returned beside the weights, and the front end keeps it
if the step is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tiebreak import rules
from tiebreak import tolerance as law
from tiebreak.rules import Scalar
from tiebreak.scalars import at_least


class Seen(NamedTuple):
    """What a step measured.

    Attributes
    ----------
    fg, gg, ff : scalar
        ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖², as the rule is to see them; ff where the rule asks for it.
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖ of the gradients that make up the direction; for a tolerance.
    lower_value : scalar
        The lower loss of this step's batch; for a tolerance, and where the rule asks for it.
    reference : scalar
        What that loss is compared with; for a tolerance.
    watched : mapping
        What an estimator that watches lets the solver find out, by name; where the rule asks for it.
    """

    fg: Scalar
    gg: Scalar
    ff: Scalar = None
    upper_norm: Scalar = None
    lower_norm: Scalar = None
    lower_value: Scalar = None
    reference: Scalar = None
    watched: Mapping[str, Scalar] = MappingProxyType({})


class Choice(NamedTuple):
    """What to do: d = `upper_weight` ∇f + `lower_weight` ∇g; `memory` is to be kept if the step is made.

    `reading` is what the tolerance rule made of the losses, None without a tolerance.
    """

    multiplier: Scalar
    upper_weight: Scalar
    lower_weight: Scalar
    memory: Any
    reading: law.Reading | None


@dataclass(frozen=True)
class Tolerance:
    """How far the lower loss may lie above its reference.

    Parameters
    ----------
    amount : float
        As a loss, or as a share of the reference.
    relative : bool
        Which of them.
    same_batch : bool
        Whether the reference is measured on the batch of the lower loss.
    """

    amount: float
    relative: bool
    same_batch: bool


@dataclass(frozen=True)
class Decision:
    """How the weights come about.

    Parameters
    ----------
    method : Method, optional
        Whose rule chooses λ, with arguments by name; not where there is a tolerance.
    tolerance : Tolerance, optional
    normalize : bool
        Whether to step along d/(1+λ), so that a large λ does not lengthen the step.
    apply : callable, optional
        ``apply(fg, gg, arguments)`` calls the rule; a front end's own, where it checks what comes out. For a rule with
        a memory ``apply(fg, gg, arguments, memory)``, which returns the new one, too.
    """

    method: Any = None
    tolerance: Tolerance | None = None
    normalize: bool = True
    apply: Callable[..., Scalar] | None = None

    def begin(self) -> Any:
        """The memory before the first step: that of the tolerance rule."""
        return () if self.tolerance is None else law.initial_memory()

    def __call__(self, parameters: Any, seen: Seen, memory: Any) -> Choice:
        """The weights, and what to remember."""
        if self.tolerance is not None:
            return _within(self.tolerance, seen, memory)
        multiplier, memory = self.multiplier(parameters, seen, memory)
        scale = 1 / (1 + multiplier) if self.normalize else 1 + 0 * multiplier
        return Choice(multiplier, scale, scale * multiplier, memory, None)

    def multiplier(self, parameters: Any, seen: Any, memory: Any) -> tuple[Scalar, Any]:
        """λ of the rule, and what it remembers: all that a front end needs which moves along ∇f + λ∇g itself.

        What was `seen` is a :class:`Seen`; or (fg, gg), which takes less time, for a rule that asks for nothing else.
        """
        method, apply = self.method, self.apply or self._apply
        given = (
            arguments(method, parameters, seen)
            if isinstance(seen, Seen)
            else method.arguments(parameters)
        )
        if method.remembers:
            found: tuple[Scalar, Any] = apply(seen[0], seen[1], given, memory)
            return found
        return apply(seen[0], seen[1], given), memory

    def _apply(
        self, fg: Scalar, gg: Scalar, named: dict[str, Any], *memory: Any
    ) -> Any:
        return self.method.rule(fg, gg, *memory, **named)


def _within(tolerance: Tolerance, seen: Seen, memory: law.Memory) -> Choice:
    memory, reading = law.follow(
        memory,
        seen.lower_value,
        seen.reference,
        tolerance.amount,
        seen.upper_norm,
        seen.lower_norm,
        relative=tolerance.relative,
        same_batch=tolerance.same_batch,
    )
    ratio, unit = reading.ratio, reading.unit
    # d = (∇f/s + w ∇g) / max(1, w): g keeps its learning rate if w is large, so that the model keeps up with its twin.
    longer = at_least(ratio, 1.0)
    return Choice(ratio * unit, 1 / (unit * longer), ratio / longer, memory, reading)


def arguments(method: Any, parameters: Any, seen: Seen) -> dict[str, Any]:
    """What the rule gets besides fg and gg, by name: the schedule's numbers, and what only the step knows."""
    named: dict[str, Any] = method.arguments(parameters)
    for name in method.measured:
        if name in ("ff", "lower_value"):
            named[name] = getattr(seen, name)
        elif name in seen.watched:
            named[name] = seen.watched[name]
    return named


def limited(choice: Choice, square: Scalar, longest: Scalar) -> Choice:
    """The choice with the direction no longer than `longest`; `square` is ‖d‖² as it stands.

    Examples
    --------
    >>> limited(Choice(3.0, 1.0, 3.0, (), None), square=16.0, longest=2.0)[1:3]
    (0.5, 1.5)
    """
    square = square * (
        square > 0
    )  # of rounding, where both gradients are nearly opposite
    long = square > longest * longest
    # 0 · square gives the bound the type of the square: torch would make float32 of a float times a comparison.
    factor = (1 - 1 * long) + (0 * square + longest) * long / (
        square + (square == 0)
    ) ** 0.5
    return choice._replace(
        upper_weight=factor * choice.upper_weight,
        lower_weight=factor * choice.lower_weight,
    )


def residuals(
    multiplier: Scalar, fg: Scalar, gg: Scalar, ff: Scalar
) -> tuple[Scalar, Scalar]:
    """‖∇f + λ∇g‖² with this λ, and the least of it over λ ≥ 0, from inner products: no finer than those are.

    Examples
    --------
    >>> residuals(1.0, fg=-2.0, gg=4.0, ff=2.0)
    (2.0, 1.0)
    """
    squares = (
        ff + m * (2 * fg + m * gg) for m in (multiplier, rules.dbgd(fg, gg, 0.0))
    )
    own, least = (square * (square > 0) for square in squares)
    return own, least
