"""Where numbers come from: the date, the versions, and the commit of the library where it is a checkout."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@cache
def commit() -> str | None:
    """The commit of the checkout that the library is imported from, with "-dirty" if files differ; None elsewhere.

    A library that is installed is in no checkout of its own, though its folder may be inside somebody else's.
    """
    root = Path(__file__).resolve().parents[2]
    if not (
        (root / ".git").exists()
        and (root / "src" / "tiebreak" / "provenance.py").exists()
    ):
        return None
    command = [
        "git",
        "-C",
        os.fspath(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return done.stdout.strip() or None
    return None


def made_by() -> dict[str, Any]:
    """Commit and versions: the same for two equal runs, so that it may stand in files that are compared."""
    library = sys.modules[
        __package__
    ].__version__  # not imported: this module is a part of it
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tiebreak": library,
    }
    return {"commit": commit(), "versions": versions}


def stamp() -> dict[str, Any]:
    """The same with date and platform, for files that say when they were made."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "date": date,
        **made_by(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def origin_of(record: Any) -> dict[str, Any]:
    """What :func:`stamp` put into a record, for the files beside it; a new one where there is none.

    Examples
    --------
    >>> origin_of({"date": "2026-01-02T03:04:05+00:00", "commit": None, "runs": 3})
    {'date': '2026-01-02T03:04:05+00:00', 'commit': None}
    """
    present = stamp()
    if "date" in record:
        return {name: record[name] for name in present if name in record}
    return present


def sentence(made: Mapping[str, Any]) -> str:
    """What :func:`stamp` says, for the reader of a summary.

    Examples
    --------
    >>> versions = {"tiebreak": "0.1.0", "python": "3.11.7", "numpy": "2.0"}
    >>> sentence({"date": "2026-01-02T03:04:05+00:00", "commit": None, "versions": versions})
    'Made on 2026-01-02 by tiebreak 0.1.0, python 3.11.7, numpy 2.0.'
    """
    versions = made["versions"]
    revision = made["commit"]
    named = [
        f"{name} {versions[name]}"
        for name in ("tiebreak", "python", "numpy")
        if name in versions
    ]
    if revision and named:
        named[0] += f" (commit {revision[:12]}{'-dirty' * revision.endswith('-dirty')})"
    return f"Made on {made['date'][:10]} by {', '.join(named)}."
