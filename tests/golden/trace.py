"""A recorded run: its numbers and texts, how they are saved, and how two of them are compared."""

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "traces"
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass
class Trace:
    """Numbers by name, and lines of text by name."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def save(self, name: str) -> None:
        """Write the trace to ``traces/NAME.npz``."""
        texts = json.dumps(self.texts, ensure_ascii=False)
        np.savez_compressed(
            FOLDER / f"{name}.npz", texts=np.array(texts), **self.arrays
        )

    @classmethod
    def load(cls, name: str) -> "Trace":
        """Read ``traces/NAME.npz``."""
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key != "texts"}
            return cls(arrays, json.loads(str(file["texts"])))


def environment() -> dict[str, str]:
    """The versions and the processor that decide the last bits of a run."""
    packages = {name: version(name) for name in ("numpy", "torch", "jax")}
    return packages | {"python": platform.python_version(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    facts = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith(("model name", "model\t", "flags"))
    ]
    return " ".join(facts[:3])


def differences(actual: Trace, expected: Trace, exact: bool) -> list[str]:
    """Say where two traces differ: by a bit if `exact`, otherwise by more than rounding."""
    problems = _different_names("arrays", actual.arrays, expected.arrays)
    problems += _different_names("texts", actual.texts, expected.texts)
    for name in sorted(set(actual.arrays) & set(expected.arrays)):
        problems += _different_numbers(
            name, actual.arrays[name], expected.arrays[name], exact
        )
    for name in sorted(set(actual.texts) & set(expected.texts)):
        problems += _different_lines(
            name, actual.texts[name], expected.texts[name], exact
        )
    return problems


def _different_names(
    kind: str, actual: Mapping[str, Any], expected: Mapping[str, Any]
) -> list[str]:
    missing = sorted(set(expected) - set(actual))
    added = sorted(set(actual) - set(expected))
    return [f"{kind} missing: {missing}"] * bool(missing) + [
        f"{kind} added: {added}"
    ] * bool(added)


def _different_numbers(
    name: str, actual: np.ndarray, expected: np.ndarray, exact: bool
) -> list[str]:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return [
            f"{name}: {actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
        ]
    if exact or actual.dtype.kind not in "fc":
        equal = np.array_equal(actual, expected, equal_nan=actual.dtype.kind in "fc")
    else:
        equal = np.allclose(actual, expected, rtol=1e-3, atol=1e-6, equal_nan=True)
    if equal:
        return []
    rows = np.flatnonzero(
        (actual != expected) & ~((actual != actual) & (expected != expected))
    )
    first = np.unravel_index(rows[0], actual.shape) if actual.ndim else ()
    return [
        f"{name}: {len(rows)} entries differ, first at {first}: {actual[first]!r} instead of {expected[first]!r}"
    ]


def _different_lines(
    name: str, actual: list[str], expected: list[str], exact: bool
) -> list[str]:
    if not exact:
        actual = [_NUMBER.sub("#", line) for line in actual]
        expected = [_NUMBER.sub("#", line) for line in expected]
    if actual == expected:
        return []
    for row, (left, right) in enumerate(zip(actual, expected, strict=False)):
        if left != right:
            return [f"{name}: line {row} is {left!r} instead of {right!r}"]
    return [f"{name}: {len(actual)} lines instead of {len(expected)}"]


def structure(value: Any, path: str = "") -> list[str]:
    """The keys of a nested state, one line each, with the shape or the type of what stands there."""
    if isinstance(value, Mapping):
        return [
            line for key in value for line in structure(value[key], f"{path}/{key}")
        ]
    if isinstance(value, list | tuple):
        return [
            line
            for i, item in enumerate(value)
            for line in structure(item, f"{path}/{i}")
        ]
    shape = getattr(value, "shape", None)
    kind = type(value).__name__ if shape is None else f"{value.dtype}{tuple(shape)}"
    return [f"{path}: {kind}"]
