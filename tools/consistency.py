"""Whether version, changelog, citation, metadata and documentation agree. Reads files, imports nothing of ours."""

import ast
import re
import tomllib
from datetime import date
from pathlib import Path

__all__ = ["faults", "version"]

_FRONT_ENDS = ("torch", "optax")


def version(root: Path) -> str:
    """What `tiebreak.__version__` says."""
    found = re.search(
        r'^__version__ = "([^"]+)"$',
        _text(root, "src/tiebreak/__init__.py"),
        re.MULTILINE,
    )
    if found is None:
        raise ValueError("src/tiebreak/__init__.py has no line __version__ = …")
    return found[1]


def faults(root: Path) -> list[str]:
    """A sentence for each contradiction; none if all is well."""
    now = version(root)
    found = (
        []
        if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", now)
        else [f"__version__ = {now!r} must be like 1.2.3"]
    )
    project = tomllib.loads(_text(root, "pyproject.toml"))["project"]
    for check in (_citation, _readme, _metadata, _extras, _api):
        found += check(root, now, project)
    return found + _changelog(root, now)


def _citation(root: Path, now: str, project: dict) -> list[str]:
    said = dict(
        re.findall(
            r"^(version|license): *(\S+)$", _text(root, "CITATION.cff"), re.MULTILINE
        )
    )
    wanted = {"version": now, "license": project["license"]}
    return [
        f"CITATION.cff: {k} is {said.get(k)}, not {v}"
        for k, v in wanted.items()
        if said.get(k) != v
    ]


def _readme(root: Path, now: str, _: dict) -> list[str]:
    text = _text(root, "README.md")
    places = {
        "the BibTeX entry": r"version += \{([^}]+)\}",
        "the status": r"^Version (\S+?),? ",
    }
    found = {
        name: re.search(pattern, text, re.MULTILINE) for name, pattern in places.items()
    }
    # The entry must be there; the status goes with the first release.
    wrong = [
        f"README.md: {name} says {match[1]}, not {now}"
        for name, match in found.items()
        if match and match[1] != now
    ]
    return wrong + ["README.md: the BibTeX entry has no version"] * (
        found["the BibTeX entry"] is None
    )


def _metadata(root: Path, now: str, project: dict) -> list[str]:
    """The Pythons of the classifiers begin with that of requires-python."""
    listed = [
        c.rpartition(" ")[2]
        for c in project["classifiers"]
        if re.search(r":: 3\.\d+$", c)
    ]
    least = project["requires-python"].removeprefix(">=")
    if not listed or listed[0] != least:
        return [
            f"pyproject.toml: requires-python begins with {least}, the classifiers with {(listed or ['none'])[0]}"
        ]
    return []


def _extras(root: Path, now: str, project: dict) -> list[str]:
    """What README and docs tell people to install exists."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    asked = {
        (page.relative_to(root), extra)
        for page in pages
        for names in re.findall(
            r"(?:tiebreak|\.)\[([a-z,]+)\]", page.read_text(encoding="utf-8")
        )
        for extra in names.split(",")
    }
    known = set(project["optional-dependencies"])
    return [
        f"{page}: there is no extra {extra!r}"
        for page, extra in sorted(asked)
        if extra not in known
    ]


def _api(root: Path, now: str, _: dict) -> list[str]:
    """Every public name is on a page of the reference."""
    pages = "\n".join(
        page.read_text(encoding="utf-8")
        for page in (root / "docs" / "api").glob("*.md")
    )
    text = " ".join(re.findall(r"^ *\.\. auto\w+:: (\S+)", pages, re.MULTILINE))
    for module in re.findall(
        r"automodule:: (tiebreak[\w.]+)\n +:members:", pages
    ):  # all that is public there
        place = "src/" + module.replace(".", "/")
        file = (
            f"{place}.py" if (root / f"{place}.py").exists() else f"{place}/__init__.py"
        )
        text += " ".join(["", *_public(_text(root, file))])
    found = []
    for module in ("", *_FRONT_ENDS):
        source = _text(
            root, "/".join(filter(None, ("src/tiebreak", module, "__init__.py")))
        )
        for name in _public(source):
            if not re.search(rf"\b{name}\b", text):
                found.append(
                    f"docs/api: {'.'.join(filter(None, ('tiebreak', module, name)))} is on no page"
                )
    return found


def _changelog(root: Path, now: str) -> list[str]:
    """The newest section is of this version, with a date that is none to come; or the unreleased one names it."""
    head = re.search(
        r"^## \[([^\]]+)\](?: - (\S+))?\n+(.*)$",
        _text(root, "CHANGELOG.md"),
        re.MULTILINE,
    )
    if head is None:
        return ["CHANGELOG.md: there is no section ## [version] - date"]
    name, day, first = head.groups()
    if name == "Unreleased":
        return (
            []
            if re.search(rf"\b{re.escape(now)}\b", first)
            else [f"CHANGELOG.md: [Unreleased] does not name {now}"]
        )
    if name != now:
        return [f"CHANGELOG.md: the newest section is [{name}], not [{now}]"]
    try:
        return (
            []
            if date.fromisoformat(day or "") <= date.today()
            else [f"CHANGELOG.md: {day} is to come"]
        )
    except ValueError:
        return [f"CHANGELOG.md: [{name}] has no date: ## [{name}] - YYYY-MM-DD"]


def _public(source: str) -> list[str]:
    """`__all__` of a package, from its text; of a module without, its functions and classes without an underscore."""
    body = ast.parse(source).body
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "__all__"
        ):
            return list(ast.literal_eval(node.value))
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
    ]


def _text(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")
