"""What a page is made of: a verdict, then sections of charts, landscapes, tables, notes, facts and commands.

Plain data: a module for each kind of result makes these, and :mod:`tiebreak.report.page` renders them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tiebreak
from tiebreak.experiments.charts import Chart, Numbers
from tiebreak.experiments.tables import Sheet

#: The same text as in README.md and CITATION.cff.
CITATION = f"""@software{{tiebreak,
  title   = {{tiebreak: minimise one objective among the minimisers of another, from stochastic gradients}},
  author  = {{{{The tiebreak developers}}}},
  version = {{{tiebreak.__version__}}},
  year    = {{2026}},
  license = {{BSD-3-Clause}}
}}

@misc{{cortild2026stochastic,
  title  = {{Stochastic Nonconvex Bilevel Optimization: Improved Rates Without Rare-Visit Assumption}},
  author = {{Cortild, Daniel and Staudigl, Mathias and Peypouquet, Juan and Cartis, Coralia}},
  year   = {{2026}}
}}"""
_LONGEST = 600  # letters of a value


@dataclass(frozen=True)
class Path:
    """The iterates of a run in the plane, with the steps and calls at each."""

    name: str
    look: int
    x: Numbers
    y: Numbers
    steps: Numbers
    calls: Numbers


@dataclass(frozen=True)
class Landscape:
    """Paths over the contours of a function of two variables; the page has a slider along the run.

    `places` are names, Plotly's symbol, and points; `views` are limits ((left, right), (bottom, top)) by name, the
    first of them shown first.
    """

    title: str
    about: str
    x: Numbers
    y: Numbers
    values: Any
    paths: Sequence[Path]
    places: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]
    views: Mapping[str, Any]


@dataclass(frozen=True)
class Notes:
    """Sentences, one below the other."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """Text to be copied."""

    title: str
    text: str


#: A :class:`~tiebreak.experiments.tables.Sheet` is a table that can be sorted.
Part: TypeAlias = Chart | Landscape | Sheet | Notes | Facts | Code


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Verdict:
    """The question, the answers, and whether the result is inside its promise; None if nothing was promised."""

    word: str
    good: bool | None
    question: str
    findings: Sequence[str]


@dataclass(frozen=True)
class Page:
    """All of a report."""

    title: str
    verdict: Verdict
    sections: Sequence[Section]

    def parts(self, kind: type) -> list[Any]:
        """All parts of one kind, in the order of the page."""
        return [
            part
            for section in self.sections
            for part in section.parts
            if isinstance(part, kind)
        ]


def origin(saved: Mapping[str, Any], omitted: tuple[str, ...] = ()) -> Section:
    """The last section of a page: how to repeat the result, its configuration, and how to cite."""
    parts: list[Part] = []
    if isinstance(saved.get("command"), str):
        parts.append(Code("The command that repeats it", saved["command"]))
    parts.append(
        Facts(
            flat(
                {
                    key: value
                    for key, value in saved.items()
                    if key not in ("command", *omitted)
                }
            )
        )
    )
    parts.append(
        Code(
            "How to cite: the paper for the method, the library for the code", CITATION
        )
    )
    return Section("Repeat and cite", parts)


def flat(data: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values of a record; entries of a record inside it have the names of both."""
    pairs: list[tuple[str, str]] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{before}{key}, ")
        elif value not in (None, [], (), ""):
            pairs.append((f"{before}{key}", _text(value)))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = (
        ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    )
    if isinstance(value, int) and abs(value) > 9999:
        text = f"{value:,}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
