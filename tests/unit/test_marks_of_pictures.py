"""What single marks of pictures stand for: how long a bar is, how high a column, which lines can be told apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from simulator.report.abstract_plot import plot_abstract
from simulator.report.accuracy_plot import plot_accuracy
from simulator.report.bars import COLOURS, KINDS, Bars, compute_bars, draw_columns, draw_numbers
from simulator.report.tornado_plot import plot_tornado
from simulator.studies.schedule_figures import schedule_figures
from tests.command import Dtsim


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **more: figures.append(figure))
    return figures


def columns_of(*bars: Bars, makespan: float) -> Any:
    """The image of a rank's band: lines from top to bottom, each of so many pixels in time."""
    shown: list[Any] = []
    draw_columns(SimpleNamespace(imshow=lambda image, **more: shown.append(image)), 1, makespan, bars)  # type: ignore[arg-type]
    return shown[0]


def coloured(image: Any, name: str) -> Any:
    """How much of each column of a picture has a colour."""
    return (image == (255 * np.array(to_rgb(COLOURS[name]))).astype(np.uint8)).all(axis=2).sum(axis=0)


def test_a_column_is_as_high_as_its_kind_runs_long() -> None:
    found = schedule_figures("gpipe", 1, 4)
    bars = compute_bars(found.program, None, found.trace)
    image = columns_of(bars, makespan=2 * found.trace.makespan)
    forward, backward, bubble = (coloured(image, name) for name in ("forward", "backward", "bubble"))
    half, whole = len(forward) // 2, bubble[-1]
    assert whole > 0
    assert {whole} == set(bubble[half + 1 :].tolist()) == set((forward + backward)[: half - 1].tolist())


def test_a_number_is_printed_where_it_has_room() -> None:
    written: list[str] = []
    axis: Any = SimpleNamespace(text=lambda x, y, text, **more: written.append(text))
    lengths = np.array([0.04, 0.06, 0.2, 0.2]) / 11.5  # inches of a picture that is one long
    start = np.array([0.0, 0.2, 0.4, 0.7])
    many = len(start)
    bars = Bars(
        rank=np.zeros(many, np.int32), kind=np.full(many, KINDS.index("forward"), np.int8), start=start, end=start + lengths,
        top=np.full(many, -0.4), bottom=np.full(many, 0.2), number=np.array([1, 2, 3, 1234], np.int32),
        row=np.arange(many), way=np.zeros(many, np.int8),
    )  # fmt: skip
    draw_numbers(axis, bars, 1.0)
    assert ["3"] == written


def test_curves_of_more_schedules_than_there_are_colours_can_be_told_apart(drawn: list[Figure], tmp_path: Path) -> None:
    runs = [(str(m), schedule_figures("gpipe", 2, m)) for m in range(1, 13)]
    plot_abstract([(name, found.program, found.trace) for name, found in runs], tmp_path / "p.png")
    curves = drawn[0].axes[-1].get_lines()
    assert 12 == len(curves) == len({(line.get_color(), line.get_linestyle()) for line in curves})


def test_the_median_of_a_group_is_a_bar_through_its_points(drawn: list[Figure], tmp_path: Path) -> None:
    plot_accuracy(["a", "a", "a", "b"], [1.0, 1.0, 1.0, 2.0], [1.1, 1.2, 1.5, 2.2], "step [s]", tmp_path / "p.png")
    bars = [line for line in drawn[0].axes[1].get_lines() if line.get_linewidth() == 1.6]
    assert [[pytest.approx(0.2)] * 2, [pytest.approx(0.1)] * 2] == [list(bar.get_xdata()) for bar in bars]
    assert [[-0.4, 0.4], [0.6, 1.4]] == [list(bar.get_ydata()) for bar in bars]


def test_a_bar_of_a_tornado_is_what_the_best_plan_gains_or_loses(drawn: list[Figure], tmp_path: Path) -> None:
    plot_tornado([("slower", 3.0, None), ("quicker", 1.8, 0.1)], 2.0, tmp_path / "p.png")
    axis = drawn[0].axes[0]
    best = [bar for bar in axis.patches if bar.get_x() == 0.0]
    names = [axis.get_yticklabels()[round(bar.get_y() + bar.get_height() / 2)].get_text() for bar in best]
    widths = dict(zip(names, (bar.get_width() for bar in best), strict=True))
    assert widths == {"quicker": pytest.approx(-0.1), "slower": pytest.approx(0.5)}


def test_every_word_of_a_layout_is_on_the_picture(drawn: list[Figure], dtsim: Dtsim, tmp_path: Path) -> None:
    for name, cuts in (("narrow", "batch=rows"), ("wide", "ffn=cols")):
        words = (
            "layout",
            "gpt2_124m",
            "--mesh",
            "rows=2,cols=4",
            "--map",
            cuts,
            "--plot",
            str(tmp_path / f"{name}.png"),
        )
        assert 0 == dtsim(*words)[0]
    for figure in drawn:
        figure.draw_without_rendering()
        for axis in figure.axes:
            for text in axis.texts:
                assert figure.bbox.padded(2).containsx(text.get_window_extent().x1), text.get_text()


def test_a_tensor_in_many_parts_shows_the_first_and_the_last(drawn: list[Figure], dtsim: Dtsim, tmp_path: Path) -> None:
    words = ("layout", "gpt2_124m", "--mesh", "rows=64", "--map", "vocabulary=rows", "--plot", str(tmp_path / "p.png"))
    assert 0 == dtsim(*words)[0]
    parts = [sum(patch.get_fill() for patch in axis.patches) for axis in drawn[0].axes]
    assert 32 == max(parts)
