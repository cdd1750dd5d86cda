"""The kernels that make narrow copies of a product's operand, as each recipe of 8 and 4 bits does it.

    recipe         reads                   writes
    fp8            x once                  a copy, and a transposed one where products of 8 bits take one layout only
    fp8_current    x for its maximum,      the same
                   x again
    fp8_rowwise    x by rows once, by      a copy by rows and one by columns, whose scales differ
                   columns for maxima,
                   and again
    fp8_block      x once                  a copy by rows and one by columns, whose blocks differ
    mxfp8, mxfp4   x once                  the same
    nvfp4          x for its maximum,      the same
                   x again
    int8           x for its maxima and    the same, whose scales differ
                   again, by rows and by
                   columns

A norm in front of a product writes the copies of fp8 itself and finds the maximum of fp8_current on its way.

With fp8 (delayed scaling) the maxima of a pass over a chunk are reduced over all ranks that hold its weights before the pass ends:
TransformerEngine quantization.py, reduce_and_update_fp8_tensors, over Megatron-Core's group of tensor, context and data parallelism
(parallel_state.get_amax_reduction_group).  A small message, but one that all replicas wait for in every microbatch.

Of grouped products each expert's operand is quantised by itself, but with fp8, for which one kernel does it for all
(csrc/extensions/cast.cpp, multi_tensor_quantize_impl).

Under sequence parallelism each rank quantises the tokens it has, and what is gathered is narrow (of fp8_rowwise it is wide).

TorchAO's kernels (casts_apart) read x for fp8 once, its maximum found by what ran before; for mxfp8 twice, by rows and by columns; for
nvfp4 twice, for its maximum and for both copies, which they turn by a Hadamard transform on the way.

Source: NVIDIA TransformerEngine, docs/features/low_precision_training (fp8_current_scaling, mxfp8, nvfp4: passes over the tensor and
handling of transposes) and transformer_engine/pytorch/csrc/extensions/normalization.cpp (which norms are fused);
module/base.py, grad_output_preprocess: cast, gather, then transpose.  int8: simulator/workload/precision.py.
"""

from __future__ import annotations

import functools

from simulator.lowering.layers.rows import Rows, usual_half
from simulator.program.calls import Traffic
from simulator.program.program import OperatorTable
from simulator.workload.precision import Precision

__all__ = ["CAST", "TRANSPOSED", "add_casts", "maxima_table"]

CAST = Traffic("cast")
TURNED = Traffic("turned")
TRANSPOSED = Traffic("transposed")
"""Copies of the bytes that only GPUs write whose 8-bit products take operands along the depth only."""


def add_casts(
    rows: Rows,
    label: str,
    elements: float,
    precision: Precision,
    after_norm: bool = False,
    shards: int = 1,
    apart: bool = False,
    experts: int = 1,
    across: bool = True,
    *,
    phase: str,
    part: str | None = None,
    launches: int | None = None,
) -> None:
    """Add the rows that quantise one operand; none in a precision that does not quantise.

    Args:
        label: the operand.
        elements: of it, as the product reads it on this GPU.
        after_norm: a norm writes it.
        shards: GPUs that hold a part each, quantise it and gather the narrow copies, which are transposed where they arrive.
        apart: operands are quantised by kernels of their own and no norm writes copies; the maximum of a tensor in 8 bits what ran
            before has found.
        experts: tensors that it is made of, each quantised by kernels of its own unless their scales are known before.
        across: whether a second copy is made, which the weight's gradient reads; none where the weight is frozen (NVIDIA/TransformerEngine
            pytorch/module/linear.py: set_usage(columnwise=backward_needs_input), requires_wgrad).
        phase, part: as of `Rows.moves`.
        launches: of the cast; left out: as many as it makes passes.
    """
    if not precision.quantises:
        return
    wide, narrow = float(precision.element), precision.quantised_element
    passes = precision.cast_reads
    if apart:
        passes = precision.reads_apart
    elif after_norm and precision.norm_helps:
        passes -= 1
    copies = 2.0 if across and not precision.copies_alike else 1.0
    if passes:
        kernels = passes * (1 if precision.shares_maxima else experts) if launches is None else launches
        read, written = passes * wide * elements / shards, copies * narrow * elements / shards
        cast = f"{label} cast to {precision.name}"
        rows.moves(
            cast, precision.compute, read, written, phase, kernels, part, TURNED if apart and precision.turns else CAST
        )
    if across and precision.copies_alike:
        # a kernel of its own behind a norm that has written the copy, and of what was gathered
        alone = apart or passes == 0 or shards > 1
        size = narrow * elements
        rows.moves(
            f"{label} transposed", precision.compute, size if alone else 0.0, size, phase, int(alone), part, TRANSPOSED
        )


_PRODUCTS_PER_LAYER = 4
"""Attention's two and the MLP's two, as Transformer Engine's modules count."""


@functools.lru_cache(maxsize=256)
def maxima_table(layers: int, group: tuple[str, ...], direction: str) -> OperatorTable:
    """Return the end of a pass with delayed scaling: maxima are joined, reduced, and made into scales.

    Args:
        layers: of the chunk.
        group: mesh axes of the ranks that agree.
        direction: "forward" (maxima of inputs and weights) or "backward" (of gradients).
    """
    size = 4.0 * layers * _PRODUCTS_PER_LAYER * (2 if direction == "forward" else 1)
    rows = Rows(f"maxima {direction}")
    part = usual_half(direction)
    rows.moves("join maxima", "fp32", size, size, direction)
    rows.sends("maxima", "all_reduce", size, group, "fp32", direction, part=part)
    rows.moves("scales from maxima", "fp32", size, size, direction)
    return rows.table()
