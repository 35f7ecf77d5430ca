"""A result for a paper: its tables for LaTeX, its charts as PDF in one and two columns, what to cite."""

import os
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

from tiebreak.experiments.latex import as_latex, in_latex, parts
from tiebreak.experiments.tables import Sheet
from tiebreak.files import atomic
from tiebreak.report import kind_of, page_of
from tiebreak.report.figures import Width, figure
from tiebreak.report.origin import CITATION
from tiebreak.report.section import Axis, Chart, Code, Page

__all__ = ["publish"]

_MANY = 6  # quantities of a chart that all get a figure; of more, the first does, or the first of each problem
_FLOATS = 10  # figures and tables that LaTeX holds back until there is room; of about 18 it complains


def publish(
    place: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, problem: str | None = None
) -> list[Path]:
    """Write tables (LaTeX, booktabs), figures (PDF, a column and a page wide), ``references.bib`` and ``main.tex``.

    Parameters
    ----------
    place : path
        A folder that a command wrote, or the CSV log of a training run.
    output : path, optional
        The folder for the files: ``paper`` in the folder, or beside the log, if not said.
    problem : str, optional
        Of a comparison with several problems: figures of this one alone, and of all its residuals. If not said, every
        problem has the figure of its first one.

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
    path, page = Path(place), page_of(place)
    target = Path(output) if output is not None else (path.parent if path.is_file() else path) / "paper"
    texts = {f"{name}.tex": as_latex(sheet, _words(sheet), f"tab:{name}") for name, sheet in _tables(page).items()}
    texts["references.bib"] = f"{_for_bibtex(CITATION)}\n"
    figures = _figures(page, problem)
    texts["main.tex"] = _main(page, kind_of(place), list(texts), figures)
    written = []
    for name, text in texts.items():
        with atomic(target / name, "w") as file:
            file.write(text)
        written.append(target / name)
    for name, (chart, x, y, width) in figures.items():
        with atomic(target / name) as file:
            figure(chart, x, y, width).savefig(file, format="pdf", metadata={"CreationDate": None})
        written.append(target / name)
    return written


def _for_bibtex(entries: str) -> str:
    """The entries for BibTeX's own styles, which know neither software nor versions; biblatex reads them as well.

    >>> _for_bibtex("@software{key,\\n  version = {1.2},")
    '@misc{key,\\n  note = {Version 1.2},'
    """
    return re.sub(r"version( *)= \{(.*)\}", r"note\1= {Version \2}", entries.replace("@software{", "@misc{"))


_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def _slug(text: str) -> str:
    """A title as the name of a file.

    >>> _slug("Residuals, mean ± standard error over 3 runs")
    'residuals-mean-standard-error-over-3-runs'
    >>> _slug("The best at 10⁴ calls")
    'the-best-at-1e4-calls'
    """
    powers = re.sub("10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda found: "1e" + found[1].translate(_POWERS), text)
    words = re.sub(r"[^a-z0-9]+", "-", powers.lower()).strip("-")
    return (words if len(words) <= 48 else words[:49].rpartition("-")[0] or words[:48]).strip("-") or "table"


def _tables(page: Page) -> dict[str, Sheet]:
    """By the names of their files; what is too wide for a page in parts."""
    found = [part for section in page.sections for part in section.parts if isinstance(part, Sheet)]
    return {
        f"table-{i}-{_slug(sheet.title)}" + (f"-{j}" if len(cut) > 1 else ""): part
        for i, sheet in enumerate(found, 1)
        for cut in [parts(sheet)]
        for j, part in enumerate(cut, 1)
    }


def _words(sheet: Sheet) -> list[str]:
    """The columns that hold words: none of their cells begins with a digit."""
    cells = {name: [row[i] for row in sheet.rows] for i, name in enumerate(sheet.header)}
    return [name for name, column in cells.items() if not any(re.match(r"[-−–\d]", cell) for cell in column)]


class Drawing(NamedTuple):
    """A figure to be made."""

    chart: Chart
    x: Axis
    y: Axis
    width: Width


def _figures(page: Page, problem: str | None) -> dict[str, Drawing]:
    """By the names of their files."""
    found = {}
    charts = [part for section in page.sections for part in section.parts if isinstance(part, Chart)]
    known = list(dict.fromkeys(axis.problem for chart in charts for axis in chart.y if axis.problem))
    if problem is not None and problem not in known:
        legal = f"one of {', '.join(known)}" if known else "left out: this result has a single problem"
        raise ValueError(f"problem={problem!r} must be {legal}")
    for i, chart in enumerate(charts, 1):
        for y, width in product(_shown(chart, problem), get_args(Width)):
            name = f"figure-{i}-{_slug(y.key)}"
            while f"{name}-{width}.pdf" in found:  # two long names that begin alike
                name += "-more"
            found[f"{name}-{width}.pdf"] = Drawing(chart, chart.x[0], y, width)
    return found


def _shown(chart: Chart, problem: str | None) -> Sequence[Axis]:
    """The quantities that get a figure."""
    if problem is not None:
        return [axis for axis in chart.y if axis.problem in ("", problem)]
    if len(chart.y) <= _MANY:
        return chart.y
    return list({axis.problem: axis for axis in reversed(chart.y)}.values())[::-1]  # the first of each


def _main(page: Page, kind: str, texts: list[str], figures: dict[str, Drawing]) -> str:
    """A document that holds everything, two columns wide."""
    commands = [part.text for section in page.sections for part in section.parts if isinstance(part, Code)]
    repeat = f"% Repeat it: {commands[0]}\n" if commands and commands[0].startswith("tiebreak ") else ""
    inputs = [rf"\input{{{name.removesuffix('.tex')}}}" for name in texts if name.startswith("table-")]
    for name, (chart, x, y, width) in figures.items():
        star, size = ("*", r"\textwidth") if width == "page" else ("", r"\columnwidth")
        caption = in_latex(f"{chart.title}: {y.label} against {x.label}. {chart.about}")
        inputs.append(
            rf"\begin{{figure{star}}}\centering\includegraphics[width={size}]{{{name}}}"
            rf"\caption{{{caption}}}\end{{figure{star}}}"
        )
    groups = ["\n".join(inputs[i : i + _FLOATS]) for i in range(0, len(inputs), _FLOATS)]
    return _MAIN.format(repeat=repeat, title=in_latex(page.title), body="\n\\clearpage\n".join(groups), kind=kind)


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
