"""The page of findings: one HTML file that needs no other."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import tiebreak
from tiebreak.files import FilePath, atomic, locked
from tiebreak.studies.charts import COLOURS, Chart
from tiebreak.studies.findings import Findings, Verdict, plain, stored
from tiebreak.studies.folder import PAGE, load, write_files
from tiebreak.studies.tables import Facts, Table

#: The same text as in README.md and CITATION.cff.
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
_SHOWN_ELSEWHERE = ("command", "faults", "interrupted", "verdicts", "cases")

# The browser fetches nothing: the file holds the whole page.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#verdict">Skip to the verdict</a>
<header><h1>{title}</h1><button type="button" id="theme" aria-label="Colours: as the system has them">◐ auto</button>
</header>
<nav aria-label="Sections" tabindex="0">{links}</nav>
<main>{verdict}{body}</main>
<footer>Made by tiebreak. This file needs no network and no other file.</footer>
<script type="application/json" id="colours">{colours}</script>
<script>{plotly}</script>
<script>{program}</script>
</body>
</html>
"""


def render(findings: Findings) -> str:
    """The page as HTML: the verdict, then charts, tables and the origin."""
    findings = stored(findings)
    figures = [
        _figure(f"figure-{i}", chart)
        for i, chart in enumerate(findings.charts.values(), 1)
    ]
    tables = [_table(table) for table in findings.tables]
    sections = {
        "Charts": "".join(figures),
        "Tables": "".join([*tables, _notes(findings.notes)]),
        "Repeat and cite": _origin(findings.record),
    }
    sections = {title: html for title, html in sections.items() if html}
    links = [
        f'<a href="#{_id(title)}">{escape(title)}</a>'
        for title in ("Verdict", *sections)
    ]
    body = [
        f'<section id="{_id(title)}"><h2>{escape(title)}</h2>{html}</section>'
        for title, html in sections.items()
    ]
    return _TEMPLATE.format(
        title=escape(findings.title),
        policy=_POLICY,
        css=_resource("page.css"),
        links="".join(links),
        verdict=_verdict(findings.verdict),
        body="".join(body),
        colours=embedded(COLOURS),
        plotly=_plotly(),
        program=_resource("page.js"),
    )


def write_page(folder: FilePath, overwrite: bool = False) -> Path:
    """Write the page of a folder that a command wrote as its ``report.html``; the path.

    Examples
    --------
    >>> import tempfile
    >>> from tiebreak.studies import Experiment, run
    >>> folder = tempfile.mkdtemp()
    >>> _ = run(Experiment(methods=["sdbgd"], runs=2, budget=1000), folder)
    >>> write_page(folder).name
    'report.html'
    """
    place = Path(folder)
    html = render(load(place))
    with locked(place / ".blocks"):
        (path,) = write_files(place, {PAGE: html}, update=True, overwrite=overwrite)
    return path


_SIGNATURE = re.compile(r"<!-- tiebreak ([0-9a-f]{64}) -->\n$")


def write_single_page(
    findings: Findings, path: FilePath, overwrite: bool = False
) -> Path:
    """Write a page that is in no folder of ours, with a signature; a file without a valid one is not replaced."""
    target = Path(path)
    if target.exists() and not overwrite and not _is_signed(target):
        raise ValueError(
            f"output={os.fspath(path)!r} is a file that no command wrote or that was changed since; choose another "
            "name, or say --overwrite"
        )
    html = render(findings)
    digest = hashlib.sha256(html.encode()).hexdigest()
    with atomic(target) as file:
        file.write(f"{html}<!-- tiebreak {digest} -->\n".encode())
    return target


def _is_signed(path: Path) -> bool:
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError):
        return False
    signature = _SIGNATURE.search(text)
    if signature is None:
        return False
    html = text[: signature.start()]
    return hashlib.sha256(html.encode()).hexdigest() == signature[1]


def _id(title: str) -> str:
    return title.lower().replace(" ", "-")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script")


def _resource(name: str) -> str:
    return (
        resources.files("tiebreak.studies").joinpath(name).read_text(encoding="utf-8")
    )


def _verdict(verdict: Verdict) -> str:
    kind = {True: "good", False: "bad", None: "open"}[verdict.good]
    items = "".join(f"<li>{escape(text)}</li>" for text in verdict.answers)
    return (
        f'<section id="verdict" class="verdict {kind}" aria-label="Verdict"><p class="word">{escape(verdict.word)}</p>'
        f'<p class="asked">{escape(verdict.question)}</p><ul>{items}</ul></section>'
    )


def _figure(name: str, chart: Chart) -> str:
    title = escape(chart.title)
    about = escape(chart.about)
    return (
        f'<figure id="{name}" class="drawn"><figcaption><h3>{title}</h3><p>{about}</p></figcaption>'
        f'<div class="controls"></div><div class="plot" role="img" aria-label="{title}. {about}"></div>'
        f'<div class="legend" role="group" aria-label="Shown in: {title}"></div>'
        f'<script type="application/json">{embedded(asdict(chart))}</script></figure>'
    )


def embedded(data: Any) -> str:
    """JSON for a script element: a "<" of the data cannot end the element, and U+2028 cannot end a line.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(
        plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    for letter in "<\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _table(table: Table) -> str:
    head = ""
    if any(table.header):
        names = "".join(
            f'<th scope="col"><button type="button">{escape(name)}</button></th>'
            for name in table.header
        )
        head = f"<thead><tr>{names}</tr></thead>"
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    title = escape(table.title)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>{head}'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    kind = ' class="fail"' if text == "FAIL" else ""
    return f"<td{kind}>{escape(text)}</td>"


def _notes(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    if items:
        return f'<ul class="notes">{items}</ul>'
    return ""


def _origin(record: Facts) -> str:
    """How to repeat the result, its record, and how to cite."""
    facts = {n: value for n, value in record.items() if n not in _SHOWN_ELSEWHERE}
    pairs = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in flat(facts)
    )
    code = ""
    if isinstance(record.get("command"), str):
        code = _code("The command that repeats it", record["command"])
    cite = "How to cite: the paper for the method, the library for the code"
    return f"{code}<dl>{pairs}</dl>{_code(cite, CITATION)}"


def _code(title: str, text: str) -> str:
    return (
        f'<div class="code"><h3>{escape(title)}</h3><button type="button" class="copy">Copy</button>'
        f'<pre tabindex="0" aria-label="{escape(title)}">{escape(text)}</pre></div>'
    )


def flat(record: Facts, before: str = "") -> list[tuple[str, str]]:
    """Names and values of a record; an entry of a record inside it has the names of both."""
    pairs: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{before}{name}, ")
        elif value not in (None, [], (), ""):
            pairs.append((f"{before}{name}", _value_text(value)))
    return pairs


def _value_text(value: Any) -> str:
    text = str(value)
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, (list, tuple)):
        text = ", ".join(map(str, value))
    elif isinstance(value, int) and abs(value) > 9999:
        text = f"{value:,}"
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} …"
