"""What `import tiebreak` gives, and what it leaves for later."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tiebreak


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_imports_neither_torch_nor_jax() -> None:
    slow = ("torch", "jax", "optax", "sklearn", "scipy", "matplotlib", "pandas")
    found = f"[name for name in {slow!r} if name in sys.modules]"
    assert (
        python(f"import sys, tiebreak; from tiebreak import *; print({found})") == "[]"
    )


@pytest.mark.parametrize(
    ("name", "needed", "found"),
    [("torch", "torch", "SDBGD"), ("optax", "jax", "dynamic_barrier")],
)
def test_front_ends_are_there_once_asked_for(
    name: str, needed: str, found: str
) -> None:
    pytest.importorskip(needed)
    assert python(f"import tiebreak; print(tiebreak.{name}.{found}.__name__)") == found
    assert name in dir(tiebreak)


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("torch", "torch", "torch"),
        ("optax", "jax", "jax"),
        ("optax", "optax", "jax"),
    ],
)
def test_without_its_library_a_front_end_names_the_extra(
    name: str, missing: str, extra: str
) -> None:
    code = f"""
import sys
from pathlib import Path
sys.modules[{missing!r}] = None  # makes every import of it fail
import tiebreak
try:
    tiebreak.{name}
except ImportError as error:
    print(error)
"""
    said = python(code)
    assert said.startswith(f"tiebreak.{name} needs ")
    assert said.endswith(f'pip install ".[{extra}]" in a clone of tiebreak')


def test_other_names_are_unknown() -> None:
    with pytest.raises(
        AttributeError, match="module 'tiebreak' has no attribute 'nonsense'"
    ):
        tiebreak.nonsense  # noqa: B018  # asking is the test
    assert not hasattr(tiebreak, "__nonsense__")


def test_what_the_api_pages_show_can_be_imported_from_where_they_say() -> None:
    """Every object under a `currentmodule` of docs/api is there; and the citation is of this version."""
    root = Path(__file__).parent.parent
    for page in sorted((root / "docs" / "api").glob("*.md")):
        module = "tiebreak"
        for line in page.read_text(encoding="utf-8").splitlines():
            words = line.strip().split(":: ")
            if words[0] in (".. currentmodule", ".. automodule"):
                module = words[1]
            elif words[0] in (".. autoclass", ".. autofunction", ".. autodata"):
                place, _, name = words[1].split("(")[0].rpartition(".")
                if (place or module).split(".")[1:2] not in (
                    ["torch"],
                    ["optax"],
                ):  # those need extras
                    assert hasattr(importlib.import_module(place or module), name), (
                        f"{page.name}: {words[1]}"
                    )
    assert tiebreak.Parameters is tiebreak.schedules.Parameters
    assert f"version = {{{tiebreak.__version__}}}" in (root / "README.md").read_text(
        encoding="utf-8"
    )
    assert f"version: {tiebreak.__version__}\n" in (root / "CITATION.cff").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    "module",
    [
        "tiebreak",
        "tiebreak.studies",
        "tiebreak.optax",
        "tiebreak.theory",
        "tiebreak.torch",
    ],
)
def test_every_public_function_and_class_has_an_example(module: str) -> None:
    """A doctest, so that it runs; `--doctest-modules` sees to that."""
    needed = {"optax": "jax", "torch": "torch", "studies": "matplotlib"}
    pytest.importorskip(needed.get(module.rpartition(".")[2], "numpy"))
    package = importlib.import_module(module)
    things = {name: getattr(package, name) for name in package.__all__}
    shown = {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }
    assert shown
    lacking = [
        name for name, thing in shown.items() if ">>> " not in (thing.__doc__ or "")
    ]
    assert not lacking
