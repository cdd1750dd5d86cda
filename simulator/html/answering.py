"""Questions answered in a process of their own, each within a limit of time and all within one of memory.

A request may ask for anything that the rules of a job allow, and some of that takes minutes or gigabytes.  A process can be
ended; a thread cannot.  After an end the next question starts a new one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from typing import Any

__all__ = ["COMPILED", "COMPILES", "AnsweringProcess"]

COMPILES, COMPILED = "compiles", "compiled"
"""What the process says when it begins to compile a part of the engine, and when that is done: no question's fault."""

_START_LIMIT = 300.0
"""Seconds to import, and for what is compiled on the first run ever."""
_TIMED_OUT = 413
_FAILED = 500


class AnsweringProcess:
    """One process that answers one question at a time; may be asked from several threads.

    Args:
        limit: seconds for an answer, beside those in which parts of the engine are compiled that were not.
        memory: bytes of address space that the process may use; 0 = no limit.
        patient: whether it leaves the processor to others.
    """

    def __init__(self, limit: float = 5.0, memory: int = 0, patient: bool = False) -> None:
        self._limit, self._memory, self._patient = limit, memory, patient
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._process: Any = None
        self._line: Any = None

    def ask(self, question: str, data: Any) -> tuple[int, dict[str, Any]]:
        """Return status and answer; a question that takes longer than the limit ends the process and is 413."""
        with self._lock:
            try:
                self._ready()
                self._line.send((question, data))
                limit = self._limit
                while self._line.poll(limit):
                    said = self._line.recv()
                    if said not in (COMPILES, COMPILED):
                        return int(said[0]), dict(said[1])
                    limit = _START_LIMIT if said == COMPILES else self._limit
            except (EOFError, OSError):
                self._end()
                return _TIMED_OUT, {
                    "error": "this is too large for a page: its process ran out of memory. dtsim run takes larger steps"
                }
            self._end()
            return _TIMED_OUT, {
                "error": f"this takes more than {self._limit:g} s, too long for a page. Way out: fewer microbatches or layers, or dtsim run"
            }

    def start(self) -> None:
        """Start the process and answer a first question, so that the next is quick."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            self._ready()

    def close(self) -> None:
        """End the process."""
        self._end()

    def _ready(self) -> None:
        """Start the process unless it runs; returns when it has answered its first question."""
        if self._process is not None and self._process.is_alive():
            return
        self._line, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self._memory, self._patient), daemon=True)
        self._process.start()
        theirs.close()
        if not self._line.poll(_START_LIMIT):
            raise OSError("the process that simulates does not start")
        self._line.recv()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
            self._process = None


def _serve(line: Any, memory: int, patient: bool) -> None:
    """What the process does: answer until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if patient and hasattr(os, "nice"):
        os.nice(10)
    if memory:
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    from simulator.compiled import when_compiling
    from simulator.html.whatif import answer

    for question in ("choices", "step", "schedule"):
        answer(question, {})
    line.send("ready")
    when_compiling(lambda begins: line.send(COMPILES if begins else COMPILED))
    while True:
        try:
            question, data = line.recv()
        except (EOFError, OSError):
            return
        try:
            line.send(answer(question, data))
        except Exception as error:  # a fault of ours: the page is told, and goes on
            line.send(
                (_FAILED, {"error": f"internal error: {type(error).__name__}: {str(error)[:300]}. Please report it"})
            )
