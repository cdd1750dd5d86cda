"""Processes that compute for this one, and do not outlive it: without it nobody wants an answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor

__all__ = ["processes_of"]


def processes_of(count: int) -> ProcessPoolExecutor:
    """Return so many of them.  A Ctrl-C that comes while they are forked would be lost: it waits until they are there."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = ProcessPoolExecutor(count, initializer=_helps, initargs=(os.getpid(),))
        pool.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return pool


def _helps(parent: int) -> None:
    """Begin a process that computes for another: Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
