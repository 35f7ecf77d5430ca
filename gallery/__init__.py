"""Real problems: where the library pays, and where it does not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tiebreak.checks import install, nearest

if TYPE_CHECKING:
    from tiebreak.studies.user_files import Source

__all__ = ["EXAMPLES", "get", "place", "referred"]

#: Where each example is: "module:name" within this package. Nothing is imported before it is asked for.
EXAMPLES: Mapping[str, str] = {
    "regression": "regression:EXAMPLE",
    "dictionary": "dictionary:EXAMPLE",
    "fairness-adult-parity": "fairness:ADULT_PARITY",
    "fairness-adult-odds": "fairness:ADULT_ODDS",
    "fairness-compas-parity": "fairness:COMPAS_PARITY",
    "fairness-compas-odds": "fairness:COMPAS_ODDS",
    "sparsity": "sparsity:EXAMPLE",
    "continual-all": "continual:EXAMPLE",
    "unlearning-class": "unlearning_images:EXAMPLE",
    "unlearning-secrets": "unlearning_language:EXAMPLE",
}


def place(name: str) -> str:
    """Where an example is, as "module:name" or "file.py:name": one of :data:`EXAMPLES`, or a file with an ``EXAMPLE``.

    >>> place("mine.py")
    'mine.py:EXAMPLE'
    """
    if name in EXAMPLES:
        return f"{__name__}.{EXAMPLES[name]}"
    file, _, attribute = name.partition(".py:")
    if attribute:
        return f"{file}.py:{attribute}"
    if name.endswith(".py"):
        return f"{name}:EXAMPLE"
    asked = nearest(name, EXAMPLES)
    raise ValueError(
        f"name={name!r} must be one of {', '.join(EXAMPLES)}, or a file such as mine.py with an EXAMPLE{asked}"
    )


def referred(name: str) -> "Source":
    """The source of an example, which workers can load; ValueError if a library that it needs is not installed."""
    from tiebreak.studies.user_files import source_at

    try:
        return source_at(place(name), "name")
    except ValueError as error:
        if name not in EXAMPLES:
            raise
        raise ValueError(
            f"{error}: {install('gallery')}"
        ) from None  # ours fail in this way alone


def get(name: str) -> Any:
    """The :class:`~gallery.example.Example` of that name, or of that file."""
    return referred(name).load()
