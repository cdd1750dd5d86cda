"""The products by which an update makes every matrix of a layer orthogonal (`Optimizer.newton_schulz`: Muon).

Of a matrix of m x n numbers, m the smaller, each iteration of Newton and Schulz takes three products in bf16, the last two of which
add what they read: A = X X^T, B = b A + c A A, X <- a X + B X.  Ranks that share states have whole matrices each, so that the rank
which has most of a shape sets the pace; below FSDP each works on those it keeps, under FSDP it gets their parts from the others first
and sends back the parts of what it made.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

from simulator.lowering.layers.holdings import Matrix
from simulator.lowering.layers.rows import Rows
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.parameters import Held, Matrices, layer_counts
from simulator.lowering.steps.state import State
from simulator.program.calls import Product
from simulator.program.program import OperatorTable, Pieces
from simulator.workload.optimizers import OPTIMIZERS

__all__ = ["matrices_of", "orthogonal_matrices", "orthogonal_pieces"]

_NARROW = 2.0
"""Bytes of a number in bf16."""


def orthogonal_matrices(state: State, chunks: tuple[Chunk, ...]) -> Matrices:
    """Return the matrices of some chunks that the update makes orthogonal."""
    return matrices_of(state, chunks) if OPTIMIZERS.get(state.workload.optimizer).newton_schulz else ()


def matrices_of(state: State, chunks: tuple[Chunk, ...]) -> Matrices:
    """Return the matrices of the layers of some chunks."""
    found: Counter[Matrix] = Counter()
    for chunk in chunks:
        for kind, layers in layer_counts(chunk.kinds):
            for matrix in state.costs[kind].matrices():
                found[matrix] += layers
    return tuple(sorted(found.items()))


def orthogonal_pieces(state: State, held: Held, matrices: Matrices) -> Pieces:
    """Return (operators, how often) of the rank's matrices; of those that ranks share a part."""
    if not matrices:
        return ()
    resolved, pieces = state.resolved, []
    alike: Counter[tuple[int, int, bool]] = Counter()
    for matrix, layers in matrices:
        short, long = sorted((matrix.rows, matrix.columns))
        alike[short, long, matrix.experts] += matrix.many * layers
    times = OPTIMIZERS.get(state.workload.optimizer).newton_schulz
    for (short, long, experts), many in sorted(alike.items()):
        count = math.ceil(many / _ways(resolved, experts))
        pieces += [(_around(short, long), count), (_newton_schulz(short, long), times * count)]
    if resolved.zero_stage == 3:
        sizes = dict(resolved.axes)
        parts = Held(held.all - held.others, held.experts).parts(resolved)
        sent = tuple((count / math.prod(sizes[axis] for axis in axes), axes) for _, count, axes in parts)
        pieces.append((_exchange(sent), 1))
    return tuple(pieces)


def _ways(resolved: ResolvedPlan, experts: bool) -> int:
    """Ranks that share the matrices of a rank, or of its experts, between them."""
    if not resolved.zero_stage:
        return 1
    rest, of_experts = resolved.holders
    ways = (of_experts if experts else rest).shards
    return ways if resolved.zero_stage == 3 else ways * resolved.lanes


@functools.lru_cache(maxsize=1024)
def _around(short: int, long: int) -> OperatorTable:
    """What stands around the iterations of a matrix: its norm, by which it is divided."""
    rows, size = Rows("orthogonal update"), float(short * long)
    for label, read, written in (("matrix norm", 1.0, 0.0), ("divide matrix", 1.0, 1.0)):
        rows.moves(label, "bf16", read * _NARROW * size, written * _NARROW * size, "optimizer", flops=2.0 * size)
    return rows.table()


@functools.lru_cache(maxsize=1024)
def _newton_schulz(short: int, long: int) -> OperatorTable:
    """One iteration of Newton and Schulz."""
    rows = Rows("Newton-Schulz iteration")
    for label, m, n, k, order, adds in (
        ("X X^T", short, short, long, "TN", False),
        ("b A + c A A", short, short, short, "NN", True),
        ("a X + B X", short, long, short, "NN", True),
    ):
        rows.add(
            label=label,
            work="gemm",
            shape=(1, m, n, k),
            call=Product(order),
            dtype="bf16",
            flops=2.0 * m * n * k,
            read=_NARROW * (m * k + k * n + adds * m * n),
            written=_NARROW * m * n,
            phase="optimizer",
        )
    return rows.table()


@functools.lru_cache(maxsize=1024)
def _exchange(parts: tuple[tuple[float, tuple[str, ...]], ...]) -> OperatorTable:
    """Parts of matrices to those that make them orthogonal, and back; `parts`: weights that a rank sends, and among whom."""
    rows = Rows("exchange of matrices")
    for count, axes in parts:
        for label in ("matrices", "orthogonal matrices"):
            rows.sends(label, "all_to_all", _NARROW * count, axes, "bf16", "optimizer")
    return rows.table()
