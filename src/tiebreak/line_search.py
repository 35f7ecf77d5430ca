"""The end of a training with a tolerance: the best point on the line from a model that is inside to the trained one.

The line begins at the *anchor*: the twin, the starting model, or the model that reached a number. The anchor's lower
loss is inside, so some point between the anchor and the trained model is inside, too. If training left a part of the
tolerance unused, a point beyond the trained model may have a smaller upper loss and still be inside. A few evaluations
find either point. Both losses are measured there, on as much data as the promise is made for: nothing is estimated, and
nothing is assumed of the shapes of the losses.

The search uses Python numbers only, so it serves every array library.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import NormalDist, stdev
from typing import Any, NamedTuple, TypeAlias

#: The lower and the upper measurement at a place on the line, and the standard error of the lower one if there is one.
Measure: TypeAlias = Callable[[float], tuple[float, ...]]
#: A model with an excess up to this is inside, and may stay where it is.
KEPT_LIMIT = 1.0
#: A model is moved only to places whose excess lies below the limit by at least this margin.
LEAST_MARGIN = 0.05
#: Places on the way back, from the trained model to the anchor.
WAY_BACK = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
FIRST_STRIDE = 0.1
FARTHEST = 8.0
HALVINGS = 4


class Finish(NamedTuple):
    """Where a training was finished, and what was measured there.

    Attributes
    ----------
    place : float
        The place on the line from the reference (the anchor), 0, to the model as training left it, 1. A model that was
        moved on has a place above 1.
    excess, upper_loss : float
        How far the lower loss lies above its reference, in tolerances (at most 1 is inside), and the upper loss. The
        upper loss is NaN if none was given.
    excess_before, upper_loss_before : float
        The same numbers where training left the model.
    upper_loss_reference : float
        The upper loss of the reference's model, with which the others are to be compared.
    evaluations : int
        How often the losses were evaluated.
    repaired : bool
        Whether steps on the lower loss alone came first, because training had left the model outside.
    margin : float
        How far below 1 the excess had to be at a place to which the model was moved.
    nonfinite_places : tuple of float
        The places at which a loss was not finite; the model was not moved there.

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
    margin: float = LEAST_MARGIN
    nonfinite_places: tuple[float, ...] = ()

    def __str__(self) -> str:
        status = "inside" if self.excess <= KEPT_LIMIT else "outside"
        upper = ""
        if not math.isnan(self.upper_loss):
            upper = (
                f"upper loss {self.upper_loss:.4g} (training left it at {self.upper_loss_before:.4g}; the reference "
                f"has {self.upper_loss_reference:.4g}), "
            )
        last_part = "steps on the lower loss" if self.repaired else "training"
        remark = ""
        if self.place >= FARTHEST:
            remark = "; the line ends here: a longer training, or a larger learning rate, may gain more"
        if self.place < 0.5 and self.excess_before > KEPT_LIMIT:
            remark = "; most of what training did was taken back"
        return (
            f"{status}: excess {self.excess:.2f} (training left it at {self.excess_before:.2f}), {upper}at place "
            f"{self.place:.3g} of the line from the reference, 0, to where {last_part} ended, 1{remark}"
        )


def finish(
    measure: Measure,
    tolerance: tuple[float, bool],
    reference: float | None = None,
    has_upper: bool = True,
    stacklevel: int = 2,
    repair: Callable[[], Callable[[], None]] | None = None,
    confidence: float = 0.9,
) -> Finish:
    """Search the line by losses: `measure` returns the lower and the upper loss at a place.

    Parameters
    ----------
    measure : callable
        A function of the place. It may return a third number, the standard error of the difference between this lower
        loss and that at place 0.
    tolerance : pair
        A number, and whether it is a share of the reference.
    reference : float, optional
        The reference, if it is not the anchor's lower loss.
    has_upper : bool
        Whether there is an upper loss; without one, `measure` returns NaN for it.
    stacklevel : int
        The stack level of warnings, as in :func:`warnings.warn`.
    repair : callable, optional
        Takes steps on the lower loss alone, moves the end of the line, 1, to the model after them, and returns a
        function that takes them back. It is called if training left the model outside its tolerance; steps that do not
        lower the excess are taken back.
    confidence : float
        The model is moved only to places that are inside with this confidence, as far as the standard error tells.

    Examples
    --------
    >>> finish(lambda place: (1 + 0.2 * place**2, -place), (0.1, False)).place  # a lower loss of 1.095
    0.6875
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be at least 0.5 and below 1")
    losses_at = cache(measure)
    begin = losses_at(0.0)[:2]
    if reference is None:
        reference = begin[0]
    amount, is_share = tolerance
    allowed = amount * (abs(reference) if is_share else 1.0)
    if not math.isfinite(reference):
        raise ValueError(
            f"the reference's lower loss is {reference:.6g}: it must be finite, to be compared with"
        )
    if allowed == 0:
        raise ValueError(
            f"a tolerance of {100 * amount:g}% of a reference of 0 is 0: give it as a number > 0"
        )
    trained = losses_at(1.0)[:2]
    end = trained
    if has_upper and not math.isfinite(trained[1]):
        raise ValueError(
            f"the upper loss is {trained[1]:.6g} where training left the model: it must be finite (does every batch "
            "have rows that it is made of?)"
        )

    quantile = NormalDist().inv_cdf(confidence)
    margins = {}
    nonfinite_places = set()

    def measure_excess(place: float) -> tuple[float, float, float]:
        lower, upper, *error = losses_at(place)
        excess = (lower - reference) / allowed
        margins[place] = max([LEAST_MARGIN, *(quantile * e / allowed for e in error)])
        if not math.isfinite(excess) or (has_upper and not math.isfinite(upper)):
            nonfinite_places.add(place)
            return math.inf, math.inf, margins[place]
        return excess, upper, margins[place]

    excess = measure_excess(1.0)[0]
    repaired = False
    messages = []
    if repair is not None and not excess <= KEPT_LIMIT:
        undo = repair()
        losses_at = cache(measure)
        nonfinite_places.clear()  # the line is another one now
        end = losses_at(1.0)[:2]
        repaired_excess = measure_excess(1.0)[0]
        repaired = repaired_excess < excess
        if not repaired:
            messages.append(
                f"the steps on the lower loss led from {excess:.2f} to {repaired_excess:.2f} tolerances above the "
                "reference, so they were taken back: is the learning rate too large, and are these losses the lower "
                "one's?"
            )
            undo()
            losses_at = cache(measure)
            nonfinite_places.clear()
            end = trained
    result = search(measure_excess)
    # Count the evaluations that the steps on the lower loss have made outdated.
    if repaired:
        result = result._replace(
            excess_before=excess,
            upper_loss_before=trained[1],
            evaluations=result.evaluations + 2,
            repaired=True,
        )
    elif messages:
        result = result._replace(evaluations=result.evaluations + 3)
    result = result._replace(
        margin=margins[result.place], nonfinite_places=tuple(sorted(nonfinite_places))
    )
    messages += _warnings_about(result, begin, end)
    for message in messages:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    return result


def _warnings_about(
    result: Finish, begin: tuple[float, ...], end: tuple[float, ...]
) -> list[str]:
    """Return warnings about a result; `begin` and `end` are the losses at the ends of the line."""
    messages = []
    if result.nonfinite_places:
        places = ", ".join(f"{place:.3g}" for place in result.nonfinite_places)
        messages.append(
            f"a loss was not finite at the places {places} of the line, so the model was not moved there"
        )
    if not result.excess <= KEPT_LIMIT:
        messages.append(
            f"the lower loss is {result.excess:.2f} tolerances above its reference, and above 1 everywhere on the line "
            "to the anchor: the model stays as it was. Is the anchor the model that reached the reference, are these "
            "the same data, and is it the same mode (training or evaluation)?"
        )
    for name, begin_loss, end_loss in zip(("lower", "upper"), begin, end, strict=True):
        if begin_loss == end_loss != 0:
            messages.append(
                f"the {name} loss is the same number for the reference and for the model, {begin_loss:.6g}: does its "
                "function evaluate the model that is moved, and not a copy or an average of it?"
            )
    if result.place == 0 and begin[1] < end[1]:
        messages.append(
            "the upper loss is smallest at the reference, and so the model is the reference now: training has not "
            "lowered it within the tolerance. Were lower and upper swapped here, or before?"
        )
    return messages


class Totals:
    """Losses over all data: one number each, or the mean over batches, as many at every place.

    Parameters
    ----------
    number : callable
        Checks a loss and returns it as a number; it gets a name for errors and the loss.

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
        # The losses of the batches at the first call, and at the last one.
        self._first: dict[str, list[float]] = {}
        self._last: dict[str, list[float]] = {}

    def __call__(self, name: str, value: Any) -> float:
        """Return the loss; NaN if the loss of a batch is not finite."""
        if getattr(value, "ndim", 0) == 0 and (
            hasattr(value, "ndim") or not isinstance(value, Iterable)
        ):
            self._last[name] = []
            return self._number(f"the {name} loss", value)
        losses = [self._number(f"the {name} loss of a batch", loss) for loss in value]
        if not losses and name not in self._first:
            raise ValueError(
                f"{name}=… returned no loss: is its generator or loader empty?"
            )
        first_count = len(self._first.setdefault(name, losses))
        self._last[name] = losses
        if len(losses) != first_count:
            raise ValueError(
                f"{name}=… returned {first_count} losses at first, and {len(losses) or 'none'} now: it must evaluate "
                "the same data whenever it is called"
            )
        if not all(map(math.isfinite, losses)):
            return math.nan
        return math.fsum(losses) / len(losses)

    def batches(self, name: str) -> list[float]:
        """Return the last losses of the batches; none if the loss was one number."""
        return self._last[name]

    def differences(self, name: str) -> list[float]:
        """Return the last losses minus the first ones, batch by batch; the noise that both have in common is gone."""
        pairs = zip(self._last[name], self._first.get(name, ()), strict=False)
        return [last - first for last, first in pairs]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values; 0 for fewer than two, or if one is not finite.

    Examples
    --------
    >>> standard_error([1.0, 3.0])
    1.0
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return stdev(values) / math.sqrt(len(values))


def search(measure: Measure) -> Finish:
    """Return the place with the smallest upper loss that a few evaluations find inside the tolerance.

    A model that is outside is moved back until it is inside; if no place is inside, it stays where it was. From there,
    or from where training left it, the model is moved away from the anchor as long as the upper loss falls, else
    towards the anchor. The anchor itself is always measured.

    Parameters
    ----------
    measure : callable
        Returns the excess and the upper loss at a place, NaN for the second if there is none; and the margin that the
        excess must keep, if it is not `LEAST_MARGIN`.

    Examples
    --------
    >>> search(lambda place: (0.5 * place**2, -place)).place  # an excess of 0.95 is reached at 1.378
    1.375
    >>> search(lambda place: (2 * place**2, -place)).place  # and here at 0.689
    0.6875
    >>> search(lambda place: (2 * place**2, place)).place  # where the anchor is better in both
    0.0
    """
    measure = cache(measure)

    def is_inside(place: float) -> bool:
        excess, _, *margin = measure(place)
        return excess <= KEPT_LIMIT - max([LEAST_MARGIN, *margin])

    def improves(place: float, best: float) -> bool:
        return is_inside(place) and measure(place)[1] < measure(best)[1]

    excess, upper = measure(1.0)[:2]
    best = 1.0 if excess <= KEPT_LIMIT else _place_inside(is_inside)
    if measure(best)[0] <= KEPT_LIMIT and not math.isnan(measure(best)[1]):
        # Of a model that was moved back, outward was already searched.
        directions = (1, -1) if best == 1 else (-1,)
        for direction in directions:
            place = _descend_upper(improves, best, direction)
            if place != best:
                best = place
                break
    if improves(0.0, best):
        best = 0.0
    evaluations = measure.cache_info().misses
    best_excess, best_upper = measure(best)[:2]
    upper_reference = measure(0.0)[1]
    return Finish(
        best, best_excess, best_upper, excess, upper, upper_reference, evaluations
    )


def _descend_upper(
    improves: Callable[[float, float], bool], start: float, direction: int
) -> float:
    """Take strides that double while the upper loss falls, then bisect the last stride; return the place."""
    best = start
    stride = FIRST_STRIDE
    while True:
        place = min(max(best + direction * stride, 0.0), FARTHEST)
        if place == best:
            return best
        if not improves(place, best):
            return _bisect(best, place, improves)
        best = place
        stride *= 2


def _place_inside(is_inside: Callable[[float], bool]) -> float:
    """Return the first place inside on the way back, as far out as bisection finds one; 1 if no place is inside."""
    outside = 1.0
    for place in WAY_BACK:
        if is_inside(place):
            return _bisect(place, outside, lambda place, _: is_inside(place))
        outside = place
    return 1.0


def _bisect(
    good: float, too_far: float, is_better: Callable[[float, float], bool]
) -> float:
    """Return the last good place between a good one and one that lies too far."""
    for _ in range(HALVINGS):
        middle = (good + too_far) / 2
        if is_better(middle, good):
            good = middle
        else:
            too_far = middle
    return good
