"""The cluster of a row: one of ours where GPU, node and network agree, else one built in memory from the row's numbers."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

from simulator.errors import SimulatorError
from simulator.hardware.cluster import Cluster, ClusterSpec, Node, load_cluster, load_node
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.hardware.link import Link, load_link
from simulator.hardware.words import generation_in, load_words
from simulator.importers.table.rows import CannotPlace, Row, count, number, quantity, text
from simulator.importers.vocabulary.names import find_gpu, load_names
from simulator.specs import load_all, names
from simulator.units import show

__all__ = ["knows_machine", "row_cluster", "row_gpu"]

_SAME_RATE = 0.05
_NETWORKS = ("infiniband", "roce", "ethernet", "tcpx", "tcpxo", "efa", "omnipath", "slingshot", "aries", "ici")
_KINDS_OF_NETWORK = r"\b(efa|tcpxo|tcpx|roce|slingshot|omni-?path|ethernet)\b"
"""Networks that are not InfiniBand, which is taken where a row's words name none; the first that it names."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the row says: the key under which a cluster, once built, is remembered."""

    gpu: Gpu
    per_node: int
    link: Link
    rate: float | None
    technology: str
    rack: bool
    needs_network: bool


def row_cluster(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """Return (cluster with the row's number of GPUs, what was assumed).

    Raises:
        CannotPlace: the GPU is not known and the row has no numbers for it, or the number of GPUs cannot be.
    """
    world = count(row, "n_gpus")
    if world is None:
        raise CannotPlace("the row gives no n_gpus", counts=False)
    gpu, assumed = row_gpu(row)
    ours = _nodes_with(gpu.name)
    per_node = count(row, "gpus_per_node")
    if per_node is None:
        per_node = ours[0].gpus if ours else 8
        assumed += (f"gpus_per_node = {per_node}",)
    gpu = next((node.powered(gpu) for node in ours if node.gpus == per_node), gpu)
    link, more = _inner_link(row, gpu, ours)
    assumed += more
    fabric = load_names().fact(text(row, "source"), "network", gpu.name)
    needs = world > per_node
    words = f"{text(row, 'intra_link')} {text(row, 'quality_note')}".lower()
    said_kind = re.search(_KINDS_OF_NETWORK, words) if needs and fabric is None else None
    technology = fabric.network if fabric else said_kind.group(0).replace("-", "") if said_kind else ""
    said = number(row, "inter_gbps_per_gpu")
    rate = quantity("inter_gbps_per_gpu", f"{said} Gb/s", "B/s") if said and said > 0 else None
    usual = load_names().usual_networks.get(gpu.name)
    if rate is None and needs and usual is not None:
        rate = usual.rate
        assumed += (f"network of {show(rate, 'B/s')} per GPU ({usual.source})",)
    if needs and fabric:
        assumed += (f"network {technology} ({fabric.source})",)
    elif technology:
        assumed += (f"network {technology} (the row's own words)",)
    wanted = _Wanted(
        gpu,
        per_node,
        link,
        rate,
        technology,
        "nvl72" in (text(row, "intra_link") + text(row, "gpu")).lower() or _in_racks_alone(gpu.name),
        needs,
    )
    cluster, more = _cluster_like(wanted)
    cluster, switches = _with_switches(cluster, text(row, "source"), gpu.name, needs)
    more += switches
    machine = load_names().fact(text(row, "source"), "calibration", gpu.name)
    if machine is not None:
        spec = cluster.spec.model_copy(update={"calibration": (*machine.calibration, *cluster.spec.calibration)})
        cluster = replace(cluster, spec=spec)
        more += (f"calibration {', '.join(machine.calibration)} ({machine.source})",)
    try:
        return cluster.resized(world), assumed + more
    except SimulatorError as error:
        raise CannotPlace(str(error)) from None


def _with_switches(cluster: Cluster, source: str, gpu: str, several: bool) -> tuple[Cluster, tuple[str, ...]]:
    """Return (cluster, what was assumed) with the switches that are known of a source: a row names parts, never switches."""
    known = load_names().fact(source, "switches", gpu)
    if known is None:
        told: dict[str, object] = {"topology": "", "nodes_per_pod": None, "pxn": True}
        return replace(cluster, spec=cluster.spec.model_copy(update=told)), ()
    spec = load_cluster(known.switches).spec
    told = {name: getattr(spec, name) for name in ("topology", "nodes_per_pod", "pxn")}
    said = (f"switches as in cluster {known.switches} ({known.source})",) if several else ()
    return replace(cluster, spec=cluster.spec.model_copy(update=told)), said


def row_gpu(row: Row) -> tuple[Gpu, tuple[str, ...]]:
    """Return (GPU, what was assumed): by name, else made from the row's peak and memory and marked uncalibrated.

    Raises:
        CannotPlace: neither a name that we know nor numbers.
    """
    name = text(row, "gpu")
    gigabytes, peak = number(row, "gpu_mem_gb"), number(row, "gpu_peak_bf16_tflops")
    known = _named_gpu(row)
    if known is not None:
        return _as_owned(row, *known)
    if not peak and gigabytes and "mem_kind" in row and not text(row, "step_time_s"):
        return _of_memory(row, name, gigabytes)
    if not gigabytes or not peak or gigabytes < 1 or peak < 1:
        raise CannotPlace(
            f"GPU {name[:60]!r} is not known, and the row gives no gpu_peak_bf16_tflops and gpu_mem_gb for it"
        )
    flops = quantity("gpu_peak_bf16_tflops", f"{peak} TFLOP/s", "FLOP/s")
    memory = quantity("gpu_mem_gb", f"{gigabytes} GB", "B")
    pattern = min(
        _like(row, name), key=lambda g: (abs(math.log(_half(g) / flops)) + abs(math.log(g.memory / memory)), g.name)
    )
    factor = flops / _half(pattern)
    gpu = pattern.model_copy(
        update={
            "name": name or "unnamed GPU",
            "aliases": (),
            "memory": memory,
            "peak_flops": {dtype: value * factor for dtype, value in pattern.peak_flops.items()},
        }
    )
    return gpu, (f"GPU {name!r} is not known: peak and memory of the row, the rest of {pattern.name}; uncalibrated",)


def _named_gpu(row: Row) -> tuple[Gpu, tuple[str, ...]] | None:
    """Return (GPU of ours that a row names, what was assumed); None where no name is known or the row's peak is another card's."""
    name, peak = text(row, "gpu"), number(row, "gpu_peak_bf16_tflops")
    gigabytes = number(row, "gpu_mem_gb")
    if gigabytes is not None:
        quantity("gpu_mem_gb", f"{gigabytes} GB", "B")
    found = find_gpu(load_names(), name, gigabytes)
    if found is None:
        return None
    gpu = load_gpu(found.name)
    told = None if peak is None else quantity("gpu_peak_bf16_tflops", f"{peak} TFLOP/s", "FLOP/s")
    if told is not None and abs(told / _half(gpu) - 1) > _SAME_RATE and not found.exact:
        return None
    return gpu, () if found.exact else (f"GPU {name!r} taken for {found.name}",)


def _as_owned(row: Row, gpu: Gpu, assumed: tuple[str, ...]) -> tuple[Gpu, tuple[str, ...]]:
    """A GPU that a row names as the source's owner has it: another card of that name, or one that may draw less."""
    source = text(row, "source")
    card = load_names().fact(source, "card", gpu.name)
    if card is not None:
        gpu, assumed = load_gpu(card.card), (*assumed, f"GPU {card.card} ({card.source})")
    limit = load_names().fact(source, "gpu_power", gpu.name)
    if limit is not None and limit.gpu_power is not None:
        gpu = gpu.model_copy(update={"power": min(gpu.power, limit.gpu_power)})
        assumed = (*assumed, f"{show(gpu.power, 'W')} per GPU ({limit.source})")
    return gpu, assumed


def knows_machine(row: Row) -> bool:
    """Whether a row names a GPU of ours and, where several nodes take part, says how fast its network is."""
    several = (count(row, "n_gpus") or 1) > (count(row, "gpus_per_node") or 8)
    known = _named_gpu(row)
    if known is None or not several:
        return known is not None
    return bool(number(row, "inter_gbps_per_gpu") or load_names().fact(text(row, "source"), "network", known[0].name))


def _like(row: Row, name: str) -> list[Gpu]:
    """Our GPUs of the generation that a name means, else of the vendor that a row's words mean."""
    vendor = load_words().find("vendors", f"{name} {text(row, 'intra_link')}") or "nvidia"
    everyone, generation = load_all("gpus", Gpu).values(), generation_in(name)
    return [g for g in everyone if g.architecture == generation] or [g for g in everyone if g.vendor == vendor]


def _of_memory(row: Row, name: str, gigabytes: float) -> tuple[Gpu, tuple[str, ...]]:
    """An unknown GPU of a table of peaks, where no speed is asked for: the one with the nearest memory, with the row's."""
    memory = quantity("gpu_mem_gb", f"{gigabytes} GB", "B")
    pattern = min(_like(row, name), key=lambda g: (abs(g.memory - memory), g.name))
    gpu = pattern.model_copy(update={"name": name or "unnamed GPU", "aliases": (), "memory": memory})
    return gpu, (f"GPU {name!r} is not known: memory of the row, the rest of {pattern.name}; uncalibrated",)


def _half(gpu: Gpu) -> float:
    """Peak of the 16-bit formats [FLOP/s]."""
    return gpu.peak_flops.get("bf16") or gpu.peak_flops.get("fp16") or gpu.peak_flops["fp32"]


@functools.lru_cache(maxsize=64)
def _nodes_with(gpu: str) -> tuple[Node, ...]:
    return tuple(sorted((n for n in load_all("nodes", Node).values() if n.gpu == gpu), key=lambda n: (-n.gpus, n.name)))


_FAMILIES = {"infinityfabric": "xgmi", "xelink": "xe_link"}
"""Another word for a link's technology."""


def _link_of(technology: str, generation: str, own: list[Link], both: float | None) -> Link:
    """The link of this technology and generation, the one that our nodes with this GPU have, or the nearest in rate."""
    known = [link for link in load_all("links", Link).values() if link.technology == technology]
    exact = next((link for link in known if generation and link.name == technology + generation), None)
    exact = exact or next(
        (link for link in known if generation and link.name.startswith(technology + generation)), None
    )
    mine = next((link for link in own if link.technology == technology), None)
    told = both is None or (mine and abs(both / 2 / mine.bandwidth - 1) <= _SAME_RATE)
    if mine and told and mine.name.startswith(technology + generation):
        return mine
    if exact or (mine and both is None):
        return exact or mine or known[0]
    wanted = both / 2 if both else mine.bandwidth if mine else max(link.bandwidth for link in known)
    return min(known, key=lambda link: (abs(math.log(link.bandwidth / wanted)), link.name))


def _inner_link(row: Row, gpu: Gpu, ours: tuple[Node, ...]) -> tuple[Link, tuple[str, ...]]:
    """Return the link inside a node: by name, by its words, by its rate, else the one of our nodes with this GPU."""
    name = text(row, "intra_link")
    known = load_names().find("links", name) if name else None
    if known:
        return load_link(known), ()
    kind = re.search(r"(nvlink|pcie|xgmi|infinity ?fabric|hccs|ici|c2c|xe ?link|neuronlink)\D{0,6}(\d)?", name.lower())
    rate = re.search(r"([\d.]+)\s*GB/s", name)
    both = quantity("intra_link", f"{rate.group(1)} GB/s", "B/s") if rate else None
    if kind:
        technology = _FAMILIES.get(kind.group(1).replace(" ", ""), kind.group(1))
        joined = "switch" in name.lower()
        own = [link for node in ours if (link := load_link(node.link)).switched or not joined]
        link = _link_of(technology, kind.group(2) or "", own, both)
        if both is not None and abs(both / 2 / link.bandwidth - 1) > _SAME_RATE:
            link = link.model_copy(update={"name": name, "aliases": (), "bandwidth": both / 2})
        return link, (f"link {name!r} taken as {show(link.bandwidth, 'B/s')} per direction",)
    if ours:
        return load_link(ours[0].link), (f"link inside the node = {ours[0].link}",)
    return load_link("nvlink3"), (f"link inside the node = nvlink3 (none known for {gpu.name!r})",)


@functools.lru_cache(maxsize=256)
def _cluster_like(wanted: _Wanted) -> tuple[Cluster, tuple[str, ...]]:
    """Return a cluster of any size with these parts."""
    technologies = (wanted.technology,) if wanted.technology else _usual_networks(wanted.gpu.name)
    for name in names("clusters"):
        cluster = load_cluster(name)
        if _agrees(cluster, wanted, technologies):
            said = (wanted.rate and "infiniband" in technologies) or wanted.technology or not wanted.needs_network
            return cluster, () if said else (f"network as in cluster {name}",)
    return _built(wanted)


@functools.lru_cache(maxsize=64)
def _usual_networks(gpu: str) -> tuple[str, ...]:
    """Technologies of the network of a row that names none: InfiniBand, or those of our clusters with a GPU never seen on it."""
    ours = [cluster.network for name in names("clusters") if (cluster := load_cluster(name)).gpu.name == gpu]
    found = {network.technology for network in ours if network is not None}
    return tuple(sorted(found)) if found and "infiniband" not in found else ("infiniband",)


@functools.lru_cache(maxsize=64)
def _in_racks_alone(gpu: str) -> bool:
    """Whether all our clusters with this GPU join nodes in racks by its inner link."""
    ours = [
        cluster.spec.nodes_per_rack for name in names("clusters") if (cluster := load_cluster(name)).gpu.name == gpu
    ]
    return bool(ours) and min(ours) > 1


def _agrees(cluster: Cluster, wanted: _Wanted, technologies: tuple[str, ...]) -> bool:
    node = cluster.node
    if cluster.gpu != wanted.gpu or node.gpus != wanted.per_node or cluster.link.name != wanted.link.name:
        return False
    if (cluster.spec.nodes_per_rack > 1) != (wanted.rack and wanted.per_node < 72):
        return False
    if not wanted.needs_network:
        return True
    if cluster.network is None or cluster.spec.oversubscription > 1:
        return False
    if cluster.network.technology not in technologies:
        return False
    return wanted.rate is None or abs(cluster.network.bandwidth * node.nics / node.gpus / wanted.rate - 1) <= _SAME_RATE


def _network_rate(node: Node) -> float:
    """Return what each GPU of a node has of its network, per direction [B/s]."""
    return load_link(node.network_link).bandwidth * node.nics / node.gpus


def _built(wanted: _Wanted) -> tuple[Cluster, tuple[str, ...]]:
    """Build node and cluster in memory, on the pattern of one of our nodes with this GPU where there is one."""
    ours = _nodes_with(wanted.gpu.name)
    pattern = ours[0] if ours else load_node("dgx_a100_80")
    technology = wanted.technology or "infiniband"
    assumed: tuple[str, ...] = ()
    rate = wanted.rate
    if rate is None and wanted.needs_network:
        known = sorted((n for n in ours if n.network_link), key=_network_rate)
        other = known[len(known) // 2] if known else load_node("dgx_a100_80")
        rate, technology = _network_rate(other), wanted.technology or load_link(other.network_link).technology
        assumed = (f"network of {show(rate, 'B/s')} per GPU, as node {other.name}",)
    network, nics = (None, 0) if rate is None else _network(technology, rate, wanted.per_node)
    node = pattern.model_copy(
        update={
            "name": f"node of {wanted.per_node} x {wanted.gpu.name}",
            "aliases": (),
            "gpu": wanted.gpu.name,
            "gpus": wanted.per_node,
            "link": wanted.link.name,
            "network_link": network.name if network else "",
            "nics": nics,
        }
    )
    spec = ClusterSpec(
        name=f"{node.name}, {network.name if network else 'no network'}",
        node=node.name,
        nodes_per_rack=max(1, 72 // wanted.per_node) if wanted.rack else 1,
    )
    cluster = Cluster(
        name=spec.name,
        spec=spec,
        gpu=wanted.gpu,
        node=node,
        link=wanted.link,
        host_link=load_link(pattern.host_link),
        network=network,
        nodes=1,
        world_size=1,
        levels=(),
    )
    return cluster, (*assumed, f"cluster built from the row's numbers: {spec.name}")


def _network(technology: str, rate: float, per_node: int) -> tuple[Link, int]:
    """Return (the link of one card, cards per node) that give this rate per GPU [B/s]."""
    links = [link for link in load_all("links", Link).values() if link.technology in _NETWORKS]
    same = [link for link in links if link.technology == technology] or links
    for link in sorted(same, key=lambda link: abs(math.log(link.bandwidth / rate))):
        cards = rate * per_node / link.bandwidth
        if cards >= 0.99 and abs(cards - round(cards)) < 0.02 and round(cards) <= 4 * per_node:
            return link, round(cards)
    nearest = min(same, key=lambda link: abs(math.log(link.bandwidth / rate)))
    name = f"{technology} {show(rate, 'B/s')}"
    return nearest.model_copy(update={"name": name, "aliases": (), "bandwidth": rate}), per_node
