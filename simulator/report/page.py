"""A prediction as one HTML file that needs nothing beside it: the tables, and the picture inside."""

from __future__ import annotations

import base64
import html
import tempfile
from collections.abc import Sequence
from pathlib import Path

from simulator.report.prediction import Prediction
from simulator.report.table import Section, sections_html

__all__ = ["write_page"]

_STYLE = """
body { font-family: system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #202020; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.15rem 0.7rem; border-bottom: 1px solid #e4e4e4; text-align: left; white-space: pre; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
p { margin: 0.3rem 0; } img { max-width: 100%; }
"""


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
        picture = plot_prediction(*parts, Path(folder) / "step.png", capacity=prediction.capacity).read_bytes()
    image = base64.b64encode(picture).decode("ascii")
    title = html.escape(f"{name}: one training step")
    Path(path).write_text(
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>\n"
        f"<h1>{title}</h1>\n{sections_html(sections)}\n"
        f'<h2>timeline and memory</h2>\n<img alt="timeline and memory" src="data:image/png;base64,{image}">\n</html>\n',
        encoding="utf-8",
    )
    return Path(path)
