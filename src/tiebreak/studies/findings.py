"""The findings of a study: a verdict, tables, notes and charts, from which files, figures and pages are made."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tiebreak.provenance import sentence
from tiebreak.studies.charts import Chart, Series, chart_from, thinned
from tiebreak.studies.tables import Columns, Facts, Table, document

_DIGITS = 6  # of a number in a chart
_POINTS = 1500  # of a curve, at most
_CELLS = 120_000  # of all charts together: about a megabyte of JSON


class Verdict(NamedTuple):
    """The question of a study and its answers; `good` says whether a promise was kept, None if nothing was promised.

    >>> Verdict("PASS", True, "Are all bounds kept?").good
    True
    """

    word: str
    good: bool | None
    question: str
    answers: Sequence[str] = ()


@dataclass(frozen=True)
class Findings:
    """The findings of a study.

    Parameters
    ----------
    kind : str
        The command or the study that made them: "reproduce", "compare", ….
    title : str
    verdict : Verdict
    tables : sequence of Table
    notes : sequence of str
        What a reader must know to read the tables.
    charts : dict of str to Chart
        By the names of their figures.
    record : dict
        Plain data for ``config.json``: the command, settings and versions.
    data : dict of str to Columns
        Written as CSV and Parquet.
    copies : dict of str to str
        The texts of the user's files, by the names of their copies.

    Examples
    --------
    >>> verdict = Verdict("Near", True, "How near?")
    >>> print(summary(Findings("coins", "Coins", verdict, [], ["Fair ones."], {}, {})))
    # Coins
    <BLANKLINE>
    **Near**
    <BLANKLINE>
    <BLANKLINE>
    ## Notes
    <BLANKLINE>
    - Fair ones.
    <BLANKLINE>
    """

    kind: str
    title: str
    verdict: Verdict
    tables: Sequence[Table]
    notes: Sequence[str]
    charts: Mapping[str, Chart]
    record: Facts
    data: Mapping[str, Columns] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the study before all of it was done."""
        return bool(self.record.get("interrupted", False))


def summary(findings: Findings) -> str:
    """The findings as a Markdown document."""
    verdict = findings.verdict
    opening = [f"**{verdict.word}**", *(f"- {text}" for text in verdict.answers), ""]
    if "command" in findings.record:
        command = " ".join(str(findings.record["command"]).split())
        opening += [f"    {command}", ""]
    if "date" in findings.record:
        opening.append(sentence(findings.record))
    return document(findings.title, opening, findings.tables, findings.notes)


def to_json(findings: Findings) -> dict[str, Any]:
    """What readers see, as plain data for ``findings.json``: charts with few digits, and null for what is not finite."""
    return {
        "title": findings.title,
        "verdict": findings.verdict._asdict(),
        "tables": [table._asdict() for table in findings.tables],
        "notes": list(findings.notes),
        "charts": plain({n: asdict(c) for n, c in _drawable(findings.charts).items()}),
    }


def from_json(kind: str, record: Facts, data: Any) -> Findings:
    """The findings that :func:`to_json` made this data of; ValueError if the data are of no findings."""
    try:
        if "date" in record:
            sentence(record)
        return Findings(
            kind,
            _text(data["title"]),
            _verdict(data["verdict"]),
            [_table(table) for table in data["tables"]],
            [_text(note) for note in data["notes"]],
            {name: chart_from(_read(each)) for name, each in data["charts"].items()},
            record,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"they are of no findings: {error!r}") from None


def stored(findings: Findings) -> Findings:
    """The findings as they are read from their folder, so that a figure is the same whenever it is drawn."""
    data = json.loads(json.dumps(to_json(findings)))
    return from_json(findings.kind, findings.record, data)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be a text")
    return value


def _verdict(data: Facts) -> Verdict:
    verdict = Verdict(**data)
    for text in (verdict.word, verdict.question, *verdict.answers):
        _text(text)
    return verdict


def _table(data: Facts) -> Table:
    table = Table(**data)
    for text in (table.title, *table.words):
        _text(text)
    for row in (table.header, *table.rows):
        if len(row) != len(table.header):
            raise TypeError(f"a row of {table.title!r} has another length")
        for cell in row:
            _text(cell)
    return table


def _drawable(
    charts: Mapping[str, Chart],
) -> dict[str, Chart]:
    """The charts with no more points than a page of 6 MB has room for."""
    columns = sum(len(s.columns) for c in charts.values() for s in c.series)
    points = min(_POINTS, max(25, _CELLS // max(columns, 1)))
    return {
        name: replace(chart, series=[_thinned(each, points) for each in chart.series])
        for name, chart in charts.items()
    }


def _thinned(series: Series, points: int) -> Series:
    columns = {}
    for key, column in series.columns.items():
        values = np.asarray(column)
        columns[key] = values[thinned(len(values), points)]
    return replace(series, columns=columns)


def plain(data: Any) -> Any:
    """Data as JSON has them: numbers of few digits, and null for what is not finite."""
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, (np.ndarray, np.generic)):
        data = data.tolist()
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return _number(data)
    return data


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    if rounded.is_integer() and abs(rounded) < 2**53:
        return int(rounded)
    return rounded


def _read(data: Any) -> Any:
    """Data of a chart with NaN for null in its columns."""
    if isinstance(data, dict):
        return {key: _read(value) for key, value in data.items()}
    if isinstance(data, list):
        return [math.nan if value is None else _read(value) for value in data]
    return data
