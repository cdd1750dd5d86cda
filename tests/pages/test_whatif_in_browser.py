"""The what-if page in a browser, with its real server and process: sliders, lists, files, two settings, copies, dragging."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.html.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, ready = Server(port=0), threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    assert ready.wait(60)
    yield server.address
    server.stop()
    thread.join(60)


def until(page: Any, what: Callable[[], bool]) -> None:
    """Wait for something to be so; the page forbids the driver to do that by itself."""
    for _ in range(600):
        if what():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it never became so")


def answers(page: Any) -> int:
    return int(page.locator("html").get_attribute("data-ready"))


def after(page: Any, act: Callable[[], Any]) -> float:
    """Do something that asks; wait for the answer to be drawn; return seconds."""
    before, began = answers(page), time.perf_counter()
    act()
    until(page, lambda: answers(page) > before)
    return time.perf_counter() - began


def slide(page: Any, label: str, to: int) -> Callable[[], Any]:
    slider = page.locator(f'input[aria-label="{label}"]:visible')
    return lambda: slider.evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", to
    )


def tile(page: Any, label: str, setting: str = "A") -> str:
    return page.locator(f'[data-setting="{setting}"] .tile', has_text=label).locator(".value").inner_text()


def test_more_microbatches_less_bubble(
    address: str, visit: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page = visit(address)
    bubbles, seconds = [], []
    for microbatches in (8, 16, 32, 64):
        seconds.append(after(page, slide(page, "microbatches", microbatches - 1)))
        bubbles.append(float(tile(page, "bubble").split()[0]))
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[-1] < bubbles[0] / 3
    with capsys.disabled():
        print(f"\na change on the what-if page: {', '.join(f'{s:.2f}' for s in seconds)} s")


def test_a_plan_that_cannot_be_says_why_and_keeps_the_last_answer(address: str, visit: Callable[..., Any]) -> None:
    page = visit(address)
    before = tile(page, "one step")
    alert = page.locator('[data-setting="A"] [role=alert]')
    after(page, slide(page, "tensor parallel", 6))
    assert "does not divide" in alert.inner_text()
    assert before == tile(page, "one step")
    after(page, slide(page, "tensor parallel", 3))
    assert "" == alert.inner_text()


def test_two_settings_side_by_side_on_one_scale(address: str, visit: Callable[..., Any]) -> None:
    page = visit(address)
    after(page, page.locator("#compare").click)
    page.get_by_label("schedule", exact=True).select_option("zb_h1")
    until(page, lambda: tile(page, "bubble", "B") != tile(page, "bubble", "A"))
    assert "against A" in page.locator('[data-setting="B"]').inner_text()
    views = [
        page.locator(f'[data-setting="{s}"] canvas[aria-label^="timeline"]').get_attribute("data-view") for s in "AB"
    ]
    ends = [float(view.split()[1]) for view in views]
    assert min(ends) == pytest.approx(1.0)
    assert max(ends) > 1.001
    page.locator("#compare").click()
    until(page, lambda: 1 == page.locator(".setting").count())


def test_files_are_taken_and_refused(address: str, visit: Callable[..., Any], tmp_path: Path) -> None:
    job = tmp_path / "mine.toml"
    job.write_text(
        'name = "mine"\n[workload]\nmodel = "llama2_13b"\nglobal_batch_size = 64\n[plan]\ntensor_parallel = 2\n'
        'zero_stage = 2\n[cluster]\nname = "dgx_a100"\ngpus = 32\n'
    )
    page = visit(address)
    after(page, lambda: page.locator("input[type=file]").set_input_files(job))
    assert "llama2_13b" == page.get_by_label("model", exact=True).input_value()
    assert "32" == page.locator('input[aria-label="GPUs"]').get_attribute("aria-valuetext")
    script = Path(__file__).parents[1] / "data" / "imports" / "deepspeed.json"
    after(page, lambda: page.locator("input[type=file]").set_input_files(script))
    assert "llama2_13b" == page.get_by_label("model", exact=True).input_value(), "what the file does not say stays"
    assert "1" == page.get_by_label("tensor parallel", exact=True).get_attribute("aria-valuetext")
    before = tile(page, "one step")
    job.write_text("this is [no TOML")
    page.locator("input[type=file]").set_input_files(job)
    refused = page.locator("aside [role=alert]")
    until(page, lambda: "no TOML" in refused.inner_text())
    assert before == tile(page, "one step")


def test_what_is_copied_is_the_setting(address: str, visit: Callable[..., Any], dtsim: Any) -> None:
    page = visit(address, permissions=["clipboard-read", "clipboard-write"])
    after(page, slide(page, "microbatches", 9))
    page.get_by_role("button", name="link").click()
    page.wait_for_timeout(100)
    link = page.evaluate("navigator.clipboard.readText()")
    again = visit(link)
    assert tile(page, "one step") == tile(again, "one step")
    page.get_by_role("button", name="command line").click()
    page.wait_for_timeout(100)
    assert page.evaluate("navigator.clipboard.readText()").startswith("dtsim run --model llama3_70b --cluster dgx_h100")
    page.get_by_role("button", name="TOML", exact=True).click()
    page.wait_for_timeout(100)
    assert "global_batch_size = 20" in page.evaluate("navigator.clipboard.readText()")


def test_money_appears_with_a_price(address: str, visit: Callable[..., Any]) -> None:
    page = visit(address)
    assert "GPU-h" in tile(page, "a billion tokens")

    def give(label: str, text: str) -> None:
        page.get_by_label(label).fill(text)
        page.get_by_label(label).blur()

    after(page, lambda: give("$ per GPU-hour", "2"))
    assert tile(page, "a billion tokens").endswith("$")
    after(page, lambda: give("tokens to train on", "1T"))
    assert re.search(r"\d", tile(page, "to train"))


def test_an_action_dragged_changes_the_bubble_and_one_that_cannot_run_is_told(
    address: str, visit: Callable[..., Any]
) -> None:
    page = visit(address)
    page.locator("#tab-lab").click()
    until(page, lambda: page.locator("#lab .tile .value").count() == 3)
    bubble = page.locator("#lab .tile .value").first

    def drag(rank: int, begin: float, end: float) -> None:
        box = page.locator("#lab canvas").bounding_box()
        wide, y = box["width"] - 58, box["y"] + 22 + (rank + 0.4) * 46
        turn = page.locator("html").get_attribute("data-lab")
        page.mouse.move(box["x"] + 58 + begin / 33 * wide, y)
        page.mouse.down()
        page.mouse.move(box["x"] + 58 + end / 33 * wide, y, steps=6)
        page.mouse.up()
        page.wait_for_timeout(400)
        assert turn is not None

    assert "27.3 %" == bubble.inner_text()
    drag(0, 11, 15.5)  # the backward of microbatch 0 behind the next forward
    assert "27.3 %" != bubble.inner_text()
    page.get_by_role("button", name="the schedule's own order").click()
    until(page, lambda: "27.3 %" == bubble.inner_text())
    drag(3, 5, 2.6)  # a backward before its forward
    assert "backward" in page.locator("#lab [role=alert]").inner_text()
    assert "27.3 %" == bubble.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_nothing_leaves_the_screen(
    address: str, visit: Callable[..., Any], width: int, height: int, scheme: str
) -> None:
    page = visit(address, width, height, scheme)
    assert 0 >= page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.locator("#tab-lab").click()
    page.wait_for_selector("html[data-lab]")
    assert 0 >= page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_the_best_plan_by_one_button(address: str, visit: Callable[..., Any]) -> None:
    page = visit(address)
    page.locator("#best").click()
    for _ in range(6):  # a search takes longer than what `until` waits for
        if page.locator(".setting").count() == 2:
            break
        page.wait_for_timeout(10_000)
    until(page, lambda: page.locator('[data-setting="B"] .tile').count() > 0)
    assert "plans:" in page.locator("#found").inner_text()
    assert "against A" in page.locator('[data-setting="B"]').inner_text()
    assert "best plan" == page.locator("#best").inner_text()
