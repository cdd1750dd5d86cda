"""Logs of nccl-tests, in the tidy form: one CSV per log with size_bytes and time_us, and an index that describes the
machines.

Columns of the index that are read: log_id, collective, gpu, gpus_per_node, nodes, ranks, intra, inter,
nic_gbps_per_gpu, algo, proto, healthy, note.  The texts of gpu, intra and inter are matched by what they contain, so
that new ones need no change here.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.base import KINDS
from simulator.errors import CalibrationError
from simulator.hardware.fabric import Fabric, GroupPlacement, describe_group
from simulator.hardware.link import load_link
from simulator.units import parse

__all__ = ["NcclLog", "describe_row", "load_index", "load_log", "log_digest", "single_process", "usual_link"]

_KINDS = {kind.replace("_", ""): kind for kind in KINDS}
_ALGORITHMS = {"nvlstree": "nvls_tree"}
_ARCHITECTURES = (
    (r"rtx ?pro|rtx ?50|6000d|\bb[123]00|g?b[23]00", "blackwell"),
    (r"rtx ?6000 ?ada|rtx ?40|l40|\bl4\b|\bl20\b", "ada"),
    (r"gh200|h[128]00|h20\b", "hopper"),
    (r"a[138]00|a30\b|a10g?\b|a16\b|a40|a[456]000|rtx ?30", "ampere"),
    (r"v100", "volta"),
    (r"p100|p40\b", "pascal"),
    (r"\bt4\b|rtx ?20|quadro rtx", "turing"),
    (r"mi35|mi4", "cdna4"),
    (r"mi3", "cdna3"),
    (r"mi2|mi1", "cdna2"),
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
    (r"gh200", "nvlink4_mesh"),
    (r"b[123]00", "nvlink5_nvswitch"),
    (
        r"pcie|l40|\bl4\b|\bl20\b|a10g?\b|a30\b|a40\b|\ba16\b|a[456]000|t4\b|rtx pro|6000d|6000 ada|quadro|p40\b",
        "pcie4",
    ),
    (r"h20\b|h[128]00", "nvlink4_nvswitch"),
    (r"a[18]00", "nvlink3_nvswitch"),
    (r"v100.*sxm3", "nvlink2_nvswitch"),
    (r"v100.*sxm2|p100.*sxm2|v100", "nvlink2_cubemesh"),
    (r"rtx ?[2345]0|geforce", "pcie_shm"),
    (r"mi[1234]\d\d", "xgmi"),
)
"""Link inside a node that a GPU is usually sold with, by its name; the first that matches."""
_NETWORKS = (
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"efa|\bsrd\b", "efa"),
    (r"roce|spectrum|rdma.*ethernet|ethernet.*rdma", "roce"),
    (r"^ib|infiniband|\b[xnhe]dr|quantum|mellanox|connectx|\bcx ?\d", "infiniband"),
    (r"slingshot|cassini|\bss11", "slingshot"),
    (r"opa|omni", "omnipath"),
    (r"rdma|verbs", "roce"),
    (r"tcp|socket|ethernet|gbe\b|\beth|vpc", "ethernet"),
)
_CARDS = (
    (r"xdr", "800 Gb/s"),
    (r"ndr ?200", "200 Gb/s"),
    (r"ndr", "400 Gb/s"),
    (r"hdr ?100", "100 Gb/s"),
    (r"hdr", "200 Gb/s"),
    (r"edr|^efa$|omni|opa", "100 Gb/s"),
    (r"fdr", "56 Gb/s"),
    (r"slingshot|cassini", "200 Gb/s"),
)
"""A card's rate, by the network's name."""
_USUAL_CARDS = {
    "hopper": "400 Gb/s",
    "blackwell": "400 Gb/s",
    "cdna3": "400 Gb/s",
    "cdna4": "400 Gb/s",
    "ampere": "200 Gb/s",
}
"""Network per GPU of machines whose index does not say it, by generation; others, and plain Ethernet, have 100 Gb/s."""
_RACK = 72
_NONE = ("none", "", "-", "n/a", "na", "no", "single node", "intra")


def usual_link(gpu: str) -> str:
    """Return the link inside a node that a GPU is usually sold with; "" for an unknown one.

    >>> usual_link("NVIDIA H100 80GB HBM3"), usual_link("NVIDIA H100 PCIe"), usual_link("abacus")
    ('nvlink4_nvswitch', 'pcie4', '')
    """
    return next((link for pattern, link in _INSIDE if re.search(pattern, gpu.lower())), "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclLog:
    """One log: what was run where, and the seconds of each message.

    Args:
        name: the log's id.
        kind: the collective.
        place: the group.
        fabric: the wires.
        message: [points] sizes [B].
        seconds: [points] measured times [s].
        algorithm: forced one, or "auto".
        protocol: forced one, or "auto".
        digest: sha256 of the file.
        single_process: one process launched all ranks, so each launch waits for the others'.
        usable: good for a fit: network cards stated, no SHARP, not noted as noisy.
    """

    name: str
    kind: str
    place: GroupPlacement
    fabric: Fabric
    message: NDArray[np.float64]
    seconds: NDArray[np.float64]
    algorithm: str = "auto"
    protocol: str = "auto"
    digest: str = ""
    single_process: bool = False
    usable: bool = True


def load_log(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sizes [B] and times [s] of one tidy CSV; rows without bytes or time (empty calls) are left out.

    Raises:
        CalibrationError: no such file or columns, or no row with numbers.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error.strerror})") from None
    if not rows or not {"size_bytes", "time_us"} <= set(rows[0]):
        raise CalibrationError(f"{path}: expected a CSV with the columns size_bytes and time_us")
    out = []
    for number, row in enumerate(rows, 2):
        try:
            size, time = float(row["size_bytes"]), parse(f"{row['time_us']} us", "s")
        except (ValueError, TypeError):
            raise CalibrationError(
                f"{path}, line {number}: size_bytes and time_us must be numbers, got {row}"
            ) from None
        if size > 0 and time > 0:
            out.append((size, time))
    if not out:
        raise CalibrationError(f"{path}: no row has bytes and a time")
    sizes, times = np.array(out).T
    return sizes, times


def log_digest(path: Path) -> str:
    """Return by which profiles know a log: the first 16 digits of the file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load_index(path: Path, healthy: bool = True) -> list[NcclLog]:
    """Return the logs of an index.csv whose CSVs lie beside it; `healthy` leaves out those marked otherwise.

    Raises:
        CalibrationError: a file or a column is missing; a machine cannot be told from its row.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not healthy or row["healthy"] == "true"]
    out = []
    for row in rows:
        file_path = path.parent / f"{row['log_id']}.csv"
        sizes, times = load_log(file_path)
        kind, place, fabric, algorithm, protocol = describe_row(row)
        out.append(
            NcclLog(
                name=row["log_id"],
                kind=kind,
                place=place,
                fabric=fabric,
                message=sizes,
                seconds=times,
                algorithm="auto" if algorithm == "collnet" else algorithm,
                protocol=protocol,
                digest=log_digest(file_path),
                single_process=single_process(row),
                usable=_usable(row, algorithm, fabric),
            )
        )
    return out


def describe_row(row: Mapping[str, str]) -> tuple[str, GroupPlacement, Fabric, str, str]:
    """Return (kind, place, fabric, algorithm, protocol) of one row of an index.

    CollNet means that the network's switches add (SHARP), where the row says how fast the cards are.

    Raises:
        CalibrationError: the GPU, link or network cannot be told from the texts.
    """
    gpu = row["gpu"]
    algorithm = re.sub(r"[^a-z0-9]", "", (row.get("algo") or "auto").lower())
    algorithm = "collnet" if algorithm.startswith(("collnet", "sharp")) else algorithm
    per_node, ranks = _counts(row)
    intra, inter = row["intra"].strip().lower(), row["inter"].strip().lower()
    if intra in _NONE and per_node > 1:
        intra = usual_link(gpu)
    rack = _rack(intra, inter, gpu)
    domains = -(-ranks // (rack or per_node))
    domain = ranks // domains
    technology, bandwidth, switched = _inside(intra, gpu)
    architecture = _architecture(gpu, intra)
    network = "" if domains == 1 else _network(inter, row["log_id"])
    per_gpu = _nic(row, inter, per_node, architecture) if network else 0.0
    card = max(per_gpu, _card(inter) or 0.0) if network == "infiniband" else per_gpu
    fabric = Fabric(
        architecture=architecture,
        intra=technology,
        intra_bandwidth=bandwidth,
        intra_latency=0.0,
        switched=switched,
        node_size=per_node,
        domain_size=domain,
        peer_to_peer="shm" not in intra,
        in_network_reduction=technology == "nvlink" and ("nvswitch" in intra or bool(rack)),
        network=network,
        network_bandwidth=per_gpu,
        card_bandwidth=card,
        network_latency=0.0,
        host="amd" if "a100" in gpu.lower() else "intel",
        network_reduction=algorithm == "collnet" and bool(row.get("nic_gbps_per_gpu")),
    )
    kind = _kind(row["collective"])
    return (
        kind,
        describe_group(ranks, domains, level="rack" if rack and domains == 1 else None),
        fabric,
        _ALGORITHMS.get(algorithm, algorithm),
        (row.get("proto") or "auto").strip().lower(),
    )


def single_process(row: Mapping[str, str]) -> bool:
    """Return whether a row of an index says that one process launched for all ranks (nccl-tests -g 8)."""
    return bool(re.search(r"single process|-g (?!1\b)\d+", row.get("note") or ""))


def _usable(row: Mapping[str, str], algorithm: str, fabric: Fabric) -> bool:
    stated = bool(row["nic_gbps_per_gpu"]) or not fabric.network
    return stated and algorithm != "collnet" and "noisy" not in row.get("note", "")


def _kind(text: str) -> str:
    """Return the collective that a text names, as it is where it names none.

    >>> _kind("AllReduce"), _kind("alltoall_perf"), _kind("send/recv")
    ('all_reduce', 'all_to_all', 'send_recv')
    """
    plain = re.sub(r"[^a-z]", "", text.lower().replace("_perf", ""))
    return _KINDS.get(plain, text.lower())


def _counts(row: Mapping[str, str]) -> tuple[int, int]:
    """Return (GPUs per node, ranks); of the three numbers with the nodes any two will do."""
    found = [_whole(row.get(name, "")) for name in ("gpus_per_node", "nodes", "ranks")]
    per_node, nodes, ranks = found
    ranks = ranks or per_node * nodes
    per_node = per_node or (ranks // nodes if nodes else 0)
    if not per_node or not ranks:
        raise CalibrationError(
            f"log {row['log_id']}: two of gpus_per_node, nodes and ranks are needed, got {', '.join(map(str, found))}"
        )
    return min(per_node, ranks), ranks


def _whole(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+)(?:\.0*)?\s*", text or "")
    return int(found.group(1)) if found else 0


def _rack(intra: str, inter: str, gpu: str) -> int:
    """Return the GPUs of a rack on one NVLink, 0 where the link ends at the node."""
    named = re.search(r"nvl ?(\d{2,3})", f"{intra} {inter}")
    if named:
        return int(named.group(1))
    spans = re.search(r"mnnvl|imex|nvlink", inter) or "mnnvl" in intra
    return _RACK if spans or (re.search(r"gb[23]00", gpu.lower()) and inter in _NONE) else 0


def _architecture(gpu: str, intra: str) -> str:
    for text, table in ((gpu.lower(), _ARCHITECTURES), (intra, _BY_LINK)):
        for pattern, architecture in table:
            if re.search(pattern, text):
                return architecture
    raise CalibrationError(
        f"the generation of the GPU {gpu!r} is not known; write its usual name, such as H100-SXM5-80GB"
    )


def _inside(intra: str, gpu: str) -> tuple[str, float, bool]:
    """Return (technology, bandwidth per GPU, switched) of the link inside a node."""
    if found := re.search(r"nvlink ?(?:gen ?)?(\d)?|nvswitch|\bnv\d|nvl\d", intra):
        usual = re.match(r"nvlink(\d)", usual_link(gpu))
        generation = found.group(1) or (usual.group(1) if usual else "4")
        return "nvlink", load_link(f"nvlink{min(int(generation), 5)}").bandwidth, not re.search("mesh|bridge", intra)
    if re.search(r"xgmi|infinity", intra):
        return "xgmi", load_link("xgmi3").bandwidth, False
    if re.search(r"pci|shm", intra):
        generation = re.search(r"pcie?[ _-]?(?:gen)?[ _-]?(\d)", intra)
        number = min(max(int(generation.group(1)), 3), 5) if generation else 4
        return "pcie", load_link(f"pcie{number}_x16").bandwidth, True
    if intra in _NONE:
        return "", load_link("pcie4_x16").bandwidth, True
    raise CalibrationError(
        f"the link inside the node, {intra!r}, is not known; write nvlink4_nvswitch, pcie4, xgmi or none"
    )


def _network(inter: str, log: str) -> str:
    for pattern, technology in _NETWORKS:
        if re.search(pattern, inter):
            return technology
    raise CalibrationError(
        f"log {log}: the network {inter!r} is not known; write ib_ndr, roce, efa, tcp or slingshot11"
    )


def _card(inter: str) -> float | None:
    """Return the bandwidth of one card by the network's name, None where it says nothing [B/s]."""
    for pattern, rate in _CARDS:
        if re.search(pattern, inter):
            return parse(rate, "B/s")
    said = re.search(r"(\d+) ?g(?:be|b/?s|bit/?s)?\b", inter)
    return parse(f"{said.group(1)} Gb/s", "B/s") if said else None


def _nic(row: Mapping[str, str], inter: str, per_node: int, architecture: str) -> float:
    """Return the network bandwidth per GPU, one direction [B/s]: as stated, by the network's name, or as is usual."""
    stated = (row.get("nic_gbps_per_gpu") or "").strip().lower()
    if several := re.match(r"(\d+) ?x ?(\d+(?:\.\d+)?)", stated):
        return parse(f"{int(several.group(1)) * float(several.group(2)) / per_node} Gb/s", "B/s")
    if number := re.match(r"\d+(?:\.\d+)?", stated):
        return parse(f"{number.group(0)} Gb/s", "B/s")
    plain = _network(inter, row["log_id"]) == "ethernet"
    return _card(inter) or parse("100 Gb/s" if plain else _USUAL_CARDS.get(architecture, "100 Gb/s"), "B/s")
