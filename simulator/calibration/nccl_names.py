"""What people call GPUs, links, networks and rented machines in their logs -> the wires that are meant.

Texts are matched by what they contain, so that new ones need no change here.  Machines of clouds, whose names say
neither GPU nor network, stand in hardware_specs/instances.toml.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from pydantic import Field

from simulator.errors import CalibrationError
from simulator.hardware.link import load_link
from simulator.specs import Count, Name, Spec, data_roots, load_spec
from simulator.units import BytesPerSecond, parse

__all__ = [
    "NONE",
    "Instance",
    "architecture_of",
    "find_instance",
    "gpu_in",
    "link_of",
    "network_of",
    "rate_of",
    "rate_of_card",
    "usual_link",
]

_ARCHITECTURES = (
    (r"rtx ?pro|rtx ?50|6000d|\bb[123]00|g?b[23]00|\bgb10\b", "blackwell"),
    (r"rtx ?[24568]000 ?ada|rtx ?40|4090|l40|\bl4\b|\bl20\b|\bl2\b", "ada"),
    (r"gh200|grace.?hopper|h[128]00|h20\b|h20[- ]", "hopper"),
    (r"a[138]00(?!\d)|a30\b|a10g?\b|a16\b|a40|a[2456]000|\ba2\b(?!-)|rtx ?30|3090|drive", "ampere"),
    (r"v100|titan ?v\b|gv100", "volta"),
    (r"p100|p40\b|p4\b|gtx ?10|titan ?x", "pascal"),
    (r"\bt4g?\b|rtx ?20|2080|quadro rtx|titan ?rtx", "turing"),
    (r"mi35|mi4", "cdna4"),
    (r"mi3", "cdna3"),
    (r"mi2|mi1", "cdna2"),
)
_NO_NCCL = (
    (r"gaudi|\bhl-?[23]", "Intel Gaudi talks with HCCL over its own Ethernet"),
    (r"ascend|910b", "Huawei Ascend talks with HCCL"),
    (r"tpu", "Google TPUs talk through XLA"),
    (r"trainium|inferentia|\btrn[123]|\binf[12]", "AWS Trainium talks through its Neuron runtime"),
    (r"max ?1[15]50|ponte ?vecchio", "Intel GPU Max talks with oneCCL"),
)
_BY_LINK = (
    (r"nvlink ?5|nvl\d\d", "blackwell"),
    (r"nvlink ?4", "hopper"),
    (r"nvlink ?3", "ampere"),
    (r"nvlink ?[12]", "volta"),
    (r"xgmi|infinity", "cdna3"),
    (r"pcie|pci|shm", "ada"),
)
"""Generation of GPU -> by its name; of a GPU of unknown name by the link that it has."""
_INSIDE = (
    (r"gb[23]00", "nvlink5_nvl72"),
    (r"gh200|grace.?hopper", "nvlink4_mesh"),
    (r"b[123]00", "nvlink5_nvswitch"),
    (r"h[12]00.?nvl|h[12]00.*pci", "pcie5"),
    (
        r"pcie|l40|\bl4\b|\bl20\b|\bl2\b|a10g?\b|a30\b|a40\b|\ba16\b|a[2456]000|\bt4g?\b|rtx pro|6000d|[24568]000 ada|quadro"
        r"|p40\b|titan ?v\b|gv100|\ba2\b(?!-)",
        "pcie4",
    ),
    (r"h800", "nvlink4_h800"),
    (r"h20\b|h20[- ]|h[12]00", "nvlink4_nvswitch"),
    (r"a800", "nvlink3_a800"),
    (r"a100", "nvlink3_nvswitch"),
    (r"v100.*sxm3|v100.*dgx.?2|dgx.?2", "nvlink2_nvswitch"),
    (r"p100.*(?:sxm2|dgx)", "nvlink1_cubemesh"),
    (r"v100", "nvlink2_cubemesh"),
    (r"gtx ?10|p100|p4\b", "pcie3"),
    (r"rtx ?[2345]0|[2345]0[789]0|geforce|titan", "pcie_shm"),
    (r"mi[1234]\d\d", "xgmi"),
)
"""Link inside a node that a GPU is usually sold with, by its name; the first that matches."""
_NETWORKS = (
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"efa|\bsrd\b|libfabric.*aws|aws.?ofi", "efa"),
    (
        r"roce|spectrum|rdma.*ethernet|ethernet.*rdma|\bgib\b|erdma|thor ?2?\b|pollara|pensando|ainic|ultra ethernet",
        "roce",
    ),
    (r"^ib|\bib\b|infiniband|\b[xnhef]dr|quantum|mellanox|mlx5|connectx|\bcx ?-?\d|bluefield|\bbf-?3", "infiniband"),
    (r"slingshot|cassini|\bss-?1[01]|\bcxi\b", "slingshot"),
    (r"opa|omni", "omnipath"),
    (r"rdma|verbs", "roce"),
    (r"tcp|socket|ethernet|gbe\b|\beth|vpc|\bena\b|gvnic", "ethernet"),
)
_CARDS = (
    (r"xdr", "800 Gb/s"),
    (r"ndr ?200", "200 Gb/s"),
    (r"ndr", "400 Gb/s"),
    (r"hdr ?100", "100 Gb/s"),
    (r"hdr", "200 Gb/s"),
    (r"edr|omni|opa", "100 Gb/s"),
    (r"fdr", "56 Gb/s"),
    (r"slingshot ?10|\bss-?10", "100 Gb/s"),
    (r"slingshot|cassini|\bss-?11|\bcxi\b|tcpxo|fastrak", "200 Gb/s"),
    (r"tcpx", "100 Gb/s"),
)
"""A card's rate, by the network's name; of TCPX and TCPXO that of one GPU."""
_USUAL_CARDS = {
    "hopper": "400 Gb/s",
    "blackwell": "400 Gb/s",
    "cdna3": "400 Gb/s",
    "cdna4": "400 Gb/s",
    "ampere": "200 Gb/s",
}
_USUAL_EFA = {"ampere": "50 Gb/s", "volta": "12.5 Gb/s", "turing": "12.5 Gb/s", "ada": "50 Gb/s"}
"""Network per GPU of machines whose index does not say it, by generation; others, and plain Ethernet, have 100 Gb/s;
EFA by the machines that AWS rents: p4d, p3dn, g4dn, g6e, and 400 Gb/s on those since."""
_NVLINK_OF = {"pascal": "1", "volta": "2", "turing": "2", "ampere": "3", "hopper": "4", "blackwell": "5"}
"""Generation of NVLink, by that of the GPU."""
_XGMI = {"cdna2": "xgmi2", "cdna4": "xgmi4"}
"""Links of AMD's GPUs, by generation; of others xgmi3."""
_BRIDGED = (
    (r"a40\b|a[456]000|a[45]500|3090|a10\b", "nvlink3_bridge"),
    (r"a30\b", "nvlink3_a30"),
    (r"2080|rtx ?[5-8]000(?! ?ada)|titan ?rtx|quadro rtx", "nvlink2_bridge"),
)
"""NVLink that a bridge puts between cards of fewer links than their generation's largest, by the card's name."""
_SEVERAL = re.compile(r"\b(\d+) ?[x*] ?(\d+(?:\.\d+)?)")
_WHOLE = re.compile(r"(\d+(?:\.\d+)?) ?(t(?=b|\b)|g(?=b(?:it)?/?p?s?(?: ?/ ?| per )(?:node|host|server|machine)))")
"""The cards of a whole machine: 8x400, 3.2 Tb/s, 3200 Gb/s per node."""
NONE = ("none", "", "-", "n/a", "na", "no", "single node", "single-node", "intra", "local", "nan", "null")
"""How tables say that there is none."""


class Instance(Spec):
    """A machine that a cloud rents, or a known system: its GPU, how many, and the network of each GPU [B/s]."""

    words: Name
    gpu: Name
    gpus: Count
    network: str
    nic: BytesPerSecond
    source: Name


class _Instances(Spec):
    instance: list[Instance] = Field(min_length=1)


@functools.lru_cache(maxsize=1)
def _instances() -> tuple[Instance, ...]:
    return tuple(load_spec(data_roots()[-1] / "hardware_specs" / "instances.toml", _Instances).instance)


def find_instance(texts: Iterable[str]) -> Instance | None:
    """Return the rented machine that a text names, None for none.

    >>> find_instance(["Azure ND H100 v5"]).network, find_instance(["p4d.24xlarge"]).gpu
    ('infiniband', 'A100')
    """
    lowered = [text.lower().replace("_", " ") for text in texts]
    return next((one for one in _instances() if any(re.search(one.words, text) for text in lowered)), None)


def gpu_in(text: str) -> str:
    """Return a text that names a GPU: itself, or what is in the rented machine that it names."""
    if any(re.search(pattern, text.lower()) for pattern, _ in _ARCHITECTURES):
        return text
    found = find_instance([text])
    return found.gpu if found else text


def usual_link(gpu: str) -> str:
    """Return the link inside a node that a GPU is usually sold with; "" for an unknown one.

    >>> usual_link("NVIDIA H100 80GB HBM3"), usual_link("NVIDIA H100 PCIe"), usual_link("abacus")
    ('nvlink4_nvswitch', 'pcie5', '')
    """
    return next((link for pattern, link in _INSIDE if re.search(pattern, gpu_in(gpu).lower())), "")


def architecture_of(gpu: str, intra: str) -> str:
    """Return the generation of a GPU by its name, else by its link.

    Raises:
        CalibrationError: neither tells, or it is an accelerator that does not run NCCL or RCCL.
    """
    text = gpu_in(gpu).lower()
    for pattern, why in _NO_NCCL:
        if re.search(pattern, text):
            raise CalibrationError(f"the accelerator {gpu!r} runs neither NCCL nor RCCL: {why}")
    for said, table in ((text, _ARCHITECTURES), (intra, _BY_LINK)):
        for pattern, architecture in table:
            if re.search(pattern, said):
                return architecture
    raise CalibrationError(
        f"the generation of the GPU {gpu!r} is not known; write its usual name, such as H100-SXM5-80GB"
    )


def link_of(intra: str, gpu: str) -> tuple[str, float, bool]:
    """Return (technology, bandwidth per GPU [B/s], switched) of the link inside a node.

    Raises:
        CalibrationError: a text that names no link.
    """
    usual = usual_link(gpu)
    if found := re.search(r"nvlink ?-?(?:v|gen ?)?(\d)?|nvswitch|\bnv\d|nvl\d", intra):
        if named := re.match(r"nvlink\d_[ah]800", usual):
            return "nvlink", load_link(named.group(0)).bandwidth, not re.search("mesh|bridge", intra)
        few = next((link for pattern, link in _BRIDGED if re.search(pattern, gpu_in(gpu).lower())), "")
        if few:
            return "nvlink", load_link(few).bandwidth, False
        known = re.match(r"nvlink(\d)", usual)
        usual_generation = known.group(1) if known else _NVLINK_OF.get(architecture_of(gpu, intra), "4")
        generation = found.group(1) or usual_generation
        return "nvlink", load_link(f"nvlink{min(int(generation), 5)}").bandwidth, not re.search("mesh|bridge", intra)
    if re.search(r"xgmi|infinity|\bif\b", intra):
        link = _XGMI.get(architecture_of(gpu, intra), "xgmi3")
        return "xgmi", load_link(link).bandwidth, False
    if re.search(r"pci|shm|\bphb\b|\bpix\b|\bpxb\b|\bsys\b", intra):
        told = re.search(r"pcie?[ _-]?(?:gen)?[ _-]?(\d)", intra) or re.search(r"pcie?[ _-]?(?:gen)?[ _-]?(\d)", usual)
        number = min(max(int(told.group(1)), 3), 5) if told else 4
        return "pcie", load_link(f"pcie{number}_x16").bandwidth, True
    if intra in NONE:
        return "", load_link("pcie4_x16").bandwidth, True
    raise CalibrationError(
        f"the link inside the node, {intra!r}, is not known; write nvlink4_nvswitch, pcie4, xgmi or none"
    )


def network_of(inter: str, log: str, instance: Instance | None = None) -> str:
    """Return the technology of a network by its name, else that of the rented machine.

    Raises:
        CalibrationError: neither tells.
    """
    for pattern, technology in _NETWORKS:
        if re.search(pattern, inter):
            return technology
    if instance and instance.network:
        return instance.network
    raise CalibrationError(
        f"log {log}: the network {inter!r} is not known; write ib_ndr, roce, efa, tcp or slingshot11"
    )


def rate_of_card(inter: str) -> float | None:
    """Return the bandwidth of one card by the network's name, None where it says nothing [B/s]."""
    for pattern, rate in _CARDS:
        if re.search(pattern, inter):
            return parse(rate, "B/s")
    said = re.search(r"(\d+) ?g(?:be|b/?p?s|bit/?s?|ib/?s)?\b", inter)
    return parse(f"{said.group(1)} Gb/s", "B/s") if said and not _WHOLE.search(inter) else None


def rate_of(
    stated: str, inter: str, per_node: int, network: str, architecture: str, instance: Instance | None
) -> float:
    """Return the network bandwidth per GPU, one direction [B/s]: as stated, by the names, or as is usual.

    A machine on plain Ethernet has one card unless something says more.
    """
    stated = stated.strip().lower()
    if several := _SEVERAL.match(stated):
        return parse(f"{int(several.group(1)) * float(several.group(2)) / per_node} Gb/s", "B/s")
    if number := re.match(r"\d+(?:\.\d+)?", stated):
        return parse(f"{number.group(0)} Gb/s", "B/s")
    if instance and instance.network == network:
        return instance.nic
    if whole := _WHOLE.search(inter):
        return parse(f"{whole.group(1)} {whole.group(2).upper()}b/s", "B/s") / per_node
    if several := _SEVERAL.search(inter):
        return parse(f"{int(several.group(1)) * float(several.group(2)) / per_node} Gb/s", "B/s")
    usual = "100 Gb/s" if network == "ethernet" else _USUAL_CARDS.get(architecture, "100 Gb/s")
    if network == "efa":
        usual = _USUAL_EFA.get(architecture, "400 Gb/s")
    card = rate_of_card(inter)
    if card and (several := re.search(r"\b(\d+) ?[x*] ?[a-z]", inter)):
        return card * int(several.group(1)) / per_node
    return (card or parse(usual, "B/s")) / (per_node if network == "ethernet" else 1)
