"""Writing a finished comparison, verification or plan: tables, record, summary and figures."""

import os
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments import comparing_report, verification_report
from tiebreak.experiments.charts import Chart
from tiebreak.experiments.compared import Compared
from tiebreak.experiments.comparing_charts import profiles_chart
from tiebreak.experiments.drawing import save_chart
from tiebreak.experiments.folder import write
from tiebreak.experiments.own import copies
from tiebreak.experiments.plan_charts import batches_chart, residuals_chart
from tiebreak.experiments.profiles import grid, profile
from tiebreak.experiments.tables import Table, joined
from tiebreak.experiments.verification import Findings
from tiebreak.experiments.verification_charts import verification_charts


def save_comparison(found: Compared, folder: str | os.PathLike[str]) -> list[Path]:
    """Write tables (CSV and Parquet), configuration.json, summary.md, the profiles (PNG and PDF), own files' copies.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Comparison, compare
    >>> found = compare(Comparison(problems="paper", methods="sdbgd", budgets=[1000], runs=2, trials=1))
    >>> sorted({path.suffix for path in save_comparison(found, tempfile.mkdtemp())})
    ['.csv', '.json', '.md', '.parquet', '.pdf', '.png']
    """
    profiles = profiles_table(found)
    tables = {
        "runs": found.runs,
        "results": found.results,
        "profiles": profiles,
        "curves": found.curves,
    }
    contents = _both_formats(tables) | dict(copies(found.references))
    contents |= {
        "configuration.json": found.configuration(),
        "summary.md": comparing_report.report(found),
    }
    return write(folder, contents) + _save_charts(
        {"profiles": profiles_chart(profiles)}, folder
    )


def profiles_table(found: Compared) -> Table:
    """Tidy: the corners of every profile, a row for each method, budget and τ."""
    parts = []
    for budget, (i, contender) in product(
        found.comparison.budgets, enumerate(found.comparison.contenders)
    ):
        ratios = found.ratios(budget)
        taus = grid(ratios)
        words = {"method": contender.label, "budget": budget}
        named = {name: np.full(len(taus), value) for name, value in words.items()}
        parts.append(named | {"tau": taus, "share": profile(ratios, taus)[:, i]})
    return joined(parts)


def save_verification(findings: Findings, folder: str | os.PathLike[str]) -> list[Path]:
    """Write tables (CSV and Parquet), configuration.json, summary.md, the figures (PNG and PDF), own files' copies.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Verification, verify
    >>> findings = verify(Verification(problem="paper", method="penalty", steps=50, runs=4))
    >>> sorted({path.suffix for path in save_verification(findings, tempfile.mkdtemp())})
    ['.csv', '.json', '.md', '.parquet', '.pdf', '.png']
    """
    tables = {
        name: getattr(findings, name)
        for name in ("bounds", "deviations", "rates", "slopes")
    }
    contents = _both_formats(tables) | dict(
        copies(findings.verification.files.values())
    )
    contents |= {
        "configuration.json": findings.configuration(),
        "summary.md": verification_report.report(findings),
    }
    return write(folder, contents) + _save_charts(verification_charts(tables), folder)


def save_plan(
    folder: str | os.PathLike[str],
    record: dict[str, Any],
    summary: str,
    curves: Table,
    measured: Table | None,
) -> list[Path]:
    """Write plan.json, summary.md, the tables (CSV) and the figures (PNG and PDF)."""
    contents = {"plan.json": record, "summary.md": summary, "curves.csv": curves}
    contents |= {} if measured is None else {"measured.csv": measured}
    written = write(
        folder, contents, outdated=["measured.csv"] if measured is None else ()
    )
    charts = {
        "plan": residuals_chart(curves, measured),
        "batches": batches_chart(curves),
    }
    return written + _save_charts(charts, folder)


def _both_formats(tables: Mapping[str, Table]) -> dict[str, Any]:
    """The tables that are not empty, by the names of their files."""
    return {
        f"{name}.{kind}": table
        for name, table in tables.items()
        if table
        for kind in ("csv", "parquet")
    }


def _save_charts(
    charts: Mapping[str, Chart], folder: str | os.PathLike[str]
) -> list[Path]:
    written = []
    for name, chart in charts.items():
        written += save_chart(chart, Path(folder) / name)
    return written
