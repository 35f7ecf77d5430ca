"""Style that a machine can check: names that describe a value, modules named after a concept, ordinary words."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "src" / "tiebreak").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not {"_build", "_tables"} & set(page.parts)
    ),
]

#: Local names that say that something happened, and not what the value is.
VAGUE_NAMES = frozenset(
    """
    found given known made mine ours kept seen here there wanted asked shown told held
    said left taken others whole both rest own such anew
    """.split()  # noqa: SIM905  # a column of words is easier to read
)
#: The number of assignments to these names. Lower it whenever the number falls; never raise it.
VAGUE_NAMES_LIMIT = 15
#: Names of modules that nobody understands without the docstring.
VAGUE_MODULES = frozenset(
    """
    said later room likeness concerns outcome exchange pieces traced wrapped context
    replicas draws line soundness packing guard agreement coupling watching working
    remarks own kept work analogues compared contenders entrants
    """.split()  # noqa: SIM905  # a column of words is easier to read
)
#: Phrases that ordinary technical English replaces.
VAGUE_PHRASES = re.compile(
    r"\b(anew|as it comes|at full height|likewise|mend(?:ed|s)?|nobody|whoever|next to all"
    r"|some percent|such a|what is asked|is to be had|want(?:s)? blocks|one pass more"
    r"|by itself alone|beside)\b",
    re.IGNORECASE,
)


def vague_names(text: str) -> list[tuple[int, str]]:
    """Line and name of each assignment to a vague name."""
    return [
        (node.lineno, node.id)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in VAGUE_NAMES
    ]


def prose(text: str) -> str:
    """The running text of a page, without code, formulas, tables and the targets of links."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|<[^>]+>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r" \1 ", text)
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("|"))


def test_vague_names_do_not_increase() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        for line, name in vague_names(path.read_text(encoding="utf-8"))
    ]
    assert len(places) <= VAGUE_NAMES_LIMIT, "\n".join(
        [f"{len(places)} vague names; rename the value that you added:", *places]
    )


def test_no_module_has_a_vague_name() -> None:
    assert [str(path) for path in MODULES if path.stem in VAGUE_MODULES] == []


def test_no_page_has_a_vague_phrase() -> None:
    places = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in PAGES
        for match in VAGUE_PHRASES.finditer(prose(page.read_text(encoding="utf-8")))
    ]
    assert places == []


def test_the_checks_can_fail() -> None:
    assert vague_names("x = 1\nfound = x\nfor own in x: pass") == [
        (2, "found"),
        (3, "own"),
    ]
    page = "It is mended.\n\n```\nnobody\n```\nIn `beside` such a\n| likewise |"
    assert VAGUE_PHRASES.findall(prose(page)) == ["mended", "such a"]
