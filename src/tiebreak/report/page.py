"""The page: one HTML file that needs no other."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from importlib import resources
from itertools import count
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Chart
from tiebreak.experiments.colours import COLOURS
from tiebreak.experiments.tables import Sheet
from tiebreak.report.section import (
    Code,
    Facts,
    Landscape,
    Notes,
    Page,
    Part,
    Section,
    Verdict,
)

_DIGITS = 6  # of a number in a chart

# The browser fetches nothing: all that the page needs is in the file.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


def render(page: Page) -> str:
    """The page as HTML."""
    ids = (f"part-{i}" for i in count())
    names = ["verdict", *(f"section-{i}" for i in range(len(page.sections)))]
    titles = ["Verdict", *(section.title for section in page.sections)]
    links = "".join(
        f'<a href="#{name}">{escape(title)}</a>'
        for name, title in zip(names, titles, strict=True)
    )
    body = "".join(
        _section(name, section, ids)
        for name, section in zip(names[1:], page.sections, strict=True)
    )
    return _TEMPLATE.format(
        title=escape(page.title),
        policy=_POLICY,
        css=_resource("page.css"),
        links=links,
        verdict=_verdict(page.verdict),
        body=body,
        colours=embedded(COLOURS),
        plotly=_plotly(),
        program=_resource("page.js"),
    )


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


def _plotly() -> str:
    from plotly.offline import (
        get_plotlyjs,
    )  # only here: a page may be described without it

    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script")


def _resource(name: str) -> str:
    return resources.files("tiebreak.report").joinpath(name).read_text(encoding="utf-8")


def _verdict(verdict: Verdict) -> str:
    kind = {True: "good", False: "bad", None: "open"}[verdict.good]
    items = "".join(f"<li>{escape(text)}</li>" for text in verdict.findings)
    return (
        f'<section id="verdict" class="verdict {kind}" aria-label="Verdict"><p class="word">{escape(verdict.word)}</p>'
        f'<p class="asked">{escape(verdict.question)}</p><ul>{items}</ul></section>'
    )


def _section(name: str, section: Section, ids: Iterator[str]) -> str:
    parts = "".join(_part(part, next(ids)) for part in section.parts)
    return f'<section id="{name}"><h2>{escape(section.title)}</h2>{parts}</section>'


def _part(part: Part, name: str) -> str:
    match part:
        case Chart():
            return _drawn(name, part, {"kind": "chart"})
        case Landscape():
            return _drawn(name, part, {"kind": "landscape"})
        case Sheet():
            return _table(part)
        case Notes():
            return f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in part.texts)}</ul>'
        case Facts():
            pairs = "".join(
                f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>"
                for key, value in part.pairs
            )
            return f"<dl>{pairs}</dl>"
        case Code():
            return (
                f'<div class="code"><h3>{escape(part.title)}</h3><button type="button" class="copy">Copy</button>'
                f'<pre tabindex="0" aria-label="{escape(part.title)}">{escape(part.text)}</pre></div>'
            )


def _drawn(name: str, part: Chart | Landscape, kind: dict[str, str]) -> str:
    title = escape(part.title)
    about = escape(part.about)
    return (
        f'<figure id="{name}" class="drawn"><figcaption><h3>{title}</h3><p>{about}</p></figcaption>'
        f'<div class="controls"></div><div class="plot" role="img" aria-label="{title}. {about}"></div>'
        f'<div class="legend" role="group" aria-label="Shown in: {title}"></div>'
        f'<script type="application/json">{embedded(asdict(part) | kind)}</script></figure>'
    )


def embedded(data: Any) -> str:
    """JSON for a script element: a "<" of the data cannot end the element, and U+2028 cannot end a line.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(
        _plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return (
        text.replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _plain(data: Any) -> Any:
    """Data of charts as JSON has them: few digits, and null for what is not finite."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (np.ndarray, np.generic)):
        data = data.tolist()
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return _number(data) if isinstance(data, float) else data


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _table(sheet: Sheet) -> str:
    if any(sheet.header):
        names = "".join(
            f'<th scope="col"><button type="button">{escape(name)}</button></th>'
            for name in sheet.header
        )
        head = f"<thead><tr>{names}</tr></thead>"
    else:
        head = ""
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in sheet.rows)
    title = escape(sheet.title)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>{head}'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    kind = ' class="fail"' if text == "FAIL" else ""
    return f"<td{kind}>{escape(text)}</td>"
