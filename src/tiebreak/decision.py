"""The weights of a step's direction, computed from what the step measured: one decision for every front end.

A front end (the NumPy solver, the torch optimizer, the optax transformation) measures, decides, checks and moves. This
module computes the two weights of ``d = a ∇f + b ∇g`` from the inner products, on scalars alone::

    rule mode        λ = rule(fg, gg, …)                     a = 1/(1+λ), b = λ/(1+λ); or 1 and λ
    tolerance mode   w = λ/s from :mod:`tiebreak.tolerance`    a = 1/(s max(1,w)), b = w/max(1,w)

Like the rules, this is arithmetic and comparisons, for Python floats, NumPy arrays, torch tensors and JAX tracers; no
array library is imported. Nothing is changed in place: the new memory is returned with the weights, and the front end
stores it if the step is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tiebreak import rules
from tiebreak import tolerance as tolerance_rule
from tiebreak.rules import Scalar
from tiebreak.tolerance import at_least, positive


class Measurement(NamedTuple):
    """The scalars that a step measured. Those that the decision does not use are None.

    Attributes
    ----------
    fg, gg, ff : scalar
        ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖², the input of the rule; ff only if the rule has an argument of that name.
    upper_norm, lower_norm : scalar
        ‖∇f‖ and ‖∇g‖ of the gradients that make up the direction; for a tolerance.
    lower_value : scalar
        The lower loss of this step's batch; for a tolerance, and for a rule with an argument of that name.
    reference : scalar
        The reference of the lower loss; for a tolerance.
    watched : mapping
        Curvatures and noise by name, measured by an estimator that watches; for a rule with such arguments.
    """

    fg: Scalar
    gg: Scalar
    ff: Scalar = None
    upper_norm: Scalar = None
    lower_norm: Scalar = None
    lower_value: Scalar = None
    reference: Scalar = None
    watched: Mapping[str, Scalar] = MappingProxyType({})


class WeightChoice(NamedTuple):
    """The weights of the direction d = `upper_weight` ∇f + `lower_weight` ∇g.

    The front end stores `memory` if the step is made. `reading` has the numbers of the tolerance rule; it is None
    without a tolerance.
    """

    multiplier: Scalar
    upper_weight: Scalar
    lower_weight: Scalar
    memory: Any
    reading: tolerance_rule.Reading | None


@dataclass(frozen=True)
class Tolerance:
    """How far the lower loss may lie above its reference.

    Parameters
    ----------
    amount : float
        A loss, or a share of the reference.
    relative : bool
        Whether `amount` is a share.
    same_batch : bool
        Whether the reference is measured on the batch of the lower loss.
    """

    amount: float
    relative: bool
    same_batch: bool


@dataclass(frozen=True)
class Decision:
    """How the weights are computed.

    Parameters
    ----------
    method : Method, optional
        Its rule computes λ. Exactly one of `method` and `tolerance` is set.
    tolerance : Tolerance, optional
        The tolerance rule computes λ.
    normalize : bool
        Whether to step along d/(1+λ), so that a large λ does not lengthen the step.
    apply : callable, optional
        ``apply(fg, gg, arguments)`` calls the rule, for a front end that checks its result. For a rule with a memory
        ``apply(fg, gg, arguments, memory)``, which also returns the new memory.
    """

    method: Any = None
    tolerance: Tolerance | None = None
    normalize: bool = True
    apply: Callable[..., Scalar] | None = None

    def begin(self) -> Any:
        """Return the memory of the tolerance rule before the first step; () without a tolerance."""
        if self.tolerance is None:
            return ()
        return tolerance_rule.initial_memory()

    def __call__(
        self, parameters: Any, measurement: Measurement, memory: Any
    ) -> WeightChoice:
        """Return the weights and the new memory."""
        if self.tolerance is not None:
            return _choose_within(self.tolerance, measurement, memory)
        multiplier, memory = self.multiplier(parameters, measurement, memory)
        scale = 1 / (1 + multiplier) if self.normalize else 1 + 0 * multiplier
        return WeightChoice(multiplier, scale, scale * multiplier, memory, None)

    def multiplier(
        self, parameters: Any, measurement: Any, memory: Any
    ) -> tuple[Scalar, Any]:
        """Return λ of the rule, and its new memory, for a front end that moves along ∇f + λ∇g itself.

        The `measurement` is a :class:`Measurement`. For a rule of fg and gg alone the pair (fg, gg) is faster.
        """
        if isinstance(measurement, Measurement):
            named = arguments(self.method, parameters, measurement)
        else:
            named = self.method.arguments(parameters)
        apply = self.apply or self._apply
        fg = measurement[0]
        gg = measurement[1]
        if self.method.remembers:
            result: tuple[Scalar, Any] = apply(fg, gg, named, memory)
            return result
        return apply(fg, gg, named), memory

    def _apply(
        self, fg: Scalar, gg: Scalar, named: dict[str, Any], *memory: Any
    ) -> Any:
        return self.method.rule(fg, gg, *memory, **named)


def _choose_within(
    tolerance: Tolerance, measurement: Measurement, memory: tolerance_rule.Memory
) -> WeightChoice:
    memory, reading = tolerance_rule.follow(
        memory,
        measurement.lower_value,
        measurement.reference,
        tolerance.amount,
        measurement.upper_norm,
        measurement.lower_norm,
        relative=tolerance.relative,
        same_batch=tolerance.same_batch,
    )
    ratio = reading.ratio
    unit = reading.unit
    # d = (∇f/s + w ∇g) / max(1, w): g keeps its learning rate if w is large, so that the model keeps up with its twin.
    divisor = at_least(ratio, 1.0)
    return WeightChoice(
        ratio * unit, 1 / (unit * divisor), ratio / divisor, memory, reading
    )


def arguments(method: Any, parameters: Any, measurement: Measurement) -> dict[str, Any]:
    """Return the arguments of the rule besides fg and gg by name: numbers of the schedule and of the measurement."""
    named: dict[str, Any] = method.arguments(parameters)
    for name in method.measured:
        if name in ("ff", "lower_value"):
            named[name] = getattr(measurement, name)
        elif name in measurement.watched:
            named[name] = measurement.watched[name]
    return named


def limited(choice: WeightChoice, square: Scalar, longest: Scalar) -> WeightChoice:
    """Shorten the direction to the norm `longest` if it is longer; `square` is its ‖d‖².

    Examples
    --------
    >>> limited(WeightChoice(3.0, 1.0, 3.0, (), None), square=16.0, longest=2.0)[1:3]
    (0.5, 1.5)
    """
    # Rounding can make the square negative if the gradients are nearly opposite.
    square = positive(square)
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
    """Return ‖∇f + λ∇g‖² for this λ, and its minimum over λ ≥ 0, as exact as the inner products are.

    Examples
    --------
    >>> residuals(1.0, fg=-2.0, gg=4.0, ff=2.0)
    (2.0, 1.0)
    """
    best = rules.dbgd(fg, gg, 0.0)
    square = ff + multiplier * (2 * fg + multiplier * gg)
    least = ff + best * (2 * fg + best * gg)
    return positive(square), positive(least)
