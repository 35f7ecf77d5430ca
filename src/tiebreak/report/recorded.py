"""The curves that a comparison was asked to record, as a chart."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.tables import Table, chosen
from tiebreak.files import regular
from tiebreak.report.data import MOST, spread, thinned
from tiebreak.report.reading import columns
from tiebreak.report.section import Axis, Chart, Series

__all__ = ["recorded"]

_SHOWN = {
    "stationarity_squared": ("min over λ of ‖∇f+λ∇g‖²", "log"),
    "lower_gradient_squared": ("‖∇g‖²", "log"),
    "direction_squared": ("‖d‖², own λ", "log"),
    "upper_value": ("f", "linear"),
    "lower_value": ("g", "linear"),
    "multiplier": ("λ as sampled", "linear"),
}
_PLACE = ("problem", "method", "budget", "run", "step", "calls")
_NUMBERS = 60_000  # in all curves together: about half a megabyte
_BANDED = 40  # curves, of which a band can still be told from the others


def recorded(folder: Path) -> list[Chart]:
    """A chart of what was recorded on the way, where it was; else none.

    Raises
    ------
    ValueError
        Where the file is not as `tiebreak compare` writes it.
    """
    table = _read(folder)
    if table is None or not len(table["run"]):
        return []
    problems, methods = (list(dict.fromkeys(table[name].tolist())) for name in ("problem", "method"))
    shown = {name: words for name, words in _SHOWN.items() if name in table and np.isfinite(table[name]).any()}
    if not shown:
        return []
    several = len(np.unique(table["run"])) > 1
    banded = several and len(problems) * len(methods) <= _BANDED
    most = _NUMBERS // (len(problems) * len(methods) * len(shown) * (3 if banded else 1))
    series = [
        Series(method, _curve(here, problem, shown, min(max(most, 25), MOST), banded), look)
        for problem in problems
        for look, method in enumerate(methods)
        if len((here := _longest(chosen(table, problem=problem, method=method)))["run"])
    ]
    y = [Axis(f"{p} {name}", f"{p}: {label}", scale, p) for p in problems for name, (label, scale) in shown.items()]  # type: ignore[arg-type]  # one of the three words
    over = "means over runs" + ", bands hold the middle 80 % of them" * banded if several else "one run"
    about = (
        f"What was recorded of the run with the largest budget: exact gradients, {over}, as they are. ‖d‖² uses each "
        "method's own λ; the least over λ ≥ 0 compares methods."
    )
    return [Chart("Residuals along the run", about, [Axis("calls", "calls", "log"), Axis("step", "steps", "log")],
                  [axis for axis in y if any(axis.key in one.columns for one in series)], series)]  # fmt: skip


def _read(folder: Path) -> Table | None:
    """The table, None where nothing was recorded; Parquet is read where it is there, since curves may be long."""
    path, text = folder / "curves.parquet", folder / "curves.csv"
    if not path.exists():
        return columns(text, *_PLACE) if text.exists() else None
    import pyarrow.parquet

    try:
        found = pyarrow.parquet.read_table(regular(path))
    except (OSError, NotImplementedError, ValueError) as error:  # Arrow's words for what is damaged
        raise ValueError(f"{str(path)!r} is no table: {error}") from None
    lacking = [name for name in _PLACE if name not in found.column_names]
    if lacking:
        raise ValueError(f"{str(path)!r} must have the columns {', '.join(_PLACE)}; it lacks {', '.join(lacking)}")
    wanted = [name for name in (*_PLACE, *_SHOWN) if name in found.column_names]
    return {name: found.column(name).to_numpy() for name in wanted}


def _longest(rows: Table) -> Table:
    """Those of the largest budget; of a method that depends on it, smaller ones have curves of their own."""
    return chosen(rows, budget=rows["budget"].max()) if len(rows["run"]) else rows


def _curve(rows: Table, problem: str, shown: Any, most: int, banded: bool) -> dict[str, Any]:
    """Columns of a series: a row for each step that any run recorded."""
    steps, at = np.unique(rows["step"], return_inverse=True)
    runs, of = np.unique(rows["run"], return_inverse=True)
    kept = thinned(len(steps), most)

    def by_step(name: str) -> Any:
        found = np.full((len(steps), len(runs)), np.nan)
        found[at, of] = rows[name]
        return found[kept]

    found = {"step": steps[kept], "calls": np.nanmax(by_step("calls"), axis=1)}
    for name in shown:
        values = spread(f"{problem} {name}", by_step(name))
        found |= values if banded else {f"{problem} {name}": values[f"{problem} {name}"]}
    return found
