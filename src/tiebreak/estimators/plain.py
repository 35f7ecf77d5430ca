"""Estimates from batches that are evaluated once: the mini-batch, and an exponential average of it."""

from dataclasses import dataclass

from tiebreak.estimators.contract import Estimator, Memory, Update, Value, of_level
from tiebreak.schedules import Law, Parameters


@dataclass(frozen=True)
class Minibatch(Estimator):
    """The mini-batch mean itself.

    Examples
    --------
    >>> update = Minibatch().update
    >>> update("lower", 3.0, None, (), None)[0]
    3.0
    """

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """Nothing."""
        return ()

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """The gradient as it is."""
        return fresh, memory


@dataclass(frozen=True)
class WithMomentum(Estimator):
    """What `Storm` and `Average` share: α_k of their own, or the schedule's, for a level or for both."""

    momentum: Law | float | None = None

    def __post_init__(self) -> None:
        law = self.momentum
        if (
            law is not None
            and not callable(law)
            and (isinstance(law, (bool, str)) or not 0 <= law <= 1)
        ):
            raise ValueError(
                f"momentum={law!r} of {type(self).__name__} must be in [0, 1], or a function of the step"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """What the schedule has to set."""
        if self.momentum is None:
            return ("momentum",)
        return ()

    def rate(self, level: str, parameters: Parameters) -> Value:
        """α of this step: a method puts an estimator's own law into its schedule."""
        value = of_level(parameters, "momentum", level)
        law = self.momentum
        if value is None and law is not None:
            value = float(law(parameters.k) if callable(law) else law)
        if value is None or (isinstance(value, (int, float)) and not 0 <= value <= 1):
            name = type(self).__name__
            raise ValueError(
                f"momentum of {name} at step {parameters.k} is {value!r}; it must be in [0, 1]"
            )
        return value


@dataclass(frozen=True)
class Average(WithMomentum):
    """An exponential average of the lower gradient, for batches that cannot grow; the upper one stays a mini-batch.

    m_k = (1 − α_k) m_{k−1} + α_k G_k(x_k), started so that early averages are unbiased: the weights always add up to 1.
    With small batches ‖G‖² is mostly noise, and the multiplier falls towards a fixed weight β; averaging brings the
    signal back, at the price of a lag of about 1/α steps.

    Parameters
    ----------
    momentum : law or float, optional
        α_k in [0, 1]; without it, the schedule's `momentum`.
    direction : bool
        Whether the average enters the direction, too. False where an optimizer that follows smooths it again.

    Examples
    --------
    >>> import tiebreak
    >>> parameters = tiebreak.Schedule(0.1).at(0)
    >>> average = Average(0.5)
    >>> memory = average.begin("lower", 0.0, 0.0)
    >>> for gradient in (4.0, 0.0, 0.0):
    ...     estimate, memory = average.update("lower", gradient, None, memory, parameters)
    ...     print(round(estimate, 3))
    4.0
    1.333
    0.571
    """

    direction: bool = True

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """No average, and the weight given so far."""
        if level == "upper":
            return ()
        return (zeros, zero)

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """m_k."""
        if level == "upper":
            return fresh, memory
        mean, weight = memory
        rate = self.rate(level, parameters)
        weight = (
            1 - rate
        ) * weight + rate  # the total weight given so far, 1 − Π(1 − α)
        nothing = (
            weight == 0
        )  # α has been 0 so far: then the newest gradient is all there is
        # The share of the newest gradient makes all weights add up to 1; 0 · weight preserves float32.
        share = (0 * weight + rate + nothing) / (weight + nothing)
        mean = (1 - share) * mean + share * fresh
        return mean, (mean, weight)
