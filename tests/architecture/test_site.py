"""The site of the documentation has a place for every page (`nox -s docs` builds it, with links checked)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.package_sources import ROOT


def pages(entry: Any) -> Iterator[str]:
    """Yield the files that a part of the navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(inner)


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = sorted(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert named == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
