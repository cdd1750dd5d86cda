"""Replicas and unfolding: who is alike, what becomes of rows, and that rules hold for the unfolded program."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engine import run
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.replicas import ReplicaMesh, alike, replica_mesh
from simulator.program.spec import verify
from simulator.program.unfold import BAR, unfold


def two_ranks(replicas: int = 4) -> Program:
    """Work, a message, work, and a reduction on each of two pipeline ranks."""
    build = ProgramBuilder("two ranks", axes=(("tp", 2), ("dp", replicas), ("pp", 2)))
    ranks = [build.add_rank(2.0 * replicas) for _ in range(2)]
    compute = [build.add_stream(r) for r in ranks]
    lanes = [build.add_stream(r, "dp") for r in ranks]
    out, into = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    work, send = build.add_item(plain_segment("layer")), build.add_item(transfer_link("act", 0, 1))
    add = build.add_item(collective_link("gradients", "all_reduce", ()))
    first = build.add_row(work, compute[0], action=0, chunk=0, microbatch=0)
    moved = build.add_row(send, (out, into), after=[first])
    second = build.add_row(work, compute[1], action=0, chunk=1, microbatch=0, after=[moved])
    build.add_row(add, lanes[0], after=[first])
    build.add_row(add, lanes[1], after=[second])
    return build.build()


def test_axes_inside_segments_are_in_step_and_the_rest_are_replicas() -> None:
    mesh = replica_mesh(two_ranks())
    assert (4, 2) == (mesh.count, mesh.members)
    assert [-1, -1, -1, 0, 0] == mesh.meeting.tolist()
    assert [[0, 1], [8, 9]] == mesh.world[0].tolist()
    assert [[6, 7], [14, 15]] == mesh.world[3].tolist()
    assert sorted(range(16)) == sorted(mesh.world.reshape(-1).tolist())


def test_replicas_are_alike_when_they_are_priced_alike_and_meet_alike() -> None:
    meets_all = ReplicaMesh(
        count=4,
        members=1,
        meeting=np.zeros(0, np.int32),
        groups=(np.zeros(4, np.int64),),
        world=np.zeros((4, 1, 1), np.int64),
    )
    assert [0, 0, 1, 0] == alike(meets_all, np.array([7, 7, 3, 7])).tolist()
    pairs = ReplicaMesh(
        count=6,
        members=1,
        meeting=np.zeros(0, np.int32),
        groups=(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 0, 1])),
        world=np.zeros((6, 1, 1), np.int64),
    )
    assert [0, 0, 0, 0, 0, 0] == alike(pairs, np.zeros(6, np.int64)).tolist()
    # 4 is slow; 5 meets it in the pair, 0 and 2 in the other group; 1 and 3 meet none that is slow, but one who meets it
    assert [0, 1, 0, 1, 2, 3] == alike(pairs, np.array([0, 0, 0, 0, 1, 0])).tolist()


def test_unfolding_all_alike_changes_nothing_but_the_numbers_of_items() -> None:
    program = two_ranks()
    mesh = replica_mesh(program)
    same = unfold(program, mesh, np.zeros(4, np.int64), np.ones((1, 2), np.int64))
    assert program.size == same.program.size
    for name in ("kind", "rank", "streams", "stream_offsets", "after", "after_offsets", "rank_weight"):
        assert np.array_equal(getattr(program, name), getattr(same.program, name)), name
    assert np.array_equal(program.item, same.folded_item[same.program.item])


def test_classes_that_meet_wait_between_bars() -> None:
    program = two_ranks()
    mesh = replica_mesh(program)
    found = unfold(program, mesh, np.array([0, 0, 1, 0]), np.array([[1, 1], [1, 2]]))
    verify(found.program)
    assert 4 == found.program.ranks
    assert [6.0, 6.0, 2.0, 2.0] == found.program.rank_weight.tolist()
    assert 3 * 2 + 2 * 4 == found.program.size
    bars = np.flatnonzero(found.bar)
    assert {BAR} == {found.program.items[i] for i in found.program.item[bars]}
    held = [
        sorted(set(found.program.stream_rank[found.program.streams[a:b]].tolist()))
        for a, b in zip(found.program.stream_offsets[bars], found.program.stream_offsets[bars + 1], strict=True)
    ]
    assert [[0, 2], [0, 2], [1, 3], [1, 3]] == held


def test_items_are_kept_apart_by_who_runs_them() -> None:
    program = two_ranks()
    found = unfold(program, replica_mesh(program), np.array([0, 0, 1, 0]), np.array([[1, 1], [1, 2]]))
    kinds = {(int(i), int(b)) for i, b in zip(found.folded_item, found.bits, strict=True) if i >= 0}
    work, send, add = 0, 1, 2
    assert {(work, 1), (work, 2), (send, 1), (send, 3), (add, 1), (add, 3)} == kinds


def test_a_meeting_ends_for_all_when_the_last_has_come() -> None:
    program = two_ranks(2)
    mesh = replica_mesh(program)
    found = unfold(program, mesh, np.array([0, 1]), np.array([[1, 1], [2, 2]]))
    seconds = {(0, 1): 1.0, (0, 2): 3.0, (1, 1): 0.5, (1, 2): 0.5, (2, 3): 2.0, (-1, 0): 0.0}
    price = np.array([seconds[int(i), int(b)] for i, b in zip(found.folded_item, found.bits, strict=True)])
    for engine in ("compiled", "simpy"):
        trace = run(found.program, Prices.plain(price, np.zeros(len(price))), engine)
        reductions = np.flatnonzero((found.folded_row >= 3) & ~found.bar)
        assert [3.0, 3.0, 6.5, 6.5] == trace.start[reductions].tolist()
        assert [5.0, 5.0, 8.5, 8.5] == trace.end[reductions].tolist()


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_memory_of_every_class_is_that_of_the_folded_rank(classes: int) -> None:
    from simulator.job import load_job
    from simulator.simulation import simulate_job

    job = load_job("llama3_8b_fsdp_8xh100")
    folded, whole = simulate_job(job), simulate_job(job, fold=False)
    assert np.allclose(folded.memory.by_category[0], whole.memory.by_category[classes - 1])
