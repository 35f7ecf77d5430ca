"""The built documentation, page by page: every link leads somewhere, and a browser shows it without a network.

``make site`` builds it and runs this; elsewhere the environment variable TIEBREAK_SITE names its folder.
"""

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import browser, look

SITE = Path(os.environ.get("TIEBREAK_SITE", "")).resolve()
pytestmark = pytest.mark.skipif(
    not os.environ.get("TIEBREAK_SITE"),
    reason="no built documentation was named: `make site` does it",
)


class Page(HTMLParser):
    """The links of a page, what it loads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loads.append(given["src"])
        if (
            tag == "link"
            and given.get("href")
            and given.get("rel") in ("stylesheet", "icon", "preload")
        ):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def pages():
    found = {
        path: Page(path)
        for path in sorted(SITE.rglob("*.html"))
        if "_static" not in path.parts
    }
    assert len(found) > 20, f"{SITE} holds no documentation"
    return found


def target(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    return (
        (page.parent / unquote(parts.path)).resolve() if parts.path else page
    ), unquote(parts.fragment)


def test_every_link_leads_somewhere(pages):
    wrong = []
    for path, page in pages.items():
        listing = (
            "_modules" in path.parts
        )  # it links back to names that the reference may have under another one
        for link in page.links:
            if urlsplit(link).scheme:  # outside; nothing is asked of the network here
                continue
            file, place = target(path, link)
            if not file.exists() or (
                place
                and not listing
                and file in pages
                and place not in pages[file].places
            ):
                wrong.append(f"{path.relative_to(SITE)}: {link}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_nothing_is_loaded_from_outside(pages):
    outside = {
        f"{path.relative_to(SITE)}: {source}"
        for path, page in pages.items()
        for source in page.loads
        if urlsplit(source).netloc
    }
    assert not outside
    missing = {
        f"{path.relative_to(SITE)}: {source}"
        for path, page in pages.items()
        for source in page.loads
        if urlsplit(source).scheme != "data" and not target(path, source)[0].exists()
    }
    assert not missing


#: Formulas that MathJax did not make, or could not; and whether it is done.
FOUND = """
const done = arguments[arguments.length - 1];
const settle = () => {
  const raw = [...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container'));
  const bad = document.querySelectorAll('mjx-merror').length;
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth + 1;
  done([raw.map(e => e.textContent.slice(0, 80)), bad, wide]);
};
if (!document.querySelector('.math')) settle();
else if (window.MathJax && MathJax.startup && MathJax.startup.promise) MathJax.startup.promise.then(settle);
else setTimeout(settle, 3000);
"""


def test_a_browser_shows_every_page_without_a_network(pages):
    """Every page but the listings of source code, which have no formulas and one layout: the first of them."""
    listings = [path for path in pages if "_modules" in path.parts]
    wrong = []
    with browser() as opened:
        opened.execute_cdp_cmd("Network.enable", {})
        opened.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {
                "offline": True,
                "latency": 0,
                "downloadThroughput": 0,
                "uploadThroughput": 0,
            },
        )
        opened.set_script_timeout(30)
        for path in sorted(pages.keys() - {*listings[1:]}):
            name = str(path.relative_to(SITE))
            look(opened, 1280, "light")
            opened.get(path.as_uri())
            raw, bad, wide = opened.execute_async_script(FOUND)
            look(opened, 390, "dark")
            narrow = opened.execute_async_script(FOUND)[2]
            wrong += [f"{name}: not rendered: {text}" for text in raw]
            wrong += [f"{name}: MathJax refused {bad} formulas"] * (bad > 0)
            wrong += [
                f"{name}: wider than a window of {w}"
                for w, is_so in ((1280, wide), (390, narrow))
                if is_so
            ]
            for entry in opened.get_log("browser"):
                if entry["level"] in ("SEVERE", "WARNING"):
                    wrong.append(f"{name}: console: {entry['message'][:200]}")
    assert not wrong, "\n".join(wrong)
