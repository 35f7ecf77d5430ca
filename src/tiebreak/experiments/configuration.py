"""What to run: a frozen configuration, checked when it is made and saved as it is."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiebreak import rules
from tiebreak.checks import nearest, whole
from tiebreak.methods import METHODS, NAMED
from tiebreak.solver.budget import first_cost, limit

_LARGEST = 1e100  # squares of such numbers, and sums of them, are numbers still


@dataclass(frozen=True)
class Experiment:
    """The paper's problem, some methods, and how long and how often to run them. The defaults are the paper's.

    Parameters
    ----------
    methods : sequence of str
        Names in :data:`tiebreak.methods.METHODS`. All of them get the same seed, hence common random numbers.
    runs : int
        Independent runs, at least 1.
    budget : int
        Calls of both levels together that each run may make.
    seed : int
        At least 0.
    start : pair of float
        x₀.
    noise : float or pair of float
        Standard deviation of both gradients' noise, per coordinate; or that of the upper and that of the lower.
    per_sample : bool
        Draw every sample instead of the batch mean's exact law: the same law, much more work.
    record : "log", "all" or int
        Which steps the curves keep: about 50 a decade, all, or every n-th.

    Examples
    --------
    >>> Experiment(methods=["VR-PR-SDBPG"], budget=1e6).methods
    ('vr_pr_sdbpg',)
    >>> Experiment(runs=0)
    Traceback (most recent call last):
        ...
    ValueError: runs=0 must be a whole number ≥ 1
    """

    methods: Sequence[str] = ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg")
    runs: int = 10
    budget: int = 10**8
    seed: int = 0
    start: Sequence[float] = (1.5, 1.5)
    noise: float | Sequence[float] = 0.5
    per_sample: bool = False
    record: str | int = "log"

    def __post_init__(self) -> None:
        checked = {
            "methods": _methods(self.methods),
            "runs": whole("runs", self.runs),
            "budget": limit("budget", self.budget),
            "seed": _seed(self.seed),
            "start": _start(self.start),
            "noise": _noise(self.noise),
            "record": _record(self.record),
        }
        if not isinstance(self.per_sample, bool):
            raise ValueError(f"per_sample={self.per_sample!r} must be True or False")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        least, dearest = max((first_cost(METHODS[name]), name) for name in self.methods)
        if self.budget < least:
            raise ValueError(
                f"budget={self.budget} must be at least {least}, the cost of the first step of {dearest}"
            )

    @property
    def noises(self) -> tuple[float, float]:
        """That of the upper and that of the lower gradient."""
        return self.noise if isinstance(self.noise, tuple) else (self.noise, self.noise)

    @property
    def command(self) -> str:
        """The command line that repeats this experiment.

        >>> Experiment(runs=3, per_sample=True).command[:60]
        'tiebreak reproduce --methods sdbgd,sdbpg,pr_sdbpg,vr_pr_sdbp'
        """
        options = {
            "methods": ",".join(self.methods),
            "runs": self.runs,
            "budget": self.budget,
            "seed": self.seed,
            "start": ",".join(map(repr, self.start)),
            "noise": ",".join(map(repr, self.noises))
            if isinstance(self.noise, tuple)
            else self.noise,
            "record": self.record,
        }
        flags = [f"--{name} {value}" for name, value in options.items()] + [
            "--per-sample"
        ] * self.per_sample
        return " ".join(["tiebreak reproduce", *flags])


def reconstructed(name: str) -> bool:
    """Whether the method's rule is our reconstruction: its authors' own is not available."""
    return NAMED[name].rule is rules.penalized


def label(name: str) -> str:
    """What tables and legends call a method; the dagger marks a reconstruction."""
    return NAMED[name].name + ("†" if reconstructed(name) else "")


def describe(name: str) -> dict[str, str]:
    """A method's name, rule, schedule and estimator, in words.

    >>> describe("penalty")["rule"]
    'λ = β: gradient descent on f + βg, the plain penalty baseline.'
    """
    method = NAMED[name]
    rule, estimator = (
        inspect.getdoc(part) or "" for part in (method.rule, type(method.estimator))
    )
    return {
        "name": method.name,
        "rule": rule.partition("\n")[0],
        "schedule": str(method.schedule),
        "estimator": f"{type(method.estimator).__name__}. {estimator.partition(chr(10))[0]}",
    }


def _methods(given: Any) -> tuple[str, ...]:
    legal = f"must be different names among {', '.join(METHODS)}"
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"methods={given!r} {legal}, at least one")
    found = [str(name).strip().lower().replace("-", "_") for name in names]
    for name, wanted in zip(names, found, strict=True):
        if wanted not in METHODS:
            elsewhere = wanted in NAMED or {*"+:"} & {*wanted}
            own = (
                ". Constants of your own, plans, files and `auto` go to `tiebreak sweep`"
                if elsewhere
                else ""
            )
            raise ValueError(
                f"methods: {name!r} is not a method; they {legal}{own or nearest(wanted, METHODS)}"
            )
    if not found or len(set(found)) < len(found):
        raise ValueError(f"methods={','.join(found)!r} {legal}, at least one")
    return tuple(found)


def _seed(given: Any) -> int:
    try:
        if isinstance(given, (bool, str)) or int(given) != given or given < 0:
            raise ValueError
        return int(given)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"seed={given!r} must be a whole number ≥ 0") from None


def _start(given: Any) -> tuple[float, float]:
    try:
        first, second = (_moderate(part) for part in given)
        return first, second
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"start={given!r} must be two numbers such as 1.5,1.5, each within ±{_LARGEST:g}"
        ) from None


def _noise(given: Any) -> float | tuple[float, float]:
    """One number, or two; a pair of equal ones is one."""
    try:
        found = [
            _moderate(part)
            for part in (given if isinstance(given, (list, tuple)) else [given])
        ]
        if len(found) not in (1, 2) or min(found) < 0:
            raise ValueError
        return found[0] if found[0] == found[-1] else (found[0], found[1])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"noise={given!r} must be a number from 0 to {_LARGEST:g}, or two: of f and of g"
        ) from None


def _moderate(given: Any) -> float:
    number = math.nan if isinstance(given, (bool, str)) else float(given)
    if not abs(number) <= _LARGEST:
        raise ValueError
    return number


def _record(given: Any) -> str | int:
    if given == "log":
        return "log"
    try:
        return whole("record", 1 if given == "all" else given)
    except ValueError:
        raise ValueError(
            f"record={given!r} must be 'log', 'all' or a whole number n ≥ 1 (every n-th step)"
        ) from None
