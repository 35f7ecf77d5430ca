"""Where methods ended in f and g themselves: a small residual is found at saddles of g as well."""

import numpy as np

from tiebreak.experiments.compared import Compared
from tiebreak.experiments.tables import Sheet, chosen, short

_APART = 0.1  # of what g is about: its largest value among the start and all ends
_ROUNDING = 1e-6


def values(found: Compared, title: str, budget: int) -> list[Sheet]:
    """f and g at the start and at the last iterates, where they are known: one table, or none."""
    labels = [each.label for each in found.comparison.contenders]
    rows = []
    for problem, start in found.starts.items():
        here = chosen(found.results, problem=problem, budget=budget)
        ends = zip(here["upper_value"], here["lower_value"], strict=True)
        if np.isfinite([*here["upper_value"], *here["lower_value"]]).any():
            rows.append([problem, _pair(*start), *(_pair(*each) for each in ends)])
    return [Sheet(title, ("problem", "start", *labels), rows)] if rows else []


def value_notes(found: Compared, budget: int) -> list[str]:
    """On which problems g ended above its start, and where methods end at different g."""
    risen = []
    apart = []
    for problem, (_, start) in found.starts.items():
        here = chosen(found.results, problem=problem, budget=budget)
        known = np.isfinite(here["lower_value"])
        if not known.any():
            continue
        ends = here["lower_value"][known]
        names = here["method"][known]
        size = np.abs(np.append(ends, start if np.isfinite(start) else ends[0])).max()
        above = [
            f"{name} ({_short(end)})"
            for name, end in zip(names, ends, strict=True)
            if end - start > _ROUNDING * size
        ]
        if above:
            risen.append(f"{problem}, from {_short(start)}: {', '.join(above)}")
        if ends.max() - ends.min() > _APART * size:
            apart.append(f"{problem} ({_short(ends.min())} to {_short(ends.max())})")
    texts = []
    if risen:
        texts.append(
            f"g ended above where it began on {'; on '.join(risen)}. There a small residual may be a saddle of g, or a "
            "weight that is still too small: look at g before the ratios."
        )
    if apart:
        texts.append(
            f"Methods end at different g, whatever their residuals are, on {', '.join(apart)}."
        )
    return texts


def _short(value: float) -> str:
    return short(f"{value:.3g}")


def _pair(upper: float, lower: float) -> str:
    return " / ".join(
        "–" if not np.isfinite(value) else _short(value) for value in (upper, lower)
    )
