"""What is on disk as one HTML page that opens anywhere, offline: verdict first, then pictures, tables and origin.

``write_report(folder)`` is what ``tiebreak report`` and ``--report`` call. A folder of ``tiebreak reproduce``,
``compare``, ``verify`` or ``plan``, or the CSV log of a training run: each has a module here that makes
:class:`~tiebreak.report.section.Section` s of it, and one module, :mod:`tiebreak.report.page`, makes the page.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

from tiebreak.files import atomic
from tiebreak.report.reading import record
from tiebreak.report.section import Chart, Page

__all__ = ["kind_of", "page_of", "write_report"]

_LEGAL = (
    "a folder that `tiebreak reproduce`, `compare`, `sweep`, `verify` or `plan` wrote, or the CSV log of a training run"
)


def kind_of(place: str | os.PathLike[str]) -> str:
    """What is there: "reproduce", "compare", "verify", "plan" or "log".

    Raises
    ------
    ValueError
        Where it is none of these.
    """
    path = Path(place)
    if path.is_file():
        return "log"
    if not path.is_dir():
        raise ValueError(f"no such file or folder: {path}; it must be {_LEGAL}")
    if (path / "plan.json").exists():
        return "plan"
    if (path / "configuration.json").exists():
        saved = record(path / "configuration.json")
        for key, kind in (("experiment", "reproduce"), ("verification", "verify"), ("budgets", "compare")):
            if key in saved:
                return kind
    raise ValueError(
        f"place={str(place)!r} must be {_LEGAL}; it has no configuration.json or plan.json that one of them wrote"
    )


def page_of(place: str | os.PathLike[str]) -> Page:
    """What is there, as the sections of a page.

    Raises
    ------
    ValueError
        Where a file is missing, or is not as the command writes it.
    """
    path, kind = Path(place), kind_of(place)
    make: Callable[[Path], Page] = import_module(f"{__name__}.{kind}").page
    try:
        page = make(path)
        _check_numbers(page)
        return page
    except ValueError as error:
        if kind != "log":
            raise
        saved = " It is a result that `minimize` saved, perhaps: tiebreak.load reads it." * (path.suffix == ".npz")
        raise ValueError(f"place={str(place)!r} must be {_LEGAL}; it is no such log: {error}.{saved}") from None
    except FileNotFoundError as error:
        raise ValueError(f"place={str(place)!r} must be {_LEGAL}; it lacks {Path(error.filename).name}") from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"place={str(place)!r} is not as `tiebreak {kind}` writes it: {error!r}") from None


def _check_numbers(page: Page) -> None:
    """A damaged file may hold words where there should be numbers: said now, not when the page is drawn."""
    for chart in (part for section in page.sections for part in section.parts if isinstance(part, Chart)):
        for series in chart.series:
            for key, column in series.columns.items():
                if np.asarray(column).dtype.kind not in "iufb":
                    raise TypeError(f"{key!r} of {series.name!r} must be numbers")


def write_report(place: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of what is there; its path.

    Parameters
    ----------
    place : path
        A folder that a command wrote, or the CSV log of a training run.
    output : path, optional
        The HTML file: ``report.html`` in the folder, or beside the log under its name, if not said.

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
    page = page_of(path)
    target = (
        Path(output) if output is not None else path.with_suffix(".html") if path.is_file() else path / "report.html"
    )
    text = render(page)
    with atomic(target, "w") as file:
        file.write(text)
    return target
