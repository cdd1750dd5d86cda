"""What a checkpoint weighs and costs, and how far apart checkpoints should be.

    bytes    what all GPUs and hosts hold of weights and optimizer states, one copy of each
    write    the slower of: all bytes over the job's share of the file system, a machine's part over its own way there
    copy     a GPU's part over its link to the host's memory
    near     a machine's part over its network cards to a neighbour

All machines share the writing, also those that hold the same state (as sharded checkpoint libraries do); reading back is as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.errors import SpecError
from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.cluster import Cluster
from simulator.hardware.host import load_host_coefficients
from simulator.job import Job
from simulator.options.option import chosen
from simulator.plan.framework import load_framework
from simulator.program.program import CATEGORIES
from simulator.report.prediction import Prediction
from simulator.workload.optimizers import OPTIMIZERS, optimizer_cost

__all__ = [
    "CheckpointCost",
    "checkpoint_bytes",
    "checkpoint_cost",
    "daly_interval",
    "daly_makespan",
    "exact_interval",
    "young_interval",
]

_MASTER = 4.0
_KEPT = [CATEGORIES.index("weights"), CATEGORIES.index("optimizer_states")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """Seconds of a checkpoint.

    Args:
        bytes: all of it.
        stall: training stands.
        write: from then until it is safe on the file system, beside training.
        near: from then until it is safe at a neighbour; < 0 where nothing goes there.
        load: reading it back.
    """

    bytes: float
    stall: float
    write: float
    near: float
    load: float

    @property
    def delay(self) -> float:
        """From the beginning until a single failure cannot undo it [s]."""
        return self.stall + (self.near if self.near >= 0.0 else self.write)


def checkpoint_bytes(job: Job, prediction: Prediction) -> float:
    """Return the bytes of a checkpoint: each weight as it is trained with, its fp32 master and its optimizer state, once.

    Frozen weights are in none.  Where the GPUs hold less than that together (weights sharded and kept in fp32 only), what they hold.

    >>> from simulator.job import load_job
    >>> from simulator.simulation import simulate_job
    >>> job = load_job("gpt3_175b")
    >>> round(checkpoint_bytes(job, simulate_job(job)) / job.workload.model.parameters, 1)
    14.0
    """
    numbers = job.workload.numbers
    master = _MASTER if numbers.master_weights else 0.0
    halves = chosen(job.plan, load_framework(job.plan.framework), "splits_master_weights")
    if halves and master and numbers.compute == "bf16":
        master -= numbers.element
    model, name = job.workload.model, job.workload.optimizer
    tables = model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)
    trained = model.trained_parameters
    others = tables / trained if not model.lora_rank and OPTIMIZERS.get(name).others else 0.0
    state = optimizer_cost(name, numbers.element, 4, numbers.master_weights, others, job.plan.moment_bytes).state
    full = trained * (numbers.element + master + state)
    program = prediction.program
    on_gpus = sum(
        weight * float(effect.by_category()[_KEPT].sum())
        for weight, effect in zip(program.rank_weight, program.resident, strict=True)
    )
    on_hosts = sum(
        weight * float(effect.by_category()[_KEPT].sum())
        for resident in (program.host_resident, program.nvme_resident)
        for weight, effect in zip(program.rank_weight, resident, strict=False)
    )
    return float(min(full, on_gpus + on_hosts))


def checkpoint_cost(checkpoint: Checkpoint, cluster: Cluster, size: float) -> CheckpointCost:
    """Return what a checkpoint of `size` bytes costs on a cluster.

    Raises:
        SpecError: a time is "auto" and the bandwidth that it follows from is not known.
    """
    part = size / cluster.nodes
    own = checkpoint.node_bandwidth or (cluster.network.bandwidth * cluster.node.nics if cluster.network else None)

    to_files = None
    if checkpoint.bandwidth is not None:
        to_files = max(size / (checkpoint.bandwidth * checkpoint.share), part / own if own else 0.0)
    rare = checkpoint.to_files_every
    write = checkpoint.write
    if write == "auto" and rare is None:
        if to_files is None:
            raise SpecError(
                'checkpoint.write = "auto" follows from the file system\'s bandwidth, which is not given. Way out: '
                'checkpoint.bandwidth = "2 TB/s" (of all machines together), or checkpoint.write = "60 s"'
            )
        write = to_files
    copy = checkpoint.copy_time
    if copy == "auto":
        reached = cluster.host_link.bandwidth * load_host_coefficients().copy_fraction
        copy = size / cluster.world_size * cluster.node.gpus_per_host_link / reached
    if checkpoint.mode == "synchronous":
        return CheckpointCost(bytes=size, stall=float(write), write=0.0, near=-1.0, load=float(write))
    if rare is None:
        return CheckpointCost(bytes=size, stall=float(copy), write=float(write), near=-1.0, load=float(write))
    if write == "auto":
        if cluster.network is None:
            raise SpecError(
                f'checkpoint.mode = "memory" copies to a neighbour, but cluster {cluster.name!r} has no network'
            )
        write = part * (checkpoint.copies - 1) / (cluster.network.bandwidth * cluster.node.nics)
    far = checkpoint.persist_write
    if far == "auto":
        far = rare if to_files is None else to_files
    return CheckpointCost(bytes=size, stall=float(copy), write=float(far), near=float(write), load=float(copy))


def young_interval(delay: float, mtbf: float) -> float:
    """Return Young's interval between checkpoints [s]: sqrt(2 delay mtbf) (Communications of the ACM 17(9), 1974)."""
    return math.sqrt(2.0 * delay * mtbf)


def daly_interval(delay: float, mtbf: float) -> float:
    """Return Daly's higher-order estimate of the best interval [s] (Future Generation Computer Systems 22, 2006, equation 37).

    >>> round(daly_interval(60.0, 36000.0))
    2039
    """
    if delay >= 2.0 * mtbf:
        return mtbf
    ratio = delay / (2.0 * mtbf)
    return math.sqrt(2.0 * delay * mtbf) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - delay


def exact_interval(delay: float, mtbf: float) -> float:
    """Return the interval at which Daly's full model is least [s]: mtbf (1 + W(-exp(-1 - delay / mtbf))).

    From d/dt [(exp((t + delay) / mtbf) - 1) / t] = 0; W is Lambert's function.
    """
    from scipy.special import lambertw

    return float(mtbf * (1.0 + lambertw(-math.exp(-1.0 - delay / mtbf)).real))


def daly_makespan(work: float, interval: float, delay: float, restart: float, mtbf: float) -> float:
    """Return the expected wall time of a run with checkpoints every `interval` of work [s] (Daly's full model, equation 20).

    Failures are exponential and come at any time, also while the job restarts: mtbf e^(restart / mtbf) (e^((interval + delay) /
    mtbf) - 1) for every interval of work.
    """
    each = mtbf * math.exp(restart / mtbf) * math.expm1((interval + delay) / mtbf)
    return each * work / interval
