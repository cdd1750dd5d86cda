"""Write docs/pipeline.png and docs/report.png anew: `python -m tests.pages.pictures`, with a Chromium and Playwright at hand."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from simulator.cli.app import main as dtsim
from tests.pages.conftest import chromium

DOCS = Path(__file__).parents[2] / "docs"
JOB, HEIGHT, GAP = "gpt3_175b", 734, 16
LAPTOP, PHONE = 1045, 339
POINTED = (0.535, 0.19)
"""Where on the timeline the mouse stands, in shares of its width and height."""


def shot(browser: Browser, page: Path, width: int, scheme: str, point: bool) -> Image.Image:
    """The report as a screen of this width shows it, with a bar pointed at or not."""
    opened = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]
    opened.goto(page.as_uri())
    opened.wait_for_selector("html[data-ready]")
    opened.wait_for_timeout(500)
    box = opened.locator("#timeline canvas").bounding_box()
    if point and box is not None:
        opened.mouse.move(box["x"] + box["width"] * POINTED[0], box["y"] + box["height"] * POINTED[1])
        opened.wait_for_timeout(400)
    return Image.open(io.BytesIO(opened.screenshot())).convert("RGB")


def draw(folder: Path) -> None:
    """Run the job, and photograph its report on a laptop and on a phone."""
    page = folder / "report.html"
    words = ["run", JOB, "--plot", str(DOCS / "pipeline.png"), "--report", str(page), "--force"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        dtsim(words)
    with sync_playwright() as driver:
        browser = chromium(driver)
        wide, narrow = shot(browser, page, LAPTOP, "light", True), shot(browser, page, PHONE, "dark", False)
        browser.close()
    both = Image.new("RGB", (LAPTOP + GAP + PHONE, HEIGHT), "white")
    both.paste(wide, (0, 0))
    both.paste(narrow, (LAPTOP + GAP, 0))
    few = both.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(DOCS / "report.png", optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        draw(Path(made))
    sys.stdout.write(f"wrote {DOCS / 'pipeline.png'} and {DOCS / 'report.png'}\n")
