"""Waiting for a page: until it has drawn, and until something is so; how long that takes is the machine's affair."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENCE", "drawn", "until"]

PATIENCE = 600.0
"""Seconds after which a page is taken to hang: a machine may be slow, and busy with other tests."""
_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def drawn(page: Any) -> None:
    """Wait until what was asked for before is on the screen: the next frame but one has begun."""
    page.evaluate(_FRAMES)


def until(page: Any, what: Callable[[], bool]) -> None:
    """Wait for something to be so; the page forbids the driver to do that by itself."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never became so"
        page.wait_for_timeout(25)
