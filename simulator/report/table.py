"""Tables and sections of an answer, as text for a screen and as HTML for a page."""

from __future__ import annotations

import html
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "Section",
    "Table",
    "amount",
    "bar",
    "percent",
    "plain_bars",
    "refusals",
    "render_sections",
    "sections_html",
    "set_options",
]

_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"
_ASCII = {ord(_FULL): "#"} | {ord(part): "#" if eighths >= 4 else "" for eighths, part in enumerate(_PARTS) if eighths}


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

    def narrowed(self, width: int) -> list[Table]:
        """Return the table in parts that fit so many characters; each repeats the first column.

        >>> wide = Table(headings=("rank", "weights", "gradients"), rows=(("0", "10 GiB", "5 GiB"),))
        >>> [part.headings for part in wide.narrowed(16)]
        [('rank', 'weights'), ('rank', 'gradients')]
        """
        lines = [self.headings, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        parts: list[list[int]] = [[]]
        for column in range(1, len(widths)):
            if parts[-1] and sum(widths[i] + 2 for i in (*parts[-1], column)) + widths[0] > width:
                parts.append([])
            parts[-1].append(column)
        return [self._columns((0, *part)) for part in parts] if len(parts) > 1 else [self]

    def _columns(self, wanted: tuple[int, ...]) -> Table:
        pick = [tuple(line[i] for i in wanted) for line in (self.headings, *self.rows)]
        left = tuple(place for place, column in enumerate(wanted) if column in self.left)
        return Table(headings=pick[0], rows=tuple(pick[1:]), left=left)

    def _line(self, line: Sequence[str], widths: Sequence[int]) -> str:
        cells = zip(range(len(widths)), line, widths, strict=True)
        return "  ".join(f"{cell:<{width}}" if i in self.left else f"{cell:>{width}}" for i, cell, width in cells)

    def html(self) -> str:
        """Return the table as an HTML element."""
        heads = "".join(
            f"<th{'' if i in self.left else ' class=n'}>{html.escape(name)}</th>"
            for i, name in enumerate(self.headings)
        )
        rows = "\n".join(
            "<tr>"
            + "".join(f"<td{'' if i in self.left else ' class=n'}>{_cell(c)}</td>" for i, c in enumerate(row))
            + "</tr>"
            for row in self.rows
        )
        return f"<table>\n{f'<tr>{heads}</tr>' if any(self.headings) else ''}\n{rows}\n</table>"


def _cell(text: str) -> str:
    """A text as HTML; a bar of blocks becomes a box of its length, half an em a block."""
    if not text or set(text) - set(_FULL + _PARTS[1:]):
        return html.escape(text)
    eighths = 8 * text.count(_FULL) + sum(_PARTS.index(letter) for letter in text if letter != _FULL)
    return f'<div class=bar style="width:{eighths / 16:g}em"></div>'


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


def set_options(settings: Iterable[str]) -> str:
    """Return settings as the command line takes them, each quoted where a shell needs it.

    >>> print(set_options(["plan.tensor_parallel=2", "plan.layer_split=[41,39]"]))
    --set plan.tensor_parallel=2 --set 'plan.layer_split=[41,39]'
    """
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def percent(fraction: float, digits: int = 1, signed: bool = False) -> str:
    """Return a fraction as text, always with its sign where `signed`.

    >>> percent(0.123), percent(0.016, signed=True)
    ('12.3 %', '+1.6 %')
    """
    return f"{fraction:{'+' if signed else ''}.{digits}%}".replace("%", " %")


def amount(value: float) -> str:
    """Return a quantity in whole numbers, of a small one three digits, so that a price is hours times rate to the eye, too.

    >>> amount(5.536), amount(16.61), amount(12345.6)
    ('5.54', '16.6', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_MOST_NAMES = 4
"""Rows named before the one reason for which none of them can be."""


def refusals(refused: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a line per rule that was broken, not one per row: (name, reason) of rows; the reason is that of the first of them.

    >>> refusals([("a", "2 ranks, but 3 layers"), ("b", "no network"), ("c", "4 ranks, but 5 layers")])
    ('a; c: 2 ranks, but 3 layers (of the first; the others likewise)', 'b: no network')
    """
    rules: dict[str, dict[str, str]] = {}
    for name, reason in refused:
        rule = re.sub(r"[\d.]+", "#", reason.partition(" but ")[0])
        rules.setdefault(rule, {})[name] = reason
    out = []
    for rows in rules.values():
        names, first = list(rows), next(iter(rows.values()))
        more = f" and {len(names) - _MOST_NAMES + 1} more" if len(names) > _MOST_NAMES else ""
        named = "; ".join(names[: _MOST_NAMES - 1] if more else names) + more
        out.append(
            f"{named}: {first}" + (" (of the first; the others likewise)" if len(set(rows.values())) > 1 else "")
        )
    return tuple(out)


def render_sections(sections: Iterable[Section], bold: bool = False, width: int | None = None) -> str:
    """Return sections as text, a blank line between them.

    Args:
        bold: titles stand out, by the codes of a terminal.
        width: characters that a line may have: longer ones go on below, wide tables are printed in parts (None: no limit).
    """
    out = []
    for section in sections:
        title = _wrapped(section.title, width, 0) if section.title else []
        lines = [f"\033[1m{line}\033[0m" if bold else line for line in title]
        lines += [part for line in section.lines for part in _wrapped(line, width, 2)]
        if section.table is not None and section.table.rows:
            lines += [t.text(2) for t in (section.table.narrowed(width - 2) if width else [section.table])]
        lines += [part for line in section.below for part in _wrapped(line, width, 2)]
        out.append("\n".join(lines))
    return "\n\n".join(out)


def _wrapped(line: str, width: int | None, indent: int) -> list[str]:
    if width is None or len(line) + indent <= width:
        return [" " * indent + line]
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.wrap(line, max(width, 20), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def plain_bars(text: str) -> str:
    """Return a text with its bars in ASCII, for outputs that cannot show blocks.

    >>> plain_bars(bar(0.6, 4))
    '##'
    """
    return text.translate(_ASCII)


def sections_html(sections: Iterable[Section]) -> str:
    """Return sections as HTML elements: headings, paragraphs and tables."""
    out = []
    for section in sections:
        out.append(f"<section>\n<h2>{html.escape(section.title)}</h2>")
        out += [f"<p>{html.escape(line)}</p>" for line in section.lines]
        out += [section.table.html()] if section.table is not None and section.table.rows else []
        out += [f"<p>{html.escape(line)}</p>" for line in section.below]
        out.append("</section>")
    return "\n".join(out)
