"""One kind of connection: between GPUs, to the host, or a NIC's port to the network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.specs import NamedSpec, load_named
from simulator.units import BytesPerSecond, Seconds

__all__ = ["BETWEEN_GPUS", "Link", "load_link"]

BETWEEN_GPUS = ("nvlink", "pcie", "xgmi", "ici", "hccs", "xe_link", "neuronlink", "roce")
"""Technologies that can connect the GPUs of a node; what collectives attain of each stands in nccl_prior.toml."""


class Link(NamedSpec):
    """A link's data sheet.

    `bandwidth` [B/s] is ONE direction of one unit: all NVLinks of a GPU together, one PCIe slot, one port of a NIC.
    `latency` [s] is one hop.  Both directions go at once at full bandwidth.  `switched`: a GPU reaches every
    peer with its whole bandwidth (NVSwitch, network); otherwise each peer has its own part of it.  `torus`: dimensions of
    the torus that such links make of all chips, so that what goes far takes the links of those between; 0 = none.
    """

    technology: Literal[
        "nvlink",
        "pcie",
        "infiniband",
        "roce",
        "efa",
        "ethernet",
        "tcpx",
        "tcpxo",
        "aries",
        "omnipath",
        "slingshot",
        "xgmi",
        "c2c",
        "ici",
        "hccs",
        "xe_link",
        "neuronlink",
    ]
    bandwidth: BytesPerSecond
    latency: Seconds
    switched: bool
    torus: Annotated[int, Field(ge=0, le=6)] = 0


def load_link(name: str) -> Link:
    """Return the link of this name, alias or file.

    Raises:
        SpecError: no such link, or its file is wrong.

    >>> load_link("infiniband_ndr").bandwidth
    50000000000.0
    """
    return load_named("links", name, Link)
