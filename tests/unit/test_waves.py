"""Pipelines that push what a wave of minibatches changed (`gradient_exchange = "wave_synchronous"`, `schedule = "hetpipe"`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.parts import Part
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Link
from simulator.program.text import parse_text, render_text
from simulator.report.mean_prediction import MeanPrediction
from simulator.report.prediction import Prediction
from simulator.report.summary import describe
from simulator.schedules.hetpipe import HetPipe
from simulator.schedules.shape import Shape
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

VGG = load_model("vgg16")
STAGES, WORKERS = 4, 4
KINDS = ("titan_v", "titan_rtx", "rtx_2060", "quadro_p4000")
"""GPUs of the paper's four nodes."""


def nodes_of_kinds() -> Cluster:
    """The paper's cluster: four GPUs of one kind in each node."""
    parts = tuple(Part(nodes=((node, node),), gpu=kind) for node, kind in enumerate(KINDS) if node)
    return replace(load_cluster("hetpipe", STAGES * WORKERS), parts=parts)


def work(wave: int = 4, workers: int = WORKERS) -> Workload:
    return Workload(
        model=VGG, sequence_length=1, global_batch_size=32 * workers * wave, precision="fp32", optimizer="sgd"
    )


def plan(**changes: Any) -> Plan:
    choices = {"framework": "pytorch_ddp", "microbatch_size": 32, "pipeline_parallel": STAGES, "schedule": "hetpipe"}
    return Plan(**{**choices, "gradient_exchange": "wave_synchronous", **changes})


def predicted(
    on: Cluster | None = None, wave: int = 4, engine: str = "compiled", fold: bool = True, **changes: Any
) -> Prediction:
    return simulate(work(wave), plan(**changes), on or nodes_of_kinds(), engine, fold=fold)


def slow_network(share: float) -> Cluster:
    found = load_cluster("titan_x_ethernet_25", STAGES * WORKERS)
    return replace(found, parts=(Part(nodes=((0, 15),), network=share),))


def bytes_between_replicas(wave: int, **changes: Any) -> float:
    """Bytes of the messages of replicas in a step, before the algorithm, over all pipeline ranks."""
    program = lower(work(wave), plan(**changes), 16)
    size = np.array([item.message if isinstance(item, Link) and "dp" in item.group else 0.0 for item in program.items])
    return float(size[program.item[program.step == 1]].sum())


@pytest.mark.parametrize("wave", [4, 8])
def test_a_wave_pushes_once_what_minibatches_push_each(wave: int) -> None:
    weights = 4.0 * VGG.parameters
    assert bytes_between_replicas(wave) == pytest.approx(weights)
    each = bytes_between_replicas(wave, schedule="pipedream", gradient_exchange="all_reduce")
    assert each == pytest.approx(wave * weights)


def lacking(wave: int, bound: int, schedule: str = "hetpipe") -> int:
    """The most microbatches before one of which its first forward does not wait for the changes, counted in the program's waits."""
    program = lower(work(wave), plan(schedule=schedule, exchange_staleness=bound or None), 16)
    pushed = np.array([isinstance(item, Link) and item.served is not None for item in program.items])[program.item]
    seen, most = -1, 0
    forward = np.flatnonzero((program.action == 0) & (program.rank == 0))
    for row in forward[np.argsort(program.microbatch[forward])].tolist():
        after = program.after[program.after_offsets[row] : program.after_offsets[row + 1]]
        waves = [int(program.step[one]) for one in after.tolist() if pushed[one]]
        seen = max([seen, *waves])
        if seen >= 0:  # in the steady state
            most = max(most, int(program.microbatch[row]) - wave * (seen + 1))
    return most


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("wave", [4, 7])
def test_weights_lack_as_many_changes_as_the_paper_says(wave: int, bound: int) -> None:
    """s_global = (D + 1) (s_local + 1) + s_local - 1 with s_local = N_m - 1; 6 of four under way and D = 0."""
    local = wave - 1
    assert lacking(wave, bound) == (bound + 1) * (local + 1) + local - 1
    assert lacking(4, 0) == 6
    told = predicted(wave=wave, exchange_staleness=bound or None).provenance["waves"]
    assert told == {"microbatches": wave, "local_staleness": local, "global_staleness": lacking(wave, bound)}


def test_waves_longer_than_what_is_under_way() -> None:
    """PipeDream's ranks have four under way, whatever a wave has: (D + 1) m + n - 2."""
    assert lacking(8, 1, "pipedream") == 2 * 8 + 4 - 2


def test_as_many_minibatches_are_under_way_as_a_wave_has() -> None:
    for wave in (1, 2, 4, 5, 9):
        order = HetPipe().steady_order(Shape(4, wave), 4)
        kinds = order.kind[: order.rank_offsets[1]]
        under_way = np.cumsum(np.where(kinds == 0, 1, -1))
        assert under_way.max() == wave


def wires(found: Prediction) -> float:
    """Seconds of the pushes and pulls of a wave, of the rank with most."""
    served = np.array([isinstance(item, Link) and item.served is not None for item in found.program.items])
    pushes = served[found.program.item] & (found.program.step == 1)
    seconds = found.prices.occupancy[found.program.item[pushes]]
    return float(np.bincount(found.program.rank[pushes], seconds).max())


def test_a_bound_of_one_hides_what_a_bound_of_none_waits_for() -> None:
    """Where a push and a pull take longer than a wave, wires that never rest set the pace; with no wave ahead they rest."""
    quick, slow = slow_network(1.0), slow_network(0.5)
    assert wires(predicted(quick)) < 0.8 * predicted(quick).step_time
    none, one, four = (predicted(slow, exchange_staleness=bound) for bound in (None, 1, 4))
    assert one.step_time == four.step_time == pytest.approx(wires(one), rel=1e-9)
    assert none.step_time > 1.03 * one.step_time
    long = predicted(slow, wave=8)
    assert long.step_time == pytest.approx(predicted(slow, wave=8, exchange_staleness=4).step_time, rel=0.01)


def test_minibatches_under_way_fill_a_worker() -> None:
    """One at a time is a pipeline without overlap; more than its ranks hide the messages."""
    rates = [wave / predicted(wave=wave).step_time for wave in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    assert rates[2] > 1.8 * rates[0]


def test_the_slowest_worker_sets_the_pace_of_all_and_all_must_fit() -> None:
    """Nodes as workers: rank_order lays a pipeline into each."""
    by_node: dict[str, Any] = {"rank_order": ("tp", "pp", "dp"), "exchange_staleness": 2}
    mixed = predicted(**by_node)
    assert isinstance(mixed, MeanPrediction)
    assert {kind.name for kind in mixed.kinds} == {f"of replicas {number}" for number in range(4)}
    assert mixed.step_time == pytest.approx(max(kind.prediction.step_time for kind in mixed.kinds), rel=1e-12)
    assert sum(mixed.breakdown.values()) == pytest.approx(mixed.step_time)
    full = {kind.name: kind.prediction.peak_memory / kind.prediction.capacity for kind in mixed.kinds}
    assert mixed.peak_memory / mixed.capacity == max(full.values()) == full["of replicas 2"]  # RTX 2060: 6 GiB
    assert mixed.fits == all(kind.prediction.fits for kind in mixed.kinds)
    assert "waves of 4 microbatches, up to 2 waves ahead of the slowest" in str(describe(mixed, "mixed"))


def test_workers_of_other_gpus_have_layers_of_their_own() -> None:
    """VVQQ twice and RRGG twice: a split for each is quicker than any of both for all."""
    ranks = ((0, 1, 4, 5), (2, 3, 6, 7), (10, 11, 14, 15), (8, 9, 12, 13))  # of V, R, G, Q; rank = 4 x stage + worker
    parts = tuple(Part(ranks=tuple((r, r) for r in some), gpu=kind) for kind, some in zip(KINDS, ranks, strict=True))
    on = replace(load_cluster("hetpipe", 16), parts=parts)
    first, second = (4, 4, 2, 4), (4, 4, 3, 3)
    both = [predicted(on, layer_split=split).step_time for split in (first, second)]
    own = predicted(on, replica_layer_splits=(first, first, second, second))
    assert {kind.name for kind in own.kinds} == {"of replicas 0-1", "of replicas 2-3"}  # type: ignore[attr-defined]
    assert own.step_time <= min(both)
    alike = predicted(on, replica_layer_splits=(first,) * 4)
    assert alike.step_time == both[0]


@pytest.mark.parametrize("changes", [{}, {"exchange_staleness": 2, "rank_order": ("tp", "pp", "dp")}])
def test_both_engines_agree_and_every_replica_does_the_same(changes: dict[str, Any]) -> None:
    whole = predicted(**changes)
    assert whole.step_time == predicted(engine="simpy", **changes).step_time
    assert whole.step_time == pytest.approx(predicted(fold=False, **changes).step_time, rel=1e-12)


def test_the_text_of_a_program_has_its_waves() -> None:
    text = render_text(lower(work(), plan(), 16))
    assert "served=parameter_server,0,3.0,each" in text
    assert render_text(parse_text(text)) == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "one_f_one_b"}, "and never flushes, but schedule = 'one_f_one_b'"),
        ({"schedule": "pipedream_2bw"}, "after every microbatch"),
        ({"overlap_gradients": False}, "replicas add up no gradients"),
        ({"zero_stage": 1}, "no replica has a part of the states"),
        ({"gradient_reduce_dtype": "fp16"}, "replicas add up no gradients"),
        ({"replica_layer_splits": [[4, 4, 3, 3]]}, "1 of them and data_parallel = 4"),
        ({"replica_layer_splits": [[4, 4, 3, 4]] * 4}, r"replica_layer_splits\[0\] must give 4 chunks"),
        ({"replica_layer_splits": [[4, 4, 3, 3]] * 4, "layer_split": [4, 4, 3, 3]}, "in one place"),
        (
            {"replica_layer_splits": [[4, 4, 3, 3]] * 4, "gradient_exchange": "all_reduce"},
            "same pipeline ranks",
        ),
        ({"exchange_servers": 2}, "lie on one node"),
    ],
)
def test_what_waves_cannot_go_with_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        predicted(**changes)


def test_small_waves_divide_the_ranks() -> None:
    with pytest.raises(PlanError, match="or a divisor"):
        predicted(wave=3)
