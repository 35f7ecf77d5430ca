"""``make release``: everything that can be found out before an upload, and the artefacts in dist/. Uploads nothing.

1. Version, changelog, citation, metadata and documentation against each other.
2. Wheel and sdist; what is in them.
3. The sdist in an empty environment, and the wheel in many: on every Python that is supported and found here, with the
   newest libraries and with the oldest that it says it works with. torch is large: the version that the tests run with
   only; ``--torch`` adds the oldest.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from consistency import faults, version

ROOT = Path(__file__).parent.parent
SMOKE = Path(__file__).parent / "smoke.py"
#: The extras that are tried, and what each of them must bring; None is the core.
EXTRAS = {
    "": (),
    "cli": ("typer",),
    "report": ("typer", "plotly"),
    "data": ("pandas", "pyarrow"),
    "dask": ("typer", "distributed"),
    "jax": ("jax",),
    "torch": ("torch",),
}
#: What is no module and must be in the wheel all the same.
DATA = {
    f"tiebreak/{name}" for name in ("py.typed", "studies/page.js", "studies/page.css")
}
DATA |= {f"tiebreak/styles/{name}.mplstyle" for name in ("base", "column", "page")}
_TORCH = "torch==2.13.0"  # as in the Makefile: others bring gigabytes


def build(dist: Path) -> tuple[Path, Path]:
    """Wheel and sdist, alone in dist/; the wheel is made from the sdist."""
    shutil.rmtree(dist, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[1:])}\n{done.stdout}{done.stderr}")
    return next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))


def contents(wheel: Path, sdist: Path) -> list[str]:
    """A sentence for everything that is missing in the artefacts, or should not be there."""
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    tops = {name.partition("/")[0] for name in inside}
    found = [
        f"{wheel.name}: {top}/ does not belong there"
        for top in tops
        if not re.match(r"tiebreak(-.*\.dist-info)?$", top)
    ]
    # Everything, not the modules alone: pages need page.js and page.css, figures the styles, type checkers py.typed.
    files = [path for path in (ROOT / "src" / "tiebreak").rglob("*") if path.is_file()]
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in files
        if "__pycache__" not in path.parts
    }
    found += [
        f"{wheel.name}: {name} is missing" for name in sorted((sources | DATA) - inside)
    ]
    with tarfile.open(sdist) as file:
        inside = {
            member.name.partition("/")[2]
            for member in file.getmembers()
            if member.isfile()
        }
    wanted = {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "pyproject.toml",
        *(f"src/{s}" for s in sources),
    }
    allowed = wanted | {"PKG-INFO", ".gitignore"}
    found += [f"{sdist.name}: {name} is missing" for name in sorted(wanted - inside)]
    return found + [
        f"{sdist.name}: {name} does not belong there"
        for name in sorted(inside - allowed)
    ]


def pythons() -> dict[str, str]:
    """The supported Pythons that are on this machine, by version: on the path, or pyenv's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    supported = [
        c.rpartition(" ")[2]
        for c in project["classifiers"]
        if re.search(r":: 3\.\d+$", c)
    ]
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for number in supported:
        candidates = [
            shutil.which(f"python{number}"),
            *map(str, pyenv.glob(f"{number}.*/bin/python")),
        ]
        for candidate in filter(None, candidates):
            # A shim of pyenv's is there for versions that are not chosen, and fails.
            works = (
                subprocess.run(
                    [candidate, "-c", "import venv, ensurepip"], capture_output=True
                ).returncode
                == 0
            )
            if works and number not in found:
                found[number] = candidate
    return {number: found[number] for number in supported if number in found}


def oldest(wheel: Path, extra: str, python: str) -> list[str]:
    """What the wheel needs with this extra, each at the least version that it says will do."""
    with zipfile.ZipFile(wheel) as file:
        metadata = file.read(
            next(
                name for name in file.namelist() if name.endswith(".dist-info/METADATA")
            )
        ).decode()
    # An extra may ask for another one of ours: what that needs is needed as well.
    nested = re.findall(
        rf"^Requires-Dist: tiebreak\[([\w,]+)\]; extra == '{extra}'$",
        metadata,
        re.MULTILINE,
    )
    extras = (
        {extra, *(name for names in nested for name in names.split(","))}
        if extra
        else set[str]()
    )
    pins = []
    for name, least, marker in re.findall(
        r"^Requires-Dist: ([\w-]+)>=([\w.]+)(?:; (.*))?$", metadata, re.MULTILINE
    ):
        asked = re.search(r"extra == '(\w+)'", marker)
        bound = re.search(r"python_version (<|>=) '3\.(\d+)'", marker)
        minor = int(python.partition(".")[2])
        fits = bound is None or (minor < int(bound[2])) == (bound[1] == "<")
        if fits and (asked is None or asked[1] in extras):
            pins.append(f"{name}=={least}")
    return pins


def smoke(artefact: Path, python: str, extra: str, pins: list[str]) -> str:
    """Install into an empty environment, and try; what it says, or raise with all that was said."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [python, "-m", "venv", f"{folder}/venv"], check=True, capture_output=True
        )
        inside = f"{folder}/venv/{'Scripts' if os.name == 'nt' else 'bin'}/python"
        wanted = f"{artefact}[{extra}]" if extra else str(artefact)
        install = [
            inside,
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
            "--no-compile",  # half of the time, for modules that are never imported
            wanted,
            *pins,
        ]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
            "OMP_NUM_THREADS": "1"
        }
        for command in (
            install,
            [inside, "-I", "-W", "error", str(SMOKE), version(ROOT), *EXTRAS[extra]],
        ):
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(
                    f"{' '.join(command[3:])}\n{done.stdout}{done.stderr}"
                )
        return done.stdout.strip()


def rows(
    wheel: Path, here: dict[str, str], large: bool
) -> Iterator[tuple[str, str, list[str]]]:
    """Python, extra and pins of every environment: newest, then oldest."""
    for number in here:
        for extra in EXTRAS:
            if extra != "torch":
                yield number, extra, []
                yield number, extra, oldest(wheel, extra, number)
        yield number, "torch", [_TORCH]
    if large:
        yield next(iter(here)), "torch", oldest(wheel, "torch", next(iter(here)))


def main() -> int:
    """Everything, in order; 1 if something was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="the first part alone")
    parser.add_argument(
        "--torch", action="store_true", help="the oldest torch too: gigabytes"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="environments that match, such as '3.13 .*jax'",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the core alone, newest, on this Python"
    )
    asked = parser.parse_args()
    found = faults(ROOT)
    if found or asked.check:
        print(
            "\n".join(found)
            or f"tiebreak {version(ROOT)}: version, changelog, citation, metadata and docs agree"
        )
        return bool(found)
    wheel, sdist = build(ROOT / "dist")
    found = contents(wheel, sdist)
    here = pythons()
    table = (
        [(f"{sys.version_info.major}.{sys.version_info.minor}", "", [])]
        if asked.quick
        else rows(wheel, here, asked.torch)
    )
    for artefact, (number, extra, pins) in [
        (sdist, (next(iter(here)), "", [])),
        *((wheel, row) for row in table),
    ]:
        began = time.perf_counter()
        title = (
            f"{number} [{extra or 'core'}] {' '.join(pins) or 'newest'}"
            + ", sdist" * (artefact == sdist)
        )
        if not re.search(asked.only, title):
            continue
        try:
            said = smoke(artefact, here.get(number, sys.executable), extra, pins)
            print(
                f"ok    {title}  ({said}; {time.perf_counter() - began:.0f} s)",
                flush=True,
            )
        except RuntimeError as error:
            found.append(f"{title}: {error}")
            print(f"FAIL  {title}\n{error}", flush=True)
    print(
        "\n".join(found)
        or f"{wheel.name} and {sdist.name} are in dist/. Nothing was uploaded."
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
