"""The command line `dtsim`; see `simulator.cli.app`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["VERBS", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dtsim`; Ctrl-C while it is still being loaded, and after its last word, ends it at once.

    Args:
        arguments: None = those of the process, which is then ours; else Ctrl-C is as before when the answer is there.

    Raises:
        SystemExit: always.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = usual and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from simulator.cli.app import main as run

        run(arguments)
    finally:
        if ours and arguments is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def __getattr__(name: str) -> Any:
    if name != "VERBS":
        raise AttributeError(f"module 'simulator.cli' has no attribute {name!r}")
    from simulator.cli.app import VERBS

    return VERBS
