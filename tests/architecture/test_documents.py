"""The pages under docs/ are true: their examples run, the names and paths they mention exist."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

from simulator.cli.app import VERBS
from tests.package_sources import ROOT, page_blocks, page_files

PAGES = sorted((ROOT / "docs").rglob("*.md"))
STEPS = re.compile(r"\bnox -s((?: [a-z]+)+)")
LINK = re.compile(r"\]\(([\w./-]+\.md)\)")
PATHS = re.compile(r"`((?:simulator|tests|docs|hardware_specs|workloads|notebooks)/[\w./]+\.(?:py|toml|md|csv))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks under a file name are written to that file in an empty folder; blocks with >>> are run there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    examples: list[doctest.Example] = []
    parser = doctest.DocTestParser()
    for block in page_blocks(page):
        if block["file"]:
            target = tmp_path / block["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block["body"])
        elif ">>>" in block["body"]:
            line = page.read_text()[: block.start("body")].count("\n")
            found = parser.get_examples(block["body"])
            for example in found:
                example.lineno += line
            examples += found
    test = doctest.DocTest(examples, {"__name__": "__main__"}, page.name, str(page), 0, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)

    assert not report, "".join(report)


def test_the_readme_prints_what_it_shows() -> None:
    shown = [block["body"] for block in page_blocks(ROOT / "README.md") if block["kind"] in ("python", "text")]
    code, printed = shown[0], io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})

    assert shown[1] == printed.getvalue()


def test_verbs_that_the_pages_name_exist() -> None:
    pages = [*ROOT.glob("*.md"), *PAGES]
    named = {(page.name, verb) for page in pages for verb in re.findall(r"\bdtsim ([a-z]+)", page.read_text())}

    assert set() == {(page, verb) for page, verb in named if verb not in VERBS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A page may name files that it makes up in its own examples, and file names with a <hole>."""
    own = {Path(file).name for file in page_files(page)}
    made_up = {name for name in PATHS.findall(page.read_text()) if Path(name).name in own}
    missing = {name for name in PATHS.findall(page.read_text()) if not (ROOT / name).exists()}

    assert set() == missing - made_up


def test_steps_that_the_pages_name_exist() -> None:
    defined = {
        node.name for node in ast.parse((ROOT / "noxfile.py").read_text()).body if isinstance(node, ast.FunctionDef)
    }
    named = {
        word
        for page in [*ROOT.glob("*.md"), *PAGES]
        for words in STEPS.findall(page.read_text())
        for word in words.split()
    }

    assert {"lint", "types", "house", "tests"} <= named <= defined


def test_links_lead_to_pages_and_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        linked = {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}
        assert [] == [str(target) for target in linked if not target.is_file()], page
        waiting += linked - reached

    assert set() == {ROOT / "CONTRIBUTING.md", *PAGES} - reached
