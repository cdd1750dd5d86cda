"""PipeDream with replicated stages: microbatches in turn, versions of weights, sums once a round."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import PlanError, ProgramError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.parts import Part
from simulator.importers.cost_graphs import read_cost_graph
from simulator.importers.cost_graphs.network import model_text
from simulator.job import Job, job_from_names
from simulator.plan.plan import Plan
from simulator.plan.stages import Stage
from simulator.planners import PLANNERS
from simulator.planners.problems.pipeline import Pipeline
from simulator.program.builder import ProgramBuilder, collective_link
from simulator.program.deal import deal
from simulator.program.program import COLLECTIVE, COMPUTE, TRANSFER, Link, StageMesh
from simulator.program.text import parse_text, render_text
from simulator.report.prediction import Prediction
from simulator.report.summary import describe
from simulator.schedules import SCHEDULES
from simulator.schedules.pipedream import PipeDream
from simulator.schedules.shape import Shape
from simulator.simulation import simulate, simulate_job
from simulator.studies.planning import Asked, make_problem
from simulator.workload.workload import Workload
from tests.unit.test_stages import timed


def job_of(*settings: str, gpus: int = 8, batch: int = 32) -> Job:
    """GPUs alike, however many there are."""
    base = [f"cluster.gpus={gpus}", f"workload.global_batch_size={batch}", "workload.sequence_length=256"]
    plan = [f"plan.{one}" for one in ("schedule=pipedream", *settings)]
    return job_from_names("llama3_8b", "dgx_a100", [*base, "cluster.gpu_spread=0", *plan])


def made(*settings: str, gpus: int = 8, engine: str = "compiled", batch: int = 32) -> Prediction:
    return simulate_job(job_of(*settings, gpus=gpus, batch=batch), engine)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_stages_of_as_many_replicas_are_pipelines_side_by_side(width: int) -> None:
    """Data-parallel PipeDream adds gradients after every backward: microbatches in turn are the same thing."""
    depth = 8 // width
    stages = f"stages=[{', '.join([f'{{ranks={width}}}'] * depth)}]"
    plain, dealt = made(f"pipeline_parallel={depth}"), made(stages)
    assert dealt.step_time == pytest.approx(plain.step_time, rel=1e-12)
    assert dealt.program.ranks == 8
    assert dealt.memory.total == pytest.approx(np.repeat(plain.memory.total, width))
    assert dealt.breakdown == pytest.approx(plain.breakdown, abs=1e-12)


UNEQUAL = "stages=[{ranks=4, layers=16}, {ranks=2, layers=8}, {ranks=1, layers=4}, {ranks=1, layers=4}]"


def test_replicas_take_microbatches_in_turn() -> None:
    program = made(UNEQUAL).program
    first = {0: 0, 1: 4, 2: 6, 3: 7}
    width = {0: 4, 1: 2, 2: 1, 3: 1}
    for row in np.flatnonzero((program.kind == COMPUTE) & (program.action <= 1)).tolist():
        stage = int(program.chunk[row])
        assert program.rank[row] == first[stage] + program.microbatch[row] % width[stage]
    sums = [item for item in program.items if isinstance(item, Link) and item.kind == COLLECTIVE]
    assert {item.pipeline_ranks for item in sums} == {(0, 1, 2, 3), (4, 5)}
    steps = int(program.step.max()) + 1
    rows = {item.pipeline_ranks: int((program.item == program.items.index(item)).sum()) for item in sums}
    assert rows == {(0, 1, 2, 3): 32 * steps // 4, (4, 5): 32 * steps // 2}
    sent = {item.pipeline_ranks for item in program.items if isinstance(item, Link) and item.kind == TRANSFER}
    assert {pair for pair in sent if pair[0] < 4} == {(0, 4), (1, 5), (2, 4), (3, 5)}


def test_both_engines_and_the_text_agree() -> None:
    one, other = (made(UNEQUAL, "tensor_parallel=1", engine=engine) for engine in ("compiled", "simpy"))
    assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
    assert one.memory.total == pytest.approx(other.memory.total)
    assert render_text(parse_text(render_text(one.program))) == render_text(one.program)


def test_a_slow_replica_is_one_of_its_stage() -> None:
    """Its stage adds gradients once a round, so that the others wait for it."""
    slow = Part(pipeline_ranks=((0, 0),), replicas=((1, 1),), clock=0.5)
    job = job_of(UNEQUAL)
    found = simulate_job(replace(job, cluster=replace(job.cluster, parts=(slow,))))
    assert [(kind.pipeline_rank, kind.replicas, bool(kind.parts)) for kind in found.ranks] == [
        *((0, "0", False), (0, "1", True), (0, "2", False), (0, "3", False)),
        *((1, "0", False), (1, "1", False), (2, "0", False), (3, "0", False)),
    ]
    assert found.step_time > made(UNEQUAL).step_time


def test_tensor_parallel_replicas_are_dealt_to_as_a_whole() -> None:
    found = made("stages=[{ranks=4}, {ranks=2}, {ranks=2}]", "tensor_parallel=2", "sequence_parallel=true")
    assert found.program.rank_weight.tolist() == [2, 2, 2, 2]
    assert [mesh.first for mesh in found.program.stages] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("widths", "versions"),
    [((1, 1, 1, 1), [4, 3, 2, 1]), ((2, 1, 1), [2, 2, 1]), ((9, 5, 1, 1), [2, 2, 2, 1]), ((15, 1), [2, 1])],
)
def test_versions_of_weights(widths: tuple[int, ...], versions: list[int]) -> None:
    """The runtime of msr-fiddle/pipedream keeps one more than it warms up with; as many are under way as there are versions."""
    shape = Shape(len(widths), 4 * math.lcm(*widths))
    schedule = PipeDream().dealt(widths)
    assert schedule.weight_versions(shape).tolist() == versions
    order = schedule.steady_order(shape, 2)
    for stage, width in enumerate(widths):
        mine = np.flatnonzero(order.chunk == stage)
        for replica in range(width):
            kind = order.kind[mine][order.microbatch[mine] % width == replica]
            assert int(np.cumsum(np.where(kind == 0, 1, -1)).max()) == versions[stage]
    assert math.ceil(sum(widths) / widths[0]) >= versions[0]  # NOAM of the paper


def test_weights_of_several_versions_stand() -> None:
    found = made(UNEQUAL)
    facts = found.to_dict()["provenance"]
    assert facts["staleness"] == [1, 1, 1, 0]
    assert [stage["weight_versions"] for stage in facts["stages"]] == [2, 2, 2, 1]
    text = "\n".join(line for section in describe(found, "a job") for line in section.lines)
    assert "gradients are of weights 1, 1, 1, 0 (by stage) updates old; steps to an accuracy are not predicted" in text


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_the_steady_state_by_hand(engine: str) -> None:
    """Stages of 2 and 1 replicas, 4 + 8 and 2 + 4 seconds a microbatch: each replica of the first has one every 12, the second one every
    6, so that a microbatch goes by every 6 seconds."""
    work = Workload(
        model=timed(1e-9, 4.0, 2.0, 1e-9), sequence_length=1, global_batch_size=8, precision="fp32", optimizer="sgd"
    )
    stages = (Stage(ranks=2, layers=1), Stage(ranks=1, layers=1))
    cluster = load_cluster("dgx_a100", 3)
    found = simulate(work, Plan(stages=stages, schedule="pipedream", framework="pytorch_ddp"), cluster, engine)
    assert found.step_time == pytest.approx(8 * 6 * (1 + cluster.slowest_gpu), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((UNEQUAL, "zero_stage=1"), "zero_stage = 0"),
        ((UNEQUAL, "expert_parallel=2"), "share no experts"),
        ((UNEQUAL, "p2p=blocking"), "leave p2p out"),
        ((UNEQUAL, "clip_gradients=true"), "never flushes"),
        (("stages=[{ranks=3}, {ranks=5}]",), "global_batch_size must be a multiple"),
    ],
)
def test_what_replicas_that_take_turns_cannot_do_is_refused(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError) as refusal:
        made(*settings)
    assert words in str(refusal.value)


def test_a_schedule_that_flushes_deals_nothing_out() -> None:
    with pytest.raises(PlanError, match="they split each"):
        SCHEDULES.get("gpipe").dealt((2, 1))
    with pytest.raises(PlanError, match="in rounds"):
        PipeDream().dealt((2, 1)).check(Shape(2, 3))


def test_sums_of_gradients_are_whole_rounds() -> None:
    build = ProgramBuilder(axes=(("pp", 1),))
    lane = build.add_stream(build.add_rank(2.0, StageMesh((("dp", 2),), 0)), "dp")
    build.add_row(build.add_item(collective_link("gradients", "all_reduce", ())), lane)
    with pytest.raises(ProgramError, match="which 2 replicas do not share"):
        deal(build.build(), [2])


@pytest.mark.parametrize(("problem", "schedule"), [("pipeline", "pipedream"), ("synchronous", "one_f_one_b")])
def test_what_a_planner_found_runs_as_a_plan(problem: str, schedule: str, tmp_path: Path) -> None:
    """PipeDream's optimizer on its own profile of VGG-16: the simulated pace is that of the plan, and what its messages do not hide."""
    asked = Asked(devices=(4,), bandwidths=(3.125e9,))
    dealt = make_problem("pipeline", "vgg16", asked)
    plan = PLANNERS.get("pipedream").solve(dealt).plan
    drained = make_problem("synchronous", "vgg16", replace(asked, microbatches=12))
    pipeline = dealt if problem == "pipeline" else drained
    assert isinstance(pipeline, Pipeline)
    settings = pipeline.settings(plan)
    assert settings[0] == f"plan.schedule={schedule}"
    model = tmp_path / "model.toml"
    model.write_text(model_text(read_cost_graph("vgg16"), "vgg16_measured", 63, "msr-fiddle/pipedream"))
    size = ["cluster.gpus=4", "workload.global_batch_size=756", "workload.precision=fp32", "workload.optimizer=sgd"]
    more = ["plan.microbatch_size=63", "plan.framework=pytorch_ddp", "plan.clip_gradients=false"]
    found = simulate_job(job_from_names(str(model), "titan_x_ethernet_25", [*size, *more, *settings]))
    seconds = pipeline.cost(plan) * (1 if problem == "synchronous" else 12)
    assert found.step_time == pytest.approx(seconds, rel=0.12)


def test_a_pipeline_is_the_same_plan_however_its_drain_is_counted() -> None:
    """A stage's layers are those of the model, inputs and all, and its schedule ends with a flush."""
    asked = Asked(devices=(4,), bandwidths=(3.125e9,), microbatches=12)
    synchronous, drained = (make_problem(name, "vgg16", asked) for name in ("synchronous", "drained"))
    assert isinstance(synchronous, Pipeline)
    assert isinstance(drained, Pipeline)
    plan = PLANNERS.get("pipedream").solve(synchronous).plan
    settings = synchronous.settings(plan)
    assert settings[0] == "plan.schedule=one_f_one_b"
    assert settings == drained.settings(plan)
    assert synchronous.described(plan).below == drained.described(plan).below != ()


@pytest.mark.parametrize(("problem", "images", "batch"), [("pipeline", 64, 1152), ("synchronous", 63, 126)])
def test_the_command_that_a_planner_prints_runs(problem: str, images: int, batch: int, tmp_path: Path) -> None:
    """With sizes as it says: replicas in turn want whole rounds, replicas that divide a microbatch want parts of it."""
    asked = Asked(devices=(4, 4), bandwidths=(1e9, 1.25e9))
    if problem == "synchronous":
        asked = Asked(devices=(8,), bandwidths=(1e9,), microbatches=8)
    found = make_problem(problem, "vgg16", asked)
    assert isinstance(found, Pipeline)
    command, sizes = found.described(PLANNERS.get("pipedream").solve(found).plan).below
    assert "a multiple of 18 x N" in sizes if problem == "pipeline" else "a multiple of 7, " in sizes
    model = tmp_path / "model.toml"
    model.write_text(model_text(read_cost_graph("vgg16"), "vgg16_measured", images, "msr-fiddle/pipedream"))
    words = shlex.split(command.replace("BATCH", str(batch)).replace("=N", f"={images}"))
    settings = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert simulate_job(job_from_names(str(model), "dgx_a100", settings)).step_time > 0


def test_a_pipeline_of_one_stage_is_no_plan_of_stages() -> None:
    pipeline = make_problem("pipeline", "vgg16", Asked(devices=(4,), bandwidths=(1e15,)))
    assert isinstance(pipeline, Pipeline)
    found = PLANNERS.get("pipedream").solve(pipeline).plan
    assert (len(found) > 1) == bool(pipeline.settings(found))
    assert pipeline.settings(found[-1:]) == ()
