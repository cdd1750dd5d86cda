"""Pictures: drawn from the trace, in the colours that the legend names, in the format that the file asks for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from simulator.engine import run
from simulator.errors import SpecError
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import Program, Tensor
from simulator.report.plots import COLOURS, plot_prediction, plot_timelines


def pipeline(microbatches: int = 2, recomputes: bool = False) -> tuple[Program, Prices]:
    """Two ranks: forwards of 1 s down, backwards of 2 s up (half recomputed if so), a dp collective at the end."""
    build = ProgramBuilder("pipeline")
    compute = [build.add_stream(build.add_rank()) for _ in range(2)]
    down = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    up = build.add_stream(1, "pp>0"), build.add_stream(0, "pp<1")
    dp = build.add_stream(0, "dp")
    forward, backward = build.add_item(plain_segment("f")), build.add_item(plain_segment("b", "backward"))
    send, back = build.add_item(transfer_link("act", 0, 1)), build.add_item(transfer_link("grad", 1, 0))
    reduce = build.add_item(collective_link("bucket", "reduce_scatter", [0]))
    saved = build.add_effect(Tensor(name="saved", category="activations", bytes=2.0**30))
    last = -1
    for m in range(microbatches):
        here = build.add_row(forward, compute[0], action=0, microbatch=m, start_effect=saved)
        moved = build.add_row(send, down, after=[here])
        there = build.add_row(forward, compute[1], after=[moved], action=0, microbatch=m)
        turned = build.add_row(backward, compute[1], after=[there], action=1, microbatch=m)
        returned = build.add_row(back, up, after=[turned])
        last = build.add_row(backward, compute[0], after=[returned], action=1, microbatch=m, end_effect=saved)
    build.add_row(reduce, dp, after=[last])
    prices = Prices.plain(np.array([1.0, 2.0, 0.2, 0.2, 1.0]), np.zeros(5))
    account = np.zeros((5, len(ACCOUNTS)))
    account[0, ACCOUNTS.index("forward")] = 1.0
    account[1, ACCOUNTS.index("backward")] = 1.0 if recomputes else 2.0
    account[1, ACCOUNTS.index("recompute")] = 1.0 if recomputes else 0.0
    return build.build(), dataclasses.replace(prices, account=account)


def pixels(path: Path, kind: str) -> int:
    """How many pixels have exactly the colour of a kind of bar."""
    image = imread(path)[:, :, :3]
    return int((np.abs(image - np.array(to_rgb(COLOURS[kind]))).max(axis=2) < 1e-3).sum())


def test_a_picture_shows_what_ran_in_the_colours_of_the_legend(tmp_path: Path) -> None:
    program, prices = pipeline()
    path = plot_prediction(program, prices, run(program, prices), tmp_path / "step.png")
    assert all(pixels(path, kind) > 50 for kind in ("forward", "backward", "bubble", "pp", "dp"))
    assert [0, 0, 0] == [pixels(path, kind) for kind in ("recompute", "weight gradient", "optimizer")]


def test_recomputation_is_drawn_as_part_of_the_backward(tmp_path: Path) -> None:
    areas = {}
    for recomputes in (False, True):
        program, prices = pipeline(recomputes=recomputes)
        path = plot_prediction(program, prices, run(program, prices), tmp_path / f"{recomputes}.png")
        areas[recomputes] = {kind: pixels(path, kind) for kind in ("forward", "backward", "recompute")}
    assert areas[False]["forward"] == pytest.approx(areas[True]["forward"], rel=0.1)
    assert 0.5 == pytest.approx(areas[True]["backward"] / areas[False]["backward"], rel=0.15)
    assert areas[True]["backward"] == pytest.approx(areas[True]["recompute"], rel=0.15)


def test_the_capacity_of_the_gpu_is_drawn_when_given(tmp_path: Path) -> None:
    program, prices = pipeline()
    trace = run(program, prices)
    texts = [
        plot_prediction(program, prices, trace, tmp_path / f"{capacity}.svg", capacity=capacity).read_text()
        for capacity in (None, 8 * 2.0**30)
    ]
    assert [False, True] == ["#b00020" in text for text in texts]


def test_too_many_bars_become_columns_with_the_same_shares(tmp_path: Path) -> None:
    program, prices = pipeline(microbatches=6_000)
    path = plot_prediction(program, prices, run(program, prices), tmp_path / "dense.png")
    forward, backward, idle = (pixels(path, kind) for kind in ("forward", "backward", "bubble"))
    assert forward > 1_000
    assert 2.0 == pytest.approx(backward / forward, rel=0.25)
    assert idle > 0.2 * backward


def test_a_comparison_draws_all_runs_on_one_scale(tmp_path: Path) -> None:
    runs = []
    for microbatches in (2, 4):
        program, prices = pipeline(microbatches)
        runs.append((f"{microbatches} microbatches", program, run(program, prices)))
    one, both = plot_timelines(runs[1:], tmp_path / "one.png"), plot_timelines(runs, tmp_path / "both.png")
    assert pixels(one, "forward") * 1.5 == pytest.approx(pixels(both, "forward"), rel=0.15)
    assert imread(both).shape[0] > imread(one).shape[0]


def test_a_format_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    program, prices = pipeline()
    with pytest.raises(SpecError, match=r"bmpx' has none of.*png"):
        plot_prediction(program, prices, run(program, prices), tmp_path / "step.bmpx")


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at least one"):
        plot_timelines([], tmp_path / "none.png")
