"""The last section of every page: how to repeat it, with what it was made, how to cite."""

from collections.abc import Mapping
from typing import Any

import tiebreak
from tiebreak.report.section import Code, Facts, Section

__all__ = ["CITATION", "flat", "origin"]

#: As README.md and CITATION.cff say it.
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


def origin(saved: Mapping[str, Any], omitted: tuple[str, ...] = ()) -> Section:
    """The section, from a folder's configuration; entries that other sections show are left out."""
    left = {key: value for key, value in saved.items() if key not in ("command", *omitted)}
    command = saved.get("command")
    parts: list[Code | Facts] = [] if not isinstance(command, str) else [Code("The command that repeats it", command)]
    parts.append(Facts(flat(left)))
    parts.append(Code("How to cite: the paper for the method, the library for the code", CITATION))
    return Section("Repeat and cite", parts)


def flat(data: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values of a record, those of records in it by both names."""
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
    if isinstance(value, (list, tuple)):
        text = ", ".join(str(part) for part in value)
    else:
        text = f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
