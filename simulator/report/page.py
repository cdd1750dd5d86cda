"""An answer as one HTML file that needs nothing beside it: the tables, and the pictures inside."""

from __future__ import annotations

import base64
import html
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from simulator.report.prediction import Prediction
from simulator.report.table import Section, sections_html

__all__ = ["page_html", "picture_html", "write_page"]

_STYLE = """
body { font-family: system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #202020; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.15rem 0.7rem; border-bottom: 1px solid #e4e4e4; text-align: left; white-space: pre; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
p { margin: 0.3rem 0; } img { max-width: 100%; }
details { margin: 0.3rem 0; } summary { cursor: pointer; }
"""


def page_html(title: str, parts: Iterable[str]) -> str:
    """Return a whole page of these HTML parts under one heading."""
    said, body = html.escape(title), "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{said}</title><style>{_STYLE}</style>\n"
        f"<h1>{said}</h1>\n{body}\n</html>\n"
    )


def picture_html(title: str, picture: Path) -> str:
    """Return a PNG file as a heading and an image that lies inside the page."""
    image, said = base64.b64encode(picture.read_bytes()).decode("ascii"), html.escape(title)
    return f'<h2>{said}</h2>\n<img alt="{said}" src="data:image/png;base64,{image}">'


def write_page(prediction: Prediction, name: str, sections: Sequence[Section], path: str | Path) -> Path:
    """Write the page and return its path.

    Args:
        prediction: what is drawn.
        name: of the job.
        sections: what is told, in order.
        path: file to write.

    Raises:
        OSError: the file cannot be written.
    """
    from simulator.report.plots import plot_prediction

    with tempfile.TemporaryDirectory() as folder:
        parts = (prediction.program, prediction.prices, prediction.trace)
        picture = plot_prediction(*parts, Path(folder) / "step.png", capacity=prediction.capacity)
        body = (sections_html(sections), picture_html("timeline and memory", picture))
    Path(path).write_text(page_html(f"{name}: one training step", body), encoding="utf-8")
    return Path(path)
