"""Logs of nccl-tests, in the tidy form: one CSV per log with size_bytes and time_us, and an index that describes the
machines.

Columns of the index that are read: log_id, collective, gpu, gpus_per_node, nodes, ranks, intra, inter,
nic_gbps_per_gpu, algo, proto, healthy, note, and platform, instance, machine, system or cluster where they name a rented
machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.read.vocabulary import (
    NONE,
    architecture_of,
    find_instance,
    gpu_in,
    link_of,
    network_of,
    rate_of,
    rate_of_card,
    usual_link,
)
from simulator.calibration.files import csv_rows, digest
from simulator.collectives.base import KINDS, PROTOCOLS
from simulator.errors import CalibrationError
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement, describe_group
from simulator.units import parse, plain_number

__all__ = ["NcclLog", "describe_row", "load_index", "load_log", "log_digest", "published_in", "single_process"]

_KINDS = {kind.replace("_", ""): kind for kind in KINDS}
_ALGORITHMS = {name.replace("_", ""): name for name in ("ring", "tree", "nvls", "nvls_tree", "pat", "collnet")}
"""Algorithms that a table can say were forced; any other text, such as a list, leaves the choice to NCCL."""
_MACHINE = ("gpu", "platform", "instance", "machine", "system", "cluster", "inter")
"""Columns that may name a rented machine."""
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
        source: where it was published, the site's and project's name alone; "" = unknown.
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
    source: str = ""
    usable: bool = True


def load_log(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sizes [B] and times [s] of one tidy CSV; rows without bytes or time (empty calls) are left out.

    Raises:
        CalibrationError: no such file or columns, or no row with numbers.
    """
    rows = csv_rows(path)
    if not rows or not {"size_bytes", "time_us"} <= set(rows[0]):
        raise CalibrationError(f"{path}: expected a CSV with the columns size_bytes and time_us")
    out = []
    for number, row in enumerate(rows, 2):
        try:
            size, time = plain_number(row["size_bytes"]), parse(f"{row['time_us']} us", "s")
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
    return digest(path)


def load_index(path: Path) -> list[NcclLog]:
    """Return the logs of an index.csv whose CSVs lie beside it, but for those marked as not healthy.

    Raises:
        CalibrationError: a file or a column is missing; a machine cannot be told from its row.
    """
    out = []
    for row in csv_rows(path):
        if row["healthy"] != "true":
            continue
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
                source=published_in(row),
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
    instance = find_instance([row.get(name) or "" for name in _MACHINE])
    said = (row.get("gpu") or "").strip()
    gpu = gpu_in(said if said or instance is None else instance.gpu)
    algorithm = re.sub(r"[^a-z0-9]", "", (row.get("algo") or "auto").lower())
    algorithm = "collnet" if algorithm.startswith(("collnet", "sharp")) else algorithm
    protocol = re.sub(r"[^a-z0-9]", "", (row.get("proto") or "").lower())
    per_node, ranks = _counts(row)
    intra, inter = ((row.get(name) or "").strip().lower() for name in ("intra", "inter"))
    if intra in NONE and per_node > 1:
        intra = usual_link(gpu)
    rack = _rack(intra, inter, gpu)
    domains = -(-ranks // (rack or per_node))
    domain = ranks // domains
    technology, bandwidth, switched = link_of(intra, gpu)
    if per_node > 1 and not technology:
        raise CalibrationError(
            f"the link between the {per_node} {gpu!r} of a node is not known; write it, such as pcie4"
        )
    architecture = architecture_of(gpu, intra)
    network = "" if domains == 1 else network_of(inter, row["log_id"], instance)
    stated = row.get("nic_gbps_per_gpu") or ""
    per_gpu = rate_of(stated, inter, per_node, network, architecture, instance) if network else 0.0
    card = max(per_gpu, rate_of_card(inter) or 0.0) if network in ("infiniband", "ethernet") else per_gpu
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
        _ALGORITHMS.get(algorithm, "auto"),
        protocol if protocol in PROTOCOLS else "auto",
    )


def single_process(row: Mapping[str, str]) -> bool:
    """Return whether a row of an index says that one process launched for all ranks (nccl-tests -g 8)."""
    return bool(re.search(r"single process|-g (?!1\b)\d+", row.get("note") or ""))


def published_in(row: Mapping[str, str]) -> str:
    """Return where a row of an index says that its log was published, up to the project or the thread.

    >>> published_in({"source": "https://github.com/NVIDIA/deepops docs/k8s-cluster/x.md at 740df4b6"})
    'https://github.com/NVIDIA/deepops'
    """
    text = (row.get("source") or "").strip()
    site = re.match(r"https?://[^/\s]+(?:/[^/\s]+){0,2}(?:/(?:issues|discussions|pull)/\d+)?", text)
    return site.group(0) if site else text


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
    return _RACK if spans or (re.search(r"gb[23]00", gpu.lower()) and inter in NONE) else 0
