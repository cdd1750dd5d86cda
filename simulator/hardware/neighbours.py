"""Other jobs on the same cluster: where their nodes lie beside this job's, and what they leave of shared links.

[[neighbours]]
job = "llama3_8b"                    # a job's name or file; it runs on this cluster in place of its own
gpus = 256
placement = "interleaved"            # its nodes between this job's; "packed" = on pods of its own

A pod's nodes share its leaves' uplinks to the spine: nodes x bandwidth of a node / oversubscription.  Packed jobs have pods to
themselves and share none.  Interleaved jobs have, in every pod, nodes in proportion to their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simulator.errors import SpecError
from simulator.hardware.fair_rates import fair_rates
from simulator.specs import Name, Spec

__all__ = ["Neighbour", "nodes_in_each_pod", "rate_beside"]


class Neighbour(Spec):
    """One entry of [[neighbours]].

    Args:
        job: name or file of the other job.
        gpus: that it has.
        placement: "packed": whole pods of its own; "interleaved": its nodes between this job's, in the same pods.
    """

    job: Name
    gpus: Annotated[int, Field(ge=1, le=10**7)]
    placement: Literal["packed", "interleaved"] = "packed"


def nodes_in_each_pod(nodes: Sequence[int], nodes_per_pod: int, nodes_per_rack: int = 1) -> list[int]:
    """Return how many nodes of a pod each interleaved job has: whole racks, in proportion to the jobs' sizes, the rest idle.

    Raises:
        SpecError: a job is so small beside the others that not every pod has some of it.

    >>> nodes_in_each_pod([8, 24], 20)
    [5, 15]
    """
    racks = nodes_per_pod // nodes_per_rack
    found = [racks * count // sum(nodes) * nodes_per_rack for count in nodes]
    if not all(found):
        raise SpecError(
            f"interleaved jobs of {', '.join(map(str, nodes))} nodes cannot all have some of every pod of {nodes_per_pod}. "
            'Way out: placement = "packed", or sizes that are more alike'
        )
    return found


def rate_beside(capacity: float, own: int, limit: float, others: Sequence[tuple[int, float]]) -> float:
    """Return what one node of a job gets of a shared link, max-min fair among nodes, when it asks for all it can [B/s].

    Args:
        capacity: of the link [B/s].
        own: nodes of the job on it.
        limit: what one of them can send [B/s].
        others: (nodes, what each asks for [B/s]) of the other jobs.

    >>> rate_beside(100.0, 5, 50.0, [(5, 4.0)]), rate_beside(100.0, 5, 50.0, [(5, 40.0)])
    (16.0, 10.0)
    """
    wanted = np.concatenate([np.full(own, limit), *(np.full(nodes, demand) for nodes, demand in others)])
    flows = np.arange(len(wanted))
    links = np.concatenate([np.zeros(len(flows), np.int64), flows + 1])
    return float(fair_rates(np.concatenate([[capacity], wanted]), np.tile(flows, 2), links, len(flows))[0])
