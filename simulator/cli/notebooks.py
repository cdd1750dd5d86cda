"""dtsim notebooks: the lessons, copied with their data to where they can be worked with."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import ForceOption
from simulator.cli.output import note

__all__ = ["command"]


def command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder to copy to; made where there is none.")],
    force: ForceOption = False,
) -> None:
    """Copy the lessons (Jupyter notebooks with exercises and solutions) and their data to a folder of your own.

    Open them with `jupyter lab DIR`; each runs on a CPU in under half a minute. Sliders need ipywidgets (pip install 'dtsim[notebooks]');
    without it the same pictures stand still.
    """
    from simulator.studies.lessons import copy_lessons

    for path in copy_lessons(folder, force):
        print(path)
    note(f"next: pip install 'dtsim[notebooks]' && jupyter lab {folder}")
