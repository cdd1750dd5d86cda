"""The guide "which parallelism for which machine": its cells hold, what decided is said, and the crossing is where it is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import cast

import pytest

from simulator.hardware.cluster import build_cluster
from simulator.hardware.link import load_link
from simulator.job import Job, job_from_names
from simulator.search.answer import Answer
from simulator.search.families import FAMILIES
from simulator.search.growth import GROWTHS
from simulator.simulation import simulate_job
from simulator.studies.guide import Guide, Tried, advise, node_bandwidth, turns_between, with_network
from simulator.units import in_unit
from tests.command import Dtsim

SPLIT = "tensor, pipeline and data"
HOST = ("optimizer on the host", "optimizer and weights on the host")


def machine(model: str, cluster: str, gpus: int, batch: int, *settings: str) -> Job:
    """A job of a known code: one that nobody named needs more room for what is not known of it."""
    sizes = (f"cluster.gpus={gpus}", f"workload.global_batch_size={batch}", "plan.framework=megatron_core")
    return job_from_names(model, cluster, [*sizes, *settings])


def one_card_per_node(job: Job, link: str = "ethernet_10") -> Job:
    """The same machines with one slow card each."""
    cluster = job.cluster
    node = cluster.node.model_copy(update={"nics": 1, "network_link": link})
    return replace(
        job,
        cluster=build_cluster(
            cluster.spec, cluster.gpu, node, cluster.link, cluster.host_link, load_link(link), cluster.world_size
        ),
    )


@cache
def guide(model: str, where: str) -> Guide:
    if where == "one V100":
        return likely(machine(model, "v100_dgx2", 1, 8, "workload.precision=fp16"))
    if where == "one DGX A100":
        return likely(machine(model, "dgx_a100", 8, 256))
    job = machine(model, "dgx_a100", 64, 1024)
    return likely(one_card_per_node(job) if where == "eight on 10 Gb/s" else job)


def likely(job: Job) -> Guide:
    """The guide by the middle of the band of memory: how wide that is says what was measured, not what is true of machines."""
    return advise(job, 0.5)


def tried(found: Guide, name: str) -> Tried:
    return next(one for one in found.tried if one.family.name == name)


def seconds(found: Guide, name: str) -> float:
    best = tried(found, name).best
    assert best, name
    return best.step_time


def first(found: Guide) -> str:
    return found.ranked[0].family.name


def test_one_gpu_that_fits_trains_as_it_is() -> None:
    found = guide("gpt3_1_3b", "one V100")
    assert (found.machine, found.fits_one_gpu, first(found)) == ("one GPU", True, "as it is")


def test_one_gpu_that_does_not_fit_puts_the_optimizer_on_the_host() -> None:
    found = guide("gpt3_2_7b", "one V100")
    assert (found.fits_one_gpu, first(found)) == (False, "optimizer on the host")
    assert "does not fit" in found.why(tried(found, "as it is"))


@pytest.mark.parametrize("model", ["gpt3_13b", "gpt3_175b"])
def test_what_fits_in_no_way_is_said(model: str) -> None:
    found = guide(model, "one V100")
    assert (found.fits_one_gpu, found.ranked) == (False, [])
    assert "advice: nothing fits" in "\n".join(found.sections()[0].lines)
    needs = [min(c.peak_memory for c in one.answer.candidates.values()) for one in found.tried if one.answer]
    assert needs[1] < needs[0]  # with the optimizer on the host it lacks less


def test_one_node_that_fits_takes_replicas() -> None:
    found = guide("gpt3_1_3b", "one DGX A100")
    ties = {one.family.name for one in found.ties}
    assert (found.machine, found.fits_one_gpu) == ("one node", True)
    assert first(found) in ("data parallel (DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")
    assert "data parallel (DDP)" in ties


def test_one_node_that_does_not_fit_takes_pipeline_zero_or_tensor() -> None:
    found = guide("gpt3_13b", "one DGX A100")
    assert not found.fits_one_gpu
    assert tried(found, "data parallel (DDP)").best is None
    for name in ("ZeRO-3 (FSDP)", "tensor and data", "pipeline and data"):
        assert seconds(found, name)
    assert first(found) not in HOST


def test_a_layer_larger_than_a_gpu_leaves_tensor_and_zero() -> None:
    base = machine("gpt3_1_3b", "v100_dgx2", 16, 16, "workload.precision=fp16", "workload.sequence_length=1024")
    job = GROWTHS["layers"].grown(GROWTHS["model"].grown(base, 128), 2)
    found = likely(job)
    assert found.largest_layer > job.cluster.gpu.usable_memory
    assert tried(found, "pipeline and data").best is None
    assert tried(found, "data parallel (DDP)").best is None
    assert any(tried(found, name).best for name in ("ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)"))
    assert tried(found, "tensor and data").best


@pytest.mark.slow
def test_fast_nodes_take_zero_or_all_three() -> None:
    small, middle, large = (guide(m, "eight DGX A100") for m in ("gpt3_1_3b", "gpt3_13b", "gpt3_175b"))
    assert first(small) in ("data parallel (DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")
    assert first(middle) in ("ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")
    assert "tensor and data" in {one.family.name for one in middle.ties}
    assert first(large) in (SPLIT + " (3D)", "3D with ZeRO-2")
    assert SPLIT + " (3D)" in {one.family.name for one in large.ties}
    assert seconds(large, SPLIT + " (3D)") < seconds(large, "ZeRO-3 (FSDP)")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt3_13b", "gpt3_175b"])
def test_slow_nodes_take_tensor_pipeline_and_zero_1(model: str) -> None:
    found = guide(model, "eight on 10 Gb/s")
    assert first(found) in (SPLIT + " (3D)", "pipeline and data")
    best = found.ranked[0].best
    assert best
    assert best.point.values["plan.zero_stage"] <= 1
    assert seconds(found, "ZeRO-3 (FSDP)") > 3 * best.step_time
    assert "data-parallel collectives" in found.why(tried(found, "ZeRO-3 (FSDP)"))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["eight DGX A100", "eight on 10 Gb/s"])
@pytest.mark.parametrize("model", ["gpt3_13b", "gpt3_175b"])
def test_zero_2_and_3_lose_beside_tensor_and_pipeline(model: str, where: str) -> None:
    """Their collectives come again with every microbatch; where memory binds they make room for less splitting, which ties."""
    found = guide(model, where)
    for name in ("3D with ZeRO-2", "3D with ZeRO-3"):
        assert seconds(found, name) > 0.99 * seconds(found, SPLIT + " (3D)")


@pytest.mark.slow
def test_the_crossing_lies_where_both_take_equal_time() -> None:
    found = guide("gpt3_13b", "eight DGX A100")
    crossing = next(c for c in found.crossings if "ZeRO-3 (FSDP)" in (c.faster, c.slower))
    assert (crossing.faster, crossing.slower) == ("ZeRO-3 (FSDP)", SPLIT)
    own = node_bandwidth(found.job.cluster)
    assert own / 10 < crossing.bandwidth < own
    for factor, order in ((0.5, 1), (2.0, -1)):
        cluster = with_network(found.job.cluster, crossing.bandwidth * factor)
        there = likely(replace(found.job, cluster=cluster))
        split = min(seconds(there, name) for name in ("tensor and data", "pipeline and data", SPLIT + " (3D)"))
        assert (seconds(there, "ZeRO-3 (FSDP)") - split) * order > 0


def test_families_that_change_places_twice_are_told_twice() -> None:
    """Sharded weights win on a middling network: below it splitting the model sends less, above it needs no recompute."""
    octaves = [2.0**k for k in range(-7, 8)]
    slow, quick = turns_between(lambda x: (math.log(x) + 2.0) * (math.log(x) - 1.0), octaves)
    assert slow[0] == pytest.approx(math.exp(-2.0), rel=0.02)
    assert quick[0] == pytest.approx(math.exp(1.0), rel=0.02)
    assert (slow[1], quick[1]) == (False, True)
    assert turns_between(lambda x: 1.0, octaves) == []
    assert turns_between(lambda x: math.inf if x < 1.0 else -1.0, octaves) == []


@pytest.mark.slow
def test_what_is_told_of_other_networks_does_not_depend_on_the_one_at_hand() -> None:
    job = machine("llama3_70b", "dgx_h100", 512, 1024)
    assert next(c for c in advise(job).crossings if c.faster == "ZeRO-3 (FSDP)").bandwidth == pytest.approx(
        45e9, rel=0.1
    )


def test_the_command_answers_in_json(dtsim: Dtsim) -> None:
    words = ("advise", "--model", "gpt3_1_3b", "--cluster", "dgx_a100", "--set", "cluster.gpus=8")
    code, out, _ = dtsim(*words, "--json")
    answer = json.loads(out)
    assert (code, answer["kind"], answer["machine"], answer["fits_one_gpu"]) == (0, "advise", "one node", True)
    assert answer["advice"][0] == answer["families"][0]["family"]
    assert all(one["why"] for one in answer["families"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cluster", "h100_x8", "--network", "10 Gb/s"), "no network"),
        (("--cluster", "dgx_a100", "--network", "fast"), "--network"),
        (("--cluster", "dgx_a100", "--fit-probability", "7"), "between 0"),
    ],
)
def test_bad_words_end_with_2_and_say_why(dtsim: Dtsim, words: tuple[str, ...], told: str) -> None:
    code, out, error = dtsim("advise", "--model", "gpt3_1_3b", *words)
    assert (code, out) == (2, "")
    assert told in error


GPT3 = {
    (384, "3D"): 153.0,
    (384, "ZeRO-3"): 144.0,
    (1536, "3D"): 141.0,
    (1536, "ZeRO-3"): 44.0,
}
"""TFLOP/s per GPU with recomputation of GPT-3 175B, 1,536 sequences (Narayanan et al., arXiv 2104.04473, Table 2)."""


@pytest.mark.slow
def test_published_speeds_of_3d_and_zero_3_on_fast_links() -> None:
    """Each is within 20 %, and the gap widens.  At 384 GPUs the two are within 13 % of each other in print and here, in the other order."""
    found = {}
    for gpus, microbatch in ((384, 4), (1536, 1)):
        settings = [f"cluster.gpus={gpus}", "workload.global_batch_size=1536", "plan.recompute=full"]
        three = ["plan.framework=megatron_lm_2021", "plan.tensor_parallel=8", "plan.pipeline_parallel=12"]
        zero = ["plan.framework=deepspeed_2021", "plan.zero_stage=3", f"plan.microbatch_size={microbatch}"]
        for name, plan in (("3D", three), ("ZeRO-3", zero)):
            p = simulate_job(job_from_names("gpt3_175b", "selene", [*settings, *plan]))
            found[gpus, name] = in_unit(p.hfu * p.peak_flops, "TFLOP/s", "FLOP/s")
    assert found == {key: pytest.approx(value, rel=0.2) for key, value in GPT3.items()}
    assert found[1536, "3D"] / found[1536, "ZeRO-3"] > 2.5 > 2 * found[384, "3D"] / found[384, "ZeRO-3"]


def test_what_fits_by_the_point_estimate_alone_says_with_which_probability() -> None:
    """Below the GPU's memory, and yet no plan that fits: the reader is told what was asked for."""
    job = job_from_names("llama_7b", "dgx_h100", ["cluster.gpus=8"])
    asked = 0.999999
    found = advise(job, asked)
    near = [one.answer.nearest for one in found.tried if one.answer and not one.best]
    assert any(one is not None and one.fits for one in near)
    for one in found.tried:
        if one.best is None and one.answer and one.answer.nearest:
            nearest, why = one.answer.nearest, found.why(one)
            assert ("(--fit-probability)" in why) == nearest.fits
            assert ("does not fit" in why) == (not nearest.fits)
    assert "one GPU with a probability of 100.0 %" in found.sections()[0].lines[0]


def test_a_rack_that_shares_its_inner_link_asks_nothing_of_the_network() -> None:
    found = advise(job_from_names("gpt3_1_3b", "gb200_nvl72", ["cluster.gpus=8"]))
    assert found.machine == "one rack"
    assert not any("network" in section.title for section in found.sections())


def test_of_families_alike_one_that_puts_nothing_on_the_host_is_advised() -> None:
    def one(name: str, seconds: float) -> Tried:
        best = SimpleNamespace(step_time=seconds, alike=1.1 * seconds)
        answer = cast(Answer, SimpleNamespace(best=(best,)))
        return Tried(family=next(family for family in FAMILIES if family.name == name), answer=answer)

    small = machine("gpt3_1_3b", "dgx_a100", 8, 8)
    tried = (one("optimizer on the host", 1.0), one("ZeRO-2", 1.001), one("ZeRO-3 (FSDP)", 2.0))
    found = Guide(
        job=small,
        machine="one node",
        fits_one_gpu=True,
        largest_layer=0.0,
        tried=tried,
        crossings=(),
        probability=0.9,
    )
    assert [each.family.name for each in found.ties] == ["ZeRO-2", "optimizer on the host"]
