"""The end of a training with a tolerance: the best point on the line from a model that is inside to the trained one.

The model to begin at is the *anchor*: the twin, the starting model, or the model that reached a number. Its lower loss
is inside, so between it and the trained model there is always a point that is, too. And where training has left a part
of the tolerance unused, a point beyond the trained model may have a smaller upper loss and be inside still. A handful
of evaluations finds either. Both losses are measured there, on as much data as the promise is made for: nothing is
estimated, and nothing is assumed of their shapes.

Python's numbers only, so that one search serves every library.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Finish", "Totals", "finish", "search"]

INSIDE = 1.0  # an excess up to this stays where it is
LIMIT = 0.95  # and a point that is moved to has one up to this
BACK = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
STRIDE, FARTHEST, HALVINGS = 0.1, 8.0, 4


class Finish(NamedTuple):
    """Where a training was finished, and what was measured there.

    Attributes
    ----------
    place : float
        On the line from the anchor, 0, to the model as training left it, 1; beyond 1 the model was moved on.
    excess, upper_loss : float
        How far the lower loss lies above its reference, in tolerances (at most 1 is inside), and the upper loss; that
        is NaN where none was given.
    excess_before, upper_loss_before : float
        The same where training left the model.
    evaluations : int
        How often the losses were evaluated.

    Examples
    --------
    >>> print(Finish(1.3, 0.95, 2.0, 0.6, 2.5, 6))
    inside: excess 0.95 (training left it at 0.60), upper loss 2 (2.5), at place 1.3 of the line from the anchor
    """

    place: float
    excess: float
    upper_loss: float
    excess_before: float
    upper_loss_before: float
    evaluations: int

    def __str__(self) -> str:
        upper = (
            "" if math.isnan(self.upper_loss) else f"upper loss {self.upper_loss:.4g} ({self.upper_loss_before:.4g}), "
        )
        return (
            f"{'inside' if self.excess <= INSIDE else 'outside'}: excess {self.excess:.2f} (training left it at "
            f"{self.excess_before:.2f}), {upper}at place {self.place:.3g} of the line from the anchor"
        )


def finish(
    measure: Callable[[float, bool], tuple[float, float]],
    tolerance: tuple[float, bool],
    reference: float | None = None,
    stacklevel: int = 2,
) -> Finish:
    """Search with losses: `measure` gives the lower and the upper loss at a place, the second only where it is asked.

    Parameters
    ----------
    measure : callable
        Of the place and of whether the upper loss is wanted.
    tolerance : pair
        A number, and whether it is a share of the reference.
    reference : float, optional
        The anchor's lower loss where it is not given.

    Examples
    --------
    >>> finish(lambda place, both: (1 + 0.2 * place**2, -place), (0.1, False)).place  # a lower loss of 1.095
    0.6875
    """
    reference = measure(0.0, False)[0] if reference is None else reference
    amount, share = tolerance
    allowed = amount * (abs(reference) if share else 1.0)
    if not math.isfinite(reference):
        raise ValueError(f"the reference's lower loss is {reference:.6g}: it must be finite, to be compared with")
    if allowed == 0:
        raise ValueError(f"a tolerance of {100 * amount:g}% of a reference of 0 is 0: give it as a number > 0")

    def excess(place: float) -> tuple[float, float]:
        lower, upper = measure(place, True)
        return (lower - reference) / allowed, upper

    found = search(excess)
    if not found.excess <= INSIDE:
        warnings.warn(
            f"the lower loss is {found.excess:.2f} tolerances above its reference, and above 1 everywhere on the line "
            "to the anchor: the model stays as it was. Is the anchor the model that reached the reference, are these "
            "the same data, and is it the same mode (training or evaluation)?",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
    return found


class Totals:
    """Losses over all data, each one number or the mean of those of batches, as many at every place.

    Parameters
    ----------
    number : callable
        Makes and checks a single one, of what to call it and of its value.

    Examples
    --------
    >>> total = Totals(lambda name, x: float(x))
    >>> total("lower", (x for x in (1.0, 2.0)))
    1.5
    >>> total("lower", [1.0])
    Traceback (most recent call last):
        ...
    ValueError: lower=… returned 2 losses at first, and 1 now: it must evaluate the same data whenever it is called
    """

    def __init__(self, number: Callable[[str, Any], float]) -> None:
        self._number = number
        self._counts: dict[str, int] = {}

    def __call__(self, name: str, value: Any) -> float:
        """The loss; NaN where that of a batch is not finite."""
        if getattr(value, "ndim", 0) == 0 and (hasattr(value, "ndim") or not isinstance(value, Iterable)):
            return self._number(f"the {name} loss", value)
        many = [self._number(f"the {name} loss of a batch", loss) for loss in value]
        if not many and name not in self._counts:
            raise ValueError(f"{name}=… returned no loss: is its generator or loader empty?")
        first = self._counts.setdefault(name, len(many))
        if len(many) != first:
            raise ValueError(
                f"{name}=… returned {first} losses at first, and {len(many) or 'none'} now: it must evaluate the same "
                "data whenever it is called"
            )
        return math.fsum(many) / len(many) if all(map(math.isfinite, many)) else math.nan


def search(measure: Callable[[float], tuple[float, float]]) -> Finish:
    """The place with the smallest upper loss that a few evaluations find inside the tolerance.

    A model that is inside is moved on, away from the anchor, as long as the upper loss falls; towards it, if the upper
    loss falls there instead. One that is outside is moved back until it is inside; if no place is, it stays where it
    was.

    Parameters
    ----------
    measure : callable
        The excess and the upper loss at a place; NaN for the second where there is none.

    Examples
    --------
    >>> search(lambda place: (0.5 * place**2, -place)).place  # an excess of 0.95 is reached at 1.378
    1.375
    >>> search(lambda place: (2 * place**2, -place)).place  # and here at 0.689
    0.6875
    """
    known: dict[float, tuple[float, float]] = {}

    def at(place: float) -> tuple[float, float]:
        if place not in known:
            known[place] = measure(place)
        return known[place]

    excess, upper = at(1.0)
    best, beyond = _down(at, 1) if excess <= INSIDE else _back(at)
    if excess <= INSIDE and best == 1:  # the upper loss may have risen in training, and be smaller at the anchor
        other = _down(at, -1)
        best, beyond = other if other[0] < 1 else (best, beyond)
    for _ in range(HALVINGS if beyond is not None else 0):
        assert beyond is not None
        middle = (best + beyond) / 2
        # Inside, the upper loss has to fall; on the way back whatever is farther out is better.
        fits = at(middle)[0] <= LIMIT and (not excess <= INSIDE or at(middle)[1] < at(best)[1])
        best, beyond = (middle, beyond) if fits else (best, middle)
    return Finish(best, *at(best), excess, upper, len(known))


def _down(at: Callable[[float], tuple[float, float]], sign: int) -> tuple[float, float | None]:
    """The farthest place that longer and longer strides reach as f falls, and the one that was too far, if any."""
    best, stride = 1.0, STRIDE
    if math.isnan(at(best)[1]):
        return best, None
    while True:
        place = min(max(best + sign * stride, 0.0), FARTHEST)
        if place == best:
            return best, None
        excess, upper = at(place)
        if not (excess <= LIMIT and upper < at(best)[1]):
            return best, place
        best, stride = place, 2 * stride


def _back(at: Callable[[float], tuple[float, float]]) -> tuple[float, float | None]:
    """The first place on the way back that is inside, and the one before it; the model's own where none is."""
    before = 1.0
    for place in BACK:
        if at(place)[0] <= LIMIT:
            return place, before
        before = place
    return 1.0, None
