"""Training over several sites that a wide-area network joins, as a job describes it.

[sites]
count = 4                   # each with the job's whole cluster, plan and batch
bandwidth = "100 Gb/s"      # of a site's way out, one direction
latency = "30 ms"           # between two sites
local_steps = 500           # between two exchanges: local SGD, DiLoCo; 1 = gradients at every step
fragments = 8               # parts of the weights that are exchanged in turn (streaming DiLoCo); 1 = all at once
overlap_steps = 5           # for which a fragment may be under way while training goes on
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simulator.specs import Spec
from simulator.units import BytesPerSecond, Seconds

__all__ = ["Sites"]


class Sites(Spec):
    """The table [sites].

    Args:
        count: sites; the global batch of the job is that of one of them.
        bandwidth: of a site to the others, one direction [B/s].
        latency: of a message between two sites [s].
        local_steps: steps between two exchanges of the same weight.
        fragments: parts of the weights, exchanged one after another, evenly over the local steps.
        overlap_steps: steps that a fragment may take beside training; what it takes longer, training waits.
        bytes_per_weight: as exchanged [B]: 4 in fp32, 2 in bf16, 0.5 in 4 bits.
    """

    count: Annotated[int, Field(ge=2, le=1000)]
    bandwidth: BytesPerSecond
    latency: Seconds = 0.0
    local_steps: Annotated[int, Field(ge=1, le=10**6)] = 1
    fragments: Annotated[int, Field(ge=1, le=10**4)] = 1
    overlap_steps: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    bytes_per_weight: Annotated[float, Field(gt=0, le=8)] = 4.0

    @model_validator(mode="after")
    def _check(self) -> Sites:
        if self.fragments > self.local_steps:
            raise ValueError(
                f"fragments = {self.fragments} are exchanged in turn over local_steps = {self.local_steps}: at most as many"
            )
        if self.overlap_steps > self.local_steps:
            raise ValueError(
                f"overlap_steps = {self.overlap_steps:g}: a fragment is exchanged anew after local_steps = {self.local_steps}"
            )
        return self
