"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Seed: TypeAlias = Annotated[
    str, typer.Option(metavar="N", help="The same seed gives the same numbers.")
]
Folder: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where the files go.")
]
Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace results of another command that are in the folder."
    ),
]
Workers: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help="Local processes; if not said, as many as pay."),
]
Scheduler: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Dask scheduler, tcp://host:8786, or local:4 to start one.",
    ),
]
Report: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--report",
        help="And report.html, one page of it all that opens anywhere, offline.",
    ),
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", help="No progress and no remarks; tables and errors stay."),
]
ConstantsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--constants",
        metavar="VALUES",
        # With spaces, or a narrow terminal cuts it off.
        help="paper, or all of L_f, L_g, G_f, sigma_f, sigma_g, delta_f and delta_g, as L_f=1,L_g=2,…; paper,L_f=2 "
        "changes one.",
    ),
]
NoiseSmoothness: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="L|L_F,L_G", help="ℓ of the noise, for SPIDER and STORM; 0 if additive."
    ),
]
