"""Findings for a paper: tables for LaTeX, charts as PDF in one and two columns, and references."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from tiebreak.files import FilePath, locked
from tiebreak.studies.charts import Axis, Chart
from tiebreak.studies.figures import Width, draw_chart, image
from tiebreak.studies.findings import Findings
from tiebreak.studies.folder import write_files
from tiebreak.studies.latex import as_latex, in_latex, parts
from tiebreak.studies.page import CITATION
from tiebreak.studies.tables import Table
from tiebreak.studies.training_log import findings_of

_MANY = 6  # a chart of more quantities has a figure of the first, or of the first of each problem
_FLOATS = 10  # between two \clearpage; LaTeX complains of about 18 waiting floats


def publish(
    place: FilePath,
    output: FilePath | None = None,
    problem: str | None = None,
    overwrite: bool = False,
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
    >>> from tiebreak.studies import Experiment, run
    >>> folder = tempfile.mkdtemp()
    >>> _ = run(Experiment(methods=["sdbgd"], runs=2, budget=1000), folder)
    >>> sorted({path.suffix for path in publish(folder)})
    ['.bib', '.pdf', '.tex']
    """
    path = Path(place)
    findings = findings_of(path)
    folder = path.parent if path.is_file() else path
    target = folder / "paper" if output is None else Path(output)
    figures = _figures(findings, problem)
    contents: dict[str, Any] = _tables(findings.tables)
    main = _main(findings, contents, figures)
    contents |= {"references.bib": f"{_for_bibtex(CITATION)}\n", "main.tex": main}
    for (name, (chart, y)), width in product(figures.items(), get_args(Width)):
        figure = draw_chart(chart, chart.x[0], [y], width)
        contents[f"{name}-{width}.pdf"] = image(figure, "pdf")
    facts = {"kind": "paper", "command": f"tiebreak publish {path.name}"}
    with locked(target / ".blocks"):
        return write_files(target, contents, facts, overwrite=overwrite)


def _for_bibtex(entries: str) -> str:
    """The entries for BibTeX's own styles, which lack the type and the field for software; biblatex reads them as well.

    >>> _for_bibtex("@software{key,\\n  version = {1.2},")
    '@misc{key,\\n  note = {Version 1.2},'
    """
    entries = entries.replace("@software{", "@misc{")
    return re.sub(r"version( *)= \{(.*)\}", r"note\1= {Version \2}", entries)


_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def _slug(text: str) -> str:
    """A title as the name of a file.

    >>> _slug("Residuals, mean ± standard error over 3 runs")
    'residuals-mean-standard-error-over-3-runs'
    >>> _slug("The best at 10⁴ calls")
    'the-best-at-1e4-calls'
    """
    powers = re.sub("10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: "1e" + m[1].translate(_POWERS), text)
    words = re.sub(r"[^a-z0-9]+", "-", powers.lower()).strip("-")
    if len(words) > 48:
        words = words[:49].rpartition("-")[0] or words[:48]
    return words.strip("-") or "table"


def _tables(tables: Iterable[Table]) -> dict[str, str]:
    """The tables by the names of their files, in parts if they are too wide for a page."""
    texts = {}
    for i, table in enumerate(tables, 1):
        name = f"table-{i}-{_slug(table.title)}"
        pieces = parts(table)
        for j, piece in enumerate(pieces, 1):
            label = f"{name}-{j}" if len(pieces) > 1 else name
            texts[f"{label}.tex"] = as_latex(piece, f"tab:{label}")
    return texts


def _figures(findings: Findings, problem: str | None) -> dict[str, tuple[Chart, Axis]]:
    """The charts and the quantities that are drawn, by the names of their files without the width."""
    charts = [each for each in findings.charts.values() if isinstance(each, Chart)]
    axes = [axis for chart in charts for axis in chart.y]
    problems = list(dict.fromkeys(axis.problem for axis in axes if axis.problem))
    if problem is not None and problem not in problems:
        legal = f"one of {', '.join(problems)}"
        if not problems:
            legal = "left out: this result has a single problem"
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
    findings: Findings,
    tables: Iterable[str],
    figures: Mapping[str, tuple[Chart, Axis]],
) -> str:
    """A document of two columns that holds all tables and figures."""
    floats = [rf"\input{{{name.removesuffix('.tex')}}}" for name in tables]
    for name, (chart, y) in figures.items():
        caption = f"{chart.title}: {y.label} against {chart.x[0].label}. {chart.about}"
        for star, size in (("", "column"), ("*", "page")):
            floats.append(
                _FIGURE.format(
                    star=star, size=size, name=name, caption=in_latex(caption)
                )
            )
    groups = [
        "\n".join(floats[i : i + _FLOATS]) for i in range(0, len(floats), _FLOATS)
    ]
    command = " ".join(str(findings.record.get("command", "")).split())
    return _MAIN.format(
        kind=" ".join(findings.kind.split()),
        repeat=f"% Repeat it: {command}\n" if command else "",
        title=in_latex(findings.title),
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
