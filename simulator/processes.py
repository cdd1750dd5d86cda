"""Processes that compute for this one, and do not outlive it: without it nobody wants an answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

__all__ = ["Helpers", "end_session", "processes_of"]


class Helpers(ProcessPoolExecutor):
    """Processes that may be told to leave in the middle of their work."""

    def __init__(self, count: int) -> None:
        told, self._tell = multiprocessing.Pipe(duplex=False)
        super().__init__(count, multiprocessing.get_context(_way_to_start()), initializer=_helps, initargs=(told,))

    def leave(self) -> None:
        """End them at once: nobody waits for what they compute."""
        self._tell.send_bytes(b"leave")
        self.shutdown(wait=True, cancel_futures=True)


def processes_of(count: int) -> Helpers:
    """Return so many of them.  A Ctrl-C that comes while they are forked would be lost: it waits until they are there, and ends them."""
    with _later() as came, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # `_way_to_start`
        pool = Helpers(count)
        pool.submit(os.getpid)
    if came:
        pool.leave()
        signal.raise_signal(signal.SIGINT)
    return pool


def _way_to_start() -> str:
    """Return Python's way to start processes here, but forks only of a process whose one thread of Python forks.

    A fork has all that is loaded at once, which takes a server's processes three seconds, but for locks that another thread holds it
    waits for ever.  Threads of libraries are no matter, though Python from 3.12 on warns of them, too: OpenBLAS ends its own before a
    fork (OpenBLAS driver/others/memory.c, openblas_fork_handler), and the engine's compiled loops have none.
    """
    usual = multiprocessing.get_start_method()
    return "forkserver" if usual == "fork" and threading.active_count() > 1 else usual


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
