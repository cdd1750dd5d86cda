"""Measured layers: the time of one transformer layer, of its mixture of experts, or of attention made of several kernels.

The row becomes a pipeline of three ranks with a layer each; the middle one has neither embedding nor head, and its block is
priced as in every simulation, without what puts together activations that arrive in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.costs.memory_bound import memory_bound_seconds, memory_bound_sigma
from simulator.costs.price import price
from simulator.costs.tables import machine_of, price_table
from simulator.errors import SimulatorError
from simulator.hardware.cluster import Cluster
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import CannotPlace, Row, count, flag, text
from simulator.lowering import lower_resolved, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.program.prices import Prices
from simulator.program.program import Program, Segment
from simulator.workload.graph import Op, Product

__all__ = ["layer_seconds", "unfused_attention_seconds"]

_RANKS, _MIDDLE = 3, 1
_PHASES = {"fwd": "forward", "forward": "forward", "bwd": "backward", "backward": "backward"}
_REARRANGED = {"forward": 3, "backward": 6}
"""Tensors of queries' size that a benchmark in PyTorch moves beside the scores, as FlashAttention's does (benchmarks/
benchmark_flash_attention.py): queries, keys and values by head; gradients of the output by head, of scaled products, of all three
together."""
_BROADCAST = 0.43
"""Speed of PyTorch's addition of a mask to scores relative to a stream: 0.73 TB/s on A100 at every length and width (FlashAttention's
README)."""
_PLAIN = {"framework": "megatron_lm_2021", "attention": "unfused"}
"""Plan of a framework that keeps scores in memory: a product that scales, one softmax kernel, a product."""
_FUSED = "fused permutation; forced balance"
"""What a measured layer of experts has beside its sizes (Megatron-LM tests/functional_tests/test_cases/common/moe_perf/test_cases.py:
moe_permute_fusion, moe_router_force_load_balancing)."""
_NO_BIASES = "no biases: Megatron-Core's grouped products are measured without (tests/functional_tests/test_cases/common/moe_perf)"


def layer_seconds(row: Row) -> tuple[float, float, tuple[str, ...]]:
    """Return (seconds, sigma, what was assumed) of a row whose op is transformer_layer or moe_layer.

    Raises:
        CannotPlace: sizes are missing, or the simulator refuses the plan.
    """
    phase = _PHASES.get(text(row, "direction").lower() or "fwd")
    if phase is None:
        raise CannotPlace(f"direction {text(row, 'direction')[:20]!r} is neither fwd nor bwd")
    layer = _priced(_as_run(row))
    item = _block(layer.program, phase)
    seconds = layer.seconds(phase, _of_experts) if text(row, "op") == "moe_layer" else layer.whole(phase)
    return seconds, _sigma(layer.prices, item), layer.assumed


def unfused_attention_seconds(row: Row, phases: Sequence[str]) -> tuple[float, float, tuple[str, ...]]:
    """Return (seconds, sigma, what was assumed) of attention that keeps its scores in memory, as benchmarks write it in PyTorch.

    The first product scales (baddbmm), a causal mask is added by a kernel of its own, softmax is one kernel; operands are
    rearranged by head.

    Args:
        phases: "forward", "backward" or both.

    Raises:
        CannotPlace: sizes are missing, or the simulator refuses them.
    """
    width = (count(row, "heads") or 1) * (count(row, "head_dim") or 1)
    run = {**_as_run(row), "hidden": str(width)}
    layer = _priced(run, **_PLAIN)
    seconds = sum(layer.seconds(phase, _of_scores) for phase in phases)
    machine, length = machine_of(layer.cluster), count(row, "seq_len") or 1
    maps = (count(row, "batch") or 1) * (count(row, "heads") or 1)
    tensor, scores = 2.0 * maps * length * (count(row, "head_dim") or 1), 2.0 * maps * length**2 / _BROADCAST
    moved = [tensor] * sum(_REARRANGED[phase] for phase in phases)
    moved += [scores] if flag(row, "causal") and "forward" in phases else []
    seconds += float(memory_bound_seconds(moved, moved, machine.gpu, machine.memory_bound).sum())
    return (
        seconds,
        memory_bound_sigma(machine.gpu, machine.memory_bound),
        (*layer.assumed, "scores kept in memory: a causal mask is added by a kernel of its own, softmax is one"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The middle rank's layer, priced."""

    program: Program
    prices: Prices
    cost: LayerCost
    cluster: Cluster
    assumed: tuple[str, ...]

    def seconds(self, phase: str, chosen: Callable[[Op], bool]) -> float:
        """Seconds of those operations of the layer that are chosen."""
        machine = machine_of(self.cluster)
        table = self.cost.forward if phase == "forward" else self.cost.backward
        times = price_table(table, machine, self.program.axes).rows
        ops = self.cost.rows[phase]().ops
        return float(sum(times[i] for i, op in enumerate(ops) if op is not None and chosen(op)))

    def whole(self, phase: str) -> float:
        """Seconds of the block that the rank runs, without what is not its layer's."""
        item = _block(self.program, phase)
        segment, machine = self.program.items[item], machine_of(self.cluster)
        own = self.cost.forward if phase == "forward" else self.cost.backward
        pieces = segment.pieces if isinstance(segment, Segment) else ()
        others = [price_table(table, machine, self.program.axes).rows for table, _ in pieces if table is not own]
        return float(self.prices.occupancy[item]) - sum(float(rows.sum()) for rows in others)


def _of_experts(op: Op) -> bool:
    return "moe" in op.modules


def _of_scores(op: Op) -> bool:
    """Whether it is one of the two products with keys and values, or the softmax between them."""
    return (isinstance(op, Product) and op.reads_keys) or op.role == "softmax"


def _priced(run: Row, **changes: str) -> _Layer:
    placed = row_simulation(run)
    workload = placed.workload
    if run.get("moe_experts") and workload.model.linear_bias:
        workload = replace(workload, model=workload.model.model_copy(update={"linear_bias": False}))
        placed = replace(placed, workload=workload, assumed=(*placed.assumed, _NO_BIASES))
    fields = {**placed.fields, **changes, "recompute": placed.recompute, "layer_split": (1,) * _RANKS}
    try:
        resolved = resolve(workload, Plan(**fields), placed.cluster.world_size)
        program = lower_resolved(workload, resolved)
        prices = price(program, placed.cluster)
        cost = layer_costs(workload, resolved)[workload.model.layer_kinds[_MIDDLE]]
    except (SimulatorError, ValueError) as error:
        raise CannotPlace(str(error)) from None
    return _Layer(program=program, prices=prices, cost=cost, cluster=placed.cluster, assumed=placed.assumed)


def _sigma(prices: Prices, item: int) -> float:
    """Standard deviation in log time of one block, from those of its kernels."""
    share = prices.class_share[item] / float(prices.occupancy[item])
    return float(np.sqrt(np.sum((share * prices.sigma) ** 2)))


def _as_run(row: Row) -> dict[str, str]:
    """The row as one of measured runs: three layers on three pipeline ranks, one microbatch."""
    tensor, expert, batch = count(row, "tp") or 1, count(row, "ep") or 1, count(row, "batch") or 1
    replicas = max(1, expert // (tensor if expert % tensor == 0 else 1)) if expert > 1 else 1
    notes = text(row, "notes").lower()
    recompute = next((name for name in ("selective", "full") if name in notes), "none")
    experts = text(row, "experts") if text(row, "op") == "moe_layer" else ""
    run = {
        "source": text(row, "source"),
        "gpu": text(row, "gpu"),
        "n_gpus": str(_RANKS * tensor * replicas),
        "arch_layers": str(_RANKS),
        "hidden": text(row, "hidden"),
        "heads": text(row, "heads"),
        "kv_heads": text(row, "kv_heads"),
        "head_dim": text(row, "head_dim"),
        "ffn_hidden": text(row, "ffn"),
        "seq_len": text(row, "seq_len"),
        "precision": text(row, "dtype"),
        "tp": str(tensor),
        "pp": str(_RANKS),
        "mbs": str(batch),
        "gbs": str(batch * replicas),
        "zero_stage": "0",
        "seq_parallel": "1" if "sequence parallel" in notes else "0",
        "recompute": recompute,
        "framework": text(row, "software") if "dispatcher" not in text(row, "software") else text(row, "source"),
    }
    if experts:
        run |= {"moe_experts": experts, "moe_topk": text(row, "topk"), "moe_ffn_hidden": text(row, "ffn")}
        run |= {"moe_dense_layers": "0", "ep": str(expert), "quality_note": _FUSED}
    return run


def _block(program: Program, phase: str) -> int:
    """The item that the middle rank runs in this phase of its microbatch."""
    mine: set[int] = set(program.item[program.rank == _MIDDLE].tolist())
    return next(i for i in mine if isinstance(s := program.items[i], Segment) and s.phase == phase)
