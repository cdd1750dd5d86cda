"""Experts one after the other, in a loop of the host's: what a code does that has no grouped products.

For T tokens, hidden h, E experts, k per token, each turn of the loop takes the rows of one expert (about k T / E), runs its products by
themselves and adds the results to the output:

    for each expert      where its number is among the choices - a row of the choice's mask is read, and the host waits for the indices
                         rows of x at these indices - up - activation - down - times the router's weights - added into the output

Backward, taking rows is adding into zeros of all T tokens, which are then added to what the other experts gave: per turn and value of x one
pass of zeros, and a sum that reads two and writes one.  So is a slice of a weight tensor that holds all experts ("slices"): its gradient is
one of all experts, zero but for one, and the turns' gradients are summed up.  With weights of its own per expert ("modules") nothing of
the kind is done.  No backward waits for the host.
Source: huggingface/transformers at 00d4b3d2 (releases 4.x), models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeSparseMoeBlock.forward (so
Mixtral, OLMoE, Qwen2-MoE, DeepSeek-V3 there, and LitGPT's LLaMAMoE): modules; at 0261a467, integrations/moe.py (releases 5.x): slices where
experts_implementation is "eager", else grouped products; PyTorch tools/autograd/derivatives.yaml: select_backward and index_backward
begin with new_zeros of the whole.
"""

from __future__ import annotations

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import HostWait, Keep, Moves, Tensor

__all__ = ["rows_added", "rows_found", "rows_taken"]

_INDEX = 8.0
"""Bytes of a number of the choice's mask, int64 (torch.nn.functional.one_hot)."""
_FIND = 7
"""Kernels and copies that find an expert's rows: the mask's row, its number to the host, and nonzero (count, copy, select, write: five)."""
_TAKE = (1, 12)
"""Kernels that take rows; backward zeros, indices in order and sorted (eight), the sums, and the sum with the other experts'."""
_ADD = (3, 14)
"""Weights at the indices, their product with the rows, the addition; backward the rows of the output's gradient, two products, a sum
over each row, and the weights' gradient into zeros as above."""


def rows_taken(g: LayerBuilder, x: Tensor, mine: Tensor, chosen: Tensor) -> None:
    """Add the kernels that copy each expert's rows of x; all of them are `mine`."""
    m, e = g.m, g.e
    rows = Moves(dims=mine.dims, read=e, written=e, backward_read=2 * e, backward_written=e)
    whole = Moves(dims=x.dims, backward_read=2 * e * m.experts, backward_written=2 * e * m.experts)
    g.kernel(
        "expert rows taken",
        (x, chosen),
        (mine,),
        rows,
        whole,
        access="stream",
        launches=_TAKE[0],
        backward_launches=_TAKE[1],
    )


def rows_added(g: LayerBuilder, back: Tensor, made: Tensor, chosen: Tensor) -> None:
    """Add the kernels that weigh each expert's rows and add them into the output `made`."""
    e = g.e
    g.kernel(
        "expert rows added",
        (back, chosen),
        (made,),
        Moves(dims=back.dims, read=3 * e, written=2 * e, backward_read=5 * e, backward_written=3 * e),
        keeps=(Keep(tensor=back, name="expert output"),),
        access="gather",
        launches=_ADD[0],
        backward_launches=_ADD[1],
    )


def rows_found(g: LayerBuilder, chosen: Tensor) -> None:
    """Add the search for the rows of each expert, for which the host waits in every turn.

    It stands behind the turn that it begins: the turns follow each other, and each ends with the next one's wait.
    """
    g.add(
        HostWait(
            label="expert rows found",
            inputs=(chosen,),
            outputs=(),
            read=3 * _INDEX * g.t * g.m.experts_per_token * g.m.experts,
            dims=chosen.dims,
            launches=_FIND,
        )
    )
