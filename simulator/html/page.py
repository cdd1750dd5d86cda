"""One HTML document that needs nothing beside it: style, scripts, data and pictures lie inside, and it may load nothing.

The document forbids itself every connection (Content-Security-Policy), so "works offline" is a rule of the browser, not a
promise.  Data stand in a block of JSON that scripts read; text from users reaches the page as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.html.colours import colour_variables
from simulator.report.schema import json_value

__all__ = ["document", "page_html", "picture_html", "policy_of"]

_FONTS_AND_COLOURS = "style.css"


def document(title: str, body: str, scripts: Sequence[str] = (), data: Any = None, connect: bool = False) -> str:
    """Return a whole document.

    Args:
        title: of the window, as text.
        body: HTML.
        scripts: names of files under assets/, run as one script in this order.
        data: what the scripts read, as JSON; None = none.
        connect: whether scripts may talk to the server that the document came from.
    """
    script = _script(scripts)
    block = "" if data is None else f'<script type="application/json" id="data">{_json_block(data)}</script>\n'
    style = colour_variables() + _asset(_FONTS_AND_COLOURS)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy_of(scripts, connect)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n{block}"
        + (f"<script>{script}</script>\n" if scripts else "")
        + "</body>\n</html>\n"
    )


def policy_of(scripts: Sequence[str], connect: bool = False) -> str:
    """Return the Content-Security-Policy under which a document with these scripts runs, and nothing else does."""
    digest = base64.b64encode(hashlib.sha256(_script(scripts).encode()).digest()).decode("ascii")
    allowed = f"script-src 'sha256-{digest}'" if scripts else "script-src 'none'"
    reach = "; connect-src 'self'" if connect else ""
    return f"default-src 'none'; {allowed}; style-src 'unsafe-inline'; img-src data: blob:{reach}; base-uri 'none'; form-action 'none'"


def page_html(title: str, parts: Iterable[str]) -> str:
    """Return a document without scripts: these HTML parts under one heading."""
    body = "\n".join(parts)
    return document(title, f'<main class="plain">\n<h1>{html.escape(title)}</h1>\n{body}\n</main>')


def picture_html(title: str, picture: Path) -> str:
    """Return a PNG file as a heading and an image that lies inside the page."""
    image, said = base64.b64encode(picture.read_bytes()).decode("ascii"), html.escape(title)
    return f'<section>\n<h2>{said}</h2>\n<img alt="{said}" src="data:image/png;base64,{image}">\n</section>'


def _json_block(data: object) -> str:
    """JSON that cannot end the block it stands in."""
    text = json.dumps(json_value(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _script(names: Sequence[str]) -> str:
    return '"use strict";(() => {\n' + "\n".join(_asset(name) for name in names) + "})();" if names else ""


def _asset(name: str) -> str:
    return (resources.files("simulator.html") / "assets" / name).read_text(encoding="utf-8")
