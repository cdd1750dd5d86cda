"""Parameters of a model by formulas of its sizes, written beside the graphs and never from them: what tests hold the graphs against."""

from __future__ import annotations

from collections import Counter

from simulator.workload.layer_kind import LayerKind, layer_kind
from simulator.workload.model import RELATIVE_BUCKETS, Model

__all__ = ["ClosedForm"]


class ClosedForm:
    """Counts of one model."""

    def __init__(self, model: Model) -> None:
        self.m = model

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a scale, and for layer norm a shift."""
        return self.m.hidden * (2 if self.m.norm == "layer_norm" else 1)

    @property
    def attention_weights(self) -> int:
        """Elements of one layer's attention matrices: query, key, value and output projections."""
        if self.m.attention == "standard":
            gate = self.m.heads if self.m.attention_gate else 0
            return self.m.hidden * (2 * self.m.heads + gate + 2 * self.m.kv_heads) * self.m.head_dim
        query = self.m.heads * self.m.head_dim
        queries = self.m.q_lora_rank * (self.m.hidden + query) if self.m.q_lora_rank else self.m.hidden * query
        latent = self.m.hidden * (self.m.kv_lora_rank + self.m.qk_rope_head_dim)
        up = self.m.kv_lora_rank * self.m.heads * (self.m.qk_nope_head_dim + self.m.v_head_dim)
        return queries + latent + up + self.m.heads * self.m.v_head_dim * self.m.hidden

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: its matrices, their biases, and the norms of latents."""
        projected = (self.m.heads + 2 * self.m.kv_heads) * self.m.head_dim
        biases = (projected if self.m.qkv_bias else 0) + (self.m.hidden if self.m.linear_bias else 0)
        norms = 2 * self.m.head_dim * (2 if self.m.norm == "layer_norm" else 1) if self.m.qk_norm else 0
        return self.attention_weights + biases + self.m.q_lora_rank + self.m.kv_lora_rank + norms

    def mlp_weights(self, width: int) -> int:
        """Return the elements of the matrices of an MLP of this inner width."""
        return (3 if self.m.gated_mlp else 2) * self.m.hidden * width

    def mlp_biases(self, width: int) -> int:
        """Return the biases of an MLP of this inner width."""
        return (2 if self.m.gated_mlp else 1) * width + self.m.hidden if self.m.linear_bias and width else 0

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one dense layer's MLP with its biases."""
        return self.mlp_weights(self.m.ffn) + self.mlp_biases(self.m.ffn)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert with its biases."""
        return self.mlp_weights(self.m.expert_ffn) + self.mlp_biases(self.m.expert_ffn)

    @property
    def router_parameters(self) -> int:
        """Parameters of one router."""
        return self.m.experts * (self.m.hidden + (1 if self.m.linear_bias else 0))

    @property
    def ssm_inner(self) -> int:
        """Inner width of a layer that carries a state."""
        return self.m.ssm_heads * self.m.ssm_head_dim

    @property
    def ssm_convolved(self) -> int:
        """Channels of its convolution: values, keys and queries."""
        return self.ssm_inner + 2 * self.m.ssm_groups * self.m.ssm_state

    def ssm_projected(self, mixer: str) -> int:
        """Return the columns of its first product: what is convolved, a gate, and one step size (delta: and a rate) per head."""
        return self.ssm_convolved + self.ssm_inner + self.m.ssm_heads * (2 if mixer == "delta" else 1)

    def ssm_small_parameters(self, mixer: str) -> int:
        """Return the parameters of its convolution (Mamba-2: with a bias) and of its heads' constants."""
        wide = self.m.conv_width + (1 if mixer == "mamba2" else 0)
        return self.ssm_convolved * wide + self.m.ssm_heads * (3 if mixer == "mamba2" else 2)

    def mixer_weights(self, kind: LayerKind) -> int:
        """Return the elements of the matrices that mix a layer's tokens: attention's, and a decoder's second ones."""
        if kind.mixer == "none":
            return 0
        if kind.mixer in ("mamba2", "delta"):
            return self.m.hidden * (self.ssm_projected(kind.mixer) + self.ssm_inner)
        return self.attention_weights * (2 if kind.stack == "cross" else 1)

    def mixer_parameters(self, kind: LayerKind) -> int:
        """Return the parameters of a layer's mixer with its norms in front (and behind)."""
        if kind.mixer == "none":
            return 0
        norms = self.norm_parameters * (2 if self.m.post_norms else 1)
        if kind.mixer in ("mamba2", "delta"):
            gate = self.ssm_inner if kind.mixer == "mamba2" else self.m.ssm_head_dim
            return norms + self.mixer_weights(kind) + self.ssm_small_parameters(kind.mixer) + gate
        own = self.attention_parameters
        if self.m.positions == "transformer_xl":
            own += self.m.heads * self.m.head_dim * (self.m.hidden + 2)
        return (own + norms) * (2 if kind.stack == "cross" else 1)

    def seen_weights(self, kind: LayerKind) -> float:
        """Return the elements of a layer's matrices that one token meets: of the experts those that it is sent to."""
        if kind.mlp == "moe":
            experts = self.m.experts_per_token * self.mlp_weights(self.m.expert_ffn)
            mlp = self.m.hidden * self.m.experts + experts + self.mlp_weights(self.m.shared_expert_ffn)
        else:
            mlp = self.mlp_weights(self.m.ffn) if kind.mlp == "dense" else 0
        return self.mixer_weights(kind) + mlp

    def kind_parameters(self, kind: LayerKind, experts: int | None = None) -> int:
        """Return the parameters of a layer of this kind, of which so many routed experts count (None = all)."""
        total = self.mixer_parameters(kind)
        if kind.mlp == "only":
            return total
        total += self.norm_parameters * (2 if self.m.post_norms else 1)
        if kind.mlp == "dense":
            return total + self.mlp_parameters
        shared = self.mlp_weights(self.m.shared_expert_ffn) + self.mlp_biases(self.m.shared_expert_ffn)
        count = self.m.experts if experts is None else experts
        return total + self.router_parameters + count * self.expert_parameters + shared

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer: attention, MLP and norms."""
        return self.kind_parameters(LayerKind())

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one layer with experts; 0 without."""
        return self.kind_parameters(LayerKind(mlp="moe")) if self.m.experts else 0

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction modules, beside the embedding and head that they share with the model."""
        if not self.m.mtp_layers:
            return 0
        last = layer_kind(self.m.layer_kinds[-1])
        return self.m.mtp_layers * (3 * self.norm_parameters + 2 * self.m.hidden**2 + self.kind_parameters(last))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding: of tokens (or patches and the class token), of their types, and of learned positions."""
        h = self.m.hidden
        positions = self.m.sequence_length * h if self.m.positions == "learned" else 0
        if self.m.architecture == "vision":
            return (self.m.patch_inputs + 1) * h + h + positions
        norm = self.norm_parameters if self.m.architecture == "encoder" else 0
        stacks = 2 if self.m.encoder_layers else 1
        buckets = stacks * RELATIVE_BUCKETS * self.m.heads if self.m.positions == "relative_bias" else 0
        return (self.m.vocabulary + self.m.token_types) * h + positions + norm + buckets

    @property
    def head_parameters(self) -> int:
        """Parameters of the norms at the end of stacks and of the output; a tied matrix is counted with the embedding."""
        h = self.m.hidden
        output = 0 if self.m.tied_embeddings else self.m.vocabulary * h
        if self.m.architecture == "encoder":
            transform = h * (h + 1) + self.norm_parameters + self.m.vocabulary if self.m.head_transform else 0
            return output + transform + (h * (h + 1) if self.m.pooler else 0)
        if self.m.architecture == "vision":
            return output + self.norm_parameters + self.m.vocabulary
        return output + self.norm_parameters * (2 if self.m.encoder_layers else 1)

    def parameters(self, experts: int | None = None) -> int:
        """All parameters, of which so many routed experts count (None = all)."""
        total = self.embedding_parameters + self.head_parameters
        for name, count in Counter(self.m.layer_kinds).items():
            kind = layer_kind(name)
            total += count * self.kind_parameters(kind, experts)
        return total
