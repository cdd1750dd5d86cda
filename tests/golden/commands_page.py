"""docs/commands.md, made from what the verbs say of themselves: `python -m tests.golden.commands_page`."""

from __future__ import annotations

import contextlib
import io
import os

from simulator.cli.app import VERBS, main
from tests.package_sources import ROOT

__all__ = ["PAGE", "text"]

PAGE = ROOT / "docs" / "commands.md"
HEAD = """# Commands

Made by `python -m tests.golden.commands_page` from the help of every verb.

"""


def text() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for verb, line in VERBS.items():
        parts.append(f"## {verb}\n\n{line}\n\n```text\n{_help(verb)}\n```\n\n")
    return "".join(parts).rstrip("\n") + "\n"


def _help(verb: str) -> str:
    """What `--help` prints on a terminal of 100 characters."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([verb, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return said.getvalue().strip()


if __name__ == "__main__":
    PAGE.write_text(text())
