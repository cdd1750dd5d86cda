"""A mixture of experts in place of a layer's MLP, as operators.

For T tokens, hidden h, E experts of inner width f_e, k per token:

    router [h -> E] - choice of k - token counts - permute (T -> k T rows) - dispatch - sort - up [h -> f_e or 2 f_e] - activation
           - down [f_e -> h] - sort back - combine - unpermute (k T -> T rows, weighted)      beside it: shared expert

Dispatch and combine are the exchanges between the ranks that share the experts (lowering/splitter.py writes them).  Bytes kept
per token (16 bits): k (4 h + 6 f_e) for the experts, k (2 h + 6 f_e) where the router's weights scale the inner activation, 2 h for
the router's input and 12 E for logits, weights and choice.
With a capacity factor c every expert takes exactly c k T / E rows: fuller ones drop tokens, emptier ones are padded, so that k T
becomes c k T above and all ranks have equal work.  Groups of experts with a choice of one each (M6-T's prototypes, arXiv
2105.15082) cost what one group of all of them with as many choices costs.
Source: Lepikhin et al., GShard, arXiv 2006.16668; Megatron-LM's token dispatcher (permute, exchange, sort by expert).
"""

from __future__ import annotations

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["LAUNCHES_PER_EXPERT", "experts"]

LAUNCHES_PER_EXPERT = 2
"""Host work for one expert's share of a product, in launches: frameworks hand each expert's product to the library by itself,
on one of several streams.  MooreThreads/SimuMax, configs/system/b200_*.json: products of 40 to 160 groups take at least 8.6 to
9.2 us per group whatever their size, twice a launch of 4 us."""

_COUNT_KERNELS = 12
"""Kernels and copies between the choice of experts and the moment at which the host knows how many rows each expert has."""

_LOGIT = 4.0
"""Bytes of a router's logit: the choice is made in fp32 in every framework."""


def experts(p: Pieces) -> list[Operator]:
    """Return the operators between the MLP's norm and its residual in a layer with experts."""
    m = p.m
    copies = p.expert_rows * m.hidden * p.e
    reach = m.groups_per_token / m.expert_groups if m.expert_groups else 1.0
    router_in = Saved(name="router input", bytes=p.t * m.hidden * p.e, region="sequence")
    shared: list[Operator] = []
    if m.shared_expert_ffn:
        shared = [
            *p.mlp("shared expert", m.shared_expert_ffn, "tensor", keeps_input=False),
            _moving("shared expert sum", "sequence", 2 * p.t * m.hidden * p.e, p.t * m.hidden * p.e),
        ]
    return [
        p.linear("router", "router", m.experts, m.hidden, router_in, m.linear_bias),
        _choice(p),
        *([] if m.capacity_factor else [_counts(p)]),
        _moving("permute", "sequence", p.t * m.hidden * p.e, copies),
        Operator(
            label="dispatch", work="dispatch", split="copies", read=copies, copies=m.experts_per_token, reach=reach
        ),
        _moving("sort by expert", "copies", copies, copies, "sort"),
        *_weighted(p),
        *([_weighted_biases(p)] if m.linear_bias and p.style.weights_in_experts else []),
        _moving("sort back", "copies", copies, copies, "sort"),
        Operator(label="combine", work="combine", split="copies", read=copies, copies=m.experts_per_token, reach=reach),
        Operator(
            label="unpermute",
            work="memory_bound",
            access="gather",
            split="sequence",
            read=copies,
            written=p.t * m.hidden * p.e,
            backward_read=p.t * m.hidden * p.e + copies,
            backward_written=copies,
            saved=() if p.style.weights_in_experts else (Saved(name="expert output", bytes=copies, region="sequence"),),
        ),
        *shared,
    ]


def _weighted(p: Pieces) -> list[Operator]:
    """The MLP of experts; behind its activation function the router's weights, where no kernel applies both (Megatron-Core,
    TEGroupedMLP.bias_act_func): they are in fp32, so the product is too and is cast back, for n = k T f_e values of e bytes:

        forward   product, cast                                   reads (e + 4) n       writes (e + 4) n
        backward  cast, product and cast for the activation,
                  product and sum for the weights                 reads (2 e + 16) n    writes (e + 12) n
    """
    operators = p.mlp("expert", p.m.expert_ffn, "expert")
    if not p.weights_apart:
        return operators
    n, e = float(p.expert_rows * p.m.expert_ffn), p.e
    weights = Operator(
        label="expert weighted activation",
        work="memory_bound",
        access="stream",
        split="expert",
        read=n * (e + 4),
        written=n * (e + 4),
        backward_read=n * (2 * e + 16),
        backward_written=n * (e + 12),
        launches=2,
        backward_launches=5,
    )
    return [*operators[:-1], weights, operators[-1]]


def _weighted_biases(p: Pieces) -> Operator:
    """Each expert's output bias times the router's weight of the row, added in fp32, expert by expert (Megatron-Core,
    TEGroupedMLP._apply_bias), for k T h = n values of e bytes:

        forward   product, sum, joining, cast          reads (e + 8) n     writes (e + 12) n
        backward  casts, joining, sums for bias and weight    reads (2 e + 20) n   writes (2 e + 12) n
    """
    n, e = float(p.expert_rows * p.m.hidden), p.e
    return Operator(
        label="expert weighted biases",
        work="memory_bound",
        access="stream",
        split="copies",
        read=n * (e + 8),
        written=n * (e + 12),
        backward_read=n * (2 * e + 20),
        backward_written=n * (2 * e + 12),
        launches=2,
        backward_launches=3,
        per_expert=2,
    )


def _choice(p: Pieces) -> Operator:
    """Softmax over the experts, the k largest, their weights and the loss that balances them: passes over T x E numbers."""
    logits = _LOGIT * p.t * p.m.experts
    return Operator(
        label="choice of experts",
        work="memory_bound",
        split="sequence",
        read=3 * logits,
        written=3 * logits,
        backward_read=2 * logits,
        backward_written=2 * logits,
        saved=(Saved(name="router weights and choice", bytes=3 * logits, region="sequence"),),
        launches=12,
        backward_launches=8,
    )


def _counts(p: Pieces) -> Operator:
    """Rows per expert and per rank, summed from the choice and copied to the host, which sizes buffers and products by them.

    Where experts have a fixed capacity, sizes are known and nothing is counted.  Megatron-LM, moe/token_dispatcher.py, preprocess:
    sums and casts of the map of chosen experts, counts of all ranks gathered, sums and slices of those, copies to the host.
    """
    return Operator(
        label="token counts", work="counts", split="sequence", read=2.0 * p.t * p.m.experts, launches=_COUNT_KERNELS
    )


def _moving(label: str, split: str, read: float, written: float, work: str = "memory_bound") -> Operator:
    """A kernel whose backward is its reverse."""
    return Operator(
        label=label,
        work=work,
        access="" if label == "shared expert sum" else "gather",
        split=split,
        read=read,
        written=written,
        backward_read=written,
        backward_written=read,
    )
