"""A figure that becomes a file: begun once the file's ending is known to be one of a picture, and written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simulator.specs import ending_error, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_picture", "new_picture", "save_picture"]


def check_picture(*paths: str | Path | None) -> None:
    """Refuse a file, where one is named, whose ending is none of a picture; also before anything is computed.

    Raises:
        SpecError: it is none.
    """
    for path in paths:
        if path is None:
            continue
        from matplotlib.backend_bases import FigureCanvasBase

        formats = FigureCanvasBase.get_supported_filetypes()
        if Path(path).suffix[1:].lower() not in formats:
            raise ending_error("picture", path, sorted(formats))


def new_picture(
    path: str | Path, width: float, height: float, dpi: int = 130, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Return an empty figure of so many inches for a file.

    Raises:
        SpecError: an ending that names no picture format.
    """
    from matplotlib.figure import Figure

    check_picture(path)
    return Figure(figsize=(width, height), dpi=dpi, layout=layout)


def save_picture(figure: Figure, path: str | Path, title: str = "") -> Path:
    """Write a figure in the format that the path ends in, and return the path.

    It is drawn in memory first, so that a disk that is full is told as such whatever the format's writer makes of it.

    Args:
        title: above the picture.

    Raises:
        OSError: it cannot be written; names the file.
    """
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or None, facecolor="white")
    with replacing(path) as beside:
        beside.write_bytes(drawn.getvalue())  # a copy: Python 3.12.1 dies of a buffer whose write failed (gh-111049)
    return Path(path)
