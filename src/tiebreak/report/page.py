"""The page: one HTML file that needs no other, whatever the sections hold."""

from collections.abc import Iterator
from html import escape
from importlib import resources
from itertools import count

from tiebreak.experiments.colours import COLOURS
from tiebreak.experiments.tables import Sheet
from tiebreak.report import data
from tiebreak.report.section import Chart, Code, Facts, Landscape, Notes, Page, Part, Section, Verdict

__all__ = ["LARGEST", "render"]

#: Bytes that a page may have.
LARGEST = 6_000_000
_FEWER = (800, 400, 200, 100, 50, 25)  # points of a curve, where all of them would make the page too large
_THINNED = " Curves have at most {most} points each: all of them would take more than {limit} MB."

# Nothing is fetched from anywhere: what is not in the file does not exist for it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def render(page: Page) -> str:
    """The page as HTML; where it would be larger than :data:`LARGEST`, with fewer points of each curve, and saying so.

    Raises
    ------
    ValueError
        Where it is too large all the same.
    """
    text = _rendered(page)
    for most in _FEWER:
        if len(text.encode()) <= LARGEST:
            return text
        text = _rendered(data.sparser(page, most), _THINNED.format(most=most, limit=LARGEST // 10**6))
    if len(text.encode()) > LARGEST:
        raise ValueError(
            f"the report has {len(text.encode()):,} bytes with {_FEWER[-1]} points of each curve, and must have at "
            f"most {LARGEST:,}: ask for fewer methods or problems"
        )
    return text


def _rendered(page: Page, remark: str = "") -> str:
    ids = (f"part-{i}" for i in count())
    names = ["verdict", *(f"section-{i}" for i in range(len(page.sections)))]
    titles = ["Verdict", *(section.title for section in page.sections)]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in zip(names, titles, strict=True))
    body = "".join(_section(name, section, ids) for name, section in zip(names[1:], page.sections, strict=True))
    return _TEMPLATE.format(
        title=escape(page.title),
        policy=_POLICY,
        css=_resource("page.css"),
        links=links,
        verdict=_verdict(page.verdict),
        body=body,
        colours=data.embedded(COLOURS),
        plotly=_plotly(),
        program=_resource("page.js"),
        remark=remark,
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
<footer>Made by tiebreak. This file needs no network and no other file.{remark}</footer>
<script type="application/json" id="colours">{colours}</script>
<script>{plotly}</script>
<script>{program}</script>
</body>
</html>
"""


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # only here: a page may be described without it

    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script")


def _resource(name: str) -> str:
    return resources.files("tiebreak.report").joinpath(name).read_text(encoding="utf-8")


def _verdict(verdict: Verdict) -> str:
    kind = {True: "good", False: "bad", None: "open"}[verdict.good]
    found = "".join(f"<li>{escape(text)}</li>" for text in verdict.found)
    return (
        f'<section id="verdict" class="verdict {kind}" aria-label="Verdict"><p class="word">{escape(verdict.word)}</p>'
        f'<p class="asked">{escape(verdict.asked)}</p><ul>{found}</ul></section>'
    )


def _section(name: str, section: Section, ids: Iterator[str]) -> str:
    parts = "".join(_part(part, next(ids)) for part in section.parts)
    return f'<section id="{name}"><h2>{escape(section.title)}</h2>{parts}</section>'


def _part(part: Part, name: str) -> str:
    match part:
        case Chart():
            return _drawn(name, part.title, part.about, data.embedded(data.chart(part)))
        case Landscape():
            return _drawn(name, part.title, part.about, data.embedded(data.landscape(part)))
        case Sheet():
            return _table(part)
        case Notes():
            return f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in part.texts)}</ul>'
        case Facts():
            pairs = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in part.pairs)
            return f"<dl>{pairs}</dl>"
        case Code():
            return (
                f'<div class="code"><h3>{escape(part.title)}</h3><button type="button" class="copy">Copy</button>'
                f'<pre tabindex="0" aria-label="{escape(part.title)}">{escape(part.text)}</pre></div>'
            )


def _drawn(name: str, title: str, about: str, text: str) -> str:
    return (
        f'<figure id="{name}" class="drawn"><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>'
        f'<div class="controls"></div><div class="plot" role="img" aria-label="{escape(f"{title}. {about}")}"></div>'
        f'<div class="legend" role="group" aria-label="Shown in: {escape(title)}"></div>'
        f'<script type="application/json">{text}</script></figure>'
    )


def _table(sheet: Sheet) -> str:
    if any(sheet.header):
        names = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in sheet.header)
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
