"""Models that take long to train are trained once and kept on disk. One that was made otherwise is never taken."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors

from tiebreak.files import atomic, locked

__all__ = ["folder", "kept"]

_MARK = b"tiebreak model 1\n"
_WAIT = 0.5  # seconds between two looks at a model that another process trains


def folder() -> Path:
    """Where models are kept: the environment variable ``TIEBREAK_CACHE``, else ``cache`` in the folder of the data."""
    data = os.environ.get("TIEBREAK_DATA", "tiebreak-data")
    return Path(os.environ.get("TIEBREAK_CACHE", str(Path(data) / "cache")))


def kept(
    name: str, made_by: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The state that `make` returns: from the disk where it was made before by the same.

    `made_by` says everything that the result depends on: settings, seed, checksums of data and code. Its digest is in
    the file's name, and torch's version with it, so another recipe is another file. The bytes have a checksum; a file
    that is not whole is made anew, with a warning. Only one process makes a model; others wait for it.

    Parameters
    ----------
    name : str
        How the file's name begins, for people.
    made_by : mapping
        Numbers and strings by name.
    make : callable
        Returns tensors by name.
    """
    recipe = json.dumps({**made_by, "torch": torch.__version__}, sort_keys=True)
    path = (
        folder()
        / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:24]}.safetensors"
    )
    while True:
        if (found := _read(path)) is not None:
            return found
        try:
            with locked(path):
                if (
                    found := _read(path)
                ) is None:  # another process may have finished just before
                    found = make()
                    _write(path, found)
                return found
        except BlockingIOError:
            time.sleep(_WAIT)


def _write(path: Path, state: dict[str, Any]) -> None:
    payload = safetensors.save(
        {name: tensor.contiguous() for name, tensor in state.items()}
    )
    with atomic(path) as file:
        file.write(
            _MARK + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, payload = data[: len(_MARK) + 65], data[len(_MARK) + 65 :]
    if head != _MARK + hashlib.sha256(payload).hexdigest().encode() + b"\n":
        warnings.warn(
            f"{path} is damaged: its checksum is wrong. The model is trained anew.",
            stacklevel=3,
        )
        path.unlink(missing_ok=True)
        return None
    return dict(safetensors.load(payload))
