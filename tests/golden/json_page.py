"""docs/json.md, made from the declared answers: `python -m tests.golden.json_page`."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.cli.answers import ANSWERS, EVERYWHERE, SCHEMA_VERSION, Key
from tests.package_sources import ROOT

__all__ = ["PAGE", "text"]

PAGE = ROOT / "docs" / "json.md"
HEAD = f"""# JSON answers

Made by `python -m tests.golden.json_page` from `simulator/cli/answers.py`; `dtsim show schema run` prints one as JSON Schema.

`--json` prints one JSON object on standard output and nothing else there; progress goes to standard error. Exit codes: 0 answered, 2 the
input is wrong (also where none of several variants, points or schedules can be) or the machine refuses: one message on standard error and
nothing on standard output; 3 it does not fit (`dtsim run --strict` only), 130 stopped, 1 a fault of ours. Numbers are in SI units where a
key does not say otherwise; what is no number (NaN, infinity) is null.

This is version {SCHEMA_VERSION} of the schema. Keys may be added to it; one that is taken away or means something else makes a new version.
"""


def table(keys: Mapping[str, Key]) -> str:
    """Return keys as a Markdown table."""
    rows = (f"| `{name}` | {key.type.replace('?', ' or null')} | {_doc(key)} |" for name, key in keys.items())
    return "| key | type | what |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _doc(key: Key) -> str:
    return key.doc.replace("|", "\\|") + ("" if key.always else " (where asked for)")


def text() -> str:
    """Return the whole page."""
    parts = [HEAD, "## Every answer\n", table(EVERYWHERE)]
    for name, answer in ANSWERS.items():
        parts += [f"## {name}\n", f"`{answer.command} --json`\n", table(answer.keys)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text())
