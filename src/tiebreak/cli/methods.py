"""``tiebreak methods``."""

from rich.markup import escape

from tiebreak.cli.console import Console
from tiebreak.experiments.configuration import describe, reconstructed
from tiebreak.experiments.contenders import PLANNED
from tiebreak.methods import NAMED


def methods() -> None:
    """List the methods: rule, schedule and estimator of each."""
    console = Console(highlight=False, soft_wrap=True)
    for name in NAMED:
        parts = describe(name)
        title = parts.pop("name") + (
            "  † our reconstruction" if reconstructed(name) else ""
        )
        console.print(f"[bold]{name}[/]  {escape(title)}")
        for part, text in parts.items():
            console.print(f"  [dim]{part:<10}[/] {escape(text)}")
    console.print(
        "\nBesides, for `tiebreak compare` and `sweep`, made for a problem's constants and a budget:"
    )
    for name, planned in PLANNED.items():
        console.print(f"[bold]{name}[/]  {escape(planned.words)}")
