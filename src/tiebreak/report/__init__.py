"""A result on disk as one HTML page that opens anywhere, offline: verdict first, then charts, tables and origin.

``write_report(folder)`` is what ``tiebreak report`` and ``--report`` call. The result is a folder of
``tiebreak reproduce``, ``compare``, ``verify`` or ``plan``, or the CSV log of a training run. A module for each kind
makes a :class:`~tiebreak.report.section.Page` of it, and :mod:`tiebreak.report.page` renders that as HTML.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from tiebreak.experiments.charts import Chart, Series, thinned
from tiebreak.files import atomic
from tiebreak.report.reading import LEGAL, kind_of
from tiebreak.report.section import Page

__all__ = ["kind_of", "page_of", "write_report"]

_POINTS = 1500  # of a curve, at most
_CELLS = 120_000  # of all charts together: about a megabyte of JSON


def page_of(place: str | os.PathLike[str]) -> Page:
    """The result as the sections of a page.

    Raises
    ------
    ValueError
        If a file is missing, or is not as the command writes it.
    """
    path = Path(place)
    kind = kind_of(place)
    make: Callable[[Path], Page] = import_module(f"{__name__}.{kind}").page
    try:
        return _drawable(make(path))
    except ValueError as error:
        if kind != "log":
            raise
        saved = (
            " It is a result that `minimize` saved, perhaps: tiebreak.load reads it."
            * (path.suffix == ".npz")
        )
        raise ValueError(
            f"place={str(place)!r} must be {LEGAL}; it is no such log: {error}.{saved}"
        ) from None
    except FileNotFoundError as error:
        raise ValueError(
            f"place={str(place)!r} must be {LEGAL}; it lacks {Path(error.filename).name}"
        ) from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"place={str(place)!r} is not as `tiebreak {kind}` writes it: {error!r}"
        ) from None


def _drawable(page: Page) -> Page:
    """The page with numbers alone in its charts, and no more points than a page of 6 MB has room for."""
    columns = sum(
        len(series.columns) for chart in page.parts(Chart) for series in chart.series
    )
    points = min(_POINTS, max(25, _CELLS // max(columns, 1)))
    sections = []
    for section in page.sections:
        parts = [
            _drawable_chart(part, points) if isinstance(part, Chart) else part
            for part in section.parts
        ]
        sections.append(replace(section, parts=parts))
    return replace(page, sections=sections)


def _drawable_chart(chart: Chart, points: int) -> Chart:
    return replace(
        chart, series=[_drawable_series(series, points) for series in chart.series]
    )


def _drawable_series(series: Series, points: int) -> Series:
    columns = {key: np.asarray(column) for key, column in series.columns.items()}
    for key, column in columns.items():
        if column.dtype.kind not in "iufb":
            raise TypeError(f"{key!r} of {series.name!r} must be numbers")
    return replace(
        series,
        columns={
            key: column[thinned(len(column), points)] for key, column in columns.items()
        },
    )


def write_report(
    place: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write the page of a result; its path.

    Parameters
    ----------
    place : path
        A folder that a command wrote, or the CSV log of a training run.
    output : path, optional
        The HTML file: by default ``report.html`` in the folder, or the name of the log with the suffix ``.html``.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run, save
    >>> folder = tempfile.mkdtemp()
    >>> save(run(Experiment(methods=["sdbgd"], runs=2, budget=1000)), folder)
    >>> write_report(folder).name
    'report.html'
    """
    from tiebreak.report.page import render

    path = Path(place)
    usual = path.with_suffix(".html") if path.is_file() else path / "report.html"
    text = render(page_of(path))
    target = usual if output is None else Path(output)
    with atomic(target, "w") as file:
        file.write(text)
    return target
