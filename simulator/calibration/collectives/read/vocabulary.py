"""What people call GPUs, links, networks and rented machines in their logs -> the wires that are meant.

Texts are told by their words (hardware_specs/words.toml).  Machines of clouds, whose names say neither GPU nor network,
stand in hardware_specs/instances.toml.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from pydantic import Field

from simulator.errors import CalibrationError
from simulator.hardware.link import load_link
from simulator.hardware.words import generation_in, load_words
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
    if generation_in(text):
        return text
    found = find_instance([text])
    return found.gpu if found else text


def usual_link(gpu: str) -> str:
    """Return the link inside a node that a GPU is usually sold with; "" for an unknown one.

    >>> usual_link("NVIDIA H100 80GB HBM3"), usual_link("NVIDIA H100 PCIe"), usual_link("abacus")
    ('nvlink4_nvswitch', 'pcie5', '')
    """
    return load_words().find("inside", gpu_in(gpu))


def architecture_of(gpu: str, intra: str) -> str:
    """Return the generation of a GPU by its name, else by its link.

    Raises:
        CalibrationError: neither tells, or it is an accelerator that does not run NCCL or RCCL.
    """
    text, words = gpu_in(gpu), load_words()
    if why := words.find("without_nccl", text):
        raise CalibrationError(f"the accelerator {gpu!r} runs neither NCCL nor RCCL: {why}")
    if found := words.find("generations", text) or words.find("generations_of_links", intra):
        return found
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
        if few := load_words().find("bridged", gpu_in(gpu)):
            return "nvlink", load_link(few).bandwidth, False
        known = re.match(r"nvlink(\d)", usual)
        usual_generation = known.group(1) if known else load_words().nvlink.get(architecture_of(gpu, intra), "4")
        generation = found.group(1) or usual_generation
        return "nvlink", load_link(f"nvlink{min(int(generation), 5)}").bandwidth, not re.search("mesh|bridge", intra)
    if re.search(r"xgmi|infinity|\bif\b", intra):
        link = load_words().xgmi.get(architecture_of(gpu, intra), "xgmi3")
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
    if technology := load_words().find("networks", inter):
        return technology
    if instance and instance.network:
        return instance.network
    raise CalibrationError(
        f"log {log}: the network {inter!r} is not known; write ib_ndr, roce, efa, tcp or slingshot11"
    )


def rate_of_card(inter: str) -> float | None:
    """Return the bandwidth of one card by the network's name, None where it says nothing [B/s]."""
    if rate := load_words().find("cards", inter):
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
    usual = "100 Gb/s" if network == "ethernet" else load_words().usual_cards.get(architecture, "100 Gb/s")
    if network == "efa":
        usual = load_words().usual_efa.get(architecture, "400 Gb/s")
    card = rate_of_card(inter)
    if card and (several := re.search(r"\b(\d+) ?[x*] ?[a-z]", inter)):
        return card * int(several.group(1)) / per_node
    return (card or parse(usual, "B/s")) / (per_node if network == "ethernet" else 1)
