"""The pages under docs/ are true: their examples run, the names and paths they mention exist."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

from simulator.cli.app import VERBS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"(?:^`(?P<file>[\w./]+)`\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PATHS = re.compile(r"`((?:simulator|tests|docs|hardware_specs|workloads|notebooks)/[\w./]+\.(?:py|toml|md|csv))`")


def blocks(page: Path) -> list[re.Match[str]]:
    return list(FENCE.finditer(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks under a file name are written to that file in an empty folder; blocks with >>> are run there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    examples: list[doctest.Example] = []
    parser = doctest.DocTestParser()
    for block in blocks(page):
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
    shown = [block["body"] for block in blocks(ROOT / "README.md") if block["kind"] in ("python", "text")]
    code, printed = shown[0], io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})

    assert shown[1] == printed.getvalue()


def test_verbs_that_the_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]
    named = {(page.name, verb) for page in pages for verb in re.findall(r"\bdtsim ([a-z]+)", page.read_text())}

    assert set() == {(page, verb) for page, verb in named if verb not in VERBS}


def test_extending_shows_one_example_of_each_kind() -> None:
    files = {block["file"] for block in blocks(ROOT / "docs" / "extending.md") if block["file"]}
    folders = {Path(name).parent.name for name in files}

    assert {"gpus", "nodes", "clusters", "models", "jobs"} <= folders
    assert {"one_at_a_time.py", "flat.py"} <= files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A page may name files that it makes up in its own examples, and file names with a <hole>."""
    own = {block["file"] for block in blocks(page) if block["file"]}
    made_up = {name for name in PATHS.findall(page.read_text()) if Path(name).name in {Path(f).name for f in own}}
    missing = {name for name in PATHS.findall(page.read_text()) if not (ROOT / name).exists()}

    assert set() == missing - made_up


def test_there_are_seven_pages() -> None:
    assert ["accuracy", "data_files", "design", "extending", "glossary", "held_out", "program"] == [
        page.stem for page in PAGES
    ]
