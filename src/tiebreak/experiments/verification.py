"""The theorems against simulation, on the paper's problem and on random ones whose constants are known.

``verify(Verification(quick=True)).passed`` is the question in one line. ``tiebreak verify`` asks it, and saves and
draws the answer.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiebreak import methods, theory
from tiebreak.experiments import evidence
from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.evidence import Case, Hear
from tiebreak.experiments.outcome import origin
from tiebreak.experiments.tables import Table, joined
from tiebreak.problems import paper, random_problem
from tiebreak.schedules import anytime

__all__ = ["Findings", "Verification", "cases", "rate_cases", "verify"]


class Sizes(NamedTuple):
    """How much of everything."""

    steps: int
    rate_steps: int
    family_steps: int
    dimensions: tuple[int, ...]
    seeds: int
    draws: int


_FULL = Sizes(10**5, 2 * 10**4, 10**4, (2, 10, 50), 3, 4000)
_QUICK = Sizes(10**4, 5000, 1000, (2, 10), 2, 1000)
_BUDGET = 10**8  # what the plans are made for
_A = (0.1, 0.2, 0.25, 0.3)


@dataclass(frozen=True)
class Verification:
    """How to verify.

    Parameters
    ----------
    runs : int
        Independent runs of every case, at least 4.
    seed : int
        At least 0.
    quick : bool
        Fewer steps and problems: seconds instead of minutes.

    Examples
    --------
    >>> Verification(runs=2)
    Traceback (most recent call last):
        ...
    ValueError: runs=2 must be a whole number ≥ 4: a mean needs a standard error
    """

    runs: int = 32
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        checked = Experiment(runs=self.runs, seed=self.seed)
        if checked.runs < 4:
            raise ValueError(f"runs={self.runs!r} must be a whole number ≥ 4: a mean needs a standard error")
        object.__setattr__(self, "runs", checked.runs)
        object.__setattr__(self, "seed", checked.seed)

    @property
    def sizes(self) -> Sizes:
        """Steps, problems and draws."""
        return _QUICK if self.quick else _FULL

    @property
    def command(self) -> str:
        """The command line that repeats this.

        >>> Verification(quick=True).command
        'tiebreak verify --runs 32 --seed 0 --quick'
        """
        return f"tiebreak verify --runs {self.runs} --seed {self.seed}" + " --quick" * self.quick


def cases(verification: Verification, hear: Hear = lambda share: None) -> list[Case]:
    """Where the bounds are checked: three schedules on the paper's problem, plans on random problems."""
    sizes, problem = verification.sizes, paper()
    assert problem.constants is not None
    planned = theory.plan(problem.constants, budget=_BUDGET, kind="anytime")
    penalty = theory.plan(problem.constants, budget=_BUDGET, method="penalty")
    found = [
        Case("paper", problem, "SDBGD, paper's row", methods.sdbgd, sizes.steps),
        Case("paper", problem, "SDBGD, planned", planned.method, sizes.steps),
        Case("paper", problem, "Penalty, planned", penalty.method, min(sizes.steps, penalty.steps)),
    ]
    family = list(product(("additive", "multiplicative"), sizes.dimensions, range(sizes.seeds)))
    for i, (noise, dimension, seed) in enumerate(family):
        hear(i / len(family))
        drawn = random_problem(dimension, seed, noise)
        assert drawn.constants is not None
        method = theory.plan(drawn.constants, budget=_BUDGET, kind="anytime").method
        found.append(Case(noise, drawn, "SDBGD, planned", method, sizes.family_steps))
    hear(1.0)
    return found


def rate_cases(verification: Verification) -> dict[float, Case]:
    """Where rates are measured: the paper's problem, the corollary's anytime laws for several a, legal constants."""
    problem = paper()
    assert problem.constants is not None
    largest = problem.constants.largest_step_size
    laws = {a: anytime(a, step_size=largest, barrier=0.9) for a in _A}
    return {
        a: Case("paper", problem, f"a = {a:g}", methods.sdbgd.replace(schedule=law), verification.sizes.rate_steps)
        for a, law in laws.items()
    }


@dataclass(frozen=True)
class Findings:
    """What came of it.

    Attributes
    ----------
    verification : Verification
    bounds : dict of arrays
        Theorem 1, see :func:`tiebreak.experiments.evidence.theorem`.
    deviations : dict of arrays
        The stability lemma, see :func:`tiebreak.experiments.evidence.deviations`.
    rates, slopes : dict of arrays
        Corollary 1: residuals against K for several a, and how fast they fall.
    seconds : float
        What it took.
    origin : dict
        Date, versions, platform, and every schedule and constant in use.
    """

    verification: Verification
    bounds: Table
    deviations: Table
    rates: Table
    slopes: Table
    seconds: float
    origin: Mapping[str, Any]

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many comparisons passed, failed and were left open."""
        words = np.concatenate([self.bounds["verdict"], self.deviations["verdict"]])
        return {word: int((words == word).sum()) for word in ("PASS", "FAIL", "open")}

    @property
    def passed(self) -> bool:
        """Whether no bound was violated."""
        return self.verdicts["FAIL"] == 0

    def configuration(self) -> dict[str, Any]:
        """Everything but the tables, for a JSON file."""
        v = self.verification
        return {
            "verification": asdict(v) | {"sizes": v.sizes._asdict()},
            "command": v.command,
            "passed": self.passed,
            "verdicts": dict(self.verdicts),
            "seconds": self.seconds,
            **self.origin,
        }


def verify(verification: Verification | None = None, hear: Callable[[str, float], Any] | None = None) -> Findings:
    """Check every bound and measure every rate.

    Parameters
    ----------
    verification : Verification, optional
    hear : callable, optional
        Told what is being done, and which share of it is.
    """
    v, began = verification or Verification(), time.perf_counter()
    tell = hear or (lambda what, share: None)
    source = origin(("sdbgd", "penalty"))
    found, rated = cases(v, lambda share: tell("Plans", share)), rate_cases(v)
    source["cases"] = [_described(case) for case in (*found, *rated.values())]
    bounds, deviations, curves, slopes = [], [], [], []
    stages = [_stage(case) for case in found]
    for i, (case, stage) in enumerate(zip(found, stages, strict=True)):
        part = _part(tell, stage, stages[:i].count(stage), stages.count(stage))
        result = evidence.simulate(case, v.runs, v.seed, part, record=1, keep_iterates=True)
        bounds.append(evidence.theorem(case, result, v.runs, v.seed))
        if case.method.rule is methods.sdbgd.rule:  # the lemma is about this rule
            deviations.append(evidence.deviations(case, result, v.seed, v.sizes.draws))
        del result  # hundreds of megabytes, while the next is made
    for i, (a, case) in enumerate(rated.items()):
        result = evidence.simulate(case, v.runs, v.seed, _part(tell, "Rates", i, len(rated)), record=1)
        curve, each = evidence.rates(case, result)
        curves.append({"a": np.full(len(curve["K"]), a)} | curve)
        promised = theory.exponents(a)
        for slope in each:
            name = slope["residual"]
            corollary = {"corollary": getattr(promised, name), "log": getattr(promised, f"{name}_log")}
            slopes.append({"a": a} | slope | corollary)
    return Findings(
        verification=v,
        bounds=joined(bounds),
        deviations=joined(deviations),
        rates=joined(curves),
        slopes={name: np.array([slope[name] for slope in slopes]) for name in slopes[0]},
        seconds=round(time.perf_counter() - began, 1),
        origin=source,
    )


def _described(case: Case) -> dict[str, Any]:
    names = {"problem": case.problem.name, "schedule": case.label, "method": case.method.name}
    return names | {"laws": str(case.method.schedule), "steps": case.steps, "constants": asdict(case.constants)}


def _stage(case: Case) -> str:
    return case.label if case.group == "paper" else f"Random problems, {case.group} noise"


def _part(tell: Callable[[str, float], Any], stage: str, place: int, size: int) -> Callable[[float], Any]:
    """Tell of one part of a stage as a share of all of it."""
    return lambda share: tell(stage, (place + share) / size)
