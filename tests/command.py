"""The type of the fixture `dtsim`: the command with these words gives exit code, standard output and standard error."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Dtsim"]

Dtsim = Callable[..., tuple[int, str, str]]
