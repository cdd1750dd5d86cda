"""Pieces of a transformer's layers: norms, linear layers, residuals, MLPs, the embedding and the head, as operators."""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.layer_kind import LayerKind
from simulator.workload.model import RELATIVE_BUCKETS, Model
from simulator.workload.operator import KernelStyle, Operator, Saved
from simulator.workload.precision import Precision

__all__ = ["Pieces"]

_FP32 = 4.0
"""Bytes of a number in fp32."""


class Pieces:
    """Builds operators; e = bytes of an activation element, kept = of a quantised one, t = tokens of the microbatch."""

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
        kind: LayerKind | None = None,
        source: int = 0,
    ) -> None:
        self.m, self.sequences, self.length, self.t = model, sequences, length, tokens
        self.e, self.kept = float(precision.element), precision.quantised_element
        self.precision = precision
        self.style, self.vocabulary, self.keys = style, vocabulary, (context + length) * peers
        self.peers, self.kind, self.source = peers, kind or LayerKind(), source
        self.gathered = "whole" if style.keeps_gathered_inputs else "sequence"

    def norm(self, label: str, width: int = 0) -> Operator:
        """LayerNorm or RMSNorm: reads x, writes y; backward reads x and dy, writes dx.

        LayerNorm is one kernel in every framework.  An RMSNorm written in plain tensor operations (not fused) computes in fp32,
        each operation a pass at the speed of a stream (torchao's float8 roofline, 2.2 of 2.4 TB/s on H100):
        cast, square, mean, scale, cast, weight forward; the same backward with the sums for the scale, e = bytes per element:

            forward   reads  x e, 4, 4, 4, 4, e  = 2 e + 16     writes 4, 4, 4, e, e   = 2 e + 12
            backward  product with the weight     reads e, 2 e, e (sum over tokens)     writes e, e
                      cast                        reads e                               writes 4
                      product with the scale      reads 4, 8, 4 (sum over a row)        writes 4, 4
                      mean, square                reads 4, 4, 8                         writes 4, 4, 4, 4
                      sum of both ways, cast      reads 8, 4                            writes 4, e
                      in all                      reads 5 e + 44                        writes 3 e + 32

        The sums over tokens of a LayerNorm's backward may be a kernel of its own, which reads x and dy again (PyTorch's
        layer_norm_kernel.cu and apex' layer_norm_cuda_kernel.cu: one kernel for gammas and betas, one for dx; Transformer Engine's
        and apex' FastLayerNorm add them up in passing).

        One kernel on a residual stream that is cast to fp32 before: forward reads e, 4 and writes 4, e; backward reads e, 4
        and writes 4, and the cast of the gradient reads 4 and writes e.
        """
        width = width or self.m.hidden
        elements = float(self.t * width)
        weights = width * (2 if self.m.norm == "layer_norm" else 1)
        fused = self.style.fused_norm or self.m.norm == "layer_norm"
        e = self.e
        wide = fused and self.style.norms_in_fp32 and e < _FP32
        cast = _FP32 if wide else 0.0
        read, written, back_read, back_written = (
            (e + cast, e + cast, 2 * e + (2 * _FP32 - e if wide else 0.0), e + cast)
            if fused
            else (2 * e + 16, 2 * e + 12, 5 * e + 44, 3 * e + 32)
        )
        apart = fused and self.style.norm_sums_apart
        return Operator(
            label=label,
            work="memory_bound",
            split="sequence",
            read=elements * read,
            written=elements * written,
            backward_read=elements * back_read,
            backward_written=elements * back_written,
            sums_read=elements * (e + (cast or e)) if apart else 0.0,
            access="" if fused else "stream",
            parameters=weights,
            small_parameters=weights,
            again=1.0,
            saved=(
                Saved(
                    name=f"{label} input", bytes=elements * (cast or e), region="sequence", cheap=label == "mlp norm"
                ),
                *(
                    ()
                    if fused
                    else (Saved(name=f"{label} in fp32", bytes=elements * (4 + e), region="sequence", cheap=True),)
                ),
            ),
            launches=(2 if wide else 1) if fused else 7,
            backward_launches=(3 if wide else 2) if fused else 17,
        )

    def linear(
        self, label: str, split: str, n: int, k: int, saved: Saved, bias: bool, again: float = 0.0, products: int = 1
    ) -> Operator:
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
            products=products,
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

    @property
    def expert_rows(self) -> int:
        """Rows of all experts: every token k times, or what fills their capacity."""
        return round(self.t * self.m.experts_per_token * (self.m.capacity_factor or 1.0))

    @property
    def weights_apart(self) -> bool:
        """Whether the router's weights scale experts' inner activation in kernels of their own: the fused one is for gates."""
        return self.style.weights_in_experts and not (self.m.gated_mlp and self.style.fused_bias_activation)

    def mlp(self, label: str, width: int, region: str, keeps_input: bool = True) -> list[Operator]:
        """An MLP: up (and gate), activation function, down; on all the rows of experts where these share the work.

        Args:
            label: what its operators are called after.
            width: inner width.
            region: "tensor" (its inner width is divided by tensor parallelism) or "expert" (the experts' own split).
            keeps_input: whether its input is kept for it; not where another operator keeps the same tensor.
        """
        expert = region == "expert"
        m, t, e = self.m, self.expert_rows if expert else self.t, self.e
        wide = t * width * e
        bias = m.linear_bias
        outer = "copies" if expert else self.gathered
        held = t * m.hidden * self.kept if keeps_input else 0.0
        up_in = Saved(name=f"{label} input", bytes=held, region=outer, cheap=not expert)
        down_in = Saved(name=f"{label} down input", bytes=t * width * self.kept, region=region, cheap=True)
        up = width * (2 if m.gated_mlp else 1)
        again = 0.5 if m.gated_mlp else 0.0
        if expert:
            first = self.grouped(f"{label} up", "expert column", up, m.hidden, up_in, again)
            last = self.grouped(f"{label} down", "expert row", m.hidden, width, down_in)
        else:
            products = 2 if m.gated_mlp and not self.style.joined_gate else 1
            first = self.linear(f"{label} up", "column", up, m.hidden, up_in, bias, again, products)
            last = self.linear(f"{label} down", "row", m.hidden, width, down_in, bias)
            if (
                m.gated_mlp and self.style.keeps_idle_products
            ):  # the seventh product of a layer, so one of those whose output is kept
                down_out = Saved(name=f"{label} down output", bytes=t * m.hidden * e, region="sequence", idle=True)
                last = replace(last, saved=(*last.saved, down_out))
        return [first, *self.clamps(label, wide, region), self.activation(label, wide, region), last]

    def clamps(self, label: str, wide: float, region: str) -> list[Operator]:
        """The clamps of both inputs of a gate, where they are kernels of their own; `wide` bytes each, in elements of e bytes.

        Megatron-Core (fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl) clamps and joins in plain tensor operations,
        then makes a number on the GPU, for which the host waits.  Of both inputs together, per element of one:

            forward   two clamps, joining                       reads 4 e        writes 4 e
            backward  parting; masks of one and of two limits,
                      two choices by mask                       reads 7 e + 4    writes 4 e + 4
        """
        style = self.style
        if not self.m.clamped_gate or (style.fused_bias_activation and not style.weights_in_experts):
            return []
        n, e = wide / self.e, self.e
        clamp = Operator(
            label=f"{label} clamp",
            work="memory_bound",
            access="stream",
            split=region,
            read=4 * e * n,
            written=4 * e * n,
            backward_read=(7 * e + 4) * n,
            backward_written=(4 * e + 4) * n,
            again=1.0,
            saved=(Saved(name=f"{label} gate clamped", bytes=2 * wide, region=region, cheap=True),),
            launches=3,
            backward_launches=7,
        )
        if not style.weights_in_experts:
            return [clamp]
        return [clamp, Operator(label=f"{label} gate offset", work="wait", split=region, read=e)]

    def activation(self, label: str, wide: float, region: str) -> Operator:
        """The activation function of an MLP whose inner activation has `wide` bytes.

        A gate in plain tensor operations, in passes over one half of its input: the function 1, 1 and the product 2, 1 forward;
        backward the product's two gradients 4, 2 and the function's 2, 1, and joining the halves 2, 2 where they are one tensor.
        Biases are added before, 2 and 2 for both halves; their gradient is summed by the linear layer.
        """
        m = self.m
        fused = self.style.fused_bias_activation and not (m.gated_mlp and self.style.plain_gate)
        passes = 1 if fused or not (m.linear_bias or m.gated_mlp) else 2
        activation_in = wide * (2 if m.gated_mlp else 1)
        traffic = [activation_in * passes, wide * passes, (activation_in + wide) * passes, activation_in * passes]
        if m.gated_mlp and passes > 1:
            halves = 2 if self.style.joined_gate or region == "expert" else 0
            biases = 2 if m.linear_bias else 0
            traffic = [wide * n for n in (3 + biases, 2 + biases, 6 + halves, 3 + halves)]
        name = "swiglu" if m.gated_mlp else "gelu"
        before = "" if label == "mlp" else f"{label} "
        first = "gate output" if m.gated_mlp else "activation function input"
        return Operator(
            label=f"{before}{name}",
            work="memory_bound",
            split=region,
            read=traffic[0],
            written=traffic[1],
            backward_read=traffic[2],
            backward_written=traffic[3],
            access="stream" if m.gated_mlp and passes > 1 else "",  # an error function takes longer than its bytes
            again=1.0,
            saved=(
                Saved(name=f"{before}{first}", bytes=wide, region=region),
                *((Saved(name=f"{before}up output", bytes=wide, region=region, cheap=True),) if m.gated_mlp else ()),
                *(
                    (Saved(name=f"{before}output unweighted", bytes=wide, region=region, cheap=True),)
                    if region == "expert" and self.weights_apart
                    else ()
                ),
                *(
                    (Saved(name=f"{before}silu output", bytes=wide, region=region, cheap=True),)
                    if m.gated_mlp and passes > 1
                    else ()
                ),
            ),
            launches=passes,
            backward_launches=passes,
        )

    def grouped(self, label: str, split: str, n: int, k: int, saved: Saved, again: float = 0.0) -> Operator:
        """The products of all routed experts; the rows are all copies of all tokens, dealt out over the experts."""
        m = self.m
        copies = self.expert_rows
        return Operator(
            label=label,
            work="gemm",
            split=split,
            shape=(m.experts, copies, n, k),
            parameters=m.experts * (n * k + (n if m.linear_bias else 0)),
            saved=(saved,),
            again=again,
            backward_launches=2 + (1 if m.linear_bias else 0),
            backward_read=copies * n * self.e if m.linear_bias else 0.0,
        )

    def embedding(self) -> list[Operator]:
        """Token (and position) lookup; backward scatters gradients.

        Or a product of one-hot rows, which are written for it, with the table, and back with the gradient: the rows of the table
        are summed by a product then, and only positions are looked up.
        """
        m, t, e = self.m, self.t, self.e
        x = t * m.hidden * e
        positions = m.sequence_length * m.hidden if m.positions == "learned" else 0
        biases = RELATIVE_BUCKETS * m.heads if m.positions == "relative_bias" else 0
        mask = float(t * m.hidden) if self.style.dropout else 0.0
        saved = [Saved(name="token ids", bytes=8.0 * t, region="whole")]
        if mask:
            saved.append(Saved(name="embedding dropout mask", bytes=mask, region="sequence"))
        rows = t * self.vocabulary * e if self.style.embeds_by_product else 0.0
        looked = (2.0 if positions else 1.0) if not rows else float(bool(positions))
        return [
            Operator(
                label="embedding",
                work="lookup",
                split="lookup",
                shape=(1, t, m.hidden, self.vocabulary) if rows else (0, 0, 0, 0),
                read=x * looked,
                written=x * looked + mask,
                backward_read=2 * x * (looked if rows else 1.0) + mask,
                backward_written=2 * x * (looked if rows else 1.0),
                parameters=self.vocabulary * m.hidden + positions + biases,
                small_parameters=positions + biases,
                saved=tuple(saved),
                launches=2 + (2 if positions else 0) + (1 if mask else 0),
                backward_launches=4,
            )
        ]

    def head(self) -> list[Operator]:
        """Final norm, projection to the vocabulary, cross-entropy on fp32 logits."""
        m, t, e = self.m, self.t, self.e
        logits = float(t) * self.vocabulary
        region = "whole" if self.style.gathers_logits else "tensor"
        head_in = Saved(name="head input", bytes=t * m.hidden * e, region=self.gathered)
        product = self.linear("head", "vocabulary", self.vocabulary, m.hidden, head_in, False)
        if self.style.fused_cross_entropy and self.style.widens_fused_loss:  # maximum; exponential and sum; divide
            read, written, back_read, back_written, kept = 2 * e + 4.0, 8.0, 4.0, e, 4.0
        elif self.style.fused_cross_entropy:
            read, written, back_read, back_written, kept = 2 * e, 0.0, e, e, e
        else:  # cast to fp32; maximum; subtract; exponential; sum; divide - backward scales the softmax and casts it back
            read, written, back_read, back_written, kept = e + 20.0, 16.0, 8.0, 4.0 + e, 4.0
        measures = self.style.measures_accuracy
        if measures:  # loss; maximum twice; largest's index; subtract; exponential; sum
            read, written = read + 7.0 * e, written + 2.0 * e
        loss = Operator(
            label="cross entropy",
            work="memory_bound",
            access="loss",
            split=region,
            shape=(1, t, self.vocabulary, 1),
            read=logits * read,
            written=logits * written,
            backward_read=logits * back_read,
            backward_written=logits * back_written,
            saved=(self._kept_of_loss(logits * kept, region),),
            launches=(2 if self.style.fused_cross_entropy else 8) + (7 if measures else 0),
            backward_launches=1 if self.style.fused_cross_entropy else 4,
        )
        return [self.norm("final norm"), product, loss, *self.metrics(logits)]

    def _kept_of_loss(self, logits: float, region: str) -> Saved:
        """What stands from the loss to its backward: logits, or, made chunk by chunk, the gradient of the head's input."""
        if self.style.loss_chunks > 1:
            return Saved(
                name="gradient of the head's input", bytes=float(self.t) * self.m.hidden * self.e, region="sequence"
            )
        return Saved(name="logits", bytes=logits, region=region, category="logits")

    def metrics(self, logits: float) -> list[Operator]:
        """Training metrics that evaluate the loss of the logits anew, after the backward and without gradients.

        Each: a cast to fp32, then log-probabilities and their pick.  torch's kernel reads a row for its maximum, for its sum and to
        write; a block of 1,024 threads per multiprocessor works on a row of some 200 kB, so that the rows under way stay in the L2
        cache and memory is read once.
        """
        times = self.style.loss_metrics
        if not times:
            return []
        return [
            Operator(
                label="training metrics",
                work="memory_bound",
                split="whole" if self.style.gathers_logits else "tensor",
                read=0.0,
                written=0.0,
                backward_read=times * logits * (self.e + 4.0),
                backward_written=times * logits * 8.0,
                launches=0,
                backward_launches=6 * times,
            )
        ]
