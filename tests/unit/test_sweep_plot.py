"""The picture of a sweep: what its lines are told apart by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.report import sweep_plot


def test_few_values_of_a_sweep_stand_under_the_axis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(sweep_plot, "save_picture", lambda figure, path, title: figures.append(figure))
    rows = [{"batch": batch, "step_time_s": 1.0, "fits": True} for batch in (512, 1024, 1536)]
    sweep_plot.plot_sweep(rows, ["batch"], tmp_path / "p.png")
    assert ["512", "1024", "1536"] == [label.get_text() for label in figures[0].axes[0].get_xticklabels()]


def test_many_lines_have_the_colour_of_the_setting_that_tells_most_of_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(sweep_plot, "save_picture", lambda figure, path, title: figures.append(figure))
    rows = [
        {"plan.a": x, "plan.b": b, "cluster.name": name, "step_time_s": x + b + 100.0 * (name == "slow"), "fits": True}
        for x in (1, 2)
        for b in range(8)
        for name in ("quick", "slow")
    ]
    sweep_plot.plot_sweep(rows, ["plan.a", "plan.b", "cluster.name"], tmp_path / "out.png")
    sweep_plot.plot_sweep(rows[:8], ["plan.a", "plan.b", "cluster.name"], tmp_path / "out.png")
    many, few = ([text.get_text() for text in figure.legends[0].get_texts()] for figure in figures)
    assert many == ["cluster quick", "cluster slow"]
    assert len(few) == 8
    assert few[0] == "b 0, cluster quick"
