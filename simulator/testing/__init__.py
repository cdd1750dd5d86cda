"""What other people's members must keep: a contract for every family."""

from __future__ import annotations

__all__ = ["require"]


def require(condition: bool, message: str) -> None:
    """Raise AssertionError where a promise is broken."""
    if not condition:
        raise AssertionError(message)
