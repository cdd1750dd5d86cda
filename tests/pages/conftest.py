"""A headless Chromium for tests that click and hover; without one they are skipped, and say what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pages.patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium(driver: Any) -> Any:
    """Open the browser that the system has, else the one that Playwright has downloaded."""
    own = next((path for name in NAMES if (path := shutil.which(name))), None)
    return driver.chromium.launch(executable_path=own, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser for all tests of pages."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        try:
            opened = chromium(driver)
        except playwright.Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"no Chromium: apt-get install chromium, or playwright install chromium ({reason})")
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address at a size and in a colour scheme; at the end the console must be empty, and nothing else asked for."""
    said: list[str] = []
    contexts = []

    def visit(address: str, width: int = 1280, height: int = 900, scheme: str = "light", **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        context.set_default_timeout(1e3 * PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(address.split("#")[0]) else said.append(request.url),
        )
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [] == said
