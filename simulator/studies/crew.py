"""Where blocks of points run: processes of this machine, or the workers of a dask.distributed scheduler; lost ones are asked again."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from simulator.errors import SimulatorError, SpecError
from simulator.job import job_from_names
from simulator.processes import processes_of
from simulator.simulation import simulate_job

__all__ = ["MOST_PROCESSES", "Crew", "cluster_crew", "local_crew"]

MOST_PROCESSES = 1024
"""Of one machine: each holds a simulator of its own."""
_TIMES = 3
"""How often a block that took its worker down is tried before it is given up."""
_AWAY = 60.0
"""Seconds that a scheduler may be away."""
_PATIENCE = 60.0
"""Seconds that blocks beside a lost one may say nothing."""


class Crew:
    """Workers that may be lost.

    Args:
        start: returns an executor and what closes it, in the middle of its work where told so; called again when the one before is
            broken.
        size: how many blocks run side by side.
    """

    def __init__(self, start: Callable[[], tuple[Executor, Callable[[bool], Any]]], size: int) -> None:
        self._start, self.size = start, size

    def run(
        self,
        work: Callable[[Any, list[int]], Any],
        context: Any,
        blocks: Iterable[list[int]],
        given_up: Callable[[int, str], Any],
    ) -> Iterator[Any]:
        """Yield `work(context, block)` of every block, in the order in which they end.

        After a loss every block that was under way is asked again, alone, so that it is known whose fault it was: one that loses its
        worker again is cut into points, and a point that does so three times is `given_up(point, why)`.
        """
        queue, suspects = iter(blocks), deque[tuple[list[int], int]]()
        running: dict[Future[Any], tuple[list[int], int]] = {}
        with _Hands(self._start) as hands:
            while True:
                while not (suspects and running) and len(running) < (1 if suspects else 2 * self.size):
                    block, times = suspects.popleft() if suspects else (next(queue, []), 0)
                    if not block:
                        break
                    running[hands.submit(work, context, block)] = block, times
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED, timeout=_PATIENCE if hands.broken else None)
                for future in done or list(running):
                    block, times = running.pop(future)
                    try:
                        yield future.result(timeout=0)
                    except Exception as error:
                        hands.broken = True
                        why = f"{type(error).__name__}: {str(error)[:200]}".rstrip(": ")
                        if times + 1 >= _TIMES and len(block) == 1:
                            yield given_up(block[0], why)
                        elif times >= 1 and len(block) > 1:
                            suspects.extend(([one], 1) for one in block)
                        else:
                            suspects.append((block, times + 1))


class _Hands:
    """The executor at work; a new one once the last block of a broken one is back."""

    def __init__(self, start: Callable[[], tuple[Executor, Callable[[bool], Any]]]) -> None:
        self._start, self.broken = start, False
        self._executor: Executor | None = None
        self._close: Callable[[bool], Any] = lambda at_once: None

    def __enter__(self) -> _Hands:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._close(kind is not None)

    def submit(self, work: Callable[[Any, list[int]], Any], context: Any, block: list[int]) -> Future[Any]:
        """Hand out a block; of an executor that takes none, a future that says so."""
        if self._executor is None or self.broken:
            self._close(True)
            self._executor, self._close = self._start()
            self.broken = False
        try:
            return self._executor.submit(work, context, block)
        except Exception as error:
            future: Future[Any] = Future()
            future.set_exception(error)
            return future


def local_crew(processes: int, points: int = MOST_PROCESSES) -> Crew:
    """Return processes of this machine, no more than there are points.

    Raises:
        SpecError: fewer than one, or more than a machine takes.
    """
    if not 1 <= processes <= MOST_PROCESSES:
        raise SpecError(f"--processes: expected 1 or more, at most {MOST_PROCESSES:,}, got {processes:,}")

    processes = min(processes, max(points, 1))

    def start() -> tuple[Executor, Callable[[bool], Any]]:
        _warm()
        pool = processes_of(processes)
        return pool, lambda at_once: pool.leave() if at_once else pool.shutdown(cancel_futures=True)

    return Crew(start, processes)


@functools.cache
def _warm() -> None:
    """Load the compiled engine before the processes are forked: all of them share it, and none loads it again."""
    with contextlib.suppress(SimulatorError):
        simulate_job(job_from_names("gpt3_1_3b", "h100_x8", ["plan.pipeline_parallel=2"]))


def cluster_crew(address: str, patience: float = 0.0) -> Crew:
    """Return the workers of a dask.distributed scheduler, which must have this package; it may go away for a minute and come back.

    Args:
        patience: seconds to wait for it to answer the first time.

    Raises:
        SpecError: dask.distributed is not installed, or nothing answers at the address.
    """
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError:
        raise SpecError("--scheduler needs dask.distributed. Way out: pip install 'dtsim[cluster]'") from None

    if not address.startswith("inproc://"):  # of this very process, by a name of its own
        try:
            get_address_host_port(address)
        except ValueError as wrong:
            raise SpecError(
                f"--scheduler {address[:120]}: no address of a scheduler ({str(wrong)[:120]}). Way out: tcp://HOST:PORT of one that runs"
            ) from None

    def connect(patience: float) -> Any:
        until = time.monotonic() + patience
        while True:
            try:
                make: Any = Client
                return make(address, timeout=5, set_as_default=False)
            except (OSError, ValueError, TimeoutError) as error:
                if isinstance(error, ValueError) or time.monotonic() > until:
                    raise SpecError(
                        f"--scheduler {address}: no scheduler answers ({str(error)[:120]}). Way out: tcp://HOST:PORT of one that runs"
                    ) from None
                time.sleep(0.5)

    def start() -> tuple[Executor, Callable[[bool], Any]]:
        client = connect(_AWAY)
        client.wait_for_workers(1, timeout=_AWAY)
        return client.get_executor(pure=False), lambda at_once: client.close(timeout=2)

    first = connect(patience)
    threads = sum(first.nthreads().values())
    first.close()
    return Crew(start, max(1, threads))
