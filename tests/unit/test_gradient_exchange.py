"""What replicas exchange (`plan.gradient_exchange`): volumes, kinds of steps and their mean, published figures, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.energy.step_power import step_power
from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.power import Power
from simulator.job import job_from_names
from simulator.lowering import lower_resolved, resolve
from simulator.lowering.exchanges import EXCHANGES
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, Link, Program
from simulator.report.mean_prediction import MeanPrediction
from simulator.report.prediction import Prediction
from simulator.report.summary import describe
from simulator.simulation import simulate, simulate_job
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

GPT = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=32)


def programs(plan: Plan, work: Workload = GPT, world: int = 8) -> dict[str, Program]:
    """The program of each kind of step."""
    resolved = resolve(work, plan, world)
    return {k.name: lower_resolved(work, replace(resolved, step_kind=k)) for k in resolved.step_kinds}


def sent(program: Program) -> float:
    """Bytes that a rank hands over along data-parallel axes, an all_reduce twice its message; norms and scales left out."""
    total = 0.0
    for number, item in enumerate(program.items):
        times = int((program.item == number).sum())
        if isinstance(item, Link):
            pairs = [(item.collective, item.message, item.group)]
        else:
            pairs = [
                (table.work[row], float(table.message[row]) * count, table.group[row])
                for table, count in getattr(item, "pieces", ())
                for row in range(len(table.work))
                if table.kind[row] == COLLECTIVE and "scales" not in table.label[row]
            ]
        for work, message, group in pairs:
            if set(group) & {"dp", "replica"} and message > 64:
                total += times * message * (2.0 if work == "all_reduce" else 1.0)
    return total


def predicted(work: Workload = GPT, cluster: Cluster | None = None, **plan: Any) -> Prediction:
    return simulate(work, Plan(**plan), cluster or load_cluster("dgx_a100", 8))


def test_the_usual_exchange_is_what_a_plan_says_without_one() -> None:
    assert predicted(gradient_exchange="ddp").to_dict() == predicted().to_dict()


def test_signs_are_a_sixteenth_of_sixteen_bits() -> None:
    found = programs(Plan(gradient_exchange="one_bit", gradient_dtype="bf16", overlap_gradients=False))
    assert sent(found["dense"]) / sent(found["compressed"]) == pytest.approx(16.0, rel=1e-9)


def test_volume_of_a_run_of_one_bit_adam() -> None:
    """microsoft/DeepSpeed, blog post of 2020-09-09, section 4: 1 / (w + (1 - w) / 16) = 4.92 for a warm-up of 15 %."""
    plan = Plan(gradient_exchange="one_bit", gradient_dtype="bf16", overlap_gradients=False, exchange_warmup=0.15)
    found, resolved = programs(plan), resolve(GPT, plan, 8)
    mean = sum(kind.share * sent(found[kind.name]) for kind in resolved.step_kinds)
    assert sent(found["dense"]) / mean == pytest.approx(4.92, abs=0.01)


def test_errors_of_both_sides_stand_in_memory() -> None:
    """Psi of the worker and Psi / n of the owner, in fp32."""
    one, plain = programs(Plan(gradient_exchange="one_bit"))["compressed"], programs(Plan())["every step"]
    states = [t for t in one.resident[0].tensors if t.name == "states of the exchange"]
    assert [t.bytes for t in states] == [pytest.approx(4.0 * load_model("gpt2_355m").parameters * 9 / 8, rel=0.01)]
    assert not any(t.name == "states of the exchange" for t in plain.resident[0].tensors)


def test_the_mean_of_dense_and_compressed_steps() -> None:
    both = predicted(gradient_exchange="one_bit", exchange_warmup=0.25)
    dense, compressed = predicted(), predicted(gradient_exchange="one_bit", exchange_warmup=0.0)
    assert isinstance(both, MeanPrediction)
    assert not isinstance(compressed, MeanPrediction)
    assert both.step_time == pytest.approx(0.25 * dense.step_time + 0.75 * compressed.step_time, rel=1e-12)
    assert sum(both.breakdown.values()) == pytest.approx(both.step_time, rel=1e-9)
    assert both.peak_memory == max(kind.prediction.peak_memory for kind in both.kinds)
    assert both.low < both.step_time < both.high
    said = "\n".join(str(section.lines) for section in describe(both, "it"))
    assert "compressed (75.0 %)" in said
    assert "dense (25.0 %)" in said
    assert "steps to an accuracy" in said
    power = [step_power(kind.prediction, both.cluster, Power()) for kind in both.kinds]
    found = step_power(both, both.cluster, Power())
    assert min(one.gpu for one in power) < found.gpu < max(one.gpu for one in power)
    assert found.step_time == both.step_time
    assert found.gpu_peak == max(one.gpu_peak for one in power)


@pytest.mark.parametrize("exchange", ["one_bit", "diloco"])
def test_kinds_whose_ranks_are_folded_otherwise_have_one_mean(exchange: str) -> None:
    """A slow node is apart where nothing keeps replicas in step within a row, and folded with the others where something does."""
    size = ["cluster.gpus=32", "workload.global_batch_size=48", "workload.sequence_length=512"]
    slow = ["plan.tensor_parallel=4", "plan.pipeline_parallel=2", "cluster.parts=[{nodes='0', clock=0.5}]"]
    found = simulate_job(job_from_names("llama3_8b", "dgx_a100", [*size, *slow, f"plan.gradient_exchange={exchange}"]))
    assert isinstance(found, MeanPrediction)
    assert 2 == len({kind.prediction.program.ranks for kind in found.kinds})
    assert found.rank_breakdown.sum(axis=1) == pytest.approx([found.step_time] * found.program.ranks, rel=1e-9)
    means = [kind.share * kind.prediction.breakdown["dp"] for kind in found.kinds]
    assert found.breakdown["dp"] == pytest.approx(sum(means), rel=1e-9)


BERT = {"model": load_model("bert_large"), "sequence_length": 128, "precision": "fp16"}
"""As in 1-bit Adam's profile: 16 sequences of 128 tokens on every GPU."""


def profiled(gpus: int, **plan: Any) -> Prediction:
    code = {"framework": "deepspeed_bert", "recompute": "none", "microbatch_size": 16, "overlap_gradients": False}
    work = Workload(**BERT, global_batch_size=16 * gpus)
    return predicted(work, load_cluster("v100_ethernet_40", gpus), **code, **plan)


@pytest.mark.parametrize(("gpus", "seconds"), [(8, 1.897), (16, 2.133), (32, 2.173), (64, 2.275)])
def test_dense_all_reduces_of_bert_large_on_ethernet(gpus: int, seconds: float) -> None:
    """Tang et al., arXiv 2102.02888, table 1, on 40 Gigabit Ethernet of which a connection gets 4.1 Gb/s."""
    assert profiled(gpus).breakdown["dp"] == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize("gpus", [8, 64])
def test_speed_of_one_bit_adam_on_ethernet(gpus: int) -> None:
    """DeepSpeed's blog post: up to 6.6 in compressed steps and 3.5 over a run, on it does not say how many GPUs; ours stay below
    (docs/surveys.md says how far, and why 256 GPUs, where another rule slows the dense steps, are no evidence)."""
    dense, signs = profiled(gpus), profiled(gpus, gradient_exchange="one_bit")
    assert isinstance(signs, MeanPrediction)
    assert 4.0 < dense.step_time / signs.kinds[0].prediction.step_time < 6.6
    assert 3.5 * 0.8 < dense.step_time / signs.step_time < 3.5


def test_factors_of_low_rank_in_place_of_matrices() -> None:
    """Vogels et al., arXiv 1905.13727: r (n + m) numbers of an n x m matrix, P and Q in an all_reduce each; vectors as they are."""
    model, r = load_model("gpt2_355m"), 4
    found = programs(Plan(gradient_exchange="power_sgd", exchange_rank=r))["compressed"]
    h, layers = model.hidden, model.layers
    sides = (
        layers * (3 * 2 * h + 2 * h + 5 * h + 5 * h) + model.vocabulary + h
    )  # queries, keys and values are a matrix each
    whole = model.parameters - layers * 12 * h * h - model.vocabulary * h
    assert sent(found) == pytest.approx(2 * 4.0 * (r * sides + whole), rel=0.01)
    assert 20 < sent(programs(Plan(overlap_gradients=False))["every step"]) / sent(found)


def test_a_rank_that_saves_less_than_half_is_not_taken() -> None:
    """Of a matrix of 1,024 x 1,024 with rank 512: the gradient goes as it is."""
    program = programs(Plan(gradient_exchange="power_sgd", exchange_rank=512))["compressed"]
    labels = {t.label[r] for i in program.items for t, _ in getattr(i, "pieces", ()) for r in range(len(t.work))}
    assert "whole gradients all_reduce" in labels
    assert sent(program) > sent(programs(Plan(overlap_gradients=False))["every step"]) / 2


def test_local_steps_send_nothing_and_volume_falls_as_one_over_k() -> None:
    volumes = []
    for every in (1, 4, 16):
        plan = Plan(gradient_exchange="local_sgd", exchange_every=every)
        found, resolved = programs(plan), resolve(GPT, plan, 8)
        volumes.append(sum(kind.share * sent(found[kind.name]) for kind in resolved.step_kinds))
    assert volumes[0] / volumes[1] == pytest.approx(4.0)
    assert volumes[0] / volumes[2] == pytest.approx(16.0)
    assert sent(programs(Plan(gradient_exchange="local_sgd", exchange_every=4))["local"]) == 0.0


def test_averaging_after_every_step_without_an_outer_optimizer_is_ddp() -> None:
    """In fp32, where weights are as wide as gradients and there is no other copy: the same bytes, in the same time."""
    work = Workload(model=GPT.model, sequence_length=1024, global_batch_size=32, precision="fp32")
    for framework in ("pytorch_ddp", "megatron_core"):
        local = predicted(work, gradient_exchange="local_sgd", exchange_every=1, framework=framework)
        ddp = predicted(work, overlap_gradients=False, framework=framework)
        assert local.step_time == pytest.approx(ddp.step_time, rel=3e-3)


def test_diloco_keeps_weights_and_momentum_and_sends_fewer_bits() -> None:
    """Douillard et al., arXiv 2311.08105: an outer momentum; arXiv 2501.18512: 4 bits, an eighth of fp32."""
    wide = programs(Plan(gradient_exchange="diloco", exchange_every=100))["with exchange"]
    kept = [t.bytes for t in wide.resident[0].tensors if t.name == "states of the exchange"]
    assert kept == [pytest.approx(8.0 * load_model("gpt2_355m").parameters, rel=0.01)]
    for bits in (4, 8, 16):
        narrow = programs(Plan(gradient_exchange="diloco", exchange_every=100, exchange_bits=bits))["with exchange"]
        assert sent(wide) / sent(narrow) == pytest.approx(32 / bits, rel=1e-9)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_copies_of_shards_are_the_replicas_that_drift(stage: int) -> None:
    """Inside a copy gradients are added in every step; between copies shards of weights go, once in k steps."""
    plan = Plan(gradient_exchange="diloco", exchange_every=50, zero_stage=stage, shard_size=4)
    usual = programs(Plan(zero_stage=stage, shard_size=4))["every step"]
    found = programs(plan)
    between = {name: _between(program) for name, program in found.items()}
    assert _between(usual)
    assert not between["local"]
    assert sum(between["with exchange"]) == pytest.approx(load_model("gpt2_355m").parameters, rel=0.01)


def _between(program: Program) -> list[float]:
    """Bytes of what goes between copies: of shards of a fourth, four bytes a weight."""
    links = [i.message for i in program.items if isinstance(i, Link) and i.group == ("replica",)]
    tables = [t for i in program.items for t, _ in getattr(i, "pieces", ())]
    rows = [float(t.message[r]) for t in tables for r in range(len(t.work)) if t.group[r] == ("replica",)]
    return links + rows


def test_a_part_on_its_way_hides_beside_a_step() -> None:
    """Streaming: a P-th of the weights at a time, as much in the mean, and nobody waits where a step is long enough."""
    parts = {"gradient_exchange": "streaming_diloco", "exchange_every": 16, "exchange_bits": 32}
    whole = Plan(gradient_exchange="diloco", exchange_every=16)
    found = programs(Plan(**parts, exchange_parts=4))
    assert list(found) == ["local", "with a part on its way"]
    assert 4 * sent(found["with a part on its way"]) == pytest.approx(sent(programs(whole)["with exchange"]))
    slow, streamed, local = (
        predicted(gradient_exchange="diloco", exchange_every=16),
        predicted(**parts, exchange_parts=4),
        predicted(gradient_exchange="local_sgd", exchange_every=1_000_000),
    )
    assert local.step_time < streamed.step_time < slow.step_time
    assert streamed.breakdown["dp"] == 0.0
    every = programs(Plan(**parts, exchange_parts=16))
    assert list(every) == ["with a part on its way"]


def test_every_exchange_goes_with_pipelines_and_tensor_parallelism() -> None:
    for member in [member for member in EXCHANGES if not member.one_process]:
        given = {name: 4 for name, default in member.options.items() if default is None}
        cluster = load_cluster("dgx_a100", 32)  # servers are reached over a network
        found = predicted(
            cluster=cluster,
            tensor_parallel=2,
            pipeline_parallel=2,
            gradient_exchange=member.name,
            schedule="hetpipe" if member.waves else "one_f_one_b",
            **given,
        )
        assert found.step_time > 0.0


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"gradient_exchange": "local_sgd"}, "needs exchange_every, but it is not given"),
        ({"exchange_every": 4}, "exchange_every is a choice of diloco or local_sgd or streaming_diloco"),
        ({"exchange_warmup": 0.1}, "choice of one_bit"),
        ({"gradient_exchange": "one_bit", "zero_stage": 1}, "no replica has a part of the states"),
        ({"gradient_exchange": "one_bit", "optimizer_offload": 1.0}, "optimizer_offload = 1"),
        ({"gradient_exchange": "one_bit", "data_parallel": 1, "tensor_parallel": 8}, "replicas exchange"),
        ({"gradient_exchange": "one_bit", "pipeline_parallel": 2, "schedule": "chimera"}, "chimera"),
        ({"gradient_exchange": "one_bit", "pipeline_parallel": 2, "schedule": "pipedream"}, "pipedream"),
        (
            {"gradient_exchange": "one_bit", "pipeline_parallel": 2, "schedule": "zb_h1", "post_validation": True},
            "post_validation = true",
        ),
        (
            {"gradient_exchange": "streaming_diloco", "exchange_parts": 8, "exchange_every": 4},
            "exchange_parts = 8 and exchange_every = 4",
        ),
        ({"gradient_exchange": "diloco", "zero_stage": 2}, "ranks that share states do not"),
        ({"gradient_exchange": "diloco", "context_parallel": 2}, "context_parallel = 2, shard_size = none"),
        ({"gradient_exchange": "diloco", "bucket_size": 1e6}, "no step adds gradients"),
    ],
)
def test_refusals(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        predicted(**plan)


def test_one_bit_belongs_to_optimizers_with_a_momentum() -> None:
    work = Workload(model=GPT.model, sequence_length=1024, global_batch_size=32, optimizer="sgd")
    with pytest.raises(PlanError, match="update of 'adam' or 'lamb'"):
        predicted(work, gradient_exchange="one_bit")
