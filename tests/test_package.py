"""What `import tiebreak` gives, and what it leaves for later."""

import subprocess
import sys

import pytest

import tiebreak


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_imports_neither_torch_nor_jax() -> None:
    slow = "[name for name in ('torch', 'jax', 'optax', 'matplotlib', 'pandas') if name in sys.modules]"
    assert python(f"import sys, tiebreak; from tiebreak import *; print({slow})") == "[]"


@pytest.mark.parametrize(
    ("name", "needed", "found"), [("torch", "torch", "SDBGD"), ("optax", "jax", "dynamic_barrier")]
)
def test_front_ends_are_there_once_asked_for(name: str, needed: str, found: str) -> None:
    pytest.importorskip(needed)
    assert python(f"import tiebreak; print(tiebreak.{name}.{found}.__name__)") == found
    assert name in dir(tiebreak)


@pytest.mark.parametrize(
    ("name", "missing", "extra"), [("torch", "torch", "torch"), ("optax", "jax", "jax"), ("optax", "optax", "jax")]
)
def test_without_its_library_a_front_end_names_the_extra(name: str, missing: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None  # makes every import of it fail
import tiebreak
try:
    tiebreak.{name}
except ImportError as error:
    print(error)
"""
    said = python(code)
    assert said.startswith(f"tiebreak.{name} needs ")
    assert said.endswith(f"pip install 'tiebreak[{extra}]'")


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'tiebreak' has no attribute 'nonsense'"):
        tiebreak.nonsense  # noqa: B018  # asking is the test
    assert not hasattr(tiebreak, "__nonsense__")
