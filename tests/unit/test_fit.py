"""What fits: the answer is the most (or the fewest), nothing beyond it fits, and published sizes come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.job import Job, job_from_names, load_job
from simulator.plan.zero import model_states
from simulator.search.candidate import look
from simulator.search.defaults import worlds
from simulator.search.fit import fewest_gpus, largest
from simulator.search.growth import GROWTHS, Grown
from simulator.search.space import make_space, read_ranges
from simulator.simulation import simulate_job
from tests.command import Dtsim

RANGES = read_ranges(["tensor_parallel=1,2,4,8", "zero_stage=0,1,3", "recompute=none,full"])


@pytest.fixture(scope="module")
def job() -> Job:
    return job_from_names("gpt3_6_7b", "dgx_a100_40", ["cluster.gpus=8", "workload.global_batch_size=8"])


@pytest.mark.parametrize("what", GROWTHS)
def test_no_plan_has_room_for_one_step_more(job: Job, what: str) -> None:
    found = largest(job, what, RANGES, {})
    assert found.answer
    assert found.plan
    assert found.plan.feasible(0.9)
    space, growth = make_space(job, RANGES, {}), GROWTHS[what]
    for point in space.points():
        try:
            step = growth.step(space.job_of(point))
        except SpecError:
            continue
        more = (found.answer // step + 1) * step
        grown = Grown(job=space.job, ranges=space.ranges, moves=space.moves, growth=growth, amount=more)
        result = look(grown, point, "memory").simulated()
        assert isinstance(result, str) or not result.feasible(0.9), (point.settings, more)


def test_heads_that_a_plan_cannot_deal_out_are_passed_over() -> None:
    """68 heads have 17 of keys, which two ranks cannot share; 72 and 80 heads have room."""
    settings = ["cluster.gpus=64", "workload.global_batch_size=64"]
    job = job_from_names("llama3_8b", "dgx_h100", settings)
    ranges = read_ranges(["tp=2,4,8", "zero_stage=1,3", "recompute=none,full"])
    found = largest(job, "model", ranges, {})
    assert found.answer
    space, fitting = make_space(job, ranges, {}), []
    for more in range(found.answer, 2 * found.answer, 4):
        grown = Grown(job=job, ranges=space.ranges, moves=space.moves, growth=GROWTHS["model"], amount=more)
        results = [look(grown, point, "memory").simulated() for point in space.points()]
        fitting += [more] if any(not isinstance(one, str) and one.feasible(0.9) for one in results) else []
    assert fitting == [found.answer]


def test_where_no_amount_fits_the_nearest_plan_says_why() -> None:
    job = job_from_names("llama3_1_405b", "h100_x8")
    said = [largest(job, "sequence", read_ranges([f"zero_stage={stages}"]), {}).refusal for stages in ("3", "0,3")]
    assert "no plan fits the least of it: it holds at least 10" in said[0]
    assert said[0] == said[1]


def test_more_gpus_are_advised_only_where_the_cluster_has_them() -> None:
    jobs = {name: job_from_names("llama3_70b", name, ["cluster.gpus=8"]) for name in ("a100_x8", "dgx_a100")}
    way = {name: fewest_gpus(each, read_ranges(["tensor_parallel=8"]), {}).refusal for name, each in jobs.items()}
    assert "a larger --cluster" in way["a100_x8"]
    assert "--set cluster.gpus=N" in way["dgx_a100"]


def test_the_answer_is_a_job_that_fits(job: Job) -> None:
    found = largest(job, "layers", RANGES, {}, probability=0.0)
    assert found.job
    assert found.plan
    assert found.job.workload.model.layers == found.answer
    prediction = simulate_job(found.job)
    assert prediction.fits
    assert prediction.step_time == found.plan.step_time


def test_the_fewest_gpus_are_the_first_on_which_a_plan_fits(job: Job) -> None:
    sizes = (1, 2, 4, 8)
    found = fewest_gpus(job, {**RANGES, "cluster.gpus": sizes}, {})
    fits = []
    for gpus in sizes:
        space = make_space(job, RANGES, {"cluster.gpus": (gpus,)})
        results = [look(space, point, "memory").simulated() for point in space.points()]
        fits.append(any(not isinstance(one, str) and one.feasible(0.9) for one in results))
    assert found.answer == next(gpus for gpus, some in zip(sizes, fits, strict=True) if some)
    assert found.answer > 1


def test_more_memory_is_asked_for_more_certainty(job: Job) -> None:
    sure, likely = (largest(job, "sequence", RANGES, {}, p).answer for p in (0.99, 0.5))
    assert sure
    assert likely
    assert sure < likely


def test_the_longest_sequence_may_lie_on_several_gpus() -> None:
    job = job_from_names("llama3_8b", "h100_x8", ["cluster.gpus=8"])
    held = read_ranges(["recompute=full", "tensor_parallel=1"], "--fix")
    said = largest(job, "sequence", read_ranges(["context_parallel=1,2,4,8", "zero_stage=1,3"]), held)
    lines: list[str] = []
    found = largest(job, "sequence", {}, held, tell=lines.append)
    assert lines[0].endswith("plans ...")  # looking at them all comes before the first answer
    assert said.job
    assert said.job.plan.context_parallel > 1
    assert found.answer == said.answer


def test_where_nothing_fits_it_says_why() -> None:
    job = job_from_names("gpt3_175b", "dgx_a100", ["cluster.gpus=8"])
    found = fewest_gpus(job, RANGES, {})
    assert (found.answer, found.plan) == (None, None)
    assert "the nearest needs" in found.refusal
    grown = largest(job, "batch", RANGES, {})
    assert grown.answer is None
    assert "Way out" in grown.refusal


BILLION = 1e9


@pytest.mark.parametrize(
    ("stage", "published"),
    [(0, (2, 8, 32)), (1, (7.6, 30.4, 121.6)), (2, (14.4, 57.6, 230.4)), (3, (128, 500, 2000))],
)
def test_sizes_of_zero_from_model_states_alone(stage: int, published: tuple[float, ...]) -> None:
    """ZeRO (arXiv 1910.02054) Table 2, left: V100 of 32 GB, 64 replicas, model parallelism of 1, 4 and 16."""
    each = model_states(1.0, weight=2, gradient=2, optimizer=12, zero_stage=stage, replicas=64).total
    for ways, size in zip((1, 4, 16), published, strict=True):
        assert 32e9 / each * ways == pytest.approx(size * BILLION, rel=0.03)


@pytest.mark.parametrize(("ways", "hidden", "published"), [(1, 2048, 6.2), (4, 4096, 25.0), (16, 8192, 100.0)])
def test_sizes_of_zero_1_as_measured(ways: int, hidden: int, published: float) -> None:
    """ZeRO Table 2, right: what ran with optimizer states sharded (Pos); batches and widths are guessed."""
    heads = hidden // 128
    settings = [
        f"cluster.gpus={64 * ways}", "workload.precision=fp16", "workload.sequence_length=1024", "workload.global_batch_size=256",
        "plan.framework=deepspeed_2021", f"plan.tensor_parallel={ways}", "plan.zero_stage=1", "plan.recompute=full",
        "plan.microbatch_size=4",
    ]  # fmt: skip
    base = job_from_names("gpt3_1_3b", "v100_dgx2", settings)
    job = GROWTHS["model"].grown(base, heads)
    found = largest(job, "layers", {"plan.zero_stage": (1,)}, {}, probability=0.0)
    assert found.job
    assert found.job.workload.model.parameters == pytest.approx(published * BILLION, rel=0.2)


COMMAND = ("fit", "gpt3_1_3b", "--cluster", "h100_x8", "--range", "zero_stage=0,1")


def test_the_command_answers_in_json_and_writes_the_job(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "largest.toml"
    code, out, _ = dtsim(*COMMAND, "--largest", "layers", "--json", "-o", str(file))
    answer = json.loads(out)
    assert (code, answer["kind"], answer["schema_version"]) == (0, "fit", 1)
    assert {"answer", "plan", "evaluations", "provenance"} <= set(answer)
    assert answer["evaluations"] > 0
    written = load_job(file)
    assert written.workload.model.layers == answer["answer"]
    assert simulate_job(written).step_time == answer["plan"]["step_time_s"]


def test_the_command_says_on_how_few_gpus(dtsim: Dtsim) -> None:
    code, out, _ = dtsim(*COMMAND, "--fewest", "gpus")
    assert code == 0
    assert "fewest gpus: 1 GPUs" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "one question"),
        (("--fewest", "gpus", "--largest", "batch"), "one question"),
        (("--fewest", "nodes"), "expected gpus"),
        (("--largest", "beauty"), "batch, sequence, layers, model"),
        (("--largest", "batch", "--range", "microbatch_size=1,2"), "finds plan.microbatch_size itself"),
        (("--fewest", "gpus", "--fix", "cluster.gpus=4"), "finds cluster.gpus itself"),
        (("--largest", "batch", "--fit-probability", "2"), "between 0"),
        (("--largest", "batch", "--range", "zero=9"), "zero"),
    ],
)
def test_bad_words_end_with_2_and_say_why(dtsim: Dtsim, words: tuple[str, ...], told: str) -> None:
    code, out, error = dtsim(*COMMAND, *words)
    assert (code, out) == (2, "")
    assert told in error


def test_the_whole_of_a_cluster_is_tried_where_its_nodes_are_no_power_of_two() -> None:
    assert worlds(job_from_names("gpt3_6_7b", "gb200_nvl72"), 72) == (1, 2, 4, 8, 16, 32, 64, 72)
    assert worlds(job_from_names("gpt3_6_7b", "dgx_a100"), 100)[-2:] == (64, 96)


def test_a_plan_that_fits_but_not_surely_is_not_told_as_one_that_does_not_fit() -> None:
    likely = job_from_names("gpt3_6_7b", "dgx_a100_40", ["cluster.gpus=8", "workload.global_batch_size=8"])
    said = fewest_gpus(likely, {**RANGES, "cluster.gpus": (8,)}, {}, probability=0.99999).refusal
    assert "fits with" in said
    assert "--fit-probability" in said
