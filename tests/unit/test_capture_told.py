"""What `dtsim capture` prints."""

from __future__ import annotations

from simulator.capture.answer import collectives_of, describe_capture
from simulator.capture.program import captured_program
from simulator.report.table import render_sections
from tests.unit.test_capture import event, message, step


def told(*events: object) -> str:
    captured = step(event(), *events)  # type: ignore[arg-type]
    return render_sections(describe_capture([captured], captured_program(captured)))


def test_messages_that_read_alike_are_one_line() -> None:
    """Buckets of nearly one size: the JSON tells them apart."""
    sizes = (33_583_104.0, 33_583_104.0, 33_591_296.0)
    text = told(*(message("all_reduce", 1, size) for size in sizes))

    assert [3] == [int(line.split()[-1]) for line in text.splitlines() if "32 MiB" in line]
    assert 2 == len(collectives_of(step(event(), *(message("all_reduce", 1, size) for size in sizes))))


def test_a_step_without_tokens_does_not_count_them() -> None:
    assert "tokens" not in told()
