"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE): one machine, as node and cluster files of ours.

Source: NVIDIA/nccl, src/graph/xml.cc and topo.h.  PCI device numbers of GPUs: the public PCI ID repository (from memory, unverified).
The file says no sizes of memory: those are of the GPU's own data file here.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.xml_tree import Element, parse_xml

__all__ = ["NcclTopology"]

_GPUS = {
    "0x2330": "h100_80gb_sxm", "0x2331": "h100_80gb_pcie", "0x2321": "h100_94gb_nvl", "0x2335": "h200_141gb_sxm", "0x2324": "h800_80gb_sxm",
    "0x2329": "h20_96gb_sxm", "0x20b2": "a100_80gb_sxm", "0x20b0": "a100_40gb_sxm", "0x20b5": "a100_80gb_pcie", "0x20f1": "a100_40gb_pcie",
    "0x20f3": "a800_80gb_sxm", "0x2901": "b200_sxm", "0x3182": "b300_sxm", "0x1db1": "v100_16gb_sxm2", "0x1db5": "v100_32gb_sxm2",
    "0x1db8": "v100_32gb_sxm3", "0x2235": "a40_48gb", "0x2236": "a10_24gb", "0x26b9": "l40s", "0x26b5": "l40", "0x27b8": "l4_24gb",
    "0x1eb8": "t4_16gb",
}  # fmt: skip
_NVLINKS = {(70, 6): "nvlink2", (80, 12): "nvlink3", (80, 8): "nvlink3_a800", (90, 18): "nvlink4", (90, 8): "nvlink4_h800",
            (100, 18): "nvlink5",
            (103, 18): "nvlink5", (70, 12): "nvlink2_nvswitch"}  # fmt: skip
"""(10 x compute capability, NVLinks of a GPU) -> link."""
_PCIE = {"8.0": "pcie3_x16", "16.0": "pcie4_x16", "32.0": "pcie5_x16"}
_NETWORKS = {100000: "infiniband_edr", 200000: "infiniband_hdr", 400000: "infiniband_ndr", 800000: "infiniband_xdr"}
_HOSTS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_NVSWITCH = "0x068000"


class NcclTopology(Importer):
    """A topology that NCCL wrote, or is told to use."""

    name = "nccl_topology"
    title = "NCCL topology XML"

    def recognises(self, document: Document) -> int:
        """Look for NCCL's root and its elements."""
        text = document.head
        return 3 if document.form == "xml" and "<system" in text and ("<gpu " in text or "<cpu " in text) else 0

    def read(self, document: Document) -> Findings:
        """Return the machine: GPUs, links, cards, CPU; as data files where all of it is known.

        Raises:
            SpecError: no XML, entities, too deep, or no GPU in it.
        """
        root = parse_xml(document)
        findings = Findings(self.name)
        gpus = [(pci, gpu) for pci in root.all("pci") for gpu in pci.children if gpu.name == "gpu"]
        if root.name != "system" or not gpus:
            raise SpecError(f"{document.place}: expected NCCL's <system> with a <gpu> in it")
        node: dict[str, Any] = {"gpus": len(gpus)}
        findings.put("cluster.gpus", len(gpus), f"{document.line_of(gpus[0][1].line)}: its <gpu> elements, one machine")
        _gpu(node, gpus, document, findings)
        _links(node, gpus, document, findings)
        _cards(node, root, document, findings)
        _cpu(node, root, document, findings)
        for name, value in node.items():
            findings.put(f"node.{name}", value, document.place)
        _files(node, document, findings)
        _report(root, document, findings)
        return findings


def _gpu(node: dict[str, object], gpus: list[tuple[Element, Element]], document: Document, findings: Findings) -> None:
    kinds = {pci.attributes.get("device", "").lower() for pci, _ in gpus}
    if len(kinds) == 1 and (kind := next(iter(kinds))) in _GPUS:
        node["gpu"] = _GPUS[kind]
    else:
        findings.skip(
            document.line_of(gpus[0][0].line), f"device {', '.join(sorted(kinds))[:100]}: no GPU that is known here"
        )


def _links(
    node: dict[str, object], gpus: list[tuple[Element, Element]], document: Document, findings: Findings
) -> None:
    pci, gpu = gpus[0]
    lanes = [link for link in gpu.children if link.name == "nvlink"]
    count, sm = sum(_whole(link, "count", document) for link in lanes), _whole(gpu, "sm", document)
    speed = re.match(r"[0-9.]+", pci.attributes.get("link_speed", ""))
    host = _PCIE.get(speed.group() if speed else "")
    if host and pci.attributes.get("link_width") == "16":
        node["host_link"] = host
    else:
        findings.skip(
            document.line_of(pci.line),
            f"link_speed {pci.attributes.get('link_speed')}, link_width {pci.attributes.get('link_width')}",
        )
    if not lanes:
        node["link"] = host or ""
    elif (sm, count) in _NVLINKS:
        node["link"] = _NVLINKS[sm, count]
    else:
        findings.skip(document.line_of(lanes[0].line), f"{count} NVLinks of sm {sm}: no link that is known here")
    switched = any(link.attributes.get("tclass") == _NVSWITCH for link in lanes)
    node["in_network_reduction"] = switched and sm >= 90


def _cards(node: dict[str, object], root: Element, document: Document, findings: Findings) -> None:
    nets = root.all("net")
    names = {net.attributes.get("name", str(net.line)) for net in nets}
    node["nics"] = len(names)
    speeds = {_whole(net, "speed", document) for net in nets}
    if len(speeds) == 1 and (speed := next(iter(speeds))) in _NETWORKS:
        node["network_link"] = _NETWORKS[speed]
        findings.assumed_key(
            "node.network_link",
            node["network_link"],
            "the file tells the speed of a card, not whether it is InfiniBand",
        )
    elif nets:
        findings.skip(
            document.line_of(nets[0].line), f"cards of speeds {sorted(speeds)[:8]} Mb/s: no link that is known here"
        )


def _cpu(node: dict[str, object], root: Element, document: Document, findings: Findings) -> None:
    cpus = root.all("cpu")
    vendor = cpus[0].attributes.get("vendor", "") if cpus else ""
    arm = bool(cpus) and cpus[0].attributes.get("arch") == "arm64"
    if arm or vendor in _HOSTS:
        node["host"] = "arm" if arm else _HOSTS[vendor]
    elif cpus:
        findings.skip(document.line_of(cpus[0].line), f"cpu vendor {vendor[:40]!r}")


def _files(node: dict[str, object], document: Document, findings: Findings) -> None:
    """Node and cluster as data files, where nothing that they need is missing."""
    needed = {"gpu", "gpus", "link", "host_link", "host"} | ({"network_link"} if node["nics"] else set())
    if not needed <= {key for key, value in node.items() if value}:
        return
    name = re.sub(r"[^a-z0-9]+", "_", document.stem.lower()).strip("_")[:60] or "imported"
    sources = {"*": f"NCCL topology file {document.stem}"}
    content = {
        "name": name,
        **{key: value for key, value in node.items() if value or key == "in_network_reduction"},
        "sources": sources,
    }
    if not node["nics"]:
        content.pop("nics", None)
    findings.files = [
        ("nodes", name, content),
        ("clusters", name, {"name": name, "node": name, "nodes": 1, "sources": sources}),
    ]
    findings.assume("cluster.name", name, "the node and cluster files that -o writes")


def _report(root: Element, document: Document, findings: Findings) -> None:
    known = {"system", "cpu", "pci", "gpu", "nvlink", "c2c", "nic", "net", "pcilink"}
    for element in root.every():
        if element.name not in known:
            findings.skip(document.line_of(element.line), f"<{element.name[:40]}>")


def _whole(element: Element, key: str, document: Document) -> int:
    text = element.attributes.get(key, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise SpecError(
            f"{document.line_of(element.line)}: <{element.name}> {key}: expected a whole number, got {text[:40]!r}"
        )
    return int(text)
