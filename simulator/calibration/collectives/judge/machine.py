"""On which machine a log was made: what the log says itself, what the user adds, and what is assumed from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.calibration.collectives.read.benchmark_table import BenchmarkTable
from simulator.calibration.collectives.read.tidy_logs import describe_row, published_in, single_process
from simulator.calibration.collectives.read.vocabulary import architecture_of, find_instance, usual_link
from simulator.calibration.files import csv_rows
from simulator.collectives.base import KINDS
from simulator.errors import CalibrationError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.group_placement import GroupPlacement, describe_group
from simulator.units import in_unit

__all__ = ["Machine", "Placed", "index_rows", "place_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the user says of the machine; None and "" = what the log says.

    Args:
        cluster: a cluster's name or file; then gpu, intra, inter and nic are its own.
        kind: the collective, where a log does not name it.
        gpu: its name.
        gpus_per_node, nodes, ranks: counts.
        intra: link inside a node: nvlink4_nvswitch, pcie4, pcie_shm (through host memory), xgmi, none.
        inter: network between nodes: ib_ndr, roce, efa, tcp, slingshot11.
        nic: network bandwidth per GPU, one direction [B/s].
    """

    cluster: str = ""
    kind: str = ""
    gpu: str = ""
    gpus_per_node: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    intra: str = ""
    inter: str = ""
    nic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a log was made: the collective, the group, the wires, what was forced, what was assumed, whether one process
    launched for all ranks, where it was published."""

    kind: str
    place: GroupPlacement
    fabric: Fabric
    algorithm: str = "auto"
    protocol: str = "auto"
    assumed: tuple[str, ...] = ()
    healthy: bool = True
    complaint: str = ""
    single_process: bool = False
    source: str = ""


def index_rows(path: Path) -> dict[str, Mapping[str, str]]:
    """Return the rows of an index (a CSV with log_id, collective, gpu, ...) by log; none when it is no index."""
    try:
        rows = csv_rows(path)
    except CalibrationError:
        return {}
    return {row["log_id"]: row for row in rows if row.get("log_id") and row.get("collective")}


def place_table(table: BenchmarkTable, machine: Machine, index: Mapping[str, str] | None = None) -> Placed:
    """Return where a table was measured.

    Args:
        table: as read.
        machine: what the user says; goes before what the log says.
        index: the log's row of an index, which knows its machine.

    Raises:
        CalibrationError: collective, ranks, GPU or network cannot be told; says which option would.
    """
    if index is not None and not machine.cluster:
        return _by_index(index)
    kind = machine.kind or table.kind
    if not kind:
        raise CalibrationError(f"{table.name}: no line names the collective; give --kind all_reduce or the like")
    ranks, nodes = _counts(table, machine)
    assumed: list[str] = []
    if machine.cluster:
        place, fabric = _on_cluster(table.name, machine.cluster, ranks, nodes)
        _check_generation(table, machine, fabric)
    else:
        row, assumed = _row(table, machine, kind, ranks * table.concurrent, nodes)
        _, place, fabric, _, _ = describe_row(row)
        if table.concurrent > 1:  # the row is of the whole machines, the table of one communicator among several
            domains = -(-ranks * table.concurrent // fabric.domain_size)
            place = describe_group(ranks, domains, table.concurrent if domains > 1 else 1, place.level)
            assumed.append(f"{table.concurrent} communicators side by side, as NCCL_TESTS_SPLIT makes them")
    plain = {"alltoall": "all_to_all", "sendrecv": "send_recv"}.get(kind, kind)
    if plain not in KINDS:
        raise CalibrationError(f"{table.name}: {kind!r} is no collective that is modelled: {', '.join(KINDS)}")
    algorithm, protocol = _forced(table.header.algorithm), _forced(table.header.protocol)
    algorithm = {"nvlstree": "nvls_tree"}.get(algorithm, algorithm)
    if algorithm.startswith("collnet"):
        raise CalibrationError(f"{table.name}: CollNet was forced (SHARP in the network), which profiles do not cover")
    return Placed(
        kind=plain, place=place, fabric=fabric, algorithm=algorithm, protocol=protocol, assumed=tuple(assumed)
    )


def _by_index(row: Mapping[str, str]) -> Placed:
    try:
        kind, place, fabric, algorithm, protocol = describe_row(row)
    except (KeyError, ValueError) as error:
        raise CalibrationError(f"{row['log_id']}: its row of the index cannot be read ({error})") from None
    healthy = (row.get("healthy") or "true").strip().lower() not in ("false", "0", "no", "off")
    complaint = "" if healthy else f"the index marks it unhealthy ({(row.get('note') or '')[:90]})"
    if algorithm == "collnet":
        healthy, complaint = False, "SHARP adds in the network, which profiles do not cover"
    elif fabric.network and not row.get("nic_gbps_per_gpu"):
        healthy, complaint = False, "the index does not say how fast its network cards are"
    elif "noisy" in (row.get("note") or ""):
        healthy, complaint = False, "the index calls its times noisy"
    algorithm = "auto" if algorithm == "collnet" else algorithm
    return Placed(
        kind=kind,
        place=place,
        fabric=fabric,
        algorithm=algorithm,
        protocol=protocol,
        healthy=healthy,
        complaint=complaint,
        single_process=single_process(row),
        source=published_in(row),
    )


def _forced(word: str) -> str:
    """Return a forced algorithm or protocol; a choice among several is NCCL's own."""
    return (
        word
        if word in ("ring", "tree", "nvls", "nvlstree", "pat", "ll", "ll128", "simple")
        else ("collnet" if word.startswith("collnet") else "auto")
    )


def _counts(table: BenchmarkTable, machine: Machine) -> tuple[int, int]:
    """Return (ranks, nodes)."""
    ranks = machine.ranks or table.ranks
    if not ranks:
        raise CalibrationError(
            f"{table.name}: the number of ranks stands neither among devices nor in its bandwidths; give --ranks"
        )
    nodes = machine.nodes or table.nodes
    if not nodes and machine.gpus_per_node:
        nodes = -(-ranks // machine.gpus_per_node)
    if not nodes:
        per_node = load_cluster(machine.cluster).node.gpus if machine.cluster else 0
        nodes = -(-ranks // per_node) if per_node else 1 if ranks <= 8 and not machine.inter else 0
    if not nodes:
        raise CalibrationError(
            f"{table.name}: {ranks} ranks, but no line says on how many nodes; give --nodes (or --cluster)"
        )
    if ranks % nodes:
        raise CalibrationError(f"{table.name}: {ranks} ranks do not lie evenly on {nodes} nodes")
    if ranks < 2:
        raise CalibrationError(f"{table.name}: one rank talks to nobody; a fit needs at least 2")
    return ranks, nodes


def _on_cluster(name: str, cluster: str, ranks: int, nodes: int) -> tuple[GroupPlacement, Fabric]:
    node_size = load_cluster(cluster).node.gpus
    if ranks // nodes > node_size:
        raise CalibrationError(
            f"{name}: {ranks} ranks on {nodes} nodes, but the nodes of cluster {cluster!r} have {node_size} GPUs"
        )
    whole = load_cluster(cluster, nodes * node_size)
    fabric = fabric_of(whole)
    domains = -(-nodes * node_size // fabric.domain_size)
    if ranks % domains:
        raise CalibrationError(f"{name}: {ranks} ranks do not lie evenly on the {domains} racks of {cluster!r}")
    level = "node" if nodes == 1 else "rack" if domains == 1 else None
    return describe_group(ranks, domains, level=level), fabric


def _check_generation(table: BenchmarkTable, machine: Machine, fabric: Fabric) -> None:
    """Refuse a log whose device lines name GPUs of another generation than the cluster's."""
    if machine.gpu or not table.gpu:
        return
    try:
        made_on = architecture_of(table.gpu, "")
    except CalibrationError:  # a name that nobody knows says nothing
        return
    if made_on != fabric.architecture:
        raise CalibrationError(
            f"{table.name}: its device lines name {table.gpu[:60]} ({made_on}), but the GPUs of cluster {machine.cluster!r} are "
            f"{fabric.architecture}. Way out: the cluster that it was made on, or no --cluster"
        )


def _row(
    table: BenchmarkTable, machine: Machine, kind: str, ranks: int, nodes: int
) -> tuple[dict[str, str], list[str]]:
    """Return the machine as a row of an index, and what of it was assumed."""
    assumed = []
    gpu = machine.gpu or table.gpu
    if not gpu:
        raise CalibrationError(f"{table.name}: no line names the GPU; give --gpu H100 (or --cluster)")
    per_node = ranks // nodes
    intra = machine.intra or ("none" if per_node == 1 else "")
    if not intra:
        intra = usual_link(gpu)
        if not intra:
            raise CalibrationError(f"{table.name}: the link between {gpu} GPUs is not known; give --intra (pcie4, ...)")
        assumed.append(f"link inside the node: {intra}, as {gpu} is usually sold")
    instance = find_instance([gpu])
    inter = machine.inter or ("none" if nodes == 1 else table.header.network or (instance.network if instance else ""))
    if nodes > 1 and instance and not machine.nic:
        assumed.append(f"network: that of {gpu}, {instance.source}")
    elif nodes > 1 and (not inter or not machine.nic):
        said = f" (the log speaks of {table.header.network})" if table.header.network else ""
        raise CalibrationError(
            f"{table.name}: {nodes} nodes, but no line says how fast their network is{said}; give --inter and --nic, "
            f"such as --inter ib_ndr --nic '400 Gb/s' per GPU, or --cluster"
        )
    return {
        "log_id": table.name,
        "collective": kind,
        "gpu": gpu,
        "gpus_per_node": str(per_node),
        "ranks": str(ranks),
        "intra": intra,
        "inter": inter,
        "nic_gbps_per_gpu": f"{in_unit(machine.nic, 'Gb/s', 'B/s'):g}" if machine.nic else "",
        "algo": "",
        "proto": "",
    }, assumed
