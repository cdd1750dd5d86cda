"""What every picture owes its reader: legends beside the data, curves inside their axes, labels on logarithmic axes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.goodput.picture import plot_goodput
from simulator.goodput.study import goodput
from simulator.job import load_job
from simulator.program.prices import Prices
from simulator.report.abstract_plot import plot_abstract
from simulator.report.accuracy_plot import plot_accuracy
from simulator.report.bars import COLOURS, colour_of, kind_words
from simulator.report.collective_plot import plot_collective
from simulator.report.comparison_plot import plot_comparison, plot_latency_sweep
from simulator.report.plots import plot_prediction, plot_timelines
from simulator.report.scaling_plot import plot_scaling
from simulator.report.schedule_plot import plot_schedules
from simulator.report.search_plot import plot_search
from simulator.report.sweep_plot import plot_sweep
from simulator.simulation import simulate_job
from simulator.studies.schedule_figures import schedule_figures
from tests.command import Dtsim


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved, laid out."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Any, **more: Any) -> None:
        figure.draw_without_rendering()
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def latency(path: Path) -> None:
    plot_latency_sweep([0.0, 1.0], {"low": [0.01, 0.02], "middle": [0.02, 0.03], "high": [0.1, 0.9]}, [0.5], path)


def collective(path: Path) -> None:
    sizes, times = [2.0**i for i in range(10, 31)], [2.0**i / 1e10 + 3e-5 for i in range(10, 31)]
    bands, rates = [(0.7 * t, 1.4 * t) for t in times], [size / t for size, t in zip(sizes, times, strict=True)]
    plot_collective(sizes, times, bands, rates, ["ring, ll"] * 10 + ["tree, simple"] * 11, path)


def scaling(path: Path) -> None:
    points = [(64, 1e5, 1.0, True), (128, 1.9e5, 0.95, True), (256, 3.5e5, 0.87, False)]
    plot_scaling([("a", points), ("b", [(n, 1.2 * t, e, fits) for n, t, e, fits in points])], path)


def timelines(path: Path) -> None:
    runs = [(name, schedule_figures(name, 4, 8)) for name in ("1f1b", "chimera")]
    plot_timelines([(name, found.program, found.trace) for name, found in runs], path)


def one_step(path: Path) -> None:
    found = schedule_figures("chimera", 4, 8)
    count = len(found.program.items)
    prices = Prices.plain(np.ones(count), np.zeros(count))
    plot_prediction(found.program, prices, found.trace, path, title="a title as long as those of jobs are " * 3)


def abstract(path: Path) -> None:
    many = [
        (f"a_schedule_of_a_long_name_{m}, 3 ranks, {m} microbatches", schedule_figures("gpipe", 3, m))
        for m in range(2, 17)
    ]
    plot_abstract([(name, found.program, found.trace) for name, found in many], path)


def accuracy(path: Path) -> None:
    plot_accuracy(["a", "a", "b"], [1.0, 1.5, 3.0], [1.1, 1.4, 2.9], "step [s]", path)


def search(path: Path) -> None:
    points = [(0.8 + 0.02 * n, (35.0 + 3 * n) * 2**30, n % 3 > 0) for n in range(12)]
    plot_search(points, [(s, m) for s, m, _ in points[:2]], points[0][:2], 80.0 * 2**30, path, "a search")


def sweep(path: Path) -> None:
    rows = [{"a": a, "b": b, "step_time_s": 1.0 + 0.2 * a * b, "fits": a > 1} for a in (1, 2, 4) for b in range(9)]
    plot_sweep(rows, ["a", "b"], path)


PICTURES = [latency, collective, scaling, timelines, one_step, abstract, accuracy, search, sweep]


@pytest.mark.parametrize("picture", [latency, collective, scaling, timelines, one_step, abstract, search, sweep])
def test_no_legend_lies_over_data(picture: Any, drawn: list[Figure], tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    figure = drawn[0]
    legends = [*figure.legends, *(legend for axis in figure.axes if (legend := axis.get_legend()))]
    assert legends
    for legend in legends:
        box = legend.get_window_extent()
        for axis in figure.axes:
            assert not box.overlaps(axis.get_window_extent()), axis.get_title(loc="left")
            labels = axis.xaxis.get_tightbbox()
            assert labels is None or not box.overlaps(labels)


@pytest.mark.parametrize("picture", [timelines, one_step, abstract, search, sweep])
def test_no_legend_leaves_the_picture(picture: Any, drawn: list[Figure], tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    figure = drawn[0]
    for legend in [*figure.legends, *(legend for axis in figure.axes if (legend := axis.get_legend()))]:
        assert figure.bbox.padded(2).containsx(legend.get_window_extent().x1)
    assert max(axis.get_window_extent().width for axis in figure.axes) > 0.8 * figure.bbox.width


def test_the_legend_of_every_rank_begins_with_the_first_and_ends_with_the_last(
    drawn: list[Figure], tmp_path: Path
) -> None:
    found = schedule_figures("1f1b", 16, 32)
    plot_abstract([("1f1b", found.program, found.trace)], tmp_path / "p.png")
    named = [text.get_text() for text in drawn[0].axes[-1].get_legend().get_texts()]
    assert ["rank 0", "rank 15"] == [named[0], named[-1]]


@pytest.mark.parametrize("draw", [plot_abstract, plot_timelines])
def test_one_timeline_much_longer_than_the_others_is_cut(draw: Any, drawn: list[Figure], tmp_path: Path) -> None:
    runs = [(name, schedule_figures(name, 8, 16)) for name in ("1f1b", "zb_h1", "gems")]
    draw([(name, found.program, found.trace) for name, found in runs], tmp_path / "p.png")
    longest = max(found.trace.makespan for name, found in runs if name != "gems")
    axes = drawn[0].axes[:3]
    assert all(axis.get_xlim()[1] <= 2.3 * longest for axis in axes)
    assert [False, False, True] == ["cut" in axis.get_title(loc="left") for axis in axes]


def test_curves_of_schedules_are_named_by_what_tells_them_apart(drawn: list[Figure], tmp_path: Path) -> None:
    runs = [(f"{name}, 4 ranks, 8 microbatches", schedule_figures(name, 4, 8)) for name in ("1f1b", "gpipe", "zb_h1")]
    plot_abstract([(name, found.program, found.trace) for name, found in runs], tmp_path / "p.png")
    named = [text.get_text() for text in drawn[0].axes[-1].get_legend().get_texts()]
    assert {"1f1b", "gpipe", "zb_h1"} == {name for text in named for name in text.split("; ")}


def test_every_part_of_where_the_time_goes_has_its_colour_in_words(drawn: list[Figure], tmp_path: Path) -> None:
    found = simulate_job(load_job("gpt3_13b_2xdgx_a100"))
    plot_prediction(found.program, found.prices, found.trace, tmp_path / "p.png")
    axis = drawn[0].axes[-1]
    written = [*axis.texts, *(axis.get_legend().get_texts() if axis.get_legend() else [])]
    told = " ".join(text.get_text().replace("\n", " ") for text in written)
    parts = {name for name, seconds in found.breakdown.items() if seconds > 0}
    assert {"tp", "host"} <= parts
    assert all(kind_words(name) in told for name in parts)


def test_steps_without_a_bubble_have_no_panel_of_it(drawn: list[Figure], tmp_path: Path) -> None:
    plot_comparison([("one", simulate_job(load_job("gpt2_124m_1gpu")))], tmp_path / "p.png")
    assert 2 == len(drawn[0].axes)
    assert "GiB" in drawn[0].axes[1].get_xlabel()


def test_plans_that_may_fit_are_not_told_to_be_too_large(drawn: list[Figure], tmp_path: Path) -> None:
    points = [(1.0, 60.0 * 2**30, False), (1.1, 50.0 * 2**30, True)]
    plot_search(points, [], None, 80.0 * 2**30, tmp_path / "p.png", probability=0.9)
    told = {text.get_text() for text in drawn[0].legends[0].get_texts()}
    assert {"fits with less than 90 %: 1", "fits with 90 % or more: 1"} <= told


def test_a_run_that_loses_nothing_says_so(drawn: list[Figure], tmp_path: Path) -> None:
    plot_goodput(goodput(load_job("gpt2_124m_1gpu"), None, 86400.0, 2), tmp_path / "p.png")
    words = [text.get_text() for axis in drawn[0].axes for text in axis.texts]
    assert any("nothing" in word for word in words), words


@pytest.mark.parametrize("picture", PICTURES)
def test_no_curve_leaves_its_axes(picture: Any, drawn: list[Figure], tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    for axis in drawn[0].axes:
        for line in axis.get_lines():
            if line.get_transform() == axis.transData:
                for values, (low, high) in ((line.get_xdata(), axis.get_xlim()), (line.get_ydata(), axis.get_ylim())):
                    slack = 1e-9 * abs(high - low)
                    assert min(values) >= min(low, high) - slack
                    assert max(values) <= max(low, high) + slack


@pytest.mark.parametrize("picture", [collective, scaling, accuracy, search, sweep])
def test_a_logarithmic_axis_has_labels_in_words(picture: Any, drawn: list[Figure], tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    for axis in drawn[0].axes:
        for scale, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
            if scale.get_scale() == "log":
                low, high = limits
                ticks = zip(scale.get_majorticklocs(), scale.get_majorticklabels(), strict=True)
                shown = [label for at, label in ticks if low <= at <= high and label.get_text()]
                assert 2 <= len(shown) <= 12
                boxes = [label.get_window_extent() for label in shown]
                assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_the_second_direction_of_a_pipeline_has_a_colour_of_its_own(drawn: list[Figure], tmp_path: Path) -> None:
    timelines(tmp_path / "p.png")
    one_way, both = drawn[0].axes

    def colours(axis: Any) -> set[str]:
        from matplotlib.colors import to_hex

        return {to_hex(face) for group in axis.collections for face in group.get_facecolors()}

    assert {COLOURS["forward"], COLOURS["backward"]} == colours(one_way)
    assert colours(both) == {colour_of(kind, way) for kind in ("forward", "backward") for way in (0, 1)}
    assert "darker" in " ".join(text.get_text() for text in both.get_legend().get_texts())


def test_the_figure_for_a_paper_draws_what_ranks_wait_for(drawn: list[Figure], tmp_path: Path) -> None:
    """Gradients that are reduced behind the last backward are no bubble."""
    plot_schedules(
        [("chimera", simulate_job(load_job("gpt3_175b", ["plan.schedule=chimera", "plan.chunks_per_rank=1"])))],
        tmp_path / "p.png",
    )
    (figure,) = drawn
    (legend,) = figure.legends
    assert {"data parallel", "pipeline messages"} <= {text.get_text() for text in legend.get_texts()}
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_legends_of_a_comparison_whose_rows_have_long_names_stay_in_the_picture(
    drawn: list[Figure], tmp_path: Path
) -> None:
    name = "cluster.oversubscription 1, cluster.network_link roce_400, plan.microbatch_size 1"
    plot_comparison([(name, simulate_job(load_job("gpt3_175b")))], tmp_path / "p.png")
    (figure,) = drawn
    boxes = [legend.get_window_extent() for axis in figure.axes if (legend := axis.get_legend())]
    assert len(boxes) == 2
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert boxes[0].x1 <= boxes[1].x0
    assert figure.axes[0].get_window_extent().width > 0.25 * figure.bbox.width


def test_bars_of_a_comparison_are_as_long_as_the_figures_that_they_show(drawn: list[Figure], tmp_path: Path) -> None:
    named = [(str(z), simulate_job(load_job("gpt3_175b", [f"plan.zero_stage={z}"]))) for z in (0, 1)]
    plot_comparison(named, tmp_path / "p.png")
    predictions = [prediction for _, prediction in named]
    wanted = (
        [p.step_time for p in predictions],
        [100.0 * p.bubble_fraction for p in predictions],
        [p.peak_memory / 2**30 for p in predictions],
    )
    for axis, figures in zip(drawn[0].axes, wanted, strict=True):
        bars = [bar for group in axis.containers for bar in group]
        length = [
            sum(bar.get_width() for bar in bars if round(bar.get_y() + bar.get_height() / 2) == row) for row in (0, 1)
        ]
        assert figures == pytest.approx(length)


def test_the_legend_of_a_layout_is_its_mesh(drawn: list[Figure], dtsim: Dtsim, tmp_path: Path) -> None:
    mesh = ("--mesh", "rows=2,cols=4", "--map", "batch=rows", "--map", "ffn=cols")
    assert 0 == dtsim("layout", "gpt2_124m", *mesh, "--plot", str(tmp_path / "p.png"))[0]
    (legend,) = (axis for axis in drawn[0].axes if axis.get_ylabel() == "rows 2")
    assert ("cols 4", (0, 4), (2, 0)) == (legend.get_xlabel(), legend.get_xlim(), legend.get_ylim())
    places = {patch.get_xy() for patch in legend.patches if patch.get_fill()}
    assert places == {(column, row) for column in range(4) for row in range(2)}


def test_the_legend_of_a_layout_says_what_the_third_axis_is(drawn: list[Figure], dtsim: Dtsim, tmp_path: Path) -> None:
    for mesh, words in (("a=2,b=2,c=4", "saturation: c 4"), ("a=2,b=2,c=4,d=2", "not in colour: d 2")):
        assert (
            0
            == dtsim(
                "layout", "gpt2_124m", "--mesh", mesh, "--map", "batch=a", "--plot", str(tmp_path / f"{mesh}.png")
            )[0]
        )
        texts = [text.get_text() for axis in drawn[-1].axes for text in axis.texts]
        assert any(words in text for text in texts), texts
