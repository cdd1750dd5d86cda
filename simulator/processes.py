"""Processes that compute for this one, and do not outlive it: without it nobody wants an answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

__all__ = ["Helpers", "end_session", "processes_of"]


class Helpers(ProcessPoolExecutor):
    """Processes that may be told to leave in the middle of their work."""

    def __init__(self, count: int) -> None:
        told, self._tell = multiprocessing.Pipe(duplex=False)
        super().__init__(count, initializer=_helps, initargs=(told,))

    def leave(self) -> None:
        """End them at once: nobody waits for what they compute."""
        self._tell.send_bytes(b"leave")
        self.shutdown(wait=True, cancel_futures=True)


def processes_of(count: int) -> Helpers:
    """Return so many of them.  A Ctrl-C that comes while they are forked would be lost: it waits until they are there, and ends them."""
    with _later() as came:
        pool = Helpers(count)
        pool.submit(os.getpid)
    if came:
        pool.leave()
        signal.raise_signal(signal.SIGINT)
    return pool


@contextlib.contextmanager
def _later() -> Iterator[list[int]]:
    """Yield what notes each Ctrl-C.  A thread's mask would not do: the signal goes to another, of numpy's say, and Python is told."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield came  # nobody here is told of it
        return
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def end_session(leader: int) -> None:
    """End a process that leads a session and all others of it, those too that made groups of their own, as a compiler's do; itself last.

    Where /proc does not tell who there is, its own group alone.
    """
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _helps(told: Connection) -> None:
    """Begin a process that computes for another: Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(told,), daemon=True).start()


def _leave_with(told: Connection) -> None:
    """Leave when who asked is gone, or says so: one word that nobody takes away is for all of them.

    Who forked us may be another, a server; who asked may have forked others that keep its end of a pipe.
    """
    asked, forked = multiprocessing.parent_process(), os.getppid()
    while asked is not None and asked.is_alive() and os.getppid() == forked and not told.poll(1.0):
        pass
    os._exit(1)
