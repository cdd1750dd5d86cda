"""Tables and sections of an answer, as text for a screen and as HTML for a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Section", "Table", "bar", "percent", "render_sections", "sections_html"]

_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under headings.

    Args:
        headings: one per column; all empty = no line of headings.
        rows: texts, one per column.
        left: numbers of the columns that are set flush left; all others are flush right.

    >>> print(Table(headings=("part", "time"), rows=(("forward", "5 s"), ("tp", "12 s"))).text())
    part     time
    forward   5 s
    tp       12 s
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)

    def text(self, indent: int = 0) -> str:
        """Return the table as aligned lines."""
        heads = [self.headings] if any(self.headings) else []
        lines = [*heads, *self.rows]
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(self.headings))]
        return "\n".join((" " * indent + self._line(line, widths)).rstrip() for line in lines)

    def _line(self, line: Sequence[str], widths: Sequence[int]) -> str:
        cells = zip(range(len(widths)), line, widths, strict=True)
        return "  ".join(f"{cell:<{width}}" if i in self.left else f"{cell:>{width}}" for i, cell, width in cells)

    def html(self) -> str:
        """Return the table as an HTML element."""
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in self.headings)
        rows = "\n".join(
            "<tr>"
            + "".join(f"<td{'' if i in self.left else ' class=n'}>{html.escape(c)}</td>" for i, c in enumerate(row))
            + "</tr>"
            for row in self.rows
        )
        return f"<table>\n{f'<tr>{heads}</tr>' if any(self.headings) else ''}\n{rows}\n</table>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of an answer: a title, lines of text, a table, and lines below it; each may be missing."""

    title: str
    lines: tuple[str, ...] = ()
    table: Table | None = None
    below: tuple[str, ...] = ()


def bar(fraction: float, width: int = 24) -> str:
    """Return a bar of blocks, an eighth of a character fine.

    >>> bar(0.5, 4), bar(0.0, 4)
    ('██', '')
    """
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    return (_FULL * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


def percent(fraction: float, digits: int = 1, signed: bool = False) -> str:
    """Return a fraction as text, always with its sign where `signed`.

    >>> percent(0.123), percent(0.016, signed=True)
    ('12.3 %', '+1.6 %')
    """
    return f"{fraction:{'+' if signed else ''}.{digits}%}".replace("%", " %")


def render_sections(sections: Iterable[Section], bold: bool = False) -> str:
    """Return sections as text, a blank line between them."""
    out = []
    for section in sections:
        lines = [f"\033[1m{section.title}\033[0m" if bold else section.title] if section.title else []
        lines += [f"  {line}" for line in section.lines]
        lines += [section.table.text(2)] if section.table is not None and section.table.rows else []
        lines += [f"  {line}" for line in section.below]
        out.append("\n".join(lines))
    return "\n\n".join(out)


def sections_html(sections: Iterable[Section]) -> str:
    """Return sections as HTML: headings, paragraphs and tables."""
    out = []
    for section in sections:
        out.append(f"<h2>{html.escape(section.title)}</h2>")
        out += [f"<p>{html.escape(line)}</p>" for line in section.lines]
        out += [section.table.html()] if section.table is not None and section.table.rows else []
        out += [f"<p>{html.escape(line)}</p>" for line in section.below]
    return "\n".join(out)
