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
from tests.command import Dtsim
from tests.pages.patience import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, ready = Server(port=0), threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    assert ready.wait(PATIENCE)
    yield server.address
    server.stop()
    thread.join(PATIENCE)


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

    def ends() -> list[float]:
        """What part of its own step each timeline shows."""
        drawings = (page.locator(f'[data-setting="{s}"] canvas[aria-label^="timeline"]') for s in "AB")
        return [float((drawing.get_attribute("data-view") or "0 0").split()[1]) for drawing in drawings]

    until(page, lambda: max(ends()) > 1.001)
    assert min(ends()) == pytest.approx(1.0)
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


def test_what_is_copied_is_the_setting(address: str, visit: Callable[..., Any], dtsim: Dtsim) -> None:
    page = visit(address, permissions=["clipboard-read", "clipboard-write"])
    after(page, slide(page, "microbatches", 9))

    def copied(name: str, begin: str) -> str:
        """What a button copies, once it is there."""
        page.get_by_role("button", name=name, exact=True).click()
        until(page, lambda: page.evaluate("navigator.clipboard.readText()").startswith(begin))
        return str(page.evaluate("navigator.clipboard.readText()"))

    again = visit(copied("link", "http"))
    assert tile(page, "one step") == tile(again, "one step")
    page.bring_to_front()
    copied("command line", "dtsim run --model llama3_70b --cluster dgx_h100")
    assert "global_batch_size = 20" in copied("TOML", "name = ")


def test_money_appears_with_a_price(address: str, visit: Callable[..., Any]) -> None:
    page = visit(address)
    assert "GPU-h" in tile(page, "a billion tokens")

    def give(label: str, text: str) -> None:
        page.get_by_label(label).fill(text)
        page.get_by_label(label).blur()

    give("$ per GPU-hour", "2")
    until(page, lambda: tile(page, "a billion tokens").endswith("$"))
    give("tokens to train on", "1T")
    until(page, lambda: bool(re.search(r"\d", tile(page, "to train"))))


def test_an_action_dragged_changes_the_bubble_and_one_that_cannot_run_is_told(
    address: str, visit: Callable[..., Any]
) -> None:
    page = visit(address)
    page.locator("#tab-lab").click()
    page.wait_for_selector("html[data-lab]")
    bubble = page.locator("#lab .tile .value").first

    def turn() -> str | None:
        """Which answer the page shows; one that refuses an order leaves it."""
        return page.locator("html").get_attribute("data-lab")

    assert 3 == page.locator("#lab .tile .value").count()

    def drag(rank: int, begin: float, end: float) -> None:
        box = page.locator("#lab canvas").bounding_box()
        wide, y = box["width"] - 58, box["y"] + 22 + (rank + 0.4) * 46
        page.mouse.move(box["x"] + 58 + begin / 33 * wide, y)
        page.mouse.down()
        page.mouse.move(box["x"] + 58 + end / 33 * wide, y, steps=6)
        page.mouse.up()

    assert "27.3 %" == bubble.inner_text()
    before = turn()
    drag(0, 11, 15.5)  # the backward of microbatch 0 behind the next forward
    until(page, lambda: before != turn())
    assert "27.3 %" != bubble.inner_text()
    before = turn()
    page.get_by_role("button", name="the schedule's own order").click()
    until(page, lambda: before != turn())
    assert "27.3 %" == bubble.inner_text()
    drag(3, 5, 2.6)  # a backward before its forward
    until(page, lambda: "backward" in page.locator("#lab [role=alert]").inner_text())
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
    until(page, lambda: page.locator('[data-setting="B"] .tile').count() > 0)
    assert "plans:" in page.locator("#found").inner_text()
    assert "against A" in page.locator('[data-setting="B"]').inner_text()
    assert "best plan" == page.locator("#best").inner_text()
