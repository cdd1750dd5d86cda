"""Published figures of long runs, and what the simulation says of each: `python -m tests.validation.published_goodput` prints the table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.energy.step_power import step_power
from simulator.goodput.answer import Goodput
from simulator.goodput.checkpoints import checkpoint_bytes
from simulator.goodput.describe import count_of
from simulator.goodput.sampled import sample_runs
from simulator.goodput.study import goodput
from simulator.hardware.cluster import load_cluster
from simulator.hardware.reliability import load_fleet
from simulator.job import Job, job_from_names, load_job
from simulator.simulation import simulate_job
from tests.goodput_models import HOUR, cause, model

TABLE = Path(__file__).parents[1] / "data" / "goodput_published.csv"
DAY = 24 * HOUR


@dataclass(frozen=True)
class Row:
    """One published figure."""

    id: str
    source: str
    system: str
    quantity: str
    published: float
    unit: str
    bound: str
    predicted: float
    within: float | None
    left_open: str

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted / self.published - 1.0


def llama3(*settings: str) -> Goodput:
    """Llama 3 405B for 54 days with its own fleet's record."""
    plain = (
        'reliability.fleet="meta_llama3_2024"',
        'reliability.detection="1 min"',
        'reliability.restart="10 min"',
        'checkpoint.bandwidth="2 TB/s"',
    )
    job = load_job("llama3_405b", (*plain, *settings))
    return goodput(job, span=54 * DAY, samples=200, levers=False)


def every(fleet: str, gpus: int) -> float:
    """Hours between failures that stop a job of so many GPUs, from a fleet's rates."""
    cluster = load_cluster("dgx_a100", gpus)
    return 1.0 / sum(count_of(f, cluster) / f.mtbf for f in load_fleet(fleet).failures) / HOUR


def long_run(hours: float, restart: float, interval: float, stall: float) -> float:
    """Useful part of the time in percent [%]."""
    run = model(cause(1000 * hours * HOUR), work=5000 * HOUR, interval=interval, stall=stall, restart=restart)
    return 100.0 * float(sample_runs(run, 50)[0].goodput.mean())


def opt_longest() -> float:
    """Longest stretch between failures of two weeks, mean over many, in days."""
    gaps = np.random.default_rng(0).exponential(every("metaseq_opt", 1024) / 24, (4000, 100))
    ends = np.cumsum(gaps, axis=1)
    return float(np.where(ends - gaps < 14.0, np.minimum(gaps, 14.0 - (ends - gaps)), 0.0).max(axis=1).mean())


def per_chip(job: Job) -> float:
    """Power of the machines of a job while it trains, per GPU [W]."""
    return step_power(simulate_job(job), job.cluster, job.power).machines / job.cluster.world_size


def predictions() -> dict[str, Callable[[], float]]:
    """What each key of the table's column `predicted_by` means."""
    found = llama3()
    stops = llama3('reliability.maintenance={every="27.5 h", length="15 min"}')
    bloom = job_from_names("bloom_176b", "jean_zay_a100", BLOOM)
    megascale = every("meta_llama3_2024", 10_000)
    h100 = load_job("llama3_8b_fsdp_8xh100", ["plan.attention=sdpa_2025"])  # measured in 2024
    return {
        "llama3_interruptions": lambda: sum(found.interruptions.values()),
        "llama3_gpu": lambda: found.interruptions["gpu"],
        "llama3_mtbf": lambda: 54 * 24 / sum(found.interruptions.values()),
        "llama3_effective": lambda: 100 * float(stops.runs.goodput.mean()),
        "llama3_energy": lambda: found.to_dict()["energy_j"] / 3.6e6 / found.gpu_hours,
        "megascale_restarts": lambda: 28 * 24 / megascale,
        "megascale_effective": lambda: long_run(megascale, 25 * 60.0, 60.0, 0.0),
        "bloom_bytes": lambda: checkpoint_bytes(bloom, simulate_job(bloom)) / 1e12,
        "bloom_overhead": lambda: (
            100 * (1 - float(sample_runs(model(work=300 * HOUR, interval=3 * HOUR, stall=40.0), 1)[0].goodput[0]))
        ),
        "bloom_failures": lambda: 7 * 24 / every("bigscience_jean_zay", 384),
        "opt_machines": lambda: 24 / every("metaseq_opt", 1024),
        "opt_longest": opt_longest,
        "rsc1_16384": lambda: every("meta_rsc1", 16_384),
        "rsc1_131072": lambda: every("meta_rsc1", 131_072),
        "rsc1_1024": lambda: every("meta_rsc1", 1024),
        "rsc1_8": lambda: every("meta_rsc1", 8),
        "rsc1_ettr": lambda: long_run(every("meta_rsc1", 2048), 300.0, HOUR, 30.0),
        "v100_power": lambda: per_chip(job_from_names("gpt3_175b", "v100_dgx1", V100)),
        "tpu3_power": lambda: per_chip(load_job("gopher_4096xtpuv3")),
        "tpu4_power": lambda: per_chip(load_job("glam_1024xtpuv4")),
        "node_power": lambda: step_power(simulate_job(h100), h100.cluster, h100.power).machines / 1e3,
    }


V100 = (
    "cluster.gpus=1024",
    "plan.tensor_parallel=8",
    "plan.pipeline_parallel=16",
    "workload.global_batch_size=512",
    'workload.precision="fp16"',
    'plan.recompute="full"',
    "plan.zero_stage=1",
    'plan.framework="megatron_lm_2020"',
    'plan.schedule="one_f_one_b"',
)
BLOOM = (
    "cluster.gpus=384",
    "plan.tensor_parallel=4",
    "plan.pipeline_parallel=12",
    "plan.data_parallel=8",
    "plan.microbatch_size=2",
    "workload.global_batch_size=2048",
    "plan.zero_stage=1",
    'plan.framework="bigscience_bf16"',
    'plan.recompute="full"',
    'plan.schedule="one_f_one_b"',
)


def rows() -> list[Row]:
    """The table with its predictions."""
    known = predictions()
    with TABLE.open(newline="") as file:
        return [
            Row(
                id=line["id"],
                source=line["source"],
                system=line["system"],
                quantity=line["quantity"],
                published=float(line["published"]),
                unit=line["unit"],
                bound=line["bound"],
                predicted=known[line["predicted_by"]](),
                within=float(line["within"]) if line["within"] else None,
                left_open=line["left_open"],
            )
            for line in csv.DictReader(file)
        ]


def markdown(found: list[Row]) -> str:
    """The table as docs/goodput.md shows it."""
    lines = [
        "| system | quantity | published | predicted | error | what is left open |",
        "|---|---|---:|---:|---:|---|",
    ]
    system = ""
    for row in found:
        system = system if row.system == "the same" else row.system
        sign = "> " if row.bound else ""
        error = ("holds" if row.predicted > row.published else "fails") if row.bound else f"{100 * row.error:+.0f} %"
        lines.append(
            f"| {system} | {row.quantity} | {sign}{row.published:g} {row.unit} | {row.predicted:.3g} | {error} | {row.left_open} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(rows()))
