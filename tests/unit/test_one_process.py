"""torch's DataParallel (`framework = "torch_data_parallel"`): one process, and all through GPU 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.lowering import lower, lower_resolved, resolve
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, Program
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

BERT = load_model("bert_large")
LOGITS = 8 * 128 * 30522 * 2
"""Bytes of a GPU's outputs: 8 sequences of 128 tokens over BERT's vocabulary, in 16 bits."""


def work(gpus: int) -> Workload:
    return Workload(model=BERT, sequence_length=128, global_batch_size=8 * gpus, precision="fp16")


def predicted(framework: str, gpus: int = 4, cluster: Cluster | None = None) -> Prediction:
    plan = Plan(framework=framework, microbatch_size=8)
    return simulate(work(gpus), plan, cluster or load_cluster("v100_dgx1", gpus))


def collectives(program: Program) -> list[tuple[str, float]]:
    """(what, bytes) of the collectives inside of segments, in turn."""
    tables = [t for i in program.item.tolist() for t, n in getattr(program.items[i], "pieces", ()) for _ in range(n)]
    return [(t.work[r], float(t.message[r])) for t in tables for r in range(len(t.work)) if t.kind[r] == COLLECTIVE]


def test_five_exchanges_through_one_gpu() -> None:
    """Outputs come and their gradients go, gradients come, weights and inputs go: the message is what stands on GPU 0."""
    program = lower(work(4), Plan(framework="torch_data_parallel", microbatch_size=8), 4)
    found = collectives(program)
    weights = 4.0 * BERT.parameters
    assert [name for name, _ in found] == ["gather", "scatter", "reduce", "broadcast", "scatter"]
    expected = [4 * LOGITS, 4 * LOGITS, weights, weights, 4 * 8 * 128 * 8]
    assert [size for _, size in found] == [pytest.approx(size, rel=0.01) for size in expected]


def test_the_loss_and_its_memory_are_those_of_the_whole_batch() -> None:
    one, ddp = predicted("torch_data_parallel"), predicted("pytorch_ddp")

    def logits(prediction: Prediction) -> float:
        return sum(t.bytes for effect in prediction.program.effects for t in effect.tensors if t.name == "logits")

    def loss(prediction: Prediction) -> float:
        tables = [t for item in prediction.program.items for t, _ in getattr(item, "pieces", ())]
        rows = [(t, r) for t in tables for r in range(len(t.work)) if t.label[r] == "cross entropy"]
        return sum(float(t.read[r]) for t, r in rows)

    assert logits(one) == pytest.approx(4 * logits(ddp))
    assert loss(one) == pytest.approx(4 * loss(ddp))
    assert one.peak_memory > ddp.peak_memory


def test_one_thread_launches_for_all_gpus() -> None:
    """So that a step of small kernels takes longer with every GPU."""
    times = [predicted("torch_data_parallel", gpus).breakdown["host"] for gpus in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert times[3] > 10 * times[0]


def test_on_one_gpu_it_is_the_model_alone() -> None:
    program = lower(work(1), Plan(framework="torch_data_parallel", microbatch_size=8), 1)
    assert not collectives(program)
    resolved = resolve(work(1), Plan(framework="torch_data_parallel", microbatch_size=8), 1)
    assert lower_resolved(work(1), resolved).size == program.size


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_links_of_any_speed_leave_it_behind(gpus: int) -> None:
    """No crossing: GPU 0's port carries the weights twice, a ring's each of them 2 (n - 1) / n times, and the ring hides some."""
    ratios = []
    for link in ("pcie3_x8", "pcie3_x16", "pcie4_x16", "pcie5_x16", "nvlink2"):
        cluster = load_cluster("v100_pcie_x8", gpus)
        slow = replace(cluster, node=cluster.node.model_copy(update={"link": link}))
        one, ddp = (predicted(name, gpus, slow).step_time for name in ("torch_data_parallel", "pytorch_ddp"))
        ratios.append(one / ddp)
    assert min(ratios) > 1.0


@pytest.mark.parametrize(
    ("plan", "gpus", "said"),
    [
        ({}, 16, "one process has the GPUs of one node"),
        ({"framework": "pytorch_ddp", "gradient_exchange": "one_process"}, 8, "framework = 'torch_data_parallel'"),
        ({"gradient_exchange": "all_reduce"}, 8, "gradient_exchange = 'one_process', or framework = 'pytorch_ddp'"),
        ({"tensor_parallel": 2}, 8, "each with the whole model, but tensor_parallel = 2"),
        ({"microbatch_size": 4}, 8, "a step has 2 microbatches"),
        ({"loss_chunks": 4}, 8, "leave loss_chunks out"),
        ({"zero_stage": 1}, 8, "zero_stage = 0"),
    ],
)
def test_refusals(plan: dict[str, Any], gpus: int, said: str) -> None:
    base = {"framework": "torch_data_parallel", "microbatch_size": 8}
    with pytest.raises(PlanError, match=said):
        simulate(work(gpus), Plan(**{**base, **plan}), load_cluster("v100_dgx1", gpus))
