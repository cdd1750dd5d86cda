"""The embedding of tokens: rows of a table by number, or one-hot rows times the table; positions and types of tokens beside it."""

from __future__ import annotations

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Lookup, Moves, Tensor
from simulator.workload.model import RELATIVE_BUCKETS

__all__ = ["embedding"]


def embedding(g: LayerBuilder, label: str = "embedding", keeps: tuple[Keep, ...] = ()) -> Tensor:
    """Add token (position, and type) lookup, whose backward scatters gradients; return the activations.

    By a product, one-hot rows are written for it, and back with the gradient: the rows of the table are summed by a product then, and
    only positions are looked up.

    Args:
        label: "embedding", or what a second look-up in the same table is called.
        keeps: what else it keeps for backward.
    """
    m, style, e = g.m, g.style, g.stream
    vectors = []
    positions = m.positions == "learned"
    if positions:
        vectors.append(g.weight("positions", Dim("positions", m.sequence_length), g.hidden, role="vector"))
    if m.positions == "relative_bias":
        biases = Dim("buckets", RELATIVE_BUCKETS), Dim("biased_heads", m.heads)  # of all heads on every rank
        vectors.append(g.weight(f"{label} distance biases", *biases, role="vector"))
    if m.token_types:
        vectors.append(g.weight("token types", Dim("token_types", m.token_types), g.hidden, role="vector"))
    table = g.weight("token table", g.vocabulary, g.hidden)
    ids = g.given(f"{label} token ids", *g.tokens, element=8.0)
    out = g.tensor(f"{label} output", *g.tokens, g.hidden, element=e)
    masks = (g.tensor("embedding dropout mask", *out.dims, element=1.0, role="mask"),) if style.dropout else ()
    mask = 1.0 if masks else 0.0
    by_product = style.embeds_by_product
    looked = (2.0 if positions else 1.0) if not by_product else float(positions)
    back, types = 2 * e * (looked if by_product else 1.0), e if m.token_types else 0.0
    moved = Moves(
        dims=out.dims,
        read=e * looked + types,
        written=e * looked + mask + types,
        backward_read=back + mask + types,
        backward_written=back,
    )
    g.add(
        Lookup(
            label=label,
            inputs=(ids, *(k.tensor for k in keeps)),
            outputs=(out, *masks),
            weights=(table, *vectors),
            keeps=(Keep(tensor=ids, name="token ids", whole=True), *(Keep(tensor=t) for t in masks), *keeps),
            moves=(moved,),
            by_product=by_product,
            launches=2 + (2 if positions else 0) + len(masks),
            backward_launches=4,
        )
    )
    return out
