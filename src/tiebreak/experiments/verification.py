"""The theorems against simulation, on the paper's problem and on random ones whose constants are known.

``verify(Verification(quick=True)).passed`` is the question in one line. ``tiebreak verify`` asks it, and saves and
draws the answer.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiebreak import methods, theory
from tiebreak.checks import whole
from tiebreak.experiments import evidence
from tiebreak.experiments.blocks import Block, Store
from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.engines import Engine
from tiebreak.experiments.evidence import Case, Hear
from tiebreak.experiments.outcome import origin
from tiebreak.experiments.own import sources
from tiebreak.experiments.planning import constants_from
from tiebreak.experiments.running import problem_of
from tiebreak.experiments.sweeps import sweep
from tiebreak.experiments.tables import Table, joined
from tiebreak.experiments.tasks import Reference, Task, found, reference
from tiebreak.problems import Problem, named, paper, random_problem, worst_case
from tiebreak.schedules import anytime
from tiebreak.theory.proved import reduces


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
_NOISES = ("additive", "multiplicative")
#: Schedules on the paper's problem: the paper's own, and plans by their options.
_PAPER: Mapping[str, Any] = {
    "SDBGD, paper's row": None,
    "SDBGD, planned": {"kind": "anytime"},
    "Penalty, planned": {"method": "penalty"},
    "Penalty, anytime": {"method": "penalty", "kind": "anytime"},
    "Penalty, held": {"method": "lazy_penalty"},
}
#: Near the worst case, planned for an accuracy: method and ℓ.
_WORST = {
    "penalty": None,
    "spider_penalty": 1.0,
    "storm_penalty": 1.0,
    "spider_sdbgd": 0.1,
    "storm_sdbgd": 0.1,
}
_STEP = 1e-4  # seconds, every one of them measured


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
    problem : str, optional
        One of the test bed's, by name, or "file.py:name", to be checked alone; then `method` and `steps` are needed,
        and:
    method : str, optional
        A method with a proved bound, by name or as "file.py:name", with its own schedule; or "plan NAME" for its plan.
    steps : int, optional
    constants : str, optional
        As :func:`tiebreak.experiments.planning.constants_from` reads them, in place of the problem's own.
    noise_smoothness : float or pair, optional
        ℓ, or (ℓ_f, ℓ_g), which bounds of variance reduction need.

    Problems and methods that are objects go to :func:`verify_case`.

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
    problem: str | None = None
    method: str | None = None
    steps: int | None = None
    constants: str | None = None
    noise_smoothness: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        checked = Experiment(runs=self.runs, seed=self.seed)
        if checked.runs < 4:
            raise ValueError(
                f"runs={self.runs!r} must be a whole number ≥ 4: a mean needs a standard error"
            )
        object.__setattr__(self, "runs", checked.runs)
        object.__setattr__(self, "seed", checked.seed)
        own = {"problem": self.problem, "method": self.method, "steps": self.steps}
        if any(
            value is not None
            for value in (*own.values(), self.constants, self.noise_smoothness)
        ):
            if any(value is None for value in own.values()):
                given = ", ".join(f"{name}={value!r}" for name, value in own.items())
                raise ValueError(
                    f"{given}: give all three to verify a problem of your own choice, or none"
                )
            object.__setattr__(self, "steps", whole("steps", self.steps))
            case_of(self._spec())  # which checks every name

    @cached_property
    def files(self) -> Mapping[str, Reference]:
        """Problem and method that are not known by name, with the texts of their files as they were at first."""
        given = {name: getattr(self, name) for name in ("problem", "method")}
        return {
            text: reference(text, name)
            for name, text in given.items()
            if text is not None and ":" in text
        }

    def _spec(self) -> dict[str, Any]:
        return self._own() | ({"files": self.files} if self.files else {})

    def _own(self) -> dict[str, Any]:
        names = ("problem", "method", "steps", "constants", "noise_smoothness")
        return {name: getattr(self, name) for name in names}

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
        own = {name: value for name, value in self._own().items() if value is not None}
        texts = {
            n: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for n, value in own.items()
        }
        words = "".join(
            f" --{name.replace('_', '-')} {text!r}" for name, text in texts.items()
        )
        return (
            f"tiebreak verify --runs {self.runs} --seed {self.seed}"
            + " --quick" * self.quick
            + words
        )


def cases(verification: Verification) -> list[dict[str, Any]]:
    """What is checked, as plain data: schedules on the paper's problem, plans on random ones and near the worst case,
    for the bounds; the corollary's anytime laws for several a, for the rates. :func:`case_of` makes a case of it.
    """
    if verification.problem is not None:
        return [verification._spec()]
    sizes = verification.sizes
    paper_s: list[dict[str, Any]] = [
        {"label": label, "steps": sizes.steps} for label in _PAPER
    ]
    family = product(_NOISES, sizes.dimensions, range(sizes.seeds))
    drawn = [
        {"noise": n, "dimension": d, "seed": s, "steps": sizes.family_steps}
        for n, d, s in family
    ]
    hard = [{"worst": name, "steps": sizes.family_steps} for name in _WORST]
    return [*paper_s, *hard, *drawn, *({"a": a, "steps": sizes.rate_steps} for a in _A)]


def case_of(spec: Mapping[str, Any]) -> Case:
    """The case that one of :func:`cases` stands for."""
    steps = spec["steps"]
    if "problem" in spec:
        return _chosen(spec)
    if "worst" in spec:
        return _hard(spec["worst"], steps)
    if "noise" in spec:
        drawn = random_problem(spec["dimension"], spec["seed"], spec["noise"])
        assert drawn.constants is not None
        method = theory.plan(drawn.constants, budget=_BUDGET, kind="anytime").method
        return Case(spec["noise"], drawn, "SDBGD, planned", method, steps)
    problem = paper()
    assert problem.constants is not None
    if "a" in spec:
        law = anytime(
            spec["a"], step_size=problem.constants.largest_step_size, barrier=0.9
        )
        return Case(
            "paper",
            problem,
            f"a = {spec['a']:g}",
            methods.sdbgd.replace(schedule=law),
            steps,
        )
    label = spec["label"]
    if _PAPER[label] is None:
        return Case("paper", problem, label, methods.sdbgd, steps)
    planned = theory.plan(problem.constants, budget=_BUDGET, **_PAPER[label])
    if "method" in _PAPER[label]:  # these bounds are proved for the planned steps
        steps = min(steps, planned.steps)
    return Case("paper", problem, label, planned.method, steps)


def _hard(method: str, steps: int) -> Case:
    """Near the worst case: the slope is such that as many steps just use up Δ_g."""
    known = worst_case(0.1).constants
    ell = _WORST[method]
    assert known is not None
    chosen = theory.plan(known, budget=40 * steps, method=method, noise_smoothness=ell)
    p = chosen.schedule.at(0)
    made = min(steps, chosen.steps)
    slope = min(0.9, math.sqrt(known.delta_g / (p.step_size * p.barrier * made)))
    problem = worst_case(slope, noise_smoothness=1.0 if ell is None else ell)
    return Case(
        "worst case",
        problem,
        f"{chosen.method.name}, planned",
        chosen.method,
        made,
        ell,
    )


def _chosen(spec: Mapping[str, Any]) -> Case:
    """The user's own: a problem of the test bed or a file's, a method or its plan, for so many steps."""
    name = str(spec["method"])
    ell = spec["noise_smoothness"]
    files = spec.get("files", {})
    where = files.get(spec["problem"])
    problem = named(spec["problem"]) if where is None else problem_of(where, {})
    if not isinstance(problem, Problem):
        raise ValueError(
            f"problem={spec['problem']!r} must be a Problem, or a function that gives one, not {problem!r}"
        )
    if spec["constants"] is not None:
        problem = replace(problem, constants=constants_from(spec["constants"]))
    if problem.constants is None:
        raise ValueError(
            f"problem={spec['problem']!r} has no constants, and a bound needs them: give `constants`, on the command "
            "line --constants; `tiebreak plan --problem … --estimate` estimates them"
        )
    if name in files:
        given = found(files[name])
        method = methods.get(
            given(problem.constants, _BUDGET) if callable(given) else given
        )
    elif name.startswith("plan "):
        method = theory.plan(
            problem.constants,
            budget=_BUDGET,
            method=name[5:].strip(),
            noise_smoothness=ell,
        ).method
    else:
        method = methods.get(name)
    source = "planned" if name.startswith("plan ") else "own schedule"
    case = Case("own", problem, f"{method.name}, {source}", method, spec["steps"], ell)
    theory.proved(
        method, case.constants, case.steps, ell
    )  # or there is nothing to check
    return case


def verify_case(
    problem: Problem,
    method: Any,
    steps: int,
    *,
    constants: theory.Constants | None = None,
    noise_smoothness: Any = None,
    runs: int = 32,
    seed: int = 0,
) -> Table:
    """What is proved of a method against simulation, for a problem, a schedule and constants of one's own.

    Returns the table of :func:`tiebreak.experiments.evidence.theorem`: means over runs beside bounds, with verdicts.

    Examples
    --------
    >>> found = verify_case(paper(), methods.penalty, 200, runs=8)
    >>> sorted(set(found["verdict"].tolist()))
    ['PASS']
    """
    known = problem if constants is None else replace(problem, constants=constants)
    if known.constants is None:
        raise ValueError(
            "constants=None: the problem does not know its constants, and a bound needs them"
        )
    chosen = methods.get(method)
    checked = Verification(runs=runs, seed=seed)
    case = Case(
        "own", known, chosen.name, chosen, whole("steps", steps), noise_smoothness
    )
    result = evidence.simulate(case, checked.runs, checked.seed, record=1)
    return evidence.theorem(case, result, checked.runs, checked.seed)


def check(
    hear: Hear, *, spec: Mapping[str, Any], runs: int, seed: int, draws: int
) -> Block:
    """A block of the verification: the bounds of a case, or its rates."""
    case = case_of(spec)
    tables: dict[str, Table] = {}
    if "a" in spec:
        result = evidence.simulate(case, runs, seed, hear, record=1)
        curve, slopes = evidence.rates(case, result)
        promised = theory.exponents(spec["a"])
        tables["rates"] = {"a": np.full(len(curve["K"]), spec["a"])} | curve
        columns = {
            name: np.array([slope[name] for slope in slopes]) for name in slopes[0]
        }
        names = columns["residual"].tolist()
        columns |= {"corollary": np.array([getattr(promised, name) for name in names])}
        columns |= {
            "log": np.array([getattr(promised, f"{name}_log") for name in names])
        }
        tables["slopes"] = {"a": np.full(len(names), spec["a"])} | columns
    else:
        result = evidence.simulate(case, runs, seed, hear, record=1, keep_iterates=True)
        tables["bounds"] = evidence.theorem(case, result, runs, seed)
        if case.method.rule is methods.sdbgd.rule and not reduces(
            case.method
        ):  # the lemma, for mini-batches
            tables["deviations"] = evidence.deviations(case, result, seed, draws)
    return Block(tables, _described(case))


@dataclass(frozen=True)
class Findings:
    """What came of it.

    Attributes
    ----------
    verification : Verification
    bounds : dict of arrays
        Theorem 1 and our own, see :func:`tiebreak.experiments.evidence.theorem`.
    deviations : dict of arrays
        The stability lemma, see :func:`tiebreak.experiments.evidence.deviations`.
    rates, slopes : dict of arrays
        Corollary 1: residuals against K for several a, and how fast they fall.
    seconds : float
        What it took.
    origin : dict
        Date, versions, platform, and every schedule and constant in use.

    Examples
    --------
    >>> findings = verify(Verification(problem="paper", method="penalty", steps=50, runs=4))
    >>> findings.passed, sorted(set(findings.bounds["verdict"].tolist()))
    (True, ['PASS'])
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
        words = np.concatenate(
            [table["verdict"] for table in (self.bounds, self.deviations) if table]
        )
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
            "sources": sources(v.files.values()),
            "seconds": self.seconds,
            **self.origin,
        }


def verify(
    verification: Verification | None = None,
    hear: Callable[[str, float], Any] | None = None,
    *,
    engine: Engine = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> Findings:
    """Check every bound and measure every rate. Ctrl-C is passed on.

    Parameters
    ----------
    verification : Verification, optional
    hear : callable, optional
        Told what is being done, and which share of everything is.
    engine, store :
        Where it is done and where finished blocks are kept, as :func:`tiebreak.experiments.sweep` takes them.

    Examples
    --------
    >>> findings = verify(Verification(problem="paper", method="sdbgd", steps=50, runs=4))
    >>> findings.passed
    True
    """
    v = verification or Verification()
    began = time.perf_counter()
    source = origin(("sdbgd", "penalty"))
    function = reference(f"{__name__}:check")
    common = {"runs": v.runs, "seed": v.seed, "draws": v.sizes.draws}
    tasks = [
        Task(_name(spec), function, {"spec": spec} | common, _STEP * spec["steps"])
        for spec in cases(v)
    ]
    swept = sweep(tasks, engine=engine, store=store, hear=hear)
    if swept.interrupted:
        raise KeyboardInterrupt
    blocks = swept.blocks.values()
    source["cases"] = [dict(block.facts) for block in blocks]
    names = ("bounds", "deviations", "rates", "slopes")
    found = {
        name: [b.tables[name] for b in blocks if name in b.tables] for name in names
    }
    tables = {name: joined(each) if each else {} for name, each in found.items()}
    return Findings(
        verification=v,
        **tables,
        seconds=round(time.perf_counter() - began, 1),
        origin=source,
    )


def _name(spec: Mapping[str, Any]) -> str:
    if "problem" in spec:
        return f"{spec['method']} on {spec['problem']}"
    if "worst" in spec:
        return f"Near the worst case, {spec['worst']}"
    if "noise" in spec:
        return f"Random problem {spec['seed']}, {spec['dimension']} dimensions, {spec['noise']} noise"
    return f"Rate, a = {spec['a']:g}" if "a" in spec else str(spec["label"])


def _described(case: Case) -> dict[str, Any]:
    names = {
        "problem": case.problem.name,
        "schedule": case.label,
        "method": case.method.name,
    }
    return names | {
        "laws": str(case.method.schedule),
        "steps": case.steps,
        "constants": asdict(case.constants),
    }
