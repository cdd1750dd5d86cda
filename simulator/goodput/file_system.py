"""The part of a file system that a job gets while its neighbours write their checkpoints.

Max-min fair among machines, as on the uplinks (`simulator.hardware.neighbours`): this job asks for all there is, a neighbour that
checkpoints for its bytes over its interval, one whose interval is "auto" for all there is, at any time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.errors import SpecError
from simulator.goodput.checkpoints import checkpoint_bytes
from simulator.hardware.neighbours import rate_beside
from simulator.job import Job
from simulator.studies.neighbours import Beside

__all__ = ["sharing_files"]


def sharing_files(job: Job, beside: Beside) -> Job:
    """Return the job with its `checkpoint.share` as its neighbours leave it.

    Raises:
        SpecError: the share is given too.
    """
    checkpoint = job.checkpoint
    if checkpoint is None:
        return job
    if "share" in checkpoint.model_fields_set:
        raise SpecError("checkpoint.share and neighbours: the share follows from the neighbours. Leave out one of them")
    if checkpoint.bandwidth is None:
        note = "checkpoint.bandwidth is not given, so neighbours do not slow checkpoints"
        return replace(job, assumptions=(*job.assumptions, note))
    writers = []
    for other in beside.others:
        table = other.job.checkpoint
        if table is None:
            continue
        every = table.to_files_every or table.interval
        size = checkpoint_bytes(other.job, other.prediction)
        each = math.inf if every == "auto" else size / float(every) / other.job.cluster.nodes
        writers.append((other.job.cluster.nodes, min(each, checkpoint.bandwidth)))
    nodes = job.cluster.nodes
    share = min(
        1.0, nodes * rate_beside(checkpoint.bandwidth, nodes, checkpoint.bandwidth, writers) / checkpoint.bandwidth
    )
    note = f"checkpoint.share = {share:.3g}: {len(writers)} of {len(beside.others)} neighbours write checkpoints too"
    return replace(
        job,
        checkpoint=checkpoint.model_copy(update={"share": share}),
        assumptions=(*job.assumptions, note),
    )
