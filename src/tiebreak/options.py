"""From the words of an engineer to a decision: what :mod:`tiebreak.torch` and :mod:`tiebreak.optax` both take.

Either a tolerance and a reference, or a rule with its numbers, or a whole method. Whatever would have no effect is
refused, and so is a choice that nobody made.
"""

import csv
import math
import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

from tiebreak import methods, rules
from tiebreak.checks import floating, one_of
from tiebreak.decision import Tolerance
from tiebreak.estimators import Estimator, named
from tiebreak.estimators.contract import enters_direction
from tiebreak.files import regular
from tiebreak.methods import Method
from tiebreak.schedules import Schedule
from tiebreak.tolerance import AUTO, MOVING, NUMBER, START, adaptive

#: References that are measured at every step.
MEASURED = ("start", "twin", "given")
_DEFAULTS = {"regularizer": 1e-8, "momentum": 0.1}  # where the rule or the estimator asks, and nothing was given

_CHOICES = (
    "tolerance=… with reference=… keeps the lower loss near what training on it alone reaches; barrier=… takes the "
    "paper's rule, whose multiplier falls to that weight where batches are noisy; method=… takes a row of "
    "tiebreak.methods"
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
        amount = float(tolerance.strip().removesuffix("%")) / 100 if relative else floating(tolerance)
    except (TypeError, ValueError):
        amount = math.nan
    if not 0 < amount < math.inf:
        raise ValueError(f'tolerance={tolerance!r} must be a number > 0, or a share such as "2%"')
    return amount, relative


def within(
    tolerance: Any, reference: Any, unused: Mapping[str, Any], rescales: bool = True, headroom: Any = 0.0
) -> Tolerance:
    """The tolerance as the decision needs it; `unused` are further arguments, of which none may be given.

    `rescales`: whether the base divides by the size of its gradients, as Adam does. `headroom`: so many tolerances
    more while the learning rate is highest, or "auto".
    """
    amount, relative = allowed(tolerance)
    room = _room(headroom)
    if reference is None:
        raise ValueError(f"tolerance={tolerance!r} needs reference=: {_REFERENCES}")
    fixed = isinstance(reference, Real) and not isinstance(reference, bool)
    if fixed and not math.isfinite(floating(reference)):
        raise ValueError(f"reference={reference!r} must be finite, or {_REFERENCES}")
    if fixed and relative and reference == 0:
        raise ValueError(f"tolerance={tolerance!r} of reference={reference!r} is 0: give the tolerance as a number > 0")
    if hasattr(reference, "parameters"):
        name = type(reference).__name__
        raise ValueError(f'reference={name}(…) is a model: give its loss on each batch, reference="given"')
    if not fixed and not hasattr(reference, "__fspath__") and not callable(reference):
        text = isinstance(reference, str) and (reference in MEASURED or reference.endswith(".csv"))
        if not text:
            raise ValueError(f"reference={reference!r} must be {_REFERENCES}")
    for name, value in unused.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} has no effect with tolerance={tolerance!r}: give one of them")
    start = isinstance(reference, str) and reference == "start"
    if room is AUTO and not start:
        raise ValueError(
            f'headroom="auto" measures how far the learning rate alone lifts the loss of a trained model: it must come '
            f'with reference="start", not {reference!r}, or be a number of tolerances'
        )
    constants = (START if start else NUMBER if fixed else MOVING)._replace(**room)
    return Tolerance(amount, relative, moving=not fixed, constants=adaptive(constants) if rescales else constants)


def _room(headroom: Any) -> dict[str, float]:
    """The constants that a headroom stands for."""
    if isinstance(headroom, str) and headroom == "auto":
        return AUTO
    if isinstance(headroom, bool) or not isinstance(headroom, Real) or not 0 <= floating(headroom) < math.inf:
        raise ValueError(f'headroom={headroom!r} must be a number of tolerances, finite and at least 0, or "auto"')
    return {"headroom": float(headroom)}


def tolerant(
    tolerance: Any,
    reference: Any,
    estimator: Any,
    laws: Mapping[str, Any],
    unused: Mapping[str, Any],
    rescales: bool = True,
    headroom: Any = 0.0,
) -> tuple[Tolerance, Estimator, Schedule]:
    """The tolerance, the estimator beside it and its numbers; `laws` that it does not ask for are refused."""
    kind = _followed(named(estimator or "minibatch"), "estimator= is")
    if not enters_direction(kind):
        raise ValueError(f"estimator={estimator!r} has no effect with tolerance=: it needs no inner products")
    asked = getattr(kind, "needs", ())
    given = {name: law for name, law in laws.items() if name in asked and law is not None}
    filled = {name: law for name, law in _DEFAULTS.items() if name in asked}
    own = getattr(kind, "momentum", None)
    schedule = Schedule(**filled | given | ({} if own is None else {"momentum": own}))
    refused = {n: v for n, v in laws.items() if n not in asked} | dict(unused)
    return within(tolerance, reference, refused, rescales, headroom), kind, schedule


def recorded(path: str | os.PathLike[str]) -> tuple[list[int], list[float]]:
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
        raise FileNotFoundError(f"reference={os.fspath(path)!r}: there is no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"reference={os.fspath(path)!r} is no CSV log: {error}") from None
    if found is None:
        raise ValueError(f"reference={os.fspath(path)!r} must have the columns step and lower_loss")
    if not found:
        raise ValueError(f"reference={os.fspath(path)!r} has no step with a lower_loss")
    steps = sorted(found)
    if not math.isfinite(found[steps[-1]]):
        first = next(step for step in reversed(steps) if math.isfinite(found[step]) or step == steps[0])
        raise ValueError(
            f"reference={os.fspath(path)!r}: its lower_loss is not finite at the end, after step {first}; that run "
            "diverged and is no reference: train on the lower loss again, with a smaller learning rate"
        )
    found = {step: loss for step, loss in found.items() if math.isfinite(loss)}
    steps = sorted(found)
    return steps, [found[step] for step in steps]


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
        if step <= last:  # begun again, after a resume or in a new run: what stood from there on does not count
            found = {k: v for k, v in found.items() if k < step}
        last = step
        if step >= 0:
            found[step] = loss
    return found


def chosen_method(
    method: Any, rule: Any, laws: Mapping[str, Any], others: Mapping[str, Any] | None, estimator: Any
) -> Method:
    """The method: as given, or of a rule, its numbers and an estimator. Numbers that nothing asks for are refused."""
    given = {name: law for name, law in laws.items() if law is not None}
    if method is not None:
        clash = {"rule": rule, "others": others, "estimator": estimator} | given
        for name, value in clash.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} and method={method!r}: change the method, method.replace({name}=…)")
        return training_method(method)
    if rule is None and "barrier" not in given:
        raise ValueError(f"nothing says how to choose the multiplier: {_CHOICES}")
    if isinstance(rule, str):
        one_of("rule", rule, tuple(rules.RULES))
    chosen = rules.RULES[rule or "sdbgd"] if rule is None or isinstance(rule, str) else rule
    kind = named(estimator or "minibatch")
    label = getattr(chosen, "__name__", type(chosen).__name__)
    asked = {*methods.asked(chosen), *getattr(kind, "needs", ())}
    if others is not None and not isinstance(others, Mapping):
        raise TypeError(f"others={others!r} must be a mapping of names to numbers or functions of the step")
    refuse_unasked(given | dict(others or {}), label, asked, kind)
    filled = {name: law for name, law in _DEFAULTS.items() if name in asked and name not in given}
    return training_method(Method(label, chosen, Schedule(**filled | given, others=dict(others or {})), kind))


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
    row = methods.get(method)
    _followed(row.estimator, f"method={row.name!r} has the estimator")
    if row.remembers:
        raise ValueError(
            f"the rule of {row.name!r} has a memory, which tiebreak.minimize keeps; an optimizer takes rules without "
            "one: a function of fg, gg and what it needs by name"
        )
    return row


def _followed(estimator: Estimator, where: str) -> Estimator:
    """Return the estimator if a step can follow it; `where` says whose it is."""
    if hasattr(estimator, "asks") or estimator.evaluations != 1:
        raise ValueError(
            f"{where} {estimator!r}, which chooses its batches or evaluates them at two points; an optimizer takes "
            "Minibatch() or Average(…). tiebreak.minimize takes every method"
        )
    return estimator


def refuse_unasked(given: Mapping[str, Any], label: str, asked: Any, kind: Estimator) -> None:
    """Raise where a number is given that neither the rule nor the estimator asks for."""
    for name, value in given.items():
        if name not in asked:
            raise ValueError(
                f"{name}={value!r} has no effect: neither the rule {label!r} nor {type(kind).__name__} asks for it"
            )
