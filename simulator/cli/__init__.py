"""The command line `dtsim`; see `simulator.cli.app`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["VERBS", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dtsim`; Ctrl-C while it is still being loaded ends it at once.

    Raises:
        SystemExit: always.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    loads = usual and threading.current_thread() is threading.main_thread() and "simulator.cli.app" not in sys.modules
    if loads:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from simulator.cli.app import main as run

    if loads:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run(arguments)


def __getattr__(name: str) -> Any:
    if name != "VERBS":
        raise AttributeError(f"module 'simulator.cli' has no attribute {name!r}")
    from simulator.cli.app import VERBS

    return VERBS
