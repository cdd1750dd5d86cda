"""The report of a step in a browser: hover, zoom, pan, choose, on a laptop and a phone, with an empty console."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.html.report import write_report
from simulator.job import job_from_names
from simulator.report.table import Section
from simulator.simulation import simulate_job
from tests.pages.patience import drawn, until

pytestmark = pytest.mark.slow
PLAN = ["cluster.gpus=64", "plan.tensor_parallel=8", "plan.pipeline_parallel=4", "plan.data_parallel=2"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    job = job_from_names("llama2_70b", "dgx_h100", [*PLAN, "workload.global_batch_size=32"])
    path = tmp_path_factory.mktemp("report") / "r.html"
    return write_report(simulate_job(job), job, path, "dtsim run x").as_uri()


def at(page: Any, selector: str, across: float, down: float) -> tuple[float, float]:
    """A point of an element, in parts of it."""
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    return box["x"] + across * box["width"], box["y"] + down * box["height"]


def view(page: Any) -> tuple[float, float]:
    """What part of the step the timeline shows."""
    drawn(page)
    low, high = page.locator("#timeline canvas").get_attribute("data-view").split()
    return float(low), float(high)


def tells(page: Any, *words: str) -> Callable[[], bool]:
    """Whether the tip is there and has these words."""

    def told() -> bool:
        shown = page.locator("#tip.on")
        return shown.count() > 0 and all(word in shown.inner_text() for word in words)

    return told


def hovered(page: Any, place: str, told: str) -> bool:
    """Hover anew and look: a page that scrolls puts the tip away."""
    page.mouse.move(0, 0)
    page.locator(place).hover()
    drawn(page)
    return tells(page, told)()


def test_every_part_is_there(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report)
    for part in ("timeline", "memory", "breakdown", "critical", "roofline", "levers", "trust", "origin"):
        assert page.locator(f"#{part}").is_visible(), part
    assert 15 < page.locator("#roofline circle").count()
    assert 5 < page.locator("#levers tr").count()
    assert "dtsim run x" in page.locator("#origin").inner_text()


def test_hovering_tells_operation_microbatch_times_and_bytes(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report)
    page.mouse.move(*at(page, "#timeline canvas", 0.061, 0.2))
    until(page, tells(page, "0F0", "forward", "microbatch", "from", "lasts", "reads, writes", "allocates"))
    page.mouse.move(*at(page, "#memory canvas", 0.5, 0.5))
    until(page, tells(page, "GiB"))
    for place, told in (
        ("#roofline circle >> nth=-1", "of its roof"),
        ("#breakdown [data-part=backward] >> nth=0", "of the step"),
    ):
        until(page, lambda place=place, told=told: hovered(page, place, told))  # type: ignore[misc]


def test_zoom_pan_and_back_by_wheel_drag_keys_and_buttons(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report)
    assert (0.0, 1.0) == view(page)
    page.mouse.move(*at(page, "#timeline canvas", 0.5, 0.3))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    until(page, lambda: view(page) != (0.0, 1.0))
    zoomed = view(page)
    assert 0.0 < zoomed[0] < zoomed[1] < 1.0
    x, y = at(page, "#timeline canvas", 0.6, 0.3)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    panned = view(page)
    assert panned[0] < zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])
    page.locator("#timeline canvas").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert view(page)[1] - view(page)[0] < panned[1] - panned[0]
    page.get_by_label("show the whole step").click()
    assert (0.0, 1.0) == view(page)


def test_a_click_opens_a_bar_and_the_chain_is_marked(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report)
    page.mouse.click(*at(page, "#timeline canvas", 0.061, 0.2))
    until(page, lambda: "priced by" in page.locator("#chosen").inner_text())
    before = page.locator("#timeline canvas").screenshot()
    button = page.get_by_label("show the chain of work")
    button.click()
    until(page, lambda: "true" == button.get_attribute("aria-pressed"))
    drawn(page)
    assert before != page.locator("#timeline canvas").screenshot()


def test_memory_of_one_rank_by_category_and_its_peak(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report)
    page.locator("#memory select").select_option("3")
    until(page, lambda: "rank 3" in page.locator("#memory").inner_text())
    assert "optimizer states" in page.locator("#memory").inner_text()
    page.mouse.move(*at(page, "#memory canvas", 0.5, 0.5))
    until(page, tells(page, "activations"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
def test_nothing_leaves_the_screen(
    report: str, visit: Callable[..., Any], width: int, height: int, scheme: str
) -> None:
    page = visit(report, width, height, scheme)
    assert 0 >= page.evaluate("document.documentElement.scrollWidth - innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert ground != page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_a_phone_shows_every_column_of_what_would_help(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report, 390, 844)
    cut = "[...document.querySelectorAll('#levers .scroll')].map((box) => box.scrollWidth - box.clientWidth)"
    assert 0 >= max(page.evaluate(cut)), "verdicts and buttons stand inside the card"


def test_what_nobody_asked_for_stands_below_the_timeline(tmp_path: Path, visit: Callable[..., Any]) -> None:
    job = job_from_names("llama2_70b", "dgx_h100", [*PLAN, "workload.global_batch_size=32"])
    asked, told = Section(title="asked"), Section(title="told anyway")
    page = visit(write_report(simulate_job(job), job, tmp_path / "r.html", "dtsim run x", [asked], [told]).as_uri())
    top = [page.get_by_role("heading", name=name).bounding_box()["y"] for name in ("asked", "Timeline", "told anyway")]
    assert top == sorted(top)


def test_long_names_break_between_their_words(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report, 390, 844)
    assert page.locator("#critical td:has-text('all_reduce:') wbr").count()


def test_a_finger_taps_and_two_zoom(report: str, visit: Callable[..., Any]) -> None:
    page = visit(report, 390, 844, has_touch=True, is_mobile=True)
    page.touchscreen.tap(*at(page, "#timeline canvas", 0.5, 0.2))
    until(page, lambda: "rank" in page.locator("#chosen").inner_text())
    x, y = at(page, "#timeline canvas", 0.5, 0.3)
    fingers = page.context.new_cdp_session(page)
    for kind, spread in (("touchStart", 20), ("touchMove", 60), ("touchMove", 110)):
        points = [{"x": x - spread, "y": y, "id": 0}, {"x": x + spread, "y": y, "id": 1}]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def part() -> float:
        low, high = view(page)
        return high - low

    until(page, lambda: part() < 0.5)


def test_two_hundred_thousand_bars_are_drawn_and_told_how_fast(
    visit: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from simulator.job import load_job

    job = load_job("korthikanti_1t_full")
    path = write_report(simulate_job(job), job, tmp_path / "large.html", "dtsim run korthikanti_1t_full")
    assert path.stat().st_size < 2_000_000
    page = visit(path.as_uri())
    page.locator("#timeline canvas").focus()
    frames = page.evaluate(
        """async () => {
            const canvas = document.querySelector("#timeline canvas"), times = [];
            for (let i = 0; i < 20; i++) {
                const began = performance.now();
                canvas.dispatchEvent(new KeyboardEvent("keydown", { key: i < 12 ? "+" : "ArrowRight" }));
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                times.push(performance.now() - began);
            }
            return times.sort((a, b) => a - b);
        }"""
    )
    assert view(page)[1] < 1.0
    with capsys.disabled():
        print(
            f"\n{path.stat().st_size:,} bytes; a zoom or pan of 224,000 bars: {frames[10]:.0f} ms (median), {frames[-1]:.0f} ms"
        )
