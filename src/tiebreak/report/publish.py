"""A result for a paper: its tables for LaTeX, its charts as PDF in one and two columns, what to cite."""

import os
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args

from tiebreak.experiments.charts import Axis, Chart
from tiebreak.experiments.drawing import Width, draw_chart
from tiebreak.experiments.latex import as_latex, in_latex, parts
from tiebreak.experiments.tables import Sheet
from tiebreak.files import atomic
from tiebreak.report import kind_of, page_of
from tiebreak.report.section import CITATION, Code, Page

__all__ = ["publish"]

_MANY = 6  # quantities of a chart that all get a figure; of more, the first does, or the first of each problem
_FLOATS = 10  # between two \clearpage; LaTeX complains of about 18 that wait for room


def publish(
    place: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    problem: str | None = None,
) -> list[Path]:
    """Write tables (LaTeX, booktabs), figures (PDF, a column and a page wide), ``references.bib`` and ``main.tex``.

    Parameters
    ----------
    place : path
        A folder that a command wrote, or the CSV log of a training run.
    output : path, optional
        The folder for the files: by default ``paper`` in the folder, or beside the log.
    problem : str, optional
        A problem of a comparison with several: only its figures are drawn, of all residuals. By default every problem
        has a figure of its first residual.

    Returns
    -------
    list of Path
        The files; ``main.tex`` holds all of them, to see that they work and to copy from.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.experiments import Experiment, run, save
    >>> folder = tempfile.mkdtemp()
    >>> save(run(Experiment(methods=["sdbgd"], runs=2, budget=1000)), folder)
    >>> sorted({path.suffix for path in publish(folder)})
    ['.bib', '.pdf', '.tex']
    """
    path = Path(place)
    page = page_of(place)
    folder = path.parent if path.is_file() else path
    target = folder / "paper" if output is None else Path(output)
    texts = _tables(page)
    texts["references.bib"] = f"{_for_bibtex(CITATION)}\n"
    figures = _figures(page, problem)
    texts["main.tex"] = _main(
        page,
        kind_of(place),
        [name for name in texts if name.startswith("table-")],
        figures,
    )
    written = []
    for name, text in texts.items():
        written.append(target / name)
        with atomic(written[-1], "w") as file:
            file.write(text)
    for (name, (chart, y)), width in product(figures.items(), get_args(Width)):
        written.append(target / f"{name}-{width}.pdf")
        with atomic(written[-1]) as file:
            draw_chart(chart, chart.x[0], [y], width).savefig(
                file, format="pdf", metadata={"CreationDate": None}
            )
    return written


def _for_bibtex(entries: str) -> str:
    """The entries for BibTeX's own styles, which lack the type and the field for software; biblatex reads them as well.

    >>> _for_bibtex("@software{key,\\n  version = {1.2},")
    '@misc{key,\\n  note = {Version 1.2},'
    """
    return re.sub(
        r"version( *)= \{(.*)\}",
        r"note\1= {Version \2}",
        entries.replace("@software{", "@misc{"),
    )


_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def _slug(text: str) -> str:
    """A title as the name of a file.

    >>> _slug("Residuals, mean ± standard error over 3 runs")
    'residuals-mean-standard-error-over-3-runs'
    >>> _slug("The best at 10⁴ calls")
    'the-best-at-1e4-calls'
    """
    powers = re.sub(
        "10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda match: "1e" + match[1].translate(_POWERS), text
    )
    words = re.sub(r"[^a-z0-9]+", "-", powers.lower()).strip("-")
    return (
        words if len(words) <= 48 else words[:49].rpartition("-")[0] or words[:48]
    ).strip("-") or "table"


def _tables(page: Page) -> dict[str, str]:
    """The tables by the names of their files, in parts if they are too wide for a page."""
    texts = {}
    for i, sheet in enumerate(page.parts(Sheet), 1):
        pieces = parts(sheet)
        for j, piece in enumerate(pieces, 1):
            name = f"table-{i}-{_slug(sheet.title)}"
            if len(pieces) > 1:
                name += f"-{j}"
            texts[f"{name}.tex"] = as_latex(piece, _words(piece), f"tab:{name}")
    return texts


def _words(sheet: Sheet) -> list[str]:
    """The columns of words: none of their cells begins with a digit."""
    starts_number = re.compile(r"[-−–\d]").match
    pairs = [pair for row in sheet.rows for pair in zip(sheet.header, row, strict=True)]
    numbers = {name for name, cell in pairs if starts_number(cell)}
    return [name for name in sheet.header if name not in numbers]


def _figures(page: Page, problem: str | None) -> dict[str, tuple[Chart, Axis]]:
    """The charts and the quantities that are drawn, by the names of their files without the width."""
    charts = page.parts(Chart)
    problems = list(
        dict.fromkeys(
            axis.problem for chart in charts for axis in chart.y if axis.problem
        )
    )
    if problem is not None and problem not in problems:
        legal = (
            f"one of {', '.join(problems)}"
            if problems
            else "left out: this result has a single problem"
        )
        raise ValueError(f"problem={problem!r} must be {legal}")
    figures = {}
    for i, chart in enumerate(charts, 1):
        for y in _drawn_axes(chart, problem):
            name = f"figure-{i}-{_slug(y.key)}"
            while name in figures:  # two long keys with the same beginning
                name += "-more"
            figures[name] = (chart, y)
    return figures


def _drawn_axes(chart: Chart, problem: str | None) -> Sequence[Axis]:
    if problem is not None:
        return [axis for axis in chart.y if axis.problem in ("", problem)]
    if len(chart.y) <= _MANY:
        return chart.y
    first_of_problem: dict[str, Axis] = {}
    for axis in chart.y:
        first_of_problem.setdefault(axis.problem, axis)
    return list(first_of_problem.values())


def _main(
    page: Page, kind: str, tables: list[str], figures: dict[str, tuple[Chart, Axis]]
) -> str:
    """A document of two columns that holds all tables and figures."""
    floats = [rf"\input{{{name.removesuffix('.tex')}}}" for name in tables]
    for name, (chart, y) in figures.items():
        caption = in_latex(
            f"{chart.title}: {y.label} against {chart.x[0].label}. {chart.about}"
        )
        floats.append(
            _FIGURE.format(star="", size="column", name=name, caption=caption)
        )
        floats.append(_FIGURE.format(star="*", size="page", name=name, caption=caption))
    groups = [
        "\n".join(floats[i : i + _FLOATS]) for i in range(0, len(floats), _FLOATS)
    ]
    command = page.parts(Code)[0].text
    return _MAIN.format(
        kind=kind,
        repeat=f"% Repeat it: {command}\n" if command.startswith("tiebreak ") else "",
        title=in_latex(page.title),
        body="\n\\clearpage\n".join(groups),
    )


_FIGURE = (
    r"\begin{{figure{star}}}\centering\includegraphics[width=\linewidth]{{{name}-{size}.pdf}}"
    r"\caption{{{caption}}}\end{{figure{star}}}"
)
_MAIN = r"""% Everything that `tiebreak publish` wrote for a result of `tiebreak {kind}`.
{repeat}\documentclass[twocolumn]{{article}}
\usepackage[margin=0.75in]{{geometry}}
\usepackage{{amsmath,amssymb,booktabs,graphicx}}
\begin{{document}}
\title{{{title}}}
\author{{}}
\date{{}}
\maketitle
{body}
\clearpage
\nocite{{*}}
\bibliographystyle{{plain}}
\bibliography{{references}}
\end{{document}}
"""
