"""The lessons: notebooks say what their sources say, come with their data, and can be copied anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.studies.lessons import lessons
from simulator.studies.notebook import slide
from tests.command import Dtsim
from tests.golden.notebooks import FOLDER, sources, text


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_notebook_is_made_of_its_source(source: Path) -> None:
    assert source.with_suffix(".ipynb").read_text() == text(source), "python -m tests.golden.notebooks"


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_lesson_asks_for_a_guess_checks_itself_and_gives_solutions(source: Path) -> None:
    said = source.read_text()
    assert "my_" in said
    assert said.count("assert ") >= 5
    assert "# ## Exercises" in said
    assert said.index("# ## Exercises") < said.index("# ## Solutions")


def test_the_lessons_are_numbered_without_a_gap() -> None:
    assert [f"{number:02d}" for number in range(1, len(sources()) + 1)] == [path.name[:2] for path in sources()]


def test_they_are_copied_with_their_data_and_nothing_is_overwritten(dtsim: Dtsim, tmp_path: Path) -> None:
    target = tmp_path / "my" / "lessons"
    code, out, _ = dtsim("notebooks", str(target))
    assert (0, len(sources())) == (code, len(out.splitlines()))
    copied = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
    assert copied == sorted(p.relative_to(FOLDER) for p in lessons())
    assert json.loads((target / "01_one_prediction.ipynb").read_text())["cells"]
    assert (target / "data" / "nccl_logs" / "index.csv").is_file()

    (target / "01_one_prediction.ipynb").write_text("mine")
    code, _, said = dtsim("notebooks", str(target))
    assert (2, True) == (code, "--force" in said)
    assert "mine" == (target / "01_one_prediction.ipynb").read_text()
    assert 0 == dtsim("notebooks", str(target), "--force")[0]
    assert 2 == dtsim("notebooks", str(target / "01_one_prediction.ipynb"))[0]


def test_lessons_find_their_data_beside_them() -> None:
    for source in sources():
        assert "tests/" not in source.read_text(), source


def test_without_sliders_the_first_values_are_shown() -> None:
    shown: list[tuple[int, str]] = []
    slide(lambda ranks, name: shown.append((ranks, name)), ranks=[4, 8], name=["a", "b"])
    assert [(4, "a")] == shown
