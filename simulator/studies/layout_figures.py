"""What a layout makes of a model, operation by operation: the numbers of `dtsim layout`.

model --graphs of its kinds of layers--> derive(layout) --> shapes, FLOP, collectives --cluster--> seconds

One kind of layer is shown once with how often the model has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from simulator.lowering.layers.expand import in_decoder, layer_kinds
from simulator.partition.derive import DerivedOp, derive
from simulator.partition.einsum_text import einsum_text
from simulator.partition.exchanges import Collective
from simulator.partition.infer import Inferred
from simulator.partition.layout import PARTIAL, Mesh, Placement, Shard
from simulator.partition.placements import LaidOut
from simulator.partition.sbp import to_sbp
from simulator.partition.signatures import Chosen, op_boxing_bytes
from simulator.plan.framework import load_framework
from simulator.studies.layout_seconds import Seconds, op_seconds
from simulator.workload.families import FAMILIES
from simulator.workload.graph import LayerGraph
from simulator.workload.layer_case import LayerCase
from simulator.workload.layer_kind import MTP_HEAD, MTP_LAYER
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import precision_named

__all__ = ["Block", "LayoutFigures", "OpFigures", "layout_figures", "model_blocks"]


@dataclass(frozen=True, slots=True)
class OpFigures:
    """One operation: as it was derived, and seconds of its work and of each of its collectives, None without a cluster."""

    derived: DerivedOp
    einsum: str
    seconds: Seconds | None

    @property
    def label(self) -> str:
        """Its name."""
        return self.derived.op.label


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of layer, and how often a model has it."""

    kind: str
    count: int
    graph: LayerGraph
    ops: tuple[OpFigures, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFigures:
    """A model on a mesh.

    Args:
        model, layout, cluster: names; cluster "" = without seconds.
        notes: what was assumed, in words.
        inferred: what followed from annotations; None where rules say everything.
        chosen: what was chosen for the operations; `beside`: the figures of what would have followed from the same annotations.
    """

    model: str
    layout: str
    mesh: Mesh
    batch: int
    sequence: int
    blocks: tuple[Block, ...]
    cluster: str = ""
    notes: tuple[str, ...] = ()
    inferred: Inferred | None = None
    chosen: Chosen | None = None
    beside: LayoutFigures | None = None

    def each(self) -> Iterable[tuple[int, OpFigures]]:
        """Yield every operation with how often the model has it."""
        return ((block.count, op) for block in self.blocks for op in block.ops)

    def collectives(self) -> Iterable[tuple[int, Collective]]:
        """Yield every collective with how often it runs."""
        return ((n, c) for n, op in self.each() for c in op.derived.collectives)

    @property
    def weight_bytes(self) -> float:
        """Weights that a rank holds [B]."""
        return sum(
            n * math.prod(d.size for d in o.shape) * o.tensor.element
            for n, op in self.each()
            for o in op.derived.part("weight")
        )

    @property
    def boxing_bytes(self) -> float:
        """Bytes that the forward of the whole model moves over all ranks to bring tensors where operations need them [B]."""
        return sum(n * op_boxing_bytes(op.derived, self.mesh) for n, op in self.each())

    def totals(self) -> dict[str, Any]:
        """Return the sums over a forward and a backward of the whole model, on one rank."""
        sent = {d: sum(n * c.sent for n, c in self.collectives() if c.direction == d) for d in ("forward", "backward")}
        kinds = Counter[str]()
        for n, c in self.collectives():
            kinds[c.kind] += n
        out: dict[str, Any] = {
            "flops": sum(n * op.derived.flops for n, op in self.each()),
            "backward_flops": sum(n * op.derived.backward_flops for n, op in self.each()),
            "bytes": sum(n * c.bytes for n, c in self.collectives()),
            "sent_bytes": sum(sent.values()),
            "sent_forward_bytes": sent["forward"],
            "sent_backward_bytes": sent["backward"],
            "collectives": dict(kinds),
            "weight_bytes": self.weight_bytes,
        }
        if self.cluster:
            known = [(n, op.seconds) for n, op in self.each() if op.seconds]
            out["compute_s"] = sum(n * (s.forward + s.backward) for n, s in known)
            out["communication_s"] = sum(n * sum(s.collectives) for n, s in known)
            out["seconds"] = out["compute_s"] + out["communication_s"]
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim layout`."""
        out: dict[str, object] = {
            "model": self.model,
            "layout": self.layout,
            "mesh": dict(self.mesh),
            "batch": self.batch,
            "sequence": self.sequence,
            "notes": list(self.notes),
            "ops": [_op_dict(block, op, self.mesh) for block in self.blocks for op in block.ops],
            "totals": self.totals(),
        }
        if self.inferred:
            out["propagated"] = {
                "given": {name: dict(on) for name, on in self.inferred.given.items()},
                "found": {name: dict(on) for name, on in self.inferred.found.items() if on},
                "open": list(self.inferred.open),
                "conflicts": [asdict(conflict) for conflict in self.inferred.conflicts],
            }
        if self.chosen and self.beside:
            out["chosen"] = {
                "given": {name: dict(on) for name, on in self.chosen.given.items()},
                "found": {name: dict(on) for name, on in self.chosen.found.items() if on},
                "boxing_bytes": self.boxing_bytes,
                "propagated": {"boxing_bytes": self.beside.boxing_bytes, "totals": self.beside.totals()},
            }
        return out


def _op_dict(block: Block, op: OpFigures, mesh: Mesh) -> dict[str, object]:
    derived, seconds = op.derived, op.seconds
    collectives = [_collective_dict(c) for c in derived.collectives]
    out = {
        "label": op.label,
        "block": block.kind,
        "count": block.count,
        "einsum": op.einsum,
        "along": {axis: dim.name for axis, dim in derived.along.items()},
        "operands": [
            {
                "name": o.tensor.name,
                "role": o.role,
                "local_shape": {d.name: d.size for d in o.shape},
                "layout": {axis: _word(p) for axis, p in o.held.items()},
                "used_shape": {d.name: d.size for d in o.used_shape},
                "used_layout": {axis: _word(p) for axis, p in o.used.items()},
                "sbp": to_sbp(o.tensor, o.held, mesh),
                "used_sbp": to_sbp(o.tensor, o.used, mesh),
            }
            for o in derived.operands
        ],
        "flops": derived.flops,
        "backward_flops": derived.backward_flops,
        "collectives": collectives,
    }
    if seconds:
        out |= {"forward_s": seconds.forward, "backward_s": seconds.backward}
        for c, time in zip(collectives, seconds.collectives, strict=True):
            c["time_s"] = time
    return out


def _collective_dict(c: Collective) -> dict[str, object]:
    return {
        "kind": c.kind,
        "axes": list(c.axes),
        "bytes": c.bytes,
        "direction": c.direction,
        "tensor": c.tensor,
        "sent_bytes": c.sent,
        "ranks": c.ranks,
    }


def _word(placement: Placement) -> str:
    """A placement in OneFlow's letters, with the dimension's name: S(ffn), B, P."""
    return f"S({placement.dim})" if isinstance(placement, Shard) else "P" if placement == PARTIAL else "B"


def _kernels() -> KernelStyle:
    """Those of Megatron-Core."""
    profile = load_framework("megatron_core")
    return KernelStyle(**{f.name: getattr(profile, f.name) for f in fields(KernelStyle) if hasattr(profile, f.name)})


def model_blocks(model: Model, batch: int, sequence: int, vocabulary: int) -> tuple[Block, ...]:
    """Return the graphs of all kinds of layers of a model, with how often it has each.

    Args:
        batch: sequences; `sequence`: tokens of each.
        vocabulary: padded [words].
    """
    count = Counter(model.layer_kinds) | Counter({MTP_LAYER: model.mtp_layers, MTP_HEAD: model.mtp_layers})
    family, out = FAMILIES.get(model.architecture), []
    for kind in layer_kinds(model):
        length = model.target_length if in_decoder(kind) and model.encoder_layers else sequence
        case = LayerCase(
            model=model,
            kind=kind,
            sequences=batch,
            length=length,
            precision=precision_named("bf16"),
            style=_kernels(),
            vocabulary=vocabulary,
            source=sequence,
        )
        out.append(Block(kind, count.get(kind, 1) or 1, family.graph(case)))
    return tuple(out)


def layout_figures(
    model: Model,
    blocks: Iterable[Block],
    layouts: Mapping[str, LaidOut],
    mesh: Mesh,
    batch: int,
    sequence: int,
    cluster: str | None = None,
    notes: tuple[str, ...] = (),
    inferred: Inferred | None = None,
) -> LayoutFigures:
    """Return what a layout makes of a model.

    Args:
        blocks: from `model_blocks`.
        layouts: kind of layer -> where everything lies.
        cluster: a cluster's name, for seconds.

    Raises:
        LayoutError: a tensor cannot lie so.
        SpecError: no such cluster, or it has fewer GPUs than the mesh has ranks.
    """
    found, name = [], ""
    for block in blocks:
        layout = layouts[block.kind]
        name = layout.name
        derived = derive(block.graph, layout)
        seconds = op_seconds(derived, mesh, cluster) if cluster else [None] * len(derived)
        ops = tuple(OpFigures(d, einsum_text(d.op), s) for d, s in zip(derived, seconds, strict=True))
        found.append(Block(block.kind, block.count, block.graph, ops))
    return LayoutFigures(
        model=model.name,
        layout=name,
        mesh=mesh,
        batch=batch,
        sequence=sequence,
        blocks=tuple(found),
        cluster=cluster or "",
        notes=notes,
        inferred=inferred,
    )
