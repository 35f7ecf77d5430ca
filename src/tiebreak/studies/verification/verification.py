"""The theorems against simulation as a study: cases with constants constants, and a task for each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiebreak import methods, theory
from tiebreak.checks import whole
from tiebreak.problems import Problem, named, paper, random_problem, worst_case
from tiebreak.provenance import stamp
from tiebreak.schedules import anytime
from tiebreak.studies.command_line import command_line
from tiebreak.studies.constants_text import constants_from
from tiebreak.studies.findings import Findings
from tiebreak.studies.method_names import describe
from tiebreak.studies.runs import problem_of
from tiebreak.studies.sweeps import Blocks, SweepResult
from tiebreak.studies.tables import Columns, Facts, joined, labelled
from tiebreak.studies.task import Block, Task
from tiebreak.studies.user_files import Source, checksums, copies, source_at
from tiebreak.studies.verification import evidence
from tiebreak.studies.verification.evidence import Case
from tiebreak.studies.verification.report import verification_findings
from tiebreak.theory.proved import reduces


class Sizes(NamedTuple):
    """Numbers of steps, problems and draws."""

    steps: int
    rate_steps: int
    family_steps: int
    dimensions: tuple[int, ...]
    seeds: int
    draws: int


_FULL = Sizes(10**5, 2 * 10**4, 10**4, (2, 10, 50), 3, 4000)
_QUICK = Sizes(10**4, 5000, 1000, (2, 10), 2, 1000)
_BUDGET = 10**8  # of the plans
_A = (0.1, 0.2, 0.25, 0.3)
_NOISES = ("additive", "multiplicative")
#: Schedules on the paper's problem: the paper's own, and plans by their options.
_PAPER: Facts = {
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
_STEP = 1e-4  # seconds, if every step is measured
_TABLES = ("bounds", "deviations", "rates", "slopes")


@dataclass(frozen=True)
class Verification:
    """The theorems against simulation.

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
        As :func:`tiebreak.studies.constants_text.constants_from` reads them, instead of the problem's own.
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
        object.__setattr__(self, "runs", _checked_runs(self.runs))
        object.__setattr__(self, "seed", whole("seed", self.seed, least=0))
        case = {name: getattr(self, name) for name in ("problem", "method", "steps")}
        options = (self.constants, self.noise_smoothness)
        if all(value is None for value in (*case.values(), *options)):
            return
        if any(value is None for value in case.values()):
            texts = ", ".join(f"{name}={value!r}" for name, value in case.items())
            raise ValueError(
                f"{texts}: give all three to verify a problem of your own choice, or none"
            )
        object.__setattr__(self, "steps", whole("steps", self.steps))
        case_of(self._spec())  # which checks every name

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """Problem and method that are not constants by name."""
        places = {"problem": self.problem, "method": self.method}
        return {
            place: source_at(place, name)
            for name, place in places.items()
            if place is not None and ":" in place
        }

    def _options(self) -> dict[str, Any]:
        names = ("problem", "method", "steps", "constants", "noise_smoothness")
        return {name: getattr(self, name) for name in names}

    def _spec(self) -> dict[str, Any]:
        return self._options() | {"sources": dict(self.sources)}

    @property
    def sizes(self) -> Sizes:
        """Numbers of steps, problems and draws."""
        return _QUICK if self.quick else _FULL

    @property
    def command(self) -> str:
        """The command line that repeats the verification.

        >>> Verification(quick=True).command
        'tiebreak verify --runs 32 --seed 0 --quick'
        """
        options = {"runs": self.runs, "seed": self.seed, "quick": self.quick}
        return command_line("verify", options | self._options())

    def tasks(self, blocks: Blocks) -> list[Task]:
        """A task for each case."""
        common = {"runs": self.runs, "seed": self.seed, "draws": self.sizes.draws}
        return [
            Task(_name(spec), check, {"spec": spec} | common, _STEP * spec["steps"])
            for spec in cases(self)
        ]

    def collect(self, result: SweepResult) -> Findings:
        """The findings; KeyboardInterrupt if the sweep was interrupted."""
        if result.interrupted:
            raise KeyboardInterrupt
        blocks = result.blocks.values()
        data = {}
        for name in _TABLES:
            parts = [block.tables[name] for block in blocks if name in block.tables]
            if parts:
                data[name] = joined(parts)
        sources = self.sources.values()
        record = {
            "verification": asdict(self) | {"sizes": self.sizes._asdict()},
            "command": self.command,
            "sources": checksums(sources),
            "seconds": round(result.seconds, 1),
            **stamp(),
            "methods": {name: describe(name) for name in ("sdbgd", "penalty")},
            "cases": [dict(block.facts) for block in blocks],
        }
        return verification_findings(self, record, data, copies(sources))


def _checked_runs(runs: Any) -> int:
    if whole("runs", runs) < 4:
        raise ValueError(
            f"runs={runs!r} must be a whole number ≥ 4: a mean needs a standard error"
        )
    return int(runs)


def cases(verification: Verification) -> list[dict[str, Any]]:
    """The cases as plain data: schedules on the paper's problem, plans on random ones and near the worst case, for the
    bounds; the corollary's anytime laws for several a, for the rates. :func:`case_of` makes a case of each.
    """
    if verification.problem is not None:
        return [verification._spec()]
    sizes = verification.sizes
    specs: list[dict[str, Any]] = [
        {"label": label, "steps": sizes.steps} for label in _PAPER
    ]
    specs += [{"worst": name, "steps": sizes.family_steps} for name in _WORST]
    for noise, dimension, seed in product(
        _NOISES, sizes.dimensions, range(sizes.seeds)
    ):
        specs.append(
            {
                "noise": noise,
                "dimension": dimension,
                "seed": seed,
                "steps": sizes.family_steps,
            }
        )
    return [*specs, *({"a": a, "steps": sizes.rate_steps} for a in _A)]


def _name(spec: Facts) -> str:
    if "problem" in spec:
        return f"{spec['method']} on {spec['problem']}"
    if "worst" in spec:
        return f"Near the worst case, {spec['worst']}"
    if "noise" in spec:
        return f"Random problem {spec['seed']}, {spec['dimension']} dimensions, {spec['noise']} noise"
    return f"Rate, a = {spec['a']:g}" if "a" in spec else str(spec["label"])


def case_of(spec: Facts) -> Case:
    """The case of one of :func:`cases`."""
    steps = spec["steps"]
    if "problem" in spec:
        return _chosen_case(spec)
    if "worst" in spec:
        return _hard_case(spec["worst"], steps)
    if "noise" in spec:
        drawn = random_problem(spec["dimension"], spec["seed"], spec["noise"])
        assert drawn.constants is not None
        plan = theory.plan(drawn.constants, budget=_BUDGET, kind="anytime")
        return Case(spec["noise"], drawn, "SDBGD, planned", plan.method, steps)
    problem = paper()
    assert problem.constants is not None
    if "a" in spec:
        step_size = problem.constants.largest_step_size
        law = anytime(spec["a"], step_size=step_size, barrier=0.9)
        method = methods.sdbgd.replace(schedule=law)
        return Case("paper", problem, f"a = {spec['a']:g}", method, steps)
    label = spec["label"]
    if _PAPER[label] is None:
        return Case("paper", problem, label, methods.sdbgd, steps)
    plan = theory.plan(problem.constants, budget=_BUDGET, **_PAPER[label])
    if "method" in _PAPER[label]:  # plan bounds are proved for the planned steps
        steps = min(steps, plan.steps)
    return Case("paper", problem, label, plan.method, steps)


def _hard_case(method: str, steps: int) -> Case:
    """Near the worst case: the slope is such that as many steps just use up Δ_g."""
    constants = worst_case(0.1).constants
    ell = _WORST[method]
    assert constants is not None
    plan = theory.plan(
        constants, budget=40 * steps, method=method, noise_smoothness=ell
    )
    p = plan.schedule.at(0)
    steps = min(steps, plan.steps)
    slope = min(0.9, math.sqrt(constants.delta_g / (p.step_size * p.barrier * steps)))
    problem = worst_case(slope, noise_smoothness=1.0 if ell is None else ell)
    label = f"{plan.method.name}, planned"
    return Case("worst case", problem, label, plan.method, steps, ell)


def _chosen_case(spec: Facts) -> Case:
    """The user's case: a problem of the test bed or of a file, a method or its plan, for so many steps."""
    problem = _chosen_problem(spec)
    constants = problem.constants
    assert constants is not None
    name = str(spec["method"])
    ell = spec["noise_smoothness"]
    kind = "own schedule"
    if name in spec["sources"]:
        value = spec["sources"][name].load()
        method = methods.get(value(constants, _BUDGET) if callable(value) else value)
    elif name.startswith("plan "):
        kind = "planned"
        base = name[5:].strip()
        plan = theory.plan(constants, budget=_BUDGET, method=base, noise_smoothness=ell)
        method = plan.method
    else:
        method = methods.get(name)
    label = f"{method.name}, {kind}"
    case = Case("own", problem, label, method, spec["steps"], ell)
    theory.proved(method, constants, case.steps, ell)  # raises if there is no bound
    return case


def _chosen_problem(spec: Facts) -> Problem:
    name = spec["problem"]
    source = spec["sources"].get(name)
    problem = named(name) if source is None else problem_of(source, {})
    if not isinstance(problem, Problem):
        raise ValueError(
            f"problem={name!r} must be a Problem, or a function that gives one, not {problem!r}"
        )
    if spec["constants"] is not None:
        problem = replace(problem, constants=constants_from(spec["constants"]))
    if problem.constants is None:
        raise ValueError(
            f"problem={name!r} has no constants, and a bound needs them: give `constants`, on the command "
            "line --constants; `tiebreak plan --problem … --estimate` estimates them"
        )
    return problem


def check(
    progress: Callable[[float], Any],
    *,
    spec: Facts,
    runs: int,
    seed: int,
    draws: int,
) -> Block:
    """A block of the verification: the bounds of a case, or its rates."""
    case = case_of(spec)
    tables: dict[str, Columns] = {}
    keep = "a" not in spec
    result = evidence.simulate(case, runs, seed, progress, record=1, keep_iterates=keep)
    if "a" in spec:
        promised = theory.exponents(spec["a"])
        curves, slopes = evidence.rates(case, result)
        names = slopes["residual"].tolist()
        slopes["corollary"] = np.array([getattr(promised, name) for name in names])
        slopes["log"] = np.array([getattr(promised, f"{name}_log") for name in names])
        tables["rates"] = labelled(curves, a=spec["a"])
        tables["slopes"] = labelled(slopes, a=spec["a"])
    else:
        tables["bounds"] = evidence.theorem(case, result)
        if case.method.rule is methods.sdbgd.rule and not reduces(case.method):
            # The lemma is about mini-batches.
            tables["deviations"] = evidence.deviations(case, result, seed, draws)
    facts = {
        "problem": case.problem.name,
        "schedule": case.label,
        "method": case.method.name,
        "laws": str(case.method.schedule),
        "steps": case.steps,
        "constants": asdict(case.constants),
    }
    return Block(tables, facts)


def verify_case(
    problem: Problem,
    method: Any,
    steps: int,
    *,
    constants: theory.Constants | None = None,
    noise_smoothness: Any = None,
    runs: int = 32,
    seed: int = 0,
) -> Columns:
    """The bounds of a method against simulation, for a problem, a schedule and constants of the user.

    Returns the table of :func:`tiebreak.studies.verification.evidence.theorem`: means over runs beside bounds, with
    verdicts.

    Examples
    --------
    >>> bounds = verify_case(paper(), methods.penalty, 200, runs=8)
    >>> sorted(set(bounds["verdict"].tolist()))
    ['PASS']
    """
    if constants is not None:
        problem = replace(problem, constants=constants)
    if problem.constants is None:
        raise ValueError(
            "constants=None: the problem does not know its constants, and a bound needs them"
        )
    method = methods.get(method)
    runs = _checked_runs(runs)
    seed = whole("seed", seed, least=0)
    case = Case(
        "own", problem, method.name, method, whole("steps", steps), noise_smoothness
    )
    result = evidence.simulate(case, runs, seed, record=1)
    return evidence.theorem(case, result)
