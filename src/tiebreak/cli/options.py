"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

Text: TypeAlias = str | None


def option(metavar: str, text: str, **more: Any) -> Any:
    """An option with a value, by its name in the help and its sentence."""
    return typer.Option(metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text)


Seed: TypeAlias = Annotated[str, option("N", "The same seed gives the same numbers.")]
Folder: TypeAlias = Annotated[Path, option("FOLDER", "Where the files go.")]
Overwrite: TypeAlias = Annotated[
    bool,
    flag("--overwrite", "Replace files that are not of this command."),
]
Workers: TypeAlias = Annotated[
    Text,
    option("N", "Local processes; by default as many as pay."),
]
Scheduler: TypeAlias = Annotated[
    Text,
    option(
        "ADDRESS",
        "A Dask scheduler, tcp://host:8786, or local:4 to start one.",
    ),
]
Report: TypeAlias = Annotated[
    bool,
    flag("--report", "Write report.html, too: one page, for offline."),
]
Quiet: TypeAlias = Annotated[
    bool,
    flag("--quiet", "No progress and no remarks; tables and errors stay."),
]
ConstantsOption: TypeAlias = Annotated[
    Text,
    typer.Option(
        "--constants",
        metavar="VALUES",
        # With spaces, or a narrow terminal cuts the text off.
        help="paper, or all of L_f, L_g, G_f, sigma_f, sigma_g, delta_f and delta_g, as L_f=1,L_g=2,…; paper,L_f=2 "
        "changes one.",
    ),
]
NoiseSmoothness: TypeAlias = Annotated[
    Text,
    option("L|L_F,L_G", "ℓ of the noise, for SPIDER and STORM; 0 if additive."),
]
Place: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER or LOG.csv",
        help="A folder that a command wrote, or a training run's CSV log.",
        show_default=False,
    ),
]
