"""The command line that repeats a study."""

import shlex
from typing import Any

from tiebreak.studies.tables import Facts


def command_line(name: str, options: Facts) -> str:
    """The command of this name with its options; None and False are left out.

    >>> command_line("verify", {"runs": 4, "quick": True, "steps": None, "noise_smoothness": (0.0, 0.5)})
    'tiebreak verify --runs 4 --quick --noise-smoothness 0.0,0.5'
    """
    words = ["tiebreak", name]
    for option, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{option.replace('_', '-')}")
        if value is not True:
            parts = value if isinstance(value, (tuple, list)) else [value]
            words.append(",".join(map(_typed, parts)))
    return shlex.join(words)


def _typed(value: Any) -> str:
    """A value as a user types it; the name of an object, which nobody can type, in angle brackets."""
    if hasattr(value, "name"):
        return f"<{value.name}>"
    return str(value)
