"""The constants of collective communication: what the library believes, and what measurements say about it.

Two kinds of data file lie under hardware_specs/calibrations:

* `nccl_prior`: the constants of NCCL's own cost model (latencies, caps, efficiencies), for every GPU and link;
* `nccl_*`: profiles, fitted to logs of nccl-tests by `simulator.calibration.collectives`.  A profile multiplies the prior's
  latency and bandwidth of an (algorithm, protocol) pair, and says how well that then agreed with the logs.

A cluster finds its profiles by what they apply to: GPU generation, link inside the node, network.  One profile speaks
for groups inside a node, another for groups that leave it; `nccl_any_node` and `nccl_any_fabric`, fitted to the logs of
all platforms together (`nccl_any_rccl_...`: AMD's), for everything else.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PlainSerializer, PlainValidator

from simulator.hardware.fabric import Backend, Fabric
from simulator.hardware.group_placement import GroupPlacement
from simulator.specs import Count, Listed, Name, NamedSpec, Spec, load_named, names, working_folder
from simulator.units import Bytes, BytesPerSecond, Seconds

__all__ = [
    "SIZE_CLASSES",
    "AppliesTo",
    "CostTable",
    "Library",
    "Own",
    "Pair",
    "PairName",
    "Profile",
    "Residual",
    "ResidualClass",
    "SizeRange",
    "find_profile",
    "library_of",
    "load_cost_table",
    "network_paths",
    "pooled_name",
    "pooled_profile",
    "size_class",
]

Multiplier = Annotated[float, Field(gt=0, le=1000)]


Caps = dict[str, Annotated[tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond], Listed]]
Factors = Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Listed]
Latencies = dict[str, Seconds]
Words = Annotated[tuple[str, ...], Listed]

Sigma = Annotated[float, Field(gt=0, le=10)]


class CostTable(NamedSpec):
    """The constants of NCCL's tuning model; `hardware_specs/calibrations/nccl_prior.toml` explains each table."""

    generation: dict[str, Name]
    base_latency: dict[str, Latencies]
    hop_latency: dict[str, dict[str, Latencies]]
    host_overhead: dict[str, Latencies]
    ll_cap: Caps
    ll_cap_row: dict[str, Name]
    ring_ll128_cap: Caps
    tree_ll128_cap: Caps
    tree_cap: Caps
    nvls_tree_cap: Caps
    nvls_attained: dict[str, float]
    channels: dict[str, Count]
    attained: dict[str, float]
    attained_network: dict[str, float]
    path_share: dict[str, Annotated[float, Field(gt=0, le=1)]]
    leaf_cards: Count
    efficiency: dict[str, float]
    payload: dict[str, float]
    chunk: dict[str, Bytes]
    plateau: dict[str, float]
    network_latency: dict[str, Seconds]
    tree_medium: dict[str, Factors]
    between_kinds: Sigma
    between_hosts: Sigma
    single_process_launch: Seconds
    point_to_point_call: Seconds
    plugin_algorithms: dict[str, Words]
    plugin_protocols: dict[str, Words]

    def offers(self, network: str, algorithm: str, protocol: str) -> bool:
        """Return whether a network's plugin leaves NCCL a choice; of networks not named it leaves all."""
        algorithms, protocols = self.plugin_algorithms.get(network), self.plugin_protocols.get(network)
        return algorithm in (algorithms or (algorithm,)) and protocol in (protocols or (protocol,))

    def share_of_paths(self, fabric: Fabric) -> float:
        """Return what few long flows get of a card where nobody tells how they are spread over paths of equal length.

        1 where the switches are described, where all cards of a job may hang on one leaf, and where a network sends each packet by
        another path.
        """
        if fabric.topology is not None or fabric.cards <= self.leaf_cards:
            return 1.0
        return self.path_share.get(fabric.network, 1.0)

    def generation_of(self, fabric: Fabric) -> str:
        """Return the GPU generation whose constants a fabric's GPUs take."""
        return self.generation[fabric.architecture]


class AppliesTo(Spec):
    """Which clusters a profile speaks for; `network` "" = groups inside a domain."""

    architecture: str
    intra: str
    network: str
    peer_to_peer: bool

    @staticmethod
    def of(fabric: Fabric, level: str) -> AppliesTo:
        """Return what a group on these wires looks for; NVLink that spans the nodes of a rack is a platform of its own."""
        rack = fabric.intra and fabric.domain_size > fabric.node_size
        return AppliesTo(
            architecture=fabric.architecture,
            intra=f"{fabric.intra}_rack" if rack else fabric.intra,
            network=fabric.network if level == "fabric" else "",
            peer_to_peer=fabric.peer_to_peer,
        )


class SizeRange(Spec):
    """The message sizes [B] that were measured."""

    smallest: Bytes
    largest: Bytes


class Pair(Spec):
    """Multipliers on the prior's latency and bandwidth of one (algorithm, protocol).

    `ramp` r adds r x sqrt(latency x message / bandwidth): chunks that fill and drain the pipeline.
    """

    latency: Multiplier
    bandwidth: Multiplier
    ramp: Annotated[float, Field(ge=0, le=1000)]


class PairName(NamedTuple):
    """An algorithm with a protocol; a file writes "ring:ll128"."""

    algorithm: str
    protocol: str

    def __str__(self) -> str:
        return ":".join(self)


class ResidualClass(NamedTuple):
    """A collective by an algorithm, of one size class or ("") of all; a file writes "all_reduce:ring:large"."""

    kind: str
    algorithm: str
    size: str = ""

    def __str__(self) -> str:
        return ":".join(filter(None, self))


def _pair_name(value: object) -> PairName:
    words = value.split(":") if isinstance(value, str) else value
    if not isinstance(words, list | PairName) or len(words) != 2:
        raise ValueError('expected "algorithm:protocol", such as "ring:ll128"')
    return PairName(*words)


def _residual_class(value: object) -> ResidualClass:
    words = value.split(":") if isinstance(value, str) else value
    if not isinstance(words, list | ResidualClass) or len(words) not in (2, 3):
        raise ValueError('expected "kind:algorithm" or "kind:algorithm:size", such as "all_reduce:ring:large"')
    return ResidualClass(*words)


_PairKey = Annotated[PairName, PlainValidator(_pair_name), PlainSerializer(str)]
_ClassKey = Annotated[ResidualClass, PlainValidator(_residual_class), PlainSerializer(str)]
_PairKeys = Annotated[tuple[_PairKey, ...], Listed]


class Residual(Spec):
    """How far a class of predictions was from the logs: |predicted / measured - 1| at two quantiles; sigma of logs."""

    points: Count
    residual_p50: Annotated[float, Field(ge=0)]
    residual_p95: Annotated[float, Field(ge=0)]
    sigma: Sigma


class Own(Spec):
    """What a profile leaves over on one of its own logs: sigma by size class, for that very group of that machine."""

    kind: str
    ranks: Count
    nodes: Count
    small: Sigma
    middle: Sigma
    large: Sigma


RING_KIN = ("all_gather", "reduce_scatter", "all_reduce")
"""Kinds of which a ring sends the same pieces over the same wires."""


class Profile(NamedSpec):
    """Fitted multipliers of one platform: `pairs` by algorithm and protocol, `classes` by kind, algorithm and size.

    The sigmas of `classes` are for another machine of this kind, those of `own`, by log, for the machine of that log,
    which a cluster that names the profile is where `one_machine` says that all logs are of one;
    `unseen` of a profile of all platforms is the sigma between machines of one kind, by size class.  `borrowed` are the pairs
    taken from kin (the same GPU and links on cards of the same make), which no log of the platform holds.

    `others` is what the platform's pairs have in common, for pairs that its logs do not hold.  `single_process_launch`
    [s] is what ONE process that launches for all its GPUs (nccl-tests -g 8) takes for each of them; training runs one
    process per GPU, so it stands here only to explain those logs.  `network_latency` [s] by network technology is what
    a hop takes beyond NCCL's constants; of a technology not named the cost table's.

    `backend`: the library.  Of one that copies messages through host memory, `host_rate` is what a thread of the host moves: no rank
    gets more of any wire; without it the multipliers say so of one platform.  `offers`: the pairs that the library has; none
    named = all.
    """

    backend: Backend = "nccl"
    host_rate: BytesPerSecond | None = None
    offers: _PairKeys = ()
    applies_to: AppliesTo | None = None
    size_range: SizeRange
    pairs: dict[_PairKey, Pair]
    classes: dict[_ClassKey, Residual]
    everything: Residual
    logs: dict[str, str]
    own: dict[str, Own] = Field(default_factory=dict)
    one_machine: bool = False
    unseen: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    borrowed: _PairKeys = ()
    others: Pair = Pair(latency=1.0, bandwidth=1.0, ramp=0.0)
    single_process_launch: Seconds = 0.0
    network_latency: dict[str, Seconds] = Field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """Whether measurements of this very platform stand behind it."""
        return self.applies_to is not None and bool(self.logs)

    def hop(self, network: str) -> float:
        """Return what a hop through a network takes beyond NCCL's constants [s]."""
        return self.network_latency.get(network, load_cost_table().network_latency.get(network, 0.0))

    def holds(self, pair: PairName) -> bool:
        """Return whether its own logs hold a pair."""
        return pair in self.pairs and pair not in self.borrowed

    def measured(self, kind: str, algorithm: str, protocol: str, message: float) -> bool:
        """Return whether its logs hold such collectives, that pair, and sizes around this one [B]."""
        return (
            self.calibrated
            and ResidualClass(kind, algorithm) in self.classes
            and self.holds(PairName(algorithm, protocol))
            and self.size_range.smallest <= message <= self.size_range.largest
        )

    def residual(self, kind: str, algorithm: str, message: float) -> Residual:
        """Return how well such collectives are known at this size [B]; of a class never measured, how well all are."""
        found = self.classes.get(ResidualClass(kind, algorithm, size_class(message)))
        return found or self.classes.get(ResidualClass(kind, algorithm), self.everything)

    def kin_sigma(self, kind: str, algorithm: str, protocol: str, message: float) -> float | None:
        """Return how well a kind that the logs do not hold is known by its kin; None where it has none.

        A ring's all_gather, reduce_scatter and all_reduce send the same pieces over the same wires (the last both ways): what
        one of them shows of a platform holds for the others but for what kinds of one machine differ by.
        """
        if algorithm != "ring" or kind not in RING_KIN:
            return None
        kin = [k for k in RING_KIN if k != kind and self.measured(k, algorithm, protocol, message)]
        found = [self.residual(k, algorithm, message).sigma ** 2 for k in kin]
        return math.sqrt(sum(found) / len(found) + load_cost_table().between_kinds ** 2) if found else None

    def own_sigma(self, kind: str, message: float, place: GroupPlacement, log: str = "") -> float | None:
        """Return how well such collectives are known on the machine of a log; None where it did not measure them.

        Args:
            kind: the collective.
            message: its size [B].
            place: the group; one of another size or spread is not what was measured.
            log: name of the log; "" = all logs are of the machine asked for.
        """
        if not self.size_range.smallest <= message <= self.size_range.largest:
            return None
        asked = (kind, place.ranks, place.nodes)
        logs = [self.own[name] for name in ([log] if log else self.own) if name in self.own]
        found = [getattr(one, size_class(message)) for one in logs if (one.kind, one.ranks, one.nodes) == asked]
        return math.sqrt(sum(sigma**2 for sigma in found) / len(found)) if found else None


@functools.lru_cache(maxsize=1)
def load_cost_table() -> CostTable:
    """Return NCCL's own constants.

    >>> load_cost_table().channels["ampere"]
    12
    """
    return load_named("calibrations", "nccl_prior", CostTable)


def network_paths(fabric: Fabric) -> dict[str, float]:
    """Return what few long flows get of a card between switches that nobody described, of how many cards; {} where they lose nothing."""
    share = load_cost_table().share_of_paths(fabric)
    return {"cards": fabric.cards, "share": share} if share < 1.0 else {}


Library = Literal["nccl", "rccl"]


def library_of(architecture: str, level: str) -> Library:
    """Return with whose logs a GPU's are fitted together: NVIDIA's, or those of AMD's port with its own kernels.

    Between nodes the network decides more than the kernels, and AMD's few logs stand with the others.

    >>> library_of("hopper", "node"), library_of("cdna3", "node"), library_of("cdna3", "fabric")
    ('nccl', 'rccl', 'nccl')
    """
    return "rccl" if architecture.startswith("cdna") and level == "node" else "nccl"


SIZE_CLASSES = ("small", "middle", "large")
"""Messages below 64 KiB, where latency counts; below 16 MiB; and from there on, where bandwidth does."""

_SIZE_EDGES = (2.0**16, 2.0**24)


def size_class(message: float) -> str:
    """Return the size class of a message [B].

    >>> size_class(1024), size_class(2.0**20), size_class(2.0**30)
    ('small', 'middle', 'large')
    """
    return SIZE_CLASSES[sum(message >= edge for edge in _SIZE_EDGES)]


def pooled_name(level: str, library: Library) -> str:
    """Return the name of the profile fitted to the logs of all platforms of a library."""
    return f"nccl_any_{'rccl_' if library == 'rccl' else ''}{level}"


@functools.lru_cache(maxsize=4)
def pooled_profile(level: Literal["node", "fabric"], library: Library = "nccl") -> Profile:
    """Return the profile fitted to the logs of all platforms together, for clusters that were never measured."""
    return load_named("calibrations", pooled_name(level, library), Profile)


def find_profile(fabric: Fabric, level: Literal["node", "fabric"]) -> Profile:
    """Return the profile for groups inside a domain ("node") or across domains ("fabric").

    Named ones (`cluster.calibration`) go before those that match; of several, the one with the most points wins.

    Raises:
        SpecError: a calibration file is wrong, or no file bears a name that the cluster gives.
    """
    return _find(fabric, level, working_folder())


@functools.lru_cache(maxsize=1024)
def _find(fabric: Fabric, level: Literal["node", "fabric"], directory: str) -> Profile:
    crosses = level == "fabric"
    for name in fabric.calibration:
        if name.startswith("nccl_"):
            profile = load_named("calibrations", name, Profile)
            speaks = profile.applies_to is None or bool(profile.applies_to.network) == crosses
            if speaks and profile.backend == fabric.backend:
                return profile
    wanted = AppliesTo.of(fabric, level)
    found = [p for p in _profiles(directory) if p.applies_to == wanted and p.backend == fabric.backend]
    if found:
        return max(found, key=lambda profile: profile.everything.points)
    if fabric.backend == "gloo":
        return load_named("calibrations", "nccl_any_gloo", Profile)
    return pooled_profile(level, library_of(fabric.architecture, level))


@functools.lru_cache(maxsize=8)
def _profiles(directory: str) -> tuple[Profile, ...]:
    """Return all profiles; `directory` is where they were looked for, as the working directory's own come first."""
    listed = [n for n in names("calibrations") if n.startswith("nccl_") and n != "nccl_prior"]
    return tuple(load_named("calibrations", name, Profile) for name in listed)
