"""All cases of this tree, by several processes."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.replay.cases import cases
from tests.replay.recorder import Recorder

__all__ = ["Digests", "collect"]

CHUNK = 60
Digests = dict[str, dict[str, str]]


def _collect(chunk: tuple[int, str]) -> Digests:
    start, words = chunk
    recorder = Recorder()
    try:
        wanted = [case for case in cases() if words in case[0]][start : start + CHUNK]
        return {name: recorder.digest(work) for name, work in wanted}
    finally:
        recorder.close()


def collect(words: str, processes: int) -> Digests:
    """Return case -> column -> digest of this tree."""
    count = sum(words in name for name, _ in cases())
    out: Digests = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(_collect, [(start, words) for start in range(0, count, CHUNK)]):
            out |= part
            print(f"\r{len(out)} of {count} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return out
