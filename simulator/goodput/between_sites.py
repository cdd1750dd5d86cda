"""What the exchange between sites costs a step: DiLoCo, streaming DiLoCo, local SGD, a hierarchical all_reduce at every step.

Inside a site replicas reduce as the plan says; every GPU then holds its part of what its site has to say, and the parts of all GPUs
share the site's way out in a ring over the sites: 2 (s - 1) / s of the bytes, 2 (s - 1) messages one after another.

    fragment    seconds = 2 (s - 1) / s x weights x bytes per weight / fragments / bandwidth + 2 (s - 1) x latency
    training waits for each what it takes beyond `overlap_steps`; and the way out carries all fragments in the local steps

Sources: Douillard et al., DiLoCo (arXiv 2311.08105): k inner steps, then an outer step on the mean of the changes; Douillard et al.,
Streaming DiLoCo (arXiv 2501.18512): fragments in turn, overlapped, in 4 bits.  How many more tokens such training needs for the
same loss is not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.hardware.sites import Sites
from simulator.report.table import Section
from simulator.units import show

__all__ = ["OUTER_BYTES", "Exchange", "exchange_between"]

OUTER_BYTES = 8.0
"""Bytes per weight that an outer optimizer keeps: the weights of the last exchange and a momentum, in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The exchange between sites.

    Args:
        sites: as described.
        bytes_per_step: that leave a site, mean over steps [B].
        fragment: seconds of one fragment.
        exposed: seconds by which a step is longer, mean over steps.
        step: mean seconds of a step with it.
    """

    sites: Sites
    bytes_per_step: float
    fragment: float
    exposed: float
    step: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "count": self.sites.count,
            "local_steps": self.sites.local_steps,
            "fragments": self.sites.fragments,
            "bytes_per_step": self.bytes_per_step,
            "fragment_s": self.fragment,
            "exposed_per_step_s": self.exposed,
            "step_time_s": self.step,
        }

    def section(self) -> Section:
        """Return it to read."""
        every = "every step" if self.sites.local_steps == 1 else f"every {self.sites.local_steps:,} steps"
        parts = f" in {self.sites.fragments} fragments" if self.sites.fragments > 1 else ""
        return Section(
            title=f"{self.sites.count} sites exchange {every}{parts}: {show(self.exposed, 's')} more per step",
            lines=(
                f"{show(self.bytes_per_step, 'B')} per step leave a site; one exchange takes {show(self.fragment, 's')}",
                "how many more tokens such training needs for the same loss is not predicted",
            ),
        )


def exchange_between(sites: Sites, weights: float, step: float) -> Exchange:
    """Return what the exchange of `weights` [count] adds to steps of `step` seconds.

    >>> plain = Sites(count=2, bandwidth=1e9, local_steps=100)
    >>> round(exchange_between(plain, 1e9, 1.0).exposed, 6)
    0.04
    """
    others = sites.count - 1
    size = 2.0 * others / sites.count * weights * sites.bytes_per_weight
    fragment = size / sites.fragments / sites.bandwidth + 2.0 * others * sites.latency
    waits = sites.fragments * max(0.0, fragment - sites.overlap_steps * step) / sites.local_steps
    carried = sites.fragments * fragment / sites.local_steps
    mean = max(step + waits, carried)
    return Exchange(
        sites=sites,
        bytes_per_step=size / sites.local_steps,
        fragment=fragment,
        exposed=mean - step,
        step=mean,
    )
