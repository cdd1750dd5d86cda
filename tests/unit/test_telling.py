"""Progress where standard error is no terminal: lines get rarer as the work goes on, so that a log of hours stays short."""

from __future__ import annotations

import pytest

from simulator.cli import output


def test_progress_in_a_file_is_told_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with output.telling(steady=True) as tell:
        for second in range(3600):
            now[0] = second + 1.0
            tell(f"{second}")
    lines = capsys.readouterr().err.splitlines()

    assert ["0", "1", "2"] == lines[:3]
    assert 40 < len(lines) < 100


def test_lines_of_single_parts_are_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    with output.telling() as tell:
        for part in range(100):
            tell(f"{part}")
    assert 100 == len(capsys.readouterr().err.splitlines())
