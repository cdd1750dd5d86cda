"""Every schedule with every ZeRO stage, recomputation, uneven stages and few microbatches: run whole, or refused with a reason."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, COLLECTIVE, Link, Program
from simulator.report.prediction import Prediction
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule, Shape
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LAYERS = 13  # no schedule's chunks divide it
SEVERAL_LANES = [s.name for s in SCHEDULES if s.replicas > 1]


def smallest(schedule: Schedule) -> Shape:
    """Return the shape nearest to four ranks, four microbatches and one chunk that a schedule takes."""
    for ranks in (4, 8, 16):
        for microbatches in (ranks, 2 * ranks):
            for chunks in (1, 2):
                try:
                    schedule.check(Shape(ranks, microbatches, chunks))
                except PlanError:
                    continue
                return Shape(ranks, microbatches, chunks)
    raise AssertionError(schedule.name)


def work(shape: Shape, replicas: int, layers: int = LAYERS) -> Workload:
    model = load_model("gpt3_125m").model_copy(update={"layers": max(layers, shape.ranks * shape.chunks_per_rank + 1)})
    return Workload(model=model, sequence_length=512, global_batch_size=2 * shape.microbatches * replicas)


@functools.cache
def predicted(name: str, replicas: int = 2, engine: str = "compiled", fold: bool = True, **plan: Any) -> Prediction:
    shape = smallest(SCHEDULES.get(name))
    chosen = Plan(
        pipeline_parallel=shape.ranks,
        data_parallel=replicas,
        chunks_per_rank=shape.chunks_per_rank,
        microbatch_size=2,
        schedule=name,
        **plan,
    )
    return simulate(work(shape, replicas), chosen, load_cluster("dgx_a100", shape.ranks * replicas), engine, fold=fold)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("name", [s.name for s in SCHEDULES])
def test_every_combination_runs_or_says_why_not(name: str, zero: int) -> None:
    for recompute in ("none", "selective", "full"):
        if zero == 3 and not SCHEDULES.get(name).flush:
            with pytest.raises(PlanError, match=r"never flushes.*Way out"):
                predicted(name, zero_stage=zero, recompute=recompute)
            continue
        p = predicted(name, zero_stage=zero, recompute=recompute)
        assert p.step_time == pytest.approx(sum(p.breakdown.values()), rel=1e-9)
        assert (p.breakdown["recompute"] > 0) == (recompute != "none")
        assert p.memory.by_category.min() >= 0


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("name", [*SEVERAL_LANES, "dualpipev", "terapipe"])
def test_both_engines_agree_on_sharded_states(name: str, zero: int) -> None:
    a, b = (predicted(name, zero_stage=zero, engine=engine) for engine in ("compiled", "simpy"))
    assert a.step_time == pytest.approx(b.step_time, rel=1e-9)
    assert a.step_time == pytest.approx(predicted(name, zero_stage=zero, fold=False).step_time, rel=1e-9)


@pytest.mark.parametrize("name", SEVERAL_LANES)
def test_states_shard_over_the_copies_of_the_lanes_too(name: str) -> None:
    states = CATEGORIES.index("optimizer_states")
    lanes = SCHEDULES.get(name).replicas
    whole, sharded, fsdp = (predicted(name, zero_stage=zero).memory.by_category[:, states] for zero in (0, 1, 3))
    assert sharded == pytest.approx(whole / (2 * lanes))
    assert fsdp == pytest.approx(whole / 2)


def links(program: Program, start: str) -> list[Link]:
    items = [program.items[i] for i in program.item[program.kind == COLLECTIVE].tolist()]
    return [item for item in items if isinstance(item, Link) and item.name.startswith(start)]


@pytest.mark.parametrize(
    ("zero", "collective", "group"),
    [
        (0, "all_reduce", ("dp", "pp")),
        (1, "reduce_scatter", ("dp", "pp")),
        (2, "reduce_scatter", ("pp",)),
        (3, "all_reduce", ("pp",)),
    ],
)
def test_lanes_meet_once_per_chunk_with_what_zero_left_them(zero: int, collective: str, group: tuple[str, ...]) -> None:
    program = predicted("chimera", zero_stage=zero).program
    met = [link for link in links(program, f"{collective} gradients of chunk") if len(link.pipeline_ranks) == 2]
    assert [group] * 4 == [link.group for link in met]
    whole = [link.message for link in links(predicted("chimera").program, "all_reduce gradients of chunk")]
    assert sorted(whole) == pytest.approx(sorted((2 if zero >= 2 else 1) * link.message for link in met))
    gathers = links(program, "all_gather weights of chunk")
    assert (4 if zero in (1, 2) else 0) == len(gathers)


def test_copies_of_lanes_alone_are_replicas_enough_for_zero_1() -> None:
    plan = Plan(pipeline_parallel=4, schedule="dualpipe", zero_stage=1)
    program = lower(work(Shape(4, 8), 1), plan)
    assert 4 == len(links(program, "reduce_scatter gradients of chunk"))


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize("reshard", [True, False])
def test_fused_pairs_gather_their_chunks_whole_and_reduce_after(name: str, reshard: bool) -> None:
    """Every backward's gradients are reduced; every pair finds its weights gathered."""
    program = predicted(name, zero_stage=3, reshard_after_forward=reshard).program
    pairs = np.flatnonzero(program.action == 5)
    waits = [program.after[program.after_offsets[n] : program.after_offsets[n + 1]].tolist() for n in pairs]
    names = [[program.items[program.item[w]].name for w in rows] for rows in waits]
    if reshard:
        assert all(any(name.startswith("all_gather") for name in some) for some in names)
    gradients = sum(link.message for link in links(program, "reduce_scatter"))
    plain = predicted("one_f_one_b", zero_stage=3).program
    per_microbatch = sum(link.message for link in links(plain, "reduce_scatter")) / 4
    assert per_microbatch * 8 == pytest.approx(gradients)


@pytest.mark.parametrize("name", ["seq1f1b", "terapipe", "slimpipe"])
def test_slices_gather_the_head_for_each_of_them(name: str) -> None:
    p = predicted(name, zero_stage=3)
    gathered = [tensor for effect in p.program.effects for tensor in effect.tensors if "weights of head" in tensor.name]
    assert gathered
    net = sum(
        sign * tensor.bytes
        for column, sign in ((p.program.start_effect, 1), (p.program.end_effect, -1))
        for effect in column[column >= 0].tolist()
        for tensor in p.program.effects[effect].tensors
        if tensor.category == "gathered"
    )
    assert 0 == net


def test_the_optimised_eager_synchronisation_leaves_ranks_without_a_bubble_alone() -> None:
    """Chimera on four ranks: chunks 0 and 3 lie on the outer ranks, which idle after the first of the two; 1 and 2 do not."""
    eager, optimised, late = (predicted("chimera", overlap_gradients=how) for how in (True, "bubbles", False))

    def waits(p: Prediction) -> dict[int, set[int]]:
        """Of the sum of each chunk: the chunks whose backwards it waits for."""
        program, found = p.program, {}
        for row in np.flatnonzero(program.kind == COLLECTIVE).tolist():
            if "gradients of chunk" in program.items[program.item[row]].name:
                after = program.after[program.after_offsets[row] : program.after_offsets[row + 1]]
                found[int(program.chunk[row])] = set(program.chunk[after].tolist())
        return found

    assert {c: {c} for c in range(4)} == waits(eager)
    assert {0: {0}, 1: {1}, 2: {1}, 3: {3}} == waits(optimised)
    assert {0: {0}, 1: {1}, 2: {1}, 3: {0}} == waits(late)
    with pytest.raises(PlanError, match=r"several pipeline ranks.*Way out"):
        predicted("one_f_one_b", overlap_gradients="bubbles")
    with pytest.raises(PlanError, match=r"adds gradients over all of them.*Way out"):
        predicted("chimera", replicas=4, zero_stage=1, shard_size=2)
    with pytest.raises(PlanError, match=r"not by bucket.*Way out"):
        predicted("chimera", overlap_gradients=True, bucket_size=1e6)


@pytest.mark.parametrize(
    ("name", "odd"), [("chimera", 7), ("chimera_halving", 5), ("chimera_doubling", 10), ("chimera_4", 6)]
)
def test_what_the_ranks_do_not_divide_is_a_unit_at_the_end(name: str, odd: int) -> None:
    """Residual units: dealt to all lanes, and no dearer than filling the unit up."""
    from simulator.studies.schedule_figures import schedule_figures

    schedule = SCHEDULES.get(name)
    placement = schedule.placement(Shape(4, odd))
    share = np.bincount(placement.lane_of, minlength=schedule.replicas)
    assert share.max() - share.min() <= 2 * schedule.group
    some, full = (schedule_figures(name, 4, m) for m in (odd, -(-odd // 8) * 8))
    assert some.makespan <= full.makespan
    assert (some.peak_activations <= full.peak_activations).all()
