"""The process that answers a page's questions: what is compiled once is not counted, what takes too long is ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.html.answering import COMPILED, COMPILES, AnsweringProcess

SMALL = {"model": "gpt2_124m", "cluster": "dgx_a100", "gpus": 8, "tensor_parallel": 1, "pipeline_parallel": 2}
SMALL |= {"sequence_length": 1024, "microbatches": 4}
PATIENCE = 600.0
"""Seconds after which something is taken to hang: a machine may be slow, and busy with other tests."""


class Alive:
    """A process that runs until it is ended."""

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        pass

    def join(self) -> None:
        pass


def told(*said: object) -> tuple[int, dict[str, Any]]:
    """The answer where the process says these, a second apart, and half a second is the limit."""
    answering = AnsweringProcess(limit=0.5)
    answering._line, theirs = multiprocessing.Pipe()
    answering._process = Alive()

    def say() -> None:
        theirs.recv()
        with contextlib.suppress(OSError):  # nobody listens once it took too long
            for one in said:
                theirs.send(one)
                time.sleep(1)

    thread = threading.Thread(target=say)
    thread.start()
    try:
        return answering.ask("schedule", {})
    finally:
        thread.join()


def test_compiling_is_no_part_of_the_time_that_an_answer_may_take() -> None:
    assert (200, {"bubble": 0.5}) == told(COMPILES, (200, {"bubble": 0.5}))
    assert 413 == told(COMPILED, (200, {"bubble": 0.5}))[0]


@pytest.mark.slow
def test_every_question_is_answered_where_nothing_is_compiled_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    answering = AnsweringProcess(limit=2.0)
    try:
        assert 200 == answering.ask("schedule", {})[0]
        assert 200 == answering.ask("schedule", {"schedule": "zbv", "chunks_per_rank": 2})[0]
    finally:
        answering.close()


@pytest.mark.slow
def test_a_question_that_takes_too_long_is_ended_and_the_next_is_answered() -> None:
    answering = AnsweringProcess(limit=PATIENCE)
    try:
        huge = SMALL | {"microbatches": 30_000, "pipeline_parallel": 1, "gpus": 1, "zero_stage": 0}
        answering.start()
        assert 200 == answering.ask("step", SMALL)[0]
        first = answering._process.pid
        answering._limit = 0.001
        status, said = answering.ask("step", huge)
        assert 413 == status
        assert "too long for a page" in said["error"]
        answering._limit = PATIENCE
        assert 200 == answering.ask("step", SMALL)[0]
        assert first != answering._process.pid
    finally:
        answering.close()
