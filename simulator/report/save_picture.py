"""A figure as a file: drawn in memory first, so that a disk that is full is told as such whatever the format's writer makes of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.specs import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_picture"]


def save_picture(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format that the path ends in, whole or not at all, and return the path.

    Raises:
        OSError: it cannot be written; names the file.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or None, facecolor="white")
    with replacing(path) as beside:
        beside.write_bytes(drawn.getvalue())  # a copy: Python 3.12.1 dies of a buffer whose write failed (gh-111049)
    return Path(path)
