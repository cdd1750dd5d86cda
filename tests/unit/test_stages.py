"""Pipeline stages with ranks of their own: equal ones are as before, unequal ones hand on what there is and take what they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives.between_stages import flows, place_spread
from simulator.errors import PlanError, ProgramError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.parts import Part
from simulator.job import Job, check_equal_stages, job_from_names
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.plan.stages import Stage
from simulator.program.program import COMPUTE, TRANSFER, End, Link
from simulator.program.replicas import replica_mesh
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.prediction import Prediction
from simulator.report.summary import describe
from simulator.search.space import make_space
from simulator.simulation import simulate, simulate_job
from simulator.specs import validate_spec
from simulator.studies.changes import neighbours
from simulator.studies.other_plan import other_plan
from simulator.workload.model import Model
from simulator.workload.workload import Workload


def job(
    *settings: str,
    model: str = "gpt2_124m",
    cluster: str = "dgx_a100",
    gpus: int = 16,
    batch: int = 48,
    length: int = 256,
) -> Job:
    """GPUs alike, however many there are."""
    size = [f"cluster.gpus={gpus}", f"workload.global_batch_size={batch}", f"workload.sequence_length={length}"]
    return job_from_names(model, cluster, [*size, "cluster.gpu_spread=0", *(f"plan.{one}" for one in settings)])


def stages(*ranks: int, **more: Any) -> str:
    extra = "".join(f", {name} = {value}" for name, value in more.items())
    return f"stages=[{', '.join(f'{{ranks = {n}{extra}}}' for n in ranks)}]"


def unequal(*settings: str, **size: Any) -> Job:
    """Stages of 2, 6, 4 and 4 ranks; the model's table is not tied."""
    own = "stages=[{ranks=2}, {ranks=6}, {ranks=4, tensor_parallel=2}, {ranks=4}]"
    return job(own, "microbatch_size=12", *settings, model="llama3_8b", **{"batch": 96, **size})


@pytest.mark.parametrize(
    ("cluster", "gpus", "settings"),
    [
        ("dgx_a100", 16, ()),
        ("dgx_a100", 16, ("schedule=gpipe", "zero_stage=2", "overlap_gradients=true")),
        ("selene", 32, ("schedule=dapple_pb", "sequence_parallel=true")),
        ("dgx_h100", 16, ("p2p=blocking", "zero_stage=1", "recompute=full")),
        ("gb200_nvl72", 16, ("zero_stage=3",)),
        ("dgx_a100", 32, ("schedule=zb_h1", "framework=megatron_lm_2021")),
    ],
)
def test_stages_of_equal_widths_are_the_plan_without_them(cluster: str, gpus: int, settings: tuple[str, ...]) -> None:
    each = gpus // 4
    size: dict[str, Any] = {"cluster": cluster, "gpus": gpus}
    plain = simulate_job(job("pipeline_parallel=4", "tensor_parallel=2", *settings, **size))
    staged = simulate_job(
        job(stages(*[each] * 4), "tensor_parallel=2", f"microbatch_size={each // 2}", *settings, **size)
    )
    assert staged.step_time == pytest.approx(plain.step_time, rel=1e-12)
    assert staged.memory.total == pytest.approx(plain.memory.total, rel=1e-12)
    for name, seconds in plain.breakdown.items():
        assert staged.breakdown[name] == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    assert staged.low / staged.step_time == pytest.approx(plain.low / plain.step_time, rel=1e-3)


ENDS = st.builds(End, *[st.integers(1, 12)] * 3)


@given(ENDS, ENDS)
def test_every_receiver_gets_its_part_once_and_nobody_sends_what_it_lacks(source: End, target: End) -> None:
    found = flows(source, target)
    got = np.bincount(found.target, found.share, target.ranks)
    assert got == pytest.approx(np.full(target.ranks, 1 / (target.rows * target.parts)))
    assert len({*zip(found.source.tolist(), found.target.tolist(), strict=True)}) == len(found.share)
    row = found.source // (source.parts * source.copies), found.target // (target.parts * target.copies)
    assert (found.share > 0).all()
    assert (
        np.minimum((row[0] + 1) / source.rows, (row[1] + 1) / target.rows)
        > np.maximum(row[0] / source.rows, row[1] / target.rows)
    ).all()


@given(ENDS, ENDS)
def test_what_goes_out_without_copies_is_all_of_it(source: End, target: End) -> None:
    """DAPPLE splits and joins, nothing is sent twice but for receivers that hold the same."""
    assert flows(source, target).share.sum() == pytest.approx(target.copies)


def test_the_busiest_port_sets_the_pace_of_a_message() -> None:
    """Eight ranks of one node hand on to two of the next: either receiver gets half, from four senders."""
    spread = place_spread((End(8), End(2)), (0, 8), fabric_of(load_cluster("dgx_a100", 16)))
    assert (spread.share, spread.place.concurrent, spread.place.nodes) == (0.5, 2, 2)
    inside = place_spread((End(4), End(2)), (0, 4), fabric_of(load_cluster("dgx_a100", 8)))
    assert (inside.share, inside.place.level) == (0.5, "node")


def test_bytes_between_stages_are_those_of_the_microbatch() -> None:
    made = unequal()
    program = lower(made.workload, made.plan, 16)
    whole = 12 * 256 * made.workload.model.hidden * 2  # sequences x tokens x width x bytes of bf16
    links = [item for item in program.items if isinstance(item, Link) and item.kind == TRANSFER]
    assert {link.message for link in links} == {whole}
    assert {link.pipeline_ranks: link.ends for link in links}[1, 2] == (End(6), End(2, 1, 2))
    divided = lower(made.workload, unequal("sequence_parallel=true").plan, 16)
    ends = {i.pipeline_ranks: i.ends for i in divided.items if isinstance(i, Link) and i.kind == TRANSFER}
    assert ends[1, 2] == (End(6), End(2, 2))
    assert ends[3, 2] == (End(4), End(2, 2))


def test_unequal_stages_run_alike_on_both_engines_and_as_text() -> None:
    for settings in ((), ("schedule=gpipe", "zero_stage=1"), ("schedule=dapple_pb", "recompute=full", "zero_stage=2")):
        one, other = (simulate_job(unequal(*settings), engine=engine) for engine in ("compiled", "simpy"))
        assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
        assert one.memory.total == pytest.approx(other.memory.total, rel=1e-9)
        text = render_text(one.program)
        assert render_text(parse_text(text)) == text


def compute_seconds(p: Prediction, rank: int) -> float:
    """What a rank computes, by price."""
    mine = (p.program.kind == COMPUTE) & (p.program.rank == rank)
    return float(p.prices.occupancy[p.program.item[mine]].sum())


def test_a_stage_has_the_memory_and_the_work_of_its_width() -> None:
    size: dict[str, Any] = {"model": "llama3_8b", "batch": 96}
    made = simulate_job(unequal("layer_split=[8, 8, 8, 8]"))
    alone = {
        n: simulate_job(job("pipeline_parallel=4", f"microbatch_size={12 // n}", gpus=4 * n, **size)) for n in (2, 6)
    }
    for rank, plain in ((0, alone[2]), (1, alone[6])):
        assert made.memory.total[rank] == pytest.approx(plain.memory.total[rank])
        assert compute_seconds(made, rank) == pytest.approx(compute_seconds(plain, rank))
    assert made.program.rank_weight.tolist() == [2, 6, 4, 4]
    assert [mesh.first for mesh in made.program.stages] == [0, 2, 8, 12]


def test_wide_stages_pay_on_a_cluster_of_two_generations() -> None:
    """Eight H100 and sixteen A100: a stage on each kind is quicker than three equal stages, and than all GPUs alike."""

    def step(*settings: str) -> Prediction:
        plan = ("zero_stage=1", "recompute=selective", *settings)
        made = job(*plan, model="llama3_8b", cluster="dgx_h100", gpus=24, batch=192, length=2048)
        nodes = Part(nodes=((1, 2),), node="dgx_a100_80")
        return simulate_job(replace(made, cluster=replace(made.cluster, parts=(nodes,))))

    split = "tensor_parallel=2", "sequence_parallel=true"
    mixed = step("stages=[{ranks=8, layers=20}, {ranks=16, layers=12}]", "microbatch_size=16", *split)
    others = [
        step("pipeline_parallel=3", "microbatch_size=2", f"layer_split={n}") for n in ("[20, 6, 6]", "[16, 8, 8]")
    ]
    others += [step("microbatch_size=2"), step("microbatch_size=4", *split)]
    assert mixed.step_time < 0.9 * min(other.step_time for other in others)
    assert [kind.gpus for kind in mixed.ranks] == [("h100_80gb_sxm",), ("a100_80gb_sxm",)]
    assert mixed.capacity < 80 * 2**30


def test_a_job_is_as_large_as_its_stages() -> None:
    made = job_from_names("llama3_8b", "dgx_a100", ["plan.stages=[{ranks=8}, {ranks=8}]", "plan.microbatch_size=8"])
    assert (made.cluster.world_size, made.workload.global_batch_size) == (16, 64)
    with pytest.raises(PlanError, match="the ranks of its stages = 808 GPUs"):
        job_from_names("llama3_8b", "dgx_a100", ["plan.stages=[{ranks=800}, {ranks=8}]"])


@pytest.mark.parametrize("verb", ["search", "export"])
def test_what_knows_stages_of_one_width_alone_says_so(verb: str) -> None:
    made = unequal()
    with pytest.raises(PlanError, match="have 2, 6, 4, 4 ranks"):
        check_equal_stages(made, verb)
    if verb == "search":
        with pytest.raises(PlanError, match="a search chooses the widths"):
            make_space(made, {}, {})
    with pytest.raises(PlanError, match="are one timeline"):
        replica_mesh(lower(made.workload, made.plan, 16))


def test_changes_that_are_offered_keep_the_stages() -> None:
    made = unequal()
    offered = {change.name for change in neighbours(made)}
    assert {"microbatches of 24", "ZeRO stage 1", "recompute full"} <= offered
    assert not any("tensor" in name for name in offered)
    assert other_plan(made) == (0, None)


def test_the_report_names_the_stages() -> None:
    made = simulate_job(unequal())
    text = "\n".join(section.title for section in describe(made, "a job"))
    assert "stages, one after another on the GPUs" in text
    assert [
        (s["layers"], s["ranks"], s["tensor_parallel"], s["microbatch_size"])
        for s in made.to_dict()["provenance"]["stages"]
    ] == [
        (4, 2, 1, 6),
        (12, 6, 1, 2),
        (8, 4, 2, 6),
        (8, 4, 1, 3),
    ]


def timed(*seconds: float) -> Model:
    """Layers that were measured, per image, and whose weights and outputs weigh next to nothing."""
    layers = [
        {
            "name": f"layer_{n}",
            "steps": [{"op": "measured", "name": f"step {n}", "forward": s, "backward": 2 * s, "makes": 4.0}],
        }
        for n, s in enumerate(seconds)
    ]
    said = {"name": "timed", "family": "timed", "architecture": "network"}
    return validate_spec({**said, "network": {"image": [1, 1, 1], "layers": layers}}, Model, "here", from_file=False)


@pytest.mark.parametrize(
    ("schedule", "layers", "units"),
    [
        # two microbatches of 6 images: the first stage takes 6/2 x 1 s forward, the second 6/3 x 2 s: 3 and 4, backward 6 and 8
        ("gpipe", (1.0, 2.0), 3 + 2 * 4 + 2 * 8 + 6),
        ("one_f_one_b", (1.0, 2.0), 3 + 2 * 4 + 2 * 8 + 6),
        # the first the slower: 6 and 2 forward, 12 and 4 backward; 1F1B has the first microbatch back when the second is through
        ("gpipe", (2.0, 1.0), 2 * 6 + 2 + 4 + 2 * 12),
        ("one_f_one_b", (2.0, 1.0), 2 * 6 + 2 * 12),
    ],
)
def test_a_step_by_hand(schedule: str, layers: tuple[float, float], units: float) -> None:
    """Stages of two and three GPUs; messages and updates are too small to be seen."""
    work = Workload(
        model=timed(1e-9, *layers, 1e-9), sequence_length=1, global_batch_size=12, precision="fp32", optimizer="sgd"
    )
    plan = Plan(
        stages=(Stage(ranks=2, layers=1), Stage(ranks=3, layers=1)),
        microbatch_size=6,
        schedule=schedule,
        framework="pytorch_ddp",
        clip_gradients=False,
    )
    cluster = load_cluster("dgx_a100", 5)
    for engine in ("compiled", "simpy"):
        found = simulate(work, plan, cluster, engine)
        assert found.step_time == pytest.approx(units * (1 + cluster.slowest_gpu), rel=2e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("stages=[{ranks=16}]",), "two or more"),
        ((stages(8, 8), "pipeline_parallel=4", "microbatch_size=8"), "as many ranks as it has stages"),
        ((stages(8, 8), "data_parallel=8", "microbatch_size=8"), "leave data_parallel out"),
        ((stages(8, 8), "context_parallel=2", "microbatch_size=8"), "whole sequences"),
        ((stages(8, 8), "rank_order=['dp', 'tp', 'pp']", "microbatch_size=8"), "one after another"),
        ((stages(8, 8), "chunks_per_rank=2", "microbatch_size=8"), "one chunk"),
        ((stages(8, 8), "schedule=chimera", "microbatch_size=8"), "one chunk"),
        ((stages(8, 8), "schedule=pipedream_2bw", "microbatch_size=8"), "never flushes"),
        ((stages(8, 8), "gradient_exchange=one_bit", "microbatch_size=8"), "in every step"),
        ((stages(8, 8), "framework=byteps", "microbatch_size=8"), "gradient_exchange = 'byteps' beside stages"),
        (
            (stages(8, 8), "recompute=full", "recompute_method=uniform", "recompute_layers=auto", "microbatch_size=8"),
            "least memory",
        ),
        ((stages(9, 7, tensor_parallel=2), "microbatch_size=8"), "multiple of its tensor_parallel"),
        ((stages(8, 8), "microbatch_size=4"), "microbatch_size = 8"),
        (("stages=[{ranks=8, layers=4}, {ranks=8}]", "microbatch_size=8"), "layers for every stage"),
        (
            ("stages=[{ranks=8, layers=4}, {ranks=8, layers=8}]", "layer_split=[6, 6]", "microbatch_size=8"),
            "in one place",
        ),
        ((stages(12, 4), "microbatch_size=12"), "equal widths"),
        ((stages(4, 4), "microbatch_size=8"), "add up to the world size"),
        (("stages=[{ranks=8, layers=4}, {ranks=8, layers=9}]", "microbatch_size=8"), "stages[0]: "),
    ],
)
def test_what_stages_cannot_be_is_refused(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError) as refusal:
        simulate_job(job(*settings))
    assert words in str(refusal.value)


def test_programs_are_joined_that_meet_in_the_same_rows() -> None:
    made = unequal()
    program = lower(made.workload, made.plan, 16)
    verify(program)
    with pytest.raises(ProgramError, match="as many real ranks as its mesh"):
        verify(replace(program, stages=(program.stages[0],) * 4))
    with pytest.raises(ProgramError, match="for every rank or for none"):
        verify(replace(program, stages=program.stages[:2]))
