"""Every rule on every setting of some groups, before and after `finish`: records for the tables."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple

import numpy as np

from benchmarks.tolerance import landed, study, tune
from tiebreak.tolerance import DEFAULT

#: Fixed weights whose runs are shown.
WEIGHTS = (10.0, 32.0, 178.0, 1000.0)
#: What is changed to leave a part of the rule out.
ABLATIONS = {
    "without the look-ahead": {"rise_weight": 0.0},
    "without the margin for swings": {"mean_rise_weight": 0.0},
    "without the proportional part": {"proportional_gain": 0.0},
    "w₀ grows while the excess falls": {"held_share": 0.0},
    "∇f is not cut": {"max_upper_gradient_ratio": 1e9},
    "no return to the twin": {"rescue_steps": 1e9},
    "starts at 3 inside": {"initial_ratio": 3.0},
    "starts at 300 inside": {"initial_ratio": 300.0},
    "starts outside as inside": {"initial_ratio_outside": DEFAULT.initial_ratio},
    "aims at 0.95": {"target_excess": 0.95},
    "w at most 100": {"max_ratio": 100.0},
    "integral part half as fast": {"integral_steps": 2 * DEFAULT.integral_steps},
}


class Row(NamedTuple):
    """A rule with its constants and a kind of reference, as one row of the tables."""

    name: str
    rule: str
    constants: tuple
    kind: str


def core_rows():
    """Ours, the landed rule and the peers."""
    ours = tuple(DEFAULT)
    auto = landed.rule.START._replace(**landed.rule.AUTO)
    rows = [
        Row("ours", "ours", ours, "twin"),
        Row("ours, tolerance as a share", "ours, share", ours, "twin"),
        Row("ours", "ours", ours, "start"),
        Row("ours", "ours, number", ours, "number"),
        Row("ours, number of another run", "ours, number", ours, "other"),
        Row("landed", "landed", tuple(landed.rule.MOVING), "twin"),
        Row("landed", "landed", tuple(landed.rule.START), "start"),
        Row('landed, headroom="auto"', "landed", tuple(auto), "start"),
        Row("landed", "landed, number", tuple(landed.rule.NUMBER), "number"),
    ]
    for rule, by_kind in tune.chosen().items():
        rows += [
            Row(rule, rule, tuple(constants), kind)
            for kind, constants in by_kind.items()
        ]
    return rows


def headroom_rows():
    """The rules whose reference is the start, for the data sets of the headroom study."""
    return [row for row in core_rows() if row.kind == "start"]


def ablation_rows():
    """Ours with one part left out at a time."""
    return [
        Row(
            name,
            "ours, number" if kind == "number" else "ours",
            tuple(DEFAULT._replace(**changes)),
            kind,
        )
        for name, changes in ABLATIONS.items()
        for kind in ("twin", "start", "number")
    ]


class Judged:
    """A group with what every rule is given, and its record so far."""

    def __init__(self, group, seeds, say, weights):
        self.bench = study.Bench(group, list(seeds), say)
        group = self.bench.group
        self.weights = weights
        self.record = group._asdict() | {
            "settings": [list(setting) for setting in group.settings],
            "seeds": list(seeds),
            "rates": [
                _short(self.bench.rates[setting[:2]]) for setting in group.settings
            ],
            "rows": [],
        }

    def add(self, rows):
        """Run the rows, finish them, and append them to the record."""
        bench = self.bench
        jobs = [
            (row, i)
            for row in rows
            for i in range(len(bench.group.settings))
            if self._counts(row, i)
        ]
        outcomes = {}
        for carried in (False, True):
            part = [job for job in jobs if _returns_to_twin(job[0]) == carried]
            runs = [bench.run(i, row.rule, row.constants, row.kind) for row, i in part]
            outcomes |= dict(
                zip(part, bench.train(runs, carried) if runs else [], strict=True)
            )
        ordered = [(job, outcomes[job]) for job in jobs]
        self._append(rows, ordered, way_back=True)

    def add_weights(self):
        """The fixed weights, which the sweep has trained already."""
        indices = [
            int(np.argmin(abs(study.WEIGHTS - weight))) for weight in self.weights
        ]
        rows = [
            Row(
                f"weight {study.WEIGHTS[k]:.3g}", "fixed", (study.WEIGHTS[k],), "number"
            )
            for k in indices
        ]
        ordered = [
            ((row, i), self.bench.sweep[i][k])
            for row, k in zip(rows, indices, strict=True)
            for i in range(len(self.bench.group.settings))
        ]
        self._append(rows, ordered, way_back=False)

    def _counts(self, row, i):
        """The start is a reference for trained models only; a share must not be more than the whole loss."""
        if row.kind == "start":
            return self.bench.group.settings[i].start != "scratch"
        if row.rule == "ours, share":
            return bool((self.bench.tolerances[i] <= self.bench.twins[i].lower).all())
        return True

    def _append(self, rows, ordered, way_back):
        bench = self.bench
        ends = bench.finished([(i, outcome, row.kind) for (row, i), outcome in ordered])
        by_row = {
            row: {"name": row.name, "kind": row.kind, "settings": [], "runs": []}
            for row in rows
        }
        outside = []
        for ((row, i), outcome), end in zip(ordered, ends, strict=True):
            found = bench.measures(i, outcome, row.kind, end)
            by_row[row]["settings"].append(i)
            by_row[row]["runs"].append(
                {name: [_short(x) for x in values] for name, values in found.items()}
            )
            if (
                way_back
                and row.name == "ours"
                and row.kind in ("twin", "number")
                and (found["excess"] > 1).any()
            ):
                outside.append((row, i, outcome, by_row[row]["runs"][-1]))
        for row, i, outcome, run in outside:
            run["ways back"] = {
                way: {
                    name: [_short(x) for x in values]
                    for name, values in measured.items()
                }
                for way, measured in bench.ways_back(i, outcome, row.kind).items()
            }
        self.record["rows"] += list(by_row.values())


def _returns_to_twin(row):
    """Whether the rule may set the model to its twin, so that a twin must be carried."""
    return row.kind == "twin" and row.rule in ("ours", "ours, share", "landed")


def _short(x):
    return float(f"{x:.3g}") if np.isfinite(x) else None


def run(parts, seeds, say=print, seconds=np.inf, keep=lambda records: None):
    """Records of all groups, by part; `parts` maps a part to its groups and a list of functions that give rows.

    Every group runs the first function of its part; then every group the second, as long as there is time.
    """
    began = time.perf_counter()
    judged, lock = {}, Lock()

    def guarded(step):
        def safe(job):
            if time.perf_counter() - began > seconds:
                say(f"{job[1].task}: no time left")
                return
            try:
                step(job)
            except Exception as problem:  # one group's failure, such as a full memory, must not lose the others
                say(f"{job[1].task}: {type(problem).__name__}: {str(problem)[:300]}")
            with lock:
                keep(
                    {
                        part: [judged[p, k].record for p, k in judged if p == part]
                        for part in parts
                    }
                )

        return safe

    jobs = [
        (part, group, k)
        for part, (groups, _) in parts.items()
        for k, group in enumerate(groups)
    ]

    def first(job):
        part, group, k = job
        found = Judged(group, seeds, say, WEIGHTS)
        found.add(parts[part][1][0]())
        if part != "headroom":
            found.add_weights()
        judged[part, k] = found
        say(f"{part}: {group.task} done")

    def later(job):
        part, group, k = job
        for rows in parts[part][1][1:]:
            if (part, k) in judged:
                judged[part, k].add(rows())
                say(f"{part}: {group.task}, ablations done")

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(guarded(first), jobs))
        list(pool.map(guarded(later), jobs))
    return {
        part: [judged[p, k].record for p, k in judged if p == part] for part in parts
    }
