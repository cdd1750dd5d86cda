"""Dense transformers: attention (multi-head, grouped-query, multi-query) and a plain or gated MLP.

One layer, for T = sequences x sequence_length tokens, hidden h, kv width g = kv_heads x head_dim, query width q, ffn f:

    norm - qkv [h -> q+2g] - rotary - attention - projection [q -> h] - residual - norm - up [h -> f or 2f] - activation
         - down [f -> h] - residual

Bytes kept for backward follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198, section 4: sbh(34 + 5as/h) for a plain MLP with dropout and unfused attention in 16 bits.
"""

from __future__ import annotations

from simulator.workload.architectures.base import Architecture
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart, Operator, Saved
from simulator.workload.precision import Precision

__all__ = ["Transformer"]


class Transformer(Architecture):
    """Decoder-only (or encoder-only) transformer with equal layers."""

    name = "transformer"
    source = "Vaswani et al. 2017; Korthikanti et al. 2022, arXiv 2205.05198, section 4"

    def part(
        self,
        model: Model,
        kind: str,
        sequences: int,
        sequence_length: int,
        precision: Precision,
        style: KernelStyle,
        vocabulary: int,
        context: int = 0,
        peers: int = 1,
    ) -> LayerPart:
        """See `Architecture.part`."""
        tokens = sequences * sequence_length
        builder = _Parts(model, sequences, sequence_length, tokens, precision, style, vocabulary, context, peers)
        operators = {"embedding": builder.embedding, "layer": builder.layer, "head": builder.head}[kind]()
        width = 8.0 if kind == "embedding" else model.hidden * builder.e
        return LayerPart(kind=kind, operators=tuple(operators), input_bytes=tokens * width)


class _Parts:
    """Builds the operator lists; e = bytes of an activation element, t = tokens of the microbatch."""

    def __init__(
        self,
        model: Model,
        sequences: int,
        length: int,
        tokens: int,
        precision: Precision,
        style: KernelStyle,
        vocabulary: int,
        context: int,
        peers: int,
    ) -> None:
        self.m, self.sequences, self.length, self.t = model, sequences, length, tokens
        self.e, self.kept = float(precision.element), precision.quantised_element
        self.style, self.vocabulary, self.keys = style, vocabulary, (context + length) * peers
        self.peers = peers

    # --- small kernels --------------------------------------------------------------------------------------------

    def norm(self, label: str) -> Operator:
        """LayerNorm or RMSNorm: reads x, writes y; backward reads x and dy, writes dx.

        LayerNorm is one kernel in every framework.  An RMSNorm written in plain tensor operations (not fused) computes in fp32:
        cast, square, mean, scale, cast, weight forward; the same backward with the sums for the scale, e = bytes per element:

            forward   reads  x e, 4, 4, 4, 4, e  = 2 e + 16     writes 4, 4, 4, e, e   = 2 e + 12
            backward  reads  2 e, 2 e, e, e, 4, 8, 4, 4, 8, 4 = 6 e + 32     writes e, e, 4, 4, 4, 4, 4, e = 3 e + 20
        """
        elements = float(self.t * self.m.hidden)
        weights = self.m.hidden * (2 if self.m.norm == "layer_norm" else 1)
        fused = self.style.fused_norm or self.m.norm == "layer_norm"
        e = self.e
        return Operator(
            label=label,
            work="memory_bound",
            split="sequence",
            read=elements * (e if fused else 2 * e + 16),
            written=elements * (e if fused else 2 * e + 12),
            backward_read=elements * (2 * e if fused else 6 * e + 32),
            backward_written=elements * (e if fused else 3 * e + 20),
            parameters=weights,
            small_parameters=weights,
            again=1.0,
            saved=(
                Saved(name=f"{label} input", bytes=elements * e, region="sequence", cheap=label == "mlp norm"),
                *(
                    ()
                    if fused
                    else (Saved(name=f"{label} in fp32", bytes=elements * (4 + e), region="sequence", cheap=True),)
                ),
            ),
            launches=1 if fused else 7,
            backward_launches=2 if fused else 13,
        )

    def linear(self, label: str, split: str, n: int, k: int, saved: Saved, bias: bool, again: float = 0.0) -> Operator:
        """A GEMM with a weight: [t, k] x [k, n]; its bias is added in the GEMM or by the kernel that follows."""
        return Operator(
            label=label,
            work="gemm",
            split=split,
            shape=(1, self.t, n, k),
            parameters=n * k + (n if bias else 0),
            small_parameters=n if bias and split == "row" else 0,
            saved=(saved,),
            again=again,
            backward_launches=2 + (1 if bias else 0),
            backward_read=self.t * n * self.e if bias else 0.0,
        )

    def residual(self, label: str) -> Operator:
        """Bias, dropout and residual addition after a row-split GEMM."""
        x = self.t * self.m.hidden * self.e
        mask = float(self.t * self.m.hidden) if self.style.dropout else 0.0
        passes = 1 if self.style.fused_residual or not (self.style.dropout or self.m.linear_bias) else 2
        saved = (Saved(name=f"{label} dropout mask", bytes=mask, region="sequence"),) if mask else ()
        return Operator(
            label=label,
            work="memory_bound",
            split="sequence",
            read=2 * x * passes,
            written=x * passes + mask,
            backward_read=(3 * x + mask) if mask else 2 * x,
            backward_written=2 * x if mask else x,
            saved=saved,
            again=1.0,
            launches=passes if not mask else 2 * passes - 1,
            backward_launches=2 if mask else 1,
        )

    # --- attention ------------------------------------------------------------------------------------------------

    def attention(self) -> list[Operator]:
        """The core between qkv and projection; unfused keeps the scores in memory, flash kernels do not."""
        m, e = self.m, self.e
        query, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
        operands = (
            Saved(name="queries", bytes=self.t * query * e, region="tensor"),
            Saved(name="keys", bytes=self.t * kv * e, region="tensor", cheap=True),
            Saved(name="values", bytes=self.t * kv * e, region="tensor"),
        )
        operators = []
        if m.positions == "rotary":
            moved = self.t * (query + kv) * e * (1 if self.style.fused_rotary else 3)
            operators.append(
                Operator(
                    label="rotary",
                    work="memory_bound",
                    split="tensor",
                    read=moved,
                    written=moved,
                    backward_read=moved,
                    backward_written=moved,
                    again=1.0,
                    launches=2 if self.style.fused_rotary else 10,
                    backward_launches=2 if self.style.fused_rotary else 10,
                )
            )
        if self.style.attention != "unfused":
            statistics = Saved(name="softmax statistics", bytes=4.0 * self.t * m.heads, region="tensor", droppable=True)
            operators.append(
                Operator(
                    label="attention",
                    work="attention",
                    split="heads",
                    shape=(self.sequences, m.heads, self.length, m.head_dim),
                    kv_heads=m.kv_heads,
                    keys=self.keys,
                    peers=self.peers,
                    saved=(*operands, statistics),
                    kernel=self.style.attention,
                    causal=True,
                    selective=True,
                    backward_launches=3,
                )
            )
            return operators
        return operators + self.unfused_attention(operands)

    def unfused_attention(self, operands: tuple[Saved, ...]) -> list[Operator]:
        """Scores, softmax, dropout and context as separate kernels."""
        m, e, s, keys = self.m, self.e, self.length, self.keys
        maps = self.sequences * m.heads
        scores = float(maps) * s * keys
        drop = self.style.dropout
        passes = 1 if self.style.fused_softmax else 3
        saved = [Saved(name="softmax output", bytes=scores * e, region="tensor", droppable=True)]
        operators = [
            Operator(
                label="attention scores",
                work="gemm",
                split="heads",
                shape=(maps, s, keys, m.head_dim),
                has_weight=False,
                kv_heads=m.kv_heads,
                peers=self.peers,
                saved=operands[:2],
                selective=True,
                backward_launches=2,
            ),
            Operator(
                label="softmax",
                work="memory_bound",
                split="tensor",
                read=scores * e * passes,
                written=scores * e * passes,
                backward_read=2 * scores * e * passes,
                backward_written=scores * e * passes,
                saved=tuple(saved),
                launches=1 if self.style.fused_softmax else 4,
                backward_launches=1 if self.style.fused_softmax else 4,
                selective=True,
            ),
        ]
        if drop:
            operators.append(
                Operator(
                    label="attention dropout",
                    work="memory_bound",
                    split="tensor",
                    read=scores * e,
                    written=scores * (e + 1),
                    backward_read=scores * (e + 1),
                    backward_written=scores * e,
                    saved=(
                        Saved(name="attention dropout mask", bytes=scores, region="tensor", droppable=True),
                        Saved(name="attention dropout output", bytes=scores * e, region="tensor", droppable=True),
                    ),
                    selective=True,
                )
            )
        x = self.t * m.heads * m.head_dim * e
        operators.append(
            Operator(
                label="attention context",
                work="gemm",
                split="heads",
                shape=(maps, s, m.head_dim, keys),
                has_weight=False,
                saved=operands[2:],
                selective=True,
                backward_launches=2,
            )
        )
        operators.append(
            Operator(
                label="attention transpose",
                work="memory_bound",
                split="tensor",
                read=x,
                written=x,
                backward_read=4 * x,
                backward_written=4 * x,
                backward_launches=4,
                selective=True,
            )
        )
        return operators

    # --- layers ---------------------------------------------------------------------------------------------------

    def layer(self) -> list[Operator]:
        """One transformer layer, forward order."""
        m, t, e = self.m, self.t, self.e
        query, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
        wide = t * m.ffn * e
        bias = m.linear_bias
        qkv_in = Saved(name="qkv input", bytes=t * m.hidden * self.kept, region="sequence", cheap=True)
        proj_in = Saved(name="projection input", bytes=t * query * self.kept, region="tensor")
        up_in = Saved(name="mlp input", bytes=t * m.hidden * self.kept, region="sequence", cheap=True)
        down_in = Saved(name="mlp down input", bytes=t * m.ffn * self.kept, region="tensor", cheap=True)
        up = m.ffn * (2 if m.gated_mlp else 1)
        passes = 1 if self.style.fused_bias_activation or not (bias or m.gated_mlp) else 2
        activation_in = wide * (2 if m.gated_mlp else 1)
        activation = Operator(
            label="swiglu" if m.gated_mlp else "gelu",
            work="memory_bound",
            split="tensor",
            read=activation_in * passes,
            written=wide * passes,
            backward_read=(activation_in + wide) * passes,
            backward_written=activation_in * passes,
            again=1.0,
            saved=(
                Saved(name="gate output" if m.gated_mlp else "activation function input", bytes=wide, region="tensor"),
                *((Saved(name="up output", bytes=wide, region="tensor", cheap=True),) if m.gated_mlp else ()),
                *(
                    (Saved(name="silu output", bytes=wide, region="tensor", cheap=True),)
                    if m.gated_mlp and passes > 1
                    else ()
                ),
            ),
            launches=passes,
            backward_launches=passes,
        )
        return [
            self.norm("attention norm"),
            self.linear("qkv", "column", query + 2 * kv, m.hidden, qkv_in, bias or m.qkv_bias),
            *self.attention(),
            self.linear("projection", "row", m.hidden, query, proj_in, bias, again=1.0),
            self.residual("attention residual"),
            self.norm("mlp norm"),
            self.linear("mlp up", "column", up, m.hidden, up_in, bias, again=0.5 if m.gated_mlp else 0.0),
            activation,
            self.linear("mlp down", "row", m.hidden, m.ffn, down_in, bias),
            self.residual("mlp residual"),
        ]

    def embedding(self) -> list[Operator]:
        """Token (and position) lookup; backward scatters gradients."""
        m, t, e = self.m, self.t, self.e
        x = t * m.hidden * e
        positions = m.sequence_length * m.hidden if m.positions == "learned" else 0
        mask = float(t * m.hidden) if self.style.dropout else 0.0
        saved = [Saved(name="token ids", bytes=8.0 * t, region="whole")]
        if mask:
            saved.append(Saved(name="embedding dropout mask", bytes=mask, region="sequence"))
        return [
            Operator(
                label="embedding",
                work="lookup",
                split="lookup",
                read=x * (2 if positions else 1),
                written=x * (2 if positions else 1) + mask,
                backward_read=2 * x + mask,
                backward_written=2 * x,
                parameters=self.vocabulary * m.hidden + positions,
                small_parameters=positions,
                saved=tuple(saved),
                launches=2 + (2 if positions else 0) + (1 if mask else 0),
                backward_launches=4,
            )
        ]

    def head(self) -> list[Operator]:
        """Final norm, projection to the vocabulary, cross-entropy on fp32 logits."""
        m, t, e = self.m, self.t, self.e
        logits = float(t) * self.vocabulary
        head_in = Saved(name="head input", bytes=t * m.hidden * e, region="sequence")
        product = self.linear("head", "vocabulary", self.vocabulary, m.hidden, head_in, False)
        if self.style.fused_cross_entropy:
            read, written, back_read, back_written, kept = 2 * e, 0.0, e, e, e
        else:  # cast to fp32; maximum; subtract; exponential; sum; divide - backward scales the softmax and casts it back
            read, written, back_read, back_written, kept = e + 20.0, 16.0, 8.0, 4.0 + e, 4.0
        loss = Operator(
            label="cross entropy",
            work="memory_bound",
            split="tensor",
            read=logits * read,
            written=logits * written,
            backward_read=logits * back_read,
            backward_written=logits * back_written,
            saved=(Saved(name="logits", bytes=logits * kept, region="tensor", category="logits"),),
            launches=2 if self.style.fused_cross_entropy else 8,
            backward_launches=1 if self.style.fused_cross_entropy else 4,
        )
        return [self.norm("final norm"), product, loss]
