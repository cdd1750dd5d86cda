"""How a run saves its state, as a job or a cluster's file describes it.

[checkpoint]
interval = "30 min"                  # of training between two; "auto" = the best, found by simulation
write = "auto"                       # until it is safe; "auto" = bytes over bandwidth
mode = "asynchronous"                # copy to the host, write while training goes on
bandwidth = "2 TB/s"                 # of the file system, for all machines of the job together
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.specs import Spec
from simulator.units import BytesPerSecond, Seconds

__all__ = ["Checkpoint"]


class Checkpoint(Spec):
    """The table [checkpoint].

    Args:
        interval: training time between two checkpoints [s], taken at the nearest whole step, or "auto".
        write: until a checkpoint is safe [s]; "auto" = its bytes over the bandwidth there is.
        mode: "synchronous": training stands while it is written; "asynchronous": it stands for the copy into the host's memory
            only; "memory": the copy goes on to a neighbour's host, and only every `persist` to the file system.
        copy_time: for which training stands where it does not stand for all of `write` [s]; "auto" = bytes of a GPU over its host link.
        bandwidth: of the file system, all machines together, as writing sees it [B/s]; reading is taken to be as fast.
        node_bandwidth: of one machine to the file system [B/s]; by default that of its network cards.
        share: part of the file system's bandwidth that this job gets beside others.
        interference: part of its pace that training loses while a checkpoint is written in the background.
        persist: of mode "memory": training time between two that also go to the file system [s]; by default three hours.
        persist_write: how long that takes in the background [s]; "auto" = its bytes over the bandwidth, or, where that is not known, all
            the time until the next.
        copies: of mode "memory": machines that hold the same state; a failure that takes as many away goes back to the file system.
    """

    interval: Seconds | Literal["auto"] = "auto"
    write: Seconds | Literal["auto"] = "auto"
    mode: Literal["synchronous", "asynchronous", "memory"] = "synchronous"
    copy_time: Seconds | Literal["auto"] = "auto"
    bandwidth: BytesPerSecond | None = None
    node_bandwidth: BytesPerSecond | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    interference: Annotated[float, Field(ge=0, lt=1)] = 0.0
    persist: Seconds | None = None
    persist_write: Seconds | Literal["auto"] = "auto"
    copies: Annotated[int, Field(ge=2, le=64)] = 2
    source: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Checkpoint:
        if self.interval != "auto" and self.interval <= 0:
            raise ValueError("interval must be above zero")
        if self.mode == "synchronous" and (self.interference or self.copy_time != "auto"):
            raise ValueError('copy_time and interference are of modes that write beside training, not of "synchronous"')
        if self.mode != "memory" and self.persist is not None:
            raise ValueError('persist (how often the file system gets one) is of mode = "memory"')
        if self.persist is not None and self.persist <= 0:
            raise ValueError("persist must be above zero")
        return self

    @property
    def to_files_every(self) -> float | None:
        """Training time between two that go to the file system beside those in memory [s]; None where all do."""
        if self.mode != "memory":
            return None
        return _PERSIST if self.persist is None else self.persist


_PERSIST = 3 * 3600.0
"""As often as BLOOM's run saved to its file system, which Gemini (Wang et al., SOSP 2023) takes for its copies there."""
