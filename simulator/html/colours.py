"""Colours of a page, light and dark: those of the pictures, lifted where a dark ground would swallow them."""

from __future__ import annotations

from simulator.program.program import CATEGORIES
from simulator.report.bars import COLOURS
from simulator.report.comparison_plot import MEMORY_COLOURS

__all__ = ["colour_variables"]

_DARK = {
    "forward": "#5b9bd5",
    "backward": "#e08f3a",
    "weight gradient": "#c9652b",
    "recompute": "#3fae93",
    "optimizer": "#a483c4",
    "host": "#8f959e",
    "tp": "#d6437f",
    "cp": "#d08cbc",
    "ep": "#b07f5c",
    "dp": "#b5a51e",
    "pp": "#7f8fe0",
    "bubble": "#2a2f37",
}
"""On a dark ground; every kind of `COLOURS` has one."""


def colour_variables() -> str:
    """Return the CSS variables --kind-NAME and --memory-NAME, for light and for dark."""
    memory = dict(zip(CATEGORIES, MEMORY_COLOURS, strict=True))

    def block(selector: str, colours: dict[str, str]) -> str:
        lines = [f"--kind-{name.replace(' ', '-')}:{colour}" for name, colour in colours.items()]
        lines += [f"--memory-{name.replace('_', '-')}:{colour}" for name, colour in memory.items()]
        return f"{selector}{{{';'.join(lines)}}}\n"

    dark = block(":root:not([data-theme=light])", _DARK)
    return (
        block(":root", COLOURS)
        + f"@media (prefers-color-scheme: dark){{{dark}}}\n"
        + block(":root[data-theme=dark]", _DARK)
    )
