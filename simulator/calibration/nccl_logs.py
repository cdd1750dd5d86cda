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

from simulator.errors import CalibrationError
from simulator.hardware.fabric import Fabric, GroupPlacement, describe_group
from simulator.hardware.link import load_link
from simulator.units import parse

__all__ = ["NcclLog", "describe_row", "load_index", "load_log"]

_KINDS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_ALGORITHMS = {"nvlstree": "nvls_tree"}
_ARCHITECTURES = (
    (r"b[23]00|rtx ?50|6000d|rtx pro", "blackwell"),
    (r"gh200|h[128]00|h20\b", "hopper"),
    (r"rtx ?40|l40|\bl4\b", "ada"),
    (r"a[18]00|a10|a40|rtx ?30", "ampere"),
    (r"v100", "volta"),
    (r"p100", "pascal"),
    (r"t4|rtx ?20", "turing"),
    (r"mi3[05]5|mi355", "cdna4"),
    (r"mi3", "cdna3"),
    (r"mi2", "cdna2"),
)
_NETWORKS = (
    ("ib", "infiniband"),
    ("roce", "roce"),
    ("efa", "efa"),
    ("slingshot", "slingshot"),
    ("tcpxo", "tcpxo"),
    ("fastrak", "tcpxo"),
    ("tcpx", "tcpx"),
    ("tcp", "ethernet"),
    ("opa", "omnipath"),
    ("omni", "omnipath"),
)
_CARDS = {"ib_edr": "100 Gb/s", "ib_hdr": "200 Gb/s", "ib_ndr": "400 Gb/s", "efa": "100 Gb/s"}
_RACK = 72


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
                digest=hashlib.sha256(file_path.read_bytes()).hexdigest()[:16],
                single_process=bool(re.search(r"single process|-g (?!1\b)\d+", row.get("note", ""))),
                usable=_usable(row, algorithm, fabric),
            )
        )
    return out


def describe_row(row: Mapping[str, str]) -> tuple[str, GroupPlacement, Fabric, str, str]:
    """Return (kind, place, fabric, algorithm, protocol) of one row of an index.

    Raises:
        CalibrationError: the GPU, link or network cannot be told from the texts.
    """
    intra, inter = row["intra"].lower(), row["inter"].lower()
    per_node, ranks = int(row["gpus_per_node"]), int(row["ranks"])
    rack = "nvl72" in intra or "nvl72" in inter
    domains = -(-ranks // _RACK) if rack else -(-ranks // per_node)
    domain = ranks // domains
    technology, bandwidth, switched = _inside(intra)
    network = "" if domains == 1 else _network(inter, row["log_id"])
    per_gpu = _nic(row, inter) if network else 0.0
    card = max(per_gpu, parse(_CARDS[inter], "B/s")) if inter in ("ib_ndr", "ib_hdr") else per_gpu
    fabric = Fabric(
        architecture=_architecture(row["gpu"]),
        intra=technology,
        intra_bandwidth=bandwidth,
        intra_latency=0.0,
        switched=switched,
        node_size=per_node,
        domain_size=domain,
        peer_to_peer="shm" not in intra,
        in_network_reduction=technology == "nvlink" and ("nvswitch" in intra or rack),
        network=network,
        network_bandwidth=per_gpu,
        card_bandwidth=card,
        network_latency=0.0,
        host="amd" if "a100" in row["gpu"].lower() else "intel",
    )
    kind = row["collective"].lower()
    algorithm = (row["algo"] or "auto").lower()
    return (
        _KINDS.get(kind, kind),
        describe_group(ranks, domains, level="rack" if rack and domains == 1 else None),
        fabric,
        _ALGORITHMS.get(algorithm, algorithm),
        (row["proto"] or "auto").lower(),
    )


def _usable(row: Mapping[str, str], algorithm: str, fabric: Fabric) -> bool:
    stated = bool(row["nic_gbps_per_gpu"]) or not fabric.network
    return stated and algorithm != "collnet" and "noisy" not in row.get("note", "")


def _architecture(gpu: str) -> str:
    for pattern, architecture in _ARCHITECTURES:
        if re.search(pattern, gpu.lower()):
            return architecture
    raise CalibrationError(
        f"the generation of the GPU {gpu!r} is not known; write its usual name, such as H100-SXM5-80GB"
    )


def _inside(intra: str) -> tuple[str, float, bool]:
    """Return (technology, bandwidth per GPU, switched) of the link inside a node."""
    if intra.startswith("nvlink"):
        link = load_link(re.split(r"_", intra)[0])
        return "nvlink", link.bandwidth, "mesh" not in intra
    if intra.startswith("xgmi"):
        return "xgmi", load_link("xgmi3").bandwidth, False
    if intra.startswith("pcie"):
        generation = re.match(r"pcie(\d)", intra)
        link = load_link(f"pcie{generation.group(1) if generation else 4}_x16")
        return "pcie", link.bandwidth, True
    if intra in ("none", ""):
        return "", load_link("pcie4_x16").bandwidth, True
    raise CalibrationError(
        f"the link inside the node, {intra!r}, is not known; write nvlink4_nvswitch, pcie4, xgmi or none"
    )


def _network(inter: str, log: str) -> str:
    for beginning, technology in _NETWORKS:
        if inter.startswith(beginning):
            return technology
    raise CalibrationError(
        f"log {log}: the network {inter!r} is not known; write ib_ndr, roce, efa, tcp or slingshot11"
    )


def _nic(row: Mapping[str, str], inter: str) -> float:
    """Return the network bandwidth per GPU, one direction [B/s]."""
    if row["nic_gbps_per_gpu"]:
        return parse(f"{row['nic_gbps_per_gpu']} Gb/s", "B/s")
    if inter in _CARDS:
        return parse(_CARDS[inter], "B/s")
    raise CalibrationError(f"log {row['log_id']}: nic_gbps_per_gpu is empty and network {inter!r} has no usual card")
