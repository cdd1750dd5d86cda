"""A cluster: nodes of GPUs, the levels of links that join them, and how many of them a job uses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.errors import SpecError
from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.hardware.gpu_spread import load_gpu_spread, longer_by
from simulator.hardware.jitter import Jitter
from simulator.hardware.link import BETWEEN_GPUS, Link, load_link
from simulator.hardware.parts import NORMAL, Pace, Part, parts_within
from simulator.hardware.power import Power
from simulator.hardware.reliability import Reliability
from simulator.remembered import hashed_once
from simulator.specs import Count, Listed, Name, NamedSpec, Names, Spec, is_path, load_named, name_of, named_in
from simulator.units import Bytes, BytesPerSecond, DollarsPerHour, Seconds, Watts

__all__ = [
    "MAX_WORLD_SIZE",
    "Cluster",
    "ClusterChanges",
    "ClusterSpec",
    "Level",
    "Node",
    "build_cluster",
    "load_cluster",
    "load_node",
]

MAX_WORLD_SIZE = 10**7
"""GPUs of the largest cluster that can be asked for."""


class Node(NamedSpec):
    """One machine.

    `gpu`, `link` (between its GPUs), `host_link` (to its CPU) and `network_link` (one NIC; "" = no network) are names
    of other data files.  `in_network_reduction`: its switches add up (NVLink SHARP).  `peer_to_peer`: GPUs write to
    each other directly; False = all traffic goes through the host's memory.  `host_memory` and `host_memory_bandwidth` are
    those of all its CPUs together, as data sheets print them; `gpus_per_host_link` share one host link.  `nvme`, `nvme_read` and
    `nvme_write` are those of all its drives together, the rates as large transfers reach them.  `gpu_power`: what each GPU may
    draw here, where that is less than its own limit (modules that share theirs with a CPU).  `socket_bandwidth`: what passes from
    the GPUs on one of two sockets to those on the other over PCIe, all together, one direction; None = all hang on one.
    """

    gpu: Name
    gpus: Annotated[int, Field(ge=1, le=1024)]
    link: Name
    host_link: Name
    network_link: str = ""
    nics: Annotated[int, Field(ge=0, le=1024)] = 0
    host: Literal["intel", "amd", "arm"]
    host_memory: Bytes | None = None
    host_memory_bandwidth: BytesPerSecond | None = None
    gpus_per_host_link: Annotated[int, Field(ge=1, le=64)] = 1
    nvme: Bytes | None = None
    nvme_read: BytesPerSecond | None = None
    nvme_write: BytesPerSecond | None = None
    in_network_reduction: bool = False
    peer_to_peer: bool = True
    gpu_power: Watts | None = None
    socket_bandwidth: BytesPerSecond | None = None

    def powered(self, gpu: Gpu) -> Gpu:
        """Return a GPU as it is here."""
        return gpu if self.gpu_power is None else gpu.model_copy(update={"power": min(gpu.power, self.gpu_power)})

    @model_validator(mode="after")
    def _check(self) -> Node:
        if bool(self.network_link) != bool(self.nics):
            raise ValueError(f"nics = {self.nics} with network_link = {self.network_link!r}: give both or neither")
        if len({bool(value) for value in (self.nvme, self.nvme_read, self.nvme_write)}) > 1:
            raise ValueError("nvme, nvme_read and nvme_write belong together: give all three or none")
        return self


class ClusterSpec(NamedSpec):
    """A cluster's data file.

    `nodes` is the size when a job names none.  `nodes_per_rack` > 1: the nodes' own link spans so many nodes (NVL72).
    `oversubscription` is the loss of bandwidth above the leaf switches (1 = none).  `network_latency` [s] adds to the
    NIC link's own.  `in_network_reduction`: the fabric's switches add up (SHARP).  `calibration` names fitted data
    files; empty = uncalibrated.  `parts`: GPUs, machines and links that differ from the rest.  `jitter`: how much its steps
    vary.  `gpu_spread`: standard deviation of the speed of its GPUs, the slowest of which sets the pace; by default that of
    calibrations/gpu_spread.toml.  `reliability`, `checkpoint` and `power`: what fails there, how state is saved, and its electricity.

    `algorithms` names, by collective, those that its library chooses from (`{all_reduce = ["ring", "rabenseifner"]}`); of
    collectives not named, those that libraries of today choose among compete.

    `topology` "rails" (leaf r holds card r of the nodes of a pod) or "leaf_spine" (a leaf holds all cards of a pod's
    nodes) says which flows share which switches; then `oversubscription` is felt by flows that leave their leaf only,
    `nodes_per_pod` is how many nodes hang on the same leaves, and `pxn` whether bytes for another rail cross inside the
    node first.  Without it, every flow between nodes feels the oversubscription.
    """

    node: Name
    nodes: Count = 1
    nodes_per_rack: Annotated[int, Field(ge=1, le=1024)] = 1
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0
    network_latency: Seconds = 0.0
    in_network_reduction: bool = False
    topology: Literal["", "rails", "leaf_spine"] = ""
    nodes_per_pod: Count | None = None
    pxn: bool = True
    price_per_gpu_hour: DollarsPerHour | None = None
    calibration: Names = ()
    algorithms: dict[Name, Names] = Field(default_factory=dict)
    parts: Annotated[tuple[Part, ...], Listed] = ()
    jitter: Jitter | None = None
    gpu_spread: Annotated[float, Field(ge=0, le=0.5)] | None = None
    reliability: Reliability | None = None
    checkpoint: Checkpoint | None = None
    power: Power | None = None

    @model_validator(mode="after")
    def _check(self) -> ClusterSpec:
        if not self.topology and (self.nodes_per_pod is not None or not self.pxn):
            raise ValueError('nodes_per_pod and pxn describe a topology: give topology = "rails" or "leaf_spine" too')
        if self.topology and self.nodes_per_pod is None:
            raise ValueError(
                f"topology = {self.topology!r} needs nodes_per_pod: how many nodes hang on the same leaves"
            )
        if self.nodes_per_pod is not None and self.nodes_per_pod % self.nodes_per_rack:
            raise ValueError(
                f"nodes_per_pod must be whole racks, but {self.nodes_per_pod} are no multiple of {self.nodes_per_rack}"
            )
        return self


class ClusterChanges(Spec):
    """What a job may say in place of what the files of its cluster and node say; what is not given stays theirs.

    `node`, `gpu`, `link`, `network_link`, `nics` change the machine: the calibration that the cluster's file may name is then left
    for the one that belongs to the new parts.
    """

    node: Name | None = None
    gpu: Name | None = None
    link: Name | None = None
    network_link: Name | None = None
    nics: Annotated[int, Field(ge=1, le=1024)] | None = None
    oversubscription: Annotated[float, Field(ge=1, le=1000)] | None = None
    network_latency: Seconds | None = None
    price_per_gpu_hour: DollarsPerHour | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is not left to the files."""
        return {key: value for key in ClusterChanges.model_fields if (value := getattr(self, key)) is not None}


_PARTS = ("gpu", "link", "host_link", "network_link")
_OF_MACHINE = ("gpu", "link", "network_link", "nics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a cluster, seen from a GPU.

    Args:
        name: "node", "rack" (nodes that share their inner link) or "fabric" (the network).
        size: ranks inside one instance of the level; of the fabric: the world size.
        link: the link that joins them.
        bandwidth: [B/s] per GPU, one direction.
        latency: [s] of one hop.
        oversubscription: how many times less bandwidth is left when all talk across the level's upper switches (>= 1).
    """

    name: Literal["node", "rack", "fabric"]
    size: int
    link: Link
    bandwidth: float
    latency: float
    oversubscription: float = 1.0


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a job runs on: so many GPUs of a cluster, with everything its data files say.

    `levels` go from innermost to outermost and end with the first that holds the whole job: a job within one node has
    only the node level.  `network` is one NIC's link, None without a network.  `parts` differ from the rest; `pace` is how
    fast its GPUs run what is priced.  `changes` are what its files did not say; `path` is that of its file, where this was
    given in place of a name.
    """

    name: str
    spec: ClusterSpec
    gpu: Gpu
    node: Node
    link: Link
    host_link: Link
    network: Link | None
    nodes: int
    world_size: int
    levels: tuple[Level, ...]
    parts: tuple[Part, ...] = ()
    pace: Pace = NORMAL
    changes: ClusterChanges = ClusterChanges()
    path: str = field(default="", compare=False)

    @property
    def given_as(self) -> str:
        """What `load_cluster` takes for it: the path of its file where it has no name that is known, else its name."""
        return self.path or self.spec.name

    @property
    def own_parts(self) -> tuple[Part, ...]:
        """What a job says of parts that differ, beside the cluster's file."""
        return self.parts[len(_file_parts(self.spec, self.node, self.world_size)) :]

    @property
    def uncapped_gpu(self) -> Gpu:
        """The GPU as its node has it, whatever a job caps it to."""
        return self.node.powered(load_gpu(self.node.gpu))

    @property
    def gpus_per_node(self) -> int:
        """GPUs that the job uses on each node (of a job smaller than a node: all of the job)."""
        return min(self.node.gpus, self.world_size)

    @property
    def machine(self) -> str:
        """What runs on it count as measured on: its GPU and, beyond one node, the kind of its network (RoCE has InfiniBand's cards)."""
        if self.network is None or self.world_size <= self.node.gpus * self.spec.nodes_per_rack:
            return self.gpu.name
        kind = "infiniband" if self.network.technology == "roce" else self.network.technology
        return f"{self.gpu.name} {kind}"

    @property
    def gpu_spread(self) -> float:
        """Standard deviation of the speed of its GPUs, relative to their mean."""
        own = self.spec.gpu_spread
        return load_gpu_spread().sigma if own is None else own

    @property
    def slowest_gpu(self) -> float:
        """By which part the slowest of its GPUs is expected to take longer over products and attention than the middle one."""
        return longer_by(self.gpu_spread, self.world_size)

    @property
    def calibration(self) -> tuple[str, ...]:
        """Names of the fitted data files; empty = uncalibrated."""
        return self.spec.calibration

    @property
    def price_per_gpu_hour(self) -> float | None:
        """Price of one GPU [$/h], if the data file has one."""
        return self.spec.price_per_gpu_hour

    def level(self, name: str) -> Level | None:
        """Return the level of this name, None when the job does not reach it."""
        return next((level for level in self.levels if level.name == name), None)

    def resized(self, gpus: int) -> Cluster:
        """Return the same kind of cluster with `gpus` GPUs; a job smaller than one node is allowed.

        Raises:
            SpecError: not a whole number of nodes, no network between nodes, or beyond 10 million GPUs.

        >>> load_cluster("dgx_a100").resized(64).nodes
        8
        """
        built = build_cluster(self.spec, self.gpu, self.node, self.link, self.host_link, self.network, gpus)
        return replace(built, parts=built.parts + self.own_parts, pace=self.pace, changes=self.changes, path=self.path)

    def with_spread(self, sigma: float) -> Cluster:
        """Return the same with GPUs that differ by so much, whatever its file says."""
        return replace(self, spec=self.spec.model_copy(update={"gpu_spread": sigma}))

    def electricity(self, said: Power | None = None) -> Power:
        """Return what a job says of its electricity, else what the cluster's file says."""
        return said or self.spec.power or Power()

    def under(self, power: Power) -> Cluster:
        """Return the same with GPUs that keep below a cap, if there is one; errors as of `Power.capped`."""
        return self if power.cap is None else replace(self, gpu=power.capped(self.gpu))


def load_node(name: str) -> Node:
    """Return the node of this name, alias or file.

    Raises:
        SpecError: no such node, or its file is wrong.
    """
    return load_named("nodes", name, Node)


def load_cluster(name: str | Path, gpus: int | None = None, changes: ClusterChanges | None = None) -> Cluster:
    """Return a cluster with all its data files read.

    Args:
        name: a name or alias under hardware_specs/clusters, or a TOML file.
        gpus: how many GPUs; None = the file's own size.
        changes: what holds in place of what the files say.

    Raises:
        SpecError: a file is wrong or missing (all of them are reported together), or the size cannot be.

    >>> [(level.name, level.size) for level in load_cluster("dgx_a100", 64).levels]
    [('node', 8), ('fabric', 64)]
    """
    given = {} if changes is None else changes.given
    name = name_of(name)
    spec = load_named("clusters", name, ClusterSpec)
    spec = spec.model_copy(update={key: value for key, value in given.items() if key not in _OF_MACHINE})
    file = name if is_path(name) else ""
    its = named_in(file, spec.node)
    node = _refer(f"cluster {spec.name!r}", [("node", its, load_node)])[0]
    if is_path(its):
        node = node.model_copy(update={key: named_in(its, getattr(node, key)) for key in _PARTS})
    machine = {key: value for key, value in given.items() if key in _OF_MACHINE}
    if machine or "node" in given:
        spec, node = spec.model_copy(update={"calibration": ()}), _changed_node(node, machine)
    wanted = [("gpu", node.gpu, load_gpu), ("link", node.link, load_link), ("host_link", node.host_link, load_link)]
    if node.network_link:
        wanted.append(("network_link", node.network_link, load_link))
    gpu, link, host_link, *network = _refer(f"node {node.name!r}", wanted)
    size = spec.nodes * node.gpus if gpus is None else gpus
    built = build_cluster(spec, gpu, node, link, host_link, network[0] if network else None, size)
    return replace(built, changes=changes or built.changes, path=file)


def _changed_node(node: Node, changes: dict[str, Any]) -> Node:
    """Return a node with other parts."""
    made = node.model_copy(update=changes | ({"gpu_power": None} if "gpu" in changes else {}))
    if bool(made.network_link) != bool(made.nics):
        raise SpecError(
            f"node {node.name!r} has no network, so a network needs both: cluster.network_link = NAME and cluster.nics = N. "
            f"Got network_link = {made.network_link!r}, nics = {made.nics}"
        )
    return made


def _refer(owner: str, wanted: list[Any]) -> list[Any]:
    """Load each (key, name, loader); report all that fail together."""
    found, errors = [], []
    for key, name, load in wanted:
        try:
            found.append(load(name))
        except SpecError as error:
            errors.append(f"{owner}, {key} = {name!r}: {error}")
    if errors:
        raise SpecError("\n".join(errors))
    return found


def build_cluster(
    spec: ClusterSpec, gpu: Gpu, node: Node, link: Link, host_link: Link, network: Link | None, gpus: int
) -> Cluster:
    """Return a cluster of `gpus` GPUs made of these.

    Raises:
        SpecError: not a whole number of nodes, no network between nodes, a network between GPUs, or beyond 10 million GPUs.
    """
    if node.gpus > 1 and link.technology not in BETWEEN_GPUS:
        raise SpecError(
            f"node {node.name!r}, link = {link.name!r}: the GPUs of a node are connected by one of {', '.join(BETWEEN_GPUS)}, but "
            f"this is {link.technology}. Way out: such a link, or gpus = 1 with {link.name} as network_link"
        )
    _check_size(spec, node, network, gpus)
    levels = [_level("node", min(node.gpus, gpus), link, link.bandwidth)]
    if spec.nodes_per_rack > 1 and gpus > node.gpus:
        levels.append(_level("rack", _rack_size(spec, node, gpus), link, link.bandwidth))
    if network is not None and gpus > levels[-1].size:
        per_gpu = network.bandwidth * node.nics / node.gpus
        levels.append(
            Level(
                name="fabric",
                size=gpus,
                link=network,
                bandwidth=per_gpu,
                latency=network.latency + spec.network_latency,
                oversubscription=spec.oversubscription,
            )
        )
    return Cluster(
        name=spec.name,
        spec=spec,
        gpu=node.powered(gpu),
        node=node,
        link=link,
        host_link=host_link,
        network=network,
        nodes=-(-gpus // node.gpus),
        world_size=gpus,
        levels=tuple(levels),
        parts=_file_parts(spec, node, gpus),
    )


def _file_parts(spec: ClusterSpec, node: Node, gpus: int) -> tuple[Part, ...]:
    """The parts of a cluster's file that lie on machines of a job of so many GPUs."""
    inside = {"nodes": -(-gpus // node.gpus), "ranks": gpus}
    return parts_within(spec.parts, inside, {"nodes": spec.nodes, "ranks": spec.nodes * node.gpus})


def _level(name: Literal["node", "rack"], size: int, link: Link, bandwidth: float) -> Level:
    return Level(name=name, size=size, link=link, bandwidth=bandwidth, latency=link.latency)


def _rack_size(spec: ClusterSpec, node: Node, gpus: int) -> int:
    """Return the GPUs of the job in each rack: spread evenly over the fewest racks when that gives whole nodes."""
    full = spec.nodes_per_rack * node.gpus
    racks = -(-gpus // full)
    even = gpus // racks
    return even if gpus % racks == 0 and even % node.gpus == 0 else full


def _check_size(spec: ClusterSpec, node: Node, network: Link | None, gpus: int) -> None:
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_WORLD_SIZE:
        raise SpecError(
            f"the number of GPUs must be a whole number from 1 to {MAX_WORLD_SIZE}, but cluster {spec.name!r} is "
            f"asked for {str(gpus)[:40]}"
        )
    if gpus > node.gpus and gpus % node.gpus:
        below = gpus // node.gpus * node.gpus
        raise SpecError(
            f"beyond one node the number of GPUs must be a multiple of the node's {node.gpus}, but cluster "
            f"{spec.name!r} is asked for {gpus}. Nearest: {below} or {below + node.gpus}"
        )
    inside = node.gpus * spec.nodes_per_rack
    if gpus > inside and network is None:
        raise SpecError(
            f"cluster {spec.name!r} has no network, so it ends at {inside} GPUs, but is asked for {gpus}. Give node "
            f"{node.name!r} a network_link and nics, or choose another cluster"
        )
