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
from functools import cache
from typing import Any, NamedTuple, TypeAlias

#: The lower and the upper measurement at a place on the line.
Measure: TypeAlias = Callable[[float], tuple[float, float]]
INSIDE = 1.0  # an excess up to this stays where it is
LIMIT = 0.95  # and a point that is moved to has one up to this
BACK = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
STRIDE, FARTHEST, HALVINGS = 0.1, 8.0, 4


class Finish(NamedTuple):
    """Where a training was finished, and what was measured there.

    Attributes
    ----------
    place : float
        On the line from the reference (the anchor), 0, to the model as training left it, 1; beyond 1 it was moved on.
    excess, upper_loss : float
        How far the lower loss lies above its reference, in tolerances (at most 1 is inside), and the upper loss; that
        is NaN where none was given.
    excess_before, upper_loss_before : float
        The same where training left the model.
    upper_loss_reference : float
        The upper loss of the reference's model: what the others are to be compared with.
    evaluations : int
        How often the losses were evaluated.
    repaired : bool
        Whether steps on the lower loss alone came first, because training had left the model outside.

    Examples
    --------
    >>> print(Finish(1.3, 0.95, 2.0, 0.6, 2.5, 4.0, 6))
    inside: excess 0.95 (training left it at 0.60), upper loss 2 (training left it at 2.5; the reference has 4), at \
place 1.3 of the line from the reference, 0, to where training ended, 1
    """

    place: float
    excess: float
    upper_loss: float
    excess_before: float
    upper_loss_before: float
    upper_loss_reference: float
    evaluations: int
    repaired: bool = False

    def __str__(self) -> str:
        upper = (
            f"upper loss {self.upper_loss:.4g} (training left it at {self.upper_loss_before:.4g}; the reference has "
            f"{self.upper_loss_reference:.4g}), "
        )
        return (
            f"{'inside' if self.excess <= INSIDE else 'outside'}: excess {self.excess:.2f} (training left it at "
            f"{self.excess_before:.2f}), {'' if math.isnan(self.upper_loss) else upper}at place {self.place:.3g} of "
            f"the line from the reference, 0, to where {'steps on the lower loss' if self.repaired else 'training'} "
            "ended, 1"
            + "; most of what training did was taken back"
            * (self.place < 0.5 and self.excess_before > INSIDE)
        )


def finish(
    measure: Measure,
    tolerance: tuple[float, bool],
    reference: float | None = None,
    wanted: bool = True,
    stacklevel: int = 2,
    repair: Callable[[], Callable[[], None]] | None = None,
) -> Finish:
    """Search with losses: `measure` gives the lower and the upper loss at a place.

    Parameters
    ----------
    measure : callable
        Of the place.
    tolerance : pair
        A number, and whether it is a share of the reference.
    reference : float, optional
        The anchor's lower loss where it is not given.
    wanted : bool
        Whether there is an upper loss; NaN stands for it where there is none.
    repair : callable, optional
        Takes steps on the lower loss alone, moves the line's end, 1, to where they lead, and returns a function that
        takes them back. It is called if training left the model outside its tolerance; steps that do not lower the
        excess are taken back.

    Examples
    --------
    >>> finish(lambda place: (1 + 0.2 * place**2, -place), (0.1, False)).place  # a lower loss of 1.095
    0.6875
    """
    at = cache(measure)
    begin = at(0.0)
    reference = begin[0] if reference is None else reference
    amount, share = tolerance
    allowed = amount * (abs(reference) if share else 1.0)
    if not math.isfinite(reference):
        raise ValueError(
            f"the reference's lower loss is {reference:.6g}: it must be finite, to be compared with"
        )
    if allowed == 0:
        raise ValueError(
            f"a tolerance of {100 * amount:g}% of a reference of 0 is 0: give it as a number > 0"
        )
    end = trained = at(1.0)
    if wanted and not math.isfinite(end[1]):
        raise ValueError(
            f"the upper loss is {end[1]:.6g} where training left the model: it must be finite (does every batch have "
            "rows that it is made of?)"
        )

    def excess(place: float) -> tuple[float, float]:
        lower, upper = at(place)
        return (lower - reference) / allowed, upper

    before = excess(1.0)
    texts = []
    repaired = False
    if repair is not None and not before[0] <= INSIDE:
        undo = repair()
        at = cache(measure)
        end = at(1.0)
        repaired = excess(1.0)[0] < before[0]
        if not repaired:
            texts.append(
                f"the steps on the lower loss led from {before[0]:.2f} to {excess(1.0)[0]:.2f} tolerances above the "
                "reference, so they were taken back: is the learning rate too large, and are these losses the lower "
                "one's?"
            )
            undo()
            at = cache(measure)
            end = trained
    found = search(excess)
    if repaired:
        found = found._replace(
            excess_before=before[0],
            upper_loss_before=trained[1],
            evaluations=found.evaluations + 2,
            repaired=True,
        )
    elif texts:
        found = found._replace(evaluations=found.evaluations + 3)
    texts += _remarks(found, begin, end)
    for text in texts:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    return found


def _remarks(
    found: Finish, begin: tuple[float, float], end: tuple[float, float]
) -> list[str]:
    """What must not be left unsaid."""
    said = []
    if not found.excess <= INSIDE:
        said.append(
            f"the lower loss is {found.excess:.2f} tolerances above its reference, and above 1 everywhere on the line "
            "to the anchor: the model stays as it was. Is the anchor the model that reached the reference, are these "
            "the same data, and is it the same mode (training or evaluation)?"
        )
    for name, one, other in zip(("lower", "upper"), begin, end, strict=True):
        if one == other != 0:
            said.append(
                f"the {name} loss is the same number for the reference and for the model, {one:.6g}: does its function "
                "evaluate the model that is moved, and not a copy or an average of it?"
            )
    if found.place == 0 and begin[1] < end[1]:
        said.append(
            "the upper loss is smallest at the reference, and so the model is the reference now: training has not "
            "lowered it within the tolerance. Were lower and upper swapped here, or before?"
        )
    return said


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
        if getattr(value, "ndim", 0) == 0 and (
            hasattr(value, "ndim") or not isinstance(value, Iterable)
        ):
            return self._number(f"the {name} loss", value)
        many = [self._number(f"the {name} loss of a batch", loss) for loss in value]
        if not many and name not in self._counts:
            raise ValueError(
                f"{name}=… returned no loss: is its generator or loader empty?"
            )
        first = self._counts.setdefault(name, len(many))
        if len(many) != first:
            raise ValueError(
                f"{name}=… returned {first} losses at first, and {len(many) or 'none'} now: it must evaluate the same "
                "data whenever it is called"
            )
        return (
            math.fsum(many) / len(many) if all(map(math.isfinite, many)) else math.nan
        )


def search(measure: Measure) -> Finish:
    """The place with the smallest upper loss that a few evaluations find inside the tolerance.

    A model that is outside is moved back until it is inside; if no place is, it stays where it was. From there, or from
    where training left it, it is moved away from the anchor as long as the upper loss falls, else towards it. The
    anchor itself is looked at in any case.

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
    >>> search(lambda place: (2 * place**2, place)).place  # where the anchor is better in both
    0.0
    """
    at = cache(measure)

    def better(place: float, than: float) -> bool:
        return at(place)[0] <= LIMIT and at(place)[1] < at(than)[1]

    excess, upper = at(1.0)
    best = 1.0 if excess <= INSIDE else _inside(at)
    if at(best)[0] <= INSIDE and not math.isnan(at(best)[1]):
        ways = (
            (1, -1) if best == 1 else (-1,)
        )  # what lies farther out than the limit was looked at
        best = next(
            (
                place
                for place in (_down(better, best, way) for way in ways)
                if place != best
            ),
            best,
        )
    if better(0.0, best):
        best = 0.0
    return Finish(best, *at(best), excess, upper, at(0.0)[1], at.cache_info().misses)


def _down(better: Callable[[float, float], bool], start: float, way: int) -> float:
    """The place that longer and longer strides reach as f falls, and then halves of the last one."""
    best, stride = start, STRIDE
    while (place := min(max(best + way * stride, 0.0), FARTHEST)) != best and better(
        place, best
    ):
        best, stride = place, 2 * stride
    return best if place == best else _halved(best, place, better)


def _inside(at: Measure) -> float:
    """The first place on the way back that is inside, as far out as halving finds; the model's own where none is."""
    before = 1.0
    for place in BACK:
        if at(place)[0] <= LIMIT:
            return _halved(place, before, lambda middle, _: at(middle)[0] <= LIMIT)
        before = place
    return 1.0


def _halved(good: float, beyond: float, fits: Callable[[float, float], bool]) -> float:
    for _ in range(HALVINGS):
        middle = (good + beyond) / 2
        good, beyond = (middle, beyond) if fits(middle, good) else (good, middle)
    return good
