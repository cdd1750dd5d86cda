"""Ranks of a pipeline that were recorded apart, as one program; nothing here needs torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.capture.answer import to_dict
from simulator.capture.mesh import mesh_of
from simulator.capture.program import captured_program
from simulator.capture.record import Capture, Event, Group
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.program.program import TRANSFER, Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.simulation import simulate_program
from tests.unit.test_capture import event, message, step

PIPELINE = Group(name="mesh_pp", ranks=(0, 4))


def at(rank: int, *events: Event, groups: tuple[Group, ...] = (PIPELINE,)) -> Capture:
    return replace(step(*events, groups=groups), rank=rank)


def send(to: int, *after: int, size: float = 64.0) -> Event:
    return message("send", 1, size, *after, peer=to)


def take(of: int, *after: int, size: float = 64.0) -> Event:
    return message("recv", 2, size, *after, peer=of)


def two_stages() -> list[Capture]:
    """A forward here, its output there, a forward and a backward there, the gradient back."""
    first = at(0, event(), send(4, 0), take(4), event(phase="backward", after=(2,)))
    second = at(4, take(0), event(after=(0,)), event(phase="backward"), send(0, 2))
    return [first, second]


def rows(program: Program) -> list[str]:
    """Each row as `rank:what`, in order."""
    names = [item.name for item in program.items]
    return [f"{rank}:{names[item]}" for rank, item in zip(program.rank.tolist(), program.item.tolist(), strict=True)]


def test_two_ranks_become_one_program_with_a_message_each_way() -> None:
    program = captured_program(two_stages())
    verify(program)

    assert (("dp", 4), ("pp", 2)) == program.axes
    assert [
        "0:layers.* forward", "0:activations 0 to 1", "1:layers.* forward", "1:layers.* backward", "1:gradients 1 to 0",
        "0:layers.* backward",
    ] == rows(program)  # fmt: skip
    assert render_text(program) == render_text(parse_text(render_text(program)))


def test_a_stage_waits_for_what_the_other_one_sends() -> None:
    prediction = simulate_program(captured_program(two_stages()), load_cluster("dgx_h100", 8))
    trace = prediction.trace

    assert list(trace.start) == sorted(trace.start)
    assert prediction.breakdown["bubble"] > 0


def test_messages_are_transfers_between_places_in_the_pipeline() -> None:
    links = [item for item in captured_program(two_stages()).items if isinstance(item, Link)]

    assert [(TRANSFER, (0, 1)), (TRANSFER, (1, 0))] == [(link.kind, link.pipeline_ranks) for link in links]


def test_a_receive_that_is_posted_first_does_not_hold_up_what_its_sender_needs() -> None:
    """Both post their receive before they send, as batch_isend_irecv does."""
    first = at(0, take(4), event(), send(4, 1), event(phase="backward", after=(0,)))
    second = at(4, take(0), event(), send(0, 1), event(phase="backward", after=(0,)))

    assert 6 == captured_program([first, second]).size


def test_a_collective_of_two_ranks_of_the_pipeline_is_one_row() -> None:
    """The first and the last of four add up the gradients of the embedding that they share."""
    line, ends = Group(name="", ranks=(0, 2, 4, 6)), Group(name="", ranks=(0, 6))
    shared = message("all_reduce", 0, 32.0, group=1, waits=True)
    chain = [
        at(
            rank,
            *([take(rank - 2)] if rank else []),
            event(),
            *([send(rank + 2)] if rank < 6 else []),
            groups=(line, ends),
        )
        for rank in (0, 2, 4, 6)
    ]
    chain[0], chain[3] = (replace(one, events=(*one.events, shared)) for one in (chain[0], chain[3]))
    program = captured_program(chain)
    verify(program)
    found = [item for item in program.items if isinstance(item, Link) and item.collective]

    assert (("dp", 2), ("pp", 4)) == program.axes
    assert [("all_reduce", (0, 3))] == [(link.collective, link.pipeline_ranks) for link in found]
    assert 1 == sum("all_reduce" in row for row in rows(program))


def test_the_ranks_recorded_are_the_pipeline_whatever_the_script_calls_their_group() -> None:
    groups = (Group(name="default_pg", ranks=tuple(range(8))), Group(name="mesh_dp", ranks=(0, 1, 2, 3)))
    captures = [at(0, send(4), groups=groups), at(4, take(0), groups=groups)]

    assert (("dp", 4), ("pp", 2)) == mesh_of(captures)[0]


@pytest.mark.parametrize(
    ("captures", "said"),
    [
        ([at(0, send(4)), at(4, take(0), take(0))], "ranks 0 and 4 do not agree.*1 of 64 B on the one side, 2 of 128 B"),
        ([at(0, send(4)), at(4, take(0, size=8.0))], "do not agree"),
        ([at(0, send(4)), at(4, take(0)), at(1, event())], "ranks 0 and 1 exchange no messages"),
        ([at(0, send(4)), at(4, take(0), send(6))], "rank 6, which was not recorded.*--rank 0,4,6"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(captures: list[Capture], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        captured_program(captures)


def test_ranks_that_wait_for_each_other_in_a_ring_are_refused() -> None:
    first = at(0, take(4), event(after=(0,)), send(4, 1))
    second = at(4, take(0), event(after=(0,)), send(0, 1))

    with pytest.raises(SpecError, match="wait for each other in a ring"):
        captured_program([first, second])


def test_the_answer_has_every_rank() -> None:
    captures = two_stages()
    answer = to_dict(captures, captured_program(captures))

    assert [0, 4] == [each["rank"] for each in answer["ranks"]]
    assert 0 == answer["rank"]


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_no_message_between_stages_is_the_optimizers(phase: str) -> None:
    """What a script sends after a backward stands outside of every module: where it goes says what it is."""

    def outside(what: Event) -> Event:
        return replace(what, phase=phase, path="")

    first = at(0, event(), outside(send(4, 0)), outside(take(4)), event(phase="backward", after=(2,)))
    second = at(4, outside(take(0)), event(after=(0,)), event(phase="backward"), outside(send(0, 2)))
    answer = to_dict([first, second], captured_program([first, second]))

    found = [[(one["phase"], one["kind"]) for one in rank["collectives"]] for rank in answer["ranks"]]
    assert [[("forward", "send"), ("backward", "recv")], [("forward", "recv"), ("backward", "send")]] == found
