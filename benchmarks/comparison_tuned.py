"""Constants tuned in hindsight, with the same effort for every method: the boxes, the trials, and who is taken.

Powers of t stay as in the library's table; all constants are free, and so is the share of calls that f gets. A point of
the unit cube has a coordinate for each constant in BOX, all on logarithmic scales. Every method is tried at the same
points, of which it looks at the coordinates that it has; then at the same random steps from the best of its own so far.
"""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiebreak.methods import METHODS, Method
from tiebreak.powers import Capped, Power
from tiebreak.studies import Comparison, compare
from tiebreak.studies.comparison.units import Units
from tiebreak.studies.engines import HERE
from tiebreak.studies.tables import select

#: Ranges, in units in which L_f = L_g = G_f = 1. `steps` is K/N^(1/3), of N calls; `share` is f's share of them.
#: `push` is the first step size of a barrier, and for a penalty of weight β that step size times 1 + β.
BOX = {
    "steps": (3.0, 15.0),
    "share": (0.003, 0.5),
    "push": (0.03, 3.0),
    "weight": (0.3, 100.0),  # of penalties; for barriers a tenth of it
    "regularizer": (1e-4, 1.0),
    "memory": (0.03, 3.0),  # momentum, period, rate, or for how long a batch is held
}
MEMORY = {
    "momentum": 1.0,
    "period": 10.0 / 3,
    "rate": 1.0,
    "upper_hold": 10.0 / 3,
}  # which of them, and times what
STEPS = ("period", "upper_hold")  # those that count steps
PENALTIES = (
    "penalty",
    "lazy_penalty",
    "spider_penalty",
    "storm_penalty",
    "pr_sdbpg",
    "vr_pr_sdbpg",
)  # whose weight grows
LATER = (
    (8, 0.1),
)  # rounds after the first: so many trials, steps of such length in the cube
FIRST, AGAIN = 20, 4  # trials of the first round; those that are looked at once more
RUNS, RUNS_AGAIN = 4, 8
SEEDS = {"judged": 0, "tried": 1, "again": 2}


def constants_of(name: str) -> tuple[str, ...]:
    """The coordinates that a method has."""
    schedule = METHODS[name].schedule
    return tuple(
        axis
        for axis in BOX
        if (axis != "regularizer" or schedule.regularizer is not None)
        and (axis != "memory" or _memory(name))
    )


def _memory(name: str) -> str | None:
    schedule = METHODS[name].schedule
    return next(
        (
            m
            for m in MEMORY
            if m in schedule.others or getattr(schedule, m, None) is not None
        ),
        None,
    )


@dataclass(frozen=True)
class Candidate:
    """A method at a point of the cube: a function of constants and budget, as a comparison takes it."""

    name: str  # of the method
    point: tuple[float, ...]

    @property
    def __name__(self) -> str:
        return f"{self.name} at {' '.join(map(repr, self.point))}"

    def setting(self) -> dict[str, float]:
        """The constants, by coordinate."""
        has = constants_of(self.name)
        return {
            axis: low * (high / low) ** at
            for (axis, (low, high)), at in zip(BOX.items(), self.point, strict=True)
            if axis in has
        }

    def edges(self) -> list[str]:
        """The coordinates in which the point is at an edge of the cube."""
        has = constants_of(self.name)
        return [
            axis
            for axis, at in zip(BOX, self.point, strict=True)
            if axis in has and not 0.01 < at < 0.99
        ]

    def __call__(self, constants: Any, budget: int) -> Method:
        row, s = METHODS[self.name], self.setting()
        laws: dict[str, Any] = {}
        grows = self.name in PENALTIES
        weight = s["weight"] if grows else s["weight"] / 10
        laws["barrier"] = _with(row.schedule.barrier, weight)
        laws["step_size"] = _with(
            row.schedule.step_size, s["push"] / (1 + weight) if grows else s["push"]
        )
        if "regularizer" in s:
            laws["regularizer"] = _with(row.schedule.regularizer, s["regularizer"])
            if row.schedule.penalty is not None:  # at the paper's values μ is 1/γ
                laws["penalty"] = _with(row.schedule.penalty, 1 / s["regularizer"])
        memory = _memory(self.name)
        if memory is not None:
            old = (
                row.schedule.others[memory]
                if memory in row.schedule.others
                else getattr(row.schedule, memory)
            )
            law = _with(old, MEMORY[memory] * s["memory"])
            law = law if memory in STEPS else Capped(law, 1)
            laws |= (
                {"others": {memory: law}}
                if memory in row.schedule.others
                else {memory: law}
            )
        made = row.replace(**laws)
        return Units.of(SimpleNamespace(constants=constants)).translated(  # type: ignore[arg-type]  # all it looks at
            made.replace(**_batches(made, s, budget))
        )


def _with(law: Any, constant: float) -> Power:
    return replace(law, constant=constant)


def _batches(method: Method, s: dict[str, float], budget: int) -> dict[str, Any]:
    """Batches with the powers of the table that spend the budget in K steps, f's share as said; about, for floors."""
    t = np.arange(1, max(2, round(s["steps"] * budget ** (1 / 3))) + 1, dtype=float)
    schedule, laws = method.schedule, {}
    for level, share in (("upper", s["share"]), ("lower", 1 - s["share"])):
        names = [
            n
            for n in (f"{level}_batch", f"{level}_refresh")
            if getattr(schedule, n) is not None
        ]
        shapes = [t ** getattr(schedule, n).exponent for n in names]
        if (
            len(names) == 2
        ):  # SPIDER: small batches at two points, and large ones now and then
            period = _whole(schedule.period, t)
            each = shapes[0] * 2 * (1 - 1 / period) + shapes[1] / period
        else:
            hold = getattr(schedule, f"{level}_hold")
            each = (
                shapes[0]
                * method.estimator.evaluations
                / (1.0 if hold is None else _whole(hold, t))
            )
        factor = share * budget / float(each.sum())
        laws |= {n: Power(factor, getattr(schedule, n).exponent) for n in names}
    return laws


def _whole(law: Power, t: Any) -> Any:
    """A number of steps, at least 1; about, for floors."""
    return np.maximum(1.0, law.constant * t**law.exponent)


def first_points(count: int) -> list[tuple[float, ...]]:
    """A Latin hypercube: in every coordinate one point in each of `count` equal parts."""
    columns = [
        np.random.default_rng([7, i]).permutation(count) for i in range(len(BOX))
    ]
    return [
        tuple(float(round((column[i] + 0.5) / count, 6)) for column in columns)
        for i in range(count)
    ]


def near(
    point: tuple[float, ...], count: int, length: float
) -> list[tuple[float, ...]]:
    """Random steps from a point, the same for all; what would leave the cube is put on its edge."""
    steps = (
        np.random.default_rng([8, round(1000 * length)]).standard_normal(
            (count, len(point))
        )
        * length
    )
    return [
        tuple(float(round(x, 6)) for x in np.clip(np.add(point, step), 0, 1))
        for step in steps
    ]


def scores(
    problem: str, candidates: list[Candidate], budget: int, runs: int, seed: int
) -> dict[Candidate, float]:
    """The mean residual of each at a budget; ∞ where a run failed."""
    unlike = list(dict.fromkeys(candidates))
    asked = Comparison([problem], unlike, [budget], runs=runs, seed=seed, trials=1)
    found = compare(asked, engine=HERE).runs
    return {
        c: float(np.mean(select(found, method=c.__name__)["residual"])) for c in unlike
    }


def tuned(
    problem: str, method: str, budget: int, first: int = FIRST, later: Any = LATER
) -> tuple[Candidate, float]:
    """The candidate that is taken, and its mean residual over the runs by which it was."""
    tried = scores(
        problem,
        [Candidate(method, p) for p in first_points(first)],
        budget,
        RUNS,
        SEEDS["tried"],
    )
    for count, length in later:
        best = min(tried, key=lambda c: tried[c])
        fresh = [
            c
            for p in near(best.point, count, length)
            if (c := Candidate(method, p)) not in tried
        ]
        tried |= scores(problem, fresh, budget, RUNS, SEEDS["tried"])
    short = sorted(tried, key=lambda c: tried[c])[:AGAIN]
    found = scores(problem, short, budget, RUNS_AGAIN, SEEDS["again"])
    best = min(found, key=lambda c: found[c])
    return best, found[best] if math.isfinite(found[best]) else math.inf
