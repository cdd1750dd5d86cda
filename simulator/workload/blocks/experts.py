"""A mixture of experts in place of a layer's MLP.

For T tokens, hidden h, E experts of inner width f_e, k per token:

    router [h -> E] - choice of k - token counts - permute (T -> k T rows) - dispatch - sort - up [h -> f_e or 2 f_e] - activation
           - down [f_e -> h] - sort back - combine - unpermute (k T -> T rows, weighted)      beside it: shared expert

In 8 bits some codes copy the rows once more, before up and after down, so that each expert has a number of them that its products take.
Dispatch and combine are the exchanges between the ranks that share the experts.  Bytes kept per token (16 bits): k (4 h + 6 f_e) for the
experts, k (2 h + 6 f_e) where the router's weights scale the inner activation, 2 h for the router's input and 12 E for logits, weights
and choice.
Without grouped products the host starts one expert after the other (`expert_loop.py`), in place of permute and unpermute.
With a capacity factor c every expert takes exactly c k T / E rows: fuller ones drop tokens, emptier ones are padded, so that k T
becomes c k T above and all ranks have equal work.  Then rows may be made by products with one-hot masks, too (`one_hot.py`), in place
of permute, sorts and unpermute.  Groups of experts with a choice of one each (M6-T's prototypes, arXiv
2105.15082) cost what one group of all of them with as many choices costs.
Source: Lepikhin et al., GShard, arXiv 2006.16668; Megatron-LM's token dispatcher (permute, exchange, sort by expert).
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.workload.blocks.expert_loop import rows_added, rows_found, rows_taken
from simulator.workload.blocks.mlp import mlp
from simulator.workload.blocks.one_hot import combine, dispatch
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Exchange, HostWait, Keep, Moves, Tensor

__all__ = ["LAUNCHES_PER_EXPERT", "experts"]

LAUNCHES_PER_EXPERT = 2
"""Host work for one expert's share of a product, in launches: frameworks hand each expert's product to the library by itself,
on one of several streams.  MooreThreads/SimuMax, configs/system/b200_*.json: products of 40 to 160 groups take at least 8.6 to
9.2 us per group whatever their size, twice a launch of 4 us: one launch, and as long again in the library's own code."""

_COUNT_KERNELS = 12
"""Kernels and copies between the choice of experts and the moment at which the host knows how many rows each expert has."""

_PLAIN_PERMUTE = (16, 8)
"""Kernels that copy rows by plain operations where a mask tells which (Megatron-Core, moe/moe_utils.py, permute; its operations recorded
with PyTorch 2.13): two transposed copies, tokens' numbers, two picks by the mask (six each: nonzero and the copy) and the rows; backward
zeros and a mask's spreading (four) for the weights, zeros and the addition for the rows, and a product."""

_LOGIT = 4.0
"""Bytes of a router's logit: the choice is made in fp32 in every framework."""


class _Choice(NamedTuple):
    """Kernels between the router's product and the choice of experts: bytes per logit that they read and write, and how many they are."""

    read: float
    written: float
    backward_read: float
    backward_written: float
    launches: int
    backward_launches: int

    def moves(self, dims: tuple[Dim, ...]) -> Moves:
        """What they move, of so many logits."""
        return Moves(
            dims=dims,
            read=self.read,
            written=self.written,
            backward_read=self.backward_read,
            backward_written=self.backward_written,
        )


_FUSED_CHOICE = _Choice(3 * _LOGIT, 3 * _LOGIT, 2 * _LOGIT, 2 * _LOGIT, 12, 8)
_PLAIN_CHOICE = _Choice(54.0, 42.0, 31.0, 17.0, 26, 14)
"""Megatron-Core 0.16.1, moe/router.py, without router fusion and with a balance loss, recorded with PyTorch: casts, the k largest of the
logits, softmax, two scatters into zeros, and for the loss the same once more, sums over tokens and what a log keeps."""


def experts(g: LayerBuilder, x: Tensor) -> Tensor:
    """Add the operations between the MLP's norm and its residual in a layer with experts; return their output."""
    m, style = g.m, g.style
    reach = m.groups_per_token / m.expert_groups if m.expert_groups else 1.0
    with g.module("moe"):
        with g.captured("moe_router"):
            chosen = _choice(g, x)
        if not m.capacity_factor:
            _counts(g, chosen)
        by_product, loops = style.expert_group > 0, style.expert_loop != "none"
        indexed = "backward" if style.picks_rows == "index" and not style.fuses_permute else ""
        with g.looped(loops):
            mine, weights = dispatch(g, x, chosen) if by_product else (_permuted(g, x, chosen), chosen)
        there = g.tensor("dispatched rows", Dim("expert_rows", mine.dims[0].size), g.hidden)
        g.add(_exchange("dispatch", mine, there, True, m.experts_per_token, reach))
        if not by_product:
            there = g.moves(
                "sort by expert",
                there,
                "sorted rows",
                access="gather",
                after_exchange=True,
                again=("sorted rows",),
                sums_rows=indexed,
            )
        pads = style.pads_expert_rows and g.quantises and not m.capacity_factor
        if pads:
            there = g.moves("expert rows padded", there, "padded rows", access="stream", absorbed="exchange")
        with g.looped(loops):
            out = mlp(g, "expert", there, Dim("expert_ffn", m.expert_ffn), expert=True)
        if m.linear_bias and style.weights_in_experts:
            out = _weighted_biases(g, out)
        if pads:
            out = g.moves("expert padding removed", out, "rows without padding", access="stream", absorbed="exchange")
        if not by_product:
            out = g.moves(
                "sort back", out, "rows sorted back", access="gather", after_exchange=True, again=("rows sorted back",)
            )
        back = g.tensor("combined rows", *mine.dims)
        g.add(_exchange("combine", out, back, False, m.experts_per_token, reach))
        if style.weighs_rows_in_fp32 and not by_product:
            back = _weighted_rows(g, back, chosen)
        with g.looped(loops):
            made = combine(g, x, back, weights) if by_product else _unpermuted(g, x, back, chosen)
            if loops:
                rows_found(g, chosen)
        return _shared(g, x, made) if m.shared_expert_ffn else made


def _permuted(g: LayerBuilder, x: Tensor, chosen: Tensor) -> Tensor:
    """Every token once for each of its experts, the rows of an expert together: by one kernel, or repeated first and then put in order
    (`copies_rows_apart`).  So it is on the way back: summed as they lie, or put in order and then summed.  Backward as many passes.
    Without fusion (`fuses_permute`) rows are picked, and the gradient adds row after row into zeros: of index_select and gather by atomic
    additions (index_add, scatter_add), of advanced indexing by runs of its sorted indices (index_put, `picks_rows`).  So does the way
    back forward."""
    m, e = g.m, g.e
    mine = g.tensor(
        "copied rows", Dim("copies", max(1, round(g.t * m.experts_per_token * (m.capacity_factor or 1.0)))), g.hidden
    )
    if g.style.expert_loop != "none":
        rows_taken(g, x, mine, chosen)
        return mine
    apart, fused = g.style.copies_rows_apart, g.style.fuses_permute
    masked = not fused and g.style.picks_rows == "mask"
    rows = Moves(
        dims=mine.dims, read=apart * e, written=e + apart * e, backward_read=e + apart * e, backward_written=apart * e
    )
    return g.kernel(
        "permute",
        (x, chosen),
        (mine,),
        Moves(dims=x.dims, read=e, backward_written=e),
        rows,
        again=(mine.name,),
        absorbed="exchange",
        access="gather",
        sums_rows="" if fused else "backward",
        launches=_PLAIN_PERMUTE[0] if masked else 1 + apart,
        backward_launches=_PLAIN_PERMUTE[1] if masked else 1 + apart,
    )


def _unpermuted(g: LayerBuilder, x: Tensor, back: Tensor, chosen: Tensor) -> Tensor:
    """The weighted sum of each token's rows."""
    e = g.e
    weighted_before = g.style.weights_in_experts or g.style.weighs_rows_in_fp32
    made = g.tensor("experts' output", *x.dims)
    if g.style.expert_loop != "none":
        rows_added(g, back, made, chosen)
        return made
    apart = g.style.copies_rows_apart
    rows = Moves(
        dims=back.dims,
        read=e + apart * e,
        written=apart * e,
        backward_read=e + apart * e,
        backward_written=e + apart * e,
    )
    moved = (rows, Moves(dims=x.dims, written=e, backward_read=e))
    return g.kernel(
        "unpermute",
        (back, chosen),
        (made,),
        *moved,
        keeps=() if weighted_before else (Keep(tensor=back, name="expert output", sent=True),),
        again=(made.name,),
        absorbed="exchange",
        access="gather",
        sums_rows=_sums_on_the_way_back(g),
        launches=1 + apart if g.style.fuses_permute else 2,
        backward_launches=1 + apart,
    )


def _sums_on_the_way_back(g: LayerBuilder) -> str:
    """The phase in which plain operations add rows up in places that indices give: forward where results are added into the output; where
    they are put in order first, that is undone backward, and the sum is a plain one."""
    if g.style.fuses_permute:
        return ""
    return "backward" if g.style.copies_rows_apart and g.style.picks_rows == "index" else "forward"


def _weighted_rows(g: LayerBuilder, x: Tensor, chosen: Tensor) -> Tensor:
    """Each row times the router's weight of it, in fp32 and by plain operations (torchtitan 0.3.0, token_dispatcher.py, combine), for
    n values of e bytes; what is kept is the wide copy:

        forward   widening, product, cast                          reads (e + 8) n     writes (e + 8) n
        backward  widening, two products, sum over a row, cast     reads (e + 20) n    writes (e + 12) n
    """
    e = g.e
    out = g.tensor("weighted rows", *x.dims)
    moved = Moves(dims=x.dims, read=e + 8, written=e + 8, backward_read=e + 20, backward_written=e + 12)
    return g.kernel(
        "expert rows weighted",
        (x, chosen),
        (out,),
        moved,
        role="row weights",
        keeps=(
            Keep(tensor=x, name="expert output in fp32", element=4.0, cheap=True),
            # what came is kept, where widening it runs again
            Keep(tensor=x, name="expert output", idle=True, sent=True),
        ),
        again=(out.name,),
        absorbed="exchange",
        access="stream",
        launches=3,
        backward_launches=5,
    )


def _exchange(label: str, given: Tensor, made: Tensor, outward: bool, copies: int, reach: float) -> Exchange:
    return Exchange(label=label, inputs=(given,), outputs=(made,), outward=outward, copies=copies, reach=reach)


def _shared(g: LayerBuilder, x: Tensor, made: Tensor) -> Tensor:
    """The experts that every token sees, and the sum."""
    e = g.e
    with g.captured("moe_router"):
        with g.module("shared_experts"):
            shared = mlp(g, "shared expert", x, Dim("ffn", g.m.shared_expert_ffn), keeps_input=False)
        out = g.tensor("sum of experts", *x.dims)
        moved = Moves(dims=x.dims, read=2 * e, written=e, backward_read=e, backward_written=2 * e)
        g.kernel("shared expert sum", (made, shared), (out,), moved)
    return out


def _choice(g: LayerBuilder, x: Tensor) -> Tensor:
    """The router, then softmax over the experts, the k largest, their weights and the loss that balances them: passes over T x E
    numbers."""
    logits = g.tensor("router logits", *x.dims[:-1], Dim("scores", g.m.experts))
    kept = Keep(tensor=x, name="router input", element=g.e, cheap=False)
    g.linear("router", x, (logits,), (g.hidden,), keep=kept, bias=g.m.linear_bias, quantised=False)
    chosen = g.tensor("router weights and choice", *logits.dims, element=3 * _LOGIT)
    passes = _PLAIN_CHOICE if g.style.plain_router else _FUSED_CHOICE
    return g.kernel(
        "choice of experts",
        (logits,),
        (chosen,),
        passes.moves(logits.dims),
        keeps=(Keep(tensor=chosen),),
        launches=passes.launches,
        backward_launches=passes.backward_launches,
    )


def _counts(g: LayerBuilder, chosen: Tensor) -> None:
    """Rows per expert and per rank, summed from the choice and copied to the host, which sizes buffers and products by them.

    Where experts have a fixed capacity, sizes are known and nothing is counted.  Megatron-LM, moe/token_dispatcher.py, preprocess:
    sums and casts of the map of chosen experts, counts of all ranks gathered, sums and slices of those, copies to the host.
    """
    g.add(
        HostWait(
            label="token counts",
            inputs=(chosen,),
            outputs=(),
            captured="moe_preprocess",
            read=2.0 * chosen.elements,
            dims=chosen.dims,
            counts=True,
            launches=_COUNT_KERNELS,
        )
    )


def _weighted_biases(g: LayerBuilder, x: Tensor) -> Tensor:
    """Each expert's output bias times the router's weight of the row, added in fp32, expert by expert (Megatron-Core,
    TEGroupedMLP._apply_bias), for k T h = n values of e bytes:

        forward   product, sum, joining, cast          reads (e + 12) n    writes (e + 12) n
        backward  casts, joining, sums for bias and weight    reads (2 e + 20) n   writes (2 e + 12) n    (recorded with PyTorch)
    """
    e = g.e
    out = g.tensor("rows with weighted biases", *x.dims)
    moved = Moves(dims=x.dims, read=e + 12, written=e + 12, backward_read=2 * e + 20, backward_written=2 * e + 12)
    return g.kernel(
        "expert weighted biases",
        (x,),
        (out,),
        moved,
        absorbed="grouped",
        access="stream",
        launches=2,
        backward_launches=3,
        per_expert=2,
    )
