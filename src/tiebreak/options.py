"""The arguments that :mod:`tiebreak.torch` and :mod:`tiebreak.optax` share: a tolerance with a reference, or a method.

An argument without effect is refused, and so are both or neither of them.
"""

import csv
import math
import os
from collections.abc import Sequence
from numbers import Real
from typing import Any

from tiebreak import methods
from tiebreak.checks import floating
from tiebreak.decision import Tolerance
from tiebreak.files import FilePath, regular
from tiebreak.methods import Method
from tiebreak.schedules import LEGAL, WHOLE, Schedule

#: The words for references that are measured at every step: a frozen copy of the starting
#: model, a copy trained on the lower loss alone, and a loss that the user gives.
START = "start"
TWIN = "twin"
GIVEN = "given"
MEASURED = (START, TWIN, GIVEN)
#: Laws that the solver follows and an optimizer does not.
SOLVER_LAWS = ("step_size", "probability", "selection", *WHOLE)
_CHOICES = (
    "tolerance=… with reference=… keeps the lower loss near what training on it alone reaches; method=… takes a row of "
    "tiebreak.methods, as method=methods.sdbgd.replace(barrier=0.5, regularizer=1e-8), the paper's rule, whose "
    "multiplier falls to that weight where batches are noisy"
)
_REFERENCES = (
    'a number (the final training loss of lower-only training, over all its data), "start" (a frozen copy of the '
    'starting model, for fine-tuning), "twin" (a copy trained on the lower loss alone beside the model), "given" '
    "(you give the reference with each loss), a function of the step, or the path of a CSV log of a lower-only run"
)


def allowed(tolerance: Any) -> tuple[float, bool]:
    """A tolerance as a number, and whether it is a share of the reference.

    Examples
    --------
    >>> allowed("2%"), allowed(0.01)
    ((0.02, True), (0.01, False))
    """
    relative = isinstance(tolerance, str) and tolerance.strip().endswith("%")
    try:
        if isinstance(tolerance, bool) or (isinstance(tolerance, str) and not relative):
            raise ValueError
        amount = (
            float(tolerance.strip().removesuffix("%")) / 100
            if relative
            else floating(tolerance)
        )
    except (TypeError, ValueError):
        amount = math.nan
    if not 0 < amount < math.inf:
        raise ValueError(
            f'tolerance={tolerance!r} must be a number > 0, or a share such as "2%"'
        )
    return amount, relative


def refuse_unused(reason: str, **arguments: Any) -> None:
    """Raise if one of these arguments is given, which have no effect for this reason."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} has no effect {reason}")


def checked_tolerance(
    tolerance: Any, reference: Any, words: Sequence[str] = MEASURED
) -> Tolerance:
    """The tolerance as the decision needs it; raise unless it and the reference are legal.

    `words` are those of references that are measured at every step.
    """
    amount, relative = allowed(tolerance)
    if reference is None:
        raise ValueError(f"tolerance={tolerance!r} needs reference=: {_REFERENCES}")
    fixed = is_number(reference)
    if fixed and not math.isfinite(floating(reference)):
        raise ValueError(f"reference={reference!r} must be finite, or {_REFERENCES}")
    if fixed and relative and reference == 0:
        raise ValueError(
            f"tolerance={tolerance!r} of reference={reference!r} is 0: give the tolerance as a number > 0"
        )
    if hasattr(reference, "parameters"):
        name = type(reference).__name__
        raise ValueError(
            f'reference={name}(…) is a model: give its loss on each batch, reference="given"'
        )
    if not fixed and not hasattr(reference, "__fspath__") and not callable(reference):
        text = isinstance(reference, str) and (
            reference in words or reference.endswith(".csv")
        )
        if not text:
            raise ValueError(f"reference={reference!r} must be {_REFERENCES}")
    same_batch = isinstance(reference, str) and reference in words
    return Tolerance(amount, relative, same_batch)


def is_number(reference: Any) -> bool:
    """Whether the reference is one number for the whole run."""
    return isinstance(reference, Real) and not isinstance(reference, bool)


def recorded(path: FilePath) -> tuple[list[int], list[float]]:
    """The steps of a CSV log, in order, and its column ``lower_loss``; lines without a loss are left out.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.csv"
    >>> _ = path.write_text("step,lower_loss\\n0,2.0\\n5,\\n10,1.0\\n")
    >>> recorded(path)
    ([0, 10], [2.0, 1.0])
    >>> _ = path.write_text("step,lower_loss\\n0,2.0\\n5,9.0\\n0,3.0\\n1,1.0\\n")  # a new run in the same file
    >>> recorded(path)
    ([0, 1], [3.0, 1.0])
    """
    try:
        with open(regular(path), encoding="utf-8", newline="") as file:
            found = _losses(csv.DictReader(file))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"reference={os.fspath(path)!r}: there is no such file"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"reference={os.fspath(path)!r} is no CSV log: {error}"
        ) from None
    if found is None:
        raise ValueError(
            f"reference={os.fspath(path)!r} must have the columns step and lower_loss"
        )
    if not found:
        raise ValueError(f"reference={os.fspath(path)!r} has no step with a lower_loss")
    steps = sorted(found)
    finite = [step for step in steps if math.isfinite(found[step])]
    if finite[-1:] != steps[-1:]:
        last = (finite or steps[:1])[-1]
        raise ValueError(
            f"reference={os.fspath(path)!r}: its lower_loss is not finite at the end, after step {last}; that run "
            "diverged and is no reference: train on the lower loss again, with a smaller learning rate"
        )
    return finite, [found[step] for step in finite]


def _losses(reader: "csv.DictReader[str]") -> dict[int, float] | None:
    """The losses by step; None without these columns."""
    found: dict[int, float] = {}
    last = -1
    if not {"step", "lower_loss"} <= set(reader.fieldnames or ()):
        return None
    for row in reader:
        try:
            step, loss = int(row["step"]), float(row["lower_loss"])
        except (TypeError, ValueError):
            continue  # a skipped step has no loss, and a line cut short none either
        if (
            step <= last
        ):  # begun again, after a resume or in a new run: what stood from there on does not count
            found = {k: v for k, v in found.items() if k < step}
        last = step
        if step >= 0:
            found[step] = loss
    return found


def training_method(method: Any) -> Method:
    """Return the method of this name, or the method itself, if an optimizer can follow it.

    An optimizer takes whatever batches the training loop draws, evaluates them at one point, and keeps no memory for
    the rule.

    Parameters
    ----------
    method : Method or str
        A row of :mod:`tiebreak.methods`, or its name.

    Examples
    --------
    >>> training_method(methods.sdbgd.replace(barrier=0.5)).name
    'SDBGD'
    """
    if method is None:
        raise ValueError(f"nothing says how to choose the multiplier: {_CHOICES}")
    row = methods.get(
        method,
        [
            name
            for name, row in methods.METHODS.items()
            if _one_point(row) and not row.remembers
        ],
    )
    name = method if isinstance(method, str) else row.name
    if not _one_point(row):
        raise ValueError(
            f"method={name!r} chooses its batches or evaluates them at two points ({row.estimator!r}): use "
            "tiebreak.minimize, which takes every method; an optimizer takes the estimators Minibatch() and Average(…)"
        )
    if row.remembers:
        raise ValueError(
            f"the rule of {name!r} has a memory: use tiebreak.minimize, which keeps it; an optimizer takes rules "
            "without one: a function of fg, gg and what it needs by name"
        )
    return row


def _one_point(method: Method) -> bool:
    """Whether the estimator takes any batch, at the current point alone."""
    return method.estimator.scheduled and method.estimator.evaluations == 1


def training_schedule(method: Method) -> Schedule:
    """Return the laws that the rule and the estimator of a method may use; step size and batches are left out.

    Constant numbers need no evaluation at each step if no other law is set.

    Examples
    --------
    >>> print(training_schedule(methods.sdbgd.replace(barrier=0.5, regularizer=0.1)))
    upper_batch=1, lower_batch=1, barrier=0.5, regularizer=0.1
    """
    names = [name for name in LEGAL if name in method.needs or name not in SOLVER_LAWS]
    laws = {name: getattr(method.schedule, name) for name in names}
    return Schedule(**laws, others=method.schedule.others)
